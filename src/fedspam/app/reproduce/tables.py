"""The output of `fedspam reproduce` for tables of others: published numbers beside ours, printed and as files."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedspam._internal.nearest import nearest
from fedspam.app import UsageError
from fedspam.app.folders import make_folder, new_folder, write_manifest
from fedspam.app.reproduce import fedprox, heart, leaf, niid
from fedspam.app.reproduce.published import BEAT, MATCH, PART, SHORT, MeasuredTable, PublishedTable, markdown
from fedspam.app.reproduce.side_by_side import SEGMENT
from fedspam.app.terminal import progress_bar
from fedspam.simulation import records

STYLES = {MATCH: "green", BEAT: "bold green", SHORT: "bold red", PART: "dim"}


def show_heart(
    folder: Path | None = None,
    *,
    seeds: int = heart.SEEDS,
    rounds: int = heart.ROUNDS,
    seed: int = heart.FIRST_SEED,
    quiet: bool = False,
    console: Console | None = None,
) -> int:
    """Run FLamby's table."""
    changed = [
        f"{name} = {value} instead of {usual}"
        for name, value, usual in (
            ("seeds", seeds, heart.SEEDS), ("rounds", rounds, heart.ROUNDS), ("seed", seed, heart.FIRST_SEED),
        )
        if value != usual
    ]  # fmt: skip
    run = partial(heart.heart_table, seeds, rounds, seed)
    return show_table(run, 1 + len(heart.METHODS), changed, folder, quiet, console)


def show_niid(
    folder: Path | None = None,
    *,
    scale: str = "full",
    seeds: int = 1,
    rounds: int | None = None,
    seed: int = niid.FIRST_SEED,
    only: str | None = None,
    resume: bool = False,
    quiet: bool = False,
    console: Console | None = None,
) -> int:
    """Run NIID-Bench on Fashion-MNIST, or a slice of it."""
    if resume and folder is None:
        raise UsageError("--resume needs the folder of the run; give it with --out")
    methods, columns = chosen_parts(only, tuple(niid.PUBLISHED), niid.COLUMNS)
    folder = make_folder(new_folder("reproduce") if folder is None else folder)
    length = niid.SCALES[scale].rounds if rounds is None else rounds
    run = partial(
        niid.niid_table, scale, seeds, seed, rounds, methods=methods, columns=columns, out=folder, resume=resume
    )
    return show_table(run, seeds * len(methods) * -(-length // SEGMENT), [], folder, quiet, console)


def show_leaf(
    folder: Path | None = None,
    *,
    scale: str = "full",
    rounds: int | None = None,
    seed: int = 0,
    only: str | None = None,
    quiet: bool = False,
    console: Console | None = None,
) -> int:
    """Run LEAF's FEMNIST experiment. 0 if every configuration reaches the target, else 1."""
    methods, _ = chosen_parts(only, tuple(method.name for method in leaf.METHODS), ())
    run = partial(leaf.leaf_table, scale, seed, rounds, methods=methods)
    return show_measured(run, len(methods), folder, quiet, console)


def show_fedprox(
    folder: Path | None = None,
    *,
    seeds: int = fedprox.SEEDS,
    rounds: int = fedprox.ROUNDS,
    seed: int = 0,
    quiet: bool = False,
    console: Console | None = None,
) -> int:
    """Run FedProx's experiment with stragglers. 0 if its claim holds, else 1."""
    run = partial(fedprox.fedprox_table, seeds, rounds, seed)
    return show_measured(run, len(fedprox.METHODS) * len(fedprox.STRAGGLERS), folder, quiet, console)


def show_measured(
    run: Callable[..., MeasuredTable], steps: int, folder: Path | None, quiet: bool, console: Console | None
) -> int:
    """Run a table without published numbers, write it as `show_table` does, and print it."""
    console = Console() if console is None else console
    folder, began = make_folder(new_folder("reproduce") if folder is None else folder), time.perf_counter()
    with progress_bar(quiet) as bar:
        task = bar.add_task("compiling and running", total=steps)
        table = run(progress=lambda *_: bar.advance(task))
    records.write(folder / "table.csv", table.csv().encode())
    records.write(folder / "table.md", table.markdown().encode())
    write_manifest(folder, f"fedspam reproduce {table.name}", began, notes=list(table.notes), holds=table.holds)
    out = Table(title=table.title, title_justify="left")
    for number, name in enumerate(table.columns):
        out.add_column(name, justify="right" if number else "left")
    for row in table.rows:
        out.add_row(*row)
    _print(console, quiet, folder, out, table.notes, time.perf_counter() - began)
    return 0 if table.holds else 1


def chosen_parts(
    only: str | None, methods: tuple[str, ...], columns: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The methods and columns named in a list with commas; all methods if it names none, likewise columns."""
    names = [] if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in methods + columns:
            near = nearest(name, methods + columns)
            hint = f"; did you mean {near}?" if near else ""
            raise UsageError(f"--only names {name!r}; it takes {', '.join(methods + columns)}{hint}")
    pick = lambda known: tuple(name for name in known if name in names) or known
    return pick(methods), pick(columns)


def show_table(
    run: Callable[..., PublishedTable],
    steps: int,
    changed: list[str],
    folder: Path | None,
    quiet: bool,
    console: Console | None,
) -> int:
    """Run a table, write table.csv, table.md, manifest.json and command, and print it. 0 if all cells match, else 1."""
    console = Console() if console is None else console
    folder = make_folder(new_folder("reproduce") if folder is None else folder)
    began = time.perf_counter()
    with progress_bar(quiet) as bar:
        task = bar.add_task("compiling and running", total=steps)
        table = run(progress=lambda *_: bar.advance(task))
    seconds = time.perf_counter() - began
    records.write(folder / "table.csv", table.csv().encode())
    records.write(folder / "table.md", markdown(table.csv()).encode())
    verdicts = {row.method: table.verdict(row) for row in table.rows}
    write_manifest(
        folder, f"fedspam reproduce {table.name}", began, source=table.source, notes=list(table.notes),
        settings={row.method: row.settings for row in table.rows}, changed=changed, verdicts=verdicts,
    )  # fmt: skip
    more = []
    if changed:
        text = f"Not the published settings, so do not compare: {', '.join(changed)}."
        more.append(Text(text, style="bold yellow"))
    if table.comparable:
        more.append(_count(table))
    _print(console, quiet, folder, shown(table), table.notes, seconds, more)
    return 0 if table.matches() else 1


def _print(
    console: Console,
    quiet: bool,
    folder: Path,
    table: Table,
    notes: Sequence[str],
    seconds: float,
    more: Sequence[Text] = (),
) -> None:
    """The table, its notes, and where it is; with `quiet`, only the folder."""
    if quiet:
        console.print(str(folder), highlight=False, markup=False, soft_wrap=True)
        return
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, markup=False, style="dim")
    for text in more:
        console.print(text, highlight=False)
    files = f"{folder}: table.csv, table.md, manifest.json, command; {seconds:.0f} s"
    console.print(files, highlight=False, markup=False, soft_wrap=True)


def _count(table: PublishedTable) -> Text:
    cells = table.published_cells()
    within = sum(cell.matches for cell in cells)
    spread = " plus the published deviation" if any(row.spread for row in table.rows) else ""
    text = f"{within} of {len(cells)} cells are within {table.tolerance:g} points{spread} of the published ones"
    return Text(text, style="bold green" if within == len(cells) else "bold red")


def shown(table: PublishedTable) -> Table:
    """Per method: published, ours and the difference in percentage points, and the verdict."""
    out = Table(title=f"{table.title} ({table.source})", title_justify="left", show_lines=True)
    for name in ("method", "", *table.columns, "verdict"):
        out.add_column(name, justify="right" if name in table.columns else "left", overflow="fold")
    for row in table.rows:
        verdict = table.verdict(row)
        words = f"{'published' if row.published else 'best'}\nours\npoints"
        cells = ["\n".join(table.written(cell)) for cell in table.cells(row)]
        out.add_row(row.method, words, *cells, Text(verdict, style=STYLES[verdict]))
    return out

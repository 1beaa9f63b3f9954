"""What the tables of this folder share: their arguments, their files, and how published numbers stand beside ours."""

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedspam._internal.nearest import nearest
from fedspam.app.commands._arguments import Parser, file_path, whole
from fedspam.app.folders import make_folder, new_folder, write_manifest
from fedspam.simulation import records
from published import BEAT, MATCH, PART, SHORT, MeasuredTable, PublishedTable

OPTIONS: dict[str, dict[str, Any]] = {
    "seeds": {"type": whole(1), "metavar": "N", "help": "number of seeds to average over (as published)"},
    "rounds": {"type": whole(1), "metavar": "N", "help": "rounds (as published)"},
    "seed": {"type": whole(0), "metavar": "S", "help": "the first seed, S+1 the next, ..."},
    "scale": {"choices": ("full", "small"), "help": "the whole table, or a slice of it (full)"},
    "only": {"metavar": "NAMES", "help": "methods and columns, separated by commas"},
    "images": {"choices": ("mnist", "fashion", "cifar10"), "help": "the set of images (fashion)"},
    "dtype": {"choices": ("float32", "bfloat16"), "help": "of the network's computations (float32)"},
    "minutes": {"type": float, "metavar": "M", "help": "stop after so many minutes, to be resumed"},
    "merge": {"action": "store_true", "default": None, "help": "run nothing, and show the curves in --out"},
    "resume": {"action": "store_true", "default": None, "help": "continue the run of --out, or start it"},
}
STYLES = {MATCH: "green", BEAT: "bold green", SHORT: "bold red", PART: "dim"}


def main(
    table: Callable[..., PublishedTable | MeasuredTable],
    text: str | None,
    *,
    takes: Sequence[str],
    methods: tuple[str, ...] = (),
    columns: tuple[str, ...] = (),
    words: Sequence[str] | None = None,
) -> int:
    """Run the command line of a table: 0 if it holds, 1 if it does not or fails, 2 for wrong arguments.

    Arguments:
        table: runs it, with the options that were given and `progress`.
        text: the help, as the docstring of the script.
        takes: its options, of those in `OPTIONS`.
        methods, columns: what --only can name.
        words: the arguments; those of the process if left out.
    """
    name = table.__module__.replace("_", "-") if table.__module__ != "__main__" else Path(sys.argv[0]).stem
    parser = Parser(prog=f"python reproductions/{name.replace('-', '_')}.py", description=text)
    for option in takes:
        parser.add_argument(f"--{option}", **OPTIONS[option])
    parser.add_argument("--out", type=file_path, metavar="FOLDER", help="the results (runs/reproduction-<date-time>)")
    parser.add_argument("--quiet", action="store_true", help="print only the folder")
    given = {name: value for name, value in vars(parser.parse_args(words)).items() if value is not None}
    folder, quiet = given.pop("out", None), given.pop("quiet")
    for name in ("resume", "merge"):
        if given.get(name) and folder is None:
            parser.error(f"--{name} needs the folder of the run; give it with --out")
    if "minutes" in given:
        given["until"] = time.monotonic() + 60 * given.pop("minutes")
    if "only" in takes:
        given |= _chosen(given.pop("only", None), methods, columns, parser)
    try:
        folder = make_folder(new_folder("reproduction") if folder is None else folder)
        run = partial(table, **given, **({"out": folder} if "resume" in takes else {}))
        return show(run, folder, quiet)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        sys.stderr.write(f"{parser.prog}: error: {error}\n")
        return 1


def _chosen(
    only: str | None, methods: tuple[str, ...], columns: tuple[str, ...], parser: Parser
) -> dict[str, tuple[str, ...]]:
    """The methods and columns named in a list with commas; the table's own choice if it names none."""
    names = [] if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in methods + columns:
            near = nearest(name, methods + columns)
            hint = f"; did you mean {near}?" if near else ""
            parser.error(f"--only names {name!r}; it takes {', '.join(methods + columns)}{hint}")
    pick = lambda known: tuple(name for name in known if name in names)
    return {kind: picked for kind, known in (("methods", methods), ("columns", columns)) if (picked := pick(known))}


def show(run: Callable[..., PublishedTable | MeasuredTable], folder: Path, quiet: bool = False) -> int:
    """Run a table, write table.csv, table.md, manifest.json and command, and print it. 0 if it holds, else 1."""
    console, began = Console(), time.perf_counter()
    with Console(stderr=True).status("compiling and running") as status:
        # without a terminal, such as in a log, every line stays
        table = run(progress=status.update if sys.stderr.isatty() else partial(print, file=sys.stderr, flush=True))
    records.write(folder / "table.csv", table.csv().encode())
    records.write(folder / "table.md", table.markdown().encode())
    write_manifest(folder, shlex.join(["python", *sys.argv]), began, table=table.name, **table.facts())
    if quiet:
        console.print(str(folder), highlight=False, markup=False, soft_wrap=True)
        return 0 if table.holds else 1
    console.print(_drawn(table))
    for note in table.notes:
        console.print(note, highlight=False, markup=False, style="dim")
    if isinstance(table, PublishedTable) and table.comparable:
        console.print(_count(table), highlight=False)
    files = f"{folder}: table.csv, table.md, manifest.json, command; {time.perf_counter() - began:.0f} s"
    console.print(files, highlight=False, markup=False, soft_wrap=True)
    return 0 if table.holds else 1


def _drawn(table: PublishedTable | MeasuredTable) -> Table:
    if isinstance(table, PublishedTable):
        return shown(table)
    out = Table(title=table.title, title_justify="left")
    for number, name in enumerate(table.columns):
        out.add_column(name, justify="right" if number else "left")
    for row in table.rows:
        out.add_row(*row)
    return out


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

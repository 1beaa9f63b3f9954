"""Reports of runs: one HTML file that works offline, figures for papers, and all numbers as tables."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedspam.app.folders import make_folder
from fedspam.app.report import page, tables
from fedspam.app.report.bounds_overlay import BoundOverlay, with_bounds
from fedspam.app.report.series import MEASURES, Curve, ModelScores, Paid, Series, Source, printable
from fedspam.app.report.sources import NoCurvesError, read
from fedspam.simulation import records

__all__ = ["MEASURES", "BoundOverlay", "Curve", "ModelScores", "Paid", "Series", "Source", "read", "read_all", "write"]

NAMED = 10  # folders that are named, of those left out


def read_all(folders: Sequence[str | Path], bound: BoundOverlay | None = None) -> list[Source]:
    """Read folders, and give every series a name of its own.

    Arguments:
        bound: constants of the problem, to draw the bound of the theorem over the curves.
    """
    if not folders:
        raise ValueError("there are no folders to report; give at least one")
    sources, left_out = [], []
    for folder in folders:
        try:
            sources.append(read(folder))
        except NoCurvesError:
            if len(folders) == 1:
                raise
            left_out.append(str(folder))
    if not sources:
        raise NoCurvesError(f"none of the {len(folders)} folders holds curves; give the folder of a run")
    if left_out:
        shown = ", ".join(left_out[:NAMED]) + (f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else "")
        note = f"Left out, because they hold no curves: {shown}"
        sources[0] = replace(sources[0], notes=[*sources[0].notes, note])
    if bound is not None:
        sources = [with_bounds(source, bound) for source in sources]
        if not any(series.bounds for source in sources for series in source.series):
            raise ValueError(
                f"these runs have no bound: it needs the probe {bound.metric!r}, and the step size and fresh weight of "
                "SPAM, SPAM-PP or SPAM-PPA in the rows; record=None keeps them"
            )
    return _named(sources)


def write(
    folders: Sequence[str | Path],
    out: str | Path,
    *,
    title: str | None = None,
    targets: Sequence[float] = (),
    figures: str | Path | None = None,
    csv: str | Path | None = None,
    parquet: str | Path | None = None,
    latex: str | Path | None = None,
    bound: BoundOverlay | None = None,
) -> list[Path]:
    """Write the report of some folders, and return the paths of its files.

    Arguments:
        out: the HTML file.
        title: of the page; by default the names of the methods.
        targets: for the table of costs; by default powers of ten that some run reaches.
        figures: a folder for figures as PNG and PDF.
        csv: a CSV file for all points of all curves.
        parquet: the same as a Parquet file, which needs pyarrow.
        latex: a LaTeX file for the tables of final numbers and of costs, with booktabs.
        bound: see `read_all`.
    """
    sources = read_all(folders, bound)
    names = list(dict.fromkeys(series.name for source in sources for series in source.series))
    title = title or (", ".join(names) if len(names) <= 5 else f"{names[0]} and {len(names) - 1} others")
    paths = [_parent(out)]
    records.write(paths[0], page.render(sources, title, targets).encode())
    if figures is not None:
        from fedspam.app.figures import save

        folder = make_folder(figures)
        for name, figure in _figures(sources).items():
            paths += save(figure, folder, name, "pdf")
    for path, write_table in ((csv, tables.write_csv), (parquet, tables.write_parquet)):
        if path is not None:
            paths.append(_parent(path))
            write_table(sources, paths[-1])
    if latex is not None:
        paths.append(_parent(latex))
        records.write(paths[-1], tables.latex(sources, title, targets).encode())
    return paths


def _figures(sources: Sequence[Source]) -> dict[str, Any]:
    """One figure per metric, with one panel per measure of cost."""
    from fedspam.app import figures

    series = [one for source in sources for one in source.series]
    number = {name: place for place, name in enumerate(dict.fromkeys(one.name for one in series))}  # as on the page
    found: dict[str, Any] = {}
    for metric in dict.fromkeys(name for one in series for name in one.metrics):
        panels: dict[str, list[figures.Line]] = {}
        for measure, label in MEASURES.items():
            paid = [one for one in series if one.against(measure)]
            drawn = [(one, one.name, one.metrics[metric]) for one in paid if metric in one.metrics]
            drawn += [(one, f"{one.name}, bound", one.bounds[metric]) for one in paid if metric in one.bounds]
            lines = [
                figures.Line(name, one.paid[measure].after(c.at), *c[1:], number[one.name], name != one.name)
                for one, name, c in drawn
            ]
            if lines:
                panels[label] = lines
        stem = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in metric).strip("-")
        name = f"curves-{stem}" if f"curves-{stem}" not in found else f"curves-{len(found)}"
        found[name] = figures.draw_curves(panels, printable(metric))
    return found


def _named(sources: list[Source]) -> list[Source]:
    """Series called by their method, and by their folder too if several have the same method."""
    count = Counter(name for source in sources for name in {series.name for series in source.series})
    seen: Counter[str] = Counter()
    named = []
    for source in sources:
        folder = source.folder.name
        seen[folder] += 1
        folder = folder if seen[folder] == 1 else f"{folder} ({seen[folder]})"
        call = lambda name: printable(f"{name} · {folder}" if count[name] > 1 else name)
        series = [replace(one, name=call(one.name)) for one in source.series]
        goals = [goal._replace(series=call(goal.series)) if goal.series in count else goal for goal in source.goals]
        named.append(replace(source, series=series, goals=goals))
    return named


def _parent(path: str | Path) -> Path:
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name the file to write, such as {path / 'report.html'}")
    make_folder(path.parent)
    return path

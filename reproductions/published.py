"""A published table beside ours: what they print, what we get, the difference, and a verdict per row."""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fedspam.app.folders import csv_text

MATCH, BEAT, SHORT, PART = "match", "beat", "fall short", "a slice"


@dataclass(frozen=True)
class PublishedRow:
    """One method of a table. Numbers are accuracies from 0 to 1, one per column, or NaN where there is none."""

    method: str
    settings: str
    ours: tuple[float, ...]
    published: tuple[float, ...] = ()  # empty for methods that were not published there
    federated: bool = True  # whether it trains one model in a federation; other rows are no reference for new methods
    spread: tuple[float, ...] = ()  # the published deviation of each number over seeds, where there is one


class TableCell(NamedTuple):
    """Two numbers and their difference in percentage points."""

    column: str
    reference: float
    ours: float
    points: float
    allowed: float  # the largest difference that counts as a match

    @property
    def matches(self) -> bool:
        return abs(self.points) <= self.allowed


@dataclass(frozen=True)
class PublishedTable:
    """The rows of a table, in its own columns.

    A row is compared with its published numbers, and a method that was not published with the best federated number of
    each column.

    Arguments:
        name: of the script, and of the stored table in docs.
        title: what the table is about.
        source: where it was published.
        columns: of the numbers.
        tolerance: a row matches if every cell is within so many percentage points, plus its published deviation.
        rows: one per method.
        notes: the settings, and what differs from those of the publication.
        comparable: whether the whole experiment was run, and not a slice of it.
    """

    name: str
    title: str
    source: str
    columns: tuple[str, ...]
    tolerance: float
    rows: tuple[PublishedRow, ...]
    notes: tuple[str, ...]
    comparable: bool = True

    def cells(self, row: PublishedRow) -> list[TableCell]:
        """Each column's number of reference, ours, and the difference."""
        spread = row.spread or (0.0,) * len(self.columns)
        numbers = zip(self.columns, row.published or self.best(), row.ours, spread, strict=True)
        return [
            TableCell(column, theirs, ours, 100 * (ours - theirs), self.tolerance + 100 * wide)
            for column, theirs, ours, wide in numbers
        ]

    def best(self) -> tuple[float, ...]:
        """The best number of each column that was published for a federated method; NaN if there is none."""
        rows = [row.published for row in self.rows if row.published and row.federated]
        known = [[number for number in column if not math.isnan(number)] for column in zip(*rows, strict=True)]
        return tuple(max(column, default=math.nan) for column in known or [[]] * len(self.columns))

    def verdict(self, row: PublishedRow) -> str:
        """'match' if all cells do; else the sign of the largest difference among the others; a slice has none."""
        if not self.comparable:
            return PART
        outside = [cell.points for cell in self.cells(row) if not (cell.matches or math.isnan(cell.reference))]
        if not outside:
            return MATCH
        return BEAT if all(map(math.isfinite, outside)) and max(outside, key=abs) > 0 else SHORT

    def published_cells(self) -> list[TableCell]:
        """The cells that were published."""
        cells = [cell for row in self.rows if row.published for cell in self.cells(row)]
        return [cell for cell in cells if not math.isnan(cell.reference)]

    @property
    def holds(self) -> bool:
        """Whether every published cell is within the tolerance; for a slice, whether all numbers are finite."""
        if not self.comparable:
            return all(math.isfinite(number) for row in self.rows for number in row.ours)
        return all(cell.matches for cell in self.published_cells())

    def written(self, cell: TableCell) -> tuple[str, str, str]:
        """Reference, ours and difference as text; a slice has no difference. What there is not is a dash."""
        points = f"{cell.points:+.1f}" if self.comparable else "–"
        numbers = [f"{cell.reference:.3f}", f"{cell.ours:.3f}", "0.0" if points in ("+0.0", "-0.0") else points]
        reference, ours, points = ("–" if number.endswith("nan") else number for number in numbers)
        return reference, ours, points

    def csv(self) -> str:
        """One line per cell."""
        header = ["method", "settings", "column", "compared_with", "reference", "ours", "points", "verdict"]
        rows = (
            [row.method, row.settings, cell.column, _against(row), *self.written(cell), self.verdict(row)]
            for row in self.rows
            for cell in self.cells(row)
        )
        return csv_text(header, rows)

    def markdown(self) -> str:
        """The table for a page."""
        return markdown(self.csv())

    def facts(self) -> dict[str, object]:
        """What the manifest tells of it."""
        return {
            "source": self.source, "notes": list(self.notes), "comparable": self.comparable,
            "settings": {row.method: row.settings for row in self.rows},
            "verdicts": {row.method: self.verdict(row) for row in self.rows},
        }  # fmt: skip


@dataclass(frozen=True)
class MeasuredTable:
    """What we measured of an experiment that was published as a figure, so that there are no numbers to compare with.

    Arguments:
        name: of the script, and of the stored table in docs.
        title: what the table is about.
        columns: the first is that of the methods.
        rows: their text.
        notes: the settings, and what the publication says.
        holds: whether what was expected happened.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    holds: bool

    def csv(self) -> str:
        """One line per row."""
        return csv_text(self.columns, self.rows)

    def markdown(self) -> str:
        """The table for a page."""
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")

    def facts(self) -> dict[str, object]:
        """What the manifest tells of it."""
        return {"notes": list(self.notes), "holds": self.holds}


def markdown(text: str) -> str:
    """The CSV of a table for a page: a line per method; a cell shows ours, then the reference and the difference."""
    methods: dict[str, list[Mapping[str, str]]] = {}
    for cell in csv.DictReader(io.StringIO(text)):
        methods.setdefault(cell["method"], []).append(cell)
    columns = [cell["column"] for cell in next(iter(methods.values()))]
    lines = [
        f"| method | compared with | {' | '.join(columns)} | verdict |",
        f"|---|---|{'---|' * len(columns)}---|",
    ]
    for method, cells in methods.items():
        numbers = " | ".join(f"**{cell['ours']}** ({cell['reference']}, {cell['points']})" for cell in cells)
        lines.append(f"| {method} | {cells[0]['compared_with']} | {numbers} | {cells[0]['verdict']} |")
    return "\n".join([*lines, ""])


def _against(row: PublishedRow) -> str:
    return "published" if row.published else "best federated"

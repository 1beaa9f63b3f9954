"""Tables by column, as people have them: text among numbers, cells without a value, files or data frames."""

import math
import numbers
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedspam._internal.nearest import did_you_mean
from fedspam._internal.reading import (
    DAMAGE,
    LONGEST_NAME,
    LONGEST_NUMBER,
    MOST_BYTES,
    OPENERS,
    PLAIN,
    csv_rows,
    guarded,
    opened,
    regular,
    separated,
    shown,
    unpacked,
)
from fedspam.datasets._arrow import RefusedTableError, arrow_table
from fedspam.datasets.federated import FederatedData
from fedspam.datasets.partition import by_key

CSV = "a table as CSV, or one as .parquet, .arrow or .feather"
MISSING = frozenset({"", "?", "na", "n/a", "nan", "none", "null"})
ARROW = (".parquet", ".arrow", ".feather")
ROWS_AT_ONCE = 1000
COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?", re.ASCII)  # 3,14
DATE = re.compile(
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4}|\d\d([/.])\d\d\4\d\d)([T ]\d{1,2}:\d\d.*)?", re.ASCII
)
MORE = "more than is usual for its size; unpack it, or leave out rows or columns"


@dataclass(frozen=True)
class Table:
    """Columns of cells. Build it with `open_table`.

    Arguments:
        source: the name of the table, for errors.
        cells: the cells of each column: text, numbers, booleans, or None.
        lines: the line of each row in its file; None where there is no file of lines.
        comma: whether 3,14 is a number, as in files whose separator is not a comma.
    """

    source: str
    cells: Mapping[str, Sequence[Any]]
    lines: Sequence[int] | None = None
    comma: bool = False

    def __len__(self) -> int:
        return len(next(iter(self.cells.values()), ()))

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.cells)

    def place(self, row: int) -> str:
        """Where a row stands, for errors."""
        return f"{self.source}, {f'row {row + 1}' if self.lines is None else f'line {self.lines[row]}'}"

    def check(self, wanted: Iterable[str]) -> None:
        """Refuse a column that the table does not have."""
        for name in wanted:
            if name not in self.cells:
                hint = did_you_mean(name, self.names, "add it, or name another table")
                raise ValueError(f"{self.source} has no column {name!r}, it has {', '.join(self.names)}; {hint}")

    def column(self, name: str) -> np.ndarray:
        """A column as numbers where they are numbers, else as text.

        A few texts among numbers are probably mistakes: such a column is refused with the place of the first. Dates are
        refused, too: as text each day would be a category, and as a number no day after the training lies in its range.
        """
        values = _values(self.cells[name], self.comma)
        texts = sum(value is None for value in values)
        numbers = sum(value is not None and value == value for value in values)
        if numbers >= texts:
            return self._numbers(name, values)
        found = self.texts(name)
        dates = [row for row, text in enumerate(found.tolist()) if DATE.fullmatch(text)]
        if len(dates) > texts / 2:
            raise ValueError(
                f"{self.place(dates[0])}: {name} is {found[dates[0]]!r}; a date cannot be a feature: replace it by a "
                "number, such as the days since an event of the same row, name the column among categories, or "
                "leave it out (data.drop)"
            )
        return found

    def numbers(self, name: str) -> np.ndarray:
        """A column as numbers, NaN where a cell has no value."""
        return self._numbers(name, _values(self.cells[name], self.comma))

    def _numbers(self, name: str, values: Sequence[float | None]) -> np.ndarray:
        found = np.asarray([math.inf if value is None else value for value in values], float)
        for row in np.flatnonzero(np.isinf(found)).tolist():
            cell = self.cells[name][row]
            seen = repr(shown(cell) if isinstance(cell, str) else cell)
            alike = " with a decimal comma, as others of the column" if _is_plain(cell) else ""
            raise ValueError(
                f"{self.place(row)}: {name} is {seen}; it must be a finite number{alike}: correct it, leave it empty "
                "where it is missing, or take the column as text (categories) or not at all (drop)"
            )
        return found

    def texts(self, name: str) -> np.ndarray:
        """A column as text without spaces around it, '' where a cell has no value."""
        cells = self.cells[name]
        stripped = {cell: "" if _is_missing(cell) else cell.strip() for cell in _different(cells)}
        found = [
            stripped[cell] if isinstance(cell, str) else _text(cell, self, row, name) for row, cell in enumerate(cells)
        ]
        return np.array(found, object)

    def present(self, name: str, what: str) -> list[str]:
        """A column of text in which no value may be missing."""
        texts = self.texts(name)
        for row in np.flatnonzero(texts == "").tolist():
            cell = self.cells[name][row]
            seen = repr(cell.strip() if isinstance(cell, str) else cell)
            raise ValueError(
                f"{self.place(row)}: {name} is {seen}; a {what} must not be missing: fill it in, or drop the row"
            )
        wrong = {text for text in set(texts.tolist()) if len(text) > LONGEST_NAME or "\0" in text}
        if wrong:
            row = next(row for row, text in enumerate(texts) if text in wrong)
            raise ValueError(
                f"{self.place(row)}: {name} is {shown(texts[row])!r}; a {what} must have at most {LONGEST_NAME} "
                "characters, and no NUL: shorten it"
            )
        return texts.tolist()


def is_table(name: str) -> bool:
    """Whether a file's name says that `open_table` can read it.

    >>> is_table("visits.csv.gz"), is_table("visits.parquet"), is_table("visits.json")
    (True, True, False)
    """
    path = Path(name)
    plain = Path(path.stem) if path.suffix in OPENERS else path
    return path.suffix in ARROW or plain.suffix.lower() == ".csv"


def open_table(source: Any, *, delimiter: str | None = None) -> Table:
    """A table from a CSV file (plain or compressed), a Parquet or Arrow file, a data frame, or a dict of columns.

    A data frame is one of pandas, polars or pyarrow, or any object with columns by name; none of them is imported.
    Parquet and Arrow files need pyarrow.

    Arguments:
        source: the path, the frame or the dict.
        delimiter: the character between two cells of a CSV file; None for the most frequent of , ; tab and | in its
            header. Where it is not a comma, 3,14 is a number.

    >>> table = open_table({"age": [63, None], "city": ["Bonn", "?"]})
    >>> table.column("age").tolist(), table.column("city").tolist()
    ([63.0, nan], ['Bonn', ''])
    """
    if not isinstance(source, str | Path):
        return _of_frame(source)
    path = Path(source)
    table = _of_arrow(path) if path.suffix in ARROW else _of_csv(path, delimiter)
    if not len(table):
        raise ValueError(f"{path} has no rows; give a header and at least one line")
    return table


def read_table(
    source: Any,
    *,
    client: str,
    label: str,
    features: Sequence[str] | None = None,
    categories: Sequence[str] = (),
    delimiter: str | None = None,
) -> FederatedData:
    """A table with a client column, by client: one array per feature, and the array ``label`` of texts.

    Numbers may be missing (NaN), and so may texts (''). `Encoder.of_table` learns from the training rows how they
    become one matrix.

    Arguments:
        source: as in `open_table`.
        client: the column with the client of each row.
        label: the column to predict.
        features: the columns to predict from; None for all others.
        categories: columns of numbers that are names of something, such as codes: they are taken as text.
        delimiter: as in `open_table`.

    >>> table = {"site": ["b", "a", "b"], "age": [63, None, 41], "city": ["Bonn", "Rome", ""], "ill": [1, 0, 0]}
    >>> data = read_table(table, client="site", label="ill")
    >>> data.clients, data["b"]["age"].tolist(), data["b"]["city"].tolist(), data["b"]["label"].tolist()
    (('a', 'b'), [63.0, 41.0], ['Bonn', ''], ['1', '0'])
    """
    with guarded(Path(source), CSV) if isinstance(source, str | Path) else nullcontext():
        return _by_client(open_table(source, delimiter=delimiter), client, label, features, categories)


def _by_client(
    table: Table, client: str, label: str, features: Sequence[str] | None, categories: Sequence[str]
) -> FederatedData:
    names = [name for name in table.names if name not in (client, label)] if features is None else list(features)
    table.check([client, label, *names, *categories])
    if "label" in names:
        raise ValueError("a feature is named 'label', which is the name for what is predicted; rename the column")
    columns = {name: table.texts(name) if name in categories else table.column(name) for name in names}
    labels = table.present(label, "label")
    check_labels(labels, table.source, label)
    columns["label"] = np.asarray(labels, object)
    return FederatedData.by(columns, *by_key(table.present(client, "client")))


def check_labels(labels: Iterable[str], source: str, name: str) -> None:
    """Refuse two texts that are one number, such as '1' and '1.0': they would be two classes."""
    texts: dict[Decimal, str] = {}
    for text in sorted(set(labels)):
        try:
            value = Decimal(text)
        except InvalidOperation:
            continue
        if not value.is_nan() and texts.setdefault(value, text) != text:
            raise ValueError(
                f"{source}: {name} holds {shown(texts[value])!r} and {shown(text)!r}, which are one number; choose one"
            )


def most_cells(size: int) -> int:
    """The cells that a file of so many bytes may have: plain CSV takes two bytes for each."""
    return max(5 * 10**6, size // 2 + 1)


def _of_csv(path: Path, delimiter: str | None) -> Table:
    lines = array("q")
    with opened(path, "rt", CSV, encoding="utf-8-sig", newline="") as file:
        separator, texts = separated(file, path)
        delimiter = delimiter or separator
        parts = csv_rows(texts, path, delimiter)
        names = [name.strip() for name in next(parts, (0, []))[1]]
        for name, count in Counter(names).items():
            if count > 1:
                raise ValueError(f"{path}, line 1 has more than one column {shown(name)!r}; rename all but one")
        most = most_cells(path.stat().st_size)

        def checked() -> Iterator[list[str]]:
            for line, cells in parts:
                if len(names) * (len(lines) + 1) > most:
                    raise ValueError(f"{path} has more than {most} cells, {MORE}")
                if len(cells) != len(names):
                    raise ValueError(f"{path}, line {line} has {len(cells)} cells, the header {len(names)}; correct it")
                lines.append(line)
                yield cells

        columns: list[list[str]] = [[] for _ in names]
        rows = checked()
        # some at a time: every collection of garbage would visit all lists of a long table, if there were one per row
        while some := list(islice(rows, ROWS_AT_ONCE)):
            for column, part in zip(columns, zip(*some, strict=True), strict=True):
                column.extend(part)
    if not names:
        raise ValueError(f"{path} is empty; give a header with client, label and features, and at least one row")
    return Table(str(path), dict(zip(names, columns, strict=True)), lines, comma=delimiter != ",")


def _of_arrow(path: Path) -> Table:
    try:
        import pyarrow as pa
    except ImportError:
        raise ImportError(f"{path} needs pyarrow, which is not installed; pip install pyarrow") from None
    with guarded(path, CSV), regular(path, CSV) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise ValueError(f"{path} has {size} bytes, at most {MOST_BYTES} are read; split it")
        try:
            found = arrow_table(file.read(), path.suffix == ".parquet", most_cells(size), unpacked(size, "rb"))
            return Table(str(path), {name: found.column(name).to_pylist() for name in found.column_names})
        except RefusedTableError as error:
            raise ValueError(f"{path}: {error}") from None
        except (pa.ArrowException, *DAMAGE) as error:
            raise ValueError(
                f"{path} is damaged or no {path.suffix} file ({shown(error, 300)}); write it again"
            ) from None


def _of_frame(frame: Any) -> Table:
    """Columns of pandas have `tolist`, those of polars `to_list`, those of pyarrow `to_pylist`."""
    if isinstance(frame, Table):
        return frame
    names = (
        frame if isinstance(frame, Mapping) else getattr(frame, "column_names", None) or getattr(frame, "columns", None)
    )
    if names is None:
        raise ValueError(
            f"{type(frame).__name__} is not a table; give a path, a data frame of pandas, polars or pyarrow, or a dict "
            "of columns"
        )
    cells = {str(name): list(_listed(frame[name])) for name in names}
    if len(set(map(len, cells.values()))) > 1:
        raise ValueError(f"the columns have {sorted({len(column) for column in cells.values()})} rows; make them equal")
    table = Table("the table", cells)
    if not len(table):
        raise ValueError("the table has no rows; give at least one")
    return table


def _listed(column: Any) -> Any:
    for name in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, name):
            return getattr(column, name)()
    return column


def _is_missing(cell: Any) -> bool:
    if isinstance(cell, str):
        return cell.strip().lower() in MISSING
    return cell is None or cell != cell or type(cell).__name__ == "NAType"  # NaN and NaT differ from themselves


def _different(cells: Sequence[Any]) -> set[str]:
    """The texts among cells: most tables repeat them, and each is looked at once."""
    return {cell for cell in cells if isinstance(cell, str)}


def _values(cells: Sequence[Any], comma: bool = False) -> list[float | None]:
    """The number in each cell; NaN where it has no value, infinite where its number is not finite, None for text.

    Among numbers with a decimal comma, 1.234 may mean a thousand, so it is refused.
    """
    written = {cell: _written(cell, comma) for cell in _different(cells)}
    if comma and any("," in cell and value is not None for cell, value in written.items()):
        written |= {cell: math.inf for cell in written if "." in cell and _is_plain(cell)}
    return [written[cell] if isinstance(cell, str) else _number(cell) for cell in cells]


def _is_plain(cell: Any) -> bool:
    return isinstance(cell, str) and len(cell) <= LONGEST_NUMBER and PLAIN.fullmatch(cell) is not None


def _written(cell: str, comma: bool) -> float | None:
    text = cell.strip()
    if text.lower() in MISSING:
        return math.nan
    if comma and len(text) <= LONGEST_NUMBER and COMMA.fullmatch(text):
        text = text.replace(",", ".")
    if _is_plain(text):
        return float(text)
    try:
        float(text)
    except ValueError:
        return None
    return math.inf  # 1_000, other digits than 0 to 9, infinity: meant as numbers, and not to be taken for names


def _number(cell: Any) -> float | None:
    """The number that a cell holds; NaN if it has no value, None if it is not a number, as a boolean."""
    if type(cell) is float:
        return cell
    if isinstance(cell, numbers.Real) and not isinstance(cell, bool | np.bool_):
        return float(cell)
    return math.nan if _is_missing(cell) else None


def _text(cell: Any, table: Table, row: int, name: str) -> str:
    if _is_missing(cell):
        return ""
    value = _number(cell)
    if value is not None:  # a column with missing values holds 1 as 1.0
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(cell, bool | np.bool_):
        return str(bool(cell))
    raise ValueError(
        f"{table.place(row)}: {name} holds {type(cell).__name__}; a cell must be text or a number: convert the column, "
        "or leave it out"
    )


def cells_by_row(table: Table) -> Iterator[list[Any]]:
    """The rows of a table, as they were read."""
    yield from (list(row) for row in zip(*table.cells.values(), strict=True))

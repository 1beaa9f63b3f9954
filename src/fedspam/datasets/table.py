"""Tables with a client column: CSV files, Hugging Face datasets, partitions of flwr-datasets."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedspam.datasets._reading import csv_rows, finite, opened
from fedspam.datasets.federated import FederatedData
from fedspam.datasets.partition import by_key

ROWS = 1000  # fetched from a dataset at once
CSV = "a table as CSV"
MISSING = frozenset({"", "?", "na", "n/a", "nan", "none", "null"})


def read_csv(
    path: str | Path,
    client: str,
    label: str,
    *,
    features: Sequence[str] | None = None,
    delimiter: str = ",",
) -> FederatedData:
    """A CSV file with a header, plain or compressed: ``features`` as one matrix and ``label``, by client.

    Labels that are whole numbers stay as they are; texts are numbered in alphabetical order. A feature that is no
    finite number is refused with its line: fill in or drop missing values first.

    Arguments:
        path: the file.
        client: the column with the client of each row.
        label: the column to predict.
        features: the columns to predict it from, all of numbers; None for all others.
        delimiter: the character between two cells.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.csv"
    >>> _ = path.write_text("hospital,age,ill\\nb,63,1\\na,50,0\\nb,41,0\\n")
    >>> data = read_csv(path, client="hospital", label="ill")
    >>> data.clients, data["b"]["features"].tolist(), data["b"]["label"].tolist()
    (('a', 'b'), [[63.0], [41.0]], [1, 0])
    """
    path = Path(path)
    owners: list[str] = []
    labels: list[str] = []
    numbers: list[list[float]] = []
    with opened(path, "rt", CSV, encoding="utf-8-sig", newline="") as file:
        lines = csv_rows(file, path, delimiter)
        names = _header(lines)
        wanted = [name for name in names if name not in (client, label)] if features is None else list(features)
        for name in (client, label, *wanted):
            if names.count(name) != 1:
                often = "no column" if name not in names else "more than one column"
                raise ValueError(f"{path}, line 1 has {often} {name!r}, it has {', '.join(names)}; name the columns")
        place = {name: number for number, name in enumerate(names)}
        for line, cells in lines:
            if len(cells) != len(names):
                raise ValueError(f"{path}, line {line} has {len(cells)} cells, the header {len(names)}; correct it")
            owners.append(cells[place[client]])
            labels.append(_named(cells[place[label]].strip(), label, path, line))
            numbers.append([_number(cells[place[name]], name, path, line) for name in wanted])
    if not owners:
        raise ValueError(f"{path} has no rows; give a header and at least one line")
    number, values = by_key(owners)
    examples = {"features": np.asarray(numbers).reshape(len(owners), -1), "label": _classes(labels)}
    return FederatedData.by(examples, number, values)


def csv_columns(path: str | Path, *, delimiter: str = ",") -> list[str]:
    """The column names of a CSV file, plain or compressed."""
    path = Path(path)
    with opened(path, "rt", CSV, encoding="utf-8-sig", newline="") as file:
        return _header(csv_rows(file, path, delimiter))


def from_table(
    dataset: Any, client: str, *, columns: Sequence[str] | None = None, names: Mapping[str, str] | None = None
) -> FederatedData:
    """A dataset with a client column: one of Hugging Face, in memory or streamed, or any object with its interface.

    That is ``column_names``, and either slices (``dataset[0:1000]`` gives a dict of lists) or iteration over rows
    (dicts). Images become arrays. Hugging Face is not imported.

    Arguments:
        dataset: one split of a dataset.
        client: the column with the client of each row, such as 'writer_id'.
        columns: the other columns to keep; None for all.
        names: new names for columns: {'character': 'label'}.
    """
    kept, parts = _columns(dataset, client, columns), _pieces(dataset)
    owners: list[Any] = []
    found: dict[str, list[Any]] = {name: [] for name in kept}
    for piece in parts:
        owners.extend(piece[client])
        for name in kept:
            found[name].append(_array(piece[name], name))
    if not owners:
        raise ValueError("the dataset has no rows; give one with at least one")
    number, values = by_key([str(owner) for owner in owners])
    return FederatedData.by(_joined(found, names or {}), number, values)


def from_partitions(
    partitioner: Any, *, columns: Sequence[str] | None = None, names: Mapping[str, str] | None = None
) -> FederatedData:
    """The clients of a partitioner of flwr-datasets that has its dataset, or of any object with its interface.

    That is ``num_partitions`` and ``load_partition(i)``. Flower is not imported.

    Arguments:
        partitioner: such as ``DirichletPartitioner``.
        columns, names: as in `from_table`.
    """

    def parts() -> Iterator[tuple[str, dict[str, Any]]]:
        for number in range(int(partitioner.num_partitions)):
            dataset = partitioner.load_partition(number)
            kept = _columns(dataset, None, columns)
            found: dict[str, list[Any]] = {name: [] for name in kept}
            for piece in _pieces(dataset):
                for name in kept:
                    found[name].append(_array(piece[name], name))
            if not any(found.values()):
                raise ValueError(f"partition {number} has no rows; partition into fewer clients")
            yield str(number), _joined(found, names or {})

    return FederatedData.of(parts())


def _columns(dataset: Any, client: str | None, columns: Sequence[str] | None) -> list[str]:
    there: list[str] = list(dataset.column_names or ())
    kept = [name for name in there if name != client] if columns is None else list(columns)
    for name in kept if client is None else [client, *kept]:
        if name not in there:
            raise ValueError(f"the dataset has no column {name!r}, it has {', '.join(there)}; name one of them")
    return kept


def _pieces(dataset: Any) -> Iterator[Mapping[str, Sequence[Any]]]:
    try:
        count = len(dataset)
    except TypeError:  # a stream
        rows = iter(dataset)
        while piece := list(itertools.islice(rows, ROWS)):
            yield {name: [row[name] for row in piece] for name in piece[0]}
        return
    for begin in range(0, count, ROWS):
        yield dataset[begin : min(begin + ROWS, count)]


def _array(cells: Sequence[Any], name: str) -> np.ndarray:
    try:
        array = np.stack([np.asarray(cell) for cell in cells])
    except ValueError:
        raise ValueError(
            f"the rows of {name!r} differ in shape; make them equal first, or leave it out: columns="
        ) from None
    if array.dtype == object:
        raise ValueError(f"{name!r} holds objects or missing values; leave it out: columns=")
    return array


def _joined(found: Mapping[str, list[Any]], names: Mapping[str, str]) -> dict[str, np.ndarray]:
    return {names.get(name, name): np.concatenate(pieces) for name, pieces in found.items()}


def _header(lines: Iterator[tuple[int, list[str]]]) -> list[str]:
    _, cells = next(lines, (0, []))
    return [name.strip() for name in cells]


def _number(text: str, name: str, path: Path, line: int) -> float:
    value = finite(text)
    if value is None:
        raise ValueError(
            f"{path}, line {line}: {name} is {text!r}; a feature must be a finite number: correct it, or leave the "
            "column out with features="
        )
    return value


def _named(text: str, name: str, path: Path, line: int) -> str:
    """The name of a class. A missing value is refused: it would become a class of its own."""
    if text.lower() in MISSING:
        raise ValueError(
            f"{path}, line {line}: {name} is {text!r}; a label must not be missing: fill it in, or drop the row"
        )
    return text


def _classes(labels: list[str]) -> np.ndarray:
    try:
        return np.asarray([int(label) for label in labels], np.int32)
    except (ValueError, OverflowError):
        return by_key(labels)[0].astype(np.int32)

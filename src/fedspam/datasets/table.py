"""Tables with a client column: CSV files, Hugging Face datasets, partitions of flwr-datasets."""

import itertools
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedspam._internal.reading import PLAIN, csv_rows, listed, name_of, numbers, opened, separated, shown
from fedspam.datasets.federated import FederatedData
from fedspam.datasets.partition import by_key

ROWS = 1000  # fetched from a dataset at once
CSV = "a table as CSV"
RULE = "a feature must be a finite number: correct it, or leave the column out with features="
MISSING = frozenset({"", "?", "na", "n/a", "nan", "none", "null"})


def read_csv(
    path: str | Path,
    client: str,
    label: str,
    *,
    features: Sequence[str] | None = None,
    delimiter: str | None = None,
) -> FederatedData:
    """A CSV file with a header, plain or compressed: ``features`` as one matrix and ``label``, by client.

    Labels that are whole numbers stay as they are; texts are numbered in alphabetical order. A feature that is no
    finite number is refused with its line: fill in or drop missing values first.

    Arguments:
        path: the file.
        client: the column with the client of each row.
        label: the column to predict.
        features: the columns to predict it from, all of numbers; None for all others.
        delimiter: the character between two cells; None for the most frequent of , ; tab and | in the header.

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
    rows = array("d")  # a tenth of the memory of a list
    with opened(path, "rt", CSV, encoding="utf-8-sig", newline="") as file:
        separator, texts = separated(file, path)
        lines = csv_rows(texts, path, delimiter or separator)
        names = [name.strip() for name in next(lines, (0, []))[1]]
        wanted = [name for name in names if name not in (client, label)] if features is None else list(features)
        often = Counter(names)
        for name in (client, label, *wanted):
            if often[name] != 1:
                has = "more than one column" if often[name] else "no column"
                raise ValueError(f"{path}, line 1 has {has} {shown(name)!r}, it has {listed(names)}; name the columns")
        place = {name: number for number, name in enumerate(names)}
        places = [place[name] for name in wanted]
        for line, cells in lines:
            if len(cells) != len(names):
                raise ValueError(f"{path}, line {line} has {len(cells)} cells, the header {len(names)}; correct it")
            owners.append(name_of(cells[place[client]], path, line, client))
            if not owners[-1].strip():
                raise ValueError(f"{path}, line {line}: {client} is empty; name the client of the row, or drop the row")
            labels.append(name_of(cells[place[label]].strip(), path, line, label))
            if labels[-1].lower() in MISSING:  # it would become a class of its own
                raise ValueError(
                    f"{path}, line {line}: {label} is {labels[-1]!r}; a label must not be missing: fill it in, or drop "
                    "the row"
                )
            rows.extend(numbers([cells[i] for i in places], path, line, wanted, RULE))
        if not owners:
            raise ValueError(f"{path} has no rows; give a header and at least one line")
        # a column that is client and label at once stands for a table without classes
        classes = by_key(labels)[0].astype(np.int32) if label == client else _classes(labels, path, label)
        examples = {"features": np.asarray(rows).reshape(len(owners), len(wanted)), "label": classes}
        return FederatedData.by(examples, *by_key(owners))


def _classes(labels: list[str], path: Path, name: str) -> np.ndarray:
    """Whole numbers as they are, texts by their place in the alphabet; what could be either is refused."""
    as_numbers = {text: float(text) for text in set(labels) if PLAIN.fullmatch(text)}
    if len(as_numbers) < len(set(labels)):
        texts: dict[float, str] = {}
        for text, value in as_numbers.items():
            if texts.setdefault(value, text) != text:
                raise ValueError(
                    f"{path}: {name} holds {texts[value]!r} and {text!r}, which are one number; choose one"
                )
        return by_key(labels)[0].astype(np.int32)
    for text, value in as_numbers.items():
        if not value.is_integer() or abs(value) >= 2**31:
            raise ValueError(f"{path}: {name} holds {text!r}; a label must be a whole number below 2^31, or text")
    return np.asarray([as_numbers[text] for text in labels]).astype(np.int32)


def csv_columns(path: str | Path, *, delimiter: str | None = None) -> list[str]:
    """The column names of a CSV file, plain or compressed."""
    path = Path(path)
    with opened(path, "rt", CSV, encoding="utf-8-sig", newline="") as file:
        separator, texts = separated(file, path)
        header = next(csv_rows(texts, path, delimiter or separator), None)
        if header is None:
            raise ValueError(f"{path} is empty; give {CSV}")
        return [name.strip() for name in header[1]]


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
    examples, owners = _read(dataset, client, columns, names or {})
    if not owners:
        raise ValueError("the dataset has no rows; give one with at least one")
    nobody = next((row for row, owner in enumerate(owners) if owner is None or owner != owner), None)
    if nobody is not None:
        raise ValueError(f"row {nobody}: {client!r} is {owners[nobody]}; name the client of every row, or drop the row")
    return FederatedData.by(examples, *by_key([str(owner) for owner in owners]))


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
        for client in range(int(partitioner.num_partitions)):
            examples, _ = _read(partitioner.load_partition(client), None, columns, names or {})
            if not examples:
                raise ValueError(f"partition {client} has no rows; partition into fewer clients")
            yield str(client), examples

    return FederatedData.of(parts())


def _read(
    dataset: Any, client: str | None, columns: Sequence[str] | None, names: Mapping[str, str]
) -> tuple[dict[str, np.ndarray], list[Any]]:
    """The columns of a dataset under their new names, and the client of each row if it has a client column."""
    there: list[str] = list(dataset.column_names or ())
    kept = [name for name in there if name != client] if columns is None else list(columns)
    for name in kept if client is None else [client, *kept]:
        if name not in there:
            raise ValueError(f"the dataset has no column {name!r}, it has {', '.join(there)}; name one of them")
    owners: list[Any] = []
    found: dict[str, list[np.ndarray]] = {}
    for piece in _pieces(dataset):
        owners.extend(() if client is None else piece[client])
        for name in kept:
            found.setdefault(name, []).append(_array(piece[name], name))
    for name, pieces in found.items():
        _check_one_kind(pieces, name)
    kept_names = [names.get(name, name) for name in kept]
    if len(set(kept_names)) != len(kept_names):
        raise ValueError(f"the columns become {listed(kept_names)}; give every column a name of its own: names=")
    return {names.get(name, name): np.concatenate(pieces) for name, pieces in found.items()}, owners


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
    arrays = [np.asarray(cell) for cell in cells]
    _check_one_kind(arrays, name)
    try:
        array = np.stack(arrays)
    except ValueError:
        raise ValueError(
            f"the rows of {name!r} differ in shape; make them equal first, or leave it out: columns="
        ) from None
    if array.dtype == object:
        raise ValueError(f"{name!r} holds objects or missing values; leave it out: columns=")
    return array


def _check_one_kind(arrays: Sequence[np.ndarray], name: str) -> None:
    kinds = {array.dtype.kind for array in arrays}
    if not kinds <= set("biufO") and kinds != {"U"}:
        raise ValueError(
            f"{name!r} holds {', '.join(sorted({str(array.dtype) for array in arrays}))}; give numbers, or text, in "
            "all rows, or leave it out: columns="
        )

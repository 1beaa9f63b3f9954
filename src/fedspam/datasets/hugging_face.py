"""Datasets of Hugging Face with a client column, and partitions of flwr-datasets."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedspam._internal.reading import listed
from fedspam.datasets.federated import FederatedData
from fedspam.datasets.partition import by_key

ROWS = 1000  # fetched from a dataset at once


def from_dataset(
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
        columns, names: as in `from_dataset`.
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

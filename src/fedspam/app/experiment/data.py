"""`[data]` and `[clients]`: the examples of every client, for training and for testing."""

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedspam import datasets
from fedspam._internal.nearest import did_you_mean
from fedspam.app.config import ConfigError, naming, schema
from fedspam.datasets import Encoder, FederatedData
from fedspam.datasets.table import check_labels

WHOLE = re.compile(r"[-+]?\d{1,1000}", re.ASCII)  # `int` would take 1_0 too
MOST_TEST = 0.9  # the share of rows above which too few are left to train with
RELATIVE = "paths in a file are relative to its folder, paths in flags to the working directory"


@dataclass(frozen=True)
class LoadedExamples:
    """The examples of an experiment."""

    train: FederatedData
    test: FederatedData | None
    names: tuple[str, ...]  # of the classes; () where labels are numbers
    encoder: Encoder | None = None  # None where features are taken as they are

    @property
    def classes(self) -> int:
        """The number of classes; 0 where labels are numbers."""
        return len(self.names)

    @property
    def largest(self) -> float:
        """The share of the test rows that the most frequent class has; 0 without classes or test rows."""
        if self.test is None or not self.names:
            return 0.0
        return float(np.bincount(np.asarray(self.test.examples["label"])).max() / self.test.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example's features."""
        return self.train.examples["features"].shape[1:]


@naming("data")
def examples(data: Any, clients: schema.Clients) -> LoadedExamples:
    """The examples that `[data]` and `[clients]` describe. A `ConfigError` names the setting that is wrong."""
    if isinstance(data, schema.FemnistSection):  # the only kind with test rows of its own
        femnist = datasets.read_femnist(data.folder)
        count = int(femnist.train.examples["label"].max()) + 1
        return LoadedExamples(femnist.train, femnist.test, tuple(map(str, range(count))))
    read = READERS[type(data)](data, clients)
    rows, texts = read if isinstance(read, tuple) else (_checked(read), ())
    labels = rows.examples["label"]
    if labels.ndim != 1:
        raise ValueError(f"labels have shape {labels.shape}; there must be one label per row")
    names: tuple[str, ...] = ()
    if data.task == "classes":
        rows, values = _numbered(rows)
        called = lambda value: f"{value:g}" if isinstance(value, np.floating) else str(value)
        names = tuple(texts[int(value)] if texts else called(value) for value in values)
    if data.test > MOST_TEST:
        raise ConfigError(f"data.test = {data.test:g} leaves too little to train with; hold out less: 0.2, say")
    train, test = rows.hold_out_examples(data.test) if data.test > 0 else (rows, None)
    if test is not None and not test.rows:
        least = max(2, math.floor(0.5 / data.test) + 1)
        warnings.warn(
            f"data.test = {data.test:g} holds out no row, since no client has {least} rows: nothing is tested; give "
            "clients more rows, or set data.test = 0",
            stacklevel=2,
        )
        test = None
    if not isinstance(data, schema.RowsSection):
        return LoadedExamples(train, test, names)
    if isinstance(data, schema.Csv):
        for told in datasets.suspicions(train, test, label=data.label, classes=names):
            warnings.warn(told, stacklevel=2)
    options = {"standardize": data.standardize, "intercept": data.intercept, "classes": names}
    if isinstance(data, schema.Csv):
        encoder = Encoder.of_table(train, label=data.label, **options)
    else:
        encoder = Encoder.of_arrays(train.examples["features"], **options)
    source = lambda columns: columns if encoder.columns is not None else columns["features"]
    prepare = lambda columns: {"features": encoder(source(columns)), "label": columns["label"]}
    return LoadedExamples(train.map(prepare), test and test.map(prepare), names, encoder)


# --- one reader per kind of data ---


def _npz(data: schema.Npz, clients: schema.Clients) -> FederatedData:
    names = [data.features, data.label, *([data.client] if data.client else [])]
    arrays = datasets.read_arrays(_file(data.path), names)
    columns = {"features": arrays[data.features], "label": arrays[data.label]}
    if data.client is None:
        return _split(columns, clients)
    _refuse_split(clients, f"the array {data.client!r}")
    owners, found = datasets.by_key(arrays[data.client])
    return FederatedData.by(columns, owners, found)


def _table(data: schema.Csv, clients: schema.Clients) -> tuple[FederatedData, Sequence[str]]:
    """The rows by client, and the texts that their labels number; () where labels are numbers themselves."""
    path = _file(data.path)
    table = datasets.open_table(path, delimiter=data.delimiter)
    header = table.names
    columns = [("data.label", data.label), *([("data.client", data.client)] if data.client else [])]
    lists = {"data.features": data.features or (), "data.drop": data.drop, "data.categories": data.categories}
    columns += [(where, name) for where, names in lists.items() for name in names]
    for where, name in columns:
        if name not in header:
            hint = did_you_mean(name, header, f"it has {', '.join(header)}")
            raise ConfigError(f"{where} = {name!r} is not a column of {path}; {hint}")
    if data.client is not None:
        _refuse_split(clients, f"the column {data.client!r}")
    elif clients.split is None:
        raise ConfigError(
            f"data.client is missing: name the column with the client of each row ({', '.join(header)}), or split the "
            "rows: [clients] split = 'iid', count = 10"
        )
    left_out = {data.label, data.client, *data.drop}
    features = list(data.features or (name for name in header if name not in left_out))
    if not features:
        raise ConfigError(f"data.features: {path} has no column besides label and client; add at least one feature")
    if "label" in features:
        raise ConfigError("data.features: a feature is named 'label', the name of what is predicted; rename the column")
    cells = {name: table.texts(name) if name in data.categories else table.column(name) for name in features}
    labels = table.present(data.label, "label")
    texts: Sequence[str] = ()
    if data.task == "numbers":
        cells["label"] = table.numbers(data.label)
    else:
        check_labels(labels, str(path), data.label)
        cells["label"], texts = _whole_or_numbered(labels)
    # without a client column the label takes its place until the rows are split
    owners = labels if data.client is None else table.present(data.client, "client")
    rows = FederatedData.by(cells, *datasets.by_key(owners))
    return rows if data.client is not None else _split(rows.examples, clients), texts


def _whole_or_numbered(labels: Sequence[str]) -> tuple[np.ndarray, Sequence[str]]:
    """Labels that are whole numbers as they are; texts numbered in alphabetical order, and the texts."""
    whole = {label: int(label) for label in set(labels) if WHOLE.fullmatch(label)}
    if len(whole) == len(set(labels)) and all(abs(value) < 2**31 for value in whole.values()):
        return np.asarray([whole[label] for label in labels], np.int32), ()
    numbers, texts = datasets.by_key(labels)
    return numbers.astype(np.int32), texts


def _idx(data: schema.Idx, clients: schema.Clients) -> FederatedData:
    images = existing(f"data.images = {data.images!r}", data.images)
    return _split(datasets.read_labeled(images, existing(f"data.labels = {data.labels!r}", data.labels)), clients)


def _libsvm(data: schema.Libsvm, clients: schema.Clients) -> FederatedData:
    rows = datasets.read_libsvm(_file(data.path), features=data.features)
    return _split({"features": rows.features, "label": rows.labels}, clients)


READERS: Mapping[type[schema.DataSection], Callable[[Any, schema.Clients], Any]] = {
    schema.Csv: _table,
    schema.TableSection: _table,
    schema.Npz: _npz,
    schema.Libsvm: _libsvm,
    schema.Idx: _idx,
    schema.Leaf: lambda data, _: datasets.read_leaf(_file(data.path, folder=True)),
    schema.Digits: lambda _, clients: _split(datasets.read_digits(), clients),
    schema.Synthetic: lambda data, _: datasets.synthetic(
        data.alpha, data.beta, data.clients, dimension=data.dimension, classes=data.classes, seed=data.seed
    ),
}


# --- what they share ---


def _checked(rows: FederatedData) -> FederatedData:
    """Rows whose features are one array of numbers."""
    features = rows.examples["features"]
    if not np.issubdtype(features.dtype, np.number) or features.ndim < 2:
        raise ValueError(
            f"features have dtype {features.dtype} and shape {features.shape}; they must be rows of numbers"
        )
    return rows


def _split(columns: Any, clients: schema.Clients) -> FederatedData:
    """Rows without clients, split as `[clients]` describes."""
    labels = np.asarray(columns["label"])
    if clients.split is None:
        raise ConfigError(
            "clients.split is missing: this data does not name the client of a row; split the rows with "
            "split = 'iid', 'dirichlet' or 'shards' and count = the number of clients"
        )
    with naming("clients"):
        if clients.split == "iid":
            owners = datasets.iid(len(labels), clients.count, seed=clients.seed)
        elif clients.split == "dirichlet":
            least, seed = clients.least, clients.seed
            owners = datasets.dirichlet(labels, clients.count, clients.alpha, least=least, seed=seed)
        else:
            owners = datasets.shards(labels, clients.count, clients.each, seed=clients.seed)
    return FederatedData.by(columns, owners)


def _refuse_split(clients: schema.Clients, column: str) -> None:
    if clients.split is not None:
        raise ConfigError(
            f"clients.split = {clients.split!r}: {column} already names the client of each row; remove one of the two"
        )


def existing(what: str, path: str, folder: bool = False) -> Path:
    """The path of a file that a setting names, or a `ConfigError` with the name that was probably meant."""
    found = Path(path)
    if found.is_file() or (folder and found.is_dir()):
        return found
    if found.exists():
        kind = "a folder" if found.is_dir() else "a pipe or a device"
        raise ConfigError(f"{what} is {kind}; give a regular file")
    there = sorted(other.name for other in found.parent.iterdir()) if found.parent.is_dir() else []
    raise ConfigError(f"{what} is not a file; {did_you_mean(found.name, there, RELATIVE)}")


def _file(path: str, folder: bool = False) -> Path:
    return existing(f"data.path = {path!r}", path, folder)


def _numbered(data: FederatedData) -> tuple[FederatedData, np.ndarray]:
    """Labels as 0, 1, ... in their order, and the values that they had."""
    values, numbers = np.unique(data.examples["label"], return_inverse=True)
    if len(values) < 2:
        raise ValueError(f"every label is {values[0]}; classification needs two classes: name another column")
    if len(values) > max(2, data.rows // 2):
        raise ValueError(
            f"there are {len(values)} classes for {data.rows} rows; if labels are numbers, set task = 'numbers'"
        )
    columns = dict(data.examples) | {"label": numbers.astype(np.int32)}
    return data.map(lambda _: columns), values

"""`[data]` and `[clients]`: the examples of every client, for training and for testing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedspam import datasets
from fedspam._internal.nearest import nearest
from fedspam.app.config import ConfigError, schema
from fedspam.datasets import FederatedData, Standardizer

RELATIVE = "paths in a file are relative to its folder, paths in flags to the working directory"


@dataclass(frozen=True)
class LoadedExamples:
    """The examples of an experiment."""

    train: FederatedData
    test: FederatedData | None
    classes: int  # 0 where labels are numbers

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example's features."""
        return self.train.examples["features"].shape[1:]


def examples(data: Any, clients: schema.Clients) -> LoadedExamples:
    """The examples that `[data]` and `[clients]` describe. A `ConfigError` names the setting that is wrong."""
    try:
        return _examples(data, clients)
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"data: {error.filename or ''} {error.strerror or error}".replace("  ", " ")) from None
    except (ImportError, ValueError) as error:
        raise ConfigError(f"data: {error}") from None


def _examples(data: Any, clients: schema.Clients) -> LoadedExamples:
    if isinstance(data, schema.FemnistSection):  # the only kind with test rows of its own
        femnist = datasets.read_femnist(data.folder)
        return LoadedExamples(femnist.train, femnist.test, int(femnist.train.examples["label"].max()) + 1)
    rows = READERS[type(data)](data, clients)
    features, labels = rows.examples["features"], rows.examples["label"]
    if not np.issubdtype(features.dtype, np.number) or features.ndim < 2:
        raise ValueError(
            f"features have dtype {features.dtype} and shape {features.shape}; they must be rows of numbers"
        )
    if labels.ndim != 1:
        raise ValueError(f"labels have shape {labels.shape}; there must be one label per row")
    classes = 0
    if data.task == "classes":
        rows, classes = _numbered(rows)
    train, test = rows.hold_out_examples(data.test) if data.test > 0 else (rows, None)
    test = test if test is not None and test.rows else None
    if isinstance(data, schema.RowsSection):
        flat = lambda columns: np.asarray(columns["features"], np.float64).reshape(len(columns["features"]), -1)
        scale = Standardizer.of(flat(train.examples)) if data.standardize else Standardizer(np.zeros(()), np.ones(()))
        prepare = lambda columns: {**columns, "features": scale(flat(columns), intercept=data.intercept)}
        train, test = train.map(prepare), test and test.map(prepare)
    return LoadedExamples(train, test, classes)


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


def _csv(data: schema.Csv, clients: schema.Clients) -> FederatedData:
    path = _file(data.path)
    header = datasets.csv_columns(path, delimiter=data.separator)
    columns = [("data.label", data.label), *([("data.client", data.client)] if data.client else [])]
    columns += [("data.features", name) for name in data.features or ()]
    for where, name in columns:
        if name not in header:
            near = nearest(name, header)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"{where} = {name!r} is no column of {path}, which has {', '.join(header)}{hint}")
    if data.client is not None:
        _refuse_split(clients, f"the column {data.client!r}")
    elif clients.split is None:
        raise ConfigError(
            f"data.client is missing: name the column with the client of each row ({', '.join(header)}), or split the "
            "rows: [clients] split = 'iid', count = 10"
        )
    features = list(data.features or (name for name in header if name not in (data.label, data.client)))
    if not features:
        raise ConfigError(f"data.features: {path} has no column besides label and client; add at least one feature")
    # without a client column the label takes its place until the rows are split
    owner = data.client or data.label
    if data.task == "numbers":
        read = datasets.read_csv(path, owner, owner, features=[*features, data.label], delimiter=data.separator)
        matrix = read.examples["features"]
        read = read.map(lambda _: {"features": matrix[:, :-1], "label": matrix[:, -1]})
    else:
        read = datasets.read_csv(path, owner, data.label, features=features, delimiter=data.separator)
    return read if data.client is not None else _split(read.examples, clients)


def _libsvm(data: schema.Libsvm, clients: schema.Clients) -> FederatedData:
    rows = datasets.read_libsvm(_file(data.path), features=data.width)
    return _split({"features": rows.features, "label": rows.labels}, clients)


READERS: Mapping[type[schema.DataSection], Callable[[Any, schema.Clients], FederatedData]] = {
    schema.Csv: _csv,
    schema.Npz: _npz,
    schema.Libsvm: _libsvm,
    schema.Leaf: lambda data, _: datasets.read_leaf(_file(data.path, folder=True)),
    schema.Digits: lambda _, clients: _split(datasets.read_digits(), clients),
    schema.Synthetic: lambda data, _: datasets.synthetic(
        data.alpha, data.beta, data.clients, dimension=data.dimension, classes=data.classes, seed=data.seed
    ),
}


# --- what they share ---


def _split(columns: Any, clients: schema.Clients) -> FederatedData:
    """Rows without clients, split as `[clients]` describes."""
    labels = np.asarray(columns["label"])
    if clients.split is None:
        raise ConfigError(
            "clients.split is missing: this data does not name the client of a row; split the rows with "
            "split = 'iid', 'dirichlet' or 'shards' and count = the number of clients"
        )
    try:
        if clients.split == "iid":
            owners = datasets.iid(len(labels), clients.count, seed=clients.seed)
        elif clients.split == "dirichlet":
            least, seed = clients.least, clients.seed
            owners = datasets.dirichlet(labels, clients.count, clients.alpha, least=least, seed=seed)
        else:
            owners = datasets.shards(labels, clients.count, clients.each, seed=clients.seed)
    except ValueError as error:
        raise ConfigError(f"clients: {error}") from None
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
    there = sorted(other.name for other in found.parent.iterdir()) if found.parent.is_dir() else []
    near = nearest(found.name, there)
    raise ConfigError(f"{what} is no file; {f'did you mean {near!r}?' if near else RELATIVE}")


def _file(path: str, folder: bool = False) -> Path:
    return existing(f"data.path = {path!r}", path, folder)


def _numbered(data: FederatedData) -> tuple[FederatedData, int]:
    """Labels as 0, 1, ... in their order, and the number of classes."""
    values, numbers = np.unique(data.examples["label"], return_inverse=True)
    if len(values) < 2:
        raise ValueError(f"every label is {values[0]}; classification needs two classes: name another column")
    if len(values) > max(2, data.rows // 2):
        raise ValueError(
            f"there are {len(values)} classes for {data.rows} rows; if labels are numbers, set task = 'numbers'"
        )
    columns = dict(data.examples) | {"label": numbers.astype(np.int32)}
    return data.map(lambda _: columns), len(values)

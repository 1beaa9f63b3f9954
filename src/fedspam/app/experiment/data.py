"""`[data]` and `[clients]`: examples by client, those to train with and those held out."""

import bz2
import csv
import gzip
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedspam import datasets
from fedspam.app.config import schema
from fedspam.app.config.parse import ConfigError
from fedspam.app.config.type_text import nearest
from fedspam.datasets import FederatedData

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@dataclass(frozen=True)
class LoadedExamples:
    """The examples of an experiment.

    Arguments:
        train: what clients learn from.
        test: what they are tested on, or None.
        classes: how many there are; 0 where labels are numbers.
    """

    train: FederatedData
    test: FederatedData | None
    classes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example's features."""
        return self.train.examples["features"].shape[1:]


def examples(data: Any, clients: schema.Clients) -> LoadedExamples:
    """What `[data]` and `[clients]` ask for; whatever is wrong with it names the setting."""
    try:
        return _examples(data, clients)
    except ImportError as error:
        raise ConfigError(f"data: {error}") from None
    except OSError as error:
        raise ConfigError(f"data: {error.filename or ''} {error.strerror or error}".replace("  ", " ")) from None
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"data: {error}") from None


def _examples(data: Any, clients: schema.Clients) -> LoadedExamples:
    if isinstance(data, schema.FemnistSection):
        read = datasets.read_femnist(data.folder)
        return LoadedExamples(read.train, read.test, int(read.train.examples["label"].max()) + 1)
    whole, numbers = _whole(data, clients)
    _check_columns(whole)
    if not numbers:
        whole, classes = _numbered(whole)
    else:
        classes = 0
    train, test = whole.hold_out_examples(data.test) if data.test > 0 else (whole, None)
    if isinstance(data, schema.RowsSection):
        train, test = _prepared(train, test, data)
    return LoadedExamples(train, test if test is not None and test.rows else None, classes)


def _whole(data: Any, clients: schema.Clients) -> tuple[FederatedData, bool]:
    """All examples, and whether their labels are numbers instead of classes."""
    if isinstance(data, schema.Synthetic):
        made = datasets.synthetic(
            data.alpha, data.beta, data.clients, dimension=data.dimension, classes=data.classes, seed=data.seed
        )
        return made, False
    if isinstance(data, schema.Leaf):
        return datasets.read_leaf(_file(data.path, folder=True)), False
    if isinstance(data, schema.Digits):
        return _split(datasets.read_digits(), clients), False
    path, numbers = _file(data.path), data.task == "numbers"
    if isinstance(data, schema.Libsvm):
        rows = datasets.read_libsvm(path, features=data.width)
        columns = {"features": rows.features, "label": rows.labels}
        return _split(columns, clients), numbers
    if isinstance(data, schema.Npz):
        names = [data.features, data.label, *([data.client] if data.client else [])]
        arrays = datasets.read_arrays(path, names)
        columns = {"features": arrays[data.features], "label": arrays[data.label]}
        if data.client is None:
            return _split(columns, clients), numbers
        _refuse_split(clients, f"the array {data.client!r}")
        owners, found = datasets.by_key(arrays[data.client])
        return FederatedData.by(columns, owners, found), numbers
    return _csv(data, path, clients), numbers


def _csv(data: schema.Csv, path: Path, clients: schema.Clients) -> FederatedData:
    there = _header(path, data.separator)
    asked = [("data.label", data.label), *([("data.client", data.client)] if data.client else [])]
    asked += [("data.features", name) for name in data.features or ()]
    for where, name in asked:
        if name not in there:
            near = nearest(name, there)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"{where} = {name!r} is no column of {path}, which has {', '.join(there)}{hint}")
    if data.client is not None:
        _refuse_split(clients, f"the column {data.client!r}")
    elif clients.split is None:
        raise ConfigError(
            f"data.client is missing: name the column that tells whose row it is ({', '.join(there)}), or deal them "
            "out: [clients] split = 'iid', count = 10"
        )
    features = list(data.features or (name for name in there if name not in (data.label, data.client)))
    if not features:
        raise ConfigError(f"data.features: {path} has no column besides label and client; there must be one at least")
    # without a client column the label takes its place, until the rows are dealt out
    owner = data.client or data.label
    if data.task == "numbers":
        read = datasets.read_csv(path, owner, owner, features=[*features, data.label], delimiter=data.separator)
        matrix = read.examples["features"]
        read = read.map(lambda _: {"features": matrix[:, :-1], "label": matrix[:, -1]})
    else:
        read = datasets.read_csv(path, owner, data.label, features=features, delimiter=data.separator)
    return read if data.client is not None else _split(read.examples, clients)


def _header(path: Path, separator: str) -> list[str]:
    with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8-sig", newline="") as file:
        line = next(csv.reader(file, delimiter=separator), [])
    return [name.strip() for name in line]


def _split(columns: Any, clients: schema.Clients) -> FederatedData:
    """Rows that nobody owns yet, dealt out as `[clients]` says."""
    labels = np.asarray(columns["label"])
    if clients.split is None:
        raise ConfigError(
            "clients.split is missing: this data does not tell whose row it is; deal the rows out with "
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


def _refuse_split(clients: schema.Clients, who: str) -> None:
    if clients.split is not None:
        raise ConfigError(f"clients.split = {clients.split!r}: {who} tells whose row it is; leave one of the two out")


def _file(path: str, folder: bool = False) -> Path:
    found = Path(path)
    if found.is_file() or (folder and found.is_dir()):
        return found
    there = sorted(other.name for other in found.parent.iterdir()) if found.parent.is_dir() else []
    near = nearest(found.name, there)
    hint = f"did you mean {near!r}?" if near else "paths in a file are seen from its folder, those of flags from here"
    raise ConfigError(f"data.path = {path!r} is no file; {hint}")


def _check_columns(data: FederatedData) -> None:
    features, labels = data.examples["features"], data.examples["label"]
    if not np.issubdtype(features.dtype, np.number) or features.ndim < 2:
        raise ValueError(f"features have dtype {features.dtype} and shape {features.shape}; rows of numbers are needed")
    if labels.ndim != 1:
        raise ValueError(f"labels have shape {labels.shape}; one label a row is needed")


def _numbered(data: FederatedData) -> tuple[FederatedData, int]:
    """Classes as 0, 1, ... in the order of their labels."""
    values, numbers = np.unique(data.examples["label"], return_inverse=True)
    if len(values) < 2:
        raise ValueError(f"every label is {values[0]}; there is nothing to tell apart: name another column")
    if len(values) > max(2, data.rows // 2):
        raise ValueError(
            f"there are {len(values)} classes for {data.rows} rows; if labels are numbers, say task = 'numbers'"
        )
    columns = dict(data.examples) | {"label": numbers.astype(np.int32)}
    return data.map(lambda _: columns), len(values)


def _prepared(
    train: FederatedData, test: FederatedData | None, data: schema.RowsSection
) -> tuple[FederatedData, FederatedData | None]:
    """Features to mean 0 and deviation 1 over the training rows, and a feature that is always 1, as asked."""
    features = train.examples["features"].astype(np.float64).reshape(train.rows, -1)
    mean, deviation = np.zeros(features.shape[1]), np.ones(features.shape[1])
    if data.standardise:
        mean, deviation = features.mean(0), features.std(0)
        deviation[deviation == 0] = 1

    def change(columns: Any) -> dict[str, np.ndarray]:
        rows = np.asarray(columns["features"], np.float64).reshape(len(columns["features"]), -1)
        parts: Sequence[np.ndarray] = [
            (rows - mean) / deviation,
            *([np.ones((len(rows), 1))] if data.intercept else []),
        ]
        return {"features": np.concatenate(parts, axis=1), "label": columns["label"]}

    return train.map(change), None if test is None else test.map(change)

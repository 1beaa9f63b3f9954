"""Federated data larger than memory: written once, client by client, then memory-mapped.

A folder holds ``<column>.npy`` for each column, the rows of all clients end to end, and ``clients.json`` with the
names, sizes and columns. Mapped columns are read from disk when they are used.
"""

import json
import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedspam._internal import strict
from fedspam._internal.files import write
from fedspam._internal.reading import DAMAGE, regular, shown
from fedspam.datasets.federated import FederatedData, check_part

INDEX = "clients.json"
MOST_INDEX = 2**28  # bytes


def write_mapped(parts: Iterable[tuple[str, Mapping[str, Any]]], folder: str | Path) -> FederatedData:
    """Write clients one after another, as `stream_tff` and `stream_leaf` yield them, and open the folder.

    Only one client is in memory at a time. All clients need the same columns of numbers, with the same shapes and
    dtypes: turn text into numbers first, with `fedspam.datasets.encode`.

    Arguments:
        parts: pairs of a client and its columns, one pair per client.
        folder: a new or empty one.

    >>> import tempfile
    >>> made = write_mapped(((str(i), {"x": np.full((i + 1, 2), i)}) for i in range(3)), tempfile.mkdtemp() + "/data")
    >>> made.sizes.tolist(), made["1"]["x"].tolist(), type(made.examples["x"]).__name__
    ([1, 2, 3], [[1, 1], [1, 1]], 'memmap')
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; name a new folder, or open what it holds with open_mapped")
    folder.mkdir(parents=True, exist_ok=True)
    sizes: dict[str, int] = {}
    first: dict[str, np.ndarray] = {}
    with ExitStack() as stack:
        files: dict[str, IO[bytes]] = {}
        for client, given in parts:
            rows = {name: np.ascontiguousarray(column) for name, column in given.items()}
            if not first:
                first = {name: column[:0] for name, column in rows.items()}
                for name, column in first.items():
                    files[name] = stack.enter_context((folder / _file(name)).open("wb"))
                    _write_header(files[name], column, 0)
            if client in sizes:
                raise ValueError(f"client {client!r} comes twice; join its rows before they are written")
            check_part(client, rows, first)
            for name, column in rows.items():
                if column.dtype != first[name].dtype or column.dtype.kind not in "biuf":
                    raise ValueError(
                        f"client {client!r}: {name!r} holds {column.dtype}, the first client's {first[name].dtype}; "
                        "give numbers of one dtype"
                    )
                if column.dtype.kind == "f" and not np.isfinite(column).all():
                    raise ValueError(
                        f"client {client!r}: {name!r} holds NaN or infinite values; replace them, or leave the rows out"
                    )
                files[name].write(column.tobytes())
            sizes[client] = len(next(iter(rows.values())))
        if not sizes:
            raise ValueError("there are no clients; give at least one")
        for name, file in files.items():  # now that the number of rows is known
            file.seek(0)
            _write_header(file, first[name], sum(sizes.values()))
    # the index comes last: a folder without it is incomplete
    index = {"clients": list(sizes), "sizes": list(sizes.values()), "columns": list(first)}
    write(folder / INDEX, json.dumps(index).encode())
    return open_mapped(folder)


def open_mapped(folder: str | Path) -> FederatedData:
    """Open what `write_mapped` wrote; rows are read from disk when they are used."""
    folder = Path(folder)
    path = folder / INDEX
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {folder} was not written by write_mapped, or not completely")
    try:
        index = strict.json_object(strict.read(path, MOST_INDEX), size=MOST_INDEX, depth=2)
        clients, sizes, columns = (index[name] for name in ("clients", "sizes", "columns"))
        whole = all(type(size) is int and size >= 0 for size in sizes) and len(set(clients)) == len(sizes)
        if not (whole and all(isinstance(name, str) for name in (*clients, *columns))):
            raise ValueError("clients and sizes do not agree")
        if len(set(columns)) != len(columns):
            raise ValueError("a column comes twice")
        paths = {name: folder / _file(name) for name in columns}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({shown(error)}); write the folder again") from None
    examples = {}
    for name, file in paths.items():
        try:
            with regular(file, "a column of write_mapped"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what Python's parser says about the header
                warnings.simplefilter("error", UserWarning)  # NumPy warns of headers that write_mapped does not write
                examples[name] = np.lib.format.open_memmap(file, mode="r")
        except FileNotFoundError:
            raise FileNotFoundError(f"{file} is missing: {path} names {name!r}; write the folder again") from None
        except (*DAMAGE, UserWarning) as error:
            raise ValueError(f"{file} is damaged or cut short ({shown(error)}); write the folder again") from None
        if examples[name].dtype.kind not in "biuf":
            raise ValueError(f"{file} holds {examples[name].dtype}, not plain numbers; write the folder again")
        if examples[name].ndim < 1 or len(examples[name]) != sum(sizes):
            raise ValueError(
                f"{file} has shape {examples[name].shape}, {path} says {sum(sizes)} rows; write the folder again"
            )
    try:
        return FederatedData(tuple(clients), examples, np.asarray(sizes, np.int64))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); write the folder again") from None


def _write_header(file: IO[bytes], like: np.ndarray, rows: int) -> None:
    # NumPy leaves room in the header for a larger number of rows
    shape = (rows, *like.shape[1:])
    np.lib.format.write_array_header_1_0(file, {"descr": like.dtype.str, "fortran_order": False, "shape": shape})


def _file(column: str) -> str:
    if not column.isidentifier():
        raise ValueError(f"the column {column!r} cannot name a file; rename it: letters, digits and _")
    return f"{column}.npy"

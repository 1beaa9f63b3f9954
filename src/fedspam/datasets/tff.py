"""TensorFlow Federated's HDF5 files: ``examples/<client>/<feature>``, one array per feature.

The format of EMNIST (``pixels``, ``label``), Shakespeare (``snippets``), CIFAR-100 (``image``, ``label``,
``coarse_label``) and StackOverflow (``tokens``, ``title``, ``tags``, ``type``, ``score``, ``creation_date``). Reading
them needs h5py.
"""

import itertools
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedspam._internal import checks
from fedspam.datasets._reading import check_texts, guarded, missing, regular, shown, unpacked
from fedspam.datasets.federated import FederatedData

NAMES = {"pixels": "features", "image": "features"}  # their names in this library
KIND = "a file of TensorFlow Federated"
MOST_CHECKED = 2**30  # bytes; the heaps of larger files are not checked
SIGNATURE, HEAP = b"\x89HDF\r\n\x1a\n", b"GCOL\x01"
UNLISTED = (OSError, KeyError, RuntimeError, TypeError, OverflowError, MemoryError)  # a group that cannot be listed
DAMAGE = (*UNLISTED, ValueError)


def read_tff(
    path: str | Path, *, features: Sequence[str] | None = None, clients: Sequence[str] | int | None = None
) -> FederatedData:
    """The clients of a file, such as ``fed_emnist_train.h5``; ``pixels`` and ``image`` become ``features``.

    Arguments:
        path: the file.
        features: the columns to read, by their names in the file; None for all that the first client has.
        clients: their names, or how many from the first on; None for all. StackOverflow's 342,477 do not fit
            into most memories: read some, or all one by one with `stream_tff`.

    Reddi et al.: Adaptive federated optimization, 2020, arXiv:2003.00295, describes the four data sets.
    """
    path = Path(path)
    with guarded(path, KIND):
        return FederatedData.of(stream_tff(path, features=features, clients=clients))


def stream_tff(
    path: str | Path, *, features: Sequence[str] | None = None, clients: Sequence[str] | int | None = None
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """One client after another; the arguments are those of `read_tff`."""
    try:
        import h5py
    except ImportError:
        raise missing("h5py") from None
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} is no file; give one of TensorFlow Federated, such as fed_emnist_train.h5")
    if isinstance(clients, int):
        checks.whole("clients", clients, 1)
    with regular(path, KIND) as opened:
        left = unpacked(os.fstat(opened.fileno()).st_size, "rb")
    _check_heaps(path)
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} is no HDF5 file, or cut short ({error}); fetch it again") from None
    try:
        with file:
            found = _group(h5py, file, "examples", str(path))
            names = itertools.islice(found, clients) if clients is None or isinstance(clients, int) else clients
            for name in names:
                if name not in found:
                    raise ValueError(f"{path} has no client {name!r}; its first is {next(iter(found), None)!r}")
                client = _group(h5py, found, name, f"{path}: examples")
                features = tuple(client) if features is None else tuple(features)
                where = f"{path}: examples/{name}"
                if len({NAMES.get(part, part) for part in features}) != len(features):
                    raise ValueError(f"{where}: {shown(', '.join(features))} have one name here; choose: features=")
                columns = {}
                for part in features:
                    column = _column(h5py, client, part, where, left)
                    left -= column.nbytes
                    columns[NAMES.get(part, part)] = column
                yield name, columns
    except UNLISTED as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from None


def _check_heaps(path: Path) -> None:
    """Check the lengths of the heaps that hold text: libhdf5 trusts them, and a wrong one makes it hang or exhaust
    memory. Files larger than `MOST_CHECKED` are not checked."""
    if not len(SIGNATURE) + 8 <= path.stat().st_size <= MOST_CHECKED:
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        number = lambda begin, end: int.from_bytes(data[begin:end], "little")
        sizes = 13 if data[8] < 2 else 9  # where the superblock has the sizes of an offset and of a length
        if data[:8] != SIGNATURE or (data[sizes], data[sizes + 1]) != (8, 8):
            raise ValueError(f"{path} is no HDF5 file with offsets and lengths of 8 bytes; fetch it again")
        heap = data.find(HEAP)
        while heap >= 0:
            at, end = heap + 16, heap + number(heap + 8, heap + 16)
            while at + 16 <= end <= len(data):
                length = number(at + 8, at + 16)
                taken = 16 + -(-length // 8) * 8 if number(at, at + 2) else length  # object 0 is free space
                if not 16 <= taken <= end - at:
                    break
                at += taken
            if not end - 16 < at <= end <= len(data):
                raise ValueError(f"{path}, byte {at}: a heap of texts is damaged; fetch it again")
            heap = data.find(HEAP, heap + 1)


def _group(h5py: Any, parent: Any, name: str, where: str) -> Any:
    try:
        # a soft or external link can lead to other files
        plain = isinstance(parent.get(name, getlink=True), h5py.HardLink)
        group = parent[name] if plain else None
    except DAMAGE as error:
        raise ValueError(f"{where}/{name} cannot be read ({error}); fetch the file again") from None
    if not isinstance(group, h5py.Group):
        raise ValueError(f"{where} has no group {name!r}; give a file of TensorFlow Federated: examples/client/feature")
    return group


def _column(h5py: Any, client: Any, feature: str, where: str, left: int) -> np.ndarray:
    if feature not in client:
        raise ValueError(f"{where} has no {feature!r}, it has {', '.join(client) or 'nothing'}; name others: features=")
    try:
        plain = isinstance(client.get(feature, getlink=True), h5py.HardLink)
        stored: Any = client[feature] if plain else None
        if not isinstance(stored, h5py.Dataset) or stored.external or stored.is_virtual:
            raise ValueError("it is no array stored in this file")
        # the header may be wrong, and compressed chunks may be far larger than the file
        if stored.size is None or stored.ndim < 1 or stored.size * stored.dtype.itemsize > left:
            raise ValueError(
                f"shape {stored.shape}: at least one axis and at most {max(left, 0)} more bytes are read of a file of "
                "this size: write it without compression"
            )
        return _plain(np.asarray(stored[()]))
    except DAMAGE as error:
        raise ValueError(f"{where}/{feature} cannot be read ({error}); fetch the file again") from None


def _plain(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "O":
        text = [item.decode("utf-8") if isinstance(item, bytes) else item for item in array.ravel()]
        if not all(isinstance(item, str) for item in text):
            raise ValueError("it holds neither numbers nor text")
        check_texts(text, "it")
        return np.asarray(text, dtype=str).reshape(array.shape)
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"it holds {array.dtype}, neither numbers nor text")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("it holds NaN or infinite values")
    return array

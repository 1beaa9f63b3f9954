"""NumPy's .npz archives; nothing in them is ever unpickled."""

import math
import os
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from fedspam._internal.reading import guarded, listed, regular, shown, unpacked

KINDS = "biufUS"  # plain numbers and text: no objects, dates, records or complex numbers


def read_arrays(path: str | Path, names: Sequence[str]) -> Mapping[str, np.ndarray]:
    """The named arrays of an .npz file.

    Arguments:
        path: the file.
        names: of the arrays to read.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "tiny.npz"
    >>> np.savez(path, x=np.eye(2), y=np.arange(2))
    >>> read_arrays(path, ["y"])["y"].tolist()
    [0, 1]
    """
    path = Path(path)
    kind = f"an .npz archive with the arrays {', '.join(names)}"
    with guarded(path, kind), regular(path, kind) as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
            raise ValueError(f"{path} is a single array; give {kind}")
        most = unpacked(os.fstat(file.fileno()).st_size, "rb")
        file.seek(0)
        try:
            archive = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise ValueError(
                f"{path} is not an .npz archive, or a damaged one ({shown(error)}); fetch it again"
            ) from None
        found: dict[str, np.ndarray] = {}
        members = Counter(name.removesuffix(".npy") for name in archive.namelist())
        for name in names:
            if members[name] != 1:
                often = f"has {members[name]} arrays" if members[name] else "has no array"
                raise ValueError(
                    f"{path} {often} {name!r}, it has {listed(list(members)) or 'none'}; "
                    "give the archive that this reader was written for"
                )
            found[name] = _plain(archive, name, path, most - sum(array.nbytes for array in found.values()))
        return found


def _plain(archive: zipfile.ZipFile, name: str, path: Path, most: int) -> np.ndarray:
    stored = archive.getinfo(name if name in archive.namelist() else f"{name}.npy")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a header of Python 2 is read all the same, a wrong one is refused below
            with archive.open(stored) as file:
                _check_header(file, stored.file_size, most)
            with archive.open(stored) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                if file.read(1):
                    raise ValueError("more bytes follow")
        if array.dtype.kind == "S":  # bytes of Python 2
            array = np.char.decode(array, "utf-8")
        _check_text(array)
    except MemoryError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise a dozen kinds
        raise ValueError(
            f"{path}: the array {name!r} cannot be read ({shown(error, 200)}); store plain numbers or text"
        ) from None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{path}: the array {name!r} holds NaN or infinite values; every number must be finite")
    return array


def _check_text(array: np.ndarray) -> None:
    """Refuse numbers that are not characters: NumPy keeps them, and Python raises a SystemError where one is used."""
    if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        codes = np.ascontiguousarray(array).reshape(-1).view(array.dtype.byteorder.replace("|", "=") + "u4")
        if ((codes > sys.maxunicode) | ((codes >= 0xD800) & (codes < 0xE000))).any():
            raise ValueError("the text contains invalid Unicode")


def _check_header(file: IO[bytes], size: int, most: int) -> None:
    """Refuse an array whose header and stored size disagree, or that is too large, before memory is allocated."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if dtype.kind not in KINDS:
        raise ValueError(f"it holds {dtype}, neither numbers nor text")
    expected, stored = math.prod(shape) * dtype.itemsize, size - file.tell()
    if expected != stored:
        raise ValueError(f"its header says {expected} bytes, {stored} are stored")
    if expected > most:
        raise ValueError(
            f"it has {expected} bytes, of an archive of this size at most {most} are read: store it with np.savez, "
            "which does not compress"
        )

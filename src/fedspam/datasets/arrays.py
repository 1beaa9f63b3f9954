"""NumPy's .npz archives; nothing in them is ever unpickled."""

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

# what zipfile, zlib and NumPy raise on damaged bytes
DAMAGE = (
    ValueError, zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, EOFError, KeyError, SyntaxError,
    OverflowError, NotImplementedError, RuntimeError, TypeError, OSError,
)  # fmt: skip
MOST_BYTES = 2**32  # of one array


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
    with path.open("rb") as file:
        single = file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX
        file.seek(0)
        if single:
            raise ValueError(f"{path} is a single array; give an .npz archive with the arrays {', '.join(names)}")
        try:
            archive = np.load(file, allow_pickle=False)
        except DAMAGE as error:
            raise ValueError(f"{path} is no .npz archive, or a damaged one ({error}); fetch it again") from None
        assert isinstance(archive, np.lib.npyio.NpzFile)  # a single array was refused above, pickles by NumPy
        missing = [name for name in names if name not in archive.files]
        if missing:
            raise ValueError(
                f"{path} has no array {missing[0]!r}, it has {', '.join(archive.files) or 'none'}; "
                "give the archive that this reader was written for"
            )
        return {name: _plain(archive, name, path) for name in names}


def _plain(archive: np.lib.npyio.NpzFile, name: str, path: Path) -> np.ndarray:
    try:
        _check_size(archive, name)
        array = archive[name]
    except DAMAGE as error:
        # Python objects would have to be unpickled, which can run any code
        raise ValueError(f"{path}: the array {name!r} cannot be read ({error}); store plain numbers or text") from None
    if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
        raise ValueError(f"{path}: the array {name!r} holds NaN or infinite values; every number must be finite")
    return array


def _check_size(archive: np.lib.npyio.NpzFile, name: str) -> None:
    """Refuse an array whose header and stored size disagree, before memory is allocated for it."""
    files = archive.zip
    assert files is not None  # None only once the archive is closed
    stored = name if name in files.namelist() else f"{name}.npy"
    with files.open(stored) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
        stored_bytes = files.getinfo(stored).file_size - file.tell()
    expected = math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if expected != stored_bytes or stored_bytes > MOST_BYTES:
        raise ValueError(f"its header says {expected} bytes, {stored_bytes} are stored, at most {MOST_BYTES} are read")

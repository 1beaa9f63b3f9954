"""Files that are whole or absent, carry their own hash, follow no links, and are written by one process at a time.

Somebody else may have put something into a folder under the name of a file. So what is written is either a new file, or
a regular file with one name: not a link of either kind, not a pipe.
"""

import contextlib
import errno
import hashlib
import os
import platform
import stat
import warnings
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

try:
    import fcntl
except ImportError:  # on Windows
    raise ImportError(
        "run folders are locked with fcntl, which this system does not have; use the Windows Subsystem for Linux"
    ) from None

from . import strict
from .strict import GIB, MIB

FORMAT = 2  # of all files of a run
HEADER = 16 * MIB  # the longest header that is read
FRAME = 1 * GIB  # the longest piece of a file of frames
BLANK = b"0" * 64  # stands where the hash comes while it is computed
SEAL = b'"sha256":"'


class RecordError(RuntimeError):
    """A run folder that cannot be used as asked; says what to do instead."""


class DamagedError(RecordError):
    """A file that is not what was written, or not what is expected here."""


class Frame(NamedTuple):
    """One piece of a file of frames, and where it ends."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, str]
    end: int


def write(path: Path, data: bytes | bytearray) -> None:
    """Write a file whole or not at all, and have it on the disk before returning."""
    partial = path.with_name(f".{path.name}.partial")
    if os.path.lexists(partial):  # left by a process that was killed, or put there by somebody
        _forget(partial)
    try:
        with open(partial, "xb", buffering=0, opener=open_own) as file:
            _write_all(file, data)
            os.fsync(file.fileno())
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as error:
        _forget(partial)
        raise _unwritable(path, error) from error


def append(path: Path, data: bytes | bytearray, end: int) -> int:
    """Write a frame behind the first `end` bytes of a file, drop what is beyond, and return where it ends now."""
    created = not os.path.lexists(path)
    try:
        with open(path, "xb" if created else "r+b", buffering=0, opener=open_own) as file:
            file.truncate(end)
            file.seek(end)
            try:
                _write_all(file, len(data).to_bytes(8, "little"))
                _write_all(file, data)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise
        if created:
            _sync_folder(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    return end + 8 + len(data)


def append_line(path: Path, line: str) -> None:
    """Write a line at the end of a text file."""
    try:
        with open(path, "a", encoding="utf-8", opener=open_own) as file:
            file.write(line + "\n")
    except OSError as error:
        raise _unwritable(path, error) from error


def frames(path: Path) -> tuple[list[Frame], str | None]:
    """The frames of a file as far as they are good, and what is wrong with the rest, if anything."""
    found: list[Frame] = []
    end = 0
    try:
        with strict.open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            while end < size:
                length = int.from_bytes(file.read(8), "little")
                if length > min(size - end - 8, FRAME):
                    return found, f"{path} is cut off after byte {end}"
                try:
                    arrays, facts = unpack(file.read(length), path, size=FRAME)
                except DamagedError as error:
                    return found, f"{error} (byte {end})"
                end += 8 + length
                found.append(Frame(arrays, facts, end))
    except OSError as error:
        return found, f"cannot read {path}: {error.strerror}"
    except strict.MalformedError as error:
        return found, f"{path} is damaged: {error}"
    return found, None


def pack(arrays: Mapping[str, Any], **facts: str) -> bytearray:
    """Named arrays as safetensors, with facts and a hash of everything in the header."""
    named = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    metadata = {"format": str(FORMAT), **facts, "sha256": BLANK.decode()}
    data = bytearray(safetensors.numpy.save(named, metadata=metadata))
    place = data.index(SEAL + BLANK) + len(SEAL)
    data[place : place + 64] = hashlib.sha256(data).hexdigest().encode()
    return data


def unpack(data: bytes, source: Path, *, size: int) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """What `pack` made, of at most `size` bytes. Anything else is `DamagedError`."""
    place = data.find(SEAL, 8, 8 + HEADER) + len(SEAL)
    view, hashed = memoryview(data), hashlib.sha256()
    for part in (view[:place], BLANK, view[place + 64 :]):
        hashed.update(part)
    if place < len(SEAL) or hashed.hexdigest().encode() != data[place : place + 64]:
        raise DamagedError(f"{source} is damaged: its hash does not fit its content")
    try:
        arrays, facts = strict.arrays(data, size=size, header=HEADER)
    except strict.MalformedError as error:
        raise DamagedError(f"{source} is damaged: {error}") from None
    if facts.get("format") != str(FORMAT):
        raise DamagedError(f"{source} has format {facts.get('format')}, this version of fedspam reads {FORMAT}")
    return arrays, facts


def read(path: Path, *, size: int) -> bytes:
    try:
        return strict.read(path, size)
    except OSError as error:
        raise DamagedError(f"cannot read {path}: {error.strerror}") from None
    except strict.MalformedError as error:
        raise DamagedError(f"{path} is damaged: {error}") from None


def remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


class Lock:
    """The right to write into a folder. It ends with the process, however that ends."""

    def __init__(self, folder: Path) -> None:
        path = folder / ".lock"
        try:
            self._file = open_own(str(path), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.read(self._file, 200).decode(errors="replace").strip() or "another process"
            os.close(self._file)
            raise RecordError(
                f"{folder} is being written by {who}; wait until it is done, end it, or choose another folder"
            ) from None
        except OSError as error:
            warnings.warn(
                f"{folder} cannot be locked ({error.strerror}): make sure that no other process writes there",
                stacklevel=5,
            )
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"process {os.getpid()} on {platform.node()}\n".encode(), 0)
        except OSError:
            pass  # the owner is only named in messages; a full disk shows where it matters

    def release(self) -> None:
        os.close(self._file)


def open_own(path: str, flags: int) -> int:
    """Open a regular file with one name: writing to it changes no file elsewhere, and waits for nobody.

    Not for flags that empty the file: it would be empty before it is looked at.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    state = os.fstat(descriptor)
    if stat.S_ISREG(state.st_mode) and state.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    if stat.S_ISREG(state.st_mode):
        raise RecordError(
            f"cannot write {path}: it is a hard link, and the file has another name, whose content would change; put "
            "a copy in its place, or remove it"
        )
    raise RecordError(f"cannot write {path}: it is not a regular file; remove it")


def _write_all(file: FileIO, data: bytes | bytearray) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _forget(path: Path) -> None:
    with contextlib.suppress(OSError):  # the next run in this folder removes it
        path.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> RecordError:
    if error.errno == errno.ELOOP:
        return RecordError(f"cannot write {path}: it is a link, and links are not followed; remove it")
    if error.errno == errno.ENXIO:  # what a pipe without a reader answers
        return RecordError(f"cannot write {path}: it is not a regular file; remove it")
    return RecordError(
        f"cannot write {path}: {error.strerror}; free space or choose another folder, then resume: "
        "what was saved before is still good"
    )

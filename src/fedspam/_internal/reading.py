"""The gate that every reader of files passes: what is opened, how much of it, numbers, names, and clear errors.

A reader opens its file with `opened` and does the rest within `guarded`. So it reads regular files only, no more than
its limit, and of a compressed file no more than a multiple of its size. Whatever goes wrong is a `ValueError` that
names the file. Numbers pass `number`, and texts that become arrays `check_texts`.
"""

import bz2
import csv
import gzip
import io
import itertools
import lzma
import math
import os
import re
import struct
import time
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedspam._internal import strict

OPENERS: dict[str, Any] = {".gz": lambda file: gzip.GzipFile(fileobj=file), ".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}
# what Python, NumPy and the codecs raise on damaged bytes
DAMAGE = (
    ValueError, TypeError, LookupError, ArithmeticError, EOFError, OSError, RuntimeError, SyntaxError, MemoryError,
    SystemError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError, csv.Error,
)  # fmt: skip

# what exceeds these limits is damage, or an attack, rather than data
MOST_BYTES = 2**32  # of one file, unpacked
MOST_COLUMNS = 10**5
LONGEST_LINE = 2**24  # characters
LONGEST_NAME = 1000  # characters of a client or a class
LONGEST_NUMBER = 1000  # characters
DICTIONARY = 2**27  # bytes of memory for the dictionary of xz
WIDE = 2**28  # bytes of an array of texts that may be mostly padding
# A compressed file may unpack to so many bytes, or to so many times its size. Text costs more time and memory per byte.
UNPACKED = {"rt": (2**26, 8), "rb": (2**27, 16)}
# A compressed file that is small may take so many seconds of a processor, once so many bytes are unpacked. No limit of
# bytes does: rows of a few characters take ten times as long per byte as rows of long numbers.
SMALL, AT_ONCE, SECONDS = 10**7, 2**23, 3.0

SEPARATORS = ",;\t|"  # between two cells; of those that are as frequent in the header, the first
QUOTED = re.compile(r'"[^"]*"')
PLAIN = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)


@contextmanager
def guarded(path: Path, kind: str) -> Iterator[None]:
    """Whatever damage raises within is a ValueError that names the file and what it should be."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text ({error.reason} at byte {error.start}); give {kind}") from None
    except MemoryError:
        raise ValueError(f"{path} needs more memory than there is; split it, or give {kind}") from None
    except DAMAGE as error:
        if str(error).startswith((f"{path} ", f"{path}:", f"{path},")):
            raise  # it says already what is wrong
        if isinstance(error, FileNotFoundError):
            raise
        if isinstance(error, OSError) and error.errno is not None:
            raise ValueError(f"{path} cannot be opened ({error.strerror}); give {kind}") from None
        unpacking = isinstance(error, EOFError | OSError | zlib.error | lzma.LZMAError)
        what = " is damaged or not compressed as its name says" if unpacking else " cannot be read"
        raise ValueError(f"{path}{what} ({shown(error, 300)}); fetch it again, it should be {kind}") from error


@contextmanager
def opened(
    path: Path, mode: str, kind: str, *, most: int = MOST_BYTES, seconds: float | None = None,
    encoding: str | None = None, newline: str | None = None,
) -> Iterator[IO[Any]]:  # fmt: skip
    """A regular file, decompressed as its ending says, within limits; damage is reported as in `guarded`.

    Arguments:
        path: the file.
        mode: "rb" for bytes, "rt" for text.
        kind: what the file should be, for errors.
        most: bytes that are read.
        seconds: of a processor that a small compressed file may take; None for `SECONDS`.
        encoding, newline: of text, as in `open`.
    """
    with guarded(path, kind), regular(path, kind) as file:
        size, opener = os.fstat(file.fileno()).st_size, OPENERS.get(path.suffix)
        if opener is None:
            limited: IO[bytes] = file
            if size > most:
                raise ValueError(f"{path} has {size} bytes, at most {most} are read; split it, or give {kind}")
        else:
            if path.suffix == ".xz":  # refuses a dictionary that would take more memory
                lzma.LZMADecompressor(memlimit=DICTIONARY).decompress(file.read(1024), max_length=1)
                file.seek(0)
            seconds = SECONDS if seconds is None else seconds
            allowed = min(most, unpacked(size, mode)), seconds if size < SMALL else math.inf
            limited = io.BufferedReader(_Limited(opener(file), path, *allowed))
        yield io.TextIOWrapper(limited, encoding=encoding, newline=newline) if mode == "rt" else limited


@contextmanager
def regular(path: Path, kind: str) -> Iterator[IO[bytes]]:
    """A regular file, opened: pipes could block forever, and devices never end."""
    try:
        file = strict.open_regular(path)
    except strict.MalformedError:
        raise ValueError(f"{path} is a folder, a pipe or a device, not a regular file; give {kind}") from None
    with file:
        yield file


def unpacked(size: int, mode: str) -> int:
    """The bytes that a compressed file of this size may unpack to."""
    least, times = UNPACKED[mode]
    return max(least, times * size)


def lines(file: IO[str], path: Path) -> Iterator[str]:
    """The lines of a text, none longer than `LONGEST_LINE`."""
    for line in iter(partial(file.readline, LONGEST_LINE), ""):
        if len(line) == LONGEST_LINE:
            raise ValueError(f"{path} has a line of {LONGEST_LINE} characters or more; break it into rows")
        yield line


def separated(file: IO[str], path: Path) -> tuple[str, Iterator[str]]:
    """The character between two cells, the most frequent of SEPARATORS in the header, and all lines."""
    rest, head = lines(file, path), []
    for line in rest:
        head.append(line)
        if line.strip():
            break
    header = QUOTED.sub("", "".join(head))
    return max(SEPARATORS, key=header.count), itertools.chain(head, rest)


def csv_rows(texts: Iterable[str], path: Path, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """The line number and the cells of each row; empty lines are skipped."""
    rows = csv.reader(texts, delimiter=delimiter)
    try:
        for cells in rows:
            if len(cells) > MOST_COLUMNS:
                raise ValueError(
                    f"{path}, line {rows.line_num} has {len(cells)} cells, at most {MOST_COLUMNS} are read; "
                    "leave columns out"
                )
            if cells:
                yield rows.line_num, cells
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num} is not CSV ({error}); correct it") from None


def number(text: str, path: Path, line: int, name: str, rule: str) -> float:
    """The finite number that a text writes in ASCII digits; anything else is refused with its place and this rule."""
    is_plain = len(text) <= LONGEST_NUMBER and PLAIN.fullmatch(text)
    value = float(text) if is_plain else math.nan
    if not math.isfinite(value):
        raise ValueError(f"{path}, line {line}: {shown(name)} is {shown(text)!r}; {rule}")
    return value


def check_texts(found: Sequence[str], what: str) -> None:
    """Refuse texts of which one is so long that an array of them would be mostly padding."""
    longest = max(map(len, found), default=0)
    if len(found) * longest * 4 > max(WIDE, 64 * sum(map(len, found))):
        raise ValueError(
            f"{what} has {len(found)} texts, the longest of {longest} characters; an array pads them all to that "
            "length: cut it into pieces"
        )


def whole_numbers(array: np.ndarray, path: Path, name: str, below: int) -> np.ndarray:
    """Labels or numbers of clients, from 0 to `below` - 1, one per row; others are refused, and none is rounded."""
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: {name} has shape {array.shape} and dtype {array.dtype}; it must be one whole number per row: "
            "fetch the file again"
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= below:
        wrong = low if low < 0 else high
        raise ValueError(f"{path}: {name} holds {wrong}; it must be 0 to {below - 1}: fetch the file again")
    return array


def shown(value: object, most: int = 80) -> str:
    """A value on one line of an error message, cut if it is long; of an error the first line, the rest is advice."""
    lines = str(value).strip("\n").splitlines() or [""]
    text = lines[0] if isinstance(value, BaseException) else " ".join(lines)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def listed(names: Sequence[str], most: int = 10) -> str:
    """Names in an error message, the first of them if there are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown(name) for name in names[:most]) + more


def missing(package: str) -> ImportError:
    """The error where an optional package is missing."""
    return ImportError(f"this needs {package}, which is not installed; pip install {package}")


class _Limited(io.RawIOBase):
    """What a decompressor yields, up to so many bytes and, with the work on them, seconds of this thread."""

    def __init__(self, file: IO[bytes], path: Path, most: int, seconds: float) -> None:
        self._file, self._path, self._most, self._left = file, path, most, most
        self._seconds, self._until = seconds, time.thread_time() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(
                f"{self._path} unpacks to more than {self._most} bytes, more than is usual for its size; "
                "if it is meant to, unpack it first and read the plain file"
            )
        if self._most - self._left > AT_ONCE and time.thread_time() > self._until:
            raise ValueError(
                f"{self._path} takes more than {self._seconds:g} s to unpack and read, more than is usual for its "
                "size; if it is meant to, unpack it first and read the plain file"
            )
        buffer[: len(data)] = data
        return len(data)

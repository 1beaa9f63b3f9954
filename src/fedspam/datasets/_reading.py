"""What the readers share: opening files that may be compressed, rows of CSV, numbers, missing packages."""

import bz2
import csv
import gzip
import lzma
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@contextmanager
def opened(path: Path, mode: str, kind: str, **options: Any) -> Iterator[IO[Any]]:
    """The file, decompressed as its ending says. Damage is a ValueError that names the file and what it should be."""
    opener = OPENERS.get(path.suffix, open)
    try:
        with opener(path, mode, **options) as file:
            yield file
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text ({error.reason} at byte {error.start}); give {kind}") from None
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the file cannot be opened: not its content
            raise
        raise ValueError(f"{path} is damaged or not compressed as its name says ({error}); fetch it again") from None


def csv_rows(file: IO[str], path: Path, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """The line number and the cells of each row; empty lines are skipped."""
    rows = csv.reader(file, delimiter=delimiter)
    try:
        for cells in rows:
            if cells:
                yield rows.line_num, cells
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num} is no CSV ({error}); correct it") from None


def number(text: str, path: Path, line: int, name: str, rule: str) -> float:
    """The finite number that a text writes; anything else is refused with its place and this rule."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{path}, line {line}: {name} is {text!r}; {rule}")
    return value


def missing(package: str) -> ImportError:
    """The error where an optional package is missing."""
    return ImportError(f"this needs {package}, which is not installed; pip install 'fedspam[data]'")

"""Opening files that may be packed, and answering damage with the file's name."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@contextmanager
def opened(path: Path, mode: str, kind: str, **options: Any) -> Iterator[IO[Any]]:
    """The file, unpacked as its ending says; what is not as it should be is a ValueError that names the file.

    Arguments:
        path: the file.
        mode: 'rb' or 'rt'.
        kind: what it should be, for the remedy: 'a file in LEAF's JSON'.
        options: of `open`, such as encoding.
    """
    opener = OPENERS.get(path.suffix, open)
    try:
        with opener(path, mode, **options) as file:
            yield file
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text ({error.reason} at byte {error.start}); give {kind}") from None
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the file, not what is in it
            raise
        raise ValueError(f"{path} is damaged or not packed as its name says ({error}); fetch it again") from None


def extra(package: str) -> ImportError:
    """The error where an optional package is missing."""
    return ImportError(f"this needs {package}, which is not installed; pip install 'fedspam[data]'")

"""The cache of compiled programs that commands share, so that the second run of a kind need not compile."""

import contextlib
import os
import sys
import warnings
from pathlib import Path

from fedspam import __version__
from fedspam._internal import program_folder

FOLDER_VARIABLE = "FEDSPAM_CACHE"
MOST_BYTES = 2**29


def folder() -> Path:
    """The folder of the cache: FEDSPAM_CACHE, else fedspam in the user's folder of caches; one for each version."""
    given = os.environ.get(FOLDER_VARIABLE)
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedspam"
    return base / f"programs-{__version__}"


def use() -> None:
    """Keep compiled programs in the folder of the cache. Where that cannot be, say so in a line, and compile."""
    # JAX writes programs in place: one that is being written, or was cut off, cannot be read, and is compiled
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache")
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return  # the user has one
    try:
        place = folder()
        program_folder.make_private(place)
        trim(place, MOST_BYTES)
    except (OSError, RuntimeError, ValueError) as error:
        sys.stderr.write(f"fedspam: compiled programs are not kept ({error}); --no-cache says so yourself\n")
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(place)  # JAX reads both when it is imported
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = str(program_folder.LEAST_SECONDS)


def trim(place: Path, most: int) -> None:
    """Delete the programs that were written first until the others have at most so many bytes."""
    found = sorted((path.lstat().st_mtime, path.lstat().st_size, path) for path in place.iterdir() if path.is_file())
    left = sum(size for _, size, _ in found)
    for _, size, path in found:
        if left <= most:
            return
        with contextlib.suppress(FileNotFoundError):  # another process trims too
            path.unlink()
        left -= size

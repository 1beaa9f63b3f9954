"""The cache of compiled programs that commands share, so that the second run of a kind need not compile."""

import contextlib
import os
import sys
import warnings
from pathlib import Path

from fedspam import __version__
from fedspam._internal.program_folder import keep_programs

FOLDER_VARIABLE = "FEDSPAM_CACHE"
MOST_BYTES = 2**29


def folder() -> Path:
    """The folder of the cache: FEDSPAM_CACHE, else fedspam in the user's folder of caches; one for each version."""
    given = os.environ.get(FOLDER_VARIABLE)
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedspam"
    return base / f"programs-{__version__}"


def use() -> None:
    """Keep compiled programs in the folder of the cache. Where that fails, say why in a line, and compile."""
    # JAX writes programs in place: one that is being written, or was cut off, cannot be read, and is compiled
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache")
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return  # the user has one
    try:
        place = folder()
        keep_programs(place)
    except (OSError, RuntimeError, ValueError) as error:
        sys.stderr.write(f"fedspam: compiled programs cannot be kept ({error}); --no-cache silences this message\n")
        return
    with contextlib.suppress(OSError):  # another process trims too
        trim(place, MOST_BYTES)


def trim(place: Path, most: int) -> None:
    """Delete the programs that were written first until the others have at most so many bytes."""
    found = sorted((path.lstat().st_mtime, path.lstat().st_size, path) for path in place.iterdir() if path.is_file())
    left = sum(size for _, size, _ in found)
    for _, size, path in found:
        if left <= most:
            return
        path.unlink(missing_ok=True)
        left -= size

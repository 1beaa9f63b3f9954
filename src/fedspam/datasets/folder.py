"""The folder of the data sets, and files in it."""

import os
from collections.abc import Sequence
from pathlib import Path

FOLDER_VARIABLE = "FEDSPAM_DATA"
PLACES = ("data", "../shared/data")  # tried in this order, relative to the working directory


def data_folder(folder: str | Path | None = None) -> Path:
    """The folder of all data sets: the given one, else that of FEDSPAM_DATA, else ./data or ../shared/data.

    A folder given by argument or variable must exist.
    """
    named = [("the folder", folder), (FOLDER_VARIABLE, os.environ.get(FOLDER_VARIABLE) or None)]
    for origin, value in named:
        if value is not None:
            if not Path(value).is_dir():
                raise FileNotFoundError(f"{origin} {str(value)!r} is no folder; give the one that holds the data sets")
            return Path(value)
    for place in PLACES:
        if Path(place).is_dir():
            return Path(place)
    raise FileNotFoundError(
        f"no data found: {FOLDER_VARIABLE} is not set, and there is neither {' nor '.join(PLACES)} here "
        f"({Path.cwd()}); set {FOLDER_VARIABLE} to the folder that holds the data sets"
    )


def data_path(name: str, folder: str | Path | None = None, *, endings: Sequence[str] = ("",)) -> Path:
    """The file `name`, such as ``libsvm/a9a``, in the data folder.

    Arguments:
        name: relative to the data folder.
        folder: as in `data_folder`.
        endings: tried in turn after the name, such as ("", ".gz", ".bz2"); the first file that exists is taken.
    """
    root = data_folder(folder)
    tried = [root / f"{name}{ending}" for ending in endings]
    for path in tried:
        if path.is_file():
            return path
    also = f", nor with {' or '.join(ending for ending in endings if ending)}" if any(endings) else ""
    raise FileNotFoundError(
        f"{name} is missing in the data folder {root}{also}; put it there, or name another folder with "
        f"{FOLDER_VARIABLE} (the folder holds: {', '.join(sorted(path.name for path in root.iterdir())) or 'nothing'})"
    )

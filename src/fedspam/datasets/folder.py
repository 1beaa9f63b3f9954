"""The folder of the data sets, and files in it."""

import os
from collections.abc import Sequence
from pathlib import Path

FOLDER_VARIABLE = "FEDSPAM_DATA"
PLACE = "data"  # in the working directory
SHIPPED = Path(__file__).parent / "shipped"


def data_folder(folder: str | Path | None = None) -> Path:
    """The folder of all data sets: the given one, else that of FEDSPAM_DATA, else ./data.

    A folder given by argument or variable must exist.
    """
    named = [("the folder", folder), (FOLDER_VARIABLE, os.environ.get(FOLDER_VARIABLE) or None)]
    for origin, value in named:
        if value is not None:
            if not Path(value).is_dir():
                raise FileNotFoundError(
                    f"{origin} {str(value)!r} is not a folder; give the one that holds the data sets"
                )
            return Path(value)
    if Path(PLACE).is_dir():
        return Path(PLACE)
    raise FileNotFoundError(
        f"no data found: {FOLDER_VARIABLE} is not set, and there is no folder {PLACE!r} in {Path.cwd()}; set "
        f"{FOLDER_VARIABLE} to the folder that holds the data sets. `fedspam data` says where to get them"
    )


def data_path(name: str, folder: str | Path | None = None, *, endings: Sequence[str] = ("",)) -> Path:
    """The file `name`, such as ``libsvm/a9a``, in the data folder, or among the files that come with fedspam.

    Arguments:
        name: relative to the data folder.
        folder: as in `data_folder`. Where it is given, the file must be there.
        endings: tried in turn after the name, such as ("", ".gz", ".bz2"); the first file that exists is taken.
    """
    shipped = SHIPPED / name if folder is None and (SHIPPED / name).is_file() else None
    try:
        root = data_folder(folder)
    except FileNotFoundError:
        if shipped:
            return shipped
        raise
    tried = [root / f"{name}{ending}" for ending in endings]
    for path in tried:
        if path.is_file():
            return path
    if shipped:
        return shipped
    also = f", nor with {' or '.join(ending for ending in endings if ending)}" if any(endings) else ""
    raise FileNotFoundError(
        f"{name} is missing in the data folder {root}{also}; put it there (`fedspam data` says where to get it), or "
        f"name another folder with {FOLDER_VARIABLE} "
        f"(the folder holds: {', '.join(sorted(path.name for path in root.iterdir())) or 'nothing'})"
    )

"""Result folders: a new name, the folder itself, its manifest, and tables as CSV."""

import csv
import datetime as dt
import io
import itertools
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedspam.simulation import records

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a formula of a spreadsheet begins


def new_folder(stem: str, parent: str | Path = "runs") -> Path:
    """A path that does not exist yet: the stem and the time, such as ``runs/compare-20270131-180000``."""
    name = f"{stem}-{dt.datetime.now():%Y%m%d-%H%M%S}"
    names = (Path(parent) / (name if number == 1 else f"{name}-{number}") for number in range(1, 1000))
    return next(path for path in names if not path.exists())


def make_folder(folder: str | Path) -> Path:
    """Create a folder and its parents; `RecordError` if that fails."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise records.RecordError(f"cannot make the folder {folder}: {error.strerror}; choose another") from error
    return folder


def write_manifest(folder: Path, command: str, began: float, **facts: object) -> None:
    """Write manifest.json, and the command to a file of its own. It began at this `time.perf_counter()`."""
    finished = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    seconds = round(time.perf_counter() - began, 1)
    manifest = records.manifest(command=command, **facts, finished=finished, seconds=seconds)
    records.write(folder / "manifest.json", json.dumps(manifest, indent=1, ensure_ascii=False).encode())
    records.write(folder / "command", f"{command}\n".encode())


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A header and rows as CSV.

    A spreadsheet would compute a text that looks like a formula; an apostrophe before it says that it is a text.

    >>> csv_text(["a", "b"], [["=1+1", -2.5], ["-2.5", "x=1"]])
    "a,b\\n'=1+1,-2.5\\n-2.5,x=1\\n"
    """
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerows([_no_formula(cell) for cell in row] for row in itertools.chain([header], rows))
    return out.getvalue()


def _no_formula(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}" if len(cell) > 1 else cell
    return cell

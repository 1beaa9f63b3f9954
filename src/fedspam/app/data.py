"""What `fedspam data` prints: the known data sets, whether their files are here, and their download."""

import argparse
import functools
import os
import tempfile
import urllib.request
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedspam._internal.nearest import did_you_mean
from fedspam.app import UsageError, exit_codes
from fedspam.app.terminal import print_plain
from fedspam.datasets.catalog import KNOWN, MOST_BYTES, DataFile, KnownData, fits, locate
from fedspam.datasets.folder import FOLDER_VARIABLE, PLACE, SHIPPED

SECONDS = 30  # without a byte, after which a download ends
PIECE = 2**20


def show(options: argparse.Namespace) -> int:
    """Print all about a data set, after a download if asked for, or a row per data set. Return the exit code."""
    name, folder = options.name, options.data
    if name is None:
        if options.download:
            raise UsageError(f"--download needs the name of a data set: one of {', '.join(KNOWN)}")
        table = Table("name", "clients", "rows", "files", box=None, pad_edge=False)
        for each, known in KNOWN.items():
            table.add_row(each, known.clients, known.rows, _state([locate(file, folder) for file in known.files]))
        Console().print(table)
        return 0
    if name not in KNOWN:
        hint = did_you_mean(name, KNOWN, f"there are {', '.join(KNOWN)}")
        raise UsageError(f"there is no data set {name!r}; {hint}")
    known = KNOWN[name]
    if options.download:
        fetch(known, folder)
    say = functools.partial(print_plain, Console())
    for what in ("clients", "rows", "origin", "license", "reader"):
        say(f"{what + ':':<9} {getattr(known, what)}")
    whole = True
    for file in known.files:
        path = locate(file, folder)
        right = path is not None and fits(file, path)
        whole = whole and right
        state = "as published" if right else "DIFFERS from the published file"
        say(f"  {file.name}: " + ("missing" if path is None else f"{path}, {state}"))
        if not right:
            say(f"    sha256, unpacked: {file.sha256}" + (f"\n    {file.url}" if file.url else ""))
    if not whole:
        can = any(file.url for file in known.files)
        say(f"put the files into {_target(folder)}" + (f", or: fedspam data {name} --download" if can else ""))
    return exit_codes.verdict(whole)


def fetch(known: KnownData, folder: Path | None) -> None:
    """Download the files that are missing. A file is whole and as published, or it is not there."""
    for file in known.files:
        if locate(file, folder) is not None:
            continue
        if not file.url:
            raise FileNotFoundError(f"{file.name} cannot be downloaded: it was made from {known.origin}")
        path = _target(folder) / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".download-") as own:
            partial = Path(own) / path.name  # its ending tells how it is packed
            _download(file, partial)
            if not fits(file, partial):
                raise ValueError(f"{file.url} is not the published file of {file.sha256}; nothing was kept")
            os.replace(partial, path)


def _download(file: DataFile, path: Path) -> None:
    try:
        with urllib.request.urlopen(file.url, timeout=SECONDS) as reply, path.open("wb") as out:
            while piece := reply.read(PIECE):
                if out.tell() + len(piece) > MOST_BYTES:
                    raise ValueError(f"{file.url} sends more than {MOST_BYTES} bytes; nothing was kept")
                out.write(piece)
    except OSError as error:
        raise OSError(
            f"{file.url} cannot be downloaded ({error}); get {file.name} on another way and put it into the data folder"
        ) from None


def _target(folder: Path | None) -> Path:
    return folder or Path(os.environ.get(FOLDER_VARIABLE) or PLACE)


def _state(places: list[Path | None]) -> str:
    found = [path for path in places if path is not None]
    if len(found) < len(places):
        return f"{len(found)} of {len(places)} here" if found else "missing"
    return "come with fedspam" if all(path.is_relative_to(SHIPPED) for path in found) else "here"

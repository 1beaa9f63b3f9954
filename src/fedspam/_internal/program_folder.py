"""The folder of compiled programs. Programs are code, so nobody else may write there."""

import os
from pathlib import Path

LEAST_SECONDS = 0.1  # to compile a program that is worth keeping


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can write to, or refuse one of that name that others can."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise ValueError(
            f"{folder} belongs to another user, or others can write to it, and could replace programs; choose "
            f"another folder, or close it: chmod go-w {folder}"
        )

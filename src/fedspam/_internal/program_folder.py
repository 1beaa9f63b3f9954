"""The folder of compiled programs. Programs are code, so no other user may write there."""

import os
import stat
import sys
from pathlib import Path

SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
LEAST_SECONDS = 0.1  # to compile a program that is worth keeping


def keep_programs(folder: str | Path) -> None:
    """Keep compiled programs in a folder, so that a later process need not compile them again.

    This turns on JAX's own cache; call it before the first simulation. A program is identified by its code, shapes,
    devices and compiler version, never by the numbers it runs with. Programs are code: a folder that others can write
    to is refused.
    """
    make_private(Path(folder))
    jax = sys.modules.get("jax")
    for name, value in zip(SETTINGS, (str(folder), LEAST_SECONDS), strict=True):
        if jax is None:
            os.environ[name.upper()] = str(value)  # JAX reads it when it is imported
        else:
            jax.config.update(name, value)


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can write to, or refuse one of that name that others can change or replace."""
    folder = folder.absolute()
    for missing in reversed([place for place in (folder, *folder.parents) if not os.path.lexists(place)]):
        missing.mkdir(mode=0o700, exist_ok=True)
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode):
        raise ValueError(f"{folder} is a link or a file, which could lead to programs of others; name a folder")
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise ValueError(
            f"{folder} belongs to another user, or others can write to it, and could replace programs; choose "
            f"another folder, or close it: chmod go-w {folder}"
        )
    above, real = folder.parent, folder.parent.resolve()
    for place in dict.fromkeys((above, *above.parents, real, *real.parents)):
        state = place.stat()
        if _others_write(state) and not state.st_mode & stat.S_ISVTX:
            raise ValueError(
                f"others can write to {place}, and could replace {folder} and its programs; choose another folder, or "
                f"close it: chmod go-w {place}"
            )
    with os.scandir(folder) as entries:
        foreign = next((entry for entry in entries if entry.stat(follow_symlinks=False).st_uid != os.getuid()), None)
    if foreign is not None:
        raise ValueError(f"{foreign.path} belongs to another user; remove it, or choose another folder for programs")


def _others_write(state: os.stat_result) -> bool:
    """Whether others can write there. The group of the process counts as its own: many systems give each user one."""
    return bool(state.st_mode & 0o002 or (state.st_mode & 0o020 and state.st_gid not in (0, os.getgid())))

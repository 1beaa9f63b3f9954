"""The rows and probes of a run as its file of frames holds them, checked for the rounds that they stand for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedspam._internal import files
from fedspam._internal.files import DamagedError

ALWAYS = frozenset({"void", "bytes_up", "bytes_down"})  # columns of every table of rounds
Columns = Mapping[str, np.ndarray]
NOT_OURS = "The file was not written by fedspam: start in another folder"


def tables(
    frames: Sequence[files.Frame], identity: Mapping[str, Any], path: Path
) -> tuple[list[dict[str, np.ndarray]], list[dict[str, np.ndarray]]]:
    """Rows and probes of every frame. A hash that fits says nothing about who made a frame, so its shape is checked."""
    every = identity.get("every")  # of a simulation; others may measure when they like
    every = every if isinstance(every, int) and every > 0 else None
    rows: list[dict[str, np.ndarray]] = []
    probes: list[dict[str, np.ndarray]] = []
    last, names, tails = 0, None, {}
    for frame in frames:
        row, probe = (named_part(frame.arrays, kind) for kind in ("row.", "probe."))
        done = round_of(frame.facts)
        names = row.keys() if names is None and done > last else names
        counts = {column.shape[:1] for column in probe.values()}
        if every is not None:
            counts.add((done // every - last // every + (not probes),))
        shapes = {column.shape for column in row.values()} | {(done - last,)}
        if done < last or (rows and done == last) or len(shapes) > 1 or len(counts) > 1 or () in counts:
            raise DamagedError(
                f"{path}: the rows after round {last} and up to round {done} have columns of lengths {sorted(shapes)}, "
                f"probes {sorted(counts)}; it must be one entry per round. {NOT_OURS}"
            )
        if (done > last and row.keys() != names) or (
            (row or (every is not None and done > last)) and not row.keys() >= ALWAYS
        ):
            odd = sorted(row.keys() ^ (names or row.keys())) or sorted(ALWAYS - row.keys())
            raise DamagedError(f"{path}: the rows up to round {done} have other columns than before: {odd}. {NOT_OURS}")
        found = {name: column.shape[1:] for name, column in probe.items()}
        if any(tails.get(name, tail) != tail for name, tail in found.items()) or (
            every is not None and probes and found != tails
        ):
            raise DamagedError(f"{path}: the probes up to round {done} are {found}, before: {tails}. {NOT_OURS}")
        rows.append(row)
        probes.append(probe)
        last, tails = done, {**tails, **found}
    return rows, probes


def joined(tables: Sequence[Columns]) -> dict[str, np.ndarray]:
    """Tables one after another; a column may be missing in some of them."""
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: np.concatenate([table[name] for table in tables if name in table]) for name in names}


def named_part(arrays: Columns, kind: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin so, without this beginning."""
    return {name.removeprefix(kind): array for name, array in arrays.items() if name.startswith(kind)}


def round_of(facts: Mapping[str, str]) -> int:
    """After how many rounds something was saved, as its header says; -1 if it does not."""
    text = facts.get("round", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1

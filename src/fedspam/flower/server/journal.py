"""The exchanges of the round in progress, on disk, so that a server can die in the middle of a round and resume.

A method is deterministic given the results of its exchanges. A resumed server therefore runs the round from its
beginning: exchanges that were complete return their recorded results, and their clients get no message again.
"""

import operator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedspam._internal import files

FILE = "exchanges.bin"


class Tally(NamedTuple):
    """The contacts and the cost of an exchange."""

    asked: int = 0
    replied: int = 0
    accepted: int = 0
    floats_down: int = 0
    floats_up: int = 0
    bytes_down: int = 0  # of the encoded fields, which the ledger prices
    bytes_up: int = 0
    flower_down: int = 0  # of all of Flower's records
    flower_up: int = 0
    seconds: float = 0.0

    def plus(self, other: "Tally") -> "Tally":
        return Tally._make(map(operator.add, self, other))


class JournalEntry(NamedTuple):
    """One exchange: its result, its tally, and the clients whose replies were accepted."""

    result: PyTree
    tally: Tally
    answered: tuple[int, ...]


class Journal:
    """The exchanges of one round."""

    def __init__(self, folder: Path | None, run: str) -> None:
        self._path = None if folder is None else folder / FILE  # None writes nothing
        self._run = run
        self._round, self._done, self._end = -1, 0, 0
        self._past: list[files.Frame] = []

    def load(self) -> None:
        """Read the exchanges that an earlier process wrote."""
        if self._path is None or not self._path.exists():
            return
        frames, _ = files.frames(self._path)  # an incomplete frame is of an exchange that has to be repeated
        self._past = [frame for frame in frames if frame.facts.get("run") == self._run]

    def begin(self, round: int) -> None:
        """Begin a round; recorded exchanges of other rounds are dropped."""
        self._past = [frame for frame in self._past if frame.facts.get("round") == str(round)]
        self._round, self._done, self._end = round, 0, 0

    def recall(self, label: str, structure: Any) -> JournalEntry | None:
        """The record of the next exchange, or None if it has to be done."""
        if self._done >= len(self._past):
            return None
        frame = self._past[self._done]
        if frame.facts.get("exchange") != label:
            raise files.RecordError(f"{self._path} holds exchange {frame.facts.get('exchange')!r} instead of {label!r}")
        self._done, self._end = self._done + 1, frame.end
        leaves = [jnp.array(frame.arrays[name]) for name in sorted(frame.arrays) if name.startswith("leaf")]
        *counts, seconds = frame.arrays["tally"].tolist()
        tally = Tally._make([*map(round, counts), seconds])
        return JournalEntry(jax.tree.unflatten(structure, leaves), tally, tuple(frame.arrays["answered"].tolist()))

    def note(self, label: str, entry: JournalEntry) -> None:
        """Write an exchange to disk before anything depends on it."""
        if self._path is None:
            return
        leaves = {f"leaf{number:06d}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(entry.result))}
        columns = {**leaves, "tally": np.array(entry.tally, np.float64), "answered": np.array(entry.answered, np.int64)}
        data = files.pack(columns, kind="exchange", run=self._run, round=str(self._round), exchange=label)
        self._end = files.append(self._path, data, self._end)
        self._done += 1

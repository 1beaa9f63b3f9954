"""The exchanges of the round in progress, on disk: what a server that dies in the middle of a round has already heard.

A method is deterministic given what its exchanges return. So a resumed server runs the round from its beginning, and
the exchanges that were done return what they returned then; nobody is asked again.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedspam._internal import files

FILE = "exchanges.bin"


class Tally(NamedTuple):
    """How an exchange went and what it cost."""

    asked: int = 0
    replied: int = 0
    accepted: int = 0
    floats_down: int = 0
    floats_up: int = 0
    bytes_down: int = 0  # as encoded: what the ledger prices
    bytes_up: int = 0
    flower_down: int = 0  # with all of Flower's records
    flower_up: int = 0
    seconds: float = 0.0


class JournalEntry(NamedTuple):
    """One exchange: what it returned, how it went, and whose memories it changed."""

    result: PyTree
    tally: Tally
    answered: tuple[int, ...]


class Journal:
    """The exchanges of one round, in memory and, with a folder, on disk.

    Arguments:
        folder: where; None remembers nothing.
        run: the hash of the run's identity.
    """

    def __init__(self, folder: Path | None, run: str) -> None:
        self._path = None if folder is None else folder / FILE
        self._run = run
        self._round, self._done, self._end = -1, 0, 0
        self._past: list[files.Frame] = []

    def load(self) -> None:
        """Read what an earlier process left."""
        if self._path is None or not self._path.exists():
            return
        frames, _ = files.frames(self._path)  # what is cut off was not finished: it is asked again
        self._past = [frame for frame in frames if frame.facts.get("run") == self._run]

    def begin(self, round: int) -> None:
        """The exchanges of this round follow; those of another are of no use any more."""
        self._past = [frame for frame in self._past if frame.facts.get("round") == str(round)]
        self._round, self._done, self._end = round, 0, 0

    def recall(self, label: str, structure: Any) -> JournalEntry | None:
        """What the next exchange returned when it was done, if it was."""
        if self._done >= len(self._past):
            return None
        frame = self._past[self._done]
        if frame.facts.get("exchange") != label:
            raise files.RecordError(f"{self._path} tells of exchange {frame.facts.get('exchange')}, {label} is due")
        self._done, self._end = self._done + 1, frame.end
        leaves = [jnp.array(frame.arrays[name]) for name in sorted(frame.arrays) if name.startswith("leaf")]
        counts = [frame.arrays["tally"][number].item() for number in range(len(Tally._fields))]
        tally = Tally._make([*(round(count) for count in counts[:-1]), counts[-1]])
        answered = tuple(frame.arrays["answered"].tolist())
        return JournalEntry(jax.tree.unflatten(structure, leaves), tally, answered)

    def note(self, label: str, entry: JournalEntry) -> None:
        """Have an exchange on disk before anything follows from it."""
        if self._path is None:
            return
        leaves = {f"leaf{number:06d}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(entry.result))}
        columns = {
            **leaves,
            "tally": np.array(entry.tally, np.float64),
            "answered": np.array(entry.answered, np.int64),
        }
        data = files.pack(columns, kind="exchange", run=self._run, round=str(self._round), exchange=label)
        self._end = files.append(self._path, data, self._end)
        self._done += 1

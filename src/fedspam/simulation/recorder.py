"""What a run leaves, in a simulation and over Flower: its rows in memory and, if there is a folder, all of it there."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedspam.simulation.records import RecordError, Saved, Store, joined
from fedspam.simulation.segments import Segment
from fedspam.simulation.status import Status


class RunRecorder:
    """Keeps the rows and probes of a run, and writes them with its states to a folder, if one is open."""

    def __init__(self, store: Store | None, identity: Mapping[str, Any], every: int = 1) -> None:
        self.store, self.identity, self._every = store, identity, every  # rounds between two values of the probes

    def begin(self, start: Callable[[], tuple[Any, Mapping[str, Any]]], like: Callable[[], Any], resume: bool) -> bool:
        """Whether the run goes on from the state that its folder holds, which has the shapes of `like()`.

        Else it begins from `start()`: the first state, and the first values of the probes.
        """
        found = None if self.store is None else self.store.open(self.identity, like, resume=resume)
        if found is not None:
            self.saved = found
            return True
        carry, first = start()
        self.saved = Saved(carry, 0, [], [one_line(first)])
        if self.store is not None:
            self.store.append(0, carry, {}, self.saved.probes[0])
        return False

    def check_length(self, rounds: int) -> None:
        """Refuse to end a run before the rounds that its folder holds."""
        done = self.saved.done
        if self.store is not None and done > rounds:
            raise RecordError(
                f"{self.store.folder} already holds {done} rounds, more than rounds = {rounds}; ask for at least {done}"
            )

    def add(self, segment: Segment) -> None:
        """Keep a segment, and the state after it unless the run grew beyond its bound there."""
        self.saved.rows.append(segment.rows)
        self.saved.probes.append(segment.probes)
        if not segment.kept:
            return
        self.saved = self.saved._replace(carry=segment.carry, done=segment.done)
        if self.store is not None:
            columns, probed = (segment.rows, segment.probes), segment.done % self._every == 0
            self.store.append(segment.done, segment.carry, *columns, probed=probed, seconds=segment.seconds)

    def finish(self, status: Status) -> None:
        """Note how the run ended."""
        if self.store is not None:
            self.store.finish(status)

    @property
    def tables(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """All rows and all values of the probes."""
        return joined(self.saved.rows), joined(self.saved.probes)


def one_line(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Values by name as columns with one entry."""
    return {name: np.asarray(value)[None] for name, value in values.items()}

"""A sweep on disk: the state of all its runs, saved as they advance, from which it continues to the same bits."""

import dataclasses
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedspam.simulation import records
from fedspam.simulation.engine import Setup
from fedspam.simulation.lanes import Ends
from fedspam.simulation.segments import Stopwatch

SPACING = 20  # times as long as a state took to write, until the next one is written: a twentieth of the time


@dataclass(frozen=True)
class InLanes:
    """A sweep side by side, in steps from one state of all runs to the next: a step is a turn of the lanes."""

    many: Callable[..., Any]  # `lanes.many` with its options
    setup: Setup
    counts: Any  # rounds of each method
    clock: Stopwatch

    def first(self) -> Any:
        return self.many(self.setup, self.counts, only="begin")

    def goes_on(self, state: Any) -> bool:
        return not bool(jnp.all(state.standing.ended))

    def step(self, state: Any) -> Any:
        turn = functools.partial(self.many, self.setup, self.counts, only="turns", between=state)
        return self.clock.time(lambda count: turn(turns=jnp.int32(count)), 1, "turns")

    def ends(self, state: Any) -> Ends:
        return self.many(self.setup, self.counts, only="end", between=state)


class OneByOne(InLanes):
    """One after another: a step is a run. The state is how many are done, and the ends of all: the others are blank."""

    def first(self) -> Any:
        none = self._run(0, 0, 0)
        shape = len(self.counts), len(self.setup.key)
        return jnp.int32(0), jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[0, 0], (*shape, *leaf.shape[2:])), none)

    def goes_on(self, state: Any) -> bool:
        return int(state[0]) < len(self.counts) * len(self.setup.key)

    def step(self, state: Any) -> Any:
        i, j = divmod(int(state[0]), len(self.setup.key))
        end = self.clock.time(lambda count: self._run(i, j, count), int(self.counts.max()), "run")
        return state[0] + 1, jax.tree.map(lambda all, one: all.at[i, j].set(one[0, 0]), state[1], end)

    def ends(self, state: Any) -> Ends:
        return state[1]

    def _run(self, i: int, j: int, most: int) -> Ends:
        method = jax.tree.map(lambda leaf: leaf[i : i + 1], self.setup.method)
        one = dataclasses.replace(self.setup, method=method, key=self.setup.key[j : j + 1])
        return self.many(one, jnp.minimum(self.counts[i : i + 1], most))


def kept(steps: InLanes, store: records.Store, identity: dict[str, Any], resume: bool) -> Ends:
    """Take all steps, from the state that the folder holds; save states now and then, and the last one."""
    with store:
        saved = store.open(identity, steps.first, resume=resume)
        state, done = (steps.first(), 0) if saved is None else saved[:2]
        due, written = 0.0, done if saved is not None else -1
        while steps.goes_on(state):
            state, done = steps.step(state), done + 1
            if time.monotonic() >= due:
                due, written = _saved(store, done, state), done
        if written != done:
            _saved(store, done, state)
    return steps.ends(state)


def _saved(store: records.Store, done: int, state: Any) -> float:
    """Save a state; returns when the next one is due."""
    began = time.monotonic()
    store.append(done, state, {}, {})
    return time.monotonic() + SPACING * (time.monotonic() - began)

"""One method on several populations: one compiled program, and a folder from which it continues."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, Key

from fedspam._internal import prng
from fedspam._internal.trees import Params, static, struct
from fedspam.clients import Ragged
from fedspam.methods import Method
from fedspam.simulation import Evaluation, engine, records
from fedspam.simulation.engine import Carry, Progress, Setup
from fedspam.simulation.status import COMPLETED

SEGMENT = 5  # rounds between two checkpoints

Observer = Callable[[int, Float[np.ndarray, "rounds populations"], float], None]


@struct
class Cells:
    """The runs of one row of a table: several populations, one start, one key. Build it with `Cells.of`.

    On an accelerator all of them advance together, with the clients of all in every step: one step of ten small
    clients leaves most of it idle. On a CPU they follow each other. Either way a run computes what `simulate` computes
    for its population alone.
    """

    populations: Ragged  # stacked
    start: Params
    key: Key[Array, ""]
    judge: Evaluation
    together: bool = static()
    chunk: int | None = static(default=None)  # clients side by side; None for the choice of `simulate`

    @classmethod
    def of(
        cls, populations: Sequence[Ragged], start: Params, seed: int, judge: Evaluation, *, wide: bool = False
    ) -> "Cells":
        """From populations that have the same number of clients, rows, and rows per minibatch.

        Arguments:
            wide: whether one client's step fills an accelerator, so that clients and cells follow each other.
        """
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *populations)
        together = jax.default_backend() != "cpu" and not wide
        return cls(stacked, start, prng.key_of(seed), judge, together, 1 if wide else None)

    @property
    def first(self) -> Ragged:
        """The first population."""
        return jax.tree.map(lambda leaf: leaf[0], self.populations)

    def weighted(self) -> "Cells":
        """The same cells, where the objective is the mean over rows instead of over clients."""
        return dataclasses.replace(self, populations=dataclasses.replace(self.populations, weighted=True))


def compile_all(runs: Iterable[tuple[Method[Any], Cells]]) -> None:
    """Compile several methods at once. Their runs then begin without delay."""

    def prepare(run: tuple[Method[Any], Cells]) -> None:  # zero rounds: everything is compiled and nothing runs
        jax.block_until_ready(_advance(*run, _begin(*run), jnp.int32(0), jnp.int32(0)))

    with ThreadPoolExecutor() as pool:
        list(pool.map(prepare, runs))


def run_cells(
    method: Method[Any],
    cells: Cells,
    rounds: int,
    *,
    folder: Path | None = None,
    identity: Mapping[str, Any],
    resume: bool = False,
    observe: Observer = lambda done, accuracy, seconds: None,
    until: float = math.inf,
) -> Float[np.ndarray, "rounds_and_one populations"]:
    """The accuracies before the first round and after each, of fewer rounds if the time is over.

    Arguments:
        rounds: how many.
        folder: of rows and checkpoints; None keeps nothing.
        identity: what determines the runs. A folder with another one is refused.
        resume: continue what the folder holds.
        observe: called after every segment with the rounds done, all accuracies so far, and the seconds it took.
        until: a time of `time.monotonic`; no segment begins that is expected to end later.
    """
    store_or_none = nullcontext() if folder is None else records.Store(folder)
    with store_or_none as store:
        saved = None
        if store is not None:
            saved = store.load(identity, lambda: _begin(method, cells)) if resume else None
            if saved is None:
                store.begin(identity, over=resume)
        if saved is None:
            carry = _begin(method, cells)
            done, parts = 0, [np.asarray(_judged(method, cells, carry))[None]]
            if store is not None:
                store.append(0, carry, {}, {"accuracy": parts[0]})
        else:
            carry, done, parts = saved.carry, saved.done, [probes["accuracy"] for probes in saved.probes]
        seconds = 0.0
        while done < rounds and time.monotonic() + seconds < until:
            began, count = time.perf_counter(), min(SEGMENT, rounds - done)
            end = _advance(method, cells, carry, jnp.int32(done), jnp.int32(count))
            accuracy = np.moveaxis(np.asarray(end.probes["accuracy"]), -1, 0)[:count]
            parts.append(accuracy)
            carry, done, seconds = end.carry, done + count, time.perf_counter() - began
            if store is not None:
                store.append(done, carry, {}, {"accuracy": accuracy}, seconds=seconds)
            observe(done, np.concatenate(parts), seconds)
        if store is not None and done >= rounds:
            store.finish(COMPLETED)
    return np.concatenate(parts)[: rounds + 1]


def _each(cells: Cells, run: Callable[..., Any], *more: Any) -> Any:
    """`run(population, ...)` for every population, and what else there is one of for each."""
    if cells.together:
        return jax.vmap(run)(cells.populations, *more)
    return jax.lax.map(lambda part: run(*part), (cells.populations, *more))


@jax.jit
def _begin(method: Any, cells: Cells) -> Carry:
    begin = lambda clients: Setup(method, clients, cells.start, cells.key, chunk=cells.chunk).start()
    return _each(cells, begin)[0]


@jax.jit
def _judged(method: Any, cells: Cells, carry: Carry) -> Any:
    return _each(cells, lambda _, carry: cells.judge(method.params(carry.state)), carry)["accuracy"]


@jax.jit
def _advance(method: Any, cells: Cells, carry: Carry, start: Int32[Array, ""], count: Int32[Array, ""]) -> Progress:
    def run(clients: Ragged, carry: Carry) -> Progress:
        setup = Setup(method, clients, cells.start, cells.key, probe=cells.judge, chunk=cells.chunk)
        return engine.advance(setup, carry, start, count, length=SEGMENT, every=1, record=(), careful=True)

    return _each(cells, run, carry)

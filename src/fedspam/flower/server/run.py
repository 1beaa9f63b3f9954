"""A run over Flower: start, rounds, rows and checkpoints, with the random keys and the columns of the simulator."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result
from jaxtyping import Array, Key, PyTree

from fedspam._internal import trees
from fedspam._internal.files import RecordError
from fedspam._internal.model_file import FILE, plain_names, read_model
from fedspam._internal.trees import Params
from fedspam.federation.ledger import Null
from fedspam.flower.server.handle import Flower, VoidError
from fedspam.flower.server.journal import Tally
from fedspam.flower.server.stop import FILE as STOP, StopRequestedError
from fedspam.simulation import engine
from fedspam.simulation.engine import Carry
from fedspam.simulation.recorder import RunRecorder, one_line
from fedspam.simulation.records import Store
from fedspam.simulation.segments import Segment
from fedspam.simulation.status import COMPLETED, RUNNING, Status

LOG = logging.getLogger("flwr")
Measure = Callable[[int, Params], Mapping[str, float]]
STAGE = ("run", "method", "rounds", "status", "parameters")  # what a model file says of a stage before its run
COSTS = ("floats_down", "floats_up", "bytes_down", "bytes_up", "flower_down", "flower_up")


class StoppedError(RuntimeError):
    """Too many void rounds or starts in a row: the run has ended, and can be resumed."""


class MemoryVersions(NamedTuple):
    """Per client, the exchange that left its current memory; and the number of exchanges so far."""

    versions: Any
    exchanges: Any


class RunStep(NamedTuple):
    """The parameters after `done` rounds, the row of the last round, and the metrics measured on the server."""

    done: int
    params: Params
    row: dict[str, Any]
    metrics: dict[str, Any]
    fresh: bool  # False if it was read from the folder


@dataclass(frozen=True)
class FlowerRun:
    """A method on its clients."""

    method: Any
    fed: Flower
    params: Params
    key: Key[Array, ""]
    patience: int  # void rounds in a row, or void starts, after which the run ends with an error
    identity: Mapping[str, Any]  # what determines the bits of the run
    before: list[dict[str, Any]]  # stages

    def steps(self, rounds: int, store: Store | None, resume: bool, measure: Measure) -> Iterator[RunStep]:
        """Every step of the run, the start first. A step is on disk before it is yielded."""
        recorder = RunRecorder(store, self.identity)

        def start() -> tuple[Carry, Mapping[str, float]]:
            carry = Carry(self._start(), self._memories(), jnp.int32(0))
            return carry, measure(0, self.method.params(carry.state))

        if resume and store is not None:
            self.fed.journal.load()
        with _noting(recorder):
            resumed = recorder.begin(start, self._carry, resume)
        recorder.check_length(rounds)
        carry, begun = recorder.saved.carry, recorder.saved.done
        if resumed:
            recorder.finish(RUNNING)
            LOG.info("Resuming after round %d", begun)
            self.fed.events.resumed(begun)
            if isinstance(carry.memory, MemoryVersions):
                self.fed.versions = np.array(carry.memory.versions, np.int32)
                self.fed.exchanges = int(carry.memory.exchanges)
        yield from self._past(recorder, fresh=not resumed)
        for done in range(begun + 1, rounds + 1):
            LOG.info("")
            LOG.info("[ROUND %s/%s]", done, rounds)
            with _noting(recorder):
                carry, row = self._round(carry, done - 1)
            params = self.method.params(carry.state)
            metrics = dict(measure(done, params))
            recorder.add(Segment(carry, one_line(row), one_line(metrics), done))
            yield RunStep(done, params, row, metrics, fresh=True)
        recorder.finish(COMPLETED)

    def _start(self) -> PyTree:
        self.fed.nodes.save()
        last = None
        for attempt in range(self.patience):
            self.fed.begin(-1, attempt)
            try:
                state = self.method.init(self.params, engine.start_key(self.key, attempt), self.fed)
            except VoidError as error:
                LOG.warning("\t> the start is void: %s", error)
                self.fed.undo()
                last = error
                continue
            return _cast(state, jax.eval_shape(self._carry).state)
        raise StoppedError(f"the method could not start in {self.patience} attempts; {last}")

    def _round(self, carry: Carry, number: int) -> tuple[Carry, dict[str, Any]]:
        self.fed.begin(number)
        try:
            state, info = self.method.round(carry.state, jax.random.fold_in(self.key, number), self.fed)
            state = _cast(state, carry.state)
            if not engine.healthy(state):
                raise VoidError("the new state holds NaN or infinity, although all replies are finite")
        except VoidError as error:
            streak = int(carry.void_streak) + 1
            LOG.warning("\t> round %d is void: %s", number + 1, error)
            if streak >= self.patience:
                text = f"{streak} rounds in a row are void, the last is round {number + 1}: {error}"
                raise StoppedError(text) from None
            self.fed.undo()
            return Carry(carry.state, self._memories(), jnp.int32(streak)), self._row(None)
        return Carry(state, self._memories(), jnp.int32(0)), self._row(info)

    def _row(self, info: Any) -> dict[str, Any]:
        """The row of a round with the columns of the simulator; what the method reports is NaN if it is void (None)."""
        void = info is None
        if void:
            like = jax.eval_shape(lambda: self.method.round(self._carry().state, self.key, self._null())[1])
            info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) * jnp.nan, like)
        row: dict[str, Any] = dict(zip(trees.names(info), map(np.asarray, jax.tree.leaves(info)), strict=True))
        tallies = {
            exchange.label: self.fed.tallies.get(exchange.label, Tally()) for exchange in self.fed.schema.plan.round
        }
        for label, tally in tallies.items():
            for name in ("asked", "replied", "accepted"):
                row[f"{label}.{name}"] = np.int32(getattr(tally, name))
            row[f"{label}.seconds"] = np.float64(tally.seconds)
        row |= {name: np.int64(sum(getattr(tally, name) for tally in tallies.values())) for name in COSTS}
        return {**row, "seconds": np.float64(sum(tally.seconds for tally in tallies.values())), "void": np.bool_(void)}

    def _carry(self) -> Carry:
        """The carry of a start without clients; only its shapes mean anything."""
        return Carry(self.method.init(self.params, self.key, self._null()), self._memories(), jnp.int32(0))

    def _null(self) -> Null:
        return Null(self.fed.population, memory=self.method.client_state(self.params))

    def _memories(self) -> PyTree:
        if not jax.tree.leaves(self.method.client_state(self.params)):
            return ()
        return MemoryVersions(jnp.asarray(self.fed.versions, jnp.int32), jnp.int32(self.fed.exchanges))

    def _past(self, recorder: RunRecorder, fresh: bool) -> Iterator[RunStep]:
        rows, metrics = recorder.tables
        params, rounds = self.method.params(recorder.saved.carry.state), recorder.saved.done
        for done in range(rounds + 1):
            row = {name: column[done - 1] for name, column in rows.items()} if done else {}
            measured = {name: column[done] for name, column in metrics.items() if len(column) == rounds + 1}
            yield RunStep(done, params, row, measured, fresh)


@contextmanager
def _noting(recorder: RunRecorder) -> Iterator[None]:
    """Note in the folder why a run has stopped."""
    try:
        yield
    except (StoppedError, StopRequestedError) as error:
        recorder.finish(status_of(error))
        raise


def model_of(folder: str | Path, like: Params) -> tuple[Params, list[dict[str, Any]]]:
    """The parameters of a run folder in the structure of `like`, and its stages: those before it, and itself.

    A run folder holds one method from its first round to its last, so that it can be resumed to the same bits. A run
    that goes on from its model with another method or other settings is a new stage, in a new folder.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        remedy = f"let that run end, or stop it: touch {Path(folder) / STOP}"
        raise RecordError(f"after = {str(folder)!r}: there is no {path}; {remedy}")
    arrays, facts = read_model(path)
    names, leaves = plain_names(like), jax.tree.leaves(like)
    kinds = {name: (np.shape(leaf), np.asarray(leaf).dtype) for name, leaf in zip(names, leaves, strict=True)}
    found = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    wrong = next((name for name in sorted(kinds.keys() | found.keys()) if kinds.get(name) != found.get(name)), None)
    if wrong is not None:
        raise ValueError(
            f"after = {str(folder)!r} holds {wrong} as {found.get(wrong)}, and this run has {kinds.get(wrong)}; only "
            "the method and its settings may change from stage to stage"
        )
    params = jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(arrays[name]) for name in names])
    before = facts.get("stages")
    itself = {name: facts.get(name) for name in STAGE}
    return params, [*(before if isinstance(before, list) else []), itself]


def status_of(error: StoppedError | StopRequestedError) -> Status:
    """How a run ended that this error has stopped."""
    return Status("interrupted" if isinstance(error, StopRequestedError) else "stopped", str(error))


def _cast(state: PyTree, like: PyTree) -> PyTree:
    """The state in fixed dtypes, so that a state from a checkpoint computes the same; random keys stay as they are."""
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda leaf, due: leaf if is_key(due) else jnp.asarray(leaf, due.dtype), state, like)


def report(step: RunStep, result: Result, packed: ArrayRecord, trained: Mapping[str, Any]) -> None:
    """Put a step, its packed parameters and the means of clients' metrics into Flower's result; log it if it is new."""
    result.arrays = packed
    if step.metrics:
        result.evaluate_metrics_serverapp[step.done] = MetricRecord(_plain(step.metrics))
        if step.fresh:
            LOG.info("\t└──> Global evaluation: %s", result.evaluate_metrics_serverapp[step.done])
    if step.done:
        result.train_metrics_clientapp[step.done] = MetricRecord({**_plain(step.row), **trained})
    if step.fresh and step.done:
        numbers = (step.row[name] for name in ("seconds", "bytes_down", "bytes_up", "flower_down", "flower_up"))
        LOG.info("\t└──> %.3f s in exchanges | %d B down, %d B up (with Flower's records: %d, %d)", *numbers)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Python's numbers, because Flower's records take no others."""
    return {name: int(value) if np.asarray(value).dtype.kind in "iub" else float(value) for name, value in row.items()}

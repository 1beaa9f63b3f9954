"""The course of a run over Flower: start, rounds, rows, checkpoints; with the keys and the rows of the simulator."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from fedspam._internal import trees
from fedspam._internal.trees import Params
from fedspam.federation.ledger import Null, Plan
from fedspam.flower.server.handle import Flower, VoidError
from fedspam.flower.server.journal import Journal, Tally
from fedspam.flower.wire.schema import Nodes
from fedspam.simulation import engine, records
from fedspam.simulation.engine import Carry

LOG = logging.getLogger("flwr")
Look = Callable[[int, Params], Mapping[str, float]]
COSTS = ("floats_down", "floats_up", "bytes_down", "bytes_up", "flower_down", "flower_up")


class Memories(NamedTuple):
    """What the server knows of its clients' memories: which exchange left them; and how many exchanges there were."""

    versions: Any
    exchanges: Any


class Step(NamedTuple):
    """The parameters after so many rounds, the row of the last, and what was looked at."""

    done: int
    params: Params
    row: dict[str, Any]
    seen: dict[str, Any]
    fresh: bool  # or told by the folder


@dataclass(frozen=True)
class Course:
    """A method, its clients, and how far it may go wrong.

    Arguments:
        algorithm: the method.
        fed: the handle on its clients.
        clients: their number.
        plan: what the method sends.
        params: where it starts.
        key: the randomness.
        patience: void rounds in a row, or void starts, after which the run ends with an error.
    """

    algorithm: Any
    fed: Flower
    clients: Nodes
    plan: Plan
    params: Params
    key: Key[Array, ""]
    patience: int

    def run(
        self,
        rounds: int,
        store: records.Store | None,
        journal: Journal,
        identity: Mapping[str, Any],
        resume: bool,
        look: Look,
    ) -> Iterator[Step]:
        """Each state in turn, the start first. It is on disk before it is told."""
        saved = None
        if store is not None:
            if resume:
                saved = store.load(identity, like=self._blank)
                journal.load()
            if saved is None:
                store.begin(identity, over=resume)
        if saved is None:
            carry = Carry(self._start(), self._memories(), jnp.int32(0))
            seen = look(0, self.algorithm.params(carry.state))
            if store is not None:
                store.append(0, carry, {}, _columns(seen))
            saved = records.Saved(carry, 0, [], [])
            yield Step(0, self.algorithm.params(carry.state), {}, dict(seen), fresh=True)
        else:
            LOG.info("Resuming after round %d", saved.done)
            yield from self._past(saved)
        carry, done = saved.carry, saved.done
        if done > rounds:
            raise records.RecordError(f"the folder holds {done} rounds already; ask for at least as many, not {rounds}")
        if isinstance(carry.memory, Memories):
            self.fed.versions = np.array(carry.memory.versions, np.int32)
            self.fed.exchanges = int(carry.memory.exchanges)
        while done < rounds:
            LOG.info("")
            LOG.info("[ROUND %s/%s]", done + 1, rounds)
            carry, row = self._round(carry, done)
            done += 1
            params = self.algorithm.params(carry.state)
            seen = look(done, params)
            if store is not None:
                store.append(done, carry, _columns(row), _columns(seen))
            yield Step(done, params, row, dict(seen), fresh=True)
        if store is not None:
            store.finish("completed")

    def _start(self) -> PyTree:
        trouble = None
        for attempt in range(self.patience):
            self.fed.start(attempt)
            try:
                state = self.algorithm.init(self.params, engine.start_key(self.key, attempt), self.fed)
            except VoidError as error:
                LOG.warning("\t> the start is void: %s", error)
                self.fed.undo()
                trouble = error
                continue
            return _cast(state, self._blank().state)
        raise RuntimeError(f"the method could not start in {self.patience} attempts; {trouble}")

    def _round(self, carry: Carry, number: int) -> tuple[Carry, dict[str, Any]]:
        self.fed.begin(number)
        try:
            state, info = self.algorithm.round(carry.state, jax.random.fold_in(self.key, number), self.fed)
            state = _cast(state, carry.state)
            if not bool(engine.healthy(state)):
                raise VoidError("the replies are finite, the state they lead to is not")
        except VoidError as error:
            streak = int(carry.void_streak) + 1
            LOG.warning("\t> round %d is void: %s", number + 1, error)
            if streak >= self.patience:
                raise RuntimeError(
                    f"{streak} rounds in a row are void, the last of them {number + 1}: {error}"
                ) from None
            self.fed.undo()
            return Carry(carry.state, self._memories(), jnp.int32(streak)), self._row(None, void=True)
        return Carry(state, self._memories(), jnp.int32(0)), self._row(info, void=False)

    def _row(self, info: Any, void: bool) -> dict[str, Any]:
        """One round's record under the simulator's names; what the method says of a void round is not known."""
        blank = info is None
        if blank:
            info = self._info()
        named: dict[str, Any] = {
            name: np.asarray(jnp.zeros(leaf.shape, leaf.dtype) * jnp.nan if blank else leaf)
            for name, leaf in zip(trees.names(info), jax.tree.leaves(info), strict=True)
        }
        tallies = {exchange.label: self.fed.tallies.get(exchange.label, Tally()) for exchange in self.plan.round}
        for label, tally in tallies.items():
            for name in ("asked", "replied", "accepted"):
                named[f"{label}.{name}"] = np.int32(getattr(tally, name))
            named[f"{label}.seconds"] = np.float64(tally.seconds)
        named |= {name: np.int64(sum(getattr(tally, name) for tally in tallies.values())) for name in COSTS}
        return {
            **named,
            "seconds": np.float64(sum(tally.seconds for tally in tallies.values())),
            "void": np.bool_(void),
        }

    def _info(self) -> Any:
        memory = self.algorithm.client_state(self.params)
        one = lambda state: self.algorithm.round(state, self.key, Null(self.clients, memory=memory))[1]
        return jax.eval_shape(one, self._blank().state)

    def _blank(self) -> Carry:
        """A carry of the right shapes."""
        memory = self.algorithm.client_state(self.params)
        start = lambda params: self.algorithm.init(params, self.key, Null(self.clients, memory=memory))
        state = jax.tree.map(_zeros, jax.eval_shape(start, self.params))
        return Carry(state, self._memories(), jnp.int32(0))

    def _memories(self) -> PyTree:
        if not jax.tree.leaves(self.algorithm.client_state(self.params)):
            return ()
        return Memories(jnp.asarray(self.fed.versions, jnp.int32), jnp.int32(self.fed.exchanges))

    def _past(self, saved: records.Saved) -> Iterator[Step]:
        rows, probes = (_joined(tables) for tables in (saved.rows, saved.probes))
        params = self.algorithm.params(saved.carry.state)
        for done in range(saved.done + 1):
            row = {name: column[done - 1] for name, column in rows.items()} if done else {}
            seen = {name: column[done] for name, column in probes.items() if len(column) == saved.done + 1}
            yield Step(done, params, row, seen, fresh=False)


def _cast(state: PyTree, like: PyTree) -> PyTree:
    """In fixed dtypes, so that what a checkpoint gives back computes the same."""
    return jax.tree.map(lambda leaf, due: jnp.asarray(leaf, due.dtype) if not _is_key(due) else leaf, state, like)


def _zeros(leaf: Any) -> Any:
    return jax.random.key(0) if _is_key(leaf) else jnp.zeros(leaf.shape, leaf.dtype)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _columns(row: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value)[None] for name, value in row.items()}


def _joined(tables: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: np.concatenate([table[name] for table in tables if name in table]) for name in names}

"""Run a method on a population inside compiled code: one trace, any number of rounds, seeds and step sizes."""

import functools
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Key, PyTree

from fedspam import _check, _tree, ledger, records
from fedspam._tree import Params
from fedspam.federation import Contacts, Faults, Replay
from fedspam.population import Population
from fedspam.traced import Traced

Probe = Callable[[Params], Any]
STARTS = 10  # attempts at a start that faults make void
SEGMENT = 1000  # rounds between two looks from outside: rows are appended, a checkpoint is written


@dataclass(frozen=True)
class World:
    """How a simulation treats its clients; part of what is compiled."""

    chunk: int | None = None
    quorum: float = 0.0
    per_client: bool = False


@dataclass(frozen=True)
class Run:
    """What a simulation left behind. For `simulate_many` every array has leading axes (algorithms, keys)."""

    params: Params
    state: Any
    memory: PyTree  # what the clients remember
    rows: Mapping[str, np.ndarray]  # one value a round: the method's info, bytes, contacts, void
    probes: Mapping[str, np.ndarray]  # one value every `every` rounds, the start first
    plan: ledger.Plan
    status: str  # 'completed' or 'stopped: ...'
    compile_seconds: float
    run_seconds: float

    @property
    def rounds(self) -> int:
        return next(iter(self.rows.values())).shape[-1]


def simulate(
    algorithm: Any,
    population: Population,
    params: Params,
    *,
    rounds: int,
    key: Key[Array, ""] | int,
    probe: Probe | None = None,
    every: int = 1,
    record: Sequence[str] | None = None,
    chunk: int | None = None,
    faults: Faults | None = None,
    replay: Replay | None = None,
    quorum: float = 0.0,
    per_client: bool = False,
    folder: str | Path | None = None,
    resume: bool = False,
    segment: int = SEGMENT,
    progress: Callable[[int], None] | None = None,
) -> Run:
    """Run `rounds` rounds of a method.

    Arguments:
        algorithm: the method.
        population: the clients it is run on.
        params: where it starts, any pytree of float arrays.
        rounds: how many rounds.
        key: the randomness: a key, or a seed.
        probe: params -> dict of numbers, looked at before the first round and after every `every` rounds. To give it
            data of its own, use ``jax.tree_util.Partial(function, data)``.
        record: names of the info to keep, such as 'certificate.decrease'; None for all, () for none.
        chunk: clients of a cohort side by side; None to choose.
        faults: what goes wrong.
        replay: ids that replace the draws: {'cohort': [rounds, B], 'prox': [rounds]}; duplicates are allowed.
        quorum: the share of a cohort whose replies must count, or the round is void: charged, and without effect.
        per_client: look at each reply alone even where the mean client would do.
        folder: where rows and checkpoints go; None keeps them in memory alone.
        resume: continue the run of that folder.
        segment: rounds between checkpoints.
        progress: called with the number of rounds done, from time to time.
    """
    _check.whole("rounds", rounds, 1)
    _check.whole("every", every, 1)
    _check.between("quorum", quorum, 0, 1)
    if chunk is not None:
        _check.whole("chunk", chunk, 1)
    params = _check.params("params", params)
    key = jax.random.key(key) if isinstance(key, int) else key
    probe = _as_argument(probe)
    world = World(chunk, quorum, per_client)
    _check_replay(replay, rounds, population)
    plan = ledger.plan(algorithm, params, population, faults=faults, per_client=per_client)

    length = max(every, segment // every * every)
    watch = _Stopwatch()
    store = records.Store(folder) if folder is not None else None
    carry, done, rows, probes, identity = None, 0, [], [], {}
    if store is not None:
        identity = records.identity(
            algorithm, population, params, key, world=world, faults=faults, every=every, record=record
        )
    if store is not None and resume:
        carry, done, rows, probes = store.load(
            identity, like=lambda: _begin(algorithm, population, params, key, faults, world)
        )
    if carry is None:
        if store is not None:
            store.begin(identity)
        carry = _start(algorithm, population, params, key, faults, world)
        probes = [_numpy(_look(algorithm, carry, probe), axis=True)]
        if store is not None:
            store.start(probes[0])

    status = "completed"
    while done < rounds:
        count = min(length, rounds - done)
        advance = functools.partial(_advance, world=world, length=length, every=every, record=record)
        around = (faults, replay, probe)
        carry, info, seen = watch.time(
            lambda count: advance(algorithm, population, carry, key, jnp.int32(done), jnp.int32(count), *around), count
        )
        rows.append(_numpy(jax.tree.map(lambda leaf: leaf[:count], info)))
        probes.append(_numpy(jax.tree.map(lambda leaf: leaf[: count // every], seen)))
        done += count
        if store is not None:
            store.append(done, carry, rows[-1], probes[-1])
        if progress is not None:
            progress(done)
        if count > 1 and rows[-1]["void"].all() and faults is None:
            status = f"stopped: no usable reply since round {done - count}; the parameters before it are kept"
            break

    joined = {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}
    seen = {name: np.concatenate([part[name] for part in probes]) for name in probes[0]}
    final, priced = _finish(algorithm, carry), _priced(plan, joined, done)
    state, memory = carry
    return Run(final, state, memory, priced, seen, plan, status, watch.compile_seconds, watch.run_seconds)


def simulate_many(
    algorithms: Any,
    population: Population,
    params: Params,
    *,
    rounds: int,
    keys: Key[Array, " seeds"] | Sequence[int],
    probe: Probe | None = None,
    every: int = 1,
    record: Sequence[str] | None = None,
    chunk: int | None = None,
    faults: Faults | None = None,
    side_by_side: bool | None = None,
) -> Run:
    """Every method with every key, in one compiled call; the arrays of the result lead with (algorithms, keys).

    Arguments:
        algorithms: one method, or several that differ in numbers only (step sizes, momenta, ...).
        keys: keys or seeds.
        side_by_side: all runs under ``vmap``, or one after another. By default side by side, unless a coin decides
            which exchanges a round has: under ``vmap`` both outcomes would be paid for.

    The other arguments are those of `simulate`.
    """
    _check.whole("rounds", rounds, 1)
    params = _check.params("params", params)
    algorithms = list(algorithms) if isinstance(algorithms, Sequence) else [algorithms]
    structures = {jax.tree.structure(algorithm) for algorithm in algorithms}
    if len(structures) != 1:
        raise ValueError("the algorithms differ in more than numbers; run those of one structure together")
    probe = _as_argument(probe)
    keys = jax.vmap(jax.random.key)(jnp.asarray(keys)) if isinstance(keys, Sequence | range) else keys
    plan = ledger.plan(algorithms[0], params, population, faults=faults)
    side_by_side = not plan.branches if side_by_side is None else side_by_side
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *algorithms)

    watch = _Stopwatch()
    count = rounds // every * every
    many = functools.partial(
        _many, world=World(chunk), length=count, every=every, record=record, side_by_side=side_by_side
    )
    final, (state, memory), info, seen = watch.time(
        lambda count: many(stacked, population, params, keys, jnp.int32(count), faults, probe), count
    )
    rows = _priced_many(plan, _numpy(info), count)
    return Run(final, state, memory, rows, _numpy(seen), plan, "completed", watch.compile_seconds, watch.run_seconds)


# --- compiled code ---------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="world")
def _begin(
    algorithm: Any, population: Population, params: Params, key: Any, faults: Any, world: World, attempt: Any = 0
) -> Any:
    """The carry of the first round: the server's state and what the clients remember."""
    memory = algorithm.client_state(params)
    if jax.tree.leaves(memory):
        if population.size is None:
            raise ValueError("clients of this method remember, and the population is endless; use a finite one")
        memory = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (population.size, *jnp.shape(leaf))), memory)
    fed = _traced(population, world, memory, faults)
    state = algorithm.init(params, jax.random.fold_in(key, jnp.uint32(2**32 - 1) - jnp.uint32(attempt)), fed)
    return (state, fed.memory), jnp.asarray(fed.void)


@functools.partial(jax.jit, static_argnames=("world", "length", "every", "record"))
def _advance(
    algorithm: Any, population: Population, carry: Any, key: Any, start: Any, count: Any,
    faults: Any, replay: Any, probe: Any, *, world: World, length: int, every: int, record: Any,
) -> Any:  # fmt: skip
    """`count` rounds, at most `length`, and what was recorded in them, in arrays of full length."""

    # the keys of all rounds at once: cheaper than one by one inside the loop
    keys = jax.random.key_data(jax.vmap(lambda i: jax.random.fold_in(key, start + i))(jnp.arange(length)))

    def one(i: Any, carry: Any) -> Any:
        state, memory = carry
        fed = _traced(population, world, memory, faults, replay, start + i)
        round_key = jax.random.wrap_key_data(keys[i], impl=jax.random.key_impl(key))
        new_state, info = algorithm.round(state, round_key, fed)
        void = jnp.asarray(fed.void)
        carry = (_tree.where(void, state, new_state), fed.settled(memory))
        return carry, _row(info, fed.contacts, void, record)

    shapes = jax.eval_shape(one, jnp.int32(0), carry)[1]
    rows = {kind: jnp.zeros((length, len(names)), kind) for kind, names in _by_dtype(shapes).items()}
    seen = jax.eval_shape(_look, algorithm, carry, probe)
    seen = jax.tree.map(lambda leaf: jnp.zeros((length // every, *leaf.shape), leaf.dtype), seen)

    def step(i: Any, all: Any) -> Any:
        carry, rows, seen = all
        carry, row = one(i, carry)
        # one vector of numbers a dtype: many small writes would cost more than a small model's round
        row = {kind: jnp.stack([row[name] for name in names]) for kind, names in _by_dtype(shapes).items()}
        return carry, jax.tree.map(lambda table, line: table.at[i].set(line), rows, row), seen

    def block(j: Any, all: Any) -> Any:
        carry, rows, seen = lax.fori_loop(j * every, jnp.minimum((j + 1) * every, count), step, all)
        look = _look(algorithm, carry, probe)
        return carry, rows, jax.tree.map(lambda column, value: column.at[j].set(value), seen, look)

    if not jax.tree.leaves(seen):
        carry, rows, seen = lax.fori_loop(0, count, step, (carry, rows, seen))
    else:
        carry, rows, seen = lax.fori_loop(0, (count + every - 1) // every, block, (carry, rows, seen))
    columns = {name: rows[kind][:, j] for kind, names in _by_dtype(shapes).items() for j, name in enumerate(names)}
    return carry, columns, seen


@functools.partial(jax.jit, static_argnames=("world", "length", "every", "record", "side_by_side"))
def _many(
    algorithms: Any, population: Population, params: Params, keys: Any, count: Any, faults: Any, probe: Any,
    *, world: World, length: int, every: int, record: Any, side_by_side: bool,
) -> Any:  # fmt: skip
    def run(algorithm: Any, key: Any) -> Any:
        carry, _ = _begin(algorithm, population, params, key, faults, world)
        first = jax.tree.map(lambda leaf: leaf[None], _look(algorithm, carry, probe))
        carry, rows, seen = _advance(
            algorithm, population, carry, key, jnp.int32(0), count, faults, None, probe,
            world=world, length=length, every=every, record=record,
        )  # fmt: skip
        seen = jax.tree.map(lambda *parts: jnp.concatenate(parts), first, seen)
        return algorithm.params(carry[0]), carry, rows, seen

    if side_by_side:
        return jax.vmap(jax.vmap(run, (None, 0)), (0, None))(algorithms, keys)
    return lax.map(lambda algorithm: lax.map(lambda key: run(algorithm, key), keys), algorithms)


@jax.jit
def _finish(algorithm: Any, carry: Any) -> Params:
    return algorithm.params(carry[0])


def _traced(
    population: Population, world: World, memory: Any, faults: Any, replay: Any = None, round: Any = 0
) -> Traced:
    return Traced(
        population,
        round=round,
        memory=memory,
        chunk=world.chunk,
        faults=faults,
        replay=replay,
        quorum=world.quorum,
        per_client=world.per_client,
    )


def _look(algorithm: Any, carry: Any, probe: Any) -> dict[str, Any]:
    if probe is None:
        return {}
    seen = probe(algorithm.params(carry[0]))
    return dict(seen) if isinstance(seen, Mapping) else {"probe": seen}


def _by_dtype(row: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of a row's numbers by their dtype, in a fixed order."""
    kinds: dict[str, list[str]] = {}
    for name in sorted(row):
        if row[name].shape != ():
            raise ValueError(
                f"the method reports {name} with shape {row[name].shape}; report numbers, such as its norm"
            )
        kinds.setdefault(str(row[name].dtype), []).append(name)
    return kinds


def _row(info: Any, contacts: Mapping[str, Contacts], void: Any, record: Sequence[str] | None) -> dict[str, Any]:
    """One round's record: flat, by name."""
    named = dict(zip(_tree.names(info), map(jnp.asarray, jax.tree.leaves(info)), strict=True))
    if record is not None:
        unknown = sorted(set(record) - named.keys())
        if unknown:
            raise ValueError(f"record names {unknown}, which this method does not report; it reports {sorted(named)}")
        named = {name: named[name] for name in record}
    for label, counted in contacts.items():
        for name, value in counted._asdict().items():
            named[f"{label}.{name}"] = value
    return {**named, "void": void}


# --- outside ---------------------------------------------------------------------------------------------------------


def _start(algorithm: Any, population: Population, params: Params, key: Any, faults: Any, world: World) -> Any:
    """The first carry. Where faults made the start void, other clients are asked, a few times."""
    for attempt in range(STARTS):
        carry, void = _begin(algorithm, population, params, key, faults, world, jnp.uint32(attempt))
        if not bool(void):
            return carry
    raise RuntimeError(
        f"no client gave a usable reply to the start of the method in {STARTS} attempts; check that the loss is finite "
        "at the first parameters, or lower the fault rates and the quorum"
    )


class _Stopwatch:
    """Seconds spent compiling and seconds spent running, apart."""

    def __init__(self) -> None:
        self.compile_seconds = self.run_seconds = 0.0
        self._warm = False

    def time(self, advance: Callable[[int], Any], count: int) -> Any:
        if not self._warm:  # zero rounds: everything is compiled and nothing is run
            began = time.perf_counter()
            jax.block_until_ready(advance(0))
            self.compile_seconds += time.perf_counter() - began
            self._warm = True
        began = time.perf_counter()
        result = jax.block_until_ready(advance(count))
        self.run_seconds += time.perf_counter() - began
        return result


def _as_argument(probe: Probe | None) -> Any:
    """A probe that can enter compiled code: structs and Partials as they are, plain functions wrapped."""
    return jax.tree_util.Partial(probe) if isinstance(probe, types.FunctionType | types.MethodType) else probe


def _numpy(tree: Any, axis: bool = False) -> dict[str, np.ndarray]:
    return {name: np.asarray(value)[None] if axis else np.asarray(value) for name, value in tree.items()}


def _contacts(rows: Mapping[str, np.ndarray], plan: ledger.Plan) -> dict[str, Contacts]:
    return {
        exchange.label: Contacts(*(rows[f"{exchange.label}.{name}"] for name in Contacts._fields))
        for exchange in plan.round
        if exchange.dynamic
    }


def _priced(plan: ledger.Plan, rows: Mapping[str, np.ndarray], rounds: int) -> dict[str, np.ndarray]:
    return {**rows, **plan.price(_contacts(rows, plan), rounds)}


def _priced_many(plan: ledger.Plan, rows: Mapping[str, np.ndarray], rounds: int) -> dict[str, np.ndarray]:
    shape = rows["void"].shape
    flat = {name: column.reshape(-1, rounds) for name, column in rows.items()}
    prices = [
        plan.price(_contacts({n: c[i] for n, c in flat.items()}, plan), rounds) for i in range(flat["void"].shape[0])
    ]
    return {**rows, **{name: np.stack([price[name] for price in prices]).reshape(shape) for name in prices[0]}}


def _check_replay(replay: Replay | None, rounds: int, population: Population) -> None:
    for role, ids in (replay or {}).items():
        ids = np.asarray(ids)
        if ids.shape[0] < rounds:
            raise ValueError(f"replay[{role!r}] tells {ids.shape[0]} rounds, {rounds} are asked for")
        if population.size is not None and ids.size and (ids.min() < 0 or ids.max() >= population.size):
            raise ValueError(
                f"replay[{role!r}] names client {ids.max()}; the population has clients 0 to {population.size - 1}"
            )

"""Run a method on a population: segments of compiled rounds, and between them the disk, the watch and the ledger."""

import functools
import time
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from fedspam._internal import checks
from fedspam._internal.trees import Params
from fedspam.clients import Population, with_several_capacities
from fedspam.federation import Contacts, Faults, Replay, ledger
from fedspam.federation.aggregation import Rule
from fedspam.federation.witness import diagnose, diagnose_start
from fedspam.simulation import engine, records
from fedspam.simulation import stopping as watching
from fedspam.simulation.chunking import fitting_chunk
from fedspam.simulation.engine import Around, Carry, Probe, World
from fedspam.simulation.host_data import lending, segment_of
from fedspam.simulation.stopping import Target, Watch

Rows = Mapping[str, np.ndarray]

STARTS = 10  # attempts at a start that faults make void
SEGMENT = 1000  # rounds between two looks from outside: rows are appended, a checkpoint is written


@dataclass(frozen=True)
class Run:
    """What a simulation left behind. For `simulate_many` every array has leading axes (algorithms, keys)."""

    params: Params
    state: Any
    memory: PyTree  # what the clients remember
    rows: Mapping[str, np.ndarray]  # one value a round: the method's info, bytes, contacts, void
    probes: Mapping[str, np.ndarray]  # one value every `every` rounds, the start first
    plan: ledger.Plan
    status: str  # 'completed', 'reached: ...' or 'stopped: ...'
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
    chunk: int | Literal["fit"] | None = None,
    faults: Faults | None = None,
    replay: Replay | None = None,
    quorum: float = 0.0,
    per_client: bool = False,
    aggregate: Rule | None = None,
    devices: Sequence[Any] | None = None,
    watch: Watch | None = None,
    until: Target | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    segment: int = SEGMENT,
    keep: records.Keep | None = None,
    progress: Callable[[int], None] | None = None,
    observe: Callable[[int, Rows, Rows], None] | None = None,
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
        chunk: clients of a cohort side by side; None to choose by what is fast, 'fit' for as many as memory holds.
        faults: what goes wrong.
        replay: ids that replace the draws: {'cohort': [rounds, B], 'prox': [rounds]}; duplicates are allowed.
        quorum: the share of a cohort whose replies must count, or the round is void: charged, and without effect.
        per_client: look at each reply alone even where the mean client would do.
        aggregate: a rule of `fedspam.federation.aggregation` instead of the mean over several clients.
        devices: those that every cohort is spread over, such as jax.devices(), other hosts' among them; None for one.
        watch: when a run that diverges is stopped; its parameters are then the last good ones.
        until: what is enough: the run ends where a probe is seen to have reached it, as "reached: ...".
        folder: where rows and checkpoints go; None keeps them in memory alone.
        resume: continue the run of that folder, to the bits of a run that was never interrupted.
        segment: rounds between checkpoints; it changes no result.
        keep: which checkpoints stay in the folder.
        progress: called with the number of rounds done, from time to time.
        observe: called then as well, with the rounds done and the rows and probes since the last call.
    """
    checks.whole("rounds", rounds, 1)
    checks.whole("every", every, 1)
    checks.whole("segment", segment, 1)
    checks.between("quorum", quorum, 0, 1)
    if chunk is not None and chunk != "fit":
        checks.whole("chunk", chunk, 1)
    if resume and folder is None:
        raise ValueError("resume = True needs the folder of the run")
    params = checks.params("params", params)
    key = jax.random.key(key) if isinstance(key, int) else key
    watch = watch or Watch()
    chunk = fitting_chunk(algorithm, population, params) if chunk == "fit" else chunk
    world = World(chunk, quorum, per_client, engine.mesh_of(devices))
    algorithm, population, params = engine.everywhere(world.mesh, (algorithm, population, params))
    key = engine.everywhere(world.mesh, key)
    around = Around(faults, replay, _as_argument(probe), aggregate)
    _check_replay(replay, rounds, population)
    plan = ledger.plan(algorithm, params, population, faults=faults, per_client=per_client or aggregate is not None)
    begin = lambda attempt=0: engine.begin(algorithm, population, params, key, around, world, jnp.uint32(attempt))

    length = max(every, segment_of(population, segment) // every * every)
    clock = _Stopwatch()
    store_or_none = records.Store(folder, keep) if folder is not None else nullcontext()
    with store_or_none as store, lending(algorithm, population, key, around, world, length, rounds) as lend:
        saved = None
        if store is not None:
            options = {"world": world.as_recorded, "faults": faults, "replay": replay, "probe": probe}
            options |= {"aggregate": aggregate, "watch": watch, "every": every, "record": record}
            identity = records.identity(algorithm, population, params, key, **options)
            if resume:
                saved = store.load(identity, like=lambda: begin()[0])
            if saved is None:
                store.begin(identity, over=resume)
        if saved is None:
            carry = _start(begin, algorithm, population, params, key, around)
            saved = records.Saved(carry, 0, [], [_numpy(engine.look(algorithm, carry, around.probe), axis=True)])
            if store is not None:
                store.append(0, carry, {}, saved.probes[0])
        carry, done, rows, probes = saved
        if done > rounds:
            raise records.RecordError(f"{folder} holds {done} rounds already; ask for at least as many, not {rounds}")
        around = Around(faults, replay, around.probe, aggregate, watching.bounds(watch, until, probes, params))

        enough = lambda: until.reached(probes) if until is not None and done else None
        status = enough() or _void_status(algorithm, population, carry, key, around, watch, rows, done)
        while done < rounds and status is None:
            # after a rest that is no multiple of `every`, first to the next one
            count = min(length, rounds - done, every - done % every if done % every else length)
            clients = lend(carry, done, count)
            advance = lambda count, careful=False: engine.advance(
                algorithm, clients, carry, key, jnp.int32(done), jnp.int32(count), around,
                world=world, length=length, every=every, record=record, careful=careful,
            )  # fmt: skip
            end = clock.time(advance, count)
            if not bool(engine.healthy(end.carry.state)):
                end = advance(count, careful=True)
            went = int(end.done)
            looks = (done + went) // every - done // every
            row = _priced(plan, _numpy(jax.tree.map(lambda leaf: leaf[:went], end.rows)), went)
            rows.append(row)
            probes.append(_numpy(jax.tree.map(lambda leaf: leaf[:looks], end.seen)))
            reached = until is not None and bool(until.reached(probes))
            if bool(end.beyond) and int(end.carry.streak) < watch.patience and not reached:
                # what led here is in the run; on disk stays the state before it
                status = watching.growth_status(
                    watch, around.bounds, end.carry, algorithm, probes[-1], done + went, done
                )
                break
            carry, done = end.carry, done + went
            if store is not None:
                store.append(done, carry, row, probes[-1], probed=done % every == 0, seconds=clock.last)
            if progress is not None:
                progress(done)
            if observe is not None:
                observe(done, row, probes[-1])
            status = enough() or _void_status(algorithm, population, carry, key, around, watch, rows, done)
        status = status or "completed"
        if store is not None:
            store.finish(status)

    rows = [part for part in rows if part]
    joined = {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}
    seen = {name: np.concatenate([part[name] for part in probes]) for name in probes[0]}
    final = engine.finish(algorithm, carry)
    return Run(final, carry.state, carry.memory, joined, seen, plan, status, clock.compile_seconds, clock.run_seconds)


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
    quorum: float = 0.0,
    aggregate: Rule | None = None,
    side_by_side: bool | None = None,
) -> Run:
    """Every method with every key, in one compiled call; the arrays of the result lead with (algorithms, keys).

    Arguments:
        algorithms: one method, or several that differ in numbers only (step sizes, fresh_weights, ...).
        keys: keys or seeds.
        side_by_side: all runs under ``vmap``, or one after another. By default side by side, unless a coin decides
            which exchanges a round has, or clients differ much in size: under ``vmap`` all outcomes would be paid for.

    The other arguments are those of `simulate`.
    """
    checks.whole("rounds", rounds, 1)
    checks.between("quorum", quorum, 0, 1)
    params = checks.params("params", params)
    algorithms = list(algorithms) if isinstance(algorithms, Sequence) else [algorithms]
    if not algorithms:
        raise ValueError("algorithms = [] is empty; give at least one method")
    structures = {jax.tree.structure(algorithm) for algorithm in algorithms}
    if len(structures) != 1:
        raise ValueError("the algorithms differ in more than numbers; run those of one structure together")
    keys = jax.vmap(jax.random.key)(jnp.asarray(keys)) if isinstance(keys, Sequence | range) else keys
    plan = ledger.plan(algorithms[0], params, population, faults=faults, per_client=aggregate is not None)
    if side_by_side is None:
        side_by_side = not plan.branches and with_several_capacities(population) is None
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *algorithms)
    which = jnp.arange(len(algorithms))

    clock = _Stopwatch()
    count = rounds // every * every
    around = Around(faults, None, _as_argument(probe), aggregate)
    many = functools.partial(
        engine.many, world=World(chunk, quorum), length=count, every=every, record=record, side_by_side=side_by_side
    )
    final, carry, info, seen = clock.time(
        lambda count: many(stacked, which, population, params, keys, jnp.int32(count), around),
        count,
    )
    rows = _priced_many(plan, _numpy(info), count)
    seconds = (clock.compile_seconds, clock.run_seconds)
    return Run(final, carry.state, carry.memory, rows, _numpy(seen), plan, "completed", *seconds)


def restore(
    algorithm: Any, population: Population, params: Params, folder: str | Path, *, best: bool = False
) -> tuple[Params, int]:
    """The last parameters that a run folder holds, or the best ones, and after how many rounds they were reached."""
    blank = lambda: engine.begin(algorithm, population, params, jax.random.key(0), Around(), World())[0]
    carry, done = records.Store(folder).peek(jax.eval_shape(blank), best)
    return engine.finish(algorithm, carry), done


def _start(
    begin: Callable[[int], tuple[Carry, Any]],
    algorithm: Any,
    population: Population,
    params: Params,
    key: Any,
    around: Around,
) -> Carry:
    """The first carry. Where faults made the start void, other clients are asked, a few times."""
    carry, void = begin(0)
    for attempt in range(1, STARTS):
        if not bool(void):
            return carry
        carry, void = begin(attempt)
    start_key = engine.start_key(key, 0)
    found = diagnose_start(algorithm, population, params, carry.memory, start_key, aggregate=around.aggregate)
    raise RuntimeError(
        f"no client gave a usable reply to the start of the method in {STARTS} attempts"
        + (f" ({found[0]})" if found else "")
        + "; check that the loss is finite at the first parameters, or lower the fault rates and the quorum"
    )


def _void_status(
    algorithm: Any,
    population: Population,
    carry: Carry,
    key: Any,
    around: Around,
    watch: Watch,
    rows: list[dict[str, np.ndarray]],
    done: int,
) -> str | None:
    """How a run stopped in which nothing has counted for too long: the round, the exchange and the client."""
    if int(carry.streak) < watch.patience:
        return None
    void = np.concatenate([part["void"] for part in rows if part])
    first = done - int(np.argmin(np.append(void[::-1], False)))  # the void rounds at the end begin here
    for round in range(first, done):
        found = diagnose(
            algorithm, population, carry.state, carry.memory, key,
            round=round, replay=around.replay, aggregate=around.aggregate,
        )  # fmt: skip
        if found:
            others = f" (and {len(found) - 1} more clients)" if len(found) > 1 else ""
            return (
                f"stopped: round {round}, {found[0]}{others}; no round has counted since, up to round {done - 1}. "
                f"The state before round {first} is kept"
            )
    return f"stopped: no round from {first} to {done - 1} counted; the state before them is kept"


class _Stopwatch:
    """Seconds spent compiling and seconds spent running, apart."""

    def __init__(self) -> None:
        self.compile_seconds = self.run_seconds = self.last = 0.0
        self._warm = False

    def time(self, advance: Callable[[int], Any], count: int) -> Any:
        if not self._warm:  # zero rounds: everything is compiled and nothing is run
            began = time.perf_counter()
            jax.block_until_ready(advance(0))
            self.compile_seconds += time.perf_counter() - began
            self._warm = True
        began = time.perf_counter()
        result = jax.block_until_ready(advance(count))
        self.last = time.perf_counter() - began
        self.run_seconds += self.last
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

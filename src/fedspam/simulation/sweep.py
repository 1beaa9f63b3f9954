"""Run many settings and seeds of a method in one compiled call."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Key

from fedspam._internal import checks, prng, trees
from fedspam._internal.trees import Params
from fedspam.clients import Faults, Population, with_several_capacities
from fedspam.federation import fitted
from fedspam.federation.aggregation import Rule
from fedspam.federation.codecs import Codecs, CodecsLike
from fedspam.federation.downlink import own_state, with_feedback
from fedspam.simulation import engine, lanes as in_lanes, records, stopping
from fedspam.simulation.engine import Probe, Setup
from fedspam.simulation.lanes import Ends
from fedspam.simulation.run import Run, recorded
from fedspam.simulation.segments import Stopwatch, counted, priced, shared, warn_of_replies
from fedspam.simulation.status import COMPLETED, Status
from fedspam.simulation.stopping import Patience, Target, Watch
from fedspam.simulation.sweep_folder import InLanes, OneByOne, kept

if TYPE_CHECKING:
    from fedspam.methods import Method

LANES = 40  # methods that advance together on a CPU; with more of them, each takes hardly less time


def simulate_many(
    methods: "Method[Any] | Sequence[Method[Any]]",
    population: Population,
    params: Params,
    *,
    rounds: int | Sequence[int],
    keys: Key[Array, " seeds"] | Sequence[int],
    probe: Probe | None = None,
    every: int = 1,
    record: Sequence[str] | None = None,
    until: Target | None = None,
    watch: Watch | None = None,
    chunk: int | None = None,
    faults: Faults | None = None,
    quorum: float = 0.0,
    aggregate: Rule | None = None,
    codecs: Codecs | CodecsLike | None = None,
    side_by_side: bool | None = None,
    lanes: int | None = None,
    devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]
    folder: str | Path | None = None,
    resume: bool = False,
) -> Run:
    """Run every method with every key in one compiled call. Arrays of the result lead with (methods, keys).

    Arguments:
        methods: one method, or several that differ in numbers only (step sizes, fresh weights, ...).
        rounds: how many; or how many for each method, so that those with fewer end before the others.
        keys: keys or seeds.
        until: a run ends once a probe has reached this `Target`.
        watch: when a diverging run ends. None lets it go on.
        side_by_side: whether all runs advance together under ``vmap``, or one after another. By default together,
            unless a coin decides which exchanges a round has, or clients differ much in size: ``vmap`` would then pay
            for all outcomes.
        lanes: how many methods advance together side by side, each with all keys, if `until`, `watch` or `rounds` may
            end some early. One whose runs have all ended leaves its lane to another one. None for 40 on a CPU, and for
            all methods elsewhere.
        devices: the devices of this process that share the runs, such as jax.devices(); None for one. Every run stays
            on one of them. One after another, runs have the bits of one device; side by side they may differ in the
            last ones, because the compiler vectorizes other numbers of runs.
        folder: where the runs are saved as they advance: side by side some twenty times in the rounds of a run, in
            lanes; one after another after each run. For one device.
        resume: continue the sweep of that folder, to the bits of one that was never interrupted.

    The other arguments are those of `simulate`. The rounds that a run has done are in `rounds_done`. Up to there its
    rows and probes are what they are without an early end, and parameters and state are those after its last round.
    In the rounds that it did not do, rows and probes are NaN, or 0 and False where they are whole numbers or flags:
    no client was asked, and nothing was sent.
    """
    checks.whole("every", every, 1)
    checks.between("quorum", quorum, 0, 1)
    if lanes is not None:
        checks.whole("lanes", lanes, 1)
    if resume and folder is None:
        raise ValueError("resume = True needs the folder of the sweep")
    if folder is not None and devices is not None:
        raise ValueError("a sweep with a folder runs on one device; leave devices out, or give each some methods")
    if isinstance(until, Patience):
        raise ValueError(f"until = {until} ends a run of `simulate`; those of a sweep end with a Target, or a Watch")
    methods = [fitted(method, population) for method in (methods if isinstance(methods, Sequence) else [methods])]
    each, keys, names = _rounds_of(methods, rounds), prng.keys_of(keys), recorded(record)
    params, mesh, most = checks.params("params", params), engine.mesh_of(devices, population), max(each)
    if mesh is not None and any(device.process_index != jax.process_index() for device in mesh.devices.flat):
        raise ValueError("devices has some of other hosts, which cannot share a sweep; give jax.local_devices()")
    setup, plan = engine.prepared(
        methods[0], population, params, keys, probe=probe, codecs=codecs, faults=faults, quorum=quorum,
        aggregate=aggregate, chunk=chunk, bounds=stopping.bounds(watch, until, params),
    )  # fmt: skip
    methods = [with_feedback(method, setup.codecs, plan) for method in methods]
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *methods)
    setup = dataclasses.replace(setup, method=stacked, mesh=None)
    setup, counts = engine.everywhere(mesh, (setup, jnp.asarray(each, jnp.int32)))
    stopping.check_probes(watch, until, {} if probe is None else jax.eval_shape(setup.probe_of, params))
    if side_by_side is None:
        side_by_side = not plan.branches and with_several_capacities(population) is None
    if watch is None and until is None and min(each) == most and folder is None:
        lanes = None
    elif lanes is None:
        lanes = LANES if jax.default_backend() == "cpu" else len(methods)

    clock = Stopwatch()
    many = functools.partial(
        in_lanes.many, length=most, every=every, record=names, side_by_side=side_by_side, lanes=lanes, mesh=mesh
    )
    run = lambda setup, counts: clock.time(
        lambda count: many(setup, jnp.minimum(counts, count)), most, f"per_client = {setup.per_client}"
    )
    store = None if folder is None else records.Store(folder)
    if store is None:
        ends = run(setup, counts)
    else:
        options = {"rounds": each, "probe": probe, "until": until, "watch": watch, "evaluated": every}
        options |= {"record": names, "codecs": setup.codecs}
        options |= {"side_by_side": side_by_side, "lanes": lanes if side_by_side else None}
        steps = (InLanes if side_by_side else OneByOne)(many, setup, counts, clock)
        ends = kept(steps, store, setup.identity(methods, options), resume)
    ends = ends._replace(rows=counted(plan, engine.columns(ends.rows)))
    if shared((*plan.start, *plan.round)):
        alone = dataclasses.replace(setup, per_client=True)
        spoiled = _spoiled(ends, alone)
        if spoiled.any():
            which = np.flatnonzero(spoiled.any(1)), np.flatnonzero(spoiled.any(0))
            some, rounds_of = jax.tree.map(lambda leaf: leaf[which[0]], (alone.method, counts))
            again = run(dataclasses.replace(alone, method=some, key=alone.key[which[1]]), rounds_of)
            ends = _replaced(ends, again._replace(rows=engine.columns(again.rows)), spoiled, which)

    done = np.asarray(ends.done)
    rows = priced(plan, ends.rows)
    probes = jax.tree.map(np.asarray, dict(ends.probes))
    if lanes is not None:
        rows = {name: _until(done, column, 1 + np.arange(most)) for name, column in rows.items()}
        probes = {name: _until(done, seen, every * np.arange(seen.shape[2])) for name, seen in probes.items()}
    all_void = rows["void"].sum(axis=-1) == done
    warn_of_replies(plan, rows, rows["void"] & ~all_void[..., None], faults, stacklevel=3)
    status = _status(ends, watch, until, np.array(each)[:, None], all_void)
    if store is not None:
        with store:
            store.finish(status)
    seconds = (clock.compile_seconds, clock.run_seconds)
    parts = (ends.params, own_state(ends.carry.state), ends.carry.memory, rows, probes, plan, status, *seconds)
    return Run(*parts, done, every)


def _rounds_of(methods: Sequence[Any], rounds: int | Sequence[int]) -> list[int]:
    """The rounds of each method, checked with the methods."""
    if not methods:
        raise ValueError("methods = [] is empty; give at least one method")
    each = list(rounds) if isinstance(rounds, Sequence) else [rounds] * len(methods)
    for number in each:
        checks.whole("rounds", number, 1)
    if len(each) != len(methods):
        raise ValueError(f"rounds has {len(each)} numbers for {len(methods)} methods; give one number, or one for each")
    if len({jax.tree.structure(method) for method in methods}) != 1:
        raise ValueError("the methods differ in more than numbers; run those of one structure together")
    return each


def _spoiled(ends: Ends, alone: Setup) -> np.ndarray:
    """Which runs a reply that is not finite has spoiled on the mean client, and would not with every client alone.

    After its first void round a run that has diverged has void rounds only, whoever is left out.
    """
    rounds = np.arange(ends.rows["void"].shape[-1])
    done = np.asarray(ends.done)[..., None]
    void = ends.rows["void"] & (rounds < done)
    first = np.argmax(void, axis=-1)
    to_the_end = np.all(void | (rounds < first[..., None]) | (rounds >= done), axis=-1)
    spoiled, doubtful = void.any(-1) & ~to_the_end, np.nonzero(void.any(-1) & to_the_end)
    if len(doubtful[0]):
        methods, keys = jax.tree.map(lambda leaf: leaf[doubtful[0]], alone.method), alone.key[doubtful[1]]
        some = dataclasses.replace(alone, method=methods, key=keys)
        carries = jax.tree.map(lambda leaf: leaf[doubtful], ends.carry)
        spoiled[doubtful] = np.asarray(_valid_alone(some, carries, jnp.asarray(first[doubtful])))
    return spoiled


@jax.jit
def _valid_alone(setup: Setup, carries: Any, rounds: Any) -> Any:
    """Whether each round, from the state before it, is valid with every client alone."""

    def valid(run: Any) -> Any:
        method, key, carry, round = run
        one = dataclasses.replace(setup, method=method, key=key)
        carry = trees.where(round == 0, one.start()[0], carry)
        _, row = one.round(carry, round, jax.random.fold_in(key, round), (), careful=True)
        return ~row["void"]

    return lax.map(valid, (setup.method, setup.key, carries, rounds))


def _replaced(ends: Ends, again: Ends, spoiled: np.ndarray, which: tuple[np.ndarray, np.ndarray]) -> Ends:
    """The ends with those of spoiled runs replaced; `again` are the runs of these methods and keys."""
    into, out = np.nonzero(spoiled), np.nonzero(spoiled[np.ix_(*which)])

    def put(all: Any, some: Any) -> Any:
        if isinstance(all, np.ndarray):
            all = all.copy()
            all[into] = some[out]
            return all
        return all.at[into].set(some[out])

    return jax.tree.map(put, ends, again._replace(rows={name: again.rows[name] for name in ends.rows}))


def _until(done: np.ndarray, values: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The values after rounds that were done; NaN, 0 or False in place of the others."""
    nothing = np.nan if np.issubdtype(values.dtype, np.inexact) else 0
    ran = (after <= done[..., None]).reshape(*done.shape, len(after), *[1] * (values.ndim - 3))
    return np.where(ran, values, np.asarray(nothing, values.dtype))


def _status(ends: Ends, watch: Watch | None, until: Target | None, rounds: np.ndarray, all_void: np.ndarray) -> Status:
    """How the runs ended: completed, or how many did not do all rounds, and why."""
    done = np.asarray(ends.done)
    early = done < rounds
    reached = np.zeros_like(early) if until is None else np.asarray(ends.streak) >= until.evaluations
    void = np.zeros_like(early) if watch is None else np.asarray(ends.carry.void_streak) >= watch.patience
    stopped = early & ~reached & ~all_void
    why = {
        "all rounds were void": all_void,
        f"{watch and watch.patience} rounds in a row were void": stopped & void,
        f"{(watch and watch.probe) or '‖x‖'} grew to {(watch and watch.growth) or 0:g} times its first value": stopped
        & ~void,
        f"{until and until.probe} is {until and until.words}": reached,
    }
    told = [f"in {cases.sum()} of {done.size} runs {what}" for what, cases in why.items() if cases.any()]
    if not told:
        return COMPLETED
    return Status("stopped" if (all_void | stopped).any() else "reached", ", ".join(told))

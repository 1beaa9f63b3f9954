"""Run many settings and seeds of a method in one compiled call."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from fedspam._internal import checks, prng
from fedspam._internal.trees import Params
from fedspam.clients import Faults, Population, with_several_capacities
from fedspam.federation import fitted, ledger
from fedspam.federation.aggregation import Rule
from fedspam.federation.codecs import Codecs, CodecsLike
from fedspam.federation.downlink import own_state, with_feedback
from fedspam.simulation import engine
from fedspam.simulation.engine import Conditions, Layout, Probe
from fedspam.simulation.run import Run, Stopwatch, as_argument, priced, warn_of_void

if TYPE_CHECKING:
    from fedspam.methods import Algorithm


def simulate_many(
    algorithms: "Algorithm[Any] | Sequence[Algorithm[Any]]",
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
    codecs: Codecs | CodecsLike | None = None,
    side_by_side: bool | None = None,
    devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]
) -> Run:
    """Run every method with every key in one compiled call. Arrays of the result lead with (algorithms, keys).

    Arguments:
        algorithms: one method, or several that differ in numbers only (step sizes, fresh weights, ...).
        keys: keys or seeds.
        side_by_side: whether all runs advance together under ``vmap``, or one after another. By default together,
            unless a coin decides which exchanges a round has, or clients differ much in size: ``vmap`` would then pay
            for all outcomes.
        devices: the devices of this process that share the runs, such as jax.devices(); None for one. Every run stays
            on one of them. One after another, runs have the bits of one device; side by side they may differ in the
            last ones, because the compiler vectorizes other numbers of runs.

    The other arguments are those of `simulate`.
    """
    checks.whole("rounds", rounds, 1)
    checks.whole("every", every, 1)
    checks.between("quorum", quorum, 0, 1)
    params = checks.params("params", params)
    algorithms = list(algorithms) if isinstance(algorithms, Sequence) else [algorithms]
    algorithms = [fitted(algorithm, population) for algorithm in algorithms]
    if not algorithms:
        raise ValueError("algorithms = [] is empty; give at least one method")
    if len({jax.tree.structure(algorithm) for algorithm in algorithms}) != 1:
        raise ValueError("the algorithms differ in more than numbers; run those of one structure together")
    keys = prng.keys_of(keys)
    coded, alone = Codecs.of(codecs), aggregate is not None
    plan = ledger.plan(algorithms[0], params, population, faults=faults, per_client=alone, codecs=coded)
    algorithms = [with_feedback(algorithm, coded, plan) for algorithm in algorithms]
    if side_by_side is None:
        side_by_side = not plan.branches and with_several_capacities(population) is None
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *algorithms)
    which, mesh = jnp.arange(len(algorithms)), engine.mesh_of(devices)
    if mesh is not None and any(device.process_index != jax.process_index() for device in mesh.devices.flat):
        raise ValueError("devices has some of other hosts, which cannot share a sweep; give jax.local_devices()")
    stacked, which, population, params, keys = engine.everywhere(mesh, (stacked, which, population, params, keys))

    clock = Stopwatch()
    conditions = Conditions(faults, None, as_argument(probe), aggregate, codecs=coded)
    many = functools.partial(
        engine.many, layout=Layout(chunk, quorum), length=rounds, every=every,
        record=None if record is None else tuple(record), side_by_side=side_by_side, mesh=mesh,
    )  # fmt: skip
    final, carry, tables, probes = clock.time(
        lambda count: many(stacked, which, population, params, keys, jnp.int32(count), conditions), rounds
    )
    rows = engine.columns(tables)
    flat = {name: column.reshape(-1, rounds) for name, column in rows.items()}
    each = [priced(plan, {name: flat[name][i] for name in flat}, rounds) for i in range(flat["void"].shape[0])]
    rows = {name: np.stack([one[name] for one in each]).reshape(rows["void"].shape) for name in each[0]}
    all_void = np.all(rows["void"], axis=-1, keepdims=True)
    warn_of_void(rows["void"] & ~all_void, faults, "aggregate=fedspam.federation.aggregation.Mean()")
    lost = int(all_void.sum())
    runs = len(each)
    status = f"stopped: in {lost} of {runs} runs all rounds were void" if lost else "completed"
    seconds = (clock.compile_seconds, clock.run_seconds)
    return Run(
        final,
        own_state(carry.state),
        carry.memory,
        rows,
        jax.tree.map(np.asarray, dict(probes)),
        plan,
        status,
        *seconds,
    )

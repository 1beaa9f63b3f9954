"""The compiled part of a simulation: one trace serves any number of rounds, seeds and step sizes."""

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as Spread
from jaxtyping import PyTree

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params, static, struct
from fedspam.clients import PlacedPopulation, Population
from fedspam.clients.sharded import AXIS
from fedspam.federation import fitted, ledger
from fedspam.federation.codecs import NO_CODECS, Codecs, CodecsLike
from fedspam.federation.downlink import with_feedback
from fedspam.federation.traced import Traced
from fedspam.simulation import records

Probe = Callable[[Params], Any]
T = TypeVar("T")


class Carry(NamedTuple):
    """What one round hands to the next. A checkpoint holds exactly this."""

    state: Any  # of the server
    memory: PyTree  # of the clients
    void_streak: Any  # void rounds since the last valid one; rounds that only faults made void do not count


@struct
class Bounds:
    """When a run stops early: many void rounds in a row, a norm or probe beyond its bound, or a goal reached."""

    void_streak: Any = None
    norm: Any = None
    probe: Any = None
    goal: Any = None
    evaluations: Any = None  # how many in a row must reach the goal
    streak: Any = None  # how many did when the rounds begin
    name: str | None = static(default=None)  # of the bounded probe
    goal_name: str | None = static(default=None)  # of the probe with the goal
    rising: bool = static(default=True)  # whether the goal is reached from below

    def exceeded(self, carry: Carry, method: Any) -> Any:
        """Whether a run ends after a round: too many void ones, or parameters beyond their bound."""
        ended = jnp.array(False)
        if self.void_streak is not None:
            ended |= carry.void_streak >= self.void_streak
        if self.norm is not None:
            ended |= ~(trees.norm(method.params(carry.state)) <= self.norm)
        return ended

    def judged(self, values: Mapping[str, Any], streak: Any) -> tuple[Any, Any]:
        """Whether a run ends after an evaluation, and how many in a row have reached the goal."""
        ended = jnp.array(False)
        if self.name is not None:
            ended |= ~(values[self.name] <= self.probe)
        if self.goal_name is not None:
            last = values[self.goal_name]
            streak = jnp.where(last >= self.goal if self.rising else last <= self.goal, streak + 1, 0)
            ended |= streak >= self.evaluations
        return ended, streak


@struct
class RowTable:
    """Columns of one dtype, side by side: a compiled program with a kernel for each of them takes longer to make."""

    values: Any  # [..., rounds, columns]
    names: tuple[str, ...] = static()


class Progress(NamedTuple):
    """The state of the compiled loop: rounds done, the carry, tables of rows and probes, and whether to stop."""

    done: Any
    carry: Carry
    rows: Any
    probes: Any
    stopped: Any
    streak: Any  # evaluations in a row that reached the goal


@struct
class Setup:
    """A method on its clients, and all that its rounds depend on. `prepared` makes it.

    In a sweep, `method` holds the numbers of all methods and `key` the keys of all runs.
    """

    method: Any
    population: Population
    params: Params
    key: Any
    faults: Any = None
    replay: Any = None
    probe: Any = None
    aggregate: Any = None
    codecs: Codecs = NO_CODECS
    bounds: Bounds = Bounds()
    chunk: int | None = static(default=None)
    quorum: float = static(default=0.0)
    per_client: bool = static(default=False)
    mesh: Mesh | None = static(default=None)

    def identity(self, method: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        """What determines the bits of a run of this method as the user gave it, with further options.

        Devices are left out, so that a run can resume on others.
        """
        layout = {"chunk": self.chunk, "quorum": self.quorum, "per_client": self.per_client}
        own = {"layout": layout, "faults": self.faults, "replay": self.replay, "aggregate": self.aggregate}
        return records.identity(method, self.population, self.params, self.key, **own, **options)

    def start(self, attempt: Any = 0) -> tuple[Carry, Any]:
        """The carry of the first round, and whether too few clients replied."""
        memory = self.method.client_state(self.params)
        if self.codecs.has_feedback:
            plan = ledger.plan(self.method, self.params, self.population, codecs=self.codecs)
            memory = self.codecs.memory(memory, plan)
        if jax.tree.leaves(memory):
            if (size := self.population.size) is None:
                raise ValueError("this method's clients keep a memory, and the population is endless; use a finite one")
            memory = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))), memory)
        fed = self.fed(memory)
        state = self.method.init(self.params, start_key(self.key, attempt), fed)
        # no weak types: the compiler must see the same types when a checkpoint is restored
        carry = jax.tree.map(_strong, Carry(state, fed.memory, jnp.int32(0)))
        return carry, jnp.asarray(fed.void)

    def round(
        self, carry: Carry, number: Any, key: Any, record: Any, *, careful: bool = False, ended: Any = None
    ) -> tuple[Carry, dict[str, Any]]:
        """One round: the next carry, and the row.

        A void round leaves state and memory unchanged. A run that has `ended` changes nothing.
        """
        fed = self.fed(carry.memory, number)
        state, info = self.method.round(carry.state, key, fed)
        void, broken = jnp.asarray(fed.void), True if self.faults is None else fed.broken
        if careful:
            failed = ~_finite(state)
            void, broken = void | failed, broken | failed
        void_streak = jnp.where(void, carry.void_streak + jnp.asarray(broken, jnp.int32), 0)
        kept = void
        if ended is not None:
            void_streak, kept = jnp.where(ended, carry.void_streak, void_streak), void | ended
        carry = Carry(trees.where(kept, carry.state, state), fed.settled(carry.memory, kept), void_streak)
        return carry, _row(info, fed, void, record)

    def probes(self, carry: Carry) -> dict[str, Any]:
        """The values of the probe at the current parameters."""
        return {} if self.probe is None else self.probe_of(self.method.params(carry.state))

    def probe_of(self, params: Params) -> dict[str, Any]:
        """The values of the probe by name; one without a name is 'probe'."""
        values = self.probe(params)
        return dict(values) if isinstance(values, Mapping) else {"probe": values}

    def fed(self, memory: PyTree, round: Any = 0) -> Traced:
        """The handle of a round."""
        return Traced(
            self.population, round=round, memory=memory, chunk=self.chunk, faults=self.faults, replay=self.replay,
            quorum=self.quorum, per_client=self.per_client, aggregate=self.aggregate, codecs=self.codecs,
            mesh=self.mesh,
        )  # fmt: skip


def prepared(
    method: Any, population: Population, params: Params, key: Any, *, probe: Probe | None = None,
    codecs: Codecs | CodecsLike | None = None, devices: Sequence[Any] | None = None, **options: Any,
) -> tuple[Setup, ledger.Plan]:  # fmt: skip
    """The setup of a run, with its numbers on all devices, and what the method sends. Options are its other fields."""
    params, method, mesh = checks.params("params", params), fitted(method, population), mesh_of(devices, population)
    coded, placed = Codecs.of(codecs), everywhere(mesh, (method, population, params, key))
    # plain functions cannot enter compiled code; structs and Partials do as they are
    probe = jax.tree_util.Partial(probe) if isinstance(probe, types.FunctionType | types.MethodType) else probe
    setup = Setup(*placed, probe=probe, codecs=coded, mesh=mesh, **options)
    alone = setup.per_client or setup.aggregate is not None
    plan = ledger.plan(setup.method, params, population, faults=setup.faults, per_client=alone, codecs=coded)
    return dataclasses.replace(setup, method=with_feedback(setup.method, coded, plan)), plan


def begin(setup: Setup, attempt: Any = 0) -> tuple[Carry, Any]:
    """`Setup.start`, compiled. It runs once, so it is compiled fast rather than well."""
    return _program_that_runs_once()(setup, jnp.uint32(attempt))


@functools.cache
def _program_that_runs_once() -> Any:
    program = functools.partial(jax.jit, Setup.start)
    if jax.default_backend() != "cpu":
        return program()
    options = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
    try:
        jax.jit(lambda: jnp.zeros(()), compiler_options=options)()
    except jax.errors.JaxRuntimeError:  # another version of XLA, with other options
        return program()
    return program(compiler_options=options)


@functools.partial(jax.jit, static_argnames=("length", "every", "record", "careful"))
def advance(
    setup: Setup, carry: Carry, start: Any, count: Any, *, length: int, every: int, record: Any, careful: bool = False
) -> Progress:
    """Run `count` rounds, at most `length`. Rows (see `columns`) and probes come back in arrays of full length.

    With `careful`, a round whose replies are finite but whose state is not becomes void as well. Checking the state in
    every round would nearly double the time of a small model. So the caller checks it once after a segment, and runs
    the segment again with care if it is not finite.
    """
    key, bounds = setup.key, setup.bounds
    # the keys of all rounds at once: cheaper than one by one inside the loop
    keys = jax.random.key_data(jax.vmap(lambda i: jax.random.fold_in(key, start + i))(jnp.arange(length)))

    @functools.partial(jax.jit, inline=True)  # so that it is traced once, for the shapes and for the loop
    def one(i: Any, carry: Carry) -> Any:
        round_key = jax.random.wrap_key_data(keys[i], impl=jax.random.key_impl(key))
        return setup.round(carry, start + i, round_key, record, careful=careful)

    shapes = jax.eval_shape(one, jnp.int32(0), carry)[1]
    rows = row_tables(shapes, (length,))
    probes = jax.eval_shape(setup.probes, carry)
    probes = jax.tree.map(lambda leaf: jnp.zeros((length // every, *leaf.shape), leaf.dtype), probes)

    def step(now: Progress) -> Progress:
        carry, row = one(now.done, now.carry)
        rows, stopped = written(now.rows, now.done, row), now.stopped | bounds.exceeded(carry, setup.method)
        return Progress(now.done + 1, carry, rows, now.probes, stopped, now.streak)

    def rounds(now: Progress, until: Any) -> Progress:
        return lax.while_loop(lambda now: (now.done < until) & ~now.stopped, step, now)

    def block(now: Progress) -> Progress:
        slot = now.done // every
        now = rounds(now, jnp.minimum((slot + 1) * every, count))
        values = setup.probes(now.carry)
        ended, streak = bounds.judged(values, now.streak)
        due = (start + now.done) % every == 0
        stopped, streak = now.stopped | (ended & due), jnp.where(due, streak, now.streak)
        probes = jax.tree.map(lambda column, value: column.at[slot].set(value), now.probes, values)
        return now._replace(probes=probes, stopped=stopped, streak=streak)

    streak = jnp.int32(0) if bounds.streak is None else bounds.streak
    now = Progress(jnp.int32(0), carry, rows, probes, jnp.array(False), streak)
    if not jax.tree.leaves(probes) or length < every:  # no evaluation falls into so few rounds
        return rounds(now, count)
    return lax.while_loop(lambda now: (now.done < count) & ~now.stopped, block, now)


@jax.jit
def finish(method: Any, carry: Carry) -> Params:
    return method.params(carry.state)


def healthy(state: Any) -> bool:
    """Whether no number of the state is NaN or infinite."""
    if jax.default_backend() != "cpu":
        return bool(_finite(state))
    floats = (leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in floats)  # in NumPy there is nothing to compile


@jax.jit
def _finite(state: Any) -> Any:
    floats = [leaf for leaf in map(jnp.asarray, jax.tree.leaves(state)) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in floats]).all()


def row_tables(row: Mapping[str, Any], shape: tuple[int, ...]) -> list[RowTable]:
    """Empty tables for rows like this one, one for each dtype, in a fixed order."""
    kinds: dict[str, tuple[str, ...]] = {}
    for name in sorted(row):
        if row[name].shape != ():
            raise ValueError(f"the method reports {name} of shape {row[name].shape}; report numbers, such as its norm")
        kind = str(row[name].dtype)
        kinds[kind] = (*kinds.get(kind, ()), name)
    return [RowTable(jnp.zeros((*shape, len(names)), kind), names) for kind, names in kinds.items()]


def written(tables: Sequence[RowTable], i: Any, row: Mapping[str, Any]) -> list[RowTable]:
    """The tables with their i-th row. One vector per dtype: many small writes would cost more than a small round."""
    lines = [jnp.stack([row[name] for name in table.names], axis=-1) for table in tables]
    return [RowTable(t.values.at[i].set(line), t.names) for t, line in zip(tables, lines, strict=True)]


def columns(rows: Sequence[RowTable]) -> dict[str, np.ndarray]:
    """The columns of the tables, by name."""
    read = [(np.asarray(table.values), table.names) for table in rows]
    return {name: values[..., j] for values, names in read for j, name in enumerate(names)}


def start_key(key: Any, attempt: Any) -> Any:
    """The key of `init`. No round uses it."""
    return jax.random.fold_in(key, jnp.uint32(2**32 - 1) - jnp.uint32(attempt))


def mesh_of(devices: Sequence[Any] | None, population: Any = None) -> Mesh | None:
    """A one-dimensional mesh of the devices; cohorts are spread along its axis."""
    if isinstance(population, PlacedPopulation):
        if devices is not None and list(devices) != list(population.mesh.devices.flat):
            raise ValueError("devices differ from those that hold the rows of the clients; leave devices out")
        return population.mesh
    if devices is None:
        return None
    if not devices:
        raise ValueError("devices = [] is empty; give some of jax.devices(), or None for one device")
    if isinstance(devices, str) or not all(isinstance(device, jax.Device) for device in devices):
        raise ValueError(f"devices = {devices!r} must be a list of devices, such as jax.devices()")
    return Mesh(np.array(devices), (AXIS,))


def everywhere(mesh: Mesh | None, tree: T) -> T:
    """Replicate arrays on every device of the mesh, including those of other hosts. Without a mesh, do nothing."""
    if mesh is None:
        return tree
    same = NamedSharding(mesh, Spread())

    def put(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and getattr(leaf.sharding, "mesh", None) == mesh:
            return leaf  # in its place already, such as the rows of a `Sharded` population
        if not isinstance(leaf, jax.Array) or same.is_fully_addressable:
            return jax.device_put(leaf, same) if isinstance(leaf, jax.Array) else leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        value = np.asarray(leaf)  # every host holds all of it and fills its own devices
        return jax.make_array_from_callback(value.shape, same, lambda index: value[index])

    return jax.tree.map(put, tree)


def _strong(leaf: Any) -> Any:
    leaf = jnp.asarray(leaf)
    return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else lax.convert_element_type(leaf, leaf.dtype)


def _row(info: Any, fed: Traced, void: Any, record: Sequence[str] | None) -> dict[str, Any]:
    """The record of one round: numbers by name."""
    named = dict(zip(trees.names(info), map(jnp.asarray, jax.tree.leaves(info)), strict=True))
    # a method that does not wait for its slowest client says itself how long its round took
    seconds = named.get("seconds", fed.seconds)
    if record is not None:
        unknown = sorted(set(record) - named.keys())
        if unknown:
            raise ValueError(f"record names {unknown}, which this method does not report; it reports {sorted(named)}")
        named = {name: named[name] for name in record}
    for label, counted in fed.contacts.items():
        for name, value in counted._asdict().items():
            named[f"{label}.{name}"] = value
    timed = {} if seconds is None else {"seconds": jnp.asarray(seconds, jnp.result_type(float))}
    return {**named, **timed, "void": void}

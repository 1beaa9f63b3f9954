"""The rounds of a simulation as compiled code: one trace for any number of rounds, seeds and step sizes."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spread
from jaxtyping import PyTree

from fedspam._internal import trees
from fedspam._internal.trees import Params, static, struct
from fedspam.clients import Population
from fedspam.federation import Contacts
from fedspam.federation.traced import AXIS, Traced

Probe = Callable[[Params], Any]
T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """How a simulation treats its clients; part of what is compiled."""

    chunk: int | None = None
    quorum: float = 0.0
    per_client: bool = False
    mesh: Mesh | None = None

    @property
    def as_recorded(self) -> dict[str, Any]:
        """What belongs to a run's identity: not the devices, so that it can be resumed on others."""
        return {"chunk": self.chunk, "quorum": self.quorum, "per_client": self.per_client}


class Carry(NamedTuple):
    """What one round hands to the next: all that a checkpoint has to hold."""

    state: Any  # of the server
    memory: PyTree  # what the clients remember
    streak: Any  # void rounds since the last that counted, those that faults alone made void left out


@struct
class Bounds:
    """Where a run ends early: after so many void rounds in a row, beyond a norm or a probe, or at a goal."""

    streak: Any = None
    norm: Any = None
    probe: Any = None
    goal: Any = None
    name: str | None = static(default=None)  # of the probe
    goal_name: str | None = static(default=None)  # of the probe that has a goal,
    rising: bool = static(default=True)  # which it reaches from below


@struct
class Around:
    """What happens around a method: what goes wrong, who is asked, what is watched."""

    faults: Any = None
    replay: Any = None
    probe: Any = None
    aggregate: Any = None
    bounds: Bounds = Bounds()


class Progress(NamedTuple):
    """Where a segment stands: rounds done, the carry, tables of rows and probes, and whether a bound was passed."""

    done: Any
    carry: Carry
    rows: Any
    seen: Any
    beyond: Any


@functools.partial(jax.jit, static_argnames="world")
def begin(
    algorithm: Any, population: Population, params: Params, key: Any, around: Around, world: World, attempt: Any = 0
) -> tuple[Carry, Any]:
    """What the first round starts from, and whether the start is void."""
    memory = algorithm.client_state(params)
    if jax.tree.leaves(memory):
        if population.size is None:
            raise ValueError("clients of this method remember, and the population is endless; use a finite one")
        memory = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (population.size, *jnp.shape(leaf))), memory)
    fed = traced(population, world, memory, around)
    state = algorithm.init(params, start_key(key, attempt), fed)
    # no weak types: what a checkpoint gives back must be the same to the compiler
    carry = jax.tree.map(_strong, Carry(state, fed.memory, jnp.int32(0)))
    return carry, jnp.asarray(fed.void) | ~healthy(state)


@functools.partial(jax.jit, static_argnames=("world", "length", "every", "record", "careful"))
def advance(
    algorithm: Any, population: Population, carry: Carry, key: Any, start: Any, count: Any, around: Around,
    *, world: World, length: int, every: int, record: Any, careful: bool = False,
) -> Progress:  # fmt: skip
    """`count` rounds, at most `length`, and what was recorded in them, in arrays of full length.

    `careful` also makes a round void whose replies are all finite and whose state is not. As such a state ends all
    progress, it is enough to look at it after a segment, and to repeat that with care: looking at it in every round
    would nearly double the time of a small model's.
    """
    bounds = around.bounds

    # the keys of all rounds at once: cheaper than one by one inside the loop
    keys = jax.random.key_data(jax.vmap(lambda i: jax.random.fold_in(key, start + i))(jnp.arange(length)))

    def one(i: Any, carry: Carry) -> Any:
        fed = traced(population, world, carry.memory, around, start + i)
        round_key = jax.random.wrap_key_data(keys[i], impl=jax.random.key_impl(key))
        state, info = algorithm.round(carry.state, round_key, fed)
        void, broken = jnp.asarray(fed.void), True if around.faults is None else fed.broken
        if careful:
            failed = ~healthy(state)
            void, broken = void | failed, broken | failed
        streak = jnp.where(void, carry.streak + jnp.asarray(broken, jnp.int32), 0)
        carry = Carry(trees.where(void, carry.state, state), fed.settled(carry.memory, void), streak)
        return carry, _row(info, fed.contacts, void, record)

    shapes = jax.eval_shape(one, jnp.int32(0), carry)[1]
    rows = {kind: jnp.zeros((length, len(names)), kind) for kind, names in _by_dtype(shapes).items()}
    seen = jax.eval_shape(look, algorithm, carry, around.probe)
    seen = jax.tree.map(lambda leaf: jnp.zeros((length // every, *leaf.shape), leaf.dtype), seen)

    def step(now: Progress) -> Progress:
        carry, row = one(now.done, now.carry)
        # one vector of numbers a dtype: many small writes would cost more than a small model's round
        row = {kind: jnp.stack([row[name] for name in names]) for kind, names in _by_dtype(shapes).items()}
        rows = jax.tree.map(lambda table, line: table.at[now.done].set(line), now.rows, row)
        beyond = now.beyond
        if bounds.streak is not None:
            beyond |= carry.streak >= bounds.streak
        if bounds.norm is not None:
            beyond |= ~(trees.norm(algorithm.params(carry.state)) <= bounds.norm)
        return Progress(now.done + 1, carry, rows, now.seen, beyond)

    def rounds(now: Progress, until: Any) -> Progress:
        return lax.while_loop(lambda now: (now.done < until) & ~now.beyond, step, now)

    def block(now: Progress) -> Progress:
        slot = now.done // every
        now = rounds(now, jnp.minimum((slot + 1) * every, count))
        values, beyond = look(algorithm, now.carry, around.probe), now.beyond
        if bounds.name is not None:
            beyond |= ~(values[bounds.name] <= bounds.probe) & ((start + now.done) % every == 0)
        if bounds.goal_name is not None:
            last = values[bounds.goal_name]
            met = last >= bounds.goal if bounds.rising else last <= bounds.goal
            beyond |= met & ((start + now.done) % every == 0)
        seen = jax.tree.map(lambda column, value: column.at[slot].set(value), now.seen, values)
        return now._replace(seen=seen, beyond=beyond)

    now = Progress(jnp.int32(0), carry, rows, seen, jnp.array(False))
    if not jax.tree.leaves(seen):
        now = rounds(now, count)
    else:
        now = lax.while_loop(lambda now: (now.done < count) & ~now.beyond, block, now)
    named = _by_dtype(shapes).items()
    columns = {name: now.rows[kind][:, j] for kind, names in named for j, name in enumerate(names)}
    return now._replace(rows=columns)


@functools.partial(jax.jit, static_argnames=("world", "length", "every", "record", "side_by_side"))
def many(
    algorithms: Any, which: Any, population: Population, params: Params, keys: Any, count: Any, around: Around,
    *, world: World, length: int, every: int, record: Any, side_by_side: bool,
) -> tuple[Params, Carry, Any, Any]:  # fmt: skip
    """Every algorithm with every key: the last parameters and carry, the rows, and the probes, the start first.

    `which` numbers the algorithms: those without a number in them could not be counted otherwise.
    """

    def run(algorithm: Any, key: Any) -> tuple[Params, Carry, Any, Any]:
        carry, _ = begin(algorithm, population, params, key, around, world)
        first = jax.tree.map(lambda leaf: leaf[None], look(algorithm, carry, around.probe))
        end = advance(
            algorithm, population, carry, key, jnp.int32(0), count, around,
            world=world, length=length, every=every, record=record,
        )  # fmt: skip
        seen = jax.tree.map(lambda *parts: jnp.concatenate(parts), first, end.seen)
        return algorithm.params(end.carry.state), end.carry, end.rows, seen

    if side_by_side:
        with_keys = jax.vmap(run, (None, 0))
        return jax.vmap(lambda algorithm, which: with_keys(algorithm, keys))(algorithms, which)
    return lax.map(lambda each: lax.map(lambda key: run(each[0], key), keys), (algorithms, which))


@jax.jit
def finish(algorithm: Any, carry: Carry) -> Params:
    return algorithm.params(carry.state)


@jax.jit
def healthy(state: Any) -> Any:
    """Whether no number of the state is NaN or infinite."""
    floats = [leaf for leaf in map(jnp.asarray, jax.tree.leaves(state)) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in floats]).all()


def look(algorithm: Any, carry: Carry, probe: Any) -> dict[str, Any]:
    """What the probe says of the parameters."""
    if probe is None:
        return {}
    seen = probe(algorithm.params(carry.state))
    return dict(seen) if isinstance(seen, Mapping) else {"probe": seen}


def start_key(key: Any, attempt: Any) -> Any:
    """The key of the start: none of those of the rounds."""
    return jax.random.fold_in(key, jnp.uint32(2**32 - 1) - jnp.uint32(attempt))


def traced(population: Population, world: World, memory: PyTree, around: Around, round: Any = 0) -> Traced:
    return Traced(
        population,
        round=round,
        memory=memory,
        chunk=world.chunk,
        faults=around.faults,
        replay=around.replay,
        quorum=world.quorum,
        per_client=world.per_client,
        aggregate=around.aggregate,
        mesh=world.mesh,
    )


def mesh_of(devices: Sequence[Any] | None) -> Mesh | None:
    """The devices in a row, along the axis over which cohorts are spread."""
    if devices is None:
        return None
    if not devices:
        raise ValueError("devices = [] is empty; give some of jax.devices(), or None for one device")
    return Mesh(np.array(devices), (AXIS,))


def everywhere(mesh: Mesh | None, tree: T) -> T:
    """The same arrays on every device of the mesh, those of other hosts included; as they are where there is none."""
    if mesh is None:
        return tree
    same = NamedSharding(mesh, Spread())

    def put(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or same.is_fully_addressable:
            return jax.device_put(leaf, same) if isinstance(leaf, jax.Array) else leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        value = np.asarray(leaf)  # every host has it all, and gives its own devices theirs
        return jax.make_array_from_callback(value.shape, same, lambda index: value[index])

    return jax.tree.map(put, tree)


def keep_programs(folder: str | Path) -> None:
    """Keep compiled programs in a folder: a later process that runs the same need not compile it again.

    This is JAX's own cache; call it before the first simulation. Programs are told apart by their code, shapes, devices
    and the version of the compiler, never by the numbers that they are run with.
    """
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _strong(leaf: Any) -> Any:
    leaf = jnp.asarray(leaf)
    return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else lax.convert_element_type(leaf, leaf.dtype)


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
    named = dict(zip(trees.names(info), map(jnp.asarray, jax.tree.leaves(info)), strict=True))
    if record is not None:
        unknown = sorted(set(record) - named.keys())
        if unknown:
            raise ValueError(f"record names {unknown}, which this method does not report; it reports {sorted(named)}")
        named = {name: named[name] for name in record}
    for label, counted in contacts.items():
        for name, value in counted._asdict().items():
            named[f"{label}.{name}"] = value
    return {**named, "void": void}

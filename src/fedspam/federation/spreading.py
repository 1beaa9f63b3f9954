"""A cohort spread over the devices of a mesh: by its order, or, where rows lie on devices, by who holds a client."""

import copy
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as Spread
from jaxtyping import PyTree

from fedspam.clients import Ids, PlacedPopulation
from fedspam.clients.sharded import AXIS
from fedspam.federation.cohorts import Cohort
from fedspam.federation.works import Work


class Task(NamedTuple):
    """The work of a cohort: the function, its key and its message."""

    work: Work
    key: Any
    message: Mapping[str, Any]


def by_order(
    fed: Any, some: Callable[[Any, Task, Ids, Any], tuple[Any, Any]], cohort: Cohort, task: Task
) -> tuple[Any, Any]:
    """Apply `some` to the ids of the cohort: to all of them, or to a share on each device of the mesh.

    `some` returns two parts. The first is summed over the devices, the second is concatenated.
    """
    mesh = fed.mesh
    if mesh is None:
        return some(fed, task, cohort.ids, None)
    padding = -cohort.size % mesh.shape[AXIS]
    ids = jnp.concatenate([cohort.ids, jnp.repeat(cohort.ids[-1:], padding)])
    slots = jnp.arange(cohort.size + padding) < cohort.size

    def share(operands: Any, ids: Ids, slots: Any) -> tuple[Any, Any]:
        own_fed, own_task = _on_device(fed, task, operands)
        total, rows = some(own_fed, own_task, ids, slots)
        return sum_over_devices(total), rows

    split = Spread(AXIS)
    specs: Any = {"in_specs": (Spread(), split, split), "out_specs": (Spread(), split)}
    spread = jax.shard_map(share, mesh=mesh, **specs, check_vma=False)
    total, rows = spread(_operands(fed, task), ids, slots)
    return total, jax.tree.map(lambda leaf: leaf[: cohort.size], rows)


def by_owner(
    fed: Any, clients: PlacedPopulation, cohort: Cohort, task: Task, *, keep_replies: bool
) -> tuple[Any, Any, PyTree]:
    """Every device asks its own clients of the cohort, in as many chunks as it needs.

    Returns the replies, the flags and the memories afterwards: with `keep_replies` those of every member of the cohort,
    in its order; otherwise the sum of the replies and the counts of the flags.
    """
    if fed.mesh != clients.mesh:
        raise ValueError("the rows of these clients lie on several devices; run them with simulate(...)")
    size = cohort.size
    chunk = fed._chunk_for(-(-size // clients.mesh.size), task.message)

    def share(operands: Any, ids: Ids) -> Any:
        own_fed, own_task = _on_device(fed, task, operands)
        owners = own_fed.population.owners[ids]
        own_fed.population = own_fed.population.on_device()
        ask = lambda id: own_fed._ask(own_task, id)
        mine = owners == lax.axis_index(AXIS)
        count, order = jnp.sum(mine), jnp.argsort(~mine, stable=True)  # own clients first

        def add_chunk(number: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            sums, table = carry
            place = number * chunk + jnp.arange(chunk)
            kept = place < count
            which = order[jnp.minimum(place, count - 1)]  # padding repeats the last one
            got = jax.vmap(ask)(ids[which]) if chunk > 1 else jax.tree.map(lambda leaf: leaf[None], ask(ids[which[0]]))
            summed, listed = _parted(got, keep_replies)
            keep = lambda leaf: jnp.where(kept.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, jnp.zeros_like(leaf))
            sums = jax.tree.map(lambda sum, leaf: sum + jnp.sum(keep(leaf), axis=0, dtype=sum.dtype), sums, summed)
            into = jnp.where(kept, which, size)  # padding lies outside, and is dropped
            table = jax.tree.map(lambda rows, leaf: rows.at[into].set(leaf, mode="drop"), table, listed)
            return sums, table

        summed, listed = _parted(jax.eval_shape(ask, ids[0]), keep_replies)
        counted = lambda kind: jnp.int32 if kind == jnp.bool_ else kind
        sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, counted(leaf.dtype)), summed)
        table = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), listed)
        sums, table = lax.fori_loop(0, (count + chunk - 1) // chunk, add_chunk, (sums, table))
        pick = lambda leaf: lax.all_gather(leaf, AXIS)[owners, jnp.arange(size)]
        return sum_over_devices(sums), jax.tree.map(pick, table)

    rest = Spread()
    placement = (rest, (clients.placement, rest, rest), rest)
    specs: Any = {"in_specs": (placement, rest), "out_specs": (rest, rest)}
    spread = jax.shard_map(share, mesh=clients.mesh, **specs, check_vma=False)
    sums, table = spread(_operands(fed, task), cohort.ids)
    return (*table[:2], table[2]) if keep_replies else (*sums, table[0])


def _parted(answers: tuple[Any, Any, PyTree], keep_replies: bool) -> tuple[Any, Any]:
    """What is summed of replies, flags and memories, and what is kept for every client."""
    return ((), answers) if keep_replies else (answers[:2], answers[2:])


def _operands(fed: Any, task: Task) -> Any:
    """The work gets everything as arguments: a closure would belong to the program outside."""
    owner = getattr(task.work, "__self__", None)
    return owner, (fed.population, fed.memory, fed.faults), (task.key, dict(task.message))


def _on_device(fed: Any, task: Task, operands: Any) -> tuple[Any, Task]:
    """The handle and the task of one device."""
    fed, owner = copy.copy(fed), operands[0]
    fed.mesh, (fed.population, fed.memory, fed.faults) = None, operands[1]
    work = task.work if owner is None else types.MethodType(task.work.__func__, owner)  # pyright: ignore[reportFunctionMemberAccess]
    return fed, Task(work, *operands[2])


def sum_over_devices(total: PyTree) -> PyTree:
    """Gathered, then added in the order of the devices: bits depend on their number, not on the network."""
    return jax.tree.map(lambda leaf: jnp.sum(lax.all_gather(leaf, AXIS), axis=0, dtype=leaf.dtype), total)

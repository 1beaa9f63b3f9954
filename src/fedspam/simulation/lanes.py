"""Many runs of one structure in one compiled program: one after another, side by side, or in lanes that they leave."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec as Spread

from fedspam._internal.trees import Params
from fedspam.clients import Population
from fedspam.clients.sharded import AXIS
from fedspam.simulation import engine
from fedspam.simulation.engine import Bounds, Carry, Conditions, Layout, RowTable

BLOCKS = 20  # how often in the rounds of a run lanes pass to other runs


class Ends(NamedTuple):
    """What many runs end with; every array leads with (methods, keys)."""

    params: Params
    carry: Carry
    rows: Any  # tables of `rounds` rows; those that a run did not do hold anything
    probes: Any  # the start first
    done: Any  # rounds
    streak: Any  # evaluations in a row that reached the goal


STATIC = ("layout", "length", "every", "record", "side_by_side", "lanes", "mesh", "stage")


@functools.partial(jax.jit, static_argnames=STATIC)
def many(
    methods: Any, counts: Any, population: Population, params: Params, keys: Any, conditions: Conditions,
    *, layout: Layout, length: int, every: int, record: Any, side_by_side: bool, lanes: int | None = None,
    mesh: Mesh | None = None, stage: str = "whole", between: Any = None, turns: Any = None,
) -> Any:  # fmt: skip
    """Run every method with every key; returns `Ends`.

    `counts` are the rounds of the methods, at most `length`. The devices of a mesh share the methods, or the keys
    where these divide better. Runs that may end before the others, side by side, need `lanes`: so many methods at
    most advance together. The bound of a probe is a factor on its first value.

    Lanes can also stop between: the stage 'begin' returns what the stage 'turns' takes and returns as `between`, after
    so many turns of the lanes; 'end' makes the `Ends` of it.
    """
    options = {"layout": layout, "length": length, "every": every, "record": record}
    if mesh is not None:
        shared = functools.partial(many, side_by_side=side_by_side, lanes=lanes, **options)
        everyone = (population, params, conditions)
        return _spread_runs(mesh, shared, methods, counts, keys, everyone)
    if side_by_side and lanes is not None:
        return _in_lanes(
            methods, counts, population, params, keys, conditions,
            lanes=lanes, stage=stage, between=between, turns=turns, **options,
        )  # fmt: skip

    def run(method: Any, key: Any, count: Any) -> Ends:
        carry, _ = engine.first_carry(method, population, params, key, conditions, layout)
        first = engine.probe_values(method, carry, conditions.probe)
        around = dataclasses.replace(conditions, bounds=_of_run(conditions.bounds, first))
        end = engine.advance(method, population, carry, key, jnp.int32(0), count, around, **options)
        probes = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), first, end.probes)
        return Ends(method.params(end.carry.state), end.carry, end.rows, probes, end.done, end.streak)

    if side_by_side:
        count = jnp.max(counts)  # one for all: `vmap` then needs not care which runs have ended
        with_keys = jax.vmap(lambda method, key: run(method, key, count), (None, 0))
        return jax.vmap(lambda method, _: with_keys(method, keys))(methods, counts)
    return lax.map(lambda each: lax.map(lambda key: run(each[0], key, each[1]), keys), (methods, counts))


def _of_run(bounds: Bounds, first: Any) -> Bounds:
    """The bounds of a run, whose probe has these first values."""
    _, streak = engine.judged(bounds, first, jnp.int32(0))
    limit = bounds.probe if bounds.name is None else bounds.probe * first[bounds.name]
    return dataclasses.replace(bounds, probe=limit, streak=streak)


class Standing(NamedTuple):
    """Where a run stands between two blocks of rounds."""

    done: Any
    carry: Carry
    ended: Any
    bounds: Bounds


def _in_lanes(
    methods: Any, counts: Any, population: Population, params: Params, keys: Any, conditions: Conditions,
    *, layout: Layout, length: int, every: int, record: Any, lanes: int, stage: str, between: Any, turns: Any,
) -> Any:  # fmt: skip
    """Advance the methods that are least far by a block of rounds, until all have ended with all keys.

    A run that has ended stands still, so that blocks and lanes do not change its result. A method leaves its lane
    when all its runs have ended. All lanes are in the same round: its draws are then the same for all methods, and
    made once. One program serves however many are left: to compile others for fewer would take longer than most sweeps.
    """
    settings, seeds = counts.shape[0], keys.shape[0]
    lanes = -(-settings // -(-settings // lanes))  # as many in every turn
    every, evaluations = (every, length // every) if conditions.probe is not None else (1, 0)
    evaluated = max(1, length // every // BLOCKS)  # in a block
    block = evaluated * min(every, length)
    blocks = -(-length // block)

    def begin(lane: Any, key: Any) -> tuple[Standing, Any]:
        carry, _ = engine.first_carry(lane[0], population, params, key, conditions, layout)
        first = engine.probe_values(lane[0], carry, conditions.probe)
        return Standing(jnp.int32(0), carry, lane[1] <= 0, _of_run(conditions.bounds, first)), first

    def one(lane: Any, key: Any, now: Standing, round: Any) -> tuple[Standing, Any]:
        carry, row = engine.one_round(
            lane[0], population, now.carry, round, key, conditions, layout, record, ended=now.ended
        )
        done = jnp.where(now.ended, now.done, round + 1)
        ended = now.ended | engine.diverged(now.bounds, lane[0], carry) | (done >= lane[1])
        return now._replace(done=done, carry=carry, ended=ended), row

    def evaluate(lane: Any, now: Standing, round: Any) -> tuple[Standing, Any]:
        values = engine.probe_values(lane[0], now.carry, conditions.probe)
        ended, streak = engine.judged(now.bounds, values, now.bounds.streak)
        due = now.done == round  # not where it has ended before
        bounds = dataclasses.replace(now.bounds, streak=jnp.where(due, streak, now.bounds.streak))
        return now._replace(ended=now.ended | (due & ended), bounds=bounds), values

    def advance(state: Any) -> Any:
        all, reached, rows, probes = state
        live = ~jnp.all(all.ended, axis=1)
        level = jnp.min(jnp.where(live, reached, blocks))
        waiting = live & (reached == level)
        chosen = jnp.argsort(~waiting)[:lanes]
        free = ~waiting[chosen]
        lane = jax.tree.map(lambda leaf: leaf[chosen], (methods, counts))
        start: Standing = jax.tree.map(lambda leaf: leaf[chosen], all)
        start = start._replace(ended=start.ended | free[:, None])
        fold = lambda i: jax.vmap(lambda key: jax.random.fold_in(key, level * block + i))(keys)
        draws = jax.random.key_data(jax.vmap(fold)(jnp.arange(block)))

        def step(i: Any, now: Any) -> Any:
            standing, rows = now
            round_keys = jax.random.wrap_key_data(draws[i], impl=jax.random.key_impl(keys))
            each = jax.vmap(jax.vmap(one, (None, 0, 0, None)), (0, None, 0, None))
            standing, row = each(lane, round_keys, standing, level * block + i)
            return standing, engine.written(rows, i, row)

        def stretch(j: Any, now: Any) -> Any:
            standing, rows, probes = now
            rounds = lambda i, now: step(j * every + i, now)
            standing, rows = lax.fori_loop(0, every, rounds, (standing, rows))
            each = jax.vmap(jax.vmap(evaluate, (None, 0, None)), (0, 0, None))
            standing, values = each(lane, standing, level * block + (j + 1) * every)
            return standing, rows, jax.tree.map(lambda column, value: column.at[j].set(value), probes, values)

        blank = lambda leaf: jnp.zeros((leaf.shape[2], lanes, *leaf.shape[3:]), leaf.dtype)
        now = start, *jax.tree.map(blank, (rows, probes))
        if evaluations:
            now = lax.fori_loop(0, evaluated, stretch, now)
        else:
            now = *lax.fori_loop(0, block, step, now[:2]), now[2]
        standing, seen, values = now
        place = jnp.where(free, settings, chosen)  # beyond the last one: not written
        put = lambda whole, part: whole.at[place].set(part, mode="drop")
        put_block = lambda whole, part: whole.at[place, level].set(jnp.swapaxes(part, 0, 1), mode="drop")
        return (
            jax.tree.map(put, all, standing),
            put(reached, level + 1),
            jax.tree.map(put_block, rows, seen),
            jax.tree.map(put_block, probes, values),
        )

    def beginning() -> Any:
        all, first = jax.vmap(jax.vmap(begin, (None, 0)), (0, None))((methods, counts), keys)
        alone = jax.tree.map(lambda leaf: leaf[0], (methods, counts))
        row = jax.eval_shape(one, alone, keys[0], jax.tree.map(lambda leaf: leaf[0, 0], all), jnp.int32(0))[1]
        rows = engine.row_tables(row, (settings, blocks, block, seeds))
        shape = (settings, blocks, evaluated if evaluations else 0, seeds)
        probes = jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape[2:]), leaf.dtype), first)
        return (all, jnp.zeros(settings, jnp.int32), rows, probes), first

    state, first = beginning() if between is None else between
    going = lambda state: ~jnp.all(state[0].ended)
    if stage == "turns":
        turn = lambda now: (now[0] + 1, advance(now[1]))
        state = lax.while_loop(lambda now: (now[0] < turns) & going(now[1]), turn, (jnp.int32(0), state))[1]
    elif stage == "whole":
        state = lax.while_loop(going, advance, state)
    if stage in ("begin", "turns"):
        return state, first
    all, _, rows, probes = state

    def long(table: Any, most: int) -> Any:
        return jnp.moveaxis(table.reshape(settings, -1, *table.shape[3:])[:, :most], 2, 1)

    rows = [RowTable(long(table.values, length), table.names) for table in rows]
    probes = jax.tree.map(
        lambda one, more: jnp.concatenate([one[:, :, None], long(more, evaluations)], 2), first, probes
    )
    final = jax.vmap(lambda lane, state: jax.vmap(lane[0].params)(state))((methods, counts), all.carry.state)
    return Ends(final, all.carry, rows, probes, all.done, all.bounds.streak)


def _spread_runs(mesh: Mesh, many: Any, methods: Any, counts: Any, keys: Any, everyone: Any) -> Any:
    """Call `many` on every device, each with its share of the methods or of the keys.

    They are dealt out one by one: neighbors in a grid end alike, so that one device would have all that end late.
    """
    devices, settings, seeds = mesh.shape[AXIS], counts.shape[0], keys.shape[0]
    by_setting = -(-settings // devices) * seeds <= settings * -(-seeds // devices)

    def dealt(leaf: Any) -> Any:  # the last one is repeated where they do not divide
        turns = -(-leaf.shape[0] // devices)
        return leaf[np.minimum(np.arange(turns * devices).reshape(turns, devices).T.ravel(), leaf.shape[0] - 1)]

    def collected(leaf: Any, axis: int, count: int) -> Any:
        turns, which = -(-count // devices), np.arange(count)
        return jnp.take(leaf, which % devices * turns + which // devices, axis)

    if by_setting:
        methods, counts = jax.tree.map(dealt, (methods, counts))
        split, out = (Spread(AXIS), Spread()), Spread(AXIS)
    else:
        keys, split, out = dealt(keys), (Spread(), Spread(AXIS)), Spread(None, AXIS)

    def share(some: Any, keys: Any, everyone: Any) -> Any:
        (methods, counts), (population, params, conditions) = some, everyone
        return many(methods, counts, population, params, keys, conditions)

    spread = jax.shard_map(share, mesh=mesh, in_specs=(*split, Spread()), out_specs=out, check_vma=False)
    axis, count = (0, settings) if by_setting else (1, seeds)
    return jax.tree.map(lambda leaf: collected(leaf, axis, count), spread((methods, counts), keys, everyone))

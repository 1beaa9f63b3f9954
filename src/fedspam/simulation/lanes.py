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
from fedspam.clients.sharded import AXIS
from fedspam.simulation import engine
from fedspam.simulation.engine import Bounds, Carry, RowTable, Setup

BLOCKS = 20  # how often in the rounds of a run lanes pass to other runs


class Ends(NamedTuple):
    """What many runs end with; every array leads with (methods, keys)."""

    params: Params
    carry: Carry
    rows: Any  # tables with `rounds` rows; rows after the end of a run are undefined
    probes: Any  # the start first
    done: Any  # rounds
    streak: Any  # evaluations in a row that reached the goal


class Standing(NamedTuple):
    """Where a run stands between two blocks of rounds."""

    done: Any
    carry: Carry
    ended: Any
    bounds: Bounds


class LanesState(NamedTuple):
    """Where all runs stand, in blocks of rounds, and what they have seen."""

    standing: Standing
    reached: Any  # blocks that each method has done
    rows: Any
    probes: Any
    first: Any  # values of the probes at the start


STATIC = ("length", "every", "record", "side_by_side", "lanes", "mesh", "only")


@functools.partial(jax.jit, static_argnames=STATIC)
def many(
    setup: Setup, counts: Any, *, length: int, every: int, record: Any, side_by_side: bool, lanes: int | None = None,
    mesh: Mesh | None = None, only: str | None = None, between: Any = None, turns: Any = None,
) -> Any:  # fmt: skip
    """Run every method of the setup with every key; returns `Ends`.

    `counts` are the rounds of the methods, at most `length`. The devices of a mesh share the methods, or the keys
    where these divide better. Runs that may end before the others, side by side, need `lanes`: so many methods at
    most advance together. The bound of a probe is a factor on its first value.

    Lanes can also stop between: `only` 'begin' returns what 'turns' takes as `between`, and returns after so many turns
    of the lanes; 'end' makes the `Ends` of it.
    """
    options: dict[str, Any] = {"length": length, "every": every, "record": record}
    if mesh is not None:
        shared = functools.partial(many, side_by_side=side_by_side, lanes=lanes, **options)
        return _spread_runs(mesh, shared, setup, counts)
    if side_by_side and lanes is not None:
        in_lanes = Lanes(setup, counts, lanes, **options)
        state = in_lanes.begin() if between is None else between
        state = in_lanes.turned(state, turns) if only in (None, "turns") else state
        return state if only in ("begin", "turns") else in_lanes.ends(state)

    def run(method: Any, key: Any, count: Any) -> Ends:
        one = dataclasses.replace(setup, method=method, key=key)
        carry, _ = one.start()
        first = one.probes(carry)
        one = dataclasses.replace(one, bounds=_of_run(setup.bounds, first))
        end = engine.advance(one, carry, jnp.int32(0), count, **options)
        probes = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), first, end.probes)
        return Ends(method.params(end.carry.state), end.carry, end.rows, probes, end.done, end.streak)

    if side_by_side:
        count = jnp.max(counts)  # the same count for all runs, so that vmap needs no masks
        with_keys = jax.vmap(lambda method, key: run(method, key, count), (None, 0))
        return jax.vmap(lambda method, _: with_keys(method, setup.key))(setup.method, counts)
    with_keys = lambda each: lax.map(lambda key: run(each[0], key, each[1]), setup.key)
    return lax.map(with_keys, (setup.method, counts))


def _of_run(bounds: Bounds, first: Any) -> Bounds:
    """The bounds of a run, whose probe has these first values."""
    _, streak = bounds.judged(first, jnp.int32(0))
    limit = bounds.probe if bounds.name is None else bounds.probe * first[bounds.name]
    return dataclasses.replace(bounds, probe=limit, streak=streak)


@dataclasses.dataclass
class Lanes:
    """Runs side by side: those of the methods that are least far advance by a block of rounds, until all have ended.

    A run that has ended stands still, so that blocks and lanes do not change its result. A method leaves its lane
    when all its runs have ended. All lanes are in the same round: its draws are then the same for all methods, and
    made once. One program serves any number of remaining runs. Compiling smaller ones would take longer than most
    sweeps.
    """

    setup: Setup
    counts: Any  # rounds of each method
    most: int  # lanes
    length: int
    every: int
    record: Any

    def __post_init__(self) -> None:
        self.settings, self.seeds = self.counts.shape[0], self.setup.key.shape[0]
        self.lanes = -(-self.settings // -(-self.settings // self.most))  # as many in every turn
        evaluates = self.setup.probe is not None
        self.evaluations = self.length // self.every if evaluates else 0
        self.stretch = self.every if evaluates else 1  # rounds between two evaluations
        self.evaluated = max(1, self.length // self.stretch // BLOCKS)  # times in a block
        self.block = self.evaluated * min(self.stretch, self.length)
        self.blocks = -(-self.length // self.block)

    def begin(self) -> LanesState:
        """All runs before their first round."""

        def one(lane: Any, key: Any) -> tuple[Standing, Any]:
            setup = self._of(lane, key)
            carry, _ = setup.start()
            first = setup.probes(carry)
            return Standing(jnp.int32(0), carry, lane[1] <= 0, _of_run(setup.bounds, first)), first

        lanes, keys = (self.setup.method, self.counts), self.setup.key
        all, first = jax.vmap(jax.vmap(one, (None, 0)), (0, None))(lanes, keys)
        alone, now = jax.tree.map(lambda leaf: leaf[0], lanes), jax.tree.map(lambda leaf: leaf[0, 0], all)
        row = jax.eval_shape(self._round, alone, keys[0], now, jnp.int32(0))[1]
        rows = engine.row_tables(row, (self.settings, self.blocks, self.block, self.seeds))
        shape = (self.settings, self.blocks, self.evaluated if self.evaluations else 0, self.seeds)
        probes = jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape[2:]), leaf.dtype), first)
        return LanesState(all, jnp.zeros(self.settings, jnp.int32), rows, probes, first)

    def turned(self, state: LanesState, turns: Any) -> LanesState:
        """The state after so many turns, or, for None, after all."""
        goes_on = lambda state: ~jnp.all(state.standing.ended)
        if turns is None:
            return lax.while_loop(goes_on, self._turn, state)
        turn = lambda now: (now[0] + 1, self._turn(now[1]))
        return lax.while_loop(lambda now: (now[0] < turns) & goes_on(now[1]), turn, (jnp.int32(0), state))[1]

    def ends(self, state: LanesState) -> Ends:
        """What the runs end with."""

        def long(table: Any, most: int) -> Any:
            return jnp.moveaxis(table.reshape(self.settings, -1, *table.shape[3:])[:, :most], 2, 1)

        rows = [RowTable(long(table.values, self.length), table.names) for table in state.rows]
        probes = jax.tree.map(
            lambda one, more: jnp.concatenate([one[:, :, None], long(more, self.evaluations)], 2),
            state.first, state.probes,
        )  # fmt: skip
        all, each = state.standing, lambda method, states: jax.vmap(method.params)(states)
        final = jax.vmap(each)(self.setup.method, all.carry.state)
        return Ends(final, all.carry, rows, probes, all.done, all.bounds.streak)

    def _of(self, lane: Any, key: Any) -> Setup:
        return dataclasses.replace(self.setup, method=lane[0], key=key)

    def _round(self, lane: Any, key: Any, now: Standing, round: Any) -> tuple[Standing, Any]:
        carry, row = self._of(lane, key).round(now.carry, round, key, self.record, ended=now.ended)
        done = jnp.where(now.ended, now.done, round + 1)
        ended = now.ended | now.bounds.exceeded(carry, lane[0]) | (done >= lane[1])
        return now._replace(done=done, carry=carry, ended=ended), row

    def _evaluate(self, lane: Any, now: Standing, round: Any) -> tuple[Standing, Any]:
        values = self._of(lane, None).probes(now.carry)
        ended, streak = now.bounds.judged(values, now.bounds.streak)
        due = now.done == round  # not where it has ended before
        bounds = dataclasses.replace(now.bounds, streak=jnp.where(due, streak, now.bounds.streak))
        return now._replace(ended=now.ended | (due & ended), bounds=bounds), values

    def _turn(self, state: LanesState) -> LanesState:
        """The state after a block of rounds of the methods that are least far."""
        keys, block, every = self.setup.key, self.block, self.stretch
        live = ~jnp.all(state.standing.ended, axis=1)
        level = jnp.min(jnp.where(live, state.reached, self.blocks))
        waiting = live & (state.reached == level)
        chosen = jnp.argsort(~waiting)[: self.lanes]
        free = ~waiting[chosen]
        lane, start = jax.tree.map(lambda leaf: leaf[chosen], ((self.setup.method, self.counts), state.standing))
        start = start._replace(ended=start.ended | free[:, None])
        fold = lambda i: jax.vmap(lambda key: jax.random.fold_in(key, level * block + i))(keys)
        draws = jax.random.key_data(jax.vmap(fold)(jnp.arange(block)))

        def step(i: Any, now: Any) -> Any:
            standing, rows = now
            round_keys = jax.random.wrap_key_data(draws[i], impl=jax.random.key_impl(keys))
            each = jax.vmap(jax.vmap(self._round, (None, 0, 0, None)), (0, None, 0, None))
            standing, row = each(lane, round_keys, standing, level * block + i)
            return standing, engine.written(rows, i, row)

        def stretch(j: Any, now: Any) -> Any:
            standing, rows, probes = now
            standing, rows = lax.fori_loop(0, every, lambda i, now: step(j * every + i, now), (standing, rows))
            each = jax.vmap(jax.vmap(self._evaluate, (None, 0, None)), (0, 0, None))
            standing, values = each(lane, standing, level * block + (j + 1) * every)
            return standing, rows, jax.tree.map(lambda column, value: column.at[j].set(value), probes, values)

        blank = lambda leaf: jnp.zeros((leaf.shape[2], self.lanes, *leaf.shape[3:]), leaf.dtype)
        now = start, *jax.tree.map(blank, (state.rows, state.probes))
        if self.evaluations:
            standing, seen, values = lax.fori_loop(0, self.evaluated, stretch, now)
        else:
            standing, seen, values = *lax.fori_loop(0, block, step, now[:2]), now[2]
        place = jnp.where(free, self.settings, chosen)  # beyond the last one: not written
        put = lambda whole, part: whole.at[place].set(part, mode="drop")
        put_block = lambda whole, part: whole.at[place, level].set(jnp.swapaxes(part, 0, 1), mode="drop")
        return state._replace(
            standing=jax.tree.map(put, state.standing, standing),
            reached=put(state.reached, level + 1),
            rows=jax.tree.map(put_block, state.rows, seen),
            probes=jax.tree.map(put_block, state.probes, values),
        )


def _spread_runs(mesh: Mesh, many: Any, setup: Setup, counts: Any) -> Any:
    """Call `many` on every device, each with its share of the methods or of the keys.

    They are dealt out one by one: neighbors in a grid end alike, so that one device would have all that end late.
    """
    methods, keys, rest = setup.method, setup.key, dataclasses.replace(setup, method=None, key=None)
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

    def share(some: Any, keys: Any, rest: Setup) -> Any:
        return many(dataclasses.replace(rest, method=some[0], key=keys), some[1])

    spread = jax.shard_map(share, mesh=mesh, in_specs=(*split, Spread()), out_specs=out, check_vma=False)
    axis, count = (0, settings) if by_setting else (1, seeds)
    return jax.tree.map(lambda leaf: collected(leaf, axis, count), spread((methods, counts), keys, rest))

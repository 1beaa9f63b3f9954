"""The federation inside a compiled simulation."""

import copy
import math
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spread
from jaxtyping import Array, Bool, Key, PyTree, UInt32

from fedspam._internal import prng, trees
from fedspam.clients import Ids, MeanOracle, Population, with_several_capacities
from fedspam.federation.aggregation import Rule
from fedspam.federation.protocol import (
    Cohort,
    Contacts,
    Faults,
    Program,
    Replay,
    Work,
    cohort_of,
    default_chunk,
    everyone_of,
    is_dynamic,
    sound,
    terms_of,
)

AXIS = "clients"  # of a mesh of devices


class Heard(NamedTuple):
    """Of one client whether, of several how many: replied, counted, computed what is not finite.

    Without faults the last is known from the others; it is then not counted, which would cost a small model time.
    """

    replied: Any
    accepted: Any
    broken: Any = None


class Task(NamedTuple):
    """What a cohort is asked."""

    work: Work
    key: Any
    message: Mapping[str, Any]


class Traced:
    """The federation inside a compiled simulation.

    A cohort is worked through in chunks: clients of a chunk side by side under ``vmap``, the chunks one after
    another, carrying only the running sum. Chunking changes no draw, and results by the rounding of sums alone. Where
    the clients of a `Ragged` population differ much in size, those of alike sizes share a chunk, and it is padded to
    one of a few capacities, for each of which the work is compiled.

    Arguments:
        population: who there is.
        round: the number of the round, where a replay needs it.
        memory: what the clients remember, stacked over the population; () where they do not.
        chunk: clients side by side; None to choose by size and device.
        faults: what goes wrong.
        replay: ids by role and round that replace the draws.
        quorum: the share of a cohort whose replies must count, or the exchange is void; one reply always must.
        per_client: never use the mean client, so that each reply can be looked at alone.
        aggregate: the rule of `fedspam.federation.aggregation` that takes the place of the mean over several clients.
        mesh: devices with an axis `clients`, over which every cohort is spread; None for one device.

    Attributes:
        void: whether an exchange of this round had too few replies that count.
        broken: whether a client computed what is not finite, faults apart.
        accepted: how many replies of the last exchange count.
        contacts: how each exchange went whose counts depend on the run.
    """

    def __init__(
        self,
        population: Population,
        *,
        round: Any = 0,
        memory: PyTree = (),
        chunk: int | None = None,
        faults: Faults | None = None,
        replay: Replay | None = None,
        quorum: float = 0.0,
        per_client: bool = False,
        aggregate: Rule | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        self._population = population
        self._mesh = mesh
        self._round = round
        self._chunk = chunk
        self._faults = faults
        self._replay = replay
        self._quorum = quorum
        self._per_client = per_client or faults is not None or aggregate is not None
        self._aggregate = aggregate
        self._program = Program()
        self._conditional = False
        self._undo: list[tuple[Ids, PyTree]] = []  # what the clients that were asked remembered before
        self._entangled = False  # a branch changed memories: then only a copy of all of them can undo it
        self.memory = memory
        self.void: Any = False
        self.broken: Any = False
        self.accepted: Any = 0
        self.contacts: dict[str, Contacts] = {}

    def sample(self, key: Key[Array, ""], count: int, role: str = "cohort", times: int = 1) -> Cohort:
        return cohort_of(self._population, key, count, role, times, self._replay, self._round)

    def everyone(self, key: Key[Array, ""]) -> Cohort:
        return everyone_of(self._population, key)

    def client(self, id: int | UInt32[Array, ""], key: Key[Array, ""]) -> Cohort:
        return Cohort(jnp.asarray(id, jnp.uint32)[None], key)

    def mean(self, cohort: Cohort, work: Work, **message: Any) -> Any:
        terms, key = terms_of(work), prng.fold_name(cohort.key, work.__name__)
        if terms.affine and cohort.size > 1 and not self._per_client:
            reply = self._affine_mean(cohort, work, key, message)
            accepted = jnp.where(sound(reply), cohort.size, 0)
            self._note(work, cohort, Contacts(cohort.size, cohort.size, cohort.size), accepted, accepted == 0)
            return reply
        if self._aggregate is not None and cohort.size > 1:
            return self._aggregate(*self.collect(cohort, work, **message))
        total, heard = self._sum(cohort, work, key, message)
        self._note_heard(work, cohort, heard)
        return total if cohort.size == 1 else trees.divide(total, jnp.maximum(heard.accepted, 1))

    def collect(self, cohort: Cohort, work: Work, **message: Any) -> tuple[Any, Bool[Array, " cohort"]]:
        key = prng.fold_name(cohort.key, work.__name__)

        def some(fed: "Traced", task: Task, ids: Ids, slots: Any) -> tuple[Any, Any]:
            chunk = fed._chunk_for(ids.shape[0], task.message)
            return (), lax.map(lambda id: fed._ask(task.work, task.key, id, task.message), ids, batch_size=chunk)

        replies, each, memory = self._spread(some, cohort, Task(work, key, message))[1]
        self._remember(cohort.ids, memory)
        self._note_heard(work, cohort, jax.tree.map(jnp.sum, each))
        return replies, each.accepted

    def cond(self, predicate: Bool[Array, ""], yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        outside = (self._program, self.memory, self.void, self.broken, self.accepted, self.contacts, self._conditional)
        programs = self._program.branches()

        def run(which: int, memory: PyTree) -> tuple[Any, PyTree, tuple[Any, Any, Any], dict[str, Contacts]]:
            self._program, self.memory, self._conditional = programs[which].fresh(), memory, True
            self.void, self.broken, self.contacts = jnp.array(False), jnp.array(False), {}
            self.accepted = outside[4]  # a branch without exchanges leaves the last one what it was
            try:
                result = (yes, no)[which]()
                went = (self.void, self.broken, jnp.asarray(self.accepted, jnp.int32))
                return result, self.memory, went, self.contacts
            finally:  # nothing of a branch may stay on the handle
                leave()

        def branch(which: int) -> Callable[[PyTree], Any]:
            def body(memory: PyTree) -> Any:
                result, memory, went, contacts = run(which, memory)
                return (
                    result,
                    memory,
                    went,
                    {label: contacts.get(label, Contacts(zero, zero, zero)) for label in labels},
                )

            return body

        def leave() -> None:
            self._program, self.memory, self.void, self.broken, self.accepted, self.contacts, self._conditional = (
                outside
            )

        zero = jnp.zeros((), jnp.int32)
        # a dry run of both branches tells their exchanges, so that either can report zeros for the other's
        labels = [label for which in (0, 1) for label in jax.eval_shape(lambda m: run(which, m)[3], self.memory)]
        result, memory, (void, broken, accepted), contacts = lax.cond(predicate, branch(0), branch(1), self.memory)
        self.memory, self.void, self.broken, self.accepted = memory, self.void | void, self.broken | broken, accepted
        self.contacts = {**self.contacts, **contacts}
        return result

    def _affine_mean(self, cohort: Cohort, work: Work, key: Key[Array, ""], message: Mapping[str, Any]) -> Any:
        """The work done once on the mean client; or, where clients go one by one, the plain sum: it then costs the same
        and a client's data is read once for all the points of the work."""
        chunk = self._chunk_for(cohort.size, message)

        def ask(id: UInt32[Array, ""]) -> Any:
            one = lambda fed: work(fed._population.client(id), jax.random.fold_in(key, id), **message)
            return self._sized(id[None], one)

        if self._mesh is None and chunk == 1:
            first = ask(cohort.ids[0])
            total, _ = lax.scan(lambda total, id: (trees.add(total, ask(id)), None), first, cohort.ids[1:])
            return trees.divide(total, cohort.size)
        if self._mesh is None:
            return work(MeanOracle(self._population, cohort.ids, chunk), key, **message)

        def some(fed: "Traced", task: Task, ids: Ids, slots: Any) -> tuple[Any, Any]:
            # each device's mean, by its share of the cohort: the work is affine
            oracle = MeanOracle(fed._population, ids, fed._chunk_for(ids.shape[0], task.message), slots)
            return trees.scale(jnp.sum(slots) / cohort.size, task.work(oracle, task.key, **task.message)), ()

        return self._spread(some, cohort, Task(work, key, message))[0]

    def _spread(
        self, some: Callable[["Traced", "Task", Ids, Any], tuple[Any, Any]], cohort: Cohort, task: "Task"
    ) -> tuple[Any, Any]:
        """What `some` makes of the cohort's ids: of all at once, or of a share on each device of the mesh. Of the two
        parts that it returns the first is summed over the devices, the second laid end to end."""
        if self._mesh is None:
            return some(self, task, cohort.ids, None)
        padding = -cohort.size % self._mesh.shape[AXIS]
        ids = jnp.concatenate([cohort.ids, jnp.repeat(cohort.ids[-1:], padding)])
        slots = jnp.arange(cohort.size + padding) < cohort.size
        owner = getattr(task.work, "__self__", None)

        def share(operands: Any, ids: Ids, slots: Any) -> tuple[Any, Any]:
            fed, owner = copy.copy(self), operands[0]
            fed._mesh, (fed._population, fed.memory, fed._faults) = None, operands[1]
            work = task.work if owner is None else types.MethodType(task.work.__func__, owner)  # pyright: ignore[reportFunctionMemberAccess]
            total, rows = some(fed, Task(work, *operands[2]), ids, slots)
            # gathered, then added in the devices' order: the bits depend on their number, not on the network
            return jax.tree.map(lambda leaf: jnp.sum(lax.all_gather(leaf, AXIS), axis=0, dtype=leaf.dtype), total), rows

        split = Spread(AXIS)
        spread = jax.shard_map(
            share, mesh=self._mesh, in_specs=(Spread(), split, split), out_specs=(Spread(), split), check_vma=False
        )
        # all that the work needs goes in as arguments: what is closed over belongs to the program outside
        operands = (owner, (self._population, self.memory, self._faults), (task.key, dict(task.message)))
        total, rows = spread(operands, ids, slots)
        return total, jax.tree.map(lambda leaf: leaf[: cohort.size], rows)

    def _ask(self, work: Work, key: Key[Array, ""], id: UInt32[Array, ""], message: Mapping[str, Any]) -> Any:
        """One client's reply as it counts (zeros where it does not), how it was heard, what the client remembers."""
        oracle, own_key = self._population.client(id), jax.random.fold_in(key, id)
        memory = ()
        if terms_of(work).stateful:
            before = jax.tree.map(lambda leaf: leaf[id], self.memory)
            reply, memory = work(oracle, own_key, before, **message)
        else:
            before = ()
            reply = work(oracle, own_key, **message)
        if self._faults is None:
            accepted = sound(reply)
            heard = Heard(jnp.array(True), accepted)
        else:
            broken = ~sound(reply)
            reply, replied, timely = self._faults.strike(own_key, id, reply)
            accepted = replied & timely & sound(reply)
            heard = Heard(replied, accepted, broken)
        reply = jax.tree.map(lambda leaf: jnp.where(accepted, leaf, jnp.zeros_like(leaf)), reply)
        return reply, heard, trees.where(accepted, memory, before)

    def _sum(self, cohort: Cohort, work: Work, key: Key[Array, ""], message: Mapping[str, Any]) -> tuple[Any, "Heard"]:
        if cohort.size == 1:
            reply, heard, memory = self._sized(cohort.ids, lambda fed: fed._ask(work, key, cohort.ids[0], message))
            self._remember(cohort.ids, jax.tree.map(lambda leaf: leaf[None], memory))
            return reply, jax.tree.map(lambda flag: flag.astype(jnp.int32), heard)

        def some(fed: "Traced", task: Task, ids: Ids, slots: Any) -> tuple[Any, Any]:
            total, heard, memory = fed._chunks(ids, slots, task.work, task.key, task.message)
            return (total, heard), memory

        (total, heard), memory = self._spread(some, cohort, Task(work, key, message))
        self._remember(cohort.ids, memory)
        return total, heard

    def _chunks(
        self, ids: Ids, slots: Any, work: Work, key: Key[Array, ""], message: Mapping[str, Any]
    ) -> tuple[Any, "Heard", PyTree]:
        """The sum of the replies of those ids whose slots count, how they were heard, what the clients remember."""
        size = ids.shape[0]
        chunk = self._chunk_for(size, message)
        padding = -size % chunk
        masked = padding > 0 or slots is not None
        slots = jnp.ones(size, bool) if slots is None else slots
        clients, order = with_several_capacities(self._population), None
        if clients is not None and 1 < chunk < size:  # those of alike sizes share a chunk
            order = jnp.argsort(clients.counts(ids))
            ids, slots = ids[order], slots[order]
        ids = jnp.concatenate([ids, jnp.repeat(ids[-1:], padding)]).reshape(-1, chunk)
        slots = jnp.concatenate([slots, jnp.zeros(padding, bool)]).reshape(-1, chunk)

        def add_chunk(carry: Any, part: Any) -> tuple[Any, Any]:
            ids, slots = part

            def together(fed: "Traced") -> Any:
                one = lambda id: fed._ask(work, key, id, message)
                return jax.tree.map(lambda leaf: leaf[None], one(ids[0])) if chunk == 1 else jax.vmap(one)(ids)

            replies, heard, memory = self._sized(ids, together)
            if masked:
                # padding repeats a client; what it says is not heard twice
                keep = lambda leaf: jnp.where(slots.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, jnp.zeros_like(leaf))
                replies = jax.tree.map(keep, replies)
            counts = jax.tree.map(lambda flags: jnp.sum(flags & slots, dtype=jnp.int32), heard)
            total = jax.tree.map(lambda sum, leaf: sum + jnp.sum(leaf, axis=0), carry[0], replies)
            return (total, jax.tree.map(jnp.add, carry[1], counts)), memory

        reply, heard, _ = jax.eval_shape(lambda id: self._ask(work, key, id, message), ids[0, 0])
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), reply)
        start = (zeros, jax.tree.map(lambda _: jnp.zeros((), jnp.int32), heard))
        if ids.shape[0] == 1:
            (total, heard), memory = add_chunk(start, (ids[0], slots[0]))
        else:
            (total, heard), memory = lax.scan(add_chunk, start, (ids, slots))
            memory = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), memory)
        memory = jax.tree.map(lambda leaf: leaf[:size], memory)
        if order is not None:
            memory = jax.tree.map(lambda leaf: jnp.zeros_like(leaf).at[order].set(leaf), memory)
        return total, heard, memory

    def _sized(self, ids: Ids, ask: Callable[["Traced"], Any]) -> Any:
        """What these clients are asked, padded no further than the largest of them needs."""
        clients = with_several_capacities(self._population)
        if clients is None:
            return ask(self)

        def padded(capacity: int) -> Callable[[], Any]:
            fed = copy.copy(self)
            fed._population = clients.within(capacity)
            return lambda: ask(fed)

        needed = jnp.max(clients.counts(ids))
        return lax.switch(
            jnp.searchsorted(jnp.array(clients.capacities), needed), [padded(each) for each in clients.capacities]
        )

    def _remember(self, ids: Ids, memory: PyTree) -> None:
        if jax.tree.leaves(memory):
            if self._conditional:
                self._entangled = True
            else:
                self._undo.append((ids, jax.tree.map(lambda all: all[ids], self.memory)))
            self.memory = jax.tree.map(lambda all, rows: all.at[ids].set(rows), self.memory, memory)

    def settled(self, memory: PyTree, void: Any) -> PyTree:
        """What the clients remember after the round; what they did before it (`memory`), if the round is void."""
        if self._entangled:
            return trees.where(void, memory, self.memory)
        settled = self.memory
        for ids, before in reversed(self._undo):
            restore = lambda all, rows: all.at[ids].set(jnp.where(void, rows, all[ids]))
            settled = jax.tree.map(restore, settled, before)
        return settled

    def _note_heard(self, work: Work, cohort: Cohort, heard: "Heard") -> None:
        broken = heard.accepted < cohort.size if heard.broken is None else heard.broken > 0
        self._note(work, cohort, Contacts(cohort.size, heard.replied, heard.accepted), heard.accepted, broken)

    def _note(self, work: Work, cohort: Cohort, contacts: Contacts, accepted: Any, broken: Any) -> None:
        needed = max(1, math.ceil(self._quorum * cohort.size - 1e-9))  # 0.7 x 10 is a little more than 7
        self.void, self.broken = self.void | (accepted < needed), self.broken | broken
        self.accepted = accepted
        label = self._program.label(work)
        if is_dynamic(self._conditional, self._faults, self._per_client, terms_of(work), cohort.size):
            self.contacts[label] = Contacts(*(jnp.asarray(count, jnp.int32) for count in contacts))

    def _chunk_for(self, size: int, message: Mapping[str, Any]) -> int:
        if self._chunk is not None:
            return min(self._chunk, size)
        most = default_chunk(size, trees.size(jax.tree.map(jnp.asarray, dict(message))))
        return -(-size // -(-size // most))  # as few chunks, filled evenly: less padding

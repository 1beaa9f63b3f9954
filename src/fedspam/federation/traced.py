"""The handle inside a compiled simulation: cohorts are worked through in chunks of clients side by side."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, PyTree, UInt32

from fedspam._internal import prng, trees
from fedspam.clients import (
    Faults,
    Ids,
    MeanOracle,
    PlacedPopulation,
    Population,
    TimedPopulation,
    with_several_capacities,
)
from fedspam.federation.aggregation import Rule
from fedspam.federation.codecs import NO_CODECS, Codecs
from fedspam.federation.cohorts import Cohort, Draws, Replay
from fedspam.federation.program import Program
from fedspam.federation.spreading import Task, by_order, by_owner
from fedspam.federation.void import Contacts, is_dynamic, least_accepted, sound
from fedspam.federation.works import Work, answer, terms_of

CHANGING = ("_program", "memory", "void", "broken", "accepted", "seconds", "contacts", "_conditional")  # by exchanges


class Flags(NamedTuple):
    """Per-client flags, or their counts over a chunk: replied, accepted, non-finite.

    Without faults the last follows from the others. It is then left out, because counting costs a small model time.
    """

    replied: Any
    accepted: Any
    non_finite: Any = None


@dataclass(eq=False, repr=False)
class Traced(Draws):
    """The handle inside a compiled simulation.

    The clients of a chunk run side by side under ``vmap``. The chunks follow each other and carry only the running sum.
    Chunking changes no draw, and it changes results only by the rounding of sums. If the clients of a `Ragged`
    population differ much in size, clients of similar size share a chunk. Each chunk is padded to one of a few
    capacities, and the work is compiled once per capacity.

    Arguments:
        population: the clients.
        round: the number of the round; a replay needs it.
        memory: the memories of all clients, stacked; () if clients keep none.
        chunk, faults, replay, quorum, per_client, aggregate, codecs: as in `fedspam.simulate`.
        mesh: devices with an axis `clients` that every cohort is spread over; None for one device.

    Attributes:
        void: whether too few replies were accepted in an exchange of this round.
        broken: whether a client computed something that is not finite, faults apart.
        accepted: how many replies of the last exchange were accepted.
        seconds: how long the round has waited for clients, where they take time; else None.
        contacts: the counts of every exchange whose counts depend on the run.
    """

    population: Population
    _: KW_ONLY
    round: Any = 0
    memory: PyTree = ()
    chunk: int | None = None
    faults: Faults | None = None
    replay: Replay | None = None
    quorum: float = 0.0
    per_client: bool = False
    aggregate: Rule | None = None
    codecs: Codecs = NO_CODECS
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        super().__init__(self.population, self.replay, self.round)
        self._placed = self.population if isinstance(self.population, PlacedPopulation) else None
        self.per_client = self.per_client or self.faults is not None or self.aggregate is not None
        self._coded: set[str] = set()  # the works whose replies are coded
        self._program = Program()
        self._conditional = False
        self._undo: list[tuple[Ids, PyTree, PyTree]] = []  # the memories of a cohort before and after its exchange
        self._entangled = False  # a branch changed memories: only a copy of all memories can undo it
        self.void: Any = False
        self.broken: Any = False
        self.accepted: Any = 0
        self._delay = self.population.delay if isinstance(self.population, TimedPopulation) else None
        self.seconds: Any = None if self._delay is None else jnp.zeros(())
        self.contacts: dict[str, Contacts] = {}

    def mean(self, cohort: Cohort, work: Work, /, **message: Any) -> Any:
        if self.aggregate is not None and cohort.size > 1:
            return self.aggregate(*self.collect(cohort, work, **message))
        task = self._task(cohort, work, message)
        if terms_of(work).affine and cohort.size > 1 and not self._is_alone(work):
            reply = self._affine_mean(cohort, task)
            accepted = jnp.where(sound(reply), cohort.size, 0)
            self._note(work, cohort, Contacts(cohort.size, cohort.size, cohort.size), accepted, accepted == 0)
            return reply
        total, flags = self._sum(cohort, task)
        self._note_flags(work, cohort, flags)
        return total if cohort.size == 1 else trees.divide(total, jnp.maximum(flags.accepted, 1))

    def collect(self, cohort: Cohort, work: Work, /, **message: Any) -> tuple[Any, Bool[Array, " cohort"]]:
        def some(fed: "Traced", task: Task, ids: Ids, slots: Any) -> tuple[Any, Any]:
            chunk = fed._chunk_for(ids.shape[0], task.message)
            return (), lax.map(lambda id: fed._ask(task, id), ids, batch_size=chunk)

        task = self._task(cohort, work, message)
        if self._placed is not None:
            replies, each, memory = by_owner(self, self._placed, cohort, task, keep_replies=True)
        else:
            replies, each, memory = by_order(self, some, cohort, task)[1]
        self._remember(cohort.ids, memory)
        self._note_flags(work, cohort, jax.tree.map(jnp.sum, each))
        return replies, each.accepted

    def cond(self, predicate: Bool[Array, ""], yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        outside = {name: getattr(self, name) for name in CHANGING}
        programs = self._program.branches()

        def run(which: int, memory: PyTree) -> tuple[Any, PyTree, tuple[Any, ...], dict[str, Contacts]]:
            self._program, self.memory, self._conditional = programs[which].fresh(), memory, True
            self.void, self.broken, self.contacts = jnp.array(False), jnp.array(False), {}
            self.accepted = outside["accepted"]  # a branch without exchanges leaves it as it was
            try:
                result = (yes, no)[which]()
                went = (self.void, self.broken, jnp.asarray(self.accepted, jnp.int32), self.seconds)
                return result, self.memory, went, self.contacts
            finally:  # the handle keeps nothing of a branch
                self.__dict__.update(outside)

        def branch(which: int) -> Callable[[PyTree], Any]:
            def body(memory: PyTree) -> Any:
                *went, contacts = run(which, memory)
                return *went, {label: contacts.get(label, Contacts(zero, zero, zero)) for label in labels}

            return body

        zero = jnp.zeros((), jnp.int32)
        # a dry run of both branches finds their exchanges, so that each can report zeros for those of the other
        labels = [label for which in (0, 1) for label in jax.eval_shape(lambda m: run(which, m)[3], self.memory)]
        result, memory, went, contacts = lax.cond(predicate, branch(0), branch(1), self.memory)
        void, broken, accepted, self.seconds = went
        self.memory, self.void, self.broken, self.accepted = memory, self.void | void, self.broken | broken, accepted
        self.contacts = {**self.contacts, **contacts}
        return result

    def _task(self, cohort: Cohort, work: Work, message: Mapping[str, Any]) -> Task:
        """The work with its key, and the message as the clients decode it."""
        key = prng.fold_name(cohort.key, work.__name__)
        if not self.codecs.named:
            return Task(work, key, dict(message))
        task = Task(work, key, self._program.deliver(cohort, message, self.codecs.arriving(key, message))[1])
        reply = jax.eval_shape(lambda id: self._ask(task, id)[0], cohort.ids[0])
        if self.codecs.codes_reply(work.__name__, reply):
            self._coded.add(work.__name__)
        return task

    def _is_alone(self, work: Work) -> bool:
        """Whether each client does the work by itself: always where replies are coded one by one."""
        return self.per_client or work.__name__ in self._coded

    def _affine_mean(self, cohort: Cohort, task: Task) -> Any:
        """The work on the mean client.

        If clients run one by one, the plain sum costs the same, and it reads the data of a client only once for all
        points of the work.
        """
        chunk = self._chunk_for(cohort.size, task.message)

        def ask(id: UInt32[Array, ""]) -> Any:
            own_key = jax.random.fold_in(task.key, id)
            return self._sized(id[None], lambda fed: task.work(fed.population.client(id), own_key, **task.message))

        if self._placed is not None:
            total, flags, _ = by_owner(self, self._placed, cohort, task, keep_replies=False)
            # as with the mean client, one reply that is not finite spoils them all
            return trees.divide(total, jnp.where(flags.accepted == cohort.size, cohort.size, jnp.nan))
        if self.mesh is None and chunk == 1:
            first = ask(cohort.ids[0])
            total, _ = lax.scan(lambda total, id: (trees.add(total, ask(id)), None), first, cohort.ids[1:])
            return trees.divide(total, cohort.size)
        if self.mesh is None:
            return task.work(MeanOracle(self.population, cohort.ids, chunk), task.key, **task.message)

        def some(fed: "Traced", task: Task, ids: Ids, slots: Any) -> tuple[Any, Any]:
            # the work is affine, so the means of the devices are weighted by their shares of the cohort
            oracle = MeanOracle(fed.population, ids, fed._chunk_for(ids.shape[0], task.message), slots)
            return trees.scale(jnp.sum(slots) / cohort.size, task.work(oracle, task.key, **task.message)), ()

        return by_order(self, some, cohort, task)[0]

    def _ask(self, task: Task, id: UInt32[Array, ""]) -> Any:
        """One client's reply (zeros if it is not accepted), its flags, and its memory after the exchange."""
        work, key, message = task
        before = jax.tree.map(lambda leaf: leaf[id], self.memory) if terms_of(work).stateful else ()
        reply, memory = answer(self.population, work, key, id, before, message, self.codecs)
        if self.codecs.named:
            reply = self.codecs.replied(jax.random.fold_in(key, id), work.__name__, reply, message)
        if self.faults is None:
            accepted = sound(reply)
            flags = Flags(jnp.array(True), accepted)
        else:
            non_finite = ~sound(reply)
            reply, replied, timely = self.faults.strike(jax.random.fold_in(key, id), id, reply)
            accepted = replied & timely & sound(reply)
            flags = Flags(replied, accepted, non_finite)
        reply = jax.tree.map(lambda leaf: jnp.where(accepted, leaf, jnp.zeros_like(leaf)), reply)
        return reply, flags, trees.where(accepted, memory, before)

    def _sum(self, cohort: Cohort, task: Task) -> tuple[Any, "Flags"]:
        if self._placed is not None:
            total, flags, memory = by_owner(self, self._placed, cohort, task, keep_replies=False)
            self._remember(cohort.ids, memory)
            return total, flags
        if cohort.size == 1:
            reply, flags, memory = self._sized(cohort.ids, lambda fed: fed._ask(task, cohort.ids[0]))
            self._remember(cohort.ids, jax.tree.map(lambda leaf: leaf[None], memory))
            return reply, jax.tree.map(lambda flag: flag.astype(jnp.int32), flags)

        def some(fed: "Traced", task: Task, ids: Ids, slots: Any) -> tuple[Any, Any]:
            total, flags, memory = fed._chunks(ids, slots, task)
            return (total, flags), memory

        (total, flags), memory = by_order(self, some, cohort, task)
        self._remember(cohort.ids, memory)
        return total, flags

    def _chunks(self, ids: Ids, slots: Any, task: Task) -> tuple[Any, "Flags", PyTree]:
        """The sum of the replies in valid slots, the counts of their flags, and the memories afterwards."""
        size = ids.shape[0]
        chunk = self._chunk_for(size, task.message)
        padding = -size % chunk
        masked = padding > 0 or slots is not None
        slots = jnp.ones(size, bool) if slots is None else slots
        clients, order = with_several_capacities(self.population), None
        if clients is not None and 1 < chunk < size:  # clients of similar size share a chunk
            order = jnp.argsort(clients.counts(ids))
            ids, slots = ids[order], slots[order]
        ids = jnp.concatenate([ids, jnp.repeat(ids[-1:], padding)]).reshape(-1, chunk)
        slots = jnp.concatenate([slots, jnp.zeros(padding, bool)]).reshape(-1, chunk)

        def ask_chunk(ids: Ids, slots: Any) -> tuple[Any, Any]:
            def together(fed: "Traced") -> Any:
                one = lambda id: fed._ask(task, id)
                return jax.tree.map(lambda leaf: leaf[None], one(ids[0])) if chunk == 1 else jax.vmap(one)(ids)

            replies, flags, memory = self._sized(ids, together)
            if masked:
                # padding repeats a client, whose reply must not be added twice
                keep = lambda leaf: jnp.where(slots.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, jnp.zeros_like(leaf))
                replies = jax.tree.map(keep, replies)
            counts = jax.tree.map(lambda flag: jnp.sum(flag & slots, dtype=jnp.int32), flags)
            return (jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), replies), counts), memory

        if ids.shape[0] == 1:
            (total, flags), memory = ask_chunk(ids[0], slots[0])
        else:

            def add_chunk(sums: Any, part: Any) -> tuple[Any, Any]:
                more, memory = ask_chunk(*part)
                return jax.tree.map(jnp.add, sums, more), memory

            reply, flags, _ = jax.eval_shape(lambda id: self._ask(task, id), ids[0, 0])
            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), reply)
            start = (zeros, jax.tree.map(lambda _: jnp.zeros((), jnp.int32), flags))
            (total, flags), memory = lax.scan(add_chunk, start, (ids, slots))
            memory = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), memory)
        memory = jax.tree.map(lambda leaf: leaf[:size], memory)
        if order is not None:
            memory = jax.tree.map(lambda leaf: jnp.zeros_like(leaf).at[order].set(leaf), memory)
        return total, flags, memory

    def _sized(self, ids: Ids, ask: Callable[["Traced"], Any]) -> Any:
        """Call `ask` with a handle that pads these clients no further than the largest of them needs."""
        clients = with_several_capacities(self.population)
        if clients is None:
            return ask(self)

        def padded(capacity: int) -> Callable[[], Any]:
            fed = copy.copy(self)
            fed.population = clients.within(capacity)
            return lambda: ask(fed)

        which = jnp.searchsorted(jnp.array(clients.capacities), jnp.max(clients.counts(ids)))
        return lax.switch(which, [padded(each) for each in clients.capacities])

    def _remember(self, ids: Ids, memory: PyTree) -> None:
        if jax.tree.leaves(memory):
            if self._conditional:
                self._entangled = True
            else:
                self._undo.append((ids, jax.tree.map(lambda all: all[ids], self.memory), memory))
            self.memory = jax.tree.map(lambda all, rows: all.at[ids].set(rows), self.memory, memory)

    def settled(self, memory: PyTree, void: Any) -> PyTree:
        """The memories after the round, or those before it (`memory`) if the round is void."""
        if self._entangled:
            return trees.where(void, memory, self.memory)
        if len(self._undo) == 1:
            # written once, with rows that depend on all that is read: so XLA needs no copy of all memories per round
            ids, before, after = self._undo[0]
            return jax.tree.map(lambda all, *rows: all.at[ids].set(jnp.where(void, *rows)), memory, before, after)
        settled = self.memory
        for ids, before, _ in reversed(self._undo):
            restore = lambda all, rows: all.at[ids].set(jnp.where(void, rows, all[ids]))
            settled = jax.tree.map(restore, settled, before)
        return settled

    def _note_flags(self, work: Work, cohort: Cohort, flags: "Flags") -> None:
        broken = flags.accepted < cohort.size if flags.non_finite is None else flags.non_finite > 0
        self._note(work, cohort, Contacts(cohort.size, flags.replied, flags.accepted), flags.accepted, broken)

    def _note(self, work: Work, cohort: Cohort, contacts: Contacts, accepted: Any, broken: Any) -> None:
        self.void |= accepted < least_accepted(self.quorum, cohort.size)
        self.broken |= broken
        self.accepted = accepted
        label = self._program.label(work)
        if self._delay is not None:
            self.seconds += self._program.seconds(cohort, label, self._delay)
        if is_dynamic(self._conditional, self.faults, self._is_alone(work), terms_of(work), cohort.size):
            self.contacts[label] = Contacts(*(jnp.asarray(count, jnp.int32) for count in contacts))

    def _chunk_for(self, size: int, message: Mapping[str, Any]) -> int:
        if self.chunk is not None:
            return min(self.chunk, size)
        most = default_chunk(size, trees.size(jax.tree.map(jnp.asarray, dict(message))))
        return -(-size // -(-size // most))  # the fewest chunks, filled evenly: less padding


def default_chunk(count: int, floats: int) -> int:
    """How many clients run side by side.

    On a CPU the caches decide: tiny models run together, all others one by one (a batched product of five 100 x 100
    matrices with vectors took 2.5 times as long as five products). On an accelerator, as many as fit comfortably.
    """
    budget = 2**7 if jax.default_backend() == "cpu" else 2**28
    return max(1, min(count, budget // max(1, floats)))

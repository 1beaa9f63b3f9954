"""What a method can ask of its clients, and what every handle on them shares.

A method's round is an ordinary function. It calls a handle, `fed`, wherever the pseudocode says that clients send
something. `Federation` is the protocol of that handle. The handles are composed of the parts below:

- `Draws` makes cohorts, from a population or from a replay;
- `Program` labels the exchanges of a round and knows which fields a cohort already holds;
- `answer` lets one client do its work;
- `take_branch` is the `cond` of handles that run outside compiled code.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Integer, Key, PyTree, UInt32

from fedspam._internal import prng, trees
from fedspam.clients import Ids, Population
from fedspam.clients.faults import Faults
from fedspam.federation.codecs.feedback import WithLeftovers
from fedspam.federation.codecs.fields import NO_CODECS, Codecs, in_order

Work = Callable[..., Any]
Replay = Mapping[str, Integer[Array, "rounds ..."]]


@dataclass(frozen=True)
class WorkTerms:
    """What `@on_client` declares about a work."""

    affine: bool = False
    stateful: bool = False
    echo: bool = False


WORK_NAMES: set[str] = set()  # of every work that has been marked so far


def on_client(function: Any = None, *, affine: bool = False, stateful: bool = False, echo: bool = False) -> Any:
    """Mark a method as work that runs on a client: ``work(self, oracle, key, **message) -> reply``.

    Arguments:
        affine: the reply is affine in the oracle's gradients, and all of them are taken with `key` itself. The mean of
            such replies is the reply of the mean client, which costs one central gradient.
        stateful: the client keeps a memory: ``work(self, oracle, key, memory, **message) -> (reply, memory)``.
        echo: the new memory depends on the reply as the server decodes it: the work returns ``(reply, remember)``, and
            the memory is ``remember(arrived)``. So a method can correct for a codec that it does not know.
    """
    if echo and not stateful:
        raise ValueError("echo=True needs stateful=True: what arrived is for the client's memory")

    def mark(function: Any) -> Any:
        function.terms = WorkTerms(affine, stateful, echo)
        WORK_NAMES.add(function.__name__)
        return function

    return mark if function is None else mark(function)


def terms_of(work: Work) -> WorkTerms:
    """What `@on_client` declared about a work."""
    terms = getattr(work, "terms", None)
    if terms is None:
        raise ValueError(f"{getattr(work, '__qualname__', work)} is not a client work; decorate it with @on_client")
    return terms


def works_of(part: Any) -> dict[str, Work]:
    """Every client work of a method and of the parts it is made of, by name."""
    found: dict[str, Work] = {}
    for name in dir(type(part)):
        if isinstance(getattr(getattr(type(part), name, None), "terms", None), WorkTerms):
            found[name] = getattr(part, name)
    for name in getattr(type(part), "__dataclass_fields__", {}):
        for work_name, work in works_of(getattr(part, name)).items():
            if work_name in found:
                raise ValueError(
                    f"two client works are called {work_name!r}; names identify works on the wire: rename one"
                )
            found[work_name] = work
    return found


@dataclass(frozen=True)
class Cohort:
    """The clients that take part in an exchange, and the key of the round."""

    ids: Ids
    key: Key[Array, ""]
    chosen: UInt32[Array, ""] | None = None  # the member that a replay prescribes for `one`
    fixed: bool = False  # whether no other client can stand in for a member
    seconds: Any = None  # until each member replies for the first time, where clients take time
    # Identity of the draw: members already hold fields that were sent to it earlier in the round.
    origin: object = field(default_factory=object)

    @property
    def size(self) -> int:
        return self.ids.shape[0]

    def one(self, key: Key[Array, ""]) -> "Cohort":
        """One member, drawn uniformly."""
        if self.chosen is not None:
            id = self.chosen
        elif self.size == 1:
            return self
        else:
            id = self.ids[prng.index(prng.fold_name(key, "one"), self.size)]
        return replace(self, ids=jnp.asarray(id, jnp.uint32)[None], seconds=None)


def fitted(method: Any, population: Population | None) -> Any:
    """The form of a method that fits these clients. Only a method with `for_clients` has more than one form."""
    choose = getattr(method, "for_clients", None)
    return method if choose is None or population is None else choose(population)


class Federation(Protocol):
    """What a method can ask of its clients."""

    @property
    def accepted(self) -> Any:
        """How many replies of the last exchange were accepted: all of them, unless something went wrong."""
        ...

    @property
    def population_size(self) -> int | None:
        """How many clients a cohort is drawn from, none of them twice; None if endless, unknown, or with repetition."""
        ...

    def sample(self, key: Key[Array, ""], count: int, role: str = "cohort", times: int = 1) -> Cohort:
        """A fresh cohort, or several independent ones together.

        The role separates the draws of one round, and names them in a replay.
        """
        ...

    def everyone(self, key: Key[Array, ""]) -> Cohort:
        """All clients of a finite population, as one cohort."""
        ...

    def client(self, id: int | UInt32[Array, ""], key: Key[Array, ""]) -> Cohort:
        """The cohort of this one client."""
        ...

    def mean(self, cohort: Cohort, work: Work, /, **message: Any) -> Any:
        """Send the message to the cohort, let each member do the work, and average the replies."""
        ...

    def collect(self, cohort: Cohort, work: Work, /, **message: Any) -> tuple[Any, Bool[Array, " cohort"]]:
        """The replies, stacked, and which of them are accepted. For small replies."""
        ...

    def cond(self, predicate: Bool[Array, ""], yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """`yes()` or `no()`; either may contain exchanges."""
        ...


class Draws:
    """Makes the cohorts of a round: from the population, or from a replay that prescribes the ids.

    Arguments:
        population: the clients; None where only the sizes of cohorts matter.
        replay: ids by role and round.
        round: which round of the replay.
    """

    def __init__(self, population: Population | None, replay: Replay | None = None, round: Any = 0) -> None:
        self._population, self._replay, self.round = population, replay, round
        self.roles: set[str] = set()  # of the draws made so far
        self.names_a_client = False  # whether a client was asked for by its id

    @property
    def population_size(self) -> int | None:
        """How many clients a cohort is drawn from, none of them twice; None if endless, unknown, or with repetition."""
        return None if getattr(self._population, "replace", False) else getattr(self._population, "size", None)

    def sample(self, key: Key[Array, ""], count: int, role: str = "cohort", times: int = 1) -> Cohort:
        self.roles.add(role)
        ids, seconds = self._prescribed(role, count * times), None
        if ids is None:
            ids, seconds = self._drawn(prng.fold_name(key, role), count, times)
        chosen = self._prescribed("prox", 1) if role == "cohort" else None
        return Cohort(ids, key, None if chosen is None else chosen[0], seconds=seconds)

    def everyone(self, key: Key[Array, ""]) -> Cohort:
        if self._population is None:
            raise ValueError("this method asks every client; give the population, so that their number is known")
        if self._population.size is None:
            raise ValueError("this method asks every client, and the population is endless; use a finite one")
        return Cohort(jnp.arange(self._population.size, dtype=jnp.uint32), key, fixed=True)

    def client(self, id: int | UInt32[Array, ""], key: Key[Array, ""]) -> Cohort:
        self.names_a_client = True
        size = None if self._population is None else self._population.size
        if isinstance(id, int) and size is not None and not 0 <= id < size:
            raise ValueError(f"this method asks client {id}, but the clients are 0 to {size - 1}; name one of these")
        return Cohort(jnp.asarray(id, jnp.uint32)[None], key, fixed=True)

    def _drawn(self, key: Key[Array, ""], count: int, times: int) -> tuple[Ids, Any]:
        """The ids, and the seconds of each client where clients take time."""
        population = self._population
        if population is None:
            return jnp.zeros(count * times, jnp.uint32), None
        draw = getattr(population, "timed", None) or (lambda key, count: (population.sample(key, count), None))
        if times == 1:
            return draw(key, count)
        drawn = jax.vmap(lambda key: draw(key, count))(jax.random.split(key, times))
        return jax.tree.map(lambda part: part.reshape(-1), drawn)

    def _prescribed(self, role: str, count: int) -> Ids | None:
        if self._replay is None or role not in self._replay:
            return None
        ids = jnp.asarray(self._replay[role], jnp.uint32)
        ids = ids[:, None] if ids.ndim == 1 else ids
        if ids.shape[1] != count:
            raise ValueError(
                f"replay[{role!r}] has {ids.shape[1]} clients per round, but the method draws {count}; "
                f"give an array of shape (rounds, {count})"
            )
        return ids[self.round]


def check_replay(replay: Replay | None, rounds: int, population: Population, roles: frozenset[str]) -> None:
    """Refuse a replay that is too short, holds no ids, or names clients or draws that do not exist."""
    known = roles | {"prox"} if "cohort" in roles else roles  # which member of the cohort moves
    for role, ids in (replay or {}).items():
        if role not in known:
            raise ValueError(
                f"replay[{role!r}] is no draw of this method; it draws {', '.join(sorted(known)) or 'none'}"
            )
        ids = np.asarray(ids)
        if ids.ndim == 0:
            raise ValueError(f"replay[{role!r}] = {ids!r} is one value; give ids of clients for each round")
        if ids.shape[0] < rounds:
            raise ValueError(
                f"replay[{role!r}] has {ids.shape[0]} rounds, but rounds={rounds}; shorten the run or extend the replay"
            )
        if not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(
                f"replay[{role!r}] has dtype {ids.dtype}; ids of clients must be integers: "
                "use .astype(int) if they are whole numbers"
            )
        size = 2**32 if population.size is None else population.size
        if ids.size and (ids.min() < 0 or ids.max() >= size):
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise ValueError(f"replay[{role!r}] names client {wrong}; the population has clients 0 to {size - 1}")


class Contacts(NamedTuple):
    """How an exchange went: clients asked, replies that came back, replies that were accepted."""

    asked: Any
    replied: Any
    accepted: Any


class Program:
    """The exchanges of one round in program order: their labels, and the fields that each cohort already holds.

    A field that was sent to a cohort earlier in the round is not sent again. So SPAM-PP's prox client, a member of the
    cohort, receives g_k alone.
    """

    def __init__(self, scope: str = "") -> None:
        self._scope = scope  # the branches entered so far: '', '@yes', '@no', ...
        self._calls: dict[str, int] = {}
        self._conditions = 0
        self._held: dict[object, dict[str, tuple[list[Any], Any]]] = {}  # the arrays as sent, and as they arrived
        self._met: set[object] = set()  # origins of the cohorts that had an exchange

    def label(self, work: Work) -> str:
        """The name of this exchange within the round."""
        name = work.__name__
        self._calls[name] = self._calls.get(name, 0) + 1
        return name + (f".{self._calls[name]}" if self._calls[name] > 1 else "") + self._scope

    def branches(self) -> tuple["Program", "Program"]:
        """The programs inside the two branches of a condition. Fields sent inside are not held after it."""
        self._conditions += 1
        number = str(self._conditions) if self._conditions > 1 else ""
        return self._inside(f"@yes{number}"), self._inside(f"@no{number}")

    def fresh(self) -> "Program":
        """The same program, about to begin."""
        return self._inside("")

    def _inside(self, branch: str) -> "Program":
        program = Program(self._scope + branch)
        program._held = {origin: dict(fields) for origin, fields in self._held.items()}
        program._met = set(self._met)
        return program

    def seconds(self, cohort: Cohort, label: str, delay: Callable[..., Any]) -> Any:
        """How long an exchange waits for its slowest client. The draw of a cohort has timed its first exchange."""
        seconds, key = cohort.seconds, prng.fold_name(cohort.key, f"delay of {label}")
        if seconds is None or cohort.origin in self._met:
            seconds = jax.vmap(lambda id: delay(jax.random.fold_in(key, id), id))(cohort.ids)
        self._met.add(cohort.origin)
        return jnp.max(seconds)

    def unsent(self, cohort: Cohort, message: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a message that the cohort does not hold yet. They count as sent from now on."""
        return self.deliver(cohort, message, lambda name, arrived: message[name])[0]

    def deliver(
        self, cohort: Cohort, message: Mapping[str, Any], send: Callable[[str, dict[str, Any]], Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fields that the cohort does not hold yet, and all fields as they arrived when they were sent.

        ``send(name, arrived)`` returns how a field arrives, beside those that have arrived. It is called only
        for fields that are sent now: of the others, clients keep what they have.
        """
        held = self._held.setdefault(cohort.origin, {})
        fresh, arrived = {}, {}
        for name in in_order(message):
            leaves = jax.tree.leaves(message[name])
            if name not in held or not same_objects(held[name][0], leaves):
                fresh[name] = message[name]
                held[name] = (leaves, send(name, arrived))
            arrived[name] = held[name][1]
        return {name: fresh[name] for name in message if name in fresh}, {name: arrived[name] for name in message}


def same_objects(known: list[Any] | None, leaves: list[Any]) -> bool:
    """Whether a field holds the very arrays that were sent before."""
    return known is not None and len(known) == len(leaves) and all(map(operator.is_, known, leaves))


def answer(
    population: Population,
    work: Work,
    key: Key[Array, ""],
    id: Any,
    memory: PyTree,
    message: Mapping[str, Any],
    codecs: Codecs = NO_CODECS,
) -> tuple[Any, PyTree]:
    """One client does its work: its reply, and its memory after it."""
    return perform(work, population.client(id), jax.random.fold_in(key, id), memory, message, codecs)


def perform(
    work: Work, oracle: Any, own_key: Key[Array, ""], memory: PyTree, message: Mapping[str, Any], codecs: Codecs
) -> tuple[Any, PyTree]:
    """The work of a client on its oracle, with its own key; with error feedback, the reply that is to arrive."""
    terms = terms_of(work)
    if not terms.stateful:
        return work(oracle, own_key, **message), memory
    own, errors = memory if isinstance(memory, WithLeftovers) else (memory, None)
    reply, own = work(oracle, own_key, own, **message)
    if errors is not None:
        reply, errors = codecs.corrected(own_key, work.__name__, reply, errors, message)
    if terms.echo:
        own = own(codecs.replied(own_key, work.__name__, reply, message))
    return reply, own if errors is None else WithLeftovers(own, errors)


def take_branch(fed: Any, predicate: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """`cond` outside compiled code: only the branch that is taken runs."""
    program, taken = fed.program, bool(predicate)
    fed.program = program.branches()[0 if taken else 1]
    try:
        return yes() if taken else no()
    finally:
        fed.program = program


def sound(reply: PyTree) -> Any:
    """Whether a reply is finite in everything that can reach the server's state.

    Parts whose type says ``report = True``, such as certificates, are only recorded. They are not checked, so that a
    simulation that does not record them need not compute them.
    """
    parts = jax.tree.leaves(reply, is_leaf=trees.is_report)
    return trees.finite([part for part in parts if not trees.is_report(part)])


def is_dynamic(conditional: bool, faults: Faults | None, per_client: bool, terms: WorkTerms, count: int) -> bool:
    """Whether the contacts of an exchange must be counted as it runs. Otherwise every client replies."""
    on_mean_client = terms.affine and not per_client
    return conditional or faults is not None or (count > 1 and not on_mean_client)

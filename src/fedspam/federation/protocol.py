"""The handle a method holds on its clients: `fed`.

A method's round is an ordinary function that calls `fed` wherever the pseudocode says that the clients
send something. Only the handle changes with the world the method runs in: `Traced` here, inside a
compiled simulation; `Null` in `fedspam.federation.ledger`, which only looks at what would be sent; `Loopback` in
`fedspam.federation.loopback`, which sends real bytes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Integer, Key, PyTree, UInt32

from fedspam._internal import prng, trees
from fedspam.clients import Ids, Population
from fedspam.clients.faults import Faults

Work = Callable[..., Any]
Replay = Mapping[str, Integer[Array, "rounds ..."]]


@dataclass(frozen=True)
class WorkTerms:
    """What `@on_client` promises about a work."""

    affine: bool = False
    stateful: bool = False


WORK_NAMES: set[str] = set()  # of all that was marked so far


def on_client(function: Any = None, *, affine: bool = False, stateful: bool = False) -> Any:
    """Mark a method as done on a client: ``work(self, oracle, key, **message) -> reply``.

    Arguments:
        affine: the reply is affine in the oracle's gradients, all of them taken with `key` itself. The mean
            of such replies is the reply of the mean client, which costs one central gradient.
        stateful: the client remembers; ``work(self, oracle, key, memory, **message) -> (reply, memory)``.
    """

    def mark(function: Any) -> Any:
        function.terms = WorkTerms(affine, stateful)
        WORK_NAMES.add(function.__name__)
        return function

    return mark if function is None else mark(function)


def terms_of(work: Work) -> WorkTerms:
    terms = getattr(work, "terms", None)
    if terms is None:
        raise ValueError(f"{getattr(work, '__qualname__', work)} is no client work; decorate it with @on_client")
    return terms


@dataclass(frozen=True)
class Cohort:
    """The clients asked together in a round, and the key of that round."""

    ids: Ids
    key: Key[Array, ""]
    chosen: UInt32[Array, ""] | None = None  # what a replay says of `one`
    origin: object = field(default_factory=object)  # whose members these are: what it was sent, they hold

    @property
    def size(self) -> int:
        return self.ids.shape[0]

    def one(self, key: Key[Array, ""]) -> "Cohort":
        """One member, uniformly."""
        if self.chosen is not None:
            id = self.chosen
        elif self.size == 1:
            return self
        else:
            id = self.ids[prng.index(prng.fold_name(key, "one"), self.size)]
        return replace(self, ids=jnp.asarray(id, jnp.uint32)[None])


class Federation(Protocol):
    """What a method can ask of its clients."""

    @property
    def accepted(self) -> Any:
        """How many replies of the last exchange counted: all of them, unless something went wrong."""
        ...

    def sample(self, key: Key[Array, ""], count: int, role: str = "cohort", times: int = 1) -> Cohort:
        """A fresh cohort, or several independent ones together. The role separates the draws of one round, and
        names them in a replay."""
        ...

    def everyone(self, key: Key[Array, ""]) -> Cohort: ...

    def client(self, id: int | UInt32[Array, ""], key: Key[Array, ""]) -> Cohort:
        """The cohort of this one client."""
        ...

    def mean(self, cohort: Cohort, work: Work, **message: Any) -> Any:
        """Send the message to the cohort, let each do the work, and average the replies."""
        ...

    def collect(self, cohort: Cohort, work: Work, **message: Any) -> tuple[Any, Bool[Array, " cohort"]]:
        """The replies, stacked, and which of them count. For small replies."""
        ...

    def cond(self, predicate: Bool[Array, ""], yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """`yes()` or `no()`; either may hold exchanges."""
        ...


class Contacts(NamedTuple):
    """How an exchange went: clients asked, replies that came back, replies that counted."""

    asked: Any
    replied: Any
    accepted: Any


class Program:
    """The exchanges of one round in the order of the program: their labels, and what each cohort already holds.

    A field that a cohort was sent earlier in the round is not sent again, so SPAM-PP's prox client, a member
    of the cohort, receives g_k alone.
    """

    def __init__(self, scope: str = "") -> None:
        self._scope = scope  # the branches that were entered: '', '@yes', '@no', ...
        self._calls: dict[str, int] = {}
        self._conditions = 0
        self._held: dict[object, dict[str, list[Any]]] = {}

    def label(self, work: Work) -> str:
        name = work.__name__
        self._calls[name] = self._calls.get(name, 0) + 1
        return name + (f".{self._calls[name]}" if self._calls[name] > 1 else "") + self._scope

    def branches(self) -> tuple["Program", "Program"]:
        """The programs inside the two branches of a condition; what they send, nobody holds after it."""
        self._conditions += 1
        number = str(self._conditions) if self._conditions > 1 else ""
        return self._inside(f"@yes{number}"), self._inside(f"@no{number}")

    def fresh(self) -> "Program":
        """The same program, about to begin."""
        return self._inside("")

    def _inside(self, branch: str) -> "Program":
        program = Program(self._scope + branch)
        program._held = {origin: dict(fields) for origin, fields in self._held.items()}
        return program

    def unsent(self, cohort: Cohort, message: Mapping[str, Any]) -> dict[str, Any]:
        held = self._held.setdefault(cohort.origin, {})
        fresh = {}
        for name, value in message.items():
            leaves = jax.tree.leaves(value)
            known = held.get(name)
            if (
                known is None
                or len(known) != len(leaves)
                or any(a is not b for a, b in zip(known, leaves, strict=True))
            ):
                fresh[name] = value
                held[name] = leaves
        return fresh


def sound(reply: PyTree) -> Any:
    """Whether a reply is finite in all that can reach the server's state.

    Parts whose type says ``report = True``, such as certificates, are only recorded: they are not looked at, so that a
    simulation that does not record them need not compute them.
    """
    parts = jax.tree.leaves(reply, is_leaf=trees.is_report)
    return trees.finite([part for part in parts if not trees.is_report(part)])


def works_of(part: Any) -> dict[str, Work]:
    """Every client work of an algorithm and of the parts it is made of, by name."""
    found: dict[str, Work] = {}
    for name in dir(type(part)):
        if isinstance(getattr(getattr(type(part), name, None), "terms", None), WorkTerms):
            found[name] = getattr(part, name)
    for name in getattr(type(part), "__dataclass_fields__", {}):
        for work_name, work in works_of(getattr(part, name)).items():
            if work_name in found:
                raise ValueError(f"two client works are called {work_name!r}; their names go over the wire: rename one")
            found[work_name] = work
    return found


def replayed(replay: Replay | None, role: str, round: Any, count: int) -> Ids | None:
    """The ids that a replay prescribes for this draw, or None."""
    if replay is None or role not in replay:
        return None
    ids = jnp.asarray(replay[role], jnp.uint32)
    ids = ids[:, None] if ids.ndim == 1 else ids
    if ids.shape[1] != count:
        raise ValueError(f"replay[{role!r}] has {ids.shape[1]} clients a round, the method asks for {count}")
    return ids[round]


def cohort_of(
    population: Population, key: Key[Array, ""], count: int, role: str, times: int, replay: Replay | None, round: Any
) -> Cohort:
    """The cohort of a draw: the replay's if it prescribes one, a sample of the population otherwise."""
    ids = replayed(replay, role, round, count * times)
    if ids is None:
        draw_key = prng.fold_name(key, role)
        if times == 1:
            ids = population.sample(draw_key, count)
        else:
            ids = jax.vmap(lambda key: population.sample(key, count))(jax.random.split(draw_key, times)).reshape(-1)
    chosen = replayed(replay, "prox", round, 1) if role == "cohort" else None
    return Cohort(ids, key, None if chosen is None else chosen[0])


def everyone_of(population: Population, key: Key[Array, ""]) -> Cohort:
    if population.size is None:
        raise ValueError("this method asks every client, and the population is endless; use a finite one")
    return Cohort(jnp.arange(population.size, dtype=jnp.uint32), key)


def is_dynamic(conditional: bool, faults: Faults | None, per_client: bool, terms: WorkTerms, count: int) -> bool:
    """Whether the contacts of an exchange must be counted as it runs; otherwise all are asked and all answer."""
    on_mean_client = terms.affine and not per_client
    return conditional or faults is not None or (count > 1 and not on_mean_client)


def default_chunk(count: int, floats: int) -> int:
    """Clients side by side. On a CPU the caches decide: tiny models go together, all others one by one (a batched
    product of five 100 x 100 matrices with vectors took 2.5 times as long as five products). On an accelerator,
    as many as fit comfortably."""
    budget = 2**7 if jax.default_backend() == "cpu" else 2**28
    return max(1, min(count, budget // max(1, floats)))

"""What a method sends: the message and reply of every exchange, priced in floats and bytes before anything runs."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from fedspam._internal import trees
from fedspam._internal.brief import Brief
from fedspam._internal.trees import Key, Params, Scalar, struct
from fedspam.clients import Faults, Population
from fedspam.federation import wire
from fedspam.federation.codecs import NO_CODECS, Codecs
from fedspam.federation.cohorts import Cohort, Draws
from fedspam.federation.handle import fitted
from fedspam.federation.program import Program
from fedspam.federation.void import is_dynamic
from fedspam.federation.works import Work, terms_of, works_of

# Every message carries the client, the round and the randomness of the work; every reply, the client and the round.
ASK = {
    "@client": jax.ShapeDtypeStruct((), jnp.uint32),
    "@key": jax.ShapeDtypeStruct((2,), jnp.uint32),
    "@round": jax.ShapeDtypeStruct((), jnp.uint32),
}
ANSWER = {"@client": jax.ShapeDtypeStruct((), jnp.uint32), "@round": jax.ShapeDtypeStruct((), jnp.uint32)}


@dataclass(frozen=True, repr=False)
class Exchange(Brief):
    """One message to a cohort and the replies to it, as they stand in the program of a round."""

    label: str
    work: str
    cohort: int
    message: Mapping[str, PyTree]  # all arguments of the work
    sent: Mapping[str, PyTree]  # those that the cohort does not hold yet
    reply: PyTree
    dynamic: bool  # whether the number of contacts depends on the run
    shared: bool  # whether the mean client does the work of all
    codecs: Codecs = NO_CODECS

    def ask(self, whole: bool = False) -> dict[str, PyTree]:
        """The fields of the message on the wire: those that the cohort does not hold yet, or the whole message."""
        return {**ASK, **self.codecs.shapes_of_fields(self.message if whole else self.sent)}

    @property
    def answer(self) -> dict[str, PyTree]:
        """The fields of a reply on the wire."""
        return {**ANSWER, **self.codecs.shapes_of_reply(self.work, self.reply)}

    @property
    def floats_down(self) -> int:
        return _floats(self.sent)

    @property
    def floats_up(self) -> int:
        return _floats(self.reply)

    @functools.cached_property
    def bytes_down(self) -> int:
        return wire.length(self.ask())

    @functools.cached_property
    def bytes_up(self) -> int:
        return wire.length(self.answer)


def _floats(tree: PyTree) -> int:
    """The number of floats in arrays. Scalars and seeds are not counted here; their bytes are."""
    is_float = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
    return sum(leaf.size for leaf in jax.tree.leaves(tree) if leaf.ndim > 0 and is_float(leaf))


@struct
class StandIn:
    """A client of unknown data: its loss is some differentiable number."""

    @property
    def weight(self) -> float:
        return 1.0

    def __call__(self, params: Params, key: Key | None = None) -> Scalar:
        return 0.5 * trees.squared_norm(params)


@dataclass(eq=False, repr=False)
class Null(Draws):
    """The handle for abstract evaluation: it computes nothing and notes every exchange."""

    population: Population | None = None
    _: KW_ONLY
    faults: Faults | None = None
    per_client: bool = False
    memory: PyTree = ()
    codecs: Codecs = NO_CODECS

    def __post_init__(self) -> None:
        super().__init__(self.population)
        self._program = Program()
        self._conditional = False
        self.exchanges: list[Exchange] = []
        self.branches = False
        self.accepted = 0

    def mean(self, cohort: Cohort, work: Work, /, **message: Any) -> Any:
        oracle = StandIn() if self.population is None else self.population.client(cohort.ids[0])
        if terms_of(work).stateful:
            reply, _ = work(oracle, cohort.key, self.memory, **message)
        else:
            reply = work(oracle, cohort.key, **message)
        alone = self.per_client or self.faults is not None or self.codecs.codes_reply(work.__name__, reply)
        dynamic = is_dynamic(self._conditional, self.faults, alone, terms_of(work), cohort.size)
        shared = terms_of(work).affine and cohort.size > 1 and not alone
        label = self._program.label(work)
        sent = self._program.deliver(cohort, message, lambda name, arrived: message[name])[0]
        shapes = _shapes(message), _shapes(sent), _shapes(reply)
        self.exchanges.append(Exchange(label, work.__name__, cohort.size, *shapes, dynamic, shared, self.codecs))
        self.accepted = cohort.size
        return reply

    def collect(self, cohort: Cohort, work: Work, /, **message: Any) -> tuple[Any, Bool[Array, " cohort"]]:
        reply = self.mean(cohort, work, **message)
        stack = lambda leaf: jnp.broadcast_to(leaf, (cohort.size, *leaf.shape))
        return jax.tree.map(stack, reply), jnp.ones(cohort.size, bool)

    def cond(self, predicate: Bool[Array, ""], yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        program, conditional = self._program, self._conditional
        self._conditional = self.branches = True
        results = []
        for inside, body in zip(program.branches(), (yes, no), strict=True):
            self._program = inside
            results.append(body())
        self._program, self._conditional = program, conditional
        return results[0]


@dataclass(frozen=True, repr=False)
class Plan(Brief):
    """The exchanges of a method: those of its start and those of one round."""

    start: tuple[Exchange, ...]
    round: tuple[Exchange, ...]
    branches: bool  # whether a coin decides which exchanges a round has
    roles: frozenset[str] = frozenset()  # of the draws, as a replay names them
    names_a_client: bool = False  # whether a client is asked for by its id, as a delegate is
    reported: tuple[str, ...] = ()  # what the method says of a round, by name

    def price(self, rows: Mapping[str, Any], shape: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
        """Floats and bytes per round and direction. Where rows count no contacts, each client is asked and replies."""
        total = {name: np.zeros(shape, np.int64) for name in ("floats_down", "floats_up", "bytes_down", "bytes_up")}
        count = lambda each, name: np.asarray(rows.get(f"{each.label}.{name}", each.cohort), np.int64)
        for each in self.round:
            asked, replied = count(each, "asked"), count(each, "replied")
            total["floats_down"] += asked * each.floats_down
            total["floats_up"] += replied * each.floats_up
            total["bytes_down"] += asked * each.bytes_down
            total["bytes_up"] += replied * each.bytes_up
        return total


def plan(
    method: Any, params: Params, population: Population | None = None, *, faults: Faults | None = None,
    per_client: bool = False, codecs: Codecs = NO_CODECS,
) -> Plan:  # fmt: skip
    """The exchanges of a method, found without computing or sending anything.

    >>> import jax.numpy as jnp
    >>> from fedspam import spam
    >>> exchange, = plan(spam(step_size=0.1, fresh_weight=0.1), jnp.zeros(7)).round
    >>> exchange.floats_down, exchange.floats_up       # 3d down, 2d up
    (21, 14)
    """
    method = fitted(method, population)
    memory = method.client_state(params)
    key = jax.random.key(0)
    found: list[Any] = []

    def watched(body: Callable[[Null], Any]) -> Any:
        # made in here: it holds tracers
        fed = Null(population, faults=faults, per_client=per_client, memory=memory, codecs=codecs)
        result = body(fed)
        found.append((tuple(fed.exchanges), fed.branches, fed.roles, fed.names_a_client))
        return result

    state = jax.eval_shape(lambda params: watched(lambda fed: method.init(params, key, fed)), params)
    _, info = jax.eval_shape(lambda state: watched(lambda fed: method.round(state, key, fed)), state)
    (start, _, roles, names_first), (round, branches, more_roles, names_later) = found
    for exchange in (*start, *round):
        _ = exchange.bytes_down, exchange.bytes_up  # priced once, before any round
    named = names_first or names_later
    made = Plan(start, round, branches, frozenset(roles | more_roles), named, tuple(trees.names(info)))
    codecs.check_names(made)
    errors = codecs.first_errors(made)
    for name, work in works_of(method).items() if errors else ():
        if name in errors and not terms_of(work).stateful:
            raise ValueError(
                f"error feedback needs clients with a memory, and the work {name} of this method has none; use the "
                "codec without feedback, or a method such as scaffold"
            )
    return made


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), tree)

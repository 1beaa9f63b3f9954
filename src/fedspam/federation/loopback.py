"""The handle over real bytes, inside one process. It shows that a method can be deployed.

Every message and reply is encoded, travels, and is decoded against the schema that `fedspam.federation.ledger.plan`
derived; replies arrive in shuffled order. The iterates must be those of the compiled simulation.
"""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from fedspam._internal import checks, prng, trees
from fedspam._internal.trees import Key, Params
from fedspam.clients import Population
from fedspam.federation import ledger, wire
from fedspam.federation.aggregation import Rule
from fedspam.federation.codecs import Codecs, CodecsLike
from fedspam.federation.codecs.fields import signed, verified
from fedspam.federation.cohorts import Cohort, Draws, Replay
from fedspam.federation.downlink import own_state, with_feedback
from fedspam.federation.ledger import Exchange
from fedspam.federation.program import Program, take_branch
from fedspam.federation.void import sound
from fedspam.federation.works import Work, answer, works_of


@dataclass(eq=False, repr=False)
class Client:
    """One client at the other end of the wire: its memory, and the fields sent to it earlier in the round."""

    works: Mapping[str, Work]
    id: int
    memory: PyTree

    def __post_init__(self) -> None:
        self._held: dict[str, PyTree] = {}
        self._round = -1

    def answer(self, data: bytes, exchange: Exchange) -> bytes:
        """Do the work that a message asks for and encode the reply."""
        message = verified(wire.decode(data, exchange.ask()))
        if int(message.pop("@client")) != self.id:
            raise ValueError(f"client {self.id} got a message for another client")
        round, key = int(message.pop("@round")), jax.random.wrap_key_data(jnp.asarray(message.pop("@key")))
        if round != self._round:
            self._round, self._held = round, {}
        self._held.update(exchange.codecs.received(message, exchange.message, self._held))
        fields = {name: self._held[name] for name in exchange.message}
        reply, self.memory = self.works[exchange.work](jnp.uint32(self.id), key, self.memory, fields)
        own_key, due = jax.random.fold_in(key, self.id), exchange.answer
        coded = exchange.codecs.answered(own_key, exchange.work, reply, fields)
        answer = signed({"reply": wire.cast(coded, due["reply"])}, due)
        return wire.encode({"@client": np.uint32(self.id), "@round": np.uint32(round), **answer})


def compiled_works(method: Any, population: Population, codecs: Codecs) -> dict[str, Work]:
    """Each client work as ``(id, key, memory, message) -> (reply, memory)``, compiled once for all clients."""

    def compiled(work: Work) -> Work:
        return jax.jit(lambda id, key, memory, message: answer(population, work, key, id, memory, message, codecs))

    return {name: compiled(work) for name, work in works_of(method).items()}


@dataclass(eq=False, repr=False)
class Loopback(Draws):
    """The handle whose messages travel as bytes. One `Loopback` serves a whole run.

    Arguments:
        method: the method, as server and clients both know it.
        population: whose clients are at the other end.
        params: parameters of the right shapes.
        seed: in which order replies arrive.
        replay, aggregate, codecs: as in `fedspam.simulate`.
    """

    method: Any
    population: Population
    params: Params
    _: KW_ONLY
    seed: int = 0
    replay: Replay | None = None
    aggregate: Rule | None = None
    codecs: Codecs | CodecsLike | None = None

    def __post_init__(self) -> None:
        coded = Codecs.of(self.codecs)
        self.plan = ledger.plan(self.method, self.params, self.population, codecs=coded)
        self._works = compiled_works(self.method, self.population, coded)
        self._first = coded.memory(self.method.client_state(self.params), self.plan)
        self._order = np.random.default_rng(self.seed)
        super().__init__(self.population, self.replay)
        self._clients: dict[int, Client] = {}
        self.bytes_down = self.bytes_up = self.accepted = 0
        self.start()

    def start(self) -> None:
        """Before `init`."""
        self.program, self._exchanges, self._wire_round = Program(), _by_label(self.plan.start), 0

    def begin(self, round: int) -> None:
        """Before each round."""
        self.program, self._exchanges = Program(), _by_label(self.plan.round)
        self.round, self._wire_round = round, round + 1

    def mean(self, cohort: Cohort, work: Work, /, **message: Any) -> Any:
        if self.aggregate is not None and cohort.size > 1:
            return self.aggregate(*self.collect(cohort, work, **message))
        replies = self._exchange(cohort, work, message)
        total = replies[0]
        for reply in replies[1:]:
            total = trees.add(total, reply)
        return trees.divide(total, len(replies))

    def collect(self, cohort: Cohort, work: Work, /, **message: Any) -> tuple[Any, Bool[Array, " cohort"]]:
        replies = self._exchange(cohort, work, message)
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *replies), jnp.ones(cohort.size, bool)

    def cond(self, predicate: Bool[Array, ""], yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        return take_branch(self, predicate, yes, no)

    def _exchange(self, cohort: Cohort, work: Work, message: Mapping[str, Any]) -> list[PyTree]:
        exchange = self._exchanges[self.program.label(work)]
        work_key = prng.fold_name(cohort.key, work.__name__)
        sent, at_clients = self.program.deliver(cohort, message, exchange.codecs.sent(work_key, message))
        if sent.keys() != exchange.sent.keys():
            raise AssertionError(f"{exchange.label} sends {sorted(sent)}, its schema says {sorted(exchange.sent)}")
        key, due = np.asarray(jax.random.key_data(work_key)), exchange.ask()
        coded = {name: wire.cast(at_clients[name].payload, due[name]) for name in sent}
        fields = {"@key": key, "@round": np.uint32(self._wire_round), **signed(coded, due)}
        known = {name: field.value for name, field in at_clients.items()}
        arrived: dict[int, PyTree] = {}
        for slot in self._order.permutation(cohort.size):
            id = int(cohort.ids[slot])
            data = wire.encode({"@client": np.uint32(id), **fields})
            answer = self._clients.setdefault(id, Client(self._works, id, self._first)).answer(data, exchange)
            self.bytes_down += len(data)
            self.bytes_up += len(answer)
            arrived[int(slot)] = self._accept(answer, exchange, id, known)
        self.accepted = cohort.size
        return [arrived[slot] for slot in range(cohort.size)]

    def _accept(self, answer: bytes, exchange: Exchange, id: int, message: Mapping[str, Any]) -> PyTree:
        reply = verified(wire.decode(answer, exchange.answer))
        if int(reply["@client"]) != id or int(reply["@round"]) != self._wire_round:
            who, when = int(reply["@client"]), int(reply["@round"])
            raise ValueError(f"a reply of client {who} and round {when} was not expected")
        value = exchange.codecs.accepted(exchange.work, reply["reply"], exchange.reply, message)
        if not bool(sound(value)):
            raise FloatingPointError(f"client {id} replied to {exchange.label} with NaN or infinity")
        return jax.tree.map(jnp.asarray, value)


def run(
    method: Any, population: Population, params: Params, *, rounds: int, key: Key | int, **options: Any
) -> tuple[Any, Loopback]:
    """The final state of a run over bytes, with the keys of `fedspam.simulate`, and the handle that counted bytes."""
    params = checks.params("params", params)
    key = prng.key_of(key)
    fed = Loopback(method, population, params, **options)
    method = with_feedback(method, Codecs.of(fed.codecs), fed.plan)
    state = method.init(params, jax.random.fold_in(key, 2**32 - 1), fed)
    for k in range(rounds):
        fed.begin(k)
        state, _ = method.round(state, jax.random.fold_in(key, k), fed)
    return own_state(state), fed


def _by_label(exchanges: tuple[Exchange, ...]) -> dict[str, Exchange]:
    return {exchange.label: exchange for exchange in exchanges}

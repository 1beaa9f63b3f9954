"""The federation over Flower: the handle `fed` of a method whose clients are nodes of a Grid."""

import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from jaxtyping import Array, Bool, Key, PyTree

from fedspam._internal import prng, trees
from fedspam._internal.trees import Params
from fedspam.clients import Ids
from fedspam.clients.over_selection import asked
from fedspam.federation import Cohort, Draws, Program, Work, sound, take_branch, terms_of, wire
from fedspam.federation.aggregation import Rule
from fedspam.federation.codecs.fields import signed
from fedspam.federation.program import same_objects
from fedspam.flower.privacy.masks import WORD
from fedspam.flower.privacy.secure_client import RECORD, SecureSum
from fedspam.flower.privacy.words import SummedReply
from fedspam.flower.server.asynchronous import Airborne, flushed
from fedspam.flower.server.events import RunEvents
from fedspam.flower.server.exchange import SPARE, Failure, RejectedError, Trip, decoded
from fedspam.flower.server.introductions import Nodes
from fedspam.flower.server.journal import Journal, JournalEntry, Tally
from fedspam.flower.server.plain import PlainApps
from fedspam.flower.server.replies import Replies
from fedspam.flower.server.request import MessageForm, Request, VoidError, addressed, listed, mean_of, stacked
from fedspam.flower.server.secure import Accept, Outcome, SecureAttempt
from fedspam.flower.server.stop import pause
from fedspam.flower.wire import arrays, envelope
from fedspam.flower.wire.schema import NodePopulation, Schema

LOG = logging.getLogger("flwr")


@dataclass(eq=False, kw_only=True)
class Flower:
    """The handle of a method whose messages travel over Flower's Grid. One handle serves a whole run."""

    grid: Grid
    nodes: Nodes  # which node is which client
    population: NodePopulation  # the clients that train
    schema: Schema  # the exchanges of the method
    form: MessageForm  # what all messages of the run have in common
    replies: Replies  # whom to ask, and which replies to take
    aggregate: Rule | None  # a rule of `fedspam.federation.aggregation` instead of the mean over several clients
    secure: SecureSum | None  # the works whose mean over several clients is made by a secure sum
    journal: Journal  # the record of the exchanges of a round
    events: RunEvents  # what the operator sees
    plain: PlainApps | None = None  # where clients run apps that do not know this package

    def __post_init__(self) -> None:
        self._draws = draws = Draws(self.population)
        self.everyone, self.client, self.population_size = draws.everyone, draws.client, draws.population_size
        self.versions = np.zeros(self.nodes.clients, np.int32)  # client -> the exchange that left its current memory
        self.exchanges = 0  # done so far
        self._flight = Airborne()
        self._left_out: set[int] = set()  # clients that have spoiled a secure sum of this run
        self.accepted = 0
        self.begin(-1)

    def begin(self, round: int, attempt: int = 0) -> None:
        """Before each round; before each attempt of `init` with round = -1."""
        if round >= 0 and len(self.nodes) < self.nodes.clients:
            self.nodes.refresh(patience=0.0)  # nodes that are late take part from this round on
        self._phase, self._wire_round, self.program = "start" if round < 0 else "round", round + 1, Program()
        self._settled = self.versions.copy()
        self._held: dict[int, dict[str, list[Any]]] = {}  # client -> fields it was sent in this round and replied to
        self._members: list[tuple[object, list[int]]] = []
        self._asked: dict[object, tuple[int, list[int]]] = {}  # origin of a cohort -> its size, all clients to ask
        self._counted: dict[object, dict[int, int]] = {}  # origin of it -> the clients that took the places of members
        self.tallies: dict[str, Tally] = {}
        if self.plain is not None:
            self.plain.metrics.clear()
        self.journal.begin(round - attempt)

    def pack(self, params: Params) -> ArrayRecord:
        """Parameters as the clients have them."""
        return arrays.to_arrays(params) if self.plain is None else self.plain.pack(params)

    def trained(self) -> dict[str, Any]:
        """The means of the metrics that apps of others have reported in this round."""
        return {} if self.plain is None else self.plain.means()

    def undo(self) -> None:
        """Reset the clients' memories to those before this round, because it is void."""
        self.versions = self._settled

    def sample(self, key: Key[Array, ""], count: int, role: str = "cohort", times: int = 1) -> Cohort:
        total = asked(count, self.replies.over_selection, self.population.size)
        if total == count or times > 1:
            return self._draws.sample(key, count, role, times)
        drawn = self._draws.sample(key, total, role)
        self._asked[drawn.origin] = count, listed(drawn.ids)
        return replace(drawn, ids=drawn.ids[:count])

    def mean(self, cohort: Cohort, work: Work, /, **message: Any) -> Any:
        if self.aggregate is not None and cohort.size > 1:
            return self.aggregate(*self.collect(cohort, work, **message))
        return self._exchange(cohort, work, message, mean_of)

    def collect(self, cohort: Cohort, work: Work, /, **message: Any) -> tuple[Any, Bool[Array, " cohort"]]:
        return self._exchange(cohort, work, message, stacked)

    def cond(self, predicate: Bool[Array, ""], yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        return take_branch(self, predicate, yes, no)

    def flush(self, cohort: Cohort, work: Work, busy: Ids, k: int, /, **message: Any) -> tuple[Any, Any, Ids]:
        """Send the message to the cohort, and wait for as many replies, whichever messages they answer.

        For `fedspam.methods.buffered`. Returns the stacked replies, the updates before the message of each, and the
        clients that are busy now, as many as in `busy`. A server that has been resumed sends to those as well.
        """
        flush = lambda request: flushed(self, self._flight, request, listed(busy), k)
        return self._exchange(cohort, work, message, stacked, flush)

    def blank_replies(self, work: Work, count: int) -> Any:
        """Replies of zeros to an exchange of the round."""
        exchange = self.schema.exchange("round", work.__name__)
        assert exchange is not None
        return jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), exchange.reply)

    def _exchange(
        self,
        cohort: Cohort,
        work: Work,
        message: Mapping[str, Any],
        combine: Callable[..., Any],
        flush: Callable[[Request], JournalEntry] | None = None,
    ) -> Any:
        label, drawn = self.program.label(work), cohort
        if cohort.origin in self._counted:
            took = self._counted[cohort.origin]
            cohort = replace(cohort, ids=jnp.array([took[id] for id in listed(cohort.ids)], jnp.uint32))
        exchange = self.schema.exchange(self._phase, label)
        if exchange is None:
            raise AssertionError(f"the schema has no exchange {label}")
        key = prng.fold_name(cohort.key, work.__name__)
        sent, fields = self.program.deliver(cohort, message, exchange.codecs.sent(key, message))
        if sent.keys() != exchange.sent.keys():
            raise AssertionError(f"{label} sends {sorted(sent)}, its schema says {sorted(exchange.sent)}")
        self.exchanges += 1
        self._members.append((cohort.origin, listed(cohort.ids)))
        reply = jax.tree.structure(exchange.reply)
        more = 1 if flush is None else 2  # which are accepted; or when sent, and who is busy
        several = jax.tree_util.treedef_tuple([reply, *[jax.tree.structure(0)] * more])
        entry = self.journal.recall(label, several if combine is stacked else reply)
        if entry is None:
            request = Request(exchange, cohort, dict(message), fields, key, self._wire_round)
            secure = self.secure
            if flush is not None:
                entry = flush(request)
            elif secure is not None and combine is mean_of and cohort.size > 1 and exchange.work in secure.works:
                entry = self._secure_mean(request, secure)
            else:
                entry = self._replies(request, combine)
            self.nodes.save()
            self.events.sites.save()
            self.journal.note(label, entry)
        if self._candidates(cohort) is not None:
            ids = listed(drawn.ids)
            self._counted[cohort.origin] = dict(zip(ids, [*entry.answered, *ids[len(entry.answered) :]], strict=True))
            self._members[-1] = (cohort.origin, list(entry.answered))
        if terms_of(work).stateful:
            self.versions[list(entry.answered)] = self.exchanges
        self.accepted = entry.tally.accepted
        self.tallies[label] = entry.tally
        return entry.result

    def _candidates(self, cohort: Cohort) -> list[int] | None:
        """All clients to ask in the first exchange with a whole cohort, if they are more than the cohort."""
        count, ids = self._asked.get(cohort.origin, (0, []))
        return ids if cohort.size == count and cohort.origin not in self._counted else None

    def _replies(self, request: Request, combine: Callable[..., Any]) -> JournalEntry:
        """The combined replies by slot, None where no reply was accepted; failed clients are replaced and retried."""
        exchange, size, candidates = request.exchange, request.cohort.size, self._candidates(request.cohort)
        needed, replies = self.replies.needed(size), {}
        total = size if candidates is None else len(candidates)
        LOG.info("%s: Sampled %d nodes (out of %d)", exchange.label, total, self.population.size)

        def attempt(places: list[int], missing: list[int]) -> Outcome:
            enough = None if candidates is None else size - len(replies)
            trip = self.send(request, {slot: places[slot] for slot in missing}, enough=enough)
            replies.update(trip.values)
            LOG.info("%s: Received %d results and %d failures", exchange.label, len(trip.values), len(trip.failures))
            failures = {places[slot]: trip.failures[slot] for slot in sorted(trip.failures)}
            slots = range(size) if candidates is None else [*sorted(replies), *[None] * size][:size]
            rows = [replies.get(slot) for slot in slots]
            result = combine(rows, exchange.reply) if len(replies) >= needed else None
            return Outcome(result, tuple(places[slot] for slot in sorted(replies)), failures, trip.tally)

        shortage = lambda: (
            f"{len(replies)} replies were accepted, {needed} of {size} are needed, "
            f"after {self.replies.retries + 1} attempts"
        )
        return self._attempts(request, attempt, shortage, candidates)

    def _secure_mean(self, request: Request, secure: SecureSum) -> JournalEntry:
        """The mean by a secure sum. If too few clients stay, the sum is repeated with others for those that failed."""
        exchange, ids = request.exchange, listed(request.cohort.ids)
        secure.check(exchange.work, ids)
        needed = self.replies.needed(len(ids))
        name = f"{self.form.run} {self._phase} {exchange.label} {self._wire_round}"
        wrong: set[int] = set()  # clients whose replies made a sum fail: the next one does without them

        def post(records: Mapping[int, ConfigRecord], accept: Accept) -> Trip:
            return self.send(request, {id: id for id in records}, records, accept)

        def attempt(places: list[int], missing: list[int]) -> Outcome:
            present = [id for id in places if id not in wrong | self._left_out]
            nodes = self._connected(present)
            reply = SummedReply(exchange, request.arrived, secure.fraction_bits)
            done = SecureAttempt(secure, self.grid, nodes, self.form.timeout, needed, reply, name).run(post)
            absent = {id: LEFT_OUT if id in self._left_out else ABSENT for id in places if id not in {*nodes, *wrong}}
            done.failures = absent | done.failures
            wrong.update(id for id, failure in done.failures.items() if failure.kind == "rejected")
            self._left_out |= done.culprits
            return done

        return self._attempts(request, attempt, lambda: f"too few clients stayed for a secure sum over {len(ids)}")

    def _attempts(
        self,
        request: Request,
        attempt: Callable[[list[int], list[int]], Outcome],
        shortage: Callable[[], str],
        candidates: list[int] | None = None,
    ) -> JournalEntry:
        """The first attempt that has a result; in each further one, others replace the clients that failed."""
        places = listed(request.cohort.ids) if candidates is None else [*candidates]  # slot -> client
        missing, tried, tally, failures = list(range(len(places))), set(places), Tally(), {}
        label, failed = request.exchange.label, []  # of all attempts
        noted = functools.partial(self.events.exchange, self._wire_round, label)
        pause(0)
        for number in range(self.replies.retries + 1):
            if number:
                missing = [slot for slot, id in enumerate(places) if id in failures]
                self._substitute(request, number, missing, places, tried)
            done = attempt(places, missing)
            tally, failures = tally.plus(done.tally)._replace(accepted=len(done.counted)), done.failures
            self.settle(request, done.counted, failures)
            failed += failures.items()
            if done.result is not None:
                noted(tally, failed, done.counted, True)
                return JournalEntry(done.result, tally, done.counted)
        noted(tally, failed, (), False)
        self.tallies[label] = tally
        called = self.events.sites.called
        reasons = "".join(f"; {called(id)}: {failure.reason}" for id, failure in list(failures.items())[:1])
        raise VoidError(f"{label}: {shortage()}{reasons}")

    def settle(self, request: Request, answered: Iterable[int], failures: Mapping[int, Failure]) -> None:
        """Note what clients hold now, log failures, and forget nodes that are lost."""
        for id in answered:
            self._held.setdefault(id, {}).update(request.leaves)
        for id, failure in failures.items():
            LOG.info("\t> %s: %s", self.events.sites.called(id), failure.reason)
            if failure.kind == "lost":
                self.nodes.forget(id)

    def _substitute(
        self, request: Request, attempt: int, missing: list[int], places: list[int], tried: set[int]
    ) -> None:
        """Put other clients into the missing slots: first members of the same cohort, which hold part of the message,
        then any client. Where no other client is left or may stand in, the same client is asked again."""
        cohort = request.cohort
        if cohort.fixed:
            return
        mates = []
        if len(places) == 1:  # one of a cohort, or a lone client
            mates = [id for origin, ids in self._members if origin is cohort.origin for id in ids]
        found = self.others(request, f"{request.exchange.label} again {attempt}", len(missing), tried, mates)
        for slot, id in zip(missing, found, strict=False):
            places[slot] = id

    def others(self, request: Request, role: str, count: int, tried: set[int], mates: Sequence[int] = ()) -> list[int]:
        """Clients that have not been tried and may be asked now, `mates` first; they count as tried from now on."""
        size = self.population.size
        drawn = min(size, len(tried) + count) if self.replies.available is None else size
        key = prng.fold_name(request.cohort.key, role)
        anyone = listed(prng.permuted(key, jnp.arange(drawn, dtype=jnp.uint32), size)) if count else []
        free = (id for id in dict.fromkeys([*mates, *anyone]) if id not in tried and self.replies.may_ask(id))
        found = list(itertools.islice(free, count))
        tried.update(found)
        return found

    def _connected(self, ids: Iterable[int]) -> dict[int, int]:
        """The nodes of those of these clients that are connected."""
        ids = list(ids)
        if any(self.nodes.node(id) is None for id in ids):
            self.nodes.refresh()
        return {id: node for id in ids if (node := self.nodes.node(id)) is not None and self.replies.may_ask(id)}

    def send(
        self,
        request: Request,
        places: Mapping[Any, int],
        attached: Mapping[int, ConfigRecord] | None = None,
        accept: Accept | None = None,
        enough: int | None = None,
        flight: Airborne | None = None,
    ) -> Trip:
        """One trip to the clients of these slots, until `enough` replies are accepted; with a further record for each
        slot if `attached`."""
        nodes = self._connected(places.values())
        held_fields = request.exchange.message.keys() - request.exchange.sent.keys()
        messages, encoded, bytes_down, floats_down, plain = {}, {}, 0, 0, self.plain
        most = SPARE + request.exchange.bytes_up + WORD.itemsize * trees.size(request.exchange.reply)
        if plain is not None:
            content, most = plain.record(request, self.form), plain.most
            asked = {slot: nodes[id] for slot, id in places.items() if id in nodes}
            messages = {slot: self.form.plain(node, content, request.round) for slot, node in asked.items()}
            bytes_down = len(messages) * envelope.payload(content)
            floats_down = len(messages) * request.exchange.floats_down
        for slot, id in places.items():
            if id not in nodes or plain is not None:
                continue
            held = self._held.get(id, {})
            whole = not all(name in held and same_objects(held[name], request.leaves[name]) for name in held_fields)
            exchange = replace(request.exchange, sent=request.exchange.message) if whole else request.exchange
            if whole not in encoded:
                due = exchange.ask()
                sent = {name: wire.cast(request.fields[name].payload, due[name]) for name in exchange.sent}
                encoded[whole] = wire.encode({
                    "@client": np.uint32(0), "@key": np.asarray(jax.random.key_data(request.key)),
                    "@round": np.uint32(self._wire_round), **signed(sent, due),
                })  # fmt: skip
            data = addressed(encoded[whole], id)
            bytes_down, floats_down = bytes_down + len(data), floats_down + exchange.floats_down
            head = {
                "schema": self.schema.digest, "run": self.form.run, "phase": self._phase, "exchange": exchange.label,
                "whole": whole, "memory": int(self.versions[id]), "settled": int(self._settled[id]),
                "becomes": self.exchanges, **self.nodes.heading(id),
            }  # fmt: skip
            messages[slot] = self.form.message(nodes[id], exchange.work, self._wire_round, head, data)
            if attached is not None:
                messages[slot].content[RECORD] = attached[slot]
        take: Callable[[Any, Message], Any] = accept or (lambda slot, reply: self._accept(places[slot], request, reply))
        if flight is not None:
            take = lambda slot, reply: self._accept(slot[1], flight.requests[slot], reply)
        deadlines = self.replies.deadlines
        due = {slot: deadlines[id] for slot, id in places.items() if id in deadlines}
        trip = Trip(self.grid, take, most=most, enough=enough, waiting=None if flight is None else flight.waiting)
        trip.send(messages)
        trip.wait(self.form.timeout, due)
        trip.failures.update({slot: ABSENT for slot in places if slot not in messages})
        floats_up = trip.tally.replied * request.exchange.floats_up
        trip.tally = trip.tally._replace(floats_down=floats_down, floats_up=floats_up, bytes_down=bytes_down)
        return trip

    def _accept(self, id: int, request: Request, reply: Message) -> PyTree:
        """The reply, if it is of this client, exchange and round, and finite."""
        head = reply.content.config_records.get(envelope.HEADER, {})
        value = self._read(id, request, reply, head) if self.plain is None else self.plain.reply(id, request, reply)
        if not bool(sound(value)):
            raise RejectedError("the reply holds NaN or infinity, or numbers whose squares overflow")
        largest = self.replies.largest
        if largest < math.inf and (found := max(map(_largest, jax.tree.leaves(value)), default=0)) > largest:
            raise RejectedError(f"the reply holds a number of size {found:.3g}; largest = {largest:g} is allowed")
        self.nodes.meet(id, head)  # last, because a rejected reply says nothing about its sender
        return jax.tree.map(jnp.asarray, value)

    def _read(self, id: int, request: Request, reply: Message, head: Mapping[str, Any]) -> PyTree:
        exchange = request.exchange
        found = decoded(reply, exchange.answer, id)
        if head.get("schema") != self.schema.digest or head.get("exchange") != exchange.label:
            raise RejectedError(
                f"the reply is of exchange {head.get('exchange')!r} and schema {head.get('schema')!r}, the message was "
                f"of {exchange.label!r} and {self.schema.digest!r}"
            )
        if int(found["@round"]) != request.round:
            raise RejectedError(f"the reply is of round {int(found['@round'])}, the message was of {request.round}")
        try:
            return exchange.codecs.accepted(exchange.work, found["reply"], exchange.reply, request.arrived)
        except ValueError as error:
            raise RejectedError(f"the codes of the reply are damaged: {error}") from None


def _largest(leaf: Any) -> float:
    return float(np.max(np.abs(np.asarray(leaf, np.float64)), initial=0))


LEFT_OUT = Failure("it is left out of secure sums, because the shares of its secret were wrong", "refused")
ABSENT = Failure("the node of this client is not connected, or not available now", "absent")

"""The federation over Flower: the handle `fed` of a method whose clients are nodes of a Grid."""

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from jaxtyping import Array, Bool, Key, PyTree

from fedspam._internal import prng, trees
from fedspam.federation import Cohort, Draws, Program, Work, sound, take_branch, terms_of, wire
from fedspam.federation.aggregation import Rule
from fedspam.federation.ledger import ANSWER, Exchange
from fedspam.flower.privacy import secure_server
from fedspam.flower.privacy.secure_client import RECORD, SecureSum
from fedspam.flower.server.exchange import Failure, RejectedError, Trip, round_trip
from fedspam.flower.server.journal import Journal, JournalEntry, Tally
from fedspam.flower.server.nodes import Directory
from fedspam.flower.wire import arrays
from fedspam.flower.wire.schema import Nodes, Schema

LOG = logging.getLogger("flwr")


class VoidError(RuntimeError):
    """An exchange in which too few replies count, whoever was asked instead: the round has no effect."""


@dataclass(frozen=True)
class ExchangeLimits:
    """How much an exchange may ask for.

    Arguments:
        timeout: seconds that clients have to reply.
        quorum: the share of a cohort whose replies must count; one always must.
        retries: how often others are asked in place of those that failed.
        arrays_key, config_key: under which names Flower's records travel.
    """

    timeout: float
    quorum: float = 1.0
    retries: int = 2
    arrays_key: str = "arrays"
    config_key: str = "config"


class Flower:
    """The handle of a method whose messages travel over Flower's Grid. One serves a whole run.

    Arguments:
        grid: where to send.
        directory: which node is which client.
        schema: the exchanges of the method.
        terms: deadline, quorum and retries.
        journal: where the exchanges of a round are noted.
        run: names the run to the clients.
        config: what goes along with every message.
        aggregate: a rule of `fedspam.federation.aggregation` instead of the mean over several clients.
        secure: means over several clients that are made under masks.
    """

    def __init__(
        self,
        grid: Grid,
        directory: Directory,
        schema: Schema,
        terms: ExchangeLimits,
        journal: Journal,
        run: str,
        *,
        config: Mapping[str, Any] | None = None,
        aggregate: Rule | None = None,
        secure: SecureSum | None = None,
    ) -> None:
        self._secure = secure
        self._grid, self._directory, self._schema, self._terms = grid, directory, schema, terms
        self._journal, self._run, self._config, self._aggregate = journal, run, dict(config or {}), aggregate
        self._people = Nodes(directory.clients)
        draws = Draws(self._people)
        self.sample, self.everyone, self.client = draws.sample, draws.everyone, draws.client
        self.versions = np.zeros(self._people.size, np.int32)  # of each client's memory: the exchange that left it
        self.exchanges = 0  # done so far
        self.accepted = 0
        self.start(0)

    def start(self, attempt: int) -> None:
        """Before `init`."""
        self._begin("start", wire_round=0, journal_round=-1 - attempt)

    def begin(self, round: int) -> None:
        """Before each round."""
        self._begin("round", wire_round=round + 1, journal_round=round)

    def _begin(self, phase: str, wire_round: int, journal_round: int) -> None:
        self._phase, self._wire_round, self.program = phase, wire_round, Program()
        self._settled = self.versions.copy()
        self._held: dict[int, dict[str, list[Any]]] = {}  # what each client was sent in this round and answered to
        self._members: list[tuple[object, list[int]]] = []
        self.tallies: dict[str, Tally] = {}
        self._journal.begin(journal_round)

    def undo(self) -> None:
        """The round was void: clients go back to what they remembered before it."""
        self.versions = self._settled

    def mean(self, cohort: Cohort, work: Work, /, **message: Any) -> Any:
        if self._aggregate is not None and cohort.size > 1:
            return self._aggregate(*self.collect(cohort, work, **message))
        return self._exchange(cohort, work, message, _mean, lambda structure: structure)

    def collect(self, cohort: Cohort, work: Work, /, **message: Any) -> tuple[Any, Bool[Array, " cohort"]]:
        leaf = jax.tree.structure(0)
        both = lambda structure: jax.tree_util.treedef_tuple([structure, leaf])
        return self._exchange(cohort, work, message, _stack, both)

    def cond(self, predicate: Bool[Array, ""], yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        return take_branch(self, predicate, yes, no)

    def _exchange(
        self,
        cohort: Cohort,
        work: Work,
        message: Mapping[str, Any],
        combine: Callable[..., Any],
        shape: Callable[..., Any],
    ) -> Any:
        label = self.program.label(work)
        exchange = self._schema.exchange(self._phase, label)
        sent = self.program.unsent(cohort, message)
        if exchange is None or sent.keys() != exchange.sent.keys():
            raise AssertionError(f"{label} sends {sorted(sent)}, its schema says {exchange and sorted(exchange.sent)}")
        self.exchanges += 1
        self._members.append((cohort.origin, [int(id) for id in cohort.ids]))
        entry = self._journal.recall(label, shape(jax.tree.structure(exchange.reply)))
        if entry is None:
            asked = _Asked(exchange, cohort, dict(message), prng.fold_name(cohort.key, work.__name__))
            if (
                combine is _mean
                and cohort.size > 1
                and self._secure is not None
                and exchange.work in self._secure.works
            ):
                entry = self._ask_sum(asked, self._secure)
            else:
                replies, tally, answered = self._ask(asked)
                entry = JournalEntry(combine(replies, exchange.reply), tally, answered)
            self._journal.note(label, entry)
        if terms_of(work).stateful:
            self.versions[list(entry.answered)] = self.exchanges
        self.accepted = entry.tally.accepted
        self.tallies[label] = entry.tally
        return entry.result

    def _ask(self, asked: "_Asked") -> tuple[list[PyTree | None], Tally, tuple[int, ...]]:
        """The replies by slot, None where there is none that counts. Others are asked in place of those that failed."""
        cohort, exchange = asked.cohort, asked.exchange
        needed = max(1, math.ceil(self._terms.quorum * cohort.size - 1e-9))
        places = [int(id) for id in cohort.ids]  # who is asked for each slot
        LOG.info("%s: Sampled %d nodes (out of %d)", exchange.label, cohort.size, self._people.size)
        tried, replies, tally, failed = set(places), {}, Tally(), {}
        for attempt in range(self._terms.retries + 1):
            missing = [slot for slot in range(cohort.size) if slot not in replies]
            if attempt:
                self._substitute(asked, attempt, missing, places, tried)
            trip, sizes = self._send(asked, {slot: places[slot] for slot in missing})
            for slot, reply in trip.values.items():
                replies[slot] = reply
                self._held.setdefault(places[slot], {}).update(asked.leaves)
            tally = _added(tally, trip, sizes, exchange)
            LOG.info("%s: Received %d results and %d failures", exchange.label, len(trip.values), len(trip.failures))
            for slot, failure in sorted(trip.failures.items()):
                LOG.info("\t> client %d: %s", places[slot], failure.reason)
                failed[places[slot]] = failure.reason
                if failure.gone:
                    self._directory.forget(places[slot])
            if len(replies) >= needed:
                answered = tuple(places[slot] for slot in sorted(replies))
                return [replies.get(slot) for slot in range(cohort.size)], tally, answered
        self.tallies[exchange.label] = tally
        first = next(iter(failed.items()))
        raise VoidError(
            f"{exchange.label}: {len(replies)} replies count, {needed} of {cohort.size} must, after "
            f"{self._terms.retries + 1} attempts; client {first[0]}: {first[1]}"
        )

    def _ask_sum(self, asked: "_Asked", secure: SecureSum) -> JournalEntry:
        """The mean under a secure sum. If too few stay, all begin anew, with others in place of those that failed."""
        exchange, places = asked.exchange, [int(id) for id in asked.cohort.ids]
        secure.check(exchange.work, places)
        needed, tried, tally, failed = math.ceil(self._terms.quorum * len(places) - 1e-9), set(places), Tally(), {}
        for attempt in range(self._terms.retries + 1):
            if attempt:
                missing = [slot for slot, id in enumerate(places) if id in failed]
                self._substitute(asked, attempt, missing, places, tried)
            if any(self._directory.node(id) is None for id in places):
                self._directory.refresh()
            nodes = {id: node for id in places if (node := self._directory.node(id)) is not None}
            sent: list[tuple[Trip, list[tuple[int, int]]]] = []

            def post(records: Mapping[int, ConfigRecord], judge: secure_server.Judge) -> Trip:
                sent.append(self._send(asked, {id: id for id in records}, records, judge))
                return sent[-1][0]

            name = f"{self._run} {self._phase} {exchange.label} {self._wire_round}"
            done = secure_server.Attempt(secure, self._grid, nodes, self._terms.timeout, needed, exchange, name).run(
                post
            )
            for trip, sizes in sent:
                tally = _added(tally, trip, sizes, exchange)
            tally = secure_server.charged(tally, done)
            failed = {id: Failure("it is not connected") for id in places if id not in nodes} | done.failures
            for id, failure in sorted(failed.items()):
                LOG.info("\t> client %d: %s", id, failure.reason)
                if failure.gone:
                    self._directory.forget(id)
            if done.total is not None:
                for id in done.counted:
                    self._held.setdefault(id, {}).update(asked.leaves)
                return JournalEntry(secure_server.mean_of(done), tally, done.counted)
        self.tallies[exchange.label] = tally
        reasons = "".join(f"; client {id}: {failure.reason}" for id, failure in list(failed.items())[:1])
        raise VoidError(f"{exchange.label}: too few clients stayed for a secure sum over {len(places)}{reasons}")

    def _substitute(
        self, asked: "_Asked", attempt: int, missing: list[int], places: list[int], tried: set[int]
    ) -> None:
        """Others for the missing slots: first of the same cohort, which hold part of the message, then anyone; and
        where nobody else is left or may stand in, the same again."""
        cohort, count = asked.cohort, self._people.size
        if cohort.fixed:
            return
        if len(places) == 1:  # one of a cohort, or a lone client
            mates = [id for origin, ids in self._members if origin is cohort.origin for id in ids]
        else:
            mates = []
        key = prng.fold_name(cohort.key, f"{asked.exchange.label} again {attempt}")
        drawn = min(count, len(tried) + len(missing))
        anyone = prng.permuted(key, jnp.arange(drawn, dtype=jnp.uint32), count)
        others = [id for id in dict.fromkeys([*mates, *map(int, anyone)]) if id not in tried]
        for slot, id in zip(missing, others, strict=False):
            places[slot] = id
            tried.add(id)

    def _send(
        self,
        asked: "_Asked",
        places: Mapping[int, int],
        attached: Mapping[int, ConfigRecord] | None = None,
        judge: Callable[[int, Message], Any] | None = None,
    ) -> tuple[Trip, list[tuple[int, int]]]:
        """One trip; with the encoded length and the number of floats of every message that went out."""
        if any(self._directory.node(id) is None for id in places.values()):
            self._directory.refresh()
        messages, sizes, lost, letters = {}, [], {}, {}
        for slot, id in places.items():
            node = self._directory.node(id)
            if node is None:
                lost[slot] = Failure("it is not connected")
                continue
            known, assumed = self._held.get(id, {}), asked.exchange.message.keys() - asked.exchange.sent.keys()
            whole = not all(name in known and _same(known[name], asked.leaves[name]) for name in assumed)
            exchange = replace(asked.exchange, sent=asked.exchange.message) if whole else asked.exchange
            if whole not in letters:
                letters[whole] = wire.encode({"@client": np.uint32(id), **self._fields(asked, exchange)})
            data = _addressed(letters[whole], id)
            sizes.append((len(data), exchange.floats_down))
            messages[slot] = self._message(data, exchange, node, id, whole)
            if attached is not None:
                messages[slot].content[RECORD] = attached[slot]
        if judge is None:
            judge = lambda slot, reply: self._judge(places[slot], asked.exchange, reply)
        trip = round_trip(self._grid, messages, judge, self._terms.timeout) if messages else Trip()
        trip.failures.update(lost)
        return trip, sizes

    def _fields(self, asked: "_Asked", exchange: Exchange) -> dict[str, Any]:
        sent = {name: asked.message[name] for name in exchange.sent}
        cast = jax.tree.map(lambda leaf, shape: np.asarray(leaf, shape.dtype), sent, dict(exchange.sent))
        key = np.asarray(jax.random.key_data(asked.key))
        return {"@key": key, "@round": np.uint32(self._wire_round), **cast}

    def _message(self, data: bytes, exchange: Exchange, node: int, id: int, whole: bool) -> Message:
        version, settled = int(self.versions[id]), int(self._settled[id])
        head = {
            "schema": self._schema.digest, "run": self._run, "phase": self._phase, "exchange": exchange.label,
            "whole": whole, "memory": version, "settled": settled, "becomes": self.exchanges,
        }  # fmt: skip
        records = {
            self._terms.arrays_key: arrays.enclose(data),
            self._terms.config_key: ConfigRecord({**self._config, "server-round": self._wire_round}),
            arrays.HEADER: ConfigRecord(head),
        }
        return Message(
            RecordDict(records), node, f"train.{exchange.work}", ttl=self._terms.timeout, group_id=str(self._wire_round)
        )

    def _judge(self, id: int, exchange: Exchange, reply: Message) -> PyTree:
        """The reply, if it is what was asked of this client in this round, and finite."""
        head = reply.content.config_records.get(arrays.HEADER, {})
        if head.get("refused"):
            raise RejectedError(f"refused: {head['refused']}")
        try:
            came = wire.decode(arrays.enclosed(reply.content), {**ANSWER, "reply": exchange.reply})
        except ValueError as error:
            raise RejectedError(str(error)) from None
        if head.get("schema") != self._schema.digest or head.get("exchange") != exchange.label:
            raise RejectedError(f"it answered exchange {head.get('exchange')!r} of schema {head.get('schema')!r}")
        if int(came["@client"]) != id:
            raise RejectedError(f"it answered as client {int(came['@client'])}")
        if int(came["@round"]) != self._wire_round:
            raise RejectedError(f"it answered round {int(came['@round'])}, {self._wire_round} was asked")
        if not bool(sound(came["reply"])):
            raise RejectedError("its reply holds NaN or infinity")
        return jax.tree.map(jnp.asarray, came["reply"])


@dataclass(frozen=True)
class _Asked:
    """One exchange as it is asked of whomever: its message and the key of its work."""

    exchange: Exchange
    cohort: Cohort
    message: dict[str, Any]
    key: Key[Array, ""]

    @property
    def leaves(self) -> dict[str, list[Any]]:
        return {name: jax.tree.leaves(value) for name, value in self.message.items()}


def _addressed(data: bytes, id: int) -> bytes:
    """The same encoded fields for another client: with many parameters much cheaper than to encode them again."""
    start = 8 + int.from_bytes(data[:8], "little")
    place = start + json.loads(data[8:start])["@client"]["data_offsets"][0]
    return b"".join((data[:place], id.to_bytes(4, "little"), data[place + 4 :]))


def _same(known: list[Any], leaves: list[Any]) -> bool:
    return len(known) == len(leaves) and all(a is b for a, b in zip(known, leaves, strict=True))


def _added(tally: Tally, trip: Trip, sizes: list[tuple[int, int]], exchange: Exchange) -> Tally:
    return Tally(
        asked=tally.asked + len(sizes),
        replied=tally.replied + trip.replied,
        accepted=tally.accepted + len(trip.values),
        floats_down=tally.floats_down + sum(floats for _, floats in sizes),
        floats_up=tally.floats_up + trip.replied * exchange.floats_up,
        bytes_down=tally.bytes_down + sum(length for length, _ in sizes),
        bytes_up=tally.bytes_up + trip.payload_up,
        flower_down=tally.flower_down + trip.bytes_down,
        flower_up=tally.flower_up + trip.bytes_up,
        seconds=tally.seconds + trip.seconds,
    )


def _mean(replies: list[PyTree | None], like: PyTree) -> PyTree:
    """The mean over the replies that count, summed in the order of the cohort, whatever that of their arrival."""
    counted = [reply for reply in replies if reply is not None]
    total = counted[0]
    for reply in counted[1:]:
        total = trees.add(total, reply)
    return trees.divide(total, len(counted)) if len(replies) > 1 else total


def _stack(replies: list[PyTree | None], like: PyTree) -> tuple[PyTree, Array]:
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    rows = [blank if reply is None else reply for reply in replies]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows), jnp.array([reply is not None for reply in replies])

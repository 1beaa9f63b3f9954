"""The server's side of the secure sum: four trips to a cohort, of which it learns the sum and who is in it."""

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from jaxtyping import PyTree

from fedspam._internal import trees
from fedspam.federation import wire
from fedspam.federation.ledger import ANSWER, Exchange
from fedspam.flower.privacy import masks
from fedspam.flower.privacy.secure_client import KEYS, RECORD, SHARES, UNMASK, SecureSum
from fedspam.flower.server.exchange import Failure, RejectedError, Trip, round_trip
from fedspam.flower.server.journal import Tally
from fedspam.flower.wire import arrays

LOG = logging.getLogger("flwr")
Judge = Callable[[int, Message], Any]


class Post(Protocol):
    """How the handle sends the message of an exchange, with a record for each client beside it."""

    def __call__(self, records: Mapping[int, ConfigRecord], judge: Judge) -> Trip: ...


@dataclass
class SecureOutcome:
    """What came of one attempt: the sum if enough stayed, who is in it, why others are not, and what it cost."""

    total: PyTree | None = None
    counted: tuple[int, ...] = ()
    failures: dict[int, Failure] = field(default_factory=dict)
    bytes_down: int = 0  # of Flower's records, in the three trips around that of the exchange
    bytes_up: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Attempt:
    """One session of the protocol.

    Arguments:
        secure: the settings, as the clients have them.
        grid: where to send.
        nodes: the nodes by client.
        timeout: seconds for each trip.
        needed: how many clients must be in the sum; never fewer than the protocol wants.
        exchange: what is asked.
        name: the exchange in words, for the log and the session.
    """

    secure: SecureSum
    grid: Grid
    nodes: Mapping[int, int]
    timeout: float
    needed: int
    exchange: Exchange
    name: str

    def run(self, post: Post) -> SecureOutcome:
        """All four trips, or as many as there are enough clients for."""
        done, session = SecureOutcome(), f"{self.name} {secrets.token_hex(8)}"
        told = self._query(done, KEYS, {id: {"session": session} for id in sorted(self.nodes)}, _key_pair)
        enough = max(self.needed, self.secure.needed(len(told)))
        if len(told) < enough:
            return done

        ids = sorted(told)
        keys = {"ids": ids, "sealing": [told[id][0] for id in ids], "masking": [told[id][1] for id in ids]}
        sealed = self._query(done, SHARES, {id: {"session": session, **keys} for id in ids}, _sealed(ids))
        if len(sealed) < enough:
            return done

        members = sorted(sealed)
        records = {
            id: ConfigRecord({"session": session, "ids": members, "sealed": [sealed[from_][id] for from_ in members]})
            for id in members
        }
        trip = post(records, self._masked)
        done.failures.update(trip.failures)
        if len(trip.values) < enough:
            return done

        arrived = sorted(trip.values)
        lost = [id for id in members if id not in trip.values]
        question = {"session": session, "arrived": arrived}
        shares = self._query(done, UNMASK, dict.fromkeys(arrived, question), _shares_of(members))
        threshold = self.secure.needed(len(ids))
        if len(shares) < threshold:
            return done
        secret = {id: masks.join([held[id] for held in shares.values()], threshold) for id in members}
        publics = {id: told[id][1] for id in members}
        pairs = {id: masks.Pair.of(secret[id]) for id in lost}
        wrong = [id for id, pair in pairs.items() if pair.public != publics[id]]
        if wrong:
            raise RuntimeError(f"{self.name}: the shares of the key of client {wrong[0]} do not give its key")
        words = masks.unmask(trip.values, {id: secret[id] for id in arrived}, pairs, publics, session)
        done.total = _tree_of(masks.to_floats(words, self.secure.fraction_bits), self.exchange.reply)
        done.counted = tuple(arrived)
        return done

    def _query(
        self, done: SecureOutcome, kind: str, records: Mapping[int, Mapping[str, Any]], judge: Judge
    ) -> dict[int, Any]:
        messages = {
            id: Message(RecordDict({RECORD: ConfigRecord(dict(record))}), self.nodes[id], kind, ttl=self.timeout)
            for id, record in records.items()
        }
        trip = round_trip(self.grid, messages, lambda id, reply: judge(id, _unrefused(reply)), self.timeout)
        done.failures.update(trip.failures)
        done.bytes_down, done.bytes_up = done.bytes_down + trip.bytes_down, done.bytes_up + trip.bytes_up
        done.seconds += trip.seconds
        LOG.info("%s: %s: %d of %d", self.name, kind.removeprefix("query.secure_"), len(trip.values), len(messages))
        return dict(trip.values)

    def _masked(self, id: int, reply: Message) -> np.ndarray:
        _unrefused(reply)
        count = sum(leaf.size for leaf in jax.tree.leaves(self.exchange.reply))
        like = {**ANSWER, "masked": jax.ShapeDtypeStruct((count,), np.dtype(np.uint64))}
        try:
            came = wire.decode(arrays.enclosed(reply.content), like)
        except ValueError as error:
            raise RejectedError(str(error)) from None
        if int(came["@client"]) != id:
            raise RejectedError(f"it answered as client {int(came['@client'])}")
        return np.array(came["masked"])


def charged(tally: Tally, outcome: SecureOutcome) -> Tally:
    """With what the trips around that of the exchange cost; what was masked in vain does not count."""
    return tally._replace(
        accepted=len(outcome.counted),
        flower_down=tally.flower_down + outcome.bytes_down,
        flower_up=tally.flower_up + outcome.bytes_up,
        seconds=tally.seconds + outcome.seconds,
    )


def mean_of(outcome: SecureOutcome) -> PyTree:
    """The mean over those that are in the sum."""
    count = len(outcome.counted)
    return jax.tree.map(lambda leaf: leaf / jnp.asarray(count, leaf.dtype), outcome.total)


def _tree_of(flat: np.ndarray, like: PyTree) -> PyTree:
    """Clients flatten by the names on the wire, in their order; so the leaves are found under theirs."""
    names, leaves = trees.names({"reply": like}), jax.tree.leaves(like)
    places, start = {}, 0
    for name, leaf in sorted(zip(names, leaves, strict=True), key=lambda item: item[0]):
        places[name] = flat[start : start + leaf.size].reshape(leaf.shape)
        start += leaf.size
    rows = [jnp.asarray(places[name], leaf.dtype) for name, leaf in zip(names, leaves, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(like), rows)


def _unrefused(reply: Message) -> Message:
    refused = reply.content.config_records.get(arrays.HEADER, {}).get("refused")
    if refused:
        raise RejectedError(f"refused: {refused}")
    return reply


def _record(reply: Message) -> ConfigRecord:
    found = reply.content.config_records.get(RECORD)
    if found is None:
        raise RejectedError("it does not take part in secure sums; give its client_app the same secure=")
    return found


def _key_pair(id: int, reply: Message) -> tuple[bytes, bytes]:
    record = _record(reply)
    pair = record.get("sealing"), record.get("masking")
    if not all(isinstance(key, bytes) for key in pair):
        raise RejectedError("its keys are not bytes")
    return cast(tuple[bytes, bytes], pair)


def _sealed(ids: Sequence[int]) -> Judge:
    return lambda id, reply: _listed(_record(reply), ids, "sealed")


def _shares_of(members: Sequence[int]) -> Judge:
    return lambda id, reply: _listed(_record(reply), members, "shares")


def _listed(record: ConfigRecord, ids: Sequence[int], name: str) -> dict[int, bytes]:
    """One piece for each of these clients, by client."""
    given, pieces = record.get("ids"), record.get(name)
    if not isinstance(given, list) or not isinstance(pieces, list) or [*given] != [*ids] or len(pieces) != len(ids):
        raise RejectedError(f"it did not give one of its {name} for each of {len(ids)} clients")
    if not all(isinstance(piece, bytes) for piece in pieces):
        raise RejectedError(f"its {name} are not bytes")
    return dict(zip(ids, cast(list[bytes], pieces), strict=True))

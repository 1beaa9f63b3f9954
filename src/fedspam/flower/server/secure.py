"""The server's part of the secure sum: four trips to a cohort, which reveal the mean and the clients in it."""

import itertools
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from jaxtyping import PyTree

from fedspam._internal.strict import MalformedError
from fedspam.flower.privacy import masks
from fedspam.flower.privacy.secure_client import KEYS, RECORD, SHARES, UNMASK, SecureSum
from fedspam.flower.privacy.words import SummedReply, WordLayout
from fedspam.flower.server.exchange import SPARE, Failure, RejectedError, Trip, decoded
from fedspam.flower.server.journal import Tally

LOG = logging.getLogger("flwr")
PER_CLIENT = 1024  # bytes of the keys or shares of one client, at most
TRIES = 20_000  # sets of wrong shares that are tried to recover one secret
Accept = Callable[[int, Message], Any]
# how the handle sends the message of an exchange, with one record per client in addition
Post = Callable[[Mapping[int, ConfigRecord], Accept], Trip]


@dataclass
class Outcome:
    """The result of one attempt if enough clients stayed, the clients in it, the failures and the cost."""

    result: PyTree | None = None
    counted: tuple[int, ...] = ()
    failures: dict[int, Failure] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)


@dataclass(frozen=True)
class SecureAttempt:
    """One session of the protocol."""

    secure: SecureSum
    grid: Grid
    nodes: Mapping[int, int]  # by client
    timeout: float  # of each trip, in seconds
    needed: int  # clients that must be in the sum; the protocol may need more
    reply: SummedReply
    name: str  # of the exchange, in the log and in the session

    def run(self, post: Post) -> Outcome:
        """All four trips; it ends early if too few clients stay."""
        done, session = Outcome(), f"{self.name} {secrets.token_hex(8)}"
        publics = self._query(done, KEYS, {id: {"session": session} for id in sorted(self.nodes)}, _key_pair)
        uses = Counter(key for pair in publics.values() for key in pair)
        for id in [id for id, pair in publics.items() if any(uses[key] > 1 for key in pair)]:
            del publics[id]  # all other clients would refuse the list
            done.failures[id] = Failure("one of its keys is used twice")
        ids = sorted(publics)
        enough = max(self.needed, self.secure.needed(len(ids)))
        if len(ids) < enough:
            return done

        sealing, masking = ([publics[id][part] for id in ids] for part in (0, 1))
        keys = {"session": session, "ids": ids, "sealing": sealing, "masking": masking}
        sealed = self._query(done, SHARES, dict.fromkeys(ids, keys), _one_per_client("sealed", ids))
        if len(sealed) < enough:
            return done

        members = sorted(sealed)
        records = {
            id: ConfigRecord({"session": session, "ids": members, "sealed": [sealed[from_][id] for from_ in members]})
            for id in members
        }
        layout = self.reply.layout(len(ids))
        trip = post(records, lambda id, reply: _words(layout, decoded(reply, layout.fields, id)))
        done.tally = done.tally.plus(trip.tally)
        done.failures.update(trip.failures)
        if len(trip.values) < enough:
            return done

        arrived = sorted(trip.values)
        question = {"session": session, "arrived": arrived}
        shares = self._query(done, UNMASK, dict.fromkeys(arrived, question), _one_per_client("shares", members))
        if len(shares) < self.secure.needed(len(ids)):
            return done
        secret = self._recovered(done, ids, members, arrived, publics, shares)
        if secret is None:
            return done
        mask_keys = {id: publics[id][1] for id in members}
        pairs = {id: masks.Pair.of(secret[id]) for id in members if id not in trip.values}
        total = masks.unmask(trip.values, {id: secret[id] for id in arrived}, pairs, mask_keys, session)
        done.result = self.reply.mean(total, layout, len(arrived))
        done.counted = tuple(arrived)
        return done

    def _recovered(
        self,
        done: Outcome,
        ids: Sequence[int],
        members: Sequence[int],
        arrived: Sequence[int],
        publics: Mapping[int, tuple[bytes, bytes]],
        shares: Mapping[int, Mapping[int, bytes]],
    ) -> dict[int, bytes] | None:
        """The secrets of all members from the shares that others hold; None if one of them is not recovered.

        Clients with wrong shares, and clients whose own secret is wrong, are failures. With as many shares as are
        needed and not one more, nobody can tell whose share is wrong, and all whose secrets are lost are named.
        """
        wrong: set[int] = set()  # holders of wrong shares
        secret: dict[int, bytes] = {}
        for of in members:
            held = {place: shares[id][of] for place, id in enumerate(ids, start=1) if id in shares and id not in wrong}
            found = _joined(held, self.secure.needed(len(ids)))
            if found is not None:
                wrong |= {ids[place - 1] for place in found[1]}
            if found is None or not _fits(found[0], None if of in arrived else publics[of][1]):
                done.failures[of] = Failure("the shares of its secret do not combine to that secret")
            else:
                secret[of] = found[0]
        done.failures.update({id: Failure("the shares that it returns are wrong") for id in wrong})
        return secret if len(secret) == len(members) else None

    def _query(
        self, done: Outcome, kind: str, records: Mapping[int, Mapping[str, Any]], accept: Accept
    ) -> dict[int, Any]:
        messages = {
            id: Message(RecordDict({RECORD: ConfigRecord(dict(record))}), self.nodes[id], kind, ttl=self.timeout)
            for id, record in records.items()
        }
        trip = Trip(self.grid, accept, most=SPARE + PER_CLIENT * len(self.nodes))
        trip.send(messages)
        trip.wait(self.timeout)
        done.failures.update(trip.failures)
        done.tally = done.tally.plus(trip.tally._replace(asked=0, replied=0, accepted=0, bytes_up=0))
        LOG.info("%s: %s: %d of %d", self.name, kind.removeprefix("query.secure_"), len(trip.values), len(messages))
        return trip.values


def _joined(shares: Mapping[int, bytes], threshold: int) -> tuple[bytes, tuple[int, ...]] | None:
    """A secret from its shares by place, and the places of wrong shares: the fewest without which the rest agrees."""
    without = (itertools.combinations(shares, count) for count in range(len(shares) - threshold + 1))
    for wrong in itertools.islice(itertools.chain.from_iterable(without), TRIES):
        try:
            return masks.join({place: share for place, share in shares.items() if place not in wrong}, threshold), wrong
        except ValueError:
            continue
    return None


def _fits(secret: bytes, public: bytes | None) -> bool:
    """Whether a secret is the private key of this public key; or a seed, if there is none."""
    if public is None:
        return len(secret) == masks.SEED
    try:
        return masks.Pair.of(secret).public == public
    except ValueError:
        return False


def _words(layout: WordLayout, fields: Mapping[str, Any]) -> np.ndarray:
    try:
        return layout.unpacked(fields)
    except MalformedError as error:
        raise RejectedError(str(error)) from None


def _record(reply: Message) -> ConfigRecord:
    found = reply.content.config_records.get(RECORD)
    if found is None:
        raise RejectedError("it does not take part in secure sums; give its client_app the same secure=")
    return found


def _key_pair(id: int, reply: Message) -> tuple[bytes, bytes]:
    record = _record(reply)
    pair = record.get("sealing"), record.get("masking")
    if not all(isinstance(key, bytes) and masks.is_public_key(key) for key in pair):
        raise RejectedError("its keys are not public keys")
    return cast(tuple[bytes, bytes], pair)


def _one_per_client(name: str, ids: Sequence[int]) -> Accept:
    """Accepts a reply that holds one piece of bytes per client, and returns the pieces by client."""

    def accept(id: int, reply: Message) -> dict[int, bytes]:
        given, pieces = _record(reply).get("ids"), _record(reply).get(name)
        if not isinstance(given, list) or not isinstance(pieces, list) or [*given] != [*ids] or len(pieces) != len(ids):
            raise RejectedError(f"its reply must hold one of {name!r} for each of {len(ids)} clients")
        if not all(isinstance(piece, bytes) for piece in pieces):
            raise RejectedError(f"its {name!r} are not bytes")
        return dict(zip(ids, cast(list[bytes], pieces), strict=True))

    return accept

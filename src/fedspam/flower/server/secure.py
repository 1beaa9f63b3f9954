"""The server's part of the secure sum: four trips to a cohort, which reveal the mean and the clients in it."""

import functools
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
Shares = Mapping[tuple[int, int], bytes]  # by holder and owner
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
    culprits: set[int] = field(default_factory=set)  # clients that made it impossible to remove the masks


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

        near = neighborhoods(ids, self.secure.neighbors)
        keys = {
            id: {
                "session": session, "size": len(ids), "ids": near[id],
                "sealing": [publics[other][0] for other in near[id]],
                "masking": [publics[other][1] for other in near[id]],
            }
            for id in ids
        }  # fmt: skip
        dealt = self._query(done, SHARES, keys, _one_per_client(near, "sealed", "promised"))
        if len(dealt) < enough:
            return done

        members = {id: [other for other in near[id] if other in dealt] for id in sorted(dealt)}
        parts = {id: zip(*(dealt[from_][id] for from_ in members[id]), strict=True) for id in members}
        records = {
            id: ConfigRecord({"session": session, "ids": members[id], "sealed": [*sealed], "promised": [*promised]})
            for id, (sealed, promised) in parts.items()
        }
        layout, unreadable = self.reply.layout(len(ids)), dict[int, set[int]]()
        trip = post(records, functools.partial(_masked, layout, unreadable))
        done.tally = done.tally.plus(trip.tally)
        done.failures.update(trip.failures)
        arrived = sorted(trip.values)
        readers = {id: sum(other in trip.values or other in unreadable for other in near[id]) for id in members}
        if _sealers_of_nonsense(done, unreadable, readers) or len(arrived) < enough:
            return done

        heard = {id: [other for other in members[id] if other in trip.values] for id in arrived}
        questions = {id: {"session": session, "arrived": heard[id]} for id in arrived}
        shares = self._query(done, UNMASK, questions, _one_per_client(members, "shares"))
        keys_of = {id: publics[id][1] for id in members}
        lost = {id: key for id, key in keys_of.items() if id not in trip.values}
        returned = {(holder, of): share for holder, found in shares.items() for of, (share,) in found.items()}
        due = {(holder, of): dealt[of][holder][1] for holder, of in returned}
        secret = self._recovered(done, near, lost, due, returned)
        if len(secret) < len(members):
            return done
        pairs = {id: masks.Pair.of(secret[id]) for id in lost}
        pairs = {id: {other: pairs[other] for other in members[id] if other in lost} for id in arrived}
        total = masks.unmask(trip.values, {id: secret[id] for id in arrived}, pairs, keys_of, session)
        done.result = self.reply.mean(total, layout, len(arrived))
        done.counted = tuple(arrived)
        return done

    def _recovered(
        self,
        done: Outcome,
        near: Mapping[int, Sequence[int]],
        lost: Mapping[int, bytes],
        promised: Shares,
        returned: Shares,
    ) -> dict[int, bytes]:
        """The secrets that can be recovered from the shares that their holders returned: the masking keys of `lost`
        clients, the seeds of all others.

        A share that is not the promised one is the fault of its holder, if most of what that one returns is wrong, and
        otherwise of its owner, if most of the other holders have a wrong one. Both are failures.

        Arguments:
            near: the clients that share the secret of each, in the order of their shares.
        """
        holders = {holder for holder, _ in returned}
        kept = lambda pair: masks.keeps(promised[pair], returned[pair], of_key=pair[1] in lost)
        wrong = {pair for pair in returned if not kept(pair)}
        owners = sorted({of for _, of in returned})
        held, lies = Counter(holder for holder, _ in returned), Counter(holder for holder, _ in wrong)
        liars = {holder for holder in holders if 2 * lies[holder] > held[holder]}
        done.failures.update({id: Failure("the shares that it returns are wrong") for id in liars})
        secret = {}
        for of in owners:
            known = [holder for holder in near[of] if (holder, of) in returned and holder not in liars]
            honest = [holder for holder in known if (holder, of) not in wrong]
            threshold = self.secure.needed(len(near[of]))
            shares = {near[of].index(holder) + 1: returned[holder, of] for holder in honest}
            found = _joined(shares, threshold, lost.get(of))
            if found is not None:
                secret[of] = found
            elif len(honest) >= threshold or 2 * len(honest) < len(known):
                done.failures[of] = Failure("the shares of its secret that others hold are not those of that secret")
                done.culprits.add(of)
        return secret

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


def neighborhoods(ids: Sequence[int], neighbors: int | None) -> dict[int, list[int]]:
    """Each client and its neighbors, sorted: all, or the nearest on a ring in random order, half of them on each side.

    >>> {len(near) for near in neighborhoods(range(20), 6).values()}
    {7}
    """
    if neighbors is None or neighbors + 1 >= len(ids):
        return {id: [*ids] for id in ids}
    ring = [*ids]
    secrets.SystemRandom().shuffle(ring)
    reach = range(-neighbors // 2, neighbors // 2 + 1)
    return {id: sorted(ring[(place + step) % len(ring)] for step in reach) for place, id in enumerate(ring)}


def _joined(shares: Mapping[int, bytes], threshold: int, public: bytes | None) -> bytes | None:
    """A secret from its shares by place, the private key of this public key, or a seed if there is none; None if they
    are too few, or of another secret."""
    try:
        secret = masks.join(shares, threshold)
        fits = len(secret) == masks.SEED if public is None else masks.Pair.of(secret).public == public
    except ValueError:
        return None
    return secret if fits else None


def _masked(layout: WordLayout, unreadable: dict[int, set[int]], id: int, reply: Message) -> np.ndarray:
    """The masked words of a client; or it says whose shares it cannot read, and they are noted."""
    given = reply.content.config_records.get(RECORD, {}).get("unreadable")
    if given is not None:
        unreadable[id] = {of for of in given if isinstance(of, int)} if isinstance(given, list) else set()
        raise RejectedError(f"it cannot read the shares of clients {sorted(unreadable[id])}", "refused")
    try:
        return layout.unpacked(decoded(reply, layout.fields, id))
    except MalformedError as error:
        raise RejectedError(str(error)) from None


def _sealers_of_nonsense(done: Outcome, unreadable: Mapping[int, set[int]], readers: Mapping[int, int]) -> set[int]:
    """The clients whose shares most others cannot read. They are failures, and the others not.

    Arguments:
        readers: how many clients have looked at the shares of each, itself included.
    """
    uses = Counter(of for found in unreadable.values() for of in found)
    guilty = {of for of, count in uses.items() if 2 * count > readers.get(of, 0) - 1}
    for id, found in unreadable.items():
        if guilty and found <= guilty:
            del done.failures[id]
    done.failures.update({of: Failure("most others cannot read the shares that it sealed") for of in guilty})
    return guilty


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


def _one_per_client(asked: Mapping[int, Sequence[int]], *names: str) -> Accept:
    """Accepts a reply that holds one piece of bytes of each name per client that was asked about, and returns the
    pieces by client."""

    def accept(id: int, reply: Message) -> dict[int, tuple[bytes, ...]]:
        record, ids = _record(reply), asked[id]
        given, *pieces = (record.get(name) for name in ("ids", *names))
        if not isinstance(given, list) or [*given] != [*ids]:
            raise RejectedError(f"its reply is not about these {len(ids)} clients")
        for name, some in zip(names, pieces, strict=True):
            if not isinstance(some, list) or len(some) != len(ids) or any(not isinstance(one, bytes) for one in some):
                raise RejectedError(f"its reply must hold one of {name!r}, as bytes, for each of {len(ids)} clients")
        return dict(zip(ids, zip(*cast(list[list[bytes]], pieces), strict=True), strict=True))

    return accept

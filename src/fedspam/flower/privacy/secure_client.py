"""A secure sum for the gradient exchange: the server learns the sum over a cohort and no single reply.

`SecureSum` goes to both sides: ``client_app(..., secure=secure)`` and ``FedspamStrategy(..., secure=secure)``.
A covered exchange then takes four trips: keys, shares of secrets, masked replies, and the shares that take the
masks off. A
client that is lost after the shares is left out of the sum; its masks are recovered from the others' shares.

It protects against a server that follows the protocol and is curious, and against fewer than `threshold` of the clients
together with it. It does not protect against a server that sends forged keys: nobody vouches for them.

Bonawitz et al.: Practical secure aggregation for privacy-preserving machine learning, CCS 2017.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt
from flwr.common.secure_aggregation.secaggplus_utils import (
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)

from fedspam._internal import checks
from fedspam.flower.client.app import RefusedError, partition_of
from fedspam.flower.privacy import masks
from fedspam.flower.privacy.clipping import GRADIENTS, Coverage, not_refused, opened, refusal, rewrite
from fedspam.flower.wire import arrays

__all__ = ["SecureSum"]

RECORD = "secure"  # the record of the protocol in a message
STATE = "fedspam.secure"  # what a client remembers between the trips of one sum
KEYS, SHARES, UNMASK = "query.secure_keys", "query.secure_shares", "query.secure_unmask"
LEAST = 3  # of two, each knows the other's part from the sum


@dataclass(frozen=True)
class SecureSum:
    """Which exchanges are summed under masks, and how.

    Arguments:
        works: the client works whose replies are only ever summed; add ``"prox"`` for SPAM-PPA.
        in_clear: message types that clients answer as they are; all others are refused.
        threshold: the share of those that took part in the masks who must stay to take them off; above one half.
        least: the fewest clients whose sum is told to the server, at least 3.
        fraction_bits: sums are exact to :math:`2^{-f}` an entry; entries may be as large as
            :math:`2^{62-f}` over the number of clients.

    >>> secure = SecureSum(in_clear=("train.prox",))
    >>> secure.needed(10)
    7
    """

    works: tuple[str, ...] = GRADIENTS
    in_clear: tuple[str, ...] = ()
    threshold: float = 2 / 3
    least: int = LEAST
    fraction_bits: int = 32

    def __post_init__(self) -> None:
        checks.between("threshold", self.threshold, 0.5, 1, open_low=True)
        checks.whole("least", self.least, LEAST, remedy="in a sum of two, each client learns the other's part")
        checks.whole("fraction_bits", self.fraction_bits, 0)
        checks.between("fraction_bits", self.fraction_bits, 0, 52)
        _ = self.coverage

    @property
    def coverage(self) -> Coverage:
        return Coverage(tuple(self.works), tuple(self.in_clear))

    def needed(self, count: int) -> int:
        """How many of so many must stay."""
        return max(self.least, math.ceil(self.threshold * count - 1e-9), count // 2 + 1)

    def check(self, work: str, ids: Sequence[int]) -> None:
        """Whether a sum over these clients can be made at all."""
        if len(set(ids)) < len(ids) or len(ids) < self.least:
            raise ValueError(
                f"{work} asks {len(ids)} clients, {len(set(ids))} of them different; a secure sum needs at least "
                f"{self.least}, all different: raise cohort_size, or leave {work!r} out of its works"
            )

    def mod(self) -> Mod:
        """The outermost mod of the client's app: what it sends in the covered exchanges is masked."""

        def secure(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
            kind = message.metadata.message_type
            try:
                if kind in STEPS:
                    answer = STEPS[kind](self, _asked(message), context)
                    return Message(RecordDict({RECORD: ConfigRecord(answer)}), reply_to=message)
                if not self.coverage.covers(kind):
                    return call_next(message, context)
                asked = _asked(message)
                secret = _remembered(context, asked, "shared")
                reply = call_next(message, context)
                if not_refused(reply):
                    _mask(self, message, reply, context, asked, secret)
            except RefusedError as error:
                return refusal(error, message)
            except (ValueError, KeyError, TypeError) as error:
                return refusal(RefusedError(f"the secure sum: {error}"), message)
            return reply

        return secure

    def register(self, app: ClientApp) -> None:
        """Have an app hear the messages of the protocol, which the mod answers."""
        for kind in STEPS:
            app.query(kind.removeprefix("query."))(_unheard)


def _unheard(message: Message, context: Context) -> Message:
    raise RefusedError(f"{message.metadata.message_type} is answered by the mod of SecureSum, which this app lacks")


def _asked(message: Message) -> ConfigRecord:
    found = message.content.config_records.get(RECORD)
    if found is None:
        raise RefusedError(
            f"{message.metadata.message_type} is answered under a secure sum only; give the server's FedspamStrategy "
            "the same secure="
        )
    return found


def _remembered(context: Context, asked: ConfigRecord, step: str) -> ConfigRecord:
    """What this client keeps of the session that is asked about, which must have come as far as `step`."""
    found = context.state.config_records.get(STATE)
    if found is None or found["session"] != asked["session"] or found["step"] != step:
        came = "nothing" if found is None else found["step"]
        raise RefusedError(f"the secure sum {asked['session']} is not at step {step!r} here, but at {came!r}")
    return found


def _keys(secure: SecureSum, asked: ConfigRecord, context: Context) -> dict[str, Any]:
    """Fresh keys: one pair to seal what others shall read, one for the masks."""
    sealing, masking = masks.Pair.fresh(), masks.Pair.fresh()
    before = context.state.config_records.get(STATE, {})
    context.state[STATE] = ConfigRecord({
        "session": str(asked["session"]), "step": "keys", "told": before.get("told", "nothing"),
        "sealing": sealing.scalar, "masking": masking.scalar,
    })  # fmt: skip
    return {"sealing": sealing.public, "masking": masking.public}


def _shares(secure: SecureSum, asked: ConfigRecord, context: Context) -> dict[str, Any]:
    """Shares of this client's two secrets, one for each of the others, sealed."""
    secret, me = _remembered(context, asked, "keys"), partition_of(context)
    ids, sealing, masking = _numbers(asked, "ids"), _bytes(asked, "sealing"), _bytes(asked, "masking")
    threshold, count = secure.needed(len(ids)), len(ids)
    if not len(sealing) == len(masking) == count or sorted(set(ids)) != ids or me not in ids:
        raise RefusedError("the list of keys is not in order")
    if count < threshold or len({*sealing, *masking}) != 2 * count:
        raise RefusedError(f"{count} clients with {len({*sealing, *masking})} keys are too few, or share keys")
    mine, pair = masks.Pair.of(_one(secret, "sealing")), masks.Pair.of(_one(secret, "masking"))
    if sealing[ids.index(me)] != mine.public or masking[ids.index(me)] != pair.public:
        raise RefusedError("the list of keys has others in the place of its own")
    own = masks.fresh_seed()
    seeds, keys = (masks.split(part, threshold, count) for part in (own, pair.scalar))
    sealed = [
        encrypt(mine.shared(sealing[place]), share_keys_plaintext_concat(me, other, seeds[place], keys[place]))
        for place, other in enumerate(ids)
    ]  # the one for itself included: it is kept by the server as those for others are
    secret.update({"step": "shared", "own": own, "ids": ids, "public": sealing, "publics": masking})
    context.state[STATE] = secret
    return {"ids": ids, "sealed": sealed}


def _mask(
    secure: SecureSum, message: Message, reply: Message, context: Context, asked: ConfigRecord, secret: ConfigRecord
) -> None:
    """Put the masked values into the place of the clear ones."""
    facts, values = opened(reply)
    head = message.content.config_records[arrays.HEADER]
    name = f"{head.get('run')} {head.get('phase')} {head.get('exchange')} {int(facts['@round'])}"
    if secret["told"] == name:
        # two sums of the same replies over different clients would tell those of the difference
        raise RefusedError(f"the sum of {name} was told already; it is not made a second time")
    members, sealed, me = _numbers(asked, "ids"), _bytes(asked, "sealed"), partition_of(context)
    known = dict(zip(_numbers(secret, "ids"), _bytes(secret, "publics"), strict=True))
    if len(members) != len(sealed) or len(set(members)) != len(members) or not {me, *members} <= known.keys():
        raise RefusedError("the list of those that take part in the masks is not in order")
    if me not in members or len(members) < secure.needed(len(known)):
        raise RefusedError(f"{len(members)} clients take part, {secure.needed(len(known))} must")
    flat = np.concatenate([np.ravel(value).astype(np.float64) for value in values.values()])
    words = masks.to_fixed(flat, secure.fraction_bits, len(known))
    publics = {member: known[member] for member in members}
    pair, session = masks.Pair.of(_one(secret, "masking")), str(secret["session"])
    masked = masks.mask(words, me, _one(secret, "own"), pair, publics, session)
    # a second masked reply of the same session could have other members: the step forbids it
    secret.update({"step": "masked", "name": name, "members": members, "sealed": sealed})
    context.state[STATE] = secret
    rewrite(reply, {**facts, "masked": masked})


def _unmask(secure: SecureSum, asked: ConfigRecord, context: Context) -> dict[str, Any]:
    """The shares that this client holds: of the seeds of those that arrived, of the keys of those that did not."""
    secret, me = _remembered(context, asked, "masked"), partition_of(context)
    arrived, members = _numbers(asked, "arrived"), _numbers(secret, "members")
    if len(set(arrived)) != len(arrived) or not set(arrived) <= set(members) or me not in arrived:
        raise RefusedError("those that are said to have arrived are not members of the sum, this client among them")
    needed = secure.needed(len(_numbers(secret, "ids")))
    if len(arrived) < needed:
        raise RefusedError(f"the sum of {len(arrived)} clients is not told, {needed} must be in it")
    publics = dict(zip(_numbers(secret, "ids"), _bytes(secret, "public"), strict=True))
    sealed = dict(zip(members, _bytes(secret, "sealed"), strict=True))
    pair, told = masks.Pair.of(_one(secret, "sealing")), []
    for member in members:
        came = decrypt(pair.shared(publics[member]), sealed[member])
        source, target, seed, key = share_keys_plaintext_separate(came)
        if (source, target) != (member, me):
            raise RefusedError(f"a share of client {source} for {target} came as one of {member} for {me}")
        told.append(seed if member in arrived else key)  # never both: they would bare what that client sent
    context.state[STATE] = ConfigRecord({"session": "none", "step": "told", "told": str(secret["name"])})
    return {"ids": members, "shares": told}


STEPS = {KEYS: _keys, SHARES: _shares, UNMASK: _unmask}


def _numbers(record: ConfigRecord, name: str) -> list[int]:
    return [int(value) for value in cast(Sequence[int], record[name])]


def _bytes(record: ConfigRecord, name: str) -> list[bytes]:
    return [bytes(value) for value in cast(Sequence[bytes], record[name])]


def _one(record: ConfigRecord, name: str) -> bytes:
    return bytes(cast(bytes, record[name]))

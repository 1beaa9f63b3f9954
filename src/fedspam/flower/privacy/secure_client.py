"""A secure sum for the gradient exchange: its settings, and the client's part. The server learns only the sum.

Give the same `SecureSum` to both sides: ``client_app(..., secure=secure)`` and ``FedspamStrategy(..., secure=secure)``.
A covered exchange then takes four trips: keys, shares of secrets, masked replies, and the shares that remove the masks.
A client that is lost after the shares is left out of the sum; its masks are recovered from the others' shares.

It protects against a curious server that follows the protocol, even one that works together with fewer than `threshold`
of the clients. It does not protect against a server that forges keys, since nobody certifies them.

Bonawitz et al.: Practical secure aggregation for privacy-preserving machine learning, CCS 2017.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod

from ..._internal import checks
from .._flwr import (
    decrypt,
    encrypt,
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from ..wire import envelope
from ..wire.node import RefusedError, partition_of, refusal
from . import masks
from .mods import Coverage, not_refused, opened, rewrite

if TYPE_CHECKING:
    from fedspam.federation.codecs import Codecs
    from fedspam.federation.ledger import Plan

RECORD = "secure"  # the name of the protocol's record in a message
STATE = "fedspam.secure"  # the name of the client's record of the session
KEYS, SHARES, UNMASK = "query.secure_keys", "query.secure_shares", "query.secure_unmask"
LEAST = 3  # in a sum of two, each client learns the other's reply


@dataclass(frozen=True)
class SecureSum(Coverage):
    """Which exchanges are summed under masks, and how exactly.

    Arguments:
        works: the client works whose replies are summed; add ``"prox"`` for SPAM-PPA.
        in_clear: message types that clients answer unprotected; all others are refused.
        threshold: the share of the masked clients that must stay until the masks are removed; above one half.
        least: the smallest number of clients in a sum, at least 3.
        fraction_bits: f; each entry is rounded to a multiple of :math:`2^{-f}`, and must be at most :math:`2^{62-f}`
            divided by the number of clients.

    >>> secure = SecureSum(in_clear=("train.prox",))
    >>> secure.needed(10)
    7
    """

    threshold: float = 2 / 3
    least: int = LEAST
    fraction_bits: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.between("threshold", self.threshold, 0.5, 1, open_low=True)
        checks.whole("least", self.least, LEAST, remedy="in a sum of two, each client learns the other's reply")
        checks.whole("fraction_bits", self.fraction_bits, 0)
        checks.between("fraction_bits", self.fraction_bits, 0, 52)

    def needed(self, count: int) -> int:
        """How many of `count` clients must stay."""
        return max(self.least, math.ceil(self.threshold * count - 1e-9), count // 2 + 1)

    def check(self, work: str, ids: Sequence[int]) -> None:
        """Raise an error if these clients cannot have a secure sum."""
        if len(set(ids)) < len(ids) or len(ids) < self.least:
            raise ValueError(
                f"{work} has {len(ids)} clients, {len(set(ids))} of them different; a secure sum needs at least "
                f"{self.least}, all different: raise cohort_size, or remove {work!r} from the works of SecureSum"
            )

    def check_codecs(self, plan: "Plan") -> None:
        """Raise an error if a reply that is summed travels as codes that do not add."""
        from fedspam.flower.privacy.words import grid_of  # the server's: it needs JAX, which a client may lack

        for exchange in (*plan.start, *plan.round):
            if exchange.work not in self.works:
                continue
            for _, _, codec, _ in exchange.codecs.of_reply(exchange.work, {}).leaves(exchange.reply)[0]:
                if codec is not None and grid_of(codec) is None:
                    raise ValueError(
                        f"codecs compress the replies of {exchange.work}, which are summed securely, by {codec}, whose "
                        f"codes do not add; give codecs={{{exchange.work!r}: Grid(8, largest=...)}} or None, or remove "
                        f"{exchange.work!r} from the works of SecureSum"
                    )

    def mod(self, codecs: "Callable[[Context], Codecs | None]" = lambda context: None) -> Mod:
        """The outermost mod of the client's app, which masks the replies of the covered exchanges.

        Arguments:
            codecs: those of the run; None on a client without JAX, which sums plain replies only.
        """

        def secure(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
            kind = message.metadata.message_type
            try:
                if kind in STEPS:
                    answer = _guarded(STEPS[kind], self, _record(message), context)
                    return Message(RecordDict({RECORD: ConfigRecord(answer)}), reply_to=message)
                if not self.covers(kind):
                    return call_next(message, context)
                record = _record(message)
                state = _guarded(_session, context, record, "shared")
                reply = call_next(message, context)
                if not_refused(reply):
                    _guarded(_mask, self, message, reply, context, record, state, codecs(context))
            except RefusedError as error:
                return refusal(error, message)
            return reply

        return secure

    def register(self, app: ClientApp) -> None:
        """Register the messages of the protocol with an app, so that they reach the mod."""
        for kind in STEPS:
            app.query(kind.removeprefix("query."))(_without_mod)


def _guarded(part: Callable[..., Any], *given: Any) -> Any:
    """What this part of the protocol returns; whatever is wrong in a message is a refusal of it."""
    try:
        return part(*given)
    except RefusedError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise RefusedError(f"the secure sum failed: {error}") from None


def _without_mod(message: Message, context: Context) -> Message:
    raise RefusedError(f"{message.metadata.message_type} needs the mod of SecureSum, which this app does not have")


def _record(message: Message) -> ConfigRecord:
    found = message.content.config_records.get(RECORD)
    if found is None:
        raise RefusedError(
            f"{message.metadata.message_type} needs a secure sum; give the server's FedspamStrategy the same secure="
        )
    return found


def _session(context: Context, record: ConfigRecord, step: str) -> ConfigRecord:
    """This client's state of the session of the message, which must be at `step`."""
    found = context.state.config_records.get(STATE)
    if found is None or found["session"] != record["session"] or found["step"] != step:
        current = "nothing" if found is None else found["step"]
        raise RefusedError(f"the secure sum {record['session']} is not at step {step!r} here, but at {current!r}")
    return found


def _keys(secure: SecureSum, record: ConfigRecord, context: Context) -> dict[str, Any]:
    """Fresh keys: one pair to encrypt shares for other clients, one for the masks."""
    sealing, masking = masks.Pair.fresh(), masks.Pair.fresh()
    before = context.state.config_records.get(STATE, {})
    context.state[STATE] = ConfigRecord({
        "session": str(record["session"]), "step": "keys", "unmasked": before.get("unmasked", "nothing"),
        "sealing": sealing.scalar, "masking": masking.scalar,
    })  # fmt: skip
    return {"sealing": sealing.public, "masking": masking.public}


def _shares(secure: SecureSum, record: ConfigRecord, context: Context) -> dict[str, Any]:
    """Shares of this client's two secrets, encrypted, one per client."""
    state, me = _session(context, record, "keys"), partition_of(context)
    ids, sealing, masking = _numbers(record, "ids"), _bytes(record, "sealing"), _bytes(record, "masking")
    threshold, count = secure.needed(len(ids)), len(ids)
    if not len(sealing) == len(masking) == count or sorted(set(ids)) != ids or me not in ids:
        raise RefusedError("the list of keys is not one sealing and one masking key for each client, itself included")
    if count < threshold or len({*sealing, *masking}) != 2 * count:
        raise RefusedError(
            f"{count} clients with {len({*sealing, *masking})} different keys are too few, or share keys"
        )
    mine, pair = masks.Pair.of(_one(state, "sealing")), masks.Pair.of(_one(state, "masking"))
    if sealing[ids.index(me)] != mine.public or masking[ids.index(me)] != pair.public:
        raise RefusedError("the list holds other keys in place of its own")
    own = secrets.token_bytes(masks.SEED)
    # any `threshold` of the shares reveal their secret, fewer reveal nothing
    seeds, keys = (masks.split(part, threshold, count) for part in (own, pair.scalar))
    seals = [mine.shared(public) for public in sealing]  # kept: an agreement of keys is most of a client's time
    sealed = [
        encrypt(seal, share_keys_plaintext_concat(me, other, seed, key))
        for seal, other, seed, key in zip(seals, ids, seeds, keys, strict=True)
    ]  # including one for itself, which the server keeps like the others
    state.update({"step": "shared", "own": own, "ids": ids, "seals": seals, "publics": masking})
    context.state[STATE] = state
    return {"ids": ids, "sealed": sealed}


def _mask(
    secure: SecureSum,
    message: Message,
    reply: Message,
    context: Context,
    record: ConfigRecord,
    state: ConfigRecord,
    codecs: "Codecs | None",
) -> None:
    """Replace the values of a reply by masked values."""
    facts, values = opened(reply, coded=codecs is not None)
    head = message.content.config_records[envelope.HEADER]
    name = f"{head.get('run')} {head.get('phase')} {head.get('exchange')} {int(facts['@round'])}"
    if state["unmasked"] == name:
        # the difference of two sums over different clients would reveal the replies of the clients in one of them
        raise RefusedError(f"the sum of {name} was unmasked already; it is not made a second time")
    members, sealed, me = _numbers(record, "ids"), _bytes(record, "sealed"), partition_of(context)
    known = dict(zip(_numbers(state, "ids"), _bytes(state, "publics"), strict=True))
    if len(members) != len(sealed) or len(set(members)) != len(members) or not {me, *members} <= known.keys():
        raise RefusedError(
            "the list of masked clients is not a list of different clients whose keys are known, itself included"
        )
    if me not in members or len(members) < secure.needed(len(known)):
        raise RefusedError(f"{len(members)} clients are too few for the masks, {secure.needed(len(known))} are needed")
    work = message.metadata.message_type.removeprefix("train.")
    words, packed = _words(values, work, codecs, secure.fraction_bits, len(known))
    publics = {member: known[member] for member in members}
    pair, session = masks.Pair.of(_one(state, "masking")), str(state["session"])
    masked = masks.mask(words, me, _one(state, "own"), pair, publics, session)
    # the next step excludes a second masked reply of this session, which could have other members
    state.update({"step": "masked", "name": name, "members": members, "sealed": sealed})
    context.state[STATE] = state
    rewrite(reply, {**facts, **packed(masked)})


def _words(
    values: Mapping[str, np.ndarray], work: str, codecs: "Codecs | None", fraction_bits: int, clients: int
) -> tuple[np.ndarray, Callable[[np.ndarray], dict[str, np.ndarray]]]:
    """The words of a reply, and how masked words travel."""
    if codecs is None:
        flat = [np.ravel(values[name]).astype(np.float64) for name in sorted(values)]
        return masks.to_fixed(np.concatenate(flat), fraction_bits, clients), lambda masked: {"masked": masked}
    from fedspam.flower.privacy.words import words_of

    words, layout = words_of(values, work, codecs, fraction_bits, clients)
    return words, layout.packed


def _unmask(secure: SecureSum, record: ConfigRecord, context: Context) -> dict[str, Any]:
    """The shares that this client holds: of the seeds of clients whose replies arrived, of the keys of the others."""
    state, me = _session(context, record, "masked"), partition_of(context)
    arrived, members = _numbers(record, "arrived"), _numbers(state, "members")
    if len(set(arrived)) != len(arrived) or not set(arrived) <= set(members) or me not in arrived:
        raise RefusedError("the list of arrived replies is not a list of different members of the sum, itself included")
    needed = secure.needed(len(_numbers(state, "ids")))
    if len(arrived) < needed:
        raise RefusedError(f"a sum of {len(arrived)} clients is not unmasked, {needed} are needed")
    seals = dict(zip(_numbers(state, "ids"), _bytes(state, "seals"), strict=True))
    shares = []
    for member, sealed in zip(members, _bytes(state, "sealed"), strict=True):
        plain = decrypt(seals[member], sealed)
        source, target, seed, key = share_keys_plaintext_separate(plain)
        if (source, target) != (member, me):
            raise RefusedError(f"a share of client {source} for {target} is labeled as one of {member} for {me}")
        shares.append(seed if member in arrived else key)  # never both, which would reveal what that client sent
    context.state[STATE] = ConfigRecord({"session": "none", "step": "unmasked", "unmasked": str(state["name"])})
    return {"ids": members, "shares": shares}


STEPS = {KEYS: _keys, SHARES: _shares, UNMASK: _unmask}


def _numbers(record: ConfigRecord, name: str) -> list[int]:
    return [int(value) for value in cast(Sequence[int], record[name])]


def _bytes(record: ConfigRecord, name: str) -> list[bytes]:
    return [bytes(value) for value in cast(Sequence[bytes], record[name])]


def _one(record: ConfigRecord, name: str) -> bytes:
    return bytes(cast(bytes, record[name]))

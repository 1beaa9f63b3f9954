"""A secure sum for the gradient exchange: its settings, and the client's part. The server learns only the sum.

Give the same `SecureSum` to both sides: ``client_app(..., secure=secure)`` and ``FedspamStrategy(..., secure=secure)``.
A covered exchange then takes four trips: keys, shares of secrets, masked replies, and the shares that remove the masks.
A client that is lost after the shares is left out of the sum; its masks are recovered from the others' shares.

It protects against a curious server that follows the protocol, even one that works together with fewer than `threshold`
of the clients. It does not protect against a server that forges keys, since nobody certifies them.

Bonawitz et al.: Practical secure aggregation for privacy-preserving machine learning, CCS 2017.
"""

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from cryptography.fernet import InvalidToken
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod

from ..._internal import checks, strict
from .._flwr import decrypt, encrypt, share_keys_plaintext_concat, share_keys_plaintext_separate
from ..wire import envelope
from ..wire.node import RefusedError, partition_of, refusal
from . import masks
from .mods import HEADER_BYTES, Coverage, not_refused, opened, rewrite

if TYPE_CHECKING:
    from fedspam.federation.codecs import Codecs
    from fedspam.federation.ledger import Plan

RECORD = "secure"  # the name of the protocol's record in a message
STATE = "fedspam.secure"  # the name of the client's record of the session
KEYS, SHARES, UNMASK = "query.secure_keys", "query.secure_shares", "query.secure_unmask"
FOLDER = "memory-folder"  # the entry of the node-config that names the folder, as for the memory of methods
LEAST = 3  # in a sum of two, each client learns the other's reply


@dataclass(frozen=True)
class SecureSum(Coverage):
    """Which exchanges are summed under masks, and how exactly.

    Arguments:
        works: the client works whose replies are summed; add ``"prox"`` for SPAM-PPA.
        in_clear: message types that clients answer unprotected; all others are refused.
        threshold: the share of the masked clients that must stay until the masks are removed; above one half.
        least: the smallest number of clients in a sum, at least 3.
        neighbors: with how many others each client has masks and shares, an even number: a sparse graph, which the
            server draws for each sum, in place of everyone with everyone. `threshold` and `least` hold among a client
            and its neighbors, which is all that it can see. Bell et al.: Secure single-server aggregation with
            (poly)logarithmic overhead, CCS 2020. None for everyone.
        fraction_bits: f; each entry is rounded to a multiple of :math:`2^{-f}`, and must be at most :math:`2^{62-f}`
            divided by the number of clients.

    >>> secure = SecureSum(in_clear=("train.prox",))
    >>> secure.needed(10)
    7
    """

    threshold: float = 2 / 3
    least: int = LEAST
    fraction_bits: int = 32
    neighbors: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.between("threshold", self.threshold, 0.5, 1, open_low=True)
        checks.whole("least", self.least, LEAST, remedy="in a sum of two, each client learns the other's reply")
        checks.whole("fraction_bits", self.fraction_bits, 0)
        checks.between("fraction_bits", self.fraction_bits, 0, 52)
        if self.neighbors is not None:
            checks.whole(
                "neighbors", self.neighbors, max(4, self.least - 1), remedy="a client and they must be `least`"
            )
            if self.neighbors % 2:
                raise ValueError(f"neighbors = {self.neighbors} must be even: half of them on each side of a ring")

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
                state, unreadable = _guarded(_joining, self, message, _record(message), context)
                if unreadable:
                    return Message(RecordDict({RECORD: ConfigRecord({"unreadable": unreadable})}), reply_to=message)
                reply = call_next(message, context)
                if not_refused(reply):
                    _guarded(_mask, self, message, reply, context, state, codecs(context))
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
    context.state[STATE] = ConfigRecord({
        "session": str(record["session"]), "step": "keys", **_unmasked(context),
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
    size = max(count, int(cast(int, record.get("size", 0))))  # of the whole sum, for the layout of its words
    state.update({"step": "shared", "own": own, "ids": ids, "seals": seals, "publics": masking, "size": size})
    context.state[STATE] = state
    promised = [masks.promise(seed, key) for seed, key in zip(seeds, keys, strict=True)]
    return {"ids": ids, "sealed": sealed, "promised": promised}


def _joining(
    secure: SecureSum, message: Message, record: ConfigRecord, context: Context
) -> tuple[ConfigRecord, list[int]]:
    """This client's state if it takes part in a sum, before it does its work; and whose shares it cannot read."""
    state = _session(context, record, "shared")
    round, name = _named(message)
    last = int(str(state["round"]))
    if round < last or (round == last and name in str(state["unmasked"]).split("\n")):
        # the difference of two sums over different clients would reveal the replies of the clients in one of them
        raise RefusedError(
            f"the sum of {name} in round {round} was unmasked already, or one of a later round; it is not made a "
            "second time"
        )
    members, sealed, promised = _numbers(record, "ids"), _bytes(record, "sealed"), _bytes(record, "promised")
    ids, me = _numbers(state, "ids"), partition_of(context)
    if not len(members) == len(sealed) == len(promised) == len(set(members)) or not {me, *members} <= set(ids):
        raise RefusedError(
            "the list of masked clients is not a list of different clients whose keys are known, itself included"
        )
    if me not in members or len(members) < secure.needed(len(ids)):
        raise RefusedError(f"{len(members)} clients are too few for the masks, {secure.needed(len(ids))} are needed")
    seals = dict(zip(ids, _bytes(state, "seals"), strict=True))
    opened = [_unsealed(seals[member], part, member, me) for member, part in zip(members, sealed, strict=True)]
    seeds, keys = ([shares[part] for shares in opened] for part in (0, 1))
    state = ConfigRecord({**state, "at": round, "name": name, "members": members, "seeds": seeds, "keys": keys})
    fits = [masks.promise(*shares) == due for shares, due in zip(opened, promised, strict=True)]
    return state, [member for member, is_fit in zip(members, fits, strict=True) if not is_fit]


def _named(message: Message) -> tuple[int, str]:
    """The round and the exchange of a message. The start may be tried again, with another key."""
    fields, _ = strict.arrays(data := envelope.enclosed(message.content), size=len(data), header=HEADER_BYTES)
    round, label = int(fields["@round"]), message.content.config_records[envelope.HEADER]["exchange"]
    attempt = "" if round else f" with key {fields['@key'].tobytes().hex()}"
    return round, f"{message.metadata.message_type} {label}{attempt}"


def _unmasked(context: Context) -> dict[str, Any]:
    """The last round of which a sum was unmasked, and the exchanges of that round."""
    before = context.state.config_records.get(STATE, {})
    return {"round": before.get("round", -1), "unmasked": before.get("unmasked", "")}


def _mask(
    secure: SecureSum, message: Message, reply: Message, context: Context, state: ConfigRecord, codecs: "Codecs | None"
) -> None:
    """Replace the values of a reply by masked values."""
    facts, values = opened(reply, coded=codecs is not None)
    known = dict(zip(_numbers(state, "ids"), _bytes(state, "publics"), strict=True))
    work = message.metadata.message_type.removeprefix("train.")
    words, packed = _words(values, work, codecs, secure.fraction_bits, int(cast(int, state["size"])))
    publics = {member: known[member] for member in _numbers(state, "members")}
    pair, session = masks.Pair.of(_one(state, "masking")), str(state["session"])
    masked = masks.mask(words, partition_of(context), _one(state, "own"), pair, publics, session)
    # the next step excludes a second masked reply of this session, which could have other members
    context.state[STATE] = ConfigRecord({**state, "step": "masked"})
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
    _note(context, state)
    seeds, keys = _bytes(state, "seeds"), _bytes(state, "keys")
    # never both of one client, which would reveal what it sent
    shares = [seed if id in arrived else key for id, seed, key in zip(members, seeds, keys, strict=True)]
    return {"ids": members, "shares": shares}


def _note(context: Context, state: ConfigRecord) -> None:
    """Note that the sum is unmasked, before it is: in Flower's state, and in the folder of the node if it has one, so
    that two questions at the same time, or a SuperNode that starts again, do not reveal both secrets of a client."""
    folder = context.node_config.get(FOLDER)
    if folder is not None:
        place = Path(str(folder)) / "unmasked" / hashlib.sha256(_one(state, "own")).hexdigest()
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            place.touch(exist_ok=False)  # one system call: only one of several processes succeeds
        except FileExistsError:
            raise RefusedError(f"the sum {state['session']} was unmasked already") from None
    others = f"{state['unmasked']}\n" if state["at"] == state["round"] else ""
    context.state[STATE] = ConfigRecord({
        "session": "none", "step": "unmasked", "round": state["at"], "unmasked": f"{others}{state['name']}"
    })  # fmt: skip


def _unsealed(seal: bytes, sealed: bytes, source: int, target: int) -> tuple[bytes, bytes]:
    """The shares of a client's two secrets; empty if it sealed something else, so that the others still count."""
    try:
        found = share_keys_plaintext_separate(decrypt(seal, sealed))
    except InvalidToken:
        return b"", b""
    return found[2:] if found[:2] == (source, target) else (b"", b"")


STEPS = {KEYS: _keys, SHARES: _shares, UNMASK: _unmask}


def _numbers(record: ConfigRecord, name: str) -> list[int]:
    return [int(value) for value in cast(Sequence[int], record[name])]


def _bytes(record: ConfigRecord, name: str) -> list[bytes]:
    return [bytes(value) for value in cast(Sequence[bytes], record[name])]


def _one(record: ConfigRecord, name: str) -> bytes:
    return bytes(cast(bytes, record[name]))

r"""Mods of clients: the messages that they cover, how they change a reply, and one that bounds a client's influence.

A mod names the works that it covers and the message types that may pass unprotected. It refuses every other message: an
unknown type would otherwise be sent in clear without anybody noticing.

Clipping is :math:`\text{clip}(v) = v \cdot \min(1, C/\|v\|)`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from ..._internal import checks, strict
from ..._internal.packing import CHECKSUM, verify
from ..wire import envelope
from ..wire.node import RefusedError, refusal

GRADIENTS = ("starting_gradient", "gradient", "difference", "change")  # works whose replies are gradients
INTRODUCTION = "query.whoami"
SUMMED = 2.0**-40  # more than a sum of squares in float64 is off by
HEADER_BYTES = 2**24  # the longest header of a reply, which has one entry per array
Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Coverage:
    """Which messages a mod covers.

    >>> Coverage(("gradient",), in_clear=("train.prox",)).covers("train.gradient")
    True
    >>> Coverage(("gradient",)).covers("train.prox")
    Traceback (most recent call last):
    fedspam.flower.wire.node.RefusedError: 'train.prox' is neither covered nor allowed in clear: ...
    """

    works: tuple[str, ...] = GRADIENTS  # whose replies it protects
    in_clear: tuple[str, ...] = ()  # message types that may pass unprotected, such as "train.prox" or "evaluate"

    def __post_init__(self) -> None:
        if not self.works or isinstance(self.works, str):
            raise ValueError(f"works = {self.works!r} must be a tuple of at least one name, such as {GRADIENTS!r}")
        both = {f"train.{work}" for work in self.works} & set(self.in_clear)
        if both:
            raise ValueError(
                f"{sorted(both)} cannot be covered and pass in clear; remove it from works or from in_clear"
            )

    def covers(self, kind: str) -> bool:
        """Whether this type of message is covered; False if it may pass in clear. Any other type is refused."""
        if kind.removeprefix("train.") in self.works and kind.startswith("train."):
            return True
        if kind == INTRODUCTION or kind in self.in_clear:
            return False
        raise RefusedError(
            f"{kind!r} is neither covered nor allowed in clear: add its work to works, or let it pass unprotected with "
            f"in_clear=({kind!r},)"
        )


def treated(
    treat: Callable[[Values], Values], coverage: Coverage, before: Callable[[Context], None] = lambda context: None
) -> Mod:
    """A mod that changes the values of covered replies. `before` is called with each covered message; it may refuse."""

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            covered = coverage.covers(message.metadata.message_type)
            if covered:
                before(context)
            reply = call_next(message, context)
            if covered and not_refused(reply):
                facts, values = opened(reply)
                rewrite(reply, {**facts, **treat(values)})
        except RefusedError as error:
            return refusal(error, message)
        return reply

    return mod


def not_refused(reply: Message) -> bool:
    """Whether a reply has content and is not a refusal."""
    return reply.has_content() and "refused" not in reply.content.config_records.get(envelope.HEADER, {})


def opened(reply: Message, *, coded: bool = False) -> tuple[Values, Values]:
    """The header fields of a reply, ``@client`` and ``@round``, and its values; codes only where they are expected."""
    data = envelope.enclosed(reply.content)
    found, _ = strict.arrays(data, size=len(data), header=HEADER_BYTES)
    if coded and CHECKSUM in found:  # it is left out, because it would tell of the codes
        verify(int(found.pop(CHECKSUM)), {name: value for name, value in found.items() if name[0] != "@"})
    if CHECKSUM in found:
        raise RefusedError(
            "the reply travels as codes, which cannot be clipped, noised or masked; leave the replies of the covered "
            "works uncompressed on both sides, as by codecs={'difference': None}"
        )
    facts = {name: value for name, value in found.items() if name.startswith("@")}
    return facts, {name: found[name] for name in sorted(found.keys() - facts.keys())}


def rewrite(reply: Message, fields: Mapping[str, Any]) -> None:
    """Replace the fields of a reply."""
    name = next(iter(reply.content.array_records))
    reply.content[name] = envelope.enclose(
        safetensors.numpy.save({part: np.asarray(value, order="C") for part, value in fields.items()})
    )


@dataclass(frozen=True)
class Clipping:
    """Scales values down to a norm of at most `bound`.

    >>> Clipping(1.0)({"reply": np.array([3.0, 4.0])})["reply"].round(6).tolist()
    [0.6, 0.8]
    """

    bound: float

    def __post_init__(self) -> None:
        checks.positive("bound", self.bound)

    def __call__(self, values: Values) -> Values:
        length = np.sqrt(sum(np.sum(np.square(value.astype(np.float64))) for value in values.values()))
        if not np.isfinite(length):
            raise RefusedError("its reply holds NaN or infinity and cannot be clipped")
        if length <= self.bound:
            return values
        factor = self.bound / length * (1 - SUMMED)
        return {name: _towards_zero(factor * value.astype(np.float64), value.dtype) for name, value in values.items()}


def _towards_zero(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Rounded so that no number grows: to the nearest, half of all replies would end above the bound."""
    nearest = exact.astype(dtype)
    return np.where(np.abs(nearest.astype(np.float64)) > np.abs(exact), np.nextafter(nearest, dtype.type(0)), nearest)


def clipping_mod(bound: float, works: tuple[str, ...] = GRADIENTS, *, in_clear: tuple[str, ...] = ()) -> Mod:
    """A mod for `client_app` that clips each covered reply to the norm `bound`.

    Arguments:
        bound: C.
        works: the works whose replies are clipped. Not ``prox``: its reply is a point, not a step.
        in_clear: message types that may pass unprotected; all others are refused.

    >>> mod = clipping_mod(1.0, in_clear=("train.prox",))
    """
    if "prox" in works:
        raise ValueError(
            "works must not hold 'prox': its reply is a point, whose norm does not bound the influence of the client; "
            "clip gradients only"
        )
    return treated(Clipping(bound), Coverage(tuple(works), tuple(in_clear)))

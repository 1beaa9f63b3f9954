r"""Bounds on what one client can say: a mod that clips the replies of the gradient exchanges.

.. math:: \text{clip}(v) = v \cdot \min(1, C/\|v\|)

A mod here names the works that it covers and those that pass in clear. What it does not know, it refuses: a message
type that slips past a mod of this kind would be sent as it is, and nobody would notice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedspam._internal import checks, strict
from fedspam.federation import wire
from fedspam.flower.client.app import RefusedError
from fedspam.flower.wire import arrays

__all__ = ["GRADIENTS", "Clipping", "Coverage", "clipping_mod"]

GRADIENTS = ("starting_gradient", "gradient", "difference", "change")  # works whose replies are gradients
INTRODUCTION = "query.whoami"
HEADER_BYTES = 2**24  # of a reply of our own: one entry an array
Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Coverage:
    """Which messages a mod is for.

    Arguments:
        works: the client works whose replies it treats.
        in_clear: message types that may pass as they are, such as ``"train.prox"`` or ``"evaluate"``.

    >>> Coverage(("gradient",), in_clear=("train.prox",)).covers("train.gradient")
    True
    >>> Coverage(("gradient",)).covers("train.prox")
    Traceback (most recent call last):
    fedspam.flower.client.app.RefusedError: it does not know how to protect 'train.prox': cover ...
    """

    works: tuple[str, ...] = GRADIENTS
    in_clear: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.works or isinstance(self.works, str):
            raise ValueError(f"works = {self.works!r} must be a tuple of at least one name, such as {GRADIENTS!r}")
        both = {f"train.{work}" for work in self.works} & set(self.in_clear)
        if both:
            raise ValueError(f"{sorted(both)} cannot both be covered and pass in clear; take it out of one of the two")

    def covers(self, kind: str) -> bool:
        """Whether to treat this type of message; False lets it pass, an unknown one is refused."""
        if kind.removeprefix("train.") in self.works and kind.startswith("train."):
            return True
        if kind == INTRODUCTION or kind in self.in_clear:
            return False
        raise RefusedError(
            f"it does not know how to protect {kind!r}: cover its work, or accept that it passes as it is with "
            f"in_clear=({kind!r},)"
        )


def treated(treat: Callable[[Values], Values], coverage: Coverage) -> Mod:
    """A mod that changes the values of the replies that are covered."""

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            covered = coverage.covers(message.metadata.message_type)
            reply = call_next(message, context)
            if covered and not_refused(reply):
                facts, values = opened(reply)
                rewrite(reply, {**facts, **treat(values)})
        except RefusedError as error:
            return refusal(error, message)
        return reply

    return mod


def refusal(error: RefusedError, message: Message) -> Message:
    """What a client answers that will not do what it is asked."""
    if not message.metadata.message_type.startswith(("train.", "query.")):
        raise error  # nobody would read the record; Flower makes an error reply of it
    return Message(RecordDict({arrays.HEADER: ConfigRecord({"refused": str(error)})}), reply_to=message)


def not_refused(reply: Message) -> bool:
    """Whether a reply is an answer."""
    return reply.has_content() and "refused" not in reply.content.config_records.get(arrays.HEADER, {})


def opened(reply: Message) -> tuple[Values, Values]:
    """The facts of a reply, ``@client`` and ``@round``, and its values."""
    data = arrays.enclosed(reply.content)
    found, _ = strict.arrays(data, size=len(data), header=HEADER_BYTES)
    facts = {name: value for name, value in found.items() if name.startswith("@")}
    return facts, {name: found[name] for name in sorted(found.keys() - facts.keys())}


def rewrite(reply: Message, fields: Mapping[str, Any]) -> None:
    """Put other fields into a reply."""
    name = next(iter(reply.content.array_records))
    reply.content[name] = arrays.enclose(wire.encode(dict(fields)))


def norm(values: Values) -> float:
    """The Euclidean norm of all values together, in float64."""
    return float(np.sqrt(sum(np.sum(np.square(value.astype(np.float64))) for value in values.values())))


@dataclass(frozen=True)
class Clipping:
    """Values scaled down until their norm is at most `bound`.

    >>> import numpy as np
    >>> Clipping(1.0)({"reply": np.array([3.0, 4.0])})["reply"].tolist()
    [0.6..., 0.8...]
    """

    bound: float

    def __post_init__(self) -> None:
        checks.positive("bound", self.bound)

    def __call__(self, values: Values) -> Values:
        length = norm(values)
        if not np.isfinite(length):
            raise RefusedError("its reply holds NaN or infinity, which cannot be clipped")
        if length <= self.bound:
            return values
        factor = self.bound / length
        return {name: (factor * value.astype(np.float64)).astype(value.dtype) for name, value in values.items()}


def clipping_mod(bound: float, works: tuple[str, ...] = GRADIENTS, *, in_clear: tuple[str, ...] = ()) -> Mod:
    """A mod for `client_app` that clips each covered reply to the norm `bound`.

    Arguments:
        bound: C.
        works: the works whose replies are clipped. Not ``prox``: its reply is a point, not a step.
        in_clear: message types that may pass as they are; all others are refused.

    >>> mod = clipping_mod(1.0, in_clear=("train.prox",))
    """
    if "prox" in works:
        raise ValueError(
            "works holds 'prox', whose reply is a point: its norm says nothing of how much the client moved it; "
            "clip gradients only"
        )
    return treated(Clipping(bound), Coverage(tuple(works), tuple(in_clear)))

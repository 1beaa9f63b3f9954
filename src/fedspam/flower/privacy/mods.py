"""What the client mods of this folder have in common: the messages they cover, and how they change a reply.

A mod names the works that it covers and the message types that may pass unprotected. It refuses every other message: an
unknown type would otherwise be sent in clear without anybody noticing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from ..._internal import strict
from ..._internal.packing import CHECKSUM, verify
from ..wire import envelope
from ..wire.node import RefusedError, refusal

GRADIENTS = ("starting_gradient", "gradient", "difference", "change")  # works whose replies are gradients
INTRODUCTION = "query.whoami"
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

"""One trip over Flower's Grid: send messages, collect the replies before a deadline, and check each of them.

A reply is matched with the message it answers, not with its sender: Flower itself replies for a node that is lost.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedspam.federation import wire
from fedspam.federation.codecs.fields import verified
from fedspam.federation.ledger import ANSWER
from fedspam.flower.server.journal import Tally
from fedspam.flower.server.stop import pause
from fedspam.flower.wire import arrays

SPARE = 2**16  # bytes that a reply may hold beside what it was asked for
UNKNOWN = re.compile(r"No \w+ function registered with name")  # what Flower says for an app without our functions
POLL = 0.1  # wait this share of the time since the last reply before looking for more,
SHORTEST, LONGEST = 0.02, 1.0  # but at least and at most this many seconds
REMEDY = "make it with fedspam.flower.client_app, or light.client_app, and start the run again with that app"
GONE = (5, 8)  # Flower's error codes for a lost node or app; 3 and 4 mean that a message came too late


@dataclass(frozen=True)
class Failure:
    """Why there is no accepted reply, in words and by kind; whether the node is lost, or missed the deadline.

    Kinds are ``rejected`` (a wrong reply), ``refused`` (by the client), ``error`` (the client raised), ``late``,
    ``lost`` and ``absent``.
    """

    reason: str
    gone: bool = False
    silent: bool = False
    kind: str = "rejected"


class RejectedError(ValueError):
    """Why a reply is rejected."""

    def __init__(self, reason: str, *, gone: bool = False, kind: str = "rejected") -> None:
        super().__init__(reason)
        self.failure = Failure(_shortened(reason), gone=gone, kind=kind)


@dataclass
class Trip:
    """The accepted replies by slot, the failures of the other slots, and the cost."""

    values: dict[Any, Any] = field(default_factory=dict)
    failures: dict[Any, Failure] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)


def round_trip(
    grid: Grid,
    messages: Mapping[Any, Message],
    accept: Callable[[Any, Message], Any],
    timeout: float,
    *,
    enough: int | None = None,
    due: Mapping[Any, float] | None = None,
    earlier: dict[str, Any] | None = None,
    most: int = SPARE,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = pause,
) -> Trip:
    """Send every message, by slot, and wait until all replies are there or `timeout` seconds have passed.

    ``accept(slot, reply)`` returns the value of a reply, or raises `RejectedError` to reject it. With `enough` accepted
    replies nobody is waited for any longer; the other slots then have neither a value nor a failure. Slots in `due` are
    given up after their own seconds, if that is earlier.

    `earlier` are messages of earlier trips, by their ids, whose replies count too. Afterwards it holds all messages
    that are still without a reply, and no reply that has arrived is lost: there may be more than `enough`.

    A reply of more than `most` bytes is rejected unread.
    """
    began, trip = clock(), Trip()
    sent = sum(arrays.size(message.content) for message in messages.values())
    waiting: dict[str, Any] = {} if earlier is None else earlier
    push(grid, trip, waiting, messages)
    last, limit = began, lambda slot: min(timeout, (due or {}).get(slot, timeout))
    complete = lambda: enough is not None and len(trip.values) >= enough
    while waiting and not complete():
        came = pull(grid, trip, waiting, accept, most, lambda: complete() and earlier is None)
        now = clock()
        last, left = now if came else last, timeout - (now - began)
        overdue = {} if complete() else {id: slot for id, slot in waiting.items() if now - began >= limit(slot)}
        for id, slot in overdue.items():
            trip.failures[slot] = Failure(f"no reply within {limit(slot):g} s", silent=True, kind="late")
            del waiting[id]
        if not waiting or left <= 0:
            break
        sleep(min(max(SHORTEST, POLL * (now - last)), LONGEST, left))
    counts = {"asked": len(messages), "accepted": len(trip.values), "flower_down": sent}
    trip.tally = trip.tally._replace(**counts, seconds=clock() - began)
    return trip


def push(grid: Grid, trip: Trip, waiting: dict[str, Any], messages: Mapping[Any, Message]) -> None:
    """Send messages by slot; those that Flower takes are waiting for their replies, by their ids."""
    pushed = set(grid.push_messages(list(messages.values())))
    for slot, message in messages.items():
        # Flower writes the id into the message and returns the ids of those it accepted
        if message.metadata.message_id in pushed:
            waiting[message.metadata.message_id] = slot
        else:
            trip.failures[slot] = Failure("the SuperLink did not accept the message", gone=True, kind="lost")


def pull(
    grid: Grid,
    trip: Trip,
    waiting: dict[str, Any],
    accept: Callable[[Any, Message], Any],
    most: int = SPARE,
    complete: Callable[[], bool] = lambda: False,
) -> int:
    """Accept or reject the replies that have arrived, until the trip is complete; how many have arrived."""
    replies = _pulled(grid, trip, waiting)
    for reply in replies:
        if complete():
            break
        if reply.metadata.reply_to_message_id in waiting:  # only the first reply to a message counts
            _settle(trip, waiting.pop(reply.metadata.reply_to_message_id), reply, accept, most)
    return len(replies)


def decoded(reply: Message, fields: Mapping[str, Any], client: int) -> dict[str, Any]:
    """The fields of a reply, which must be encoded as expected and come from this client."""
    try:
        found = verified(wire.decode(arrays.enclosed(reply.content), {**ANSWER, **fields}))
    except ValueError as error:
        raise RejectedError(str(error)) from None
    if int(found["@client"]) != client:
        raise RejectedError(f"the reply is of client {int(found['@client'])}, the message was for client {client}")
    return found


def _pulled(grid: Grid, trip: Trip, waiting: dict[str, Any]) -> list[Message]:
    """The replies that have arrived. Where Flower cannot read one of them, that one is rejected."""
    try:
        return list(grid.pull_messages(list(waiting)))
    except Exception:  # it does not say which reply: ask for them one by one
        found = []
        for id in list(waiting):
            try:
                found += grid.pull_messages([id])
            except Exception as error:
                trip.failures[waiting.pop(id)] = Failure(_raised(error))
        return found


def _settle(trip: Trip, slot: Any, reply: Message, accept: Callable[[Any, Message], Any], most: int) -> None:
    """Accept or reject a reply. Whatever it makes the server raise is a rejection, so that no client ends a run."""
    try:
        value = _value(trip, slot, reply, accept, most)
    except RejectedError as error:
        trip.failures[slot] = error.failure
    except Exception as error:
        trip.failures[slot] = Failure(_raised(error))
    else:
        trip.values[slot] = value


def _value(trip: Trip, slot: Any, reply: Message, accept: Callable[[Any, Message], Any], most: int) -> Any:
    if reply.has_error():
        code, reason = reply.error.code, reply.error.reason or "no reason given"
        if UNKNOWN.search(reason):
            kind = reply.metadata.message_type
            reason = f"its ClientApp does not know {kind!r}, so it is not one of fedspam; {REMEDY}"
        raise RejectedError(f"error {code}: {reason}", gone=code in GONE, kind="lost" if code in GONE else "error")
    bytes_up, flower_up = arrays.payload(reply.content), arrays.size(reply.content)
    trip.tally = trip.tally.plus(Tally(replied=1, bytes_up=bytes_up, flower_up=flower_up))
    if flower_up > most:
        raise RejectedError(f"the reply has {flower_up} bytes, at most {most} are read; send what was asked for alone")
    refused = reply.content.config_records.get(arrays.HEADER, {}).get("refused")
    if refused:
        raise RejectedError(f"refused: {refused}", kind="refused")
    return accept(slot, reply)


def _raised(error: Exception) -> str:
    return _shortened(f"the server cannot read the reply: {type(error).__name__}: {error}")


def _shortened(reason: str) -> str:
    """The beginning and the end of a reason that may hold a long traceback."""
    return reason if len(reason) <= 500 else f"{reason[:200]} ... {reason[-300:]}"

"""One trip to some nodes and back over Flower's Grid: bounded in time, every reply attributed and judged.

Replies are told apart by the message they answer: where a node is lost, Flower itself answers in its place.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedspam.flower.wire import arrays

PART = 0.1  # of the time since the last reply goes by between two looks for more,
SHORTEST, LONGEST = 0.02, 1.0  # but at least and at most so many seconds
GONE = (5, 8)  # Flower's codes for a node, or its app, that is lost; 3 and 4 say that a message was too late


class RejectedError(ValueError):
    """A reply that does not count; says why."""


@dataclass(frozen=True)
class Failure:
    """Why an address gave no reply that counts, and whether the node is lost, or silent."""

    reason: str
    gone: bool = False
    silent: bool = False


@dataclass
class Trip:
    """What came back: the judged replies by slot, why others have none, and what it cost."""

    values: dict[Any, Any] = field(default_factory=dict)
    failures: dict[Any, Failure] = field(default_factory=dict)
    replied: int = 0  # replies with content, those that do not count included
    repeated: int = 0  # replies to what was answered already
    bytes_down: int = 0  # of Flower's records
    bytes_up: int = 0
    payload_up: int = 0  # of the arrays in them
    seconds: float = 0.0


def round_trip(
    grid: Grid,
    messages: Mapping[Any, Message],
    judge: Callable[[Any, Message], Any],
    timeout: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Trip:
    """Send every message, wait for the replies until all are there or the time is up, and judge each.

    Arguments:
        messages: by slot; slots are what replies are attributed to.
        judge: (slot, reply) -> value; raises `RejectedError` if the reply does not count.
        timeout: seconds; what comes later is lost.
    """
    began, done = clock(), Trip()
    done.bytes_down = sum(arrays.size(message.content) for message in messages.values())
    taken = set(grid.push_messages(list(messages.values())))
    slots: dict[str, Any] = {}
    for slot, message in messages.items():
        # Flower writes the id of a message into it; those it did not take are missing in the answer
        if message.metadata.message_id in taken:
            slots[message.metadata.message_id] = slot
        else:
            done.failures[slot] = Failure("the SuperLink did not take the message", gone=True)
    waiting, last = dict(slots), began
    while waiting:
        replies = list(grid.pull_messages(list(waiting)))
        for reply in replies:
            answered = reply.metadata.reply_to_message_id
            if answered not in waiting:
                done.repeated += answered in slots
                continue
            _settle(done, waiting.pop(answered), reply, judge)
        now = clock()
        last, left = now if replies else last, timeout - (now - began)
        if not waiting or left <= 0:
            break
        sleep(min(max(SHORTEST, PART * (now - last)), LONGEST, left))
    for slot in waiting.values():
        done.failures[slot] = Failure(f"no reply within {timeout:g} s", silent=True)
    done.seconds = clock() - began
    return done


def _settle(done: Trip, slot: Any, reply: Message, judge: Callable[[Any, Message], Any]) -> None:
    if reply.has_error():
        code, reason = reply.error.code, reply.error.reason or "no reason given"
        done.failures[slot] = Failure(f"error {code}: {_brief(reason)}", gone=code in GONE)
        return
    done.replied += 1
    done.bytes_up += arrays.size(reply.content)
    done.payload_up += arrays.payload(reply.content)
    try:
        done.values[slot] = judge(slot, reply)
    except RejectedError as error:
        done.failures[slot] = Failure(_brief(str(error)))


def _brief(reason: str) -> str:
    """Begin and end of what may be a long traceback."""
    return reason if len(reason) <= 500 else f"{reason[:200]} ... {reason[-300:]}"

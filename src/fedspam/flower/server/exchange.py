"""Trips over Flower's Grid: send messages, collect the replies before a deadline, and check each of them.

A reply is matched with the message it answers, not with its sender: Flower itself replies for a node that is lost.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedspam._internal.strict import one_line
from fedspam.federation import wire
from fedspam.federation.codecs.fields import verified
from fedspam.federation.ledger import ANSWER
from fedspam.flower.server.journal import Tally
from fedspam.flower.server.stop import pause
from fedspam.flower.wire import envelope

SPARE = 2**16  # bytes that a reply may hold beside what it was asked for
UNKNOWN = re.compile(r"No \w+ function registered with name")  # what Flower says for an app without our functions
POLL = 0.1  # wait this share of the time since the last reply before looking for more,
SHORTEST, LONGEST = 0.02, 1.0  # but at least and at most this many seconds
REMEDY = (
    "make it with fedspam.flower.client_app, or fedspam_client.client_app, and start the run again with that app; or "
    "give the strategy a method of fedspam.flower.own_training, which takes apps as they are"
)
UNTRAINED = (
    "its ClientApp has no function for @app.train(); one of fedspam.flower.client_app needs a method with "
    "local_steps: leave own_training out"
)
GONE = (5, 8)  # Flower's error codes for a lost node or app; 3 and 4 mean that a message came too late


@dataclass(frozen=True)
class Failure:
    """Why there is no accepted reply, in words and by kind.

    Kinds are ``rejected`` (a wrong reply), ``refused`` (by the client), ``error`` (the client raised), ``late``,
    ``lost`` and ``absent``.
    """

    reason: str
    kind: str = "rejected"


class RejectedError(ValueError):
    """Why a reply is rejected."""

    def __init__(self, reason: str, kind: str = "rejected") -> None:
        super().__init__(reason)
        self.failure = Failure(_shortened(reason), kind)


@dataclass
class Trip:
    """Messages on their way to clients and back, by slot: `send` them, then `wait` for their replies.

    A trip ends with the accepted replies in `values`, why other slots have none in `failures`, and its cost in `tally`.

    Arguments:
        accept: (slot, reply) -> the value of the reply; raises `RejectedError` to reject it.
        most: a reply of more bytes is rejected unread.
        enough: with so many accepted replies nobody is waited for any longer; the other slots then have neither a value
            nor a failure.
        waiting: messages of earlier trips without a reply, by their ids, whose replies count too. Afterwards it holds
            all messages that are still without a reply. No reply that has arrived is lost then, so there may be more
            than `enough`.
    """

    grid: Grid
    accept: Callable[[Any, Message], Any]
    _: KW_ONLY
    most: int = SPARE
    enough: int | None = None
    waiting: dict[str, Any] | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = pause
    values: dict[Any, Any] = field(default_factory=dict, init=False)
    failures: dict[Any, Failure] = field(default_factory=dict, init=False)
    tally: Tally = field(default_factory=Tally, init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()
        self._keeps_all = self.waiting is not None
        self._open: dict[str, Any] = {} if self.waiting is None else self.waiting  # id of the message -> slot

    @property
    def is_complete(self) -> bool:
        return self.enough is not None and len(self.values) >= self.enough

    def send(self, messages: Mapping[Any, Message]) -> None:
        """Send messages by slot; those that Flower takes are waiting for their replies."""
        sent = sum(envelope.size(message.content) for message in messages.values())
        self.tally = self.tally.plus(Tally(asked=len(messages), flower_down=sent))
        pushed = set(self.grid.push_messages(list(messages.values()))) if messages else set()
        for slot, message in messages.items():
            # Flower writes the id into the message and returns the ids of those it accepted
            if message.metadata.message_id in pushed:
                self._open[message.metadata.message_id] = slot
            else:
                self.failures[slot] = Failure("the SuperLink did not accept the message", "lost")

    def wait(self, timeout: float, due: Mapping[Any, float] | None = None) -> None:
        """Wait until all replies are there, or enough of them, or the trip has taken `timeout` seconds.

        Slots in `due` are given up after their own seconds, if that is earlier.
        """
        last = self._began
        while self._open and not self.is_complete:
            came, now = self.receive(), self.clock()
            last, left = now if came else last, timeout - (now - self._began)
            if not self.is_complete:
                self._give_up(now - self._began, timeout, due or {})
            if not self._open or left <= 0:
                break
            self.sleep(min(max(SHORTEST, POLL * (now - last)), LONGEST, left))
        self.tally = self.tally._replace(accepted=len(self.values), seconds=self.clock() - self._began)

    def receive(self) -> int:
        """Accept or reject the replies that have arrived; how many have arrived."""
        replies = self._pulled()
        for reply in replies:
            if self.is_complete and not self._keeps_all:
                break
            if reply.metadata.reply_to_message_id in self._open:  # only the first reply to a message counts
                self._settle(self._open.pop(reply.metadata.reply_to_message_id), reply)
        return len(replies)

    def _give_up(self, seconds: float, timeout: float, due: Mapping[Any, float]) -> None:
        """Fail the slots whose time is over."""
        for id, slot in list(self._open.items()):
            limit = min(timeout, due.get(slot, timeout))
            if seconds >= limit:
                self.failures[slot] = Failure(f"no reply within {limit:g} s", "late")
                del self._open[id]

    def _pulled(self) -> list[Message]:
        """The replies that have arrived. Where Flower cannot read one of them, that one is rejected."""
        try:
            return list(self.grid.pull_messages(list(self._open)))
        except Exception:  # it does not say which reply: ask for them one by one
            found = []
            for id in list(self._open):
                try:
                    found += self.grid.pull_messages([id])
                except Exception as error:
                    self.failures[self._open.pop(id)] = Failure(_raised(error))
            return found

    def _settle(self, slot: Any, reply: Message) -> None:
        """Accept or reject a reply. Whatever it makes the server raise is a rejection, so that no client ends a run."""
        try:
            self.values[slot] = self._value(slot, reply)
        except RejectedError as error:
            self.failures[slot] = error.failure
        except Exception as error:
            self.failures[slot] = Failure(_raised(error))

    def _value(self, slot: Any, reply: Message) -> Any:
        if reply.has_error():
            code, reason = reply.error.code, reply.error.reason or "no reason given"
            if UNKNOWN.search(reason):
                kind = reply.metadata.message_type  # "train" is asked only of the apps of others
                reason = f"its ClientApp does not know {kind!r}, so it is not one of fedspam; {REMEDY}"
                reason = UNTRAINED if kind == "train" else reason
            raise RejectedError(f"error {code}: {reason}", "lost" if code in GONE else "error")
        bytes_up, flower_up = envelope.payload(reply.content), envelope.size(reply.content)
        self.tally = self.tally.plus(Tally(replied=1, bytes_up=bytes_up, flower_up=flower_up))
        if flower_up > self.most:
            text = f"the reply has {flower_up} bytes, at most {self.most} are read; send what was asked for alone"
            raise RejectedError(text)
        refused = reply.content.config_records.get(envelope.HEADER, {}).get("refused")
        if refused:
            raise RejectedError(f"refused: {refused}", "refused")
        return self.accept(slot, reply)


def decoded(reply: Message, fields: Mapping[str, Any], client: int) -> dict[str, Any]:
    """The fields of a reply, which must be encoded as expected and come from this client."""
    try:
        found = verified(wire.decode(envelope.enclosed(reply.content), {**ANSWER, **fields}))
    except ValueError as error:
        raise RejectedError(str(error)) from None
    if int(found["@client"]) != client:
        raise RejectedError(f"the reply is of client {int(found['@client'])}, the message was for client {client}")
    return found


def _raised(error: Exception) -> str:
    return _shortened(f"the server cannot read the reply: {type(error).__name__}: {error}")


def _shortened(reason: str) -> str:
    """The beginning and the end of a reason that may hold a long traceback, or whatever a client wrote."""
    return one_line(reason if len(reason) <= 500 else f"{reason[:200]} ... {reason[-300:]}")

"""Asking nodes who they are, and asking again those whose introduction has failed.

A question stays under way until its deadline, also when nobody waits for the reply any more: a site that is slow to
start takes part from the round in which its reply arrives.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedspam import __version__
from fedspam.flower.server.events import RunEvents
from fedspam.flower.server.exchange import REMEDY, Failure, RejectedError, Trip
from fedspam.flower.server.stop import pause
from fedspam.flower.wire.envelope import HEADER, WIRE
from fedspam.flower.wire.schema import Schema

LOG = logging.getLogger("flwr")
LONGEST = 120.0  # seconds that a run waits for the reply of a new node; it may come later
REST, LONGEST_REST = 5.0, 300.0  # seconds before a node is asked again, at first and at most; doubled each time
MOST = 2**24  # the largest number of clients that a node may report
POLL = 0.2  # seconds between two looks for replies and for new nodes

Facts = dict[str, Any]


class Nodes:
    """Which node is which client, the questions under way, and the nodes whose introduction has failed so far.

    Arguments:
        timeout: the deadline of a question, in seconds.
    """

    def __init__(
        self,
        grid: Grid,
        schema: Schema,
        timeout: float,
        events: RunEvents,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = pause,
    ) -> None:
        self._grid, self._schema, self._timeout, self._events = grid, schema, timeout, events
        self._clock, self._sleep = clock, sleep
        self._nodes: dict[int, int] = {}  # client -> node
        self._reported: dict[int, int] = {}  # client -> its num-partitions, 0 if it gives none
        self._waiting: dict[str, int] = {}  # id of the message -> node
        self._asked: dict[int, float] = {}  # node -> when it was asked last
        self._failed: dict[int, int] = {}  # node -> how often in a row
        self._kinds: dict[int, str] = {}  # node -> the kind of its last failure
        self.refused: dict[int, str] = {}  # node -> why it cannot take part so far

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def clients(self) -> int:
        """The number of clients, connected or not."""
        raise NotImplementedError

    def refresh(self, patience: float = LONGEST) -> None:
        """Drop nodes that have disconnected, and ask others who they are; waits at most `patience` seconds for those
        that are asked for the first time."""
        raise NotImplementedError

    def node(self, client: int) -> int | None:
        return self._nodes.get(client)

    def forget(self, client: int) -> None:
        """Drop the node of a client because it is lost; another node may replace it."""
        node = self._nodes.pop(client, None)
        if node is not None:
            self._clear(node)

    def heading(self, client: int) -> dict[str, Any]:
        """Further entries in the header of a message to this client."""
        return {}

    def meet(self, client: int, head: Mapping[str, Any]) -> None:
        """Note what the header of a reply says about its sender; a node that cannot be this client is rejected."""

    def save(self) -> None:
        """Have on disk who is who, before a result depends on it."""

    def _look(self) -> list[int]:
        """The connected nodes, in the order in which they registered; those that have disconnected are dropped."""
        order = self._events.sites.look(self._grid)
        present = set(order)
        for client in [client for client, node in self._nodes.items() if node not in present]:
            self.forget(client)
        return order

    def _ask(self, nodes: Iterable[int], patience: float = 0.0) -> dict[int, Facts]:
        """Ask those of these nodes whose turn it is; the facts of all nodes whose replies have arrived."""
        began = self._clock()
        for id, node in [*self._waiting.items()]:
            if began - self._asked[node] >= self._timeout:
                del self._waiting[id]
                self._fail(node, Failure(f"no reply within {self._timeout:g} s", "late"))
        under_way = set(self._waiting.values())
        due = [node for node in sorted(nodes) if node not in under_way and began >= self._again(node)]
        trip = Trip(self._grid, introduction, waiting=self._waiting)
        trip.send({node: self._question(node) for node in due})
        self._asked.update(dict.fromkeys(due, began))
        new = {node for node in due if node not in self._failed}
        while self._waiting:
            trip.receive()
            left = min(patience, self._timeout) - (self._clock() - began)
            if left <= 0 or not new & set(self._waiting.values()):
                break
            self._sleep(min(POLL, left))
        for node, failure in trip.failures.items():
            self._fail(node, failure)
        return dict(sorted(trip.values.items()))

    def _fail(self, node: int, failure: Failure) -> None:
        """Note why a node cannot take part, and when it is asked again."""
        if self.refused.get(node) != failure.reason:
            LOG.warning("\t> node %s cannot take part: %s", node, failure.reason)
        self._failed[node] = self._failed.get(node, 0) + 1
        self._asked.setdefault(node, self._clock())
        self._kinds[node], self.refused[node] = failure.kind, failure.reason
        self._events.introduction(node, None, failure.kind, failure.reason, self._failed[node])

    def _admit(self, node: int, client: int, late: bool) -> None:
        """A node takes part from now on."""
        tries = self._failed.get(node, 0) + 1
        late = late or tries > 1
        if late:
            called = self._events.sites.called(client)
            LOG.info("\t> %s takes part from now on: node %s, asked %d times", called, node, tries)
        self._clear(node)
        self._events.introduction(node, client, "accepted", "", tries, late=late)

    def _clear(self, node: int) -> None:
        """The node is as one that was never asked."""
        for table in (self._failed, self._kinds, self.refused):
            table.pop(node, None)

    def _again(self, node: int) -> float:
        """When a node may be asked."""
        count = self._failed.get(node, 0)
        return self._asked[node] + min(REST * 2.0 ** min(count - 1, 30), LONGEST_REST) if count else -float("inf")

    def _question(self, node: int) -> Message:
        question = ConfigRecord({"schema": self._schema.digest, "description": self._schema.text})
        return Message(RecordDict({HEADER: question}), node, "query.whoami", ttl=self._timeout)


def introduction(node: Any, reply: Message) -> Facts:
    """What a node replies when it is asked who it is."""
    facts = reply.content.config_records.get(HEADER)
    if facts is None:
        raise RejectedError(f"its ClientApp is not one of fedspam; {REMEDY}")
    return introduced(facts)


def introduced(facts: Mapping[str, Any]) -> Facts:
    """What a node says about itself, checked."""
    kinds = {"partition-id": int, "num-partitions": int, "fedspam": str, "wire": int}
    facts = {"wire": 1, **facts}  # which the first clients did not say
    if any(type(facts.get(name)) is not kind for name, kind in kinds.items()):
        raise RejectedError("its introduction must hold partition-id, num-partitions and fedspam")
    if facts["wire"] != WIRE:
        raise RejectedError(
            f"its fedspam {facts['fedspam']!r} speaks version {facts['wire']} of the wire, the server's {__version__} "
            f"speaks {WIRE}; install the same release on both sides"
        )
    client, count = facts["partition-id"], facts["num-partitions"]
    if not 0 <= client < (count if count > 0 else MOST) or count > MOST:
        raise RejectedError(
            f"partition-id = {client} must be at least 0 and below num-partitions = {count} (at most {MOST})"
        )
    return {name: facts[name] for name in kinds}

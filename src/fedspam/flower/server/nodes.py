"""Which node is which client, where every node is asked before the first round.

Flower draws the ids of nodes itself, and the server has to ask a node for its partition id, which is the id of its
client in the simulator. `fedspam.flower.server.assigned` serves federations with more nodes than should be asked.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedspam import __version__
from fedspam.flower.server import exchange
from fedspam.flower.server.stop import pause
from fedspam.flower.wire import arrays
from fedspam.flower.wire.schema import Schema

LOG = logging.getLogger("flwr")
INTRODUCTION = 120.0  # the longest deadline of an introduction, in seconds
REST = 60.0  # seconds before a node that did not reply is asked again
MOST = 2**24  # the largest number of clients that a node may report
POLL = 0.2  # seconds between two looks for new nodes


class NodeDirectory:
    """The nodes by their partition id, which is the id of the client; timeouts in seconds."""

    def __init__(self, grid: Grid, schema: Schema, timeout: float) -> None:
        self._grid, self._schema, self._timeout = grid, schema, timeout
        self._nodes: dict[int, int] = {}  # client -> node
        self._known: set[int] = set()  # nodes that have replied
        self._silent: dict[int, float] = {}  # nodes that did not reply -> when they were asked last
        self._partitions: set[int] = set()  # the values of num-partitions that nodes report
        self.refused: dict[int, str] = {}  # node -> why it cannot take part

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def clients(self) -> int:
        """The number of clients, connected or not."""
        return max(self._partitions | {max(self._nodes, default=-1) + 1})

    def node(self, client: int) -> int | None:
        return self._nodes.get(client)

    def forget(self, client: int) -> None:
        """Drop the node of a client because it is lost; another node may replace it."""
        node = self._nodes.pop(client, None)
        if node is not None:
            self._known.discard(node)

    def gather(self, least: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Wait until at least this many nodes have introduced themselves."""
        began = clock()
        while True:
            self.refresh()
            if len(self) >= least:
                break
            if clock() - began > self._timeout:
                raise RuntimeError(
                    f"{len(self)} of at least {least} nodes can take part after {self._timeout:g} s"
                    + "".join(f"; node {node}: {reason}" for node, reason in list(self.refused.items())[:3])
                    + "; start more SuperNodes, or lower min_available_nodes"
                )
            if len(self) == 0 and len(self.refused) >= least:
                node, reason = next(iter(self.refused.items()))
                raise RuntimeError(f"none of {len(self.refused)} nodes can take part; node {node}: {reason}")
            pause(POLL)
        if len(self._partitions) > 1:
            raise RuntimeError(
                f"the nodes disagree on num-partitions: {sorted(self._partitions)}; start all with the same number"
            )
        LOG.info("whoami: %d of %d clients are connected", len(self), self.clients)

    def heading(self, client: int) -> dict[str, Any]:
        """Further entries in the header of a message to this client: none, it has introduced itself."""
        return {}

    def meet(self, client: int, head: Mapping[str, Any]) -> None:
        """The header of a reply of this client says nothing new."""

    def save(self) -> None:
        """Nothing is written: a resumed run asks all nodes again."""

    def refresh(self) -> None:
        """Ask new nodes for their partition id, and drop nodes that have disconnected."""
        present = set(self._grid.get_node_ids())
        for client in [client for client, node in self._nodes.items() if node not in present]:
            self.forget(client)
        resting = {node for node, when in self._silent.items() if time.monotonic() - when < REST}
        new = sorted(present - self._known - resting)
        if not new:
            return
        trip = introductions(self._grid, self._schema, new, self._timeout)
        for node, failure in trip.failures.items():
            if failure.gone or failure.silent:
                LOG.warning("\t> node %s cannot take part: %s", node, failure.reason)
                self._silent[node] = time.monotonic()
            else:
                self._refuse(node, failure.reason)
        for node in sorted(trip.values):
            self._enter(node, trip.values[node])

    def _refuse(self, node: int, reason: str) -> None:
        LOG.warning("\t> node %s cannot take part: %s", node, reason)
        self.refused[node] = reason
        self._known.add(node)

    def _enter(self, node: int, facts: dict[str, Any]) -> None:
        client = facts["partition-id"]
        if client in self._nodes and self._nodes[client] != node:
            other = self._nodes[client]
            self._refuse(node, f"partition-id = {client} is taken by node {other}; give every SuperNode its own")
            return
        self._known.add(node)
        if facts["fedspam"] != __version__:
            LOG.warning("\t> client %d runs fedspam %s, the server %s", client, facts["fedspam"], __version__)
        self._nodes[client] = node
        if facts["num-partitions"] > 0:
            self._partitions.add(facts["num-partitions"])


def introductions(grid: Grid, schema: Schema, nodes: Iterable[int], timeout: float) -> exchange.Trip:
    """Ask these nodes who they are; a node whose method, model or codecs differ from the server's refuses."""
    timeout = min(timeout, INTRODUCTION)
    question = {"schema": schema.digest, "description": schema.text}
    messages = {
        node: Message(RecordDict({arrays.HEADER: ConfigRecord(dict(question))}), node, "query.whoami", ttl=timeout)
        for node in nodes
    }
    return exchange.round_trip(grid, messages, _introduction, timeout)


def _introduction(node: Any, reply: Message) -> dict[str, Any]:
    facts = reply.content.config_records.get(arrays.HEADER)
    if facts is None:
        raise exchange.RejectedError("its ClientApp is not one of fedspam; make it with fedspam.flower.client_app")
    return introduced(facts)


def introduced(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a node says about itself, checked."""
    kinds = {"partition-id": int, "num-partitions": int, "fedspam": str}
    if any(type(facts.get(name)) is not kind for name, kind in kinds.items()):
        raise exchange.RejectedError("its introduction must hold partition-id, num-partitions and fedspam")
    client, count = int(str(facts["partition-id"])), int(str(facts["num-partitions"]))
    if not 0 <= client < (count if count > 0 else MOST) or count > MOST:
        raise exchange.RejectedError(
            f"partition-id = {client} must be at least 0 and below num-partitions = {count} (at most {MOST})"
        )
    return {"partition-id": client, "num-partitions": count, "fedspam": facts["fedspam"]}

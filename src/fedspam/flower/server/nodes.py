"""Which node is which client: asked once, since the numbers of Flower's nodes are drawn anew in every run."""

import logging
import time
from collections.abc import Callable
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedspam import __version__
from fedspam.flower.server import exchange
from fedspam.flower.wire import arrays
from fedspam.flower.wire.schema import Schema

LOG = logging.getLogger("flwr")
INTRODUCTION = 120.0  # seconds that a node has to say who it is
REST = 60.0  # seconds before a node that was lost is asked again
MOST = 2**24  # clients that are believed in
LOOK = 0.2  # seconds between two looks whether enough nodes are there


class Directory:
    """The nodes by their partition id, which is the number of the client.

    Arguments:
        grid: where the nodes are.
        schema: what every client must agree to; another is refused.
        timeout: seconds to wait, for nodes to connect and for their answers.
    """

    def __init__(self, grid: Grid, schema: Schema, timeout: float) -> None:
        self._grid, self._schema, self._timeout = grid, schema, timeout
        self._nodes: dict[int, int] = {}  # partition -> node
        self._seen: set[int] = set()
        self._silent: dict[int, float] = {}  # nodes that were lost when they were last asked, and when that was
        self._partitions: set[int] = set()  # what nodes say of how many there are
        self.refused: dict[int, str] = {}  # node -> why it cannot take part

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def clients(self) -> int:
        """How many clients there are, be they connected or not."""
        return max(self._partitions | {max(self._nodes, default=-1) + 1})

    def node(self, client: int) -> int | None:
        return self._nodes.get(client)

    def forget(self, client: int) -> None:
        """The node of this client is lost; another may come in its place."""
        node = self._nodes.pop(client, None)
        if node is not None:
            self._seen.discard(node)

    def gather(self, least: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Wait until so many nodes are connected and have introduced themselves."""
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
            time.sleep(LOOK)
        if len(self._partitions) > 1:
            raise RuntimeError(f"the nodes disagree on num-partitions: {sorted(self._partitions)}; start them alike")
        LOG.info("whoami: %d of %d clients are connected", len(self), self.clients)

    def refresh(self) -> None:
        """Ask the nodes that have not been asked yet."""
        present = set(self._grid.get_node_ids())
        for client in [client for client, node in self._nodes.items() if node not in present]:
            self.forget(client)
        resting = {node for node, when in self._silent.items() if time.monotonic() - when < REST}
        fresh = sorted(present - self._seen - resting)
        if not fresh:
            return
        question = {"schema": self._schema.digest, "description": self._schema.text}
        timeout = min(self._timeout, INTRODUCTION)
        asked = {
            node: Message(RecordDict({arrays.HEADER: ConfigRecord(dict(question))}), node, "query.whoami", ttl=timeout)
            for node in fresh
        }
        heard = exchange.round_trip(self._grid, asked, _introduction, timeout)
        for node, failure in heard.failures.items():
            LOG.warning("\t> node %s cannot take part: %s", node, failure.reason)
            if failure.gone or failure.silent:
                self._silent[node] = time.monotonic()
            else:
                self.refused[node] = failure.reason
                self._seen.add(node)
        for node in sorted(heard.values):
            self._seen.add(node)
            self._enter(node, heard.values[node])

    def _enter(self, node: int, facts: dict[str, Any]) -> None:
        client = facts["partition-id"]
        if client in self._nodes and self._nodes[client] != node:
            self.refused[node] = (
                f"its partition-id = {client} is that of node {self._nodes[client]}; give every SuperNode its own"
            )
            LOG.warning("\t> node %s cannot take part: %s", node, self.refused[node])
            return
        if facts["fedspam"] != __version__:
            LOG.warning("\t> client %d runs fedspam %s, the server %s", client, facts["fedspam"], __version__)
        self._nodes[client] = node
        if facts["num-partitions"] > 0:
            self._partitions.add(facts["num-partitions"])


def _introduction(node: Any, reply: Message) -> dict[str, Any]:
    facts = reply.content.config_records.get(arrays.HEADER)
    if facts is None:
        raise exchange.RejectedError("its ClientApp is not one of fedspam; make it with fedspam.flower.client_app")
    if facts.get("refused"):
        raise exchange.RejectedError(str(facts["refused"]))
    kinds = {"partition-id": int, "num-partitions": int, "fedspam": str}
    if any(type(facts.get(name)) is not kind for name, kind in kinds.items()):
        raise exchange.RejectedError("it did not say who it is: partition-id, num-partitions and fedspam are needed")
    client, count = int(str(facts["partition-id"])), int(str(facts["num-partitions"]))
    if not 0 <= client < (count if count > 0 else MOST) or count > MOST:
        raise exchange.RejectedError(
            f"partition-id = {client} must be at least 0 and below num-partitions = {count} (at most {MOST})"
        )
    return {"partition-id": client, "num-partitions": count, "fedspam": facts["fedspam"]}

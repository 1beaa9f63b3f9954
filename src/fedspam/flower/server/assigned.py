"""Which node is which client in a large federation, where a node introduces itself with its first reply.

Client i is the i-th node in the order in which the nodes registered with Flower. Flower's simulation registers them in
the order of their partition ids, so there the draws are those of the simulator. Where the order is another one, the
message tells the client its id, and the reply tells the server the partition. A run folder keeps both, because a node
may come back under another node id.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from fedspam._internal import files
from fedspam.flower.server.events import RunEvents
from fedspam.flower.server.exchange import Failure, RejectedError
from fedspam.flower.server.introductions import LONGEST, POLL, Introductions, introduced
from fedspam.flower.server.stop import pause
from fedspam.flower.wire.schema import Schema

LOG = logging.getLogger("flwr")
FILE = "nodes.bin"


class AssignedNodes:
    """The nodes by the id that the server has given to their client.

    Arguments:
        nodes: the node ids, in the order of the clients.
        timeout: of an introduction, in seconds.
        path: the file that keeps the ids; None writes nothing.
        plain: whether the nodes run apps that do not know this package: nothing can be asked of them, so that a node
            that comes later takes any free place.
    """

    def __init__(
        self,
        grid: Grid,
        schema: Schema,
        nodes: list[int],
        timeout: float,
        path: Path | None,
        events: RunEvents,
        plain: bool,
    ) -> None:
        self._grid, self._schema, self._path, self._events, self._plain = grid, schema, path, events, plain
        self._asking = Introductions(grid, schema, timeout, events)
        self._listed = list(nodes)  # as the file says
        self._nodes: dict[int, int] = {}  # client -> node
        self._clients: dict[int, int] = {}  # node -> client
        self._partitions: dict[int, int] = {}  # client -> partition id, of those that have replied
        self._owners: dict[int, int] = {}  # partition id -> client
        self._reported: dict[int, int] = {}  # client -> the num-partitions that it reports
        self._unsaved: list[tuple[int, int, int]] = []  # client, partition id, node
        self._end = 0  # of the good part of the file
        present = set(events.sites.look(grid))
        for client, node in enumerate(nodes):
            if node in present:
                self._place(client, node)
        events.nodes(len(self), self.clients, self.refused)

    @classmethod
    def saved(
        cls, grid: Grid, schema: Schema, timeout: float, path: Path, events: RunEvents, plain: bool
    ) -> "AssignedNodes":
        """The ids that an earlier process gave, for a run that is resumed."""
        frames, trouble = files.frames(path)
        if not frames or frames[0].facts.get("kind") != "nodes":
            raise files.RecordError(f"{trouble or f'{path} does not begin with a list of nodes'}; use another folder")
        known = cls(grid, schema, frames[0].arrays["nodes"].tolist(), timeout, path, events, plain)
        present = set(events.sites.look(grid))
        for frame in frames[1:]:
            for client, partition, node in frame.arrays["entries"].tolist():
                known._partitions[client], known._owners[partition] = partition, client
                if node in present:
                    known._place(client, node)
        known._end = frames[-1].end
        known.refresh()
        return known

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def refused(self) -> Mapping[int, str]:
        """Why nodes cannot take part so far."""
        return self._asking.refused

    @property
    def clients(self) -> int:
        """The number of clients, connected or not."""
        return len(self._listed)

    def node(self, client: int) -> int | None:
        return self._nodes.get(client)

    def forget(self, client: int) -> None:
        """Drop the node of a client because it is lost; another node may replace it."""
        node = self._nodes.pop(client, None)
        if node is not None:
            self._clients.pop(node, None)

    def heading(self, client: int) -> dict[str, Any]:
        """Further entries in the header of a message: the client's id is given; what to agree on, if it is new."""
        if self._plain:
            return {}  # these apps know none
        return {"assigned": True} | ({} if client in self._partitions else {"description": self._schema.text})

    def meet(self, client: int, head: Mapping[str, Any]) -> None:
        """Note what the header of a reply says about its sender; a node that cannot be this client is refused."""
        if self._plain:
            return  # it says nothing
        facts, node = introduced(head), self._nodes.get(client)
        partition, count = facts["partition-id"], facts["num-partitions"]
        if node is None:
            raise RejectedError("its node was refused or lost in the meantime")
        if partition != self._partitions.get(client, partition):
            reason = f"partition-id = {partition} is not the {self._partitions[client]} that it had before"
        elif self._owners.get(partition, client) != client:
            other = self._owners[partition]
            reason = f"partition-id = {partition} is taken by client {other}; give every SuperNode its own"
        elif self._is_outvoted(client, count):
            reason = f"num-partitions = {count} is not that of most other nodes; start all with the same number"
        else:
            if client not in self._partitions:
                self._enter(client, partition, node)
            return
        self.forget(client)
        self._asking.fail(node, Failure(reason))
        raise RejectedError(reason)

    def save(self) -> None:
        """Have all ids on disk before a result depends on them."""
        if self._path is None:
            return
        if self._end == 0:
            data = files.pack({"nodes": np.array(self._listed, np.uint64)}, kind="nodes")
            self._end = files.append(self._path, data, 0)
        if self._unsaved:
            data = files.pack({"entries": np.array(self._unsaved, np.uint64)}, kind="introductions")
            self._end, self._unsaved = files.append(self._path, data, self._end), []

    def refresh(self, patience: float = LONGEST) -> None:
        """Drop nodes that have disconnected, and give new nodes to clients that have lost theirs."""
        order = self._events.sites.look(self._grid)
        present = set(order)
        for client in [client for client, node in self._nodes.items() if node not in present]:
            self.forget(client)
        vacant = [client for client in range(self.clients) if client not in self._nodes]
        others = [node for node in order if node not in self._clients] if self._plain else []
        facts = {} if self._plain else self._asking.ask(present - self._clients.keys(), patience)
        for node in sorted(facts, key=lambda node: facts[node]["partition-id"]):
            owner = self._owners.get(facts[node]["partition-id"])
            if owner is None:
                others.append(node)
            elif owner not in self._nodes:
                if self._place(owner, node, late=True):
                    self._unsaved.append((owner, self._partitions[owner], node))
            else:
                reason = f"its partition-id is taken by client {owner}; give every SuperNode its own"
                self._asking.fail(node, Failure(reason))
        free = [client for client in vacant if client not in self._nodes and client not in self._partitions]
        free, others = self._events.sites.matched(free, others)
        for client, node in zip(free, others, strict=False):
            self._place(client, node, late=True)
        for node in others[len(free) :]:
            self._deny(node, "all clients of this run have nodes; it may take the place of a lost one")
        self._events.nodes(len(self), self.clients, self.refused)

    def _enter(self, client: int, partition: int, node: int) -> None:
        if partition != client and all(known == own for own, known in self._partitions.items()):
            LOG.info("\t> client %d is partition %d: nodes registered in another order than that", client, partition)
        self._partitions[client], self._owners[partition] = partition, client
        self._unsaved.append((client, partition, node))

    def _is_outvoted(self, client: int, count: int) -> bool:
        """Whether more nodes report another number; the first node to reply does not decide for all others."""
        self._reported[client] = count
        (_, most), *_ = (votes := Counter(self._reported.values())).most_common(1)
        return votes[count] < most

    def _deny(self, node: int, reason: str) -> None:
        if not self._plain or self.refused.get(node) != reason:  # it is not asked, so that it has no turn
            self._asking.fail(node, Failure(reason))

    def _place(self, client: int, node: int, late: bool = False) -> bool:
        """Give a client this node, unless the site of the node is another client."""
        reason = self._events.sites.claim(client, node)
        if reason is not None:
            self._deny(node, reason)
            return False
        self.forget(client)
        self._nodes[client], self._clients[node] = node, client
        if late:
            self._asking.admit(node, client, late=True)
        return True


def connected(
    grid: Grid, least: int, timeout: float, events: RunEvents, clock: Callable[[], float] = time.monotonic
) -> int:
    """Wait until at least this many nodes have connected; how many have."""
    began = clock()
    while len(found := list(grid.get_node_ids())) < least:
        events.nodes(len(found), len(found), {})
        if clock() - began > timeout:
            raise RuntimeError(
                f"{len(found)} of at least {least} nodes are connected after {timeout:g} s; "
                "start more SuperNodes, or lower min_available_nodes"
            )
        pause(POLL)
    return len(found)

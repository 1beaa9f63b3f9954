"""Which node is which client, settled in one of two ways when a run starts.

Flower draws the ids of nodes itself. In a small federation the server asks each node for its partition id, which is the
id of its client in the simulator. In a large one client i is the i-th node in the order in which nodes registered with
Flower, and a node introduces itself with its first reply. Flower's simulation registers nodes in the order of their
partition ids, so there the draws are those of the simulator. Where the order is another one, the message tells the
client its id, and the reply tells the server the partition. A run folder keeps both, because a node may come back under
another node id.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from fedspam import __version__
from fedspam._internal import files
from fedspam.flower.server.events import RunEvents
from fedspam.flower.server.exchange import Failure, RejectedError
from fedspam.flower.server.introductions import LONGEST, POLL, Facts, Nodes, introduced
from fedspam.flower.server.stop import pause
from fedspam.flower.wire.schema import Schema

LOG = logging.getLogger("flwr")
FILE = "nodes.bin"
SELF = "each introduces itself with its first reply"


class NodeDirectory(Nodes):
    """The nodes by their partition id, where every node is asked before the first round.

    The number of clients is fixed when enough nodes have gathered. A node that comes later takes the place that its
    partition id has among them, so that no other client gets another id. A resumed run asks all nodes again.
    """

    _count: int | None = None  # clients, once they have gathered

    @property
    def clients(self) -> int:
        reported = (self._reported[client] for client in self._nodes)
        return max([*reported, max(self._nodes, default=-1) + 1]) if self._count is None else self._count

    def gather(self, least: int) -> None:
        """Wait until at least this many nodes have introduced themselves, and a while for others that are there."""
        began = self._clock()
        while True:
            self.refresh(patience=0.0)
            expected = self._expects_replies()
            if len(self) >= least and not expected and self._agreed() >= least:
                break
            if self._clock() - began > self._timeout:
                raise RuntimeError(
                    f"{len(self)} of at least {least} nodes can take part after {self._timeout:g} s"
                    + "".join(f"; node {node}: {reason}" for node, reason in list(self.refused.items())[:3])
                    + "; start more SuperNodes, or lower min_available_nodes"
                )
            refusing = [node for node, kind in self._kinds.items() if kind == "refused"]  # they said it themselves
            if len(self) == 0 and len(refusing) >= max(least, len(self.refused)) and not expected:
                raise RuntimeError(
                    f"none of {len(self.refused)} nodes can take part; node {refusing[0]}: {self.refused[refusing[0]]}"
                )
            self._sleep(POLL)
        self._count = self.clients
        LOG.info("whoami: %d of %d clients are connected", len(self), self.clients)

    def refresh(self, patience: float = LONGEST) -> None:
        for node, facts in self._ask(set(self._look()) - set(self._nodes.values()), patience).items():
            self._enter(node, facts)
        self._events.nodes(len(self), self.clients, self.refused)

    def _expects_replies(self) -> bool:
        """Whether the reply of a node that has just been asked for the first time is worth waiting for."""
        now = self._clock()
        return any(node not in self._failed and now - self._asked[node] < LONGEST for node in self._waiting.values())

    def _enter(self, node: int, facts: Facts) -> None:
        client, count, most = facts["partition-id"], facts["num-partitions"], self._count
        if client in self._nodes:
            other = self._nodes[client]
            self._refuse(node, f"partition-id = {client} is taken by node {other}; give every SuperNode its own")
        elif most is not None and (client >= most or count not in (0, most)):
            self._refuse(
                node,
                f"partition-id = {client} of num-partitions = {count} is not one of the {most} clients of this run; "
                "start all SuperNodes with the same num-partitions, and a new run to count more",
            )
        elif (other := self._events.sites.claim(client, node)) is not None:
            self._refuse(node, other)
        else:
            if facts["fedspam"] != __version__:
                called = self._events.sites.called(client)
                LOG.info("\t> %s runs fedspam %r, the server %s", called, facts["fedspam"], __version__)
            self._nodes[client], self._reported[client] = node, count
            self._admit(node, client, late=most is not None)

    def _agreed(self) -> int:
        """How many nodes are left after those are refused whose num-partitions is not that of most nodes.

        Where most nodes do not give it, a partition-id must be below twice the number of nodes, so that none of them
        decides how many clients there are.
        """
        votes = Counter(self._reported[client] for client in self._nodes if self._reported[client])
        count, most = votes.most_common(1)[0] if votes else (0, 0)
        if most <= len(self) - votes.total():
            end = 2 * len(self)
            remedy = "is far above the number of nodes, and most of them give no num-partitions"
            fits = lambda client, reported: max(client + 1, reported) <= end
        elif 2 * most <= votes.total():
            raise RuntimeError(f"the nodes disagree on num-partitions: {sorted(votes)}; start all with the same number")
        else:
            remedy = f"does not fit the {count} that most nodes report"
            fits = lambda client, reported: reported in (0, count) and client < count
        for client in [*self._nodes]:
            reported = self._reported[client]
            if not fits(client, reported):
                self._events.sites.release(client)
                self._refuse(
                    self._nodes.pop(client),
                    f"partition-id = {client} of num-partitions = {reported} {remedy}; start all with the same number",
                )
        return len(self)

    def _refuse(self, node: int, reason: str) -> None:
        self._fail(node, Failure(reason))


class AssignedNodes(Nodes):
    """The nodes by the id that the server has given to their client.

    Arguments:
        nodes: the node ids, in the order of the clients.
        timeout: of an introduction, in seconds.
        path: the file that keeps the ids; None writes nothing.
        plain: whether the nodes run apps that do not know this package: nothing can be asked of them, so that a node
            that comes later takes any free place.
    """

    def __init__(
        self, grid: Grid, schema: Schema, nodes: list[int], timeout: float, path: Path | None, events: RunEvents,
        plain: bool,
    ) -> None:  # fmt: skip
        super().__init__(grid, schema, timeout, events)
        self._path, self._plain = path, plain
        self._listed = list(nodes)  # as the file says
        self._partitions: dict[int, int] = {}  # client -> partition id, of those that have replied
        self._owners: dict[int, int] = {}  # partition id -> client
        self._unsaved: list[tuple[int, int, int]] = []  # client, partition id, node
        self._end = 0  # of the good part of the file
        present = set(self._look())
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
        present = set(known._look())
        for frame in frames[1:]:
            for client, partition, node in frame.arrays["entries"].tolist():
                known._partitions[client], known._owners[partition] = partition, client
                if node in present:
                    known._place(client, node)
        known._end = frames[-1].end
        known.refresh()
        return known

    @property
    def clients(self) -> int:
        return len(self._listed)

    def heading(self, client: int) -> dict[str, Any]:
        """The client's id is given; what to agree on, if it is new."""
        if self._plain:
            return {}  # these apps know none
        return {"assigned": True} | ({} if client in self._partitions else {"description": self._schema.text})

    def meet(self, client: int, head: Mapping[str, Any]) -> None:
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
        self._fail(node, Failure(reason))
        raise RejectedError(reason)

    def save(self) -> None:
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
        order = self._look()
        placed, vacant = set(self._nodes.values()), [id for id in range(self.clients) if id not in self._nodes]
        others = [node for node in order if node not in placed] if self._plain else []
        facts = {} if self._plain else self._ask(set(order) - placed, patience)
        for node in sorted(facts, key=lambda node: facts[node]["partition-id"]):
            owner = self._owners.get(facts[node]["partition-id"])
            if owner is None:
                others.append(node)
            elif owner in self._nodes:
                self._deny(node, f"its partition-id is taken by client {owner}; give every SuperNode its own")
            elif self._place(owner, node, late=True):
                self._unsaved.append((owner, self._partitions[owner], node))
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
            self._fail(node, Failure(reason))

    def _place(self, client: int, node: int, late: bool = False) -> bool:
        """Give a client this node, unless the site of the node is another client."""
        reason = self._events.sites.claim(client, node)
        if reason is not None:
            self._deny(node, reason)
            return False
        self.forget(client)
        self._nodes[client] = node
        if late:
            self._admit(node, client, late=True)
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


def gathered(
    grid: Grid, schema: Schema, timeout: float, folder: Path | None, events: RunEvents,
    *, least: int, introductions: int, begun: bool, named: str | None, plain: bool,
) -> Nodes:  # fmt: skip
    """Which node is which client; waits for at least `least` nodes.

    Arguments:
        introductions: with more nodes than that, nobody is asked before the first round,
        begun: unless this run began otherwise, in an earlier process,
        named: or this reason speaks against it, why clients must be known by their partition ids.
        plain: whether the nodes run apps that do not know this package, and cannot be asked.
    """
    path = None if folder is None else folder / FILE
    waits = plain or least > introductions  # else gather() waits
    count = connected(grid, least if waits else 0, timeout, events)
    if begun and path is not None and path.exists():
        LOG.info("%d nodes are connected; the ids of clients are those in %s", count, path)
        return AssignedNodes.saved(grid, schema, timeout, path, events, plain)
    if plain or (named is None and not begun and count > introductions):
        how = "client i is the i-th of them that has registered with Flower" if plain else SELF
        LOG.info("%d nodes are connected; %s", count, how)
        return AssignedNodes(grid, schema, events.sites.look(grid), timeout, path, events, plain)
    reason = named or ("the run began so" if begun else f"they are at most introductions = {introductions}")
    LOG.info("%d nodes are connected; asking each for its partition id: %s", count, reason)
    nodes = NodeDirectory(grid, schema, timeout, events)
    nodes.gather(least)
    return nodes

"""Which node is which client, where every node is asked before the first round.

Flower draws the ids of nodes itself, and the server has to ask a node for its partition id, which is the id of its
client in the simulator. `fedspam.flower.server.assigned` serves federations with more nodes than should be asked.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from flwr.serverapp import Grid

from fedspam import __version__
from fedspam.flower.server.events import RunEvents
from fedspam.flower.server.exchange import Failure
from fedspam.flower.server.introductions import LONGEST, POLL, Facts, Introductions
from fedspam.flower.server.stop import pause
from fedspam.flower.wire.schema import Schema

LOG = logging.getLogger("flwr")


class NodeDirectory:
    """The nodes by their partition id, which is the id of the client; timeouts in seconds.

    The number of clients is fixed when enough nodes have gathered. A node that comes later takes the place that its
    partition id has among them, so that no other client gets another id.
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
        self._grid, self._timeout, self._events = grid, timeout, events
        self._asking = Introductions(grid, schema, timeout, events, clock, sleep)
        self._nodes: dict[int, int] = {}  # client -> node
        self._reported: dict[int, int] = {}  # client -> its num-partitions, 0 if it gives none
        self._count: int | None = None  # clients, once they have gathered

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def refused(self) -> Mapping[int, str]:
        """Why nodes cannot take part so far."""
        return self._asking.refused

    @property
    def clients(self) -> int:
        """The number of clients, connected or not."""
        reported = (self._reported[client] for client in self._nodes)
        return max([*reported, max(self._nodes, default=-1) + 1]) if self._count is None else self._count

    def node(self, client: int) -> int | None:
        return self._nodes.get(client)

    def forget(self, client: int) -> None:
        """Drop the node of a client because it is lost; another node may replace it."""
        node = self._nodes.pop(client, None)
        if node is not None:
            self._asking.forget(node)

    def gather(self, least: int) -> None:
        """Wait until at least this many nodes have introduced themselves, and a while for others that are there."""
        asking, began = self._asking, self._asking.clock()
        while True:
            self.refresh(patience=0.0)
            if len(self) >= least and not asking.expected and self._agreed() >= least:
                break
            if asking.clock() - began > self._timeout:
                raise RuntimeError(
                    f"{len(self)} of at least {least} nodes can take part after {self._timeout:g} s"
                    + "".join(f"; node {node}: {reason}" for node, reason in list(self.refused.items())[:3])
                    + "; start more SuperNodes, or lower min_available_nodes"
                )
            if len(self) == 0 and len(asking.refusing) >= max(least, len(self.refused)) and not asking.expected:
                node = asking.refusing[0]
                raise RuntimeError(
                    f"none of {len(self.refused)} nodes can take part; node {node}: {self.refused[node]}"
                )
            asking.sleep(POLL)
        self._count = self.clients
        LOG.info("whoami: %d of %d clients are connected", len(self), self.clients)

    def heading(self, client: int) -> dict[str, Any]:
        """Further entries in the header of a message to this client: none, it has introduced itself."""
        return {}

    def meet(self, client: int, head: Mapping[str, Any]) -> None:
        """The header of a reply of this client says nothing new."""

    def save(self) -> None:
        """Nothing is written: a resumed run asks all nodes again."""

    def refresh(self, patience: float = LONGEST) -> None:
        """Ask nodes for their partition id that have not told it yet, and drop nodes that have disconnected."""
        present = set(self._events.sites.look(self._grid))
        for client in [client for client, node in self._nodes.items() if node not in present]:
            self.forget(client)
        for node, facts in self._asking.ask(present - set(self._nodes.values()), patience).items():
            self._enter(node, facts)
        self._events.nodes(len(self), self.clients, self.refused)

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
            self._asking.admit(node, client, late=most is not None)

    def _agreed(self) -> int:
        """How many nodes are left after those are refused whose num-partitions is not that of most nodes.

        Where most nodes do not give it, a partition-id must be below twice the number of nodes, so that none of them
        decides how many clients there are.
        """
        votes = Counter(self._reported[client] for client in self._nodes if self._reported[client])
        count, most = votes.most_common(1)[0] if votes else (0, 0)
        if most <= len(self) - votes.total():
            return self._below(2 * len(self))
        if 2 * most <= votes.total():
            raise RuntimeError(f"the nodes disagree on num-partitions: {sorted(votes)}; start all with the same number")
        for client in [*self._nodes]:
            reported = self._reported[client]
            if reported not in (0, count) or client >= count:
                self._expel(
                    client,
                    f"partition-id = {client} of num-partitions = {reported} does not fit the {count} that most nodes "
                    "report; start all with the same number",
                )
        return len(self)

    def _below(self, end: int) -> int:
        """How many nodes are left after those are refused that claim more than that where most claim nothing."""
        for client in [*self._nodes]:
            if max(client + 1, self._reported[client]) > end:
                self._expel(
                    client,
                    f"partition-id = {client} of num-partitions = {self._reported[client]} is far above the number of "
                    "nodes, and most of them give no num-partitions; start all with the same number",
                )
        return len(self)

    def _expel(self, client: int, reason: str) -> None:
        self._events.sites.release(client)
        self._refuse(self._nodes.pop(client), reason)

    def _refuse(self, node: int, reason: str) -> None:
        self._asking.fail(node, Failure(reason))

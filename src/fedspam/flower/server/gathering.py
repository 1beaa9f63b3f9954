"""The start of a run: wait for nodes, and settle which node is which client."""

import logging
from pathlib import Path

from flwr.serverapp import Grid

from fedspam.flower.server import assigned
from fedspam.flower.server.assigned import AssignedNodes
from fedspam.flower.server.events import RunEvents
from fedspam.flower.server.nodes import NodeDirectory
from fedspam.flower.wire.schema import Schema

LOG = logging.getLogger("flwr")


def gathered(
    grid: Grid,
    schema: Schema,
    timeout: float,
    folder: Path | None,
    events: RunEvents,
    *,
    least: int,
    introductions: int,
    begun: bool,
    named: str | None,
    plain: bool,
) -> NodeDirectory | AssignedNodes:
    """Which node is which client; waits for at least `least` nodes.

    Arguments:
        introductions: with more nodes than that, nobody is asked before the first round,
        begun: unless this run began otherwise, in an earlier process,
        named: or this reason speaks against it, why clients must be known by their partition ids.
        plain: whether the nodes run apps that do not know this package, and cannot be asked.
    """
    path = None if folder is None else folder / assigned.FILE
    waits = plain or least > introductions  # else gather() waits
    count = assigned.connected(grid, least if waits else 0, timeout, events)
    if begun and path is not None and path.exists():
        LOG.info("%d nodes are connected; the ids of clients are those in %s", count, path)
        return AssignedNodes.saved(grid, schema, timeout, path, events, plain)
    if plain:
        LOG.info("%d nodes are connected; client i is the i-th of them that has registered with Flower", count)
        return AssignedNodes(grid, schema, events.sites.look(grid), timeout, path, events, plain)
    if named is not None:
        reason = named
    elif begun:
        reason = "the run began so"
    elif count <= introductions:
        reason = f"they are at most introductions = {introductions}"
    else:
        LOG.info("%d nodes are connected; each introduces itself with its first reply", count)
        return AssignedNodes(grid, schema, events.sites.look(grid), timeout, path, events, plain)
    LOG.info("%d nodes are connected; asking each for its partition id: %s", count, reason)
    nodes = NodeDirectory(grid, schema, timeout, events)
    nodes.gather(least)
    return nodes

"""The playground: sliders for step size, fresh_weight, similarity and local work, and curves that answer at once."""

from collections.abc import Callable

from fedspam.app.lab.runs import LabSetting, plane, race
from fedspam.app.lab.server import Server

__all__ = ["LabSetting", "Server", "plane", "race", "serve"]


def serve(port: int = 8765, *, idle: float = 3600.0, ready: Callable[[str], None] | None = None) -> None:
    """Serve the lab on this machine until it is interrupted, or nobody has asked for `idle` seconds.

    Arguments:
        port: 0 for any that is free.
        ready: called with the address once it answers.
    """
    with Server(port, idle) as server:
        if ready is not None:
            ready(server.url)
        server.serve_forever(poll_interval=0.2)

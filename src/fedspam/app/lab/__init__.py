"""`fedspam lab`: a page with sliders for step size, fresh weight, similarity and local work, and curves that follow."""

from collections.abc import Callable

from fedspam.app.lab.runs import LabSetting as LabSetting, plane as plane, race as race
from fedspam.app.lab.server import Server as Server


def serve(port: int = 8765, *, idle: float = 3600.0, ready: Callable[[str], None] | None = None) -> None:
    """Serve the lab on this machine until it is interrupted or has had no request for `idle` seconds.

    Arguments:
        port: 0 for any free port.
        ready: called with the address once the server is ready.
    """
    with Server(port, idle) as server:
        if ready is not None:
            ready(server.url)
        server.serve_forever(poll_interval=0.2)

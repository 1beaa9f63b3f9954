"""A graceful stop: SIGTERM abandons the round in progress, of which complete exchanges are on disk."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_requests: list[int] = []  # signals since the run began; a process has one set of signal handlers, hence a global


class StopRequestedError(RuntimeError):
    """The process has received SIGTERM while a run was in progress."""


def pause(seconds: float) -> None:
    """Sleep, and raise `StopRequestedError` if the process has been asked to stop."""
    time.sleep(seconds)
    if _requests:
        raise StopRequestedError("SIGTERM; complete exchanges are kept, and a resumed run does the rest of the round")


@contextmanager
def on_sigterm() -> Iterator[None]:
    """Inside, SIGTERM only notes the request, for `pause` to raise. Afterwards the former handler receives the signal.

    Python gives signals to the main thread alone. In another one, as in Flower's simulation, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _requests.clear()
    former: Any = signal.signal(signal.SIGTERM, lambda number, frame: _requests.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if former is None else former)
        if _requests:
            _requests.clear()
            signal.raise_signal(signal.SIGTERM)

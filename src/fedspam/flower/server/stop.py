"""A graceful stop: SIGTERM, or a file in the run's folder, abandons the round in progress.

Complete exchanges are on disk, so nothing has to be finished first. The file stops one run among several on a machine,
and also a run in Flower's simulation, whose thread receives no signals.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

FILE = "stop"
REST = "complete exchanges are kept, and a resumed run does the rest of the round"
_requests: list[int] = []  # signals since the run began; a process has one set of signal handlers, hence a global


# the file whose appearance, or new time, stops a run, and its time before: then it was of an earlier stop
_file: ContextVar[tuple[Path, int | None] | None] = ContextVar("stop file", default=None)


class StopRequestedError(RuntimeError):
    """Somebody has asked the run in progress to stop."""


def pause(seconds: float) -> None:
    """Sleep, and raise `StopRequestedError` if the run has been asked to stop."""
    time.sleep(seconds)
    path, before = _file.get() or (None, None)
    if _requests:
        raise StopRequestedError(f"SIGTERM; {REST}")
    if path is not None and _time(path) not in (None, before):
        raise StopRequestedError(f"the file {path}; {REST}")


def _time(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@contextmanager
def stoppable(folder: Path | None) -> Iterator[None]:
    """Inside, SIGTERM only notes the request, for `pause` to raise. Afterwards the former handler receives the signal.

    Python gives signals to the main thread alone. In another one, as in Flower's simulation, only the file counts.
    """
    if folder is not None:
        _file.set((folder / FILE, _time(folder / FILE)))
    try:
        with _on_sigterm():
            yield
    finally:
        _file.set(None)


@contextmanager
def _on_sigterm() -> Iterator[None]:
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

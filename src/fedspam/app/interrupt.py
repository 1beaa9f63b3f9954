"""Ctrl-C that ends a command soon, even while the compiler runs."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedspam.app.exit_codes import INTERRUPTED

GRACE = 2.0  # seconds until Python must have raised KeyboardInterrupt
UNWIND = 8.0  # seconds more until the command must have ended
TOLD = "fedspam: stopped in compiled code; what was written is whole, and `fedspam run --resume` continues a run\n"
SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it


@contextmanager
def ending_soon() -> Iterator[None]:
    """Within, Ctrl-C ends the process if Python cannot raise KeyboardInterrupt, or something swallows it.

    Python runs handlers of signals between its own instructions, so Ctrl-C waited for the compiler, up to a minute. A
    KeyboardInterrupt within a callback of the garbage collector, of which JAX has one, is printed and forgotten. Files
    are whole or absent at every moment, so the process may end at any.
    """
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield  # others handle it
        return
    raised, left = threading.Event(), threading.Event()

    def interrupt(number: int, frame: object) -> None:
        raised.set()
        raise KeyboardInterrupt

    def end_if_stuck() -> None:
        while signals := os.read(reading, 1):
            if signals[0] != signal.SIGINT or left.wait(GRACE):
                continue
            if not (raised.is_set() and left.wait(UNWIND)):
                sys.stderr.write((SHOW_CURSOR if sys.stderr.isatty() else "") + TOLD)
                sys.stderr.flush()
                os._exit(INTERRUPTED)
        os.close(reading)

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGINT, interrupt)
    threading.Thread(target=end_if_stuck, daemon=True).start()
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(writing)  # which ends the thread

"""A progress bar for `simulate` in plain text: rounds, the first probe, and the time remaining."""

import sys
import time
from collections.abc import Mapping
from typing import TextIO

import numpy as np

UPDATES = 50  # of the bar in a run
WIDTH = 24  # characters


class ProgressBar:
    """Called by `simulate` after every segment. It writes one line and overwrites it.

    >>> import io
    >>> out = io.StringIO()
    >>> bar = ProgressBar(4, out)
    >>> bar(2, {}, {"loss": np.array([0.5])})
    >>> bar.close()
    >>> out.getvalue().split("\\r")[1].strip()
    'compiling the rounds ...'
    >>> out.getvalue().split("\\r")[2].strip()
    'round 2/4  ############............  loss 0.5  timing ...'
    """

    def __init__(self, rounds: int, out: TextIO | None = None) -> None:
        self.rounds, self.out = rounds, sys.stderr if out is None else out
        self.segment = max(1, rounds // UPDATES)
        self._first: tuple[int, float] | None = None
        self._write("compiling the rounds ...")

    def __call__(self, done: int, rows: Mapping[str, np.ndarray], probes: Mapping[str, np.ndarray]) -> None:
        now = time.monotonic()
        first, began = self._first = self._first or (done, now)  # the first segment compiled: it tells no speed
        left = (now - began) / (done - first) * (self.rounds - done) if done > first else 0.0
        filled = "#" * (WIDTH * done // self.rounds)
        seen = [f"{name} {column[-1]:.4g}" for name, column in probes.items() if len(column) and column.ndim == 1][:1]
        minutes, seconds = divmod(round(left), 60)
        remaining = f"{minutes}:{seconds:02d} left" if done > first or done == self.rounds else "timing ..."
        self._write("  ".join([f"round {done}/{self.rounds}", filled.ljust(WIDTH, "."), *seen, remaining]))

    def close(self) -> None:
        """End the line."""
        self.out.write("\n")
        self.out.flush()

    def _write(self, text: str) -> None:
        self.out.write(f"\r{text:<79}")
        self.out.flush()

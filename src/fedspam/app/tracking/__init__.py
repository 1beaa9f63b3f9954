"""Curves for TensorBoard, MLflow, W&B and trackio, through one small protocol.

A `Recorder` is told of a run three times: how it `start`s, every new `TrackedPoint` of its curves, and how it
`finish`es. What is told is a copy: the run folder holds it all, and needs no recorder. Each recorder imports
its package when it starts.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedspam.app.tracking.mlflow import Mlflow
from fedspam.app.tracking.tensorboard import TensorBoard
from fedspam.app.tracking.trackio import Trackio
from fedspam.app.tracking.wandb import Wandb

__all__ = ["RECORDERS", "Points", "Recorder", "Story", "TrackedPoint", "check", "tracked"]


class Story(NamedTuple):
    """Which run it is.

    Arguments:
        name: what to call it.
        project: what it belongs to.
        folder: where the run itself is kept.
        settings: its configuration, as ``section.key`` and value.
        place: the recorder's own folder or address, or None for its choice.
        identity: the same for a run that is continued.
    """

    name: str
    project: str
    folder: Path
    settings: Mapping[str, Any]
    place: str | None
    identity: str


class TrackedPoint(NamedTuple):
    """What was seen after so many rounds."""

    round: int
    values: Mapping[str, float]


class Recorder(Protocol):
    """Whoever keeps curves."""

    def start(self, story: Story) -> None: ...

    def write(self, points: Sequence[TrackedPoint]) -> None: ...

    def finish(self, status: str) -> None: ...


# by the name that a configuration uses: the recorder, the module it imports, and the extra that installs it
RECORDERS: Mapping[str, tuple[Callable[[], Recorder], str, str]] = {
    "tensorboard": (TensorBoard, "tensorboardX", "tensorboard"),
    "mlflow": (Mlflow, "mlflow", "mlflow"),
    "wandb": (Wandb, "wandb", "wandb"),
    "trackio": (Trackio, "trackio", "trackio"),
}


def check(names: Sequence[str]) -> None:
    """Whether the packages of these recorders are there; else an ImportError that names the extra."""
    for name in names:
        _, module, extra = RECORDERS[name]
        if importlib.util.find_spec(module) is None:
            raise ImportError(f"{name} needs {module}, which is not installed: pip install 'fedspam[{extra}]'")


@contextmanager
def tracked(recorders: Sequence[Recorder], story: Story) -> Iterator[Callable[[Sequence[TrackedPoint]], None]]:
    """Recorders that are started, and finished whatever happens; yields what takes points to all of them."""
    started: list[Recorder] = []
    status = "failed"
    try:
        with redirect_stdout(sys.stderr):  # what they say themselves; our output may be JSON
            for recorder in recorders:
                recorder.start(story)
                started.append(recorder)
        yield functools.partial(_tell, recorders)
        status = "finished"
    finally:
        with redirect_stdout(sys.stderr):
            for recorder in started:
                recorder.finish(status)


def _tell(recorders: Sequence[Recorder], points: Sequence[TrackedPoint]) -> None:
    for recorder in recorders:
        recorder.write(points)


@dataclass
class Points:
    """Makes points of blocks of rows and probes: one for every look, with the last row before it and what was sent.

    >>> points = Points(every=2, done=0)
    >>> rows = {"step_size": np.array([0.5, 0.5, 0.4]), "bytes_up": np.array([8, 8, 8])}
    >>> points(3, rows, {"loss": np.array([1.5])})
    [TrackedPoint(round=2, values={'loss': 1.5, 'step_size': 0.5, 'bytes_up': 8.0, 'total.bytes_up': 16.0})]
    """

    every: int
    done: int
    totals: dict[str, float] = field(default_factory=dict)  # what was paid until `done`
    paid: tuple[str, ...] = ("bytes_up", "bytes_down")

    def __call__(
        self, done: int, rows: Mapping[str, np.ndarray], probes: Mapping[str, np.ndarray]
    ) -> list[TrackedPoint]:
        first, count = self.done, done - self.done
        flat = {name: column for name, column in rows.items() if np.ndim(column) == 1 and len(column) == count}
        sums = {name: self.totals.get(name, 0.0) + np.cumsum(flat[name]) for name in self.paid if name in flat}
        looks = [k for k in range(first + 1, done + 1) if k % self.every == 0]
        points = []
        for number, k in enumerate(looks):
            values = {name: column[number] for name, column in probes.items() if np.ndim(column) == 1}
            values |= {name: column[k - first - 1] for name, column in flat.items()}
            values |= {f"total.{name}": column[k - first - 1] for name, column in sums.items()}
            points.append(TrackedPoint(k, {name: float(value) for name, value in values.items()}))
        self.totals |= {name: float(column[-1]) for name, column in sums.items() if count}
        self.done = done
        return points

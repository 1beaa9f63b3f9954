"""Curves for TensorBoard, MLflow, W&B and trackio, through one small protocol.

A `Recorder` has three methods: `start` receives the configuration of a run, `write` receives new points of its curves,
and `finish` receives how it ended. Recorders get copies: the run folder holds everything by itself. Each recorder
imports its package when it starts.
"""

import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedspam.simulation.status import Status

BATCH = 1000  # metrics per request to MLflow


class RunInfo(NamedTuple):
    """The run that is tracked."""

    name: str
    project: str
    folder: Path
    settings: Mapping[str, Any]  # its configuration, as ``section.key`` and value
    place: str | None  # the folder or address of the recorder; None for its default
    identity: str  # stays the same if the run is resumed


class TrackedPoint(NamedTuple):
    """The values after a round."""

    round: int
    values: Mapping[str, float]


class Recorder(Protocol):
    """A tool that keeps curves."""

    def start(self, info: RunInfo) -> None: ...

    def write(self, points: Sequence[TrackedPoint]) -> None: ...

    def finish(self, status: Status) -> None: ...


# --- four tools; their packages are imported when they start ----------------------------------------------------------


class TensorBoard:
    """TensorBoard's event files in the folder of the run, or under `place`: ``tensorboard --logdir runs``."""

    def start(self, info: RunInfo) -> None:
        from tensorboardX import SummaryWriter

        folder = info.folder if info.place is None else f"{info.place}/{info.name}"
        # files are named by the second: a run resumed within a second must not overwrite its first file
        self._writer = SummaryWriter(str(folder), filename_suffix=f".{time.time_ns()}")
        lines = "\n".join(f"    {name} = {value}" for name, value in info.settings.items())
        self._writer.add_text("configuration", lines)

    def write(self, points: Sequence[TrackedPoint]) -> None:
        for point in points:
            for name, value in _finite(point).items():
                self._writer.add_scalar(name.replace(".", "/", 1), value, point.round)
        self._writer.flush()

    def finish(self, status: Status) -> None:
        self._writer.add_text("status", str(status))
        self._writer.close()


class Mlflow:
    """MLflow, at an address (MLFLOW_TRACKING_URI) or in a database in the run folder; a resumed run continues."""

    def start(self, info: RunInfo) -> None:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

        place = info.place or os.environ.get("MLFLOW_TRACKING_URI")
        place = place or f"sqlite:///{(info.folder / 'mlflow.db').resolve()}"
        self._client = MlflowClient(tracking_uri=place)
        found = self._client.get_experiment_by_name(info.project)
        experiment = self._client.create_experiment(info.project) if found is None else found.experiment_id
        same = self._client.search_runs([experiment], f"tags.`fedspam.identity` = '{info.identity}'", max_results=1)
        if same:
            self._run = same[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"fedspam.identity": info.identity, "fedspam.folder": str(info.folder)}
        self._run = self._client.create_run(experiment, run_name=info.name, tags=tags).info.run_id
        for name, value in info.settings.items():
            self._client.log_param(self._run, name, value)

    def write(self, points: Sequence[TrackedPoint]) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(time.time() * 1000)
        metrics = [Metric(*item, now, point.round) for point in points for item in _finite(point).items()]
        for first in range(0, len(metrics), BATCH):
            self._client.log_batch(self._run, metrics=metrics[first : first + BATCH])

    def finish(self, status: Status) -> None:
        self._client.set_terminated(self._run, "FINISHED" if status.ok else "FAILED")


class Wandb:
    """Weights & Biases, online or, with WANDB_MODE=offline, in the folder of the run; a resumed run keeps its id."""

    def start(self, info: RunInfo) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        folder = info.place or str(info.folder)
        self._run = wandb.init(
            project=info.project, name=info.name, config=dict(info.settings), dir=folder, id=info.identity,
            resume="allow",
        )  # fmt: skip

    def write(self, points: Sequence[TrackedPoint]) -> None:
        for point in points:
            self._run.log(dict(point.values), step=point.round)

    def finish(self, status: Status) -> None:
        self._run.finish(exit_code=0 if status.ok else 1)


class Trackio:
    """trackio: W&B's interface on the local machine, where it keeps runs (TRACKIO_DIR): ``trackio show``."""

    def start(self, info: RunInfo) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self._trackio = trackio
        self._run = trackio.init(
            project=info.project, name=info.name, config=dict(info.settings), resume="allow", embed=False,
            auto_log_cpu=False, auto_log_gpu=False,
        )  # fmt: skip

    def write(self, points: Sequence[TrackedPoint]) -> None:
        for point in points:
            self._run.log(_finite(point), step=point.round)

    def finish(self, status: Status) -> None:
        self._trackio.finish()


def _finite(point: TrackedPoint) -> dict[str, float]:
    return {name: value for name, value in point.values.items() if math.isfinite(value)}


# by the name in a configuration: the recorder, and the package that it imports
RECORDERS: Mapping[str, tuple[Callable[[], Recorder], str]] = {
    "tensorboard": (TensorBoard, "tensorboardX"),
    "mlflow": (Mlflow, "mlflow"),
    "wandb": (Wandb, "wandb"),
    "trackio": (Trackio, "trackio"),
}


def check(names: Sequence[str]) -> None:
    """Raise an ImportError that names the package if the package of a recorder is not installed."""
    for name in names:
        _, package = RECORDERS[name]
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"{name} needs {package}, which is not installed: pip install {package}")


@dataclass
class Tracked:
    """The recorders of a run, and how it ended: failed, until someone says otherwise."""

    recorders: Sequence[Recorder]
    status: Status = field(default_factory=lambda: Status("failed"))

    def write(self, points: Sequence[TrackedPoint]) -> None:
        for recorder in self.recorders:
            recorder.write(points)


@contextmanager
def tracked(recorders: Sequence[Recorder], info: RunInfo) -> Iterator[Tracked]:
    """Start recorders, and finish them whatever happens."""
    run = Tracked(recorders)
    started: list[Recorder] = []
    try:
        with redirect_stdout(sys.stderr):  # recorders print to stdout, which may hold our JSON
            for recorder in recorders:
                recorder.start(info)
                started.append(recorder)
        yield run
    finally:
        with redirect_stdout(sys.stderr):
            for recorder in started:
                recorder.finish(run.status)


@dataclass
class Points:
    """Turns blocks of rows and probes into points: one per probe, with the last row before it and the total bytes.

    >>> points = Points(every=2, done=0)
    >>> rows = {"step_size": np.array([0.5, 0.5, 0.4]), "bytes_up": np.array([8, 8, 8])}
    >>> points(3, rows, {"loss": np.array([1.5])})
    [TrackedPoint(round=2, values={'loss': 1.5, 'step_size': 0.5, 'bytes_up': 8.0, 'total.bytes_up': 16.0})]
    """

    every: int
    done: int
    totals: dict[str, float] = field(default_factory=dict)  # of the first `done` rounds
    paid: tuple[str, ...] = ("bytes_up", "bytes_down")

    def __call__(
        self, done: int, rows: Mapping[str, np.ndarray], probes: Mapping[str, np.ndarray]
    ) -> list[TrackedPoint]:
        first, count = self.done, done - self.done
        flat = {name: column for name, column in rows.items() if np.ndim(column) == 1 and len(column) == count}
        sums = {name: self.totals.get(name, 0.0) + np.cumsum(flat[name]) for name in self.paid if name in flat}
        probed = [k for k in range(first + 1, done + 1) if k % self.every == 0]
        points = []
        for number, k in enumerate(probed):
            values = {name: column[number] for name, column in probes.items() if np.ndim(column) == 1}
            values |= {name: column[k - first - 1] for name, column in flat.items()}
            values |= {f"total.{name}": column[k - first - 1] for name, column in sums.items()}
            points.append(TrackedPoint(k, {name: float(value) for name, value in values.items()}))
        self.totals |= {name: float(column[-1]) for name, column in sums.items() if count}
        self.done = done
        return points

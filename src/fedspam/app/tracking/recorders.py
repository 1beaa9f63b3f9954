"""The recorders of four tools. Each imports its package when it starts."""

import math
import os
import time
from typing import Any

BATCH = 1000  # metrics per request to MLflow


class TensorBoard:
    """TensorBoard's event files in the folder of the run, or under `place`: ``tensorboard --logdir runs``."""

    def start(self, info: Any) -> None:
        from tensorboardX import SummaryWriter

        folder = info.folder if info.place is None else f"{info.place}/{info.name}"
        # files are named by the second: a run resumed within a second must not overwrite its first file
        self._writer = SummaryWriter(str(folder), filename_suffix=f".{time.time_ns()}")
        lines = "\n".join(f"    {name} = {value}" for name, value in info.settings.items())
        self._writer.add_text("configuration", lines)

    def write(self, points: Any) -> None:
        for point in points:
            for name, value in _finite(point).items():
                self._writer.add_scalar(name.replace(".", "/", 1), value, point.round)
        self._writer.flush()

    def finish(self, status: Any) -> None:
        self._writer.add_text("status", str(status))
        self._writer.close()


class Mlflow:
    """MLflow, at an address (MLFLOW_TRACKING_URI) or in a database in the run folder; a resumed run continues."""

    def start(self, info: Any) -> None:
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

    def write(self, points: Any) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(time.time() * 1000)
        metrics = [Metric(*item, now, point.round) for point in points for item in _finite(point).items()]
        for first in range(0, len(metrics), BATCH):
            self._client.log_batch(self._run, metrics=metrics[first : first + BATCH])

    def finish(self, status: Any) -> None:
        self._client.set_terminated(self._run, "FINISHED" if status.ok else "FAILED")


class Wandb:
    """Weights & Biases, online or, with WANDB_MODE=offline, in the folder of the run; a resumed run keeps its id."""

    def start(self, info: Any) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        folder = info.place or str(info.folder)
        self._run = wandb.init(
            project=info.project, name=info.name, config=dict(info.settings), dir=folder, id=info.identity,
            resume="allow",
        )  # fmt: skip

    def write(self, points: Any) -> None:
        for point in points:
            self._run.log(dict(point.values), step=point.round)

    def finish(self, status: Any) -> None:
        self._run.finish(exit_code=0 if status.ok else 1)


class Trackio:
    """trackio: W&B's interface on the local machine, where it keeps runs (TRACKIO_DIR): ``trackio show``."""

    def start(self, info: Any) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self._trackio = trackio
        self._run = trackio.init(
            project=info.project, name=info.name, config=dict(info.settings), resume="allow", embed=False,
            auto_log_cpu=False, auto_log_gpu=False,
        )  # fmt: skip

    def write(self, points: Any) -> None:
        for point in points:
            self._run.log(_finite(point), step=point.round)

    def finish(self, status: Any) -> None:
        self._trackio.finish()


def _finite(point: Any) -> dict[str, float]:
    return {name: value for name, value in point.values.items() if math.isfinite(value)}

"""MLflow, at an address (MLFLOW_TRACKING_URI) or in a database in the run folder."""

import math
import os
import time
from typing import Any

BATCH = 1000  # metrics per request


class Mlflow:
    """Parameters and metrics; a resumed run continues the same run of MLflow."""

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
        metrics = [
            Metric(name, value, now, point.round)
            for point in points
            for name, value in point.values.items()
            if math.isfinite(value)
        ]
        for first in range(0, len(metrics), BATCH):
            self._client.log_batch(self._run, metrics=metrics[first : first + BATCH])

    def finish(self, status: str) -> None:
        self._client.set_terminated(self._run, "FINISHED" if status == "finished" else "FAILED")

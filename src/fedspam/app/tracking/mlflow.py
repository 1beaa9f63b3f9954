"""MLflow: a run of an experiment, at an address (MLFLOW_TRACKING_URI) or in a database in the run folder."""

import math
import os
import time
from typing import Any

BATCH = 1000  # metrics that MLflow takes at once


class Mlflow:
    """Parameters and metrics; a run that is continued goes on in the same run of MLflow."""

    def start(self, story: Any) -> None:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

        place = story.place or os.environ.get("MLFLOW_TRACKING_URI")
        place = place or f"sqlite:///{(story.folder / 'mlflow.db').resolve()}"
        self._client = MlflowClient(tracking_uri=place)
        found = self._client.get_experiment_by_name(story.project)
        experiment = self._client.create_experiment(story.project) if found is None else found.experiment_id
        same = self._client.search_runs([experiment], f"tags.`fedspam.identity` = '{story.identity}'", max_results=1)
        if same:
            self._run = same[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"fedspam.identity": story.identity, "fedspam.folder": str(story.folder)}
        self._run = self._client.create_run(experiment, run_name=story.name, tags=tags).info.run_id
        for name, value in story.settings.items():
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

"""Weights & Biases, online or, with WANDB_MODE=offline, in the folder of the run."""

from typing import Any


class Wandb:
    """A run of a project; one that is continued goes on under the same id."""

    def start(self, story: Any) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        folder = story.place or str(story.folder)
        self._run = wandb.init(
            project=story.project, name=story.name, config=dict(story.settings), dir=folder, id=story.identity,
            resume="allow",
        )  # fmt: skip

    def write(self, points: Any) -> None:
        for point in points:
            self._run.log(dict(point.values), step=point.round)

    def finish(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "finished" else 1)

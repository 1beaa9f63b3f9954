"""Weights & Biases, online or, with WANDB_MODE=offline, in the folder of the run."""

from typing import Any


class Wandb:
    """A run of a project; a resumed run keeps its id."""

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

    def finish(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "finished" else 1)

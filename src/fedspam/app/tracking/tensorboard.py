"""TensorBoard's event files, written by tensorboardX: ``tensorboard --logdir runs``."""

import math
import time
from typing import Any


class TensorBoard:
    """Scalars in the folder of the run, or under `place`."""

    def start(self, info: Any) -> None:
        from tensorboardX import SummaryWriter

        folder = info.folder if info.place is None else f"{info.place}/{info.name}"
        # files are named by the second: a run resumed within a second must not overwrite its first file
        self._writer = SummaryWriter(str(folder), filename_suffix=f".{time.time_ns()}")
        lines = "\n".join(f"    {name} = {value}" for name, value in info.settings.items())
        self._writer.add_text("configuration", lines)

    def write(self, points: Any) -> None:
        for point in points:
            for name, value in point.values.items():
                if math.isfinite(value):
                    self._writer.add_scalar(name.replace(".", "/", 1), value, point.round)
        self._writer.flush()

    def finish(self, status: str) -> None:
        self._writer.add_text("status", status)
        self._writer.close()

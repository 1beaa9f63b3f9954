"""trackio: W&B's interface on the local machine, shown by ``trackio show``."""

import math
from typing import Any


class Trackio:
    """A run of a project, where trackio keeps them (TRACKIO_DIR)."""

    def start(self, info: Any) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self._trackio = trackio
        self._run = trackio.init(
            project=info.project, name=info.name, config=dict(info.settings), resume="allow", embed=False,
            auto_log_cpu=False, auto_log_gpu=False,
        )  # fmt: skip

    def write(self, points: Any) -> None:
        for point in points:
            self._run.log(
                {name: value for name, value in point.values.items() if math.isfinite(value)}, step=point.round
            )

    def finish(self, status: str) -> None:
        self._trackio.finish()

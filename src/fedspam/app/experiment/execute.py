"""An experiment run into a folder, that can be continued: resolved configuration, records, summary."""

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedspam.app import tracking
from fedspam.app.config import Config, ConfigError, differences, read, tables, to_toml
from fedspam.app.config.write import value_text
from fedspam.app.experiment.build import Experiment, make
from fedspam.simulation import Run, records, simulate
from fedspam.simulation.stopping import Target, Watch

# what may differ between a run and the one that continues it
LATER = frozenset(
    {"run.rounds", "run.segment", "run.keep", "evaluate.metric", "evaluate.target", "evaluate.stop", "track"}
)
HEAD = """The resolved configuration of this run. Run it again, from anywhere:
  fedspam run {folder}/config.toml --out ANOTHER
Continue it, to 500 rounds in all:
  fedspam run --resume --out {folder} --rounds 500"""

Observe = Callable[[int, Mapping[str, np.ndarray], Mapping[str, np.ndarray]], None]


@dataclass(frozen=True)
class ExperimentOutcome:
    """What came of it: the run, and the facts that are printed and kept in ``summary.json``."""

    folder: Path
    run: Run
    facts: Mapping[str, Any]

    @property
    def fine(self) -> bool:
        return not self.run.status.startswith("stopped")


def new_folder(stem: str, parent: str | Path = "runs") -> Path:
    """A folder name that says when it was made and that nothing has yet."""
    name = f"{stem}-{dt.datetime.now():%Y%m%d-%H%M%S}"
    names = (Path(parent) / (name if number == 1 else f"{name}-{number}") for number in range(1, 1000))
    return next(path for path in names if not path.exists())


def run(
    config: Config, folder: str | Path, *, resume: bool = False, observe: Observe | None = None
) -> ExperimentOutcome:
    """Run an experiment into a folder, or continue the one that is there.

    Arguments:
        config: what to run.
        folder: where it goes: ``config.toml``, ``summary.json``, and the records of `fedspam.simulation.records`.
        resume: go on with the run of that folder, which must be of the same configuration but for its length; where
            there is none, begin.
        observe: called with the rounds done, and the rows and probes since the last call.
    """
    folder = Path(folder)
    _check_folder(config, folder, resume)
    try:
        tracking.check(config.track.to)
    except ImportError as error:
        raise ConfigError(f"track.to: {error}") from None
    with jax.enable_x64(config.run.precision == "float64"):
        made = make(config)
        past = _past(folder) if resume else {}
        _write(folder / "config.toml", to_toml(config, HEAD.format(folder=folder)).encode())
        went = _simulate(made, folder, resume, observe, past)
    facts = summary(went, folder, config, made.target, made.metrics)
    _write(folder / "summary.json", json.dumps(facts, indent=1, allow_nan=False).encode())
    return ExperimentOutcome(folder, went, facts)


def _simulate(
    made: Experiment, folder: Path, resume: bool, observe: Observe | None, past: Mapping[str, np.ndarray]
) -> Run:
    asked, look = made.config.run, made.config.evaluate
    done = len(next(iter(past.values()))) if past else 0
    points = tracking.Points(look.every, done)
    points.totals = {name: float(past[name].sum()) for name in points.paid if name in past}
    recorders = [tracking.RECORDERS[name][0]() for name in dict.fromkeys(made.config.track.to)]
    with tracking.tracked(recorders, _story(made.config, folder)) if recorders else nullcontext() as write:

        def tell(done: int, rows: Mapping[str, np.ndarray], probes: Mapping[str, np.ndarray]) -> None:
            if write is not None:
                if points.done == 0:  # what was seen before the first round is on disk alone
                    write(
                        [
                            tracking.TrackedPoint(
                                0, {name: float(look[0]) for name, look in records.read(folder)[2].items()}
                            )
                        ]
                    )
                write(points(done, rows, probes))
            if observe is not None:
                observe(done, rows, probes)

        return simulate(
            made.method, made.population, made.start,
            rounds=asked.rounds, key=asked.seed, probe=made.probe, every=look.every, record=asked.record,
            chunk=asked.chunk, quorum=asked.quorum,
            watch=Watch(growth=asked.growth, probe="gradient") if asked.growth > 0 else None,
            until=made.target if look.stop else None,
            folder=folder, resume=resume, segment=asked.segment, keep=records.Keep(asked.keep), observe=tell,
        )  # fmt: skip


def summary(run: Run, folder: Path, config: Config, target: Target | None, metrics: Sequence[str]) -> dict[str, Any]:
    """The facts of a run as plain JSON."""
    every = config.evaluate.every
    last = {name: _number(run.probes[name][-1]) for name in metrics if len(run.probes[name])}
    totals = {name: int(run.rows[name].sum()) for name in ("bytes_up", "bytes_down")}
    gradients = run.rows.get("gradients")
    facts: dict[str, Any] = {
        "folder": str(folder),
        "status": run.status,
        "method": config.algorithm.__struct_config__.tag,
        "rounds": run.rounds,
        **last,
        **totals,
        "client_gradients": None if gradients is None else _number(np.sum(gradients)),
        "void_rounds": int(np.sum(run.rows["void"])),
        "compile_seconds": round(run.compile_seconds, 3),
        "run_seconds": round(run.run_seconds, 3),
    }
    if target is not None:
        looks = run.probes[target.probe]
        there = looks >= target.value if target.at_least is not None else looks <= target.value
        first = int(np.argmax(there)) * every if there.any() else None
        paid = {} if first is None else {name: int(run.rows[name][:first].sum()) for name in totals}
        facts["target"] = {"metric": target.probe, "value": target.value, "round": first, **paid}
    return facts


def _check_folder(config: Config, folder: Path, resume: bool) -> None:
    there = [name for name in ("config.toml", "manifest.json") if (folder / name).exists()]
    if not there:
        return
    if not resume:
        raise records.RecordError(
            f"{folder} already holds a run; continue it with --resume, or choose another folder with --out"
        )
    if "config.toml" in there:
        changed = differences(read(folder / "config.toml"), config, LATER)
        if changed:
            raise ConfigError(
                f"this is not the run of {folder}; it differs in {'; '.join(changed[:5])}. Resume with what was "
                f"(fedspam run --resume --out {folder}), or choose another folder"
            )


def _past(folder: Path) -> dict[str, np.ndarray]:
    """The rows that a folder holds already."""
    try:
        return records.read(folder)[1]
    except (OSError, records.RecordError):
        return {}


def _story(config: Config, folder: Path) -> tracking.Story:
    settings = {
        f"{section}.{key}": value if isinstance(value, bool | int | float | str) else value_text(value)
        for section, table in tables(config).items()
        for key, value in table.items()
    }
    identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    track = config.track
    return tracking.Story(track.name or folder.name, track.project, folder, settings, track.place, identity)


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise records.RecordError(f"cannot make the folder {path.parent}: {error.strerror}; choose another") from error
    records.write(path, data)


def _number(value: Any) -> float | str:
    """JSON has no word for what is not finite."""
    return float(value) if np.isfinite(value) else str(float(value))

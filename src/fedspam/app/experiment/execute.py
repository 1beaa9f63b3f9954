"""An experiment run into a folder, from which it can be resumed: configuration, records, summary."""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedspam import models
from fedspam._internal import files, hosts
from fedspam.app import tracking
from fedspam.app.arrival import arrival
from fedspam.app.config import Config, ConfigError, differences, naming, read, tables, to_toml
from fedspam.app.config.parse import SIZE
from fedspam.app.config.schema import name_of, own_loss
from fedspam.app.config.text import value_text
from fedspam.app.experiment.build import Experiment, make
from fedspam.app.experiment.probes import RowsProbe
from fedspam.app.experiment.scores import chosen_threshold, scores_on_test
from fedspam.app.folders import csv_text
from fedspam.clients import Ragged, Sharded
from fedspam.models.trained import TrainedModel
from fedspam.simulation import Run, fine_tune, records, simulate
from fedspam.simulation.status import Status
from fedspam.simulation.stopping import Watch

# settings that may change when a run is resumed
LATER = frozenset({"run.rounds", "keep", "track"}) | {
    *(f"evaluate.{name}" for name in ("metric", "target", "stop", "patience", "threshold", "fine_tune")),
}
HEAD = """The resolved configuration of this run. Run it again, from anywhere:
  fedspam run {folder}/config.toml --out ANOTHER
Resume it, up to 500 rounds in all:
  fedspam run --resume --out {folder} --rounds 500"""

GROWN = 1e3  # times the loss of the start, above which a run has failed
TINY = 1e-6  # a loss of zero at the start cannot be multiplied
SEAL = "# sha256 of all lines below: "

Observe = Callable[[int, float, Mapping[str, np.ndarray]], None]


@dataclass(frozen=True)
class ExperimentOutcome:
    """The result of an experiment: the run, and the facts that are printed and kept in ``summary.json``."""

    folder: Path
    run: Run
    facts: Mapping[str, Any]
    clients: list[dict[str, Any]]  # one row per client; empty without test rows
    classes: tuple[str, ...] = ()  # their names


def run(
    config: Config, folder: str | Path, *, resume: bool = False, observe: Observe | None = None
) -> ExperimentOutcome:
    """Run an experiment into a folder, or resume the one that is there.

    Arguments:
        config: what to run.
        folder: receives ``config.toml``, ``summary.json``, and the records of `fedspam.simulation.records`.
        resume: continue the run of that folder, which must have the same configuration except for its length. Where
            there is no run, start one.
        observe: called with the rounds done, the bytes sent so far, and the probes since the last call.
    """
    folder = Path(folder)
    hosts.first(lambda: _check_folder(config, folder, resume))
    with naming("track.to"):
        tracking.check(config.track.to)
    with jax.enable_x64(config.run.precision == "float64"):
        experiment = make(config)
        _check_evaluation(experiment)
        keep = records.Keep(config.keep.last, every=config.keep.every)
        # one lock over all that is written, so that what two processes write at once is never mixed
        with records.Store(folder, keep, shared=True) as store:
            hosts.first(lambda: _check_folder(config, folder, resume))  # another process may have been here since
            hosts.first(lambda: _write_config(config, folder))
            went = _simulate(experiment, store, keep, resume, observe)
            store.finish(went.status)
            facts = summary(experiment, went, folder)
            outcome = hosts.first(lambda: _written(experiment, went, store, facts))
    return outcome or ExperimentOutcome(folder, went, facts, [])


def _written(experiment: Experiment, went: Run, store: records.Store, facts: dict[str, Any]) -> ExperimentOutcome:
    """What is in the folder at the end: the model, its scores and the summary."""
    folder, rows, config = store.folder, experiment.examples, experiment.config
    trained, clients = _saved_model(experiment, went, store), []
    if trained is not None and rows is not None:
        tested, clients = scores_on_test(trained, rows)
        if "threshold" in tested:  # what was measured during the run is of the more probable class
            facts = {name: value for name, value in facts.items() if not name.startswith("accuracy.")}
        facts |= tested
    tuning = config.evaluate.fine_tune
    if clients and tuning is not None:  # one column more: the score of a model that the client trained further
        key = config.run.seed
        own = fine_tune(experiment.population, went.params, tuning.local_steps, tuning.local_rate, key=key)
        scores = experiment.probe.test.personal(own)
        name = "accuracy" if "accuracy" in scores else "loss"
        for row, value in zip(clients, np.asarray(scores[name]), strict=True):
            row[f"fine_tuned_{name}"] = None if np.isnan(value) else float(value)
    if clients:
        table = [["" if value is None else value for value in row.values()] for row in clients]
        records.write(folder / "clients.csv", csv_text(list(clients[0]), table).encode())
    records.write(folder / "summary.json", json.dumps(facts, indent=1, allow_nan=False).encode())
    return ExperimentOutcome(folder, went, facts, clients, () if rows is None else rows.names)


def _write_config(config: Config, folder: Path) -> None:
    """Write config.toml with a hash of what it says."""
    text = to_toml(config, HEAD.format(folder=folder))
    records.write(folder / "config.toml", f"{SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n{text}".encode())


def own_config(folder: Path) -> Config:
    """The configuration that a run has written to its folder; DamagedError where it is not as it was written."""
    path = folder / "config.toml"
    first, _, text = files.read(path, size=SIZE).partition(b"\n")
    if first.startswith(SEAL.encode()) and first != f"{SEAL}{hashlib.sha256(text).hexdigest()}".encode():
        raise records.DamagedError(
            f"{path} is not as it was written; give the configuration that the run began with (fedspam run FILE "
            f"--resume --out {folder}), or remove its first line if you changed it on purpose"
        )
    return read(path)


def _check_evaluation(experiment: Experiment) -> None:
    """Refuse, before anything runs, models of clients without test rows, and thresholds without a probability."""
    rows, probe, asked = experiment.examples, experiment.probe, experiment.config.evaluate
    tested = isinstance(probe, RowsProbe) and probe.test is not None and isinstance(experiment.population, Ragged)
    if asked.fine_tune is not None and not tested:
        raise ConfigError(
            "evaluate.fine_tune: the clients have no test rows of their own in this process; use data of rows with "
            "data.test above 0, or leave it out"
        )
    own = own_loss(experiment.config.model) is not None or isinstance(experiment.population, Sharded)
    if asked.threshold is not None and (rows is None or rows.classes != 2 or own):
        raise ConfigError(
            "evaluate.threshold: it needs rows of two classes in this process and a model of this package; leave it out"
        )


def _check_folder(config: Config, folder: Path, resume: bool) -> None:
    """Refuse to write over a run, and to resume one with other settings. The records refuse changed data."""
    if not resume and any((folder / name).exists() for name in ("config.toml", "manifest.json")):
        raise records.RecordError(
            f"{folder} already holds a run; continue it with --resume, or choose another folder with --out"
        )
    if resume and (folder / "config.toml").exists():
        try:
            changed = differences(own_config(folder), config, LATER)
        except records.DamagedError as error:
            warnings.warn(
                f"{error}; it is written again, and the records alone tell whether this is the run", stacklevel=3
            )
            changed = []
        if changed:
            raise ConfigError(
                f"{'; '.join(changed[:5])} since this run began. Resume it with its own settings "
                f"(fedspam run --resume --out {folder}), or choose another folder"
            )


def _simulate(made: Experiment, store: records.Store, keep: records.Keep, resume: bool, observe: Observe | None) -> Run:
    config, folder = made.config, store.folder
    options, every, growth = config.run, config.evaluate.every, config.watch.growth
    leads = jax.process_index() == 0
    past: Mapping[str, np.ndarray] = {}
    if resume and leads:
        with suppress(OSError, records.RecordError):  # it holds no run
            past = records.read(folder)[1]
    points = tracking.Points(every, len(next(iter(past.values()))) if past else 0)
    points.totals = {name: float(past[name].sum()) for name in points.paid if name in past}
    recorders = [tracking.RECORDERS[name][0]() for name in dict.fromkeys(config.track.to) if leads]
    with tracking.tracked(recorders, _story(config, folder)) as tracked:

        def report(done: int, rows: Mapping[str, np.ndarray], probes: Mapping[str, np.ndarray]) -> None:
            if not leads:  # only the first process has read the rows of the folder, and only it reports
                return
            if recorders and points.done == 0:  # the probes before the first round are on disk alone
                first = {name: float(column[0]) for name, column in records.read(folder)[2].items()}
                tracked.write([tracking.TrackedPoint(0, first)])
            tracked.write(points(done, rows, probes))
            if observe is not None:
                observe(done, sum(points.totals.values()), probes)

        went = simulate(
            made.method, made.population, made.start,
            rounds=options.rounds, key=options.seed, probe=made.probe, every=every,
            record=options.record, chunk=options.chunk, quorum=options.quorum, codecs=made.codecs,
            watch=Watch(growth=growth, probe="gradient") if growth > 0 else None,
            until=made.until, devices=jax.devices() if jax.process_count() > 1 else None,
            folder=store, resume=resume, keep=keep, observe=report,
        )  # fmt: skip
        went = replace(went, status=_judged(went))
        tracked.status = went.status
    return went


def _judged(went: Run) -> Status:
    """How the run ended: diverged if its loss is not finite or a thousand times that of the start."""
    losses = went.probes.get("loss", np.zeros(0))
    if not len(losses) or not went.status.ok:
        return went.status
    first, last = float(losses[0]), float(losses[-1])
    if np.isfinite(last) and not last > GROWN * max(abs(first), TINY):
        return went.status
    reason = (
        f"the loss went from {first:.4g} to {last:.4g}; lower the step size (local_rate, step_size), or let the method "
        "choose it: --method auto"
    )
    return Status("diverged", reason)


def _saved_model(experiment: Experiment, went: Run, store: records.Store) -> TrainedModel | None:
    """Write the model with its preprocessing, names and configuration; as its file says, where it can be tested."""
    config, rows, asked = experiment.config, experiment.examples, experiment.config.evaluate.threshold
    population = experiment.population
    loss = population.loss if isinstance(population, Ragged | Sharded) else None
    facts: dict[str, Any] = {"run": store.run, "rounds": went.rounds, "status": went.status.as_json()}
    if rows is not None:  # else it is a problem without rows of its own
        facts |= {"encoder": rows.encoder, "classes": rows.names, "task": config.data.task, "config": tables(config)}
        facts |= {"method": name_of(config.method)}
    save = lambda **more: models.save(store.folder, went.params, model=loss, **facts, **more)
    path = save()
    if rows is None or isinstance(population, Sharded):  # the probe measures the test rows of parts
        return None
    trained = models.load(path, predict=experiment.predict)
    if asked is not None and np.isfinite(went.probes["loss"][-1]):
        threshold = chosen_threshold(trained, rows.train, asked)
        save(threshold=asdict(threshold))
        return replace(trained, threshold=threshold)
    return trained


def summary(experiment: Experiment, run: Run, folder: Path) -> dict[str, Any]:
    """The facts of a run as plain JSON."""
    config, target = experiment.config, experiment.target
    last = {name: _number(run.probes[name][-1]) for name in experiment.metrics if len(run.probes[name])}
    totals = {name: int(run.rows[name].sum()) for name in ("bytes_up", "bytes_down")}
    gradients = run.rows.get("gradients")
    facts: dict[str, Any] = {
        "folder": str(folder),
        "status": run.status.as_json(),
        "method": name_of(config.method),
        "rounds": run.rounds,
        **last,
        **totals,
        "client_gradients": None if gradients is None else _number(np.sum(gradients)),
        "void_rounds": int(np.sum(run.rows["void"])),
        "compile_seconds": round(run.compile_seconds, 3),
        "run_seconds": round(run.run_seconds, 3),
    }
    if target is not None:
        index = arrival(run.probes[target.probe], target.value, rising=target.at_least is not None)
        first = None if index is None else index * config.evaluate.every
        ends = config.evaluate.stop and config.evaluate.patience is None
        if ends and target.reached([run.probes]):  # at the target, so that there are no later values
            first = run.rounds
        paid = {} if first is None else {name: int(run.rows[name][:first].sum()) for name in totals}
        facts["target"] = {"metric": target.probe, "value": target.value, "round": first, **paid}
    return facts


def _story(config: Config, folder: Path) -> tracking.RunInfo:
    settings = {
        f"{section}.{key}": value if isinstance(value, bool | int | float | str) else value_text(value)
        for section, table in tables(config).items()
        for key, value in table.items()
    }
    identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    track = config.track
    return tracking.RunInfo(track.name or folder.name, track.project, folder, settings, track.place, identity)


def _number(value: Any) -> float | str:
    """A number as JSON can hold it: text where it is not finite."""
    return float(value) if np.isfinite(value) else str(float(value))

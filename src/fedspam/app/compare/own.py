"""A comparison on data of one's own: the problem that a configuration of `fedspam run` describes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import msgspec

from fedspam.app.compare import DEFAULT, check_cohort, check_methods
from fedspam.app.compare.options import CompareOptions, given_numbers
from fedspam.app.compare.tuning import ComparisonPlan
from fedspam.app.config import Config, ConfigError, read
from fedspam.app.config.schema import name_of, own_loss
from fedspam.app.experiment import Experiment, make
from fedspam.app.experiment.build import build_solver
from fedspam.app.named_problems import Problem
from fedspam.theory import measure

SEED = re.compile(r"[0-9]{1,9}")
SEEDS = 3
COHORT = 10
GRADIENTS = (0.1, 0.03)  # targets for the relative gradient norm
MEASURED = 32  # clients whose curvature is measured


@dataclass(frozen=True)
class OwnProblem:
    """A configuration that was read, its experiment, and the seeds that were asked for."""

    name: str
    experiment: Experiment
    seeds: tuple[int, ...]  # () where no list was given

    @property
    def config(self) -> Config:
        return self.experiment.config

    @property
    def double(self) -> bool:
        return self.config.run.precision == "float64"

    @property
    def cohort(self) -> int:
        """The cohort size of the file's method, else ten clients or all."""
        size = msgspec.structs.asdict(self.config.method).get("cohort_size")
        return size or min(COHORT, self.clients)

    @property
    def clients(self) -> int:
        return int(self.experiment.population.size or COHORT)

    @property
    def what(self) -> str:
        """One line that describes it."""
        rows, model = self.experiment.examples, self.config.model
        parts = [f"{self.clients} clients"]
        if rows is not None:
            parts.append(f"{rows.train.rows} rows")
        if model is not None:
            parts.append(f"model {own_loss(model) or name_of(model)}")
        return f"{self.name}: {', '.join(parts)}"


def load_own(file: Path, settings: Sequence[tuple[str, str]], metric: str | None = None) -> OwnProblem:
    """Read a configuration and its data. ``run.seed`` may be a list, such as 0,1,2.

    Arguments:
        file: the configuration.
        settings: those that flags replace.
        metric: what is measured in place of the metric of the file, whose target then does not count.
    """
    seeds: tuple[int, ...] = ()
    rest = []
    for name, text in settings:
        parts = [part.strip() for part in text.strip("[]").split(",")]
        if name == "run.seed" and len(parts) > 1:
            if not all(SEED.fullmatch(part) for part in parts) or len(set(map(int, parts))) < len(parts):
                raise ConfigError(
                    f"run.seed = {text[:50]!r} must be different whole numbers below 10^9 with commas between them"
                )
            seeds, text = tuple(map(int, parts)), parts[0]
        rest.append((name, text))
    config = read(file, rest)
    if metric is not None:
        usual = "loss" if not config.data.has_loss and config.data.task == "numbers" else "accuracy"
        target = config.evaluate.target if metric == (config.evaluate.metric or usual) else None
        config = msgspec.structs.replace(
            config, evaluate=msgspec.structs.replace(config.evaluate, metric=metric, target=target)
        )
    with jax.enable_x64(config.run.precision == "float64"):
        return OwnProblem(file.stem, make(config), seeds)


def problem_of(own: OwnProblem) -> Problem:
    """The problem with its similarity and smoothness, measured at the start on some of the clients."""
    experiment = own.experiment
    found = measure(experiment.population, experiment.start, clients=min(own.clients, MEASURED))
    smoothness = found.smoothness.value
    # clients that do not differ at all have delta 0, from which no step size can be made
    delta = max(found.delta.value, 1e-3 * smoothness)
    solver = None if own.config.prox is None else build_solver(own.config.prox)
    return Problem(
        own.name, own.what, experiment.population, experiment.start, experiment.probe, delta, smoothness,
        smoothness + delta, own.clients, solver=solver,
    )  # fmt: skip


def checked_own(
    file: Path,
    settings: Sequence[tuple[str, str]],
    *,
    methods: Sequence[str] | None = None,
    metric: str | None = None,
    **numbers: Any,
) -> CompareOptions:
    """Options completed by the configuration; ValueError if they contradict it. `numbers` are as in `checked`."""
    keys, given = check_methods(DEFAULT if methods is None else methods), given_numbers(numbers)
    own = load_own(file, settings, metric)
    if own.seeds and given.keys() & {"seeds", "seed"}:
        raise ValueError("run.seed already lists the seeds; leave out --seeds and --seed")
    _check_obeyed(own.config)
    goal = own.experiment.target
    metric = metric or ("gradient" if goal is None else goal.probe)
    usual = {"gradient": GRADIENTS} | ({} if goal is None else {goal.probe: (goal.value,)})
    if "targets" not in given and metric not in usual:
        raise ValueError(f"--metric {metric} needs --targets, for example --targets 0.8,0.85")
    defaults = {
        "rounds": own.config.run.rounds,
        "cohort": own.cohort,
        "targets": usual.get(metric),
        "seeds": len(own.seeds) or SEEDS,
    }
    plan = ComparisonPlan(metric=metric, every=own.config.evaluate.every, seed_list=own.seeds, **defaults | given)
    check_cohort(plan.cohort, own.clients, own.name)
    return CompareOptions(own.name, tuple(keys), plan, own)


def _check_obeyed(config: Config) -> None:
    """Refuse settings that change the runs of `fedspam run`, but not those of a comparison."""
    others = {
        "codecs": config.codecs is not None,
        "run.quorum": config.run.quorum > 0,
        "evaluate.patience": config.evaluate.patience is not None,
    }
    for name in (name for name, given in others.items() if given):
        raise ConfigError(f"a comparison does not obey {name}; remove it from the file")

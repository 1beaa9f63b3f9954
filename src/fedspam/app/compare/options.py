"""The options of `fedspam compare`, checked before anything is run: a problem by name, one's own data, or the sweep."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import msgspec

from fedspam._internal import checks
from fedspam.app.compare import DEFAULT, check_cohort, check_methods
from fedspam.app.compare.sweep import CLIENTS, HERO, PLAN, RIVALS
from fedspam.app.compare.tuning import ComparisonPlan
from fedspam.app.config import Config, ConfigError, read
from fedspam.app.config.schema import name_of, own_loss
from fedspam.app.experiment import Experiment, make
from fedspam.app.experiment.build import build_solver
from fedspam.app.named_problems import PROBLEMS, Problem
from fedspam.theory import measure

SEED = re.compile(r"[0-9]{1,9}")
SEEDS = 3  # on one's own data
COHORT = 10
GRADIENTS = (0.1, 0.03)  # targets for the relative gradient norm
MEASURED = 32  # clients whose curvature is measured


@dataclass(frozen=True)
class OwnProblem:
    """A configuration that was read, its experiment, and the seeds that were asked for."""

    name: str
    experiment: Experiment
    seeds: tuple[int, ...] = ()  # () where no list was given

    @property
    def config(self) -> Config:
        return self.experiment.config

    @property
    def double(self) -> bool:
        return self.config.run.precision == "float64"

    @property
    def cohort(self) -> int:
        """The cohort size of the file's method, else ten clients or all."""
        return getattr(self.config.method, "cohort_size", None) or min(COHORT, self.clients)

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

    @cached_property
    def problem(self) -> Problem:
        """The problem with its similarity and smoothness, measured at the start on some of the clients."""
        made = self.experiment
        found = measure(made.population, made.start, clients=min(self.clients, MEASURED))
        smoothness = found.smoothness.value
        # clients that do not differ at all have delta 0, from which no step size can be made
        delta = max(found.delta.value, 1e-3 * smoothness)
        solver = None if self.config.prox is None else build_solver(self.config.prox)
        return Problem(
            self.name, self.what, made.population, made.start, made.probe, delta, smoothness, smoothness + delta,
            self.clients, solver=solver,
        )  # fmt: skip


@dataclass(frozen=True)
class CompareOptions:
    """A comparison on one problem; the sweep if `problem` is None."""

    problem: str | None
    methods: tuple[str, ...]
    plan: ComparisonPlan
    own: OwnProblem | None = None  # where a configuration was given


def checked(
    *,
    file: Path | None = None,
    settings: Sequence[tuple[str, str]] = (),
    problem: str | None = None,
    methods: Sequence[str] | None = None,
    sweep: bool = False,
    metric: str | None = None,
    exact: bool = False,
    **numbers: Any,
) -> CompareOptions:
    """Options completed by the defaults of the problem or the configuration; ValueError if they contradict each other.

    Arguments:
        numbers: fields of `ComparisonPlan`; None for the default.

    >>> checked(problem="ridge", methods=["spam_pp", "mvr"]).plan.cohort
    2
    """
    given = {name: value for name, value in numbers.items() if value is not None}
    if "targets" in given:
        given["targets"] = tuple(given["targets"])
    keys = check_methods(methods if methods is not None else RIVALS if sweep else DEFAULT)
    if file is not None:
        return _on_own_data(load_own(file, settings, metric), keys, metric, given)
    metric = metric or "gradient"
    if sweep:
        if problem is not None:
            raise ValueError(
                f"problem = {problem!r} cannot be combined with the sweep, which has its own problems; "
                "leave out one of them"
            )
        if metric != "gradient":
            raise ValueError("the sweep is over quadratics, which have no test set; use the metric 'gradient'")
        plan = replace(PLAN, **given)
        check_cohort(plan.cohort, CLIENTS, "the sweep")
        return CompareOptions(None, tuple(key for key in keys if key != HERO), plan)
    name = "quadratics" if problem is None else problem
    checks.one_of("problem", name, PROBLEMS)
    named = PROBLEMS[name]
    if metric not in ("gradient", "accuracy"):
        raise ValueError(
            f"{metric} can be the target on data of your own: fedspam compare experiment.toml --metric {metric}"
        )
    if metric == "accuracy" and not named.accuracies:
        tested = ", ".join(key for key, other in PROBLEMS.items() if other.accuracies)
        raise ValueError(f"{name!r} has no test set for the accuracy; these problems have one: {tested}")
    usual = named.accuracies if metric == "accuracy" else named.targets
    given = {"rounds": named.rounds, "cohort": named.cohort, "targets": usual, **given}
    plan = ComparisonPlan(metric=metric, exact=exact, **given)
    check_cohort(plan.cohort, named.clients, name)
    return CompareOptions(name, tuple(keys), plan)


def _on_own_data(own: OwnProblem, keys: Sequence[str], metric: str | None, given: dict[str, Any]) -> CompareOptions:
    config = own.config
    if own.seeds and given.keys() & {"seeds", "seed"}:
        raise ValueError("run.seed already lists the seeds; leave out --seeds and --seed")
    ignored = {
        "codecs": config.codecs is not None,
        "run.quorum": config.run.quorum > 0,
        "evaluate.patience": config.evaluate.patience is not None,
    }
    for name in (name for name, there in ignored.items() if there):
        raise ConfigError(f"a comparison does not obey {name}; remove it from the file")
    goal = own.experiment.target
    metric = metric or ("gradient" if goal is None else goal.probe)
    usual = {"gradient": GRADIENTS} | ({} if goal is None else {goal.probe: (goal.value,)})
    if "targets" not in given and metric not in usual:
        raise ValueError(f"--metric {metric} needs --targets, for example --targets 0.8,0.85")
    given = {
        "rounds": config.run.rounds,
        "cohort": own.cohort,
        "targets": usual.get(metric),
        "seeds": len(own.seeds) or SEEDS,
        **given,
    }
    plan = ComparisonPlan(metric=metric, every=config.evaluate.every, seed_list=own.seeds, **given)
    check_cohort(plan.cohort, own.clients, own.name)
    return CompareOptions(own.name, tuple(keys), plan, own)


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
        evaluate = msgspec.structs.replace(config.evaluate, metric=metric, target=target)
        config = msgspec.structs.replace(config, evaluate=evaluate)
    with jax.enable_x64(config.run.precision == "float64"):
        return OwnProblem(file.stem, make(config), seeds)

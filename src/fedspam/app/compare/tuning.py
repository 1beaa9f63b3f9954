"""Tuning: every method tries the same number of settings, first those of its table row, then others near the best."""

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedspam._internal import checks
from fedspam.app import devices
from fedspam.app.compare.measures import AVERAGED, MEASURES, Curves, Trial, best_of_all
from fedspam.app.named_problems import Problem
from fedspam.methods import METHODS
from fedspam.simulation import Run, simulate_many
from fedspam.simulation.metrics import METRICS
from fedspam.simulation.stopping import Target, Watch
from fedspam.solvers import Exact, GradientDescent

BUDGET = 24  # settings that every method tries
LANES = 12  # settings that run in one compiled call
ON_DATA = 2  # of them, where rounds are costly, advance together, so that settings that have ended cost nothing
SURELY = 1 - 1e-4  # times the hardest target: no rounding can undo an arrival below this
REACH = 4.0  # a nearby setting has every number multiplied by a random factor between 1/REACH and REACH
ATTEMPTS = 50  # draws of a nearby setting; the method may reject some


@dataclasses.dataclass(frozen=True)
class ComparisonPlan:
    """How a comparison is run."""

    rounds: int  # of every run
    cohort: int  # clients per round, for methods with a cohort size
    targets: tuple[float, ...]  # to reach, as the user gave them
    seeds: int = 5  # how many are reported; tuning uses as many others
    seed: int = 0  # the first reported one
    budget: int = BUDGET  # settings that every method tries
    metric: str = "gradient"  # of `METRICS`; where more of it is better, the error is 1 minus the metric
    exact: bool = False  # whether quadratic clients compute a prox in closed form, which then counts as one gradient
    seed_list: tuple[int, ...] = ()  # the reported seeds, where they do not follow each other
    every: int = 1  # rounds between two evaluations; a run can only arrive at one of them

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("cohort", 1), ("seeds", 1), ("seed", 0), ("budget", 1), ("every", 1)):
            checks.whole(name, getattr(self, name), least)
        if self.every > self.rounds:
            raise ValueError(f"every = {self.every} leaves no evaluation in {self.rounds} rounds; evaluate more often")
        if not self.targets:
            raise ValueError("there are no targets; give at least one, such as 0.01")
        checks.one_of("metric", self.metric, METRICS)
        for target in self.targets:
            if not (0 < target < 1 or (self.metric in ("loss", "rmse") and target > 0)):
                raise ValueError(f"target = {target!r} must lie between 0 and 1")

    @property
    def errors(self) -> tuple[float, ...]:
        """The targets as errors, the hardest last."""
        errors = tuple(1 - level for level in self.targets) if self.rising else self.targets
        return tuple(sorted(set(errors), reverse=True))

    def label(self, error: float) -> float:
        """An error as the user gave it."""
        return round(1 - error, 12) if self.rising else error

    @property
    def rising(self) -> bool:
        """Whether more of the metric is better."""
        return METRICS[self.metric].rising

    def text(self, error: float) -> str:
        """The same as text, with all its digits."""
        return f"{self.label(error):.12g}"

    @property
    def reported(self) -> list[int]:
        return list(self.seed_list or range(self.seed, self.seed + self.seeds))

    @property
    def tuned_on(self) -> list[int]:
        return [2**20 + number for number in self.reported]


def tune(key: str, problem: Problem, plan: ComparisonPlan, progress: Callable[[], Any] = lambda: None) -> list[Trial]:
    """All settings that a method tries on a problem: as many as the budget, unless it has no numbers to tune."""
    proposed = METHODS[key].grid(problem.scales(plan.cohort))
    check_grid(key, proposed)
    chosen = np.unique(np.linspace(0, len(proposed) - 1, min(len(proposed), plan.budget)).round().astype(int))
    settings = [proposed[i] for i in chosen]
    trials = try_settings(key, settings, problem, plan, plan.tuned_on, first=1)
    trials = settled(key, trials, problem, plan)
    random = np.random.default_rng(plan.seed)
    while len(trials) < plan.budget and has_numbers(settings):
        progress()
        # few rounds may mean many bytes: search around the best setting for each
        centres = [best_of_all(trials, measure, plan.errors) for measure in ("rounds", "bytes")]
        count = min(LANES, plan.budget - len(trials))
        settings = [nearby(key, centres[i % 2].setting, problem, plan, random) for i in range(count)]
        trials += try_settings(key, settings, problem, plan, plan.tuned_on, first=len(trials) + 1)
        trials = settled(key, trials, problem, plan)
    progress()
    return trials


def has_numbers(settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there is anything to tune."""
    return any(isinstance(value, float) for setting in settings for value in setting.values())


def settled(key: str, trials: list[Trial], problem: Problem, plan: ComparisonPlan) -> list[Trial]:
    """The trials; those between which the final error decides run to the end, where they ended early."""
    among: set[int] = set()
    for measure in MEASURES:
        costs = np.array([[trial.cost(measure, error) for trial in trials] for error in plan.errors])
        lowest = costs.min(axis=1, keepdims=True)
        tied = (costs == lowest) & np.isfinite(lowest)
        alike = tied & (tied.sum(axis=1, keepdims=True) > 1)
        among |= set(np.flatnonzero(alike.any(axis=0)).tolist() if tied.any() else range(len(trials)))
    again = [i for i in sorted(among) if trials[i].early]
    if not again:
        return trials
    settings = [trials[i].setting for i in again]
    runs = try_settings(key, settings, problem, plan, plan.tuned_on, first=1, whole=True)
    whole = {i: dataclasses.replace(trial, number=i + 1) for i, trial in zip(again, runs, strict=True)}
    return [whole.get(i, trial) for i, trial in enumerate(trials)]


def check_grid(key: str, proposed: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a method with numbers to tune and no grid for them: one setting against the budget of others is unfair."""
    arguments = inspect.signature(METHODS[key].build).parameters.values()
    numbers = [each.name for each in arguments if each.default is each.empty and each.name != "cohort_size"]
    if not any(proposed) and numbers:
        raise ValueError(
            f"{key} has no settings to try for {', '.join(numbers)}, so it cannot be tuned as the others are; give its "
            "row of the table of methods a grid, or leave it out"
        )


def waves(budget: int) -> int:
    """How often `tune` calls `progress` at most."""
    return 1 + -(-max(0, budget - LANES) // LANES)


def nearby(
    key: str, setting: Mapping[str, Any], problem: Problem, plan: ComparisonPlan, random: np.random.Generator
) -> Mapping[str, Any]:
    """A setting with the numbers of another times random factors; whole numbers stay.

    If the method rejects the numbers, such as a fresh weight above 1, they are drawn again.
    """
    for _ in range(ATTEMPTS):
        drawn = {
            name: float(value * REACH ** random.uniform(-1, 1)) if isinstance(value, float) else value
            for name, value in setting.items()
        }
        try:
            build(key, drawn, problem, plan)
        except ValueError:
            continue
        return drawn
    return dict(setting)


def build(key: str, setting: Mapping[str, Any], problem: Problem, plan: ComparisonPlan) -> Any:
    """The method with a setting of its grid, on a problem.

    The example of the table row supplies the choice of the variant, the local solver if the setting has no local
    steps, and required arguments.
    """
    method = METHODS[key]
    arguments = dict(setting)
    if method.example.get("cohort_size") is not None:
        arguments["cohort_size"] = plan.cohort
    parameters = inspect.signature(method.build).parameters
    for name, value in method.example.items():
        required = name in parameters and parameters[name].default is inspect.Parameter.empty
        if name not in arguments and (isinstance(value, str) or required):
            arguments[name] = value
    solver = method.example.get("solver")
    if problem.solver is not None and "solver" in parameters and not {"solver", "local_steps"} & arguments.keys():
        arguments["solver"] = problem.solver
    elif isinstance(solver, GradientDescent) and "solver" not in arguments:
        arguments["solver"] = dataclasses.replace(solver, smoothness=problem.client_smoothness)
    elif isinstance(solver, Exact) and problem.exact and plan.exact and "local_steps" not in arguments:
        arguments["solver"] = solver
    return method.build(**arguments)


def try_settings(
    key: str,
    settings: Sequence[Mapping[str, Any]],
    problem: Problem,
    plan: ComparisonPlan,
    seeds: Sequence[int],
    *,
    first: int,
    whole: bool = False,
) -> list[Trial]:
    """Run settings, those of one structure in one compiled call; `whole`: to the last round, even if they arrive."""
    methods = [build(key, setting, problem, plan) for setting in settings]
    structures = [jax.tree.structure(method) for method in methods]
    curves: dict[int, Curves] = {}
    early: dict[int, bool] = {}
    for structure in dict.fromkeys(structures):
        members = [i for i, each in enumerate(structures) if each == structure]
        for begin in range(0, len(members), LANES):
            lanes = members[begin : begin + LANES]
            # idle lanes cost less than compiling for another number; on data only a method that is tuned needs several
            idle = LANES - len(lanes) if problem.exact or has_numbers(settings) else 0
            padded = [methods[i] for i in lanes + [lanes[-1]] * idle]
            ends: dict[str, Any] = {"rounds": plan.rounds}
            if not problem.exact:
                ends = {
                    **_ends(plan, whole),
                    "rounds": [plan.rounds] * len(lanes) + [1] * idle,
                    "lanes": ON_DATA if jax.default_backend() == "cpu" else None,
                }
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".* rounds were void")  # of settings that diverge
                run = simulate_many(
                    padded, problem.population, problem.start, keys=list(seeds), probe=problem.probe,
                    every=plan.every, record=("gradients",), devices=devices.chosen(), **ends,
                )  # fmt: skip
            curves |= {i: _curves(run, lane, plan) for lane, i in enumerate(lanes)}
            early |= {i: _arrived_early(run, lane) for lane, i in enumerate(lanes)}
    return [
        Trial(key, first + i, settings[i], curves[i], "diverged" if curves[i].diverged else "fine", early[i])
        for i in range(len(settings))
    ]


def _ends(plan: ComparisonPlan, whole: bool) -> dict[str, Any]:
    """What ends a run: void rounds, or the hardest target with as many probes in a row as an arrival needs.

    What all of these probes reach, `arrivals` finds, whatever comes later. A whole run has limits that nothing
    reaches, so that the same program serves it.
    """
    error = -np.inf if whole else SURELY * plan.errors[-1]
    goal = {"at_least": 1 - error} if plan.rising else {"at_most": error}
    watch = Watch(patience=plan.rounds + 1) if whole else Watch()
    return {"until": Target(plan.metric, **goal, evaluations=AVERAGED), "watch": watch}


def _arrived_early(run: Run, lane: int) -> bool:
    """Whether some runs of a setting have ended before the last round, and not after void ones."""
    void = run.rows["void"][lane]
    done = run.rounds_done[lane]
    return any(count < run.rounds and not void[seed, count - 1] for seed, count in enumerate(done))


def _curves(run: Run, lane: int, plan: ComparisonPlan) -> Curves:
    seen = run.probes[plan.metric][lane].astype(np.float64)
    # a run that has ended stands still
    ended = run.rounds_done[lane][:, None] // plan.every
    seen = np.take_along_axis(seen, np.minimum(np.arange(seen.shape[1]), ended), axis=1)
    error = 1 - seen if plan.rising else seen
    rows, start = run.rows, run.plan.start
    up, down = (
        _running(rows[unit][lane], sum(part.cohort * getattr(part, unit) for part in start), plan.every)
        for unit in ("bytes_up", "bytes_down")
    )
    # every client of the start evaluates one gradient
    gradients = _running(np.nan_to_num(rows["gradients"][lane]), sum(part.cohort for part in start), plan.every)
    rounds = np.broadcast_to(plan.every * np.arange(error.shape[1], dtype=np.float64), error.shape)
    return Curves(error, rounds, up, up + down, gradients, run.rows["void"][lane].sum(axis=1).astype(np.float64))


def _running(each: np.ndarray, start: float, every: int) -> np.ndarray:
    """The cost until every probe: of the start, then plus every round."""
    first = np.full((each.shape[0], 1), float(start))
    return np.concatenate([first, start + np.cumsum(each.astype(np.float64), axis=1)], axis=1)[:, ::every]

"""The options of `fedspam compare`, checked before anything is loaded or run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedspam._internal import checks
from fedspam.app.compare import DEFAULT, check_cohort, check_methods
from fedspam.app.compare.sweep import CLIENTS, HERO, PLAN, RIVALS
from fedspam.app.compare.tuning import ComparisonPlan
from fedspam.app.named_problems import PROBLEMS

DEFAULT_PROBLEM = "quadratics"


@dataclass(frozen=True)
class CompareOptions:
    """A comparison on one problem; the sweep if `problem` is None."""

    problem: str | None
    methods: tuple[str, ...]
    plan: ComparisonPlan
    own: Any = None  # an `OwnProblem`, where a configuration was given


def checked(
    *,
    problem: str | None = None,
    methods: Sequence[str] | None = None,
    sweep: bool = False,
    metric: str | None = None,
    exact: bool = False,
    **numbers: Any,
) -> CompareOptions:
    """Options completed by the defaults of the problem; ValueError if they contradict each other.

    Arguments:
        numbers: fields of `ComparisonPlan`; None for the default.

    >>> checked(problem="ridge", methods=["spam_pp", "mvr"]).plan.cohort
    2
    """
    metric, given = metric or "gradient", given_numbers(numbers)
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
        rivals = check_methods(RIVALS if methods is None else methods)
        return CompareOptions(None, tuple(key for key in rivals if key != HERO), plan)
    name = DEFAULT_PROBLEM if problem is None else problem
    checks.one_of("problem", name, PROBLEMS)
    defaults = PROBLEMS[name]
    if metric not in ("gradient", "accuracy"):
        raise ValueError(
            f"{metric} can be the target on data of your own: fedspam compare experiment.toml --metric {metric}"
        )
    if metric == "accuracy" and not defaults.accuracies:
        tested = ", ".join(key for key, other in PROBLEMS.items() if other.accuracies)
        raise ValueError(f"{name!r} has no test set for the accuracy; these problems have one: {tested}")
    usual = defaults.accuracies if metric == "accuracy" else defaults.targets
    given = {"rounds": defaults.rounds, "cohort": defaults.cohort, "targets": usual, **given}
    plan = ComparisonPlan(metric=metric, exact=exact, **given)
    check_cohort(plan.cohort, defaults.clients, name)
    return CompareOptions(name, tuple(check_methods(DEFAULT if methods is None else methods)), plan)


def given_numbers(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `ComparisonPlan` that are not None."""
    given = {name: value for name, value in numbers.items() if value is not None}
    return given | ({"targets": tuple(given["targets"])} if "targets" in given else {})

"""What a user asks of `fedspam compare`, checked before anything is loaded or run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedspam._internal import checks
from fedspam.app.compare import DEFAULT, check_cohort, check_methods
from fedspam.app.compare.problems import PROBLEMS
from fedspam.app.compare.sweep import CLIENTS, HERO, PLAN, RIVALS
from fedspam.app.compare.tuning import ComparePlan

USUAL = "quadratics"


@dataclass(frozen=True)
class Comparison:
    """A comparison on one problem, or, where there is none, the sweep."""

    problem: str | None
    methods: tuple[str, ...]
    plan: ComparePlan


def checked(
    *,
    problem: str | None = None,
    methods: Sequence[str] | None = None,
    sweep: bool = False,
    seeds: int | None = None,
    seed: int = 0,
    rounds: int | None = None,
    cohort: int | None = None,
    budget: int | None = None,
    targets: Sequence[float] | None = None,
    metric: str = "gradient",
    exact: bool = False,
) -> Comparison:
    """Complete what was asked with what is usual for the problem; ValueError where it cannot be.

    >>> checked(problem="ridge", methods=["spam_pp", "mvr"]).plan.cohort
    2
    """
    numbers = {"seeds": seeds, "seed": seed, "rounds": rounds, "cohort": cohort, "budget": budget}
    given = {name: value for name, value in numbers.items() if value is not None}
    if sweep:
        if problem is not None:
            raise ValueError(f"the sweep has problems of its own; leave out problem = {problem!r} or the sweep")
        if metric != "gradient":
            raise ValueError("the sweep is over quadratics, which have no test set; use the metric 'gradient'")
        plan = replace(PLAN, **given, **({} if targets is None else {"targets": tuple(targets)}))
        check_cohort(plan.cohort, CLIENTS, "the sweep")
        rivals = check_methods(RIVALS if methods is None else methods)
        return Comparison(None, tuple(key for key in rivals if key != HERO), plan)
    name = USUAL if problem is None else problem
    checks.one_of("problem", name, PROBLEMS)
    usual = PROBLEMS[name]
    if metric == "accuracy":
        if not usual.accuracies:
            tested = ", ".join(key for key, other in PROBLEMS.items() if other.accuracies)
            raise ValueError(f"{name!r} has no test set to take the accuracy on; those that have one: {tested}")
        targets = usual.accuracies if targets is None else targets
    given = {"rounds": usual.rounds, "cohort": usual.cohort, **given}
    plan = ComparePlan(
        targets=tuple(usual.targets if targets is None else targets), metric=metric, exact=exact, **given
    )
    check_cohort(plan.cohort, usual.clients, name)
    return Comparison(name, tuple(check_methods(DEFAULT if methods is None else methods)), plan)

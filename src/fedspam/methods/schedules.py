r"""Step sizes and fresh weights over rounds: k -> value.

Schedules are pytrees of numbers, never closures, so one compiled run serves all their values. The pairs at
the end are those of the paper's theorems; with :math:`r = \gamma\delta` every theorem requires

.. math:: \gamma_k \le \frac{1}{4\delta}, \qquad p_k \ge \frac{C r_k^2}{C r_k^2 + B_\mathrm{eff}}, \qquad C = 96.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Integer

from fedspam._internal import checks
from fedspam._internal.trees import Scalar, struct

PAPER_FACTOR = 96.0  # C of the paper; 24 suffices for its proof with the Lyapunov weight 3 (notes on the paper, item 4)


class Schedule(Protocol):
    """A value for every round k = 0, 1, 2, ..."""

    def __call__(self, k: Integer[Array, ""]) -> Any: ...


# An argument that may vary over rounds: a number, one value per round, or a schedule.
ScheduleLike: TypeAlias = ArrayLike | Sequence[float] | Schedule


class Parameters(NamedTuple):
    """A step size and the fresh weight that goes with it."""

    step_size: Schedule
    fresh_weight: Schedule


@struct
class Constant:
    """The same value in every round."""

    value: float | Scalar

    def __call__(self, k: Integer[Array, ""]) -> Any:
        return self.value


@struct
class Power:
    r"""A value that decays like a power of the round: :math:`v\,(k + 1 + s)^{-a}`.

    The paper's schedule divides by :math:`k^{1/3}`, which is undefined at k = 0; we count from k + 1.
    """

    value: float | Scalar
    exponent: float | Scalar
    shift: float | Scalar = 0.0

    def __call__(self, k: Integer[Array, ""]) -> Any:
        return self.value * (k + 1.0 + self.shift) ** -self.exponent


@struct
class Values:
    """Explicit values, one per round; later rounds use the last one."""

    values: Float[Array, " rounds"]

    def __call__(self, k: Integer[Array, ""]) -> Any:
        return self.values[jnp.minimum(k, self.values.shape[0] - 1)]


@struct
class FreshWeightOf:
    r"""The theorems' fresh weight for a step size.

    .. math:: p_k = C\delta^2\gamma_k^2 / (C\delta^2\gamma_k^2 + B_\mathrm{eff})
    """

    step_size: Schedule
    delta: float | Scalar
    cohort: float | Scalar = 1.0
    factor: float | Scalar = PAPER_FACTOR

    def __call__(self, k: Integer[Array, ""]) -> Any:
        squared = self.factor * (self.delta * self.step_size(k)) ** 2
        return squared / (squared + self.cohort)


@struct
class TightFreshWeightOf:
    r"""The fresh weight for which this step size has the best proved rate (`fedspam.theory.tight`).

    .. math:: p_k = 1 - \sqrt{m/(1 + m)}, \qquad m = \tfrac{1}{18}B_\mathrm{eff}(1/(\delta\gamma_k) - 1)^2

    >>> float(round(TightFreshWeightOf(Constant(0.25), delta=1.0)(0), 3))  # the paper has 0.857
    0.423
    """

    step_size: Schedule
    delta: float | Scalar
    cohort: float | Scalar = 1.0

    def __call__(self, k: Integer[Array, ""]) -> Any:
        odds = self.cohort / 18 * (1 / (self.delta * self.step_size(k)) - 1) ** 2
        return 1 - (odds / (1 + odds)) ** 0.5


def schedule(value: ScheduleLike, name: str) -> Schedule:
    """The schedule that a number, a vector with one value per round, or a schedule means."""
    if callable(value):
        return value
    if np.ndim(value) == 0:  # type: ignore[arg-type]
        return Constant(value)  # type: ignore[arg-type]
    values = jnp.asarray(value)
    if values.ndim != 1 or values.shape[0] == 0:
        raise ValueError(
            f"{name} has shape {values.shape}; give a number, a vector with one value per round, or a schedule"
        )
    return Values(values)


def shortest_list(method: Any) -> int | None:
    """The fewest values that a method was given for its rounds; None if it was given no lists.

    >>> from fedspam.methods import spam
    >>> shortest_list(spam([0.5, 0.4, 0.3], 0.2)), shortest_list(spam(0.5, 0.2))
    (3, None)
    """
    parts = jax.tree.leaves(method, is_leaf=lambda part: isinstance(part, Values))
    return min((part.values.shape[0] for part in parts if isinstance(part, Values)), default=None)


# --- converters for the fields of methods: what a user gave becomes a schedule, or an error ---


def positive_schedule(value: ScheduleLike, name: str = "step_size", remedy: str = "") -> Schedule:
    return _checked(value, name, partial(checks.positive, remedy=remedy))


def unit_schedule(value: ScheduleLike, name: str = "value", remedy: str = "", *, open_low: bool = False) -> Schedule:
    """The schedule of a number from 0 to 1."""
    return _checked(value, name, partial(checks.between, low=0, high=1, open_low=open_low, remedy=remedy))


def _checked(value: ScheduleLike, name: str, check: Callable[[str, Any], None]) -> Schedule:
    """The schedule, if its value passes the check; of several values, the least and the largest must."""
    made = schedule(value, name)
    for number in (float(made.values.min()), float(made.values.max())) if isinstance(made, Values) else (value,):
        check(name, number)
    return made


step_size_schedule = partial(positive_schedule, remedy="try 1 / (4 * delta)")
fresh_weight_schedule = partial(
    unit_schedule, remedy="1 is SGD without memory, the paper's figure uses 0.1 and 0.9", open_low=True
)
probability_schedule = partial(unit_schedule, remedy="it is the probability that a round asks every client")
pull_schedule = partial(unit_schedule, remedy="0 is SARAH without restarts, B/n is what the authors run")


def effective_cohort(
    cohort_size: int, population: int | None = None, *, replace: bool = False, dependent: bool = False
) -> float:
    r"""By how much a cohort divides the variance: :math:`B_\mathrm{eff}`.

    B for independent clients, :math:`B(n-1)/(n-B)` without replacement from n (infinite at B = n), and 1 where
    the clients of a cohort may depend on each other. The paper's B² is right in none of these cases.

    >>> effective_cohort(10), effective_cohort(10, population=100), effective_cohort(10, dependent=True)
    (10.0, 11.0, 1.0)
    """
    checks.whole("cohort_size", cohort_size, 1)
    if dependent:
        return 1.0
    if population is None or replace:
        return float(cohort_size)
    if cohort_size > population:
        raise ValueError(
            f"cohort_size = {cohort_size} exceeds the population of {population} clients; give at most that many"
        )
    return math.inf if cohort_size == population else cohort_size * (population - 1) / (population - cohort_size)


def constant(
    delta: float, fresh_weight: float,
    *, cohort: float = 1.0, factor: float = PAPER_FACTOR, constants: Literal["paper", "tight"] = "paper",
) -> Parameters:  # fmt: skip
    r"""The largest constant step size that Theorem 1 allows at this fresh weight; or, 'tight', the one with the best
    proved rate.

    .. math:: \gamma = \min\{1/(4\delta),\; \sqrt{p B_\mathrm{eff} / (C (1-p))}/\delta\}, \qquad
        \gamma_\text{tight} = \frac{1}{(1 + 3\kappa)\delta}, \quad \kappa = (1-p)\sqrt{2/((2p - p^2)B_\mathrm{eff})}

    >>> [round(constant(delta=2.0, fresh_weight=0.1, constants=name).step_size.value, 4) for name in ("paper", "tight")]
    [0.017, 0.0512]
    """
    checks.positive("delta", delta)
    checks.between("fresh_weight", fresh_weight, 0, 1, open_low=True)
    checks.one_of("constants", constants, ("paper", "tight"))
    if constants == "tight":
        return Parameters(Constant(_tight_ratio(fresh_weight, cohort)[0] / delta), Constant(fresh_weight))
    limit = math.inf if fresh_weight == 1 else math.sqrt(fresh_weight * cohort / (factor * (1 - fresh_weight)))
    return Parameters(Constant(min(0.25, limit) / delta), Constant(fresh_weight))


def _tight_ratio(fresh_weight: Any, cohort: float) -> tuple[Any, Any]:
    """gamma delta of `constant`, and its kappa."""
    kappa = (1 - fresh_weight) * (2 / (fresh_weight * (2 - fresh_weight) * cohort)) ** 0.5
    return 1 / (1 + 3 * kappa), kappa


def cube_root(
    delta: float, *, cohort: float = 1.0, factor: float = PAPER_FACTOR, constants: Literal["paper", "tight"] = "paper"
) -> Parameters:
    r"""The schedule without a floor: :math:`\gamma_k = (k+1)^{-1/3}/(4\delta)` and its :math:`p_k` (Corollary 2).

    The tight form is :math:`\gamma_k = (1 + k/(2B_\mathrm{eff}))^{-1/3}/(3\delta)` with `TightFreshWeightOf`.
    """
    checks.positive("delta", delta)
    checks.one_of("constants", constants, ("paper", "tight"))
    if constants == "tight":
        slow = Power((2 * cohort) ** (1 / 3) / (3 * delta), 1 / 3, 2 * cohort - 1)
        return Parameters(slow, TightFreshWeightOf(slow, delta, cohort))
    step_size = Power(0.25 / delta, 1 / 3)
    return Parameters(step_size, FreshWeightOf(step_size, delta, cohort, factor))


def corollary(
    delta: float, sigma: float, gap: float, rounds: int,
    *, cohort: float = 1.0, constants: Literal["safe", "paper", "tight"] = "safe",
) -> Parameters:  # fmt: skip
    r"""The constants of the complexity corollary for a run of K rounds, with :math:`F = f(x_0) - \inf f`.

    As printed: :math:`\gamma = \min\{1/\delta, (F/(2\delta^2\sigma^2K))^{1/3}\}` and
    :math:`p = \max\{\gamma^2\delta^2, 1/K\}`, which leaves the range of the theorem it rests on by up to a factor 4
    in :math:`\gamma` and 96 in p. The safe form has the same order and stays inside:

    .. math:: \gamma = \min\{1/(4\delta),\; (B^2F/(2\delta^2\sigma^2K))^{1/3}\}, \qquad
              p = \max\{C r^2/(C r^2 + B),\; 1/K\}.

    The tight form takes the step size of the tight `constant`, and the p for which the proved bound is least.

    Start g from about K/2 exchanges (`fedspam.methods.WarmStart`), as the corollary's proof does.
    """
    checks.positive("gap", gap)
    checks.whole("rounds", rounds, 1)
    checks.one_of("constants", constants, ("safe", "paper", "tight"))
    if delta < 0 or sigma < 0:
        raise ValueError(f"delta = {delta} and sigma = {sigma} must not be negative")
    if constants == "tight" and delta > 0:
        p = np.geomspace(1e-12, 1, 2000)[:-1]
        ratio, kappa = _tight_ratio(p, cohort)
        # R (F/(gamma K) + c e_0/((2p - p^2) K) + 2 c p sigma^2/((2 - p) B)), with e_0 = sigma^2/(B K) and the best c
        noise = sigma**2 / cohort * (2 * p + 1 / (p * rounds**2)) / (2 - p)
        best = int(np.argmin((4 + 8 * kappa) * delta * gap / rounds + (1 / kappa + 2) * noise))
        return Parameters(Constant(float(ratio[best] / delta)), Constant(float(p[best])))
    printed = constants == "paper"
    noise = 2 * delta**2 * sigma**2 * rounds
    largest = math.inf if delta == 0 else (1.0 if printed else 0.25) / delta
    noisy = math.inf if noise == 0 else ((cohort if printed else cohort**2) * gap / noise) ** (1 / 3)
    step_size = min(largest, noisy)
    if math.isinf(step_size):
        raise ValueError(
            "delta = 0 allows any step size; give your own (one prox with a large step size solves the problem)"
        )
    squared = (step_size * delta) ** 2
    needed = squared if printed else PAPER_FACTOR * squared / (PAPER_FACTOR * squared + cohort)
    return Parameters(Constant(step_size), Constant(min(1.0, max(needed, 1 / rounds))))


def first_fresh_weight(fresh_weight: Schedule, first: str, k: Integer[Array, ""]) -> Any:
    """p_k, where in round 0 p = 0 keeps the given g_0: with x_{-1} = x_0 the two gradients cancel exactly."""
    p = fresh_weight(k)
    return jnp.where(k == 0, jnp.zeros_like(p), p) if first == "given" else jnp.asarray(p)

r""":math:`\delta`, :math:`\sigma`, L and :math:`\mu` of a population at a point, with confidence intervals and cost.

`measure` runs the methods of `fedspam.theory.curvature` and `fedspam.theory.spread`, in the simulator unless it is
given another way to run a method. Two kinds of doubt enter the intervals: Lanczos starts at random and takes few steps,
which bounds what it can have missed; and where a sample of the clients was asked, others might have answered
differently. For the latter extreme eigenvalues are looked at twice: on the clients for whom their directions were
chosen, where they are too large, and on fresh ones, where they are too small; the interval reaches from the lower end
of the one to the upper end of the other. The interval of :math:`\delta` is about the candidates alone: clients that
nobody compared with the mean may deviate more.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params
from fedspam.clients import Hosted, Population
from fedspam.federation import loopback
from fedspam.simulation import simulate
from fedspam.theory import _lanczos
from fedspam.theory.complexity import traffic
from fedspam.theory.constants import Constants
from fedspam.theory.curvature import Hessian, LanczosState, MeanSquare, Similarity
from fedspam.theory.intervals import IntervalEstimate, mean_interval, missed, root_mean_interval, spread_interval
from fedspam.theory.spread import Along, Spread, SpreadState

STEPS = 24
CONFIDENCE = 0.95


class MeasureCost(NamedTuple):
    """What a measurement took."""

    rounds: int = 0
    gradients: int = 0  # of clients; a Hessian-vector product counts as two
    bytes_down: int = 0
    bytes_up: int = 0

    def __add__(self, other: Any) -> "MeasureCost":
        return MeasureCost(*(a + b for a, b in zip(self, other, strict=True)))


class Ran(NamedTuple):
    """A method that was run: its last state, and the bytes that it sent."""

    state: Any
    bytes_down: int
    bytes_up: int


Runner: TypeAlias = Callable[[Any, int, int], Ran]  # (method, rounds, seed) -> Ran


def in_simulator(population: Population, params: Params) -> Runner:
    """Run methods in the compiled simulation."""

    def run(method: Any, rounds: int, seed: int) -> Ran:
        done = simulate(method, population, params, rounds=rounds, key=seed)
        if done.status != "completed":
            raise RuntimeError(f"the measurement {done.status}")
        started = traffic(done.plan, 0)
        down, up = (int(done.rows[name].sum()) for name in ("bytes_down", "bytes_up"))
        return Ran(done.state, started.down + down, started.up + up)

    return run


def over_bytes(population: Population, params: Params) -> Runner:
    """Run methods over `fedspam.federation.loopback`: every message and every reply is really encoded."""

    def run(method: Any, rounds: int, seed: int) -> Ran:
        state, fed = loopback.run(method, population, params, rounds=rounds, key=seed)
        return Ran(state, fed.bytes_down, fed.bytes_up)

    return run


@dataclass(frozen=True)
class Measurement:
    """The constants of a population at a point."""

    delta: IntervalEstimate  # max_i |H_i - H| over the clients that were asked
    delta_rms: IntervalEstimate  # in mean square, the worst direction
    delta_secant: IntervalEstimate  # in mean square, along the gradient: from gradients alone
    sigma: IntervalEstimate  # the spread of gradients
    smoothness: IntervalEstimate  # |H|
    lowest_curvature: IntervalEstimate  # the least eigenvalue of H: mu, or minus the weak convexity
    clients: int  # how many were asked
    population: int | None  # of how many; None: endless
    worst: int  # the client that deviates most
    confidence: float
    costs: dict[str, MeasureCost] = field(default_factory=dict)

    @property
    def cost(self) -> MeasureCost:
        return sum(self.costs.values(), MeasureCost())

    def constants(self, gap: float = 0.0, error: float = 0.0) -> Constants:
        """For the theorems: the upper ends of the intervals, so that what they promise is on the safe side."""
        return Constants(
            self.delta.high, self.sigma.high, gap, error, self.smoothness.high, max(0.0, -self.lowest_curvature.low)
        )


def measure(
    population: Population,
    params: Params,
    *,
    seed: int = 0,
    clients: int | None = None,
    steps: int = STEPS,
    candidates: int = 16,
    confidence: float = CONFIDENCE,
    secant: bool | None = None,
    minibatch: bool = False,
    run: Runner | None = None,
) -> Measurement:
    """Measure a population at a point.

    Arguments:
        params: the point.
        clients: how many are asked; None for everyone.
        steps: of Lanczos.
        candidates: clients whose own Hessians are compared with the mean.
        confidence: of each interval.
        secant: Hessian products from differences of gradients; by default for clients outside JAX alone.
        minibatch: measure minibatches instead of all of a client's data.
        run: how a method is run; in the simulator unless given.

    >>> from fedspam.problems import quadratics
    >>> people = quadratics(0, clients=6, dimension=4, delta=0.5)
    >>> found = measure(people, jnp.zeros(4))
    >>> round(found.delta.value, 3), round(found.smoothness.value, 2), found.delta.covers(people.delta)
    (0.5, 10.0, True)
    """
    checks.between("confidence", confidence, 0.5, 0.999)
    checks.whole("steps", steps, 2)
    if clients is None and population.size is None:
        raise ValueError("clients = None asks everyone, and the population is endless; say how many to ask")
    if clients is not None:
        checks.whole("clients", clients, 4, "fewer tell nothing of the others")
        if population.size is not None and clients >= population.size:
            clients = None
    count = population.size if clients is None else clients
    assert count is not None
    params = checks.params("params", params)
    dimension = trees.size(params)
    steps = min(steps, dimension)
    run = in_simulator(population, params) if run is None else run
    secant = isinstance(population, Hosted) if secant is None else secant
    kind = {"secant": secant, "minibatch": minibatch}
    common = {"steps": steps, "clients": clients, **kind}
    costs: dict[str, MeasureCost] = {}

    def ask(name: str, method: Any, rounds: int, offset: int) -> Any:
        state, down, up = run(method, rounds, seed + offset)
        costs[name] = costs.get(name, MeasureCost()) + MeasureCost(rounds, int(state.gradients), down, up)
        return state

    looked: SpreadState = ask("spread", Spread(clients=clients, minibatch=minibatch), 1, 0)
    bent: LanczosState = ask("hessian", Hessian(**common), steps, 1)
    square: LanczosState = ask("delta in mean square", MeanSquare(**common), steps, 2)
    apart: LanczosState = ask("delta", Similarity(candidates=candidates, **common), steps, 3)

    # a population that may be drawn twice, or is endless, is never seen whole
    seen_of = None if getattr(population, "replace", False) and clients is not None else population.size
    failure = 1 - confidence
    lowest, highest = hessian_ends(bent, dimension, failure)
    rms = mean_square_root(square, dimension, failure, count, seen_of if clients is not None else count)
    if clients is not None:
        rows = np.stack([_lanczos.ritz(bent.krylov).lowest_vector, _lanczos.ritz(bent.krylov).highest_vector])
        main = _lanczos.ritz(square.krylov).highest_vector
        dtype = jnp.result_type(*jax.tree.leaves(params))
        told = [
            ask("doubt", Along(jnp.asarray(np.vstack([rows, main]), dtype), ids, clients, **kind), 1, offset)
            for ids, offset in ((bent.ids, 4), (None, 5), (square.ids, 6))
        ]
        bends = [np.asarray(told[j].curvatures) for j in (0, 1)]
        lowest, highest = (
            _both(e, *(mean_interval(bend[:, j], confidence, seen_of) for bend in bends), upward=j == 1)
            for j, e in enumerate((lowest, highest))
        )
        squares = [np.asarray(told[j].squares)[:, 2] * _bessel(count, seen_of) for j in (2, 1)]
        rms = _both(rms, *(root_mean_interval(each, confidence, seen_of) for each in squares), upward=True)
    return Measurement(
        delta=similarity(apart, dimension, failure),
        delta_rms=rms,
        delta_secant=secant_of(looked, confidence, seen_of),
        sigma=spread_interval(np.asarray(looked.deviations.here)[np.asarray(looked.counted)], confidence, seen_of),
        smoothness=_norm(lowest, highest),
        lowest_curvature=lowest,
        clients=count,
        population=population.size,
        worst=int(apart.candidates[_worst(apart)]),
        confidence=confidence,
        costs=costs,
    )


# --- what the methods' last states say ---


def hessian_ends(
    state: LanczosState, dimension: int, failure: float = 1 - CONFIDENCE
) -> tuple[IntervalEstimate, IntervalEstimate]:
    """The least and the largest eigenvalue of the mean Hessian of the clients that were asked."""
    return _ends(state, 0, dimension, failure)


def similarity(state: LanczosState, dimension: int, failure: float = 1 - CONFIDENCE) -> IntervalEstimate:
    r""":math:`\delta`: the largest :math:`\|H_i - H\|` of the candidates."""
    count = state.krylov.diagonal.shape[1]
    norms = [_norm(*_ends(state, j, dimension, failure / count)) for j in range(count)]
    return IntervalEstimate(*(max(column) for column in zip(*norms, strict=True)))


def mean_square_root(
    state: LanczosState, dimension: int, failure: float = 1 - CONFIDENCE, count: int = 1, population: int | None = 1
) -> IntervalEstimate:
    r""":math:`\|\frac1n\sum_i(H_i - H)^2\|^{1/2}`; of a sample of `count` clients without its downward bias."""
    found = _lanczos.ritz(state.krylov)
    share = 0.0 if found.exhausted else missed(found.steps, dimension, failure)
    slack = _rounding(state)
    top = max(0.0, found.highest)
    high = math.inf if share >= 1 else top / (1 - share) + slack
    return IntervalEstimate(
        *(math.sqrt(_bessel(count, population) * value) for value in (top, max(0.0, top - slack), high))
    )


def secant_of(state: SpreadState, confidence: float = CONFIDENCE, population: int | None = None) -> IntervalEstimate:
    """Similarity in mean square along the gradient, from gradients alone."""
    length = float(state.length)
    if length == 0:  # at a stationary point there is no direction to take
        return IntervalEstimate(math.nan, 0.0, math.inf)
    squares = np.asarray(state.deviations.secant, np.float64)[np.asarray(state.counted)]
    return IntervalEstimate(*(value / length for value in spread_interval(squares, confidence, population)))


def _ends(
    state: LanczosState, number: int, dimension: int, failure: float
) -> tuple[IntervalEstimate, IntervalEstimate]:
    """Both extreme eigenvalues: Ritz values lie inside the spectrum, and miss a known share of its width at most."""
    found = _lanczos.ritz(state.krylov, number)
    share = 0.0 if found.exhausted else missed(found.steps, dimension, failure / 2)
    width = found.highest - found.lowest
    beyond = math.inf if share >= 0.5 else share * width / (1 - 2 * share)
    slack = _rounding(state)
    return (
        IntervalEstimate(found.lowest, found.lowest - beyond - slack, found.lowest + slack),
        IntervalEstimate(found.highest, found.highest - slack, found.highest + beyond + slack),
    )


def _norm(lowest: IntervalEstimate, highest: IntervalEstimate) -> IntervalEstimate:
    """The larger absolute value of the two."""
    value = max(-lowest.value, highest.value)
    return IntervalEstimate(value, max(0.0, -lowest.high, highest.low), max(-lowest.low, highest.high))


def _worst(state: LanczosState) -> int:
    norms = [_norm(*_ends(state, j, 2, 0.5)).value for j in range(state.krylov.diagonal.shape[1])]
    return int(np.argmax(norms))


def _bessel(count: int, population: int | None) -> float:
    """By how much a sample's own variance is too small for that of the population it was drawn from."""
    if population == count:
        return 1.0
    return count / (count - 1) * (1.0 if population is None else (population - 1) / population)


def _rounding(state: LanczosState) -> float:
    krylov = state.krylov
    return 32 * float(jnp.finfo(krylov.basis.dtype).eps) * float(krylov.scale)


def _both(
    numeric: IntervalEstimate, inside: IntervalEstimate, fresh: IntervalEstimate, *, upward: bool
) -> IntervalEstimate:
    """An extreme eigenvalue from the clients it was chosen on, where it is too extreme, and fresh ones, where too tame.

    `upward`: whether it is the largest one.
    """
    value = (numeric.value + fresh.value) / 2
    if upward:
        return IntervalEstimate(
            value, min(fresh.low, inside.low), max(inside.high, fresh.high) + numeric.high - numeric.value
        )
    return IntervalEstimate(
        value, min(inside.low, fresh.low) - (numeric.value - numeric.low), max(fresh.high, inside.high)
    )

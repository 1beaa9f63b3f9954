r""":math:`\delta`, :math:`\sigma`, L and :math:`\mu` of a population at a point, with confidence intervals and costs.

`measure` runs the methods of `fedspam.theory.curvature` and `fedspam.theory.spread`, by default in the simulator. Two
errors enter the intervals. Lanczos starts at random and takes few steps, which bounds what it can have missed. And a
sample of the clients is not all of them: an extreme eigenvalue is too extreme on the clients on which its direction was
chosen, and not extreme enough on others. So it is measured on both, and its interval reaches from the lower end of the
one to the upper end of the other. The interval of :math:`\delta` covers only the candidates: other clients may deviate
more.
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
from fedspam.clients import Hosted, Population, repeats
from fedspam.federation import loopback
from fedspam.methods import Method
from fedspam.simulation import simulate
from fedspam.simulation.status import COMPLETED
from fedspam.theory import _lanczos
from fedspam.theory.complexity import traffic
from fedspam.theory.constants import Constants
from fedspam.theory.curvature import Hessian, LanczosState, Similarity
from fedspam.theory.intervals import IntervalEstimate, mean_interval, missed, root_mean_interval, spread_interval
from fedspam.theory.spread import Directions, Spread, SpreadState

STEPS = 24
CONFIDENCE = 0.95


class MeasureCost(NamedTuple):
    """The cost of a measurement."""

    rounds: int = 0
    gradients: int = 0  # of clients; a Hessian-vector product counts as two
    bytes_down: int = 0
    bytes_up: int = 0

    def __add__(self, other: Any) -> "MeasureCost":
        return MeasureCost(*(a + b for a, b in zip(self, other, strict=True)))


class MethodRun(NamedTuple):
    """The last state of a method, and the bytes of its run."""

    state: Any
    bytes_down: int
    bytes_up: int


Runner: TypeAlias = Callable[[Method[Any], int, int], MethodRun]  # (method, rounds, seed) -> MethodRun


def in_simulator(population: Population, params: Params) -> Runner:
    """Run methods in the compiled simulation."""

    def run(method: Method[Any], rounds: int, seed: int) -> MethodRun:
        done = simulate(method, population, params, rounds=rounds, key=seed)
        if done.status != COMPLETED:
            raise RuntimeError(f"the measurement did not complete: {done.status}")
        start = traffic(done.plan, 0)
        down, up = (int(done.rows[name].sum()) for name in ("bytes_down", "bytes_up"))
        return MethodRun(done.state, start.down + down, start.up + up)

    return run


def over_bytes(population: Population, params: Params) -> Runner:
    """Run methods over `fedspam.federation.loopback`: every message and reply is encoded to bytes."""

    def run(method: Method[Any], rounds: int, seed: int) -> MethodRun:
        state, fed = loopback.run(method, population, params, rounds=rounds, key=seed)
        return MethodRun(state, fed.bytes_down, fed.bytes_up)

    return run


@dataclass(frozen=True)
class Measurement:
    """The constants of a population at a point."""

    delta: IntervalEstimate  # max_i |H_i - H| over the candidates
    delta_rms: IntervalEstimate  # in mean square, the worst direction
    delta_secant: IntervalEstimate  # in mean square, along the gradient: from gradients alone
    sigma: IntervalEstimate  # the spread of gradients
    smoothness: IntervalEstimate  # |H|
    lowest_curvature: IntervalEstimate  # the least eigenvalue of H: mu, or minus the weak convexity
    clients: int  # how many took part
    population: int | None  # out of how many; None if endless
    worst: int  # the client that deviates most
    confidence: float
    costs: dict[str, MeasureCost] = field(default_factory=dict)

    @property
    def cost(self) -> MeasureCost:
        return sum(self.costs.values(), MeasureCost())

    def constants(self, gap: float = 0.0, error: float = 0.0) -> Constants:
        """The upper ends of the intervals, for bounds on the safe side."""
        return Constants(
            self.delta.high, self.sigma.high, gap, error, self.smoothness.high, max(0.0, -self.lowest_curvature.low)
        )


def measure(
    population: Population, params: Params,
    *, seed: int = 0, clients: int | None = None, steps: int = STEPS, candidates: int = 16,
    confidence: float = CONFIDENCE, secant: bool | None = None, minibatch: bool = False, run: Runner | None = None,
) -> Measurement:  # fmt: skip
    """Measure a population at a point.

    Arguments:
        params: the point.
        clients: how many take part; None for everyone.
        steps: of Lanczos.
        candidates: clients whose own Hessians are compared with the mean.
        confidence: of each interval.
        secant: Hessian products from differences of gradients; by default only for clients outside JAX.
        minibatch: measure the losses of minibatches instead of those of all of a client's data.
        run: runs a method: `in_simulator` (the default) or `over_bytes` of the population and point.

    >>> from fedspam.problems import quadratics
    >>> clients = quadratics(0, clients=6, dimension=4, delta=0.5)
    >>> found = measure(clients, jnp.zeros(4))
    >>> round(found.delta.value, 3), round(found.smoothness.value, 2), found.delta.covers(clients.delta)
    (0.5, 10.0, True)
    """
    checks.between("confidence", confidence, 0.5, 0.999)
    checks.whole("steps", steps, 2)
    if clients is None and population.size is None:
        raise ValueError("clients = None means everyone, and the population is endless; give a number of clients")
    if clients is not None:
        checks.whole("clients", clients, 4, "an interval needs several clients")
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

    def run_part(name: str, method: Method[Any], rounds: int, offset: int) -> Any:
        state, down, up = run(method, rounds, seed + offset)
        costs[name] = costs.get(name, MeasureCost()) + MeasureCost(rounds, int(state.gradients), down, up)
        return state

    spread: SpreadState = run_part("spread", Spread(clients=clients, minibatch=minibatch), 1, 0)
    hessian: LanczosState = run_part("hessian", Hessian(**common), steps, 1)
    mean_square: LanczosState = run_part("delta in mean square", Hessian(mean_square=True, **common), steps, 2)
    deviations: LanczosState = run_part("delta", Similarity(candidates=candidates, **common), steps, 3)

    # a sample with replacement is never the whole population
    finite = None if repeats(population) and clients is not None else population.size
    failure = 1 - confidence
    lowest, highest = hessian_ends(hessian, dimension, failure)
    rms = mean_square_root(mean_square, dimension, failure, count, finite if clients is not None else count)
    if clients is not None:
        bend, square = _lanczos.ritz(hessian.krylov), _lanczos.ritz(mean_square.krylov)
        rows = jnp.asarray(
            np.stack([bend.lowest_vector, bend.highest_vector, square.highest_vector]),
            jnp.result_type(*jax.tree.leaves(params)),
        )
        # along the same directions: the clients they were chosen on, and fresh ones
        hessian_clients, fresh, square_clients = (
            run_part("sampling error", Directions(rows, ids, clients, **kind), 1, offset)
            for ids, offset in ((hessian.ids, 4), (None, 5), (mean_square.ids, 6))
        )
        curvatures = [np.asarray(part.curvatures) for part in (hessian_clients, fresh)]
        lowest, highest = (
            _widened(end, *(mean_interval(part[:, j], confidence, finite) for part in curvatures), upward=j == 1)
            for j, end in enumerate((lowest, highest))
        )
        squares = [np.asarray(part.squares)[:, 2] * _bessel(count, finite) for part in (square_clients, fresh)]
        rms = _widened(rms, *(root_mean_interval(part, confidence, finite) for part in squares), upward=True)
    own = np.asarray(spread.deviations.here)[np.asarray(spread.counted)]
    return Measurement(
        delta=similarity(deviations, dimension, failure),
        delta_rms=rms,
        delta_secant=secant_of(spread, confidence, finite),
        sigma=spread_interval(own, confidence, finite),
        smoothness=_norm(lowest, highest),
        lowest_curvature=lowest,
        clients=count,
        population=population.size,
        worst=int(deviations.candidates[_worst(deviations)]),
        confidence=confidence,
        costs=costs,
    )


# --- estimates from the methods' last states ---


def hessian_ends(
    state: LanczosState, dimension: int, failure: float = 1 - CONFIDENCE, number: int = 0
) -> tuple[IntervalEstimate, IntervalEstimate]:
    """The least and the largest eigenvalue of the matrix of that number; of `Hessian` it is the clients' mean Hessian.

    Ritz values lie inside the spectrum, and miss at most a known share of its width.
    """
    found = _lanczos.ritz(state.krylov, number)
    share = 0.0 if found.exhausted else missed(found.steps, dimension, failure / 2)
    width = found.highest - found.lowest
    beyond = math.inf if share >= 0.5 else share * width / (1 - 2 * share)
    slack = _rounding(state)
    return (
        IntervalEstimate(found.lowest, found.lowest - beyond - slack, found.lowest + slack),
        IntervalEstimate(found.highest, found.highest - slack, found.highest + beyond + slack),
    )


def similarity(state: LanczosState, dimension: int, failure: float = 1 - CONFIDENCE) -> IntervalEstimate:
    r""":math:`\delta`: the largest :math:`\|H_i - H\|` of the candidates."""
    count = state.krylov.diagonal.shape[1]
    norms = [_norm(*hessian_ends(state, dimension, failure / count, j)) for j in range(count)]
    return IntervalEstimate(*(max(column) for column in zip(*norms, strict=True)))


def mean_square_root(
    state: LanczosState, dimension: int, failure: float = 1 - CONFIDENCE, count: int = 1, population: int | None = 1
) -> IntervalEstimate:
    r""":math:`\|\frac1n\sum_i(H_i - H)^2\|^{1/2}`; corrected for the downward bias of a sample of `count` clients."""
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
    if length == 0:  # a stationary point has no gradient direction
        return IntervalEstimate(math.nan, 0.0, math.inf)
    squares = np.asarray(state.deviations.secant, np.float64)[np.asarray(state.counted)]
    return IntervalEstimate(*(value / length for value in spread_interval(squares, confidence, population)))


def _norm(lowest: IntervalEstimate, highest: IntervalEstimate) -> IntervalEstimate:
    """The larger absolute value of the two eigenvalues."""
    value = max(-lowest.value, highest.value)
    return IntervalEstimate(value, max(0.0, -lowest.high, highest.low), max(-lowest.low, highest.high))


def _worst(state: LanczosState) -> int:
    norms = [_norm(*hessian_ends(state, 2, 0.5, j)).value for j in range(state.krylov.diagonal.shape[1])]
    return int(np.argmax(norms))


def _bessel(count: int, population: int | None) -> float:
    """The factor from a sample's variance to an unbiased estimate of the population's."""
    if population == count:
        return 1.0
    return count / (count - 1) * (1.0 if population is None else (population - 1) / population)


def _rounding(state: LanczosState) -> float:
    krylov = state.krylov
    return 32 * float(jnp.finfo(krylov.basis.dtype).eps) * float(krylov.scale)


def _widened(
    numeric: IntervalEstimate, inside: IntervalEstimate, fresh: IntervalEstimate, *, upward: bool
) -> IntervalEstimate:
    """The largest eigenvalue (`upward`) or the least, from the clients its direction was chosen on and fresh ones."""
    value = (numeric.value + fresh.value) / 2
    low, high = min(inside.low, fresh.low), max(inside.high, fresh.high)
    if upward:
        return IntervalEstimate(value, low, high + numeric.high - numeric.value)
    return IntervalEstimate(value, low - (numeric.value - numeric.low), high)

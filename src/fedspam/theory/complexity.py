r"""Rounds and bytes after which the theorems guarantee :math:`\mathrm{E}\|\nabla f\|^2 \le \varepsilon`."""

import bisect
from dataclasses import replace
from typing import NamedTuple

from fedspam._internal import checks
from fedspam.federation.ledger import Plan
from fedspam.methods.schedules import Parameters, corollary
from fedspam.theory.bounds import constant_bound
from fedspam.theory.constants import Constants, Version

MOST_ROUNDS = 2**60


def order(constants: Constants, epsilon: float, *, cohort: float = 1.0, version: Version = "corrected") -> float:
    r"""Corollaries 3.4 and 5.2: the order of the number of rounds, without its constant.

    .. math:: \frac{\delta F}{\varepsilon} + \frac{\sigma^2}{B\varepsilon} + \frac{\delta\sigma F}{B\varepsilon^{3/2}}

    The paper prints :math:`\sqrt B` in the last term, because its :math:`p = \gamma^2\delta^2` does not depend on B.

    >>> order(Constants(delta=1.0, sigma=1.0, gap=1.0), 0.01)
    1200.0
    """
    checks.positive("epsilon", epsilon)
    speed_up = cohort if version == "corrected" else cohort**0.5
    noise = constants.sigma**2 / cohort + constants.delta * constants.sigma * constants.gap / speed_up / epsilon**0.5
    return (constants.delta * constants.gap + noise) / epsilon


def printed_varying_order(epsilon: float) -> float:
    r"""Corollary 3.6 as printed: :math:`K = O(\varepsilon^{3/2})` rounds, fewer for a higher accuracy.

    It means :math:`\varepsilon^{-3/2}`; the true order has an additional logarithm, as
    :math:`\sum p_k\gamma_k \sim \sum 1/k`.
    """
    return epsilon**1.5


class Promise(NamedTuple):
    """A run of `exchanges` for the start and `rounds` after it, and its guaranteed bound."""

    exchanges: int  # cohorts that send gradients at x_0; their mean is g_0
    rounds: int
    parameters: Parameters
    bound: float


def promise(constants: Constants, trips: int, *, cohort: float = 1.0, version: Version = "corrected") -> Promise:
    """The bound of Theorem 3.2 with the corollary's parameters; half of all trips estimate g_0.

    The version 'tight' has the tight parameters and their bound; the others have the safe parameters.

    >>> made = promise(Constants(delta=1.0, sigma=0.1, gap=1.0), 1000)
    >>> made.exchanges, made.rounds, made.bound < 1
    (500, 500, True)
    """
    checks.whole("trips", trips, 2)
    rounds = trips - trips // 2
    exchanges = trips - rounds
    form = "tight" if version == "tight" else "safe"
    parameters = corollary(constants.delta, constants.sigma, constants.gap, rounds, cohort=cohort, constants=form)
    gamma, p = float(parameters.step_size(0)), float(parameters.fresh_weight(0))  # type: ignore[arg-type]
    error = constants.sigma**2 / (cohort * exchanges)
    # with constant parameters, one round from 1/K of the start has the bound of K rounds
    one = replace(constants, gap=constants.gap / rounds, error=error / rounds)
    bound = constant_bound(one, gamma, p, 1, cohort=cohort, version=version).total[0]
    return Promise(exchanges, rounds, parameters, float(bound))


def trips_needed(constants: Constants, epsilon: float, *, cohort: float = 1.0, version: Version = "corrected") -> int:
    """The least number of trips to clients after which `promise` is at most epsilon.

    >>> alike, apart = (trips_needed(Constants(delta, sigma=0.1, gap=1.0), 0.01) for delta in (0.1, 1.0))
    >>> alike < apart / 5
    True
    """
    checks.positive("epsilon", epsilon)
    checks.positive("gap", constants.gap, "a start that is already optimal needs no rounds")
    enough = lambda trips: promise(constants, trips, cohort=cohort, version=version).bound <= epsilon
    high = 2
    while not enough(high):
        high *= 2
        if high > MOST_ROUNDS:
            raise ValueError(f"epsilon = {epsilon} needs more than 2^60 trips; give a larger epsilon")
    return bisect.bisect_left(range(high), True, lo=high // 2 + 1, key=enough)


class Traffic(NamedTuple):
    """Bytes in both directions."""

    down: int
    up: int


def traffic(plan: Plan, rounds: int) -> Traffic:
    """The bytes of a run, including its start; exchanges that happen with some probability count in full.

    >>> import jax.numpy as jnp
    >>> from fedspam import spam
    >>> from fedspam.federation import ledger
    >>> method = spam(step_size=0.1, fresh_weight=0.1)
    >>> traffic(ledger.plan(method, jnp.zeros(7)), rounds=10).up > 10 * 2 * 7 * 4
    True
    """
    cost = lambda exchanges, unit: sum(exchange.cohort * getattr(exchange, unit) for exchange in exchanges)
    return Traffic(*(cost(plan.start, unit) + rounds * cost(plan.round, unit) for unit in ("bytes_down", "bytes_up")))

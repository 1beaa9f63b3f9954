"""Schedules, bounds and costs against numbers worked out apart, and the gradients that methods say they evaluate
against those that they evaluate. All symbols have different values here, so that a wrong one changes the result."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam.federation import Draws, terms_of
from fedspam.methods import METHODS, Factored, spam_pp
from fedspam.methods.estimators import MVR
from fedspam.methods.schedules import (
    Constant,
    FreshWeightOf,
    Power,
    Values,
    constant,
    corollary,
    cube_root,
    effective_cohort,
    first_fresh_weight,
)
from fedspam.problems import quadratics
from fedspam.solvers import GradientDescent
from fedspam.theory import bounds, complexity, constants as rules, lemmas
from fedspam.theory.constants import Constants

DELTA, SIGMA, GAP, ERROR, B, K = 2.0, 0.3, 5.0, 0.7, 7.0, 11
KNOWN = Constants(delta=DELTA, sigma=SIGMA, gap=GAP, error=ERROR)
GAMMA, P = 0.05, 0.4


# --- schedules ---


def test_the_largest_constant_step_grows_with_the_cohort():
    for cohort in (1.0, B, 3 * B):
        made = constant(DELTA, 0.1, cohort=cohort)
        gamma, p = made.step_size(0), made.fresh_weight(0)
        assert gamma == pytest.approx(math.sqrt(0.1 * cohort / (96 * 0.9)) / DELTA)
        # it is the largest: the theorem's fresh weight for it is the given one
        assert rules.least_fresh_weight(gamma, DELTA, cohort) == pytest.approx(p)
    assert constant(DELTA, 0.1, cohort=1e6).step_size(0) == 1 / (4 * DELTA)
    assert constant(DELTA, 1.0).step_size(0) == 1 / (4 * DELTA)
    assert constant(DELTA, 0.1, factor=24.0).step_size(0) == pytest.approx(math.sqrt(0.1 / (24 * 0.9)) / DELTA)


def test_the_corollary_has_the_square_of_the_cohort_in_its_step():
    noise = 2 * DELTA**2 * SIGMA**2 * 10**6
    for cohort in (1.0, B):
        safe = corollary(DELTA, SIGMA, GAP, 10**6, cohort=cohort)
        gamma = (cohort**2 * GAP / noise) ** (1 / 3)
        assert gamma < 1 / (4 * DELTA)
        assert safe.step_size(0) == pytest.approx(gamma)
        squared = 96 * (gamma * DELTA) ** 2
        assert safe.fresh_weight(0) == pytest.approx(squared / (squared + cohort))
        printed = corollary(DELTA, SIGMA, GAP, 10**6, cohort=cohort, constants="paper")
        assert printed.step_size(0) == pytest.approx((cohort * GAP / noise) ** (1 / 3))
        assert printed.fresh_weight(0) == pytest.approx((printed.step_size(0) * DELTA) ** 2)
    assert corollary(DELTA, 0.0, GAP, K).step_size(0) == 1 / (4 * DELTA)
    assert corollary(DELTA, 0.0, GAP, K, constants="paper").step_size(0) == 1 / DELTA
    assert corollary(DELTA, 1e6, GAP, K).fresh_weight(0) == pytest.approx(1 / K)  # 1/K is the larger


def test_decaying_schedules_by_hand():
    made = cube_root(DELTA, cohort=B, factor=24.0)
    for k in (0, 7, 26):
        gamma = (k + 1) ** (-1 / 3) / (4 * DELTA)
        assert made.step_size(k) == pytest.approx(gamma)
        assert made.fresh_weight(k) == pytest.approx(24 * (DELTA * gamma) ** 2 / (24 * (DELTA * gamma) ** 2 + B))
    assert Power(3.0, 0.5, shift=2.0)(6) == pytest.approx(3 / math.sqrt(9))
    assert FreshWeightOf(Constant(0.5), 0.2, 3.0)(4) == pytest.approx(0.96 / 3.96)
    assert [float(Values(jnp.array([3.0, 2.0]))(k)) for k in (0, 1, 5)] == [3, 2, 2]
    assert [float(first_fresh_weight(Constant(0.3), "given", jnp.asarray(k))) for k in (0, 1)] == [
        0,
        pytest.approx(0.3),
    ]
    assert float(first_fresh_weight(Constant(0.3), "update", jnp.asarray(0))) == pytest.approx(0.3)


def test_effective_cohorts_by_counting():
    """The variance of the mean of B of n numbers without replacement, over all subsets."""
    from itertools import combinations

    numbers = np.array([1.0, 5.0, 6.0, 9.0, 14.0])
    for size in range(1, 5):
        means = [np.mean(chosen) for chosen in combinations(numbers, size)]
        assert numbers.var() / np.var(means) == pytest.approx(effective_cohort(size, 5))
    assert effective_cohort(3, 5, replace=True) == effective_cohort(3) == 3
    assert effective_cohort(5, 5) == math.inf
    assert effective_cohort(5, 5, dependent=True) == 1


# --- bounds ---


def test_the_parts_of_constant_bounds_by_hand():
    made = bounds.constant_bound(KNOWN, GAMMA, P, K, cohort=B)
    for rounds in (1, K):
        part = [curve[rounds - 1] for curve in made]
        assert part == pytest.approx(
            [32 * GAP / (GAMMA * rounds), 30 * ERROR / ((2 * P - P**2) * rounds), 60 / (2 - P) * P * SIGMA**2 / B, 0]
        )
    paper = bounds.constant_bound(KNOWN, GAMMA, P, K, cohort=B, version="paper")
    assert paper.estimator[-1] == pytest.approx(32 * ERROR / ((2 * P - P**2) * K))
    assert paper.noise[-1] == pytest.approx(64 * P * SIGMA**2 / B)
    appendix = bounds.constant_bound(KNOWN, GAMMA, P, K, cohort=B, version="appendix")
    assert (appendix.estimator[-1], appendix.noise[-1]) == pytest.approx(
        (30 * ERROR / ((2 * P - P**2) * K), 192 * P * SIGMA**2 / B)
    )
    assert made.total[-1] == pytest.approx(sum(curve[-1] for curve in made))


def test_the_parts_of_varying_and_inexact_bounds_by_hand():
    gamma, p, epsilon = np.array([0.05, 0.04, 0.02]), np.array([0.6, 0.5, 0.3]), np.array([0.1, 0.2, 0.5])
    alpha = 3 * gamma[0] / (p[0] * (2 - p[0]))
    for make, rate, floor in (
        (lambda: bounds.varying_bound(KNOWN, gamma, p, cohort=B), 32, 0),
        (lambda: bounds.inexact_bound(KNOWN, gamma, p, epsilon=epsilon, cohort=B), 40, 5),
        (lambda: bounds.partial_bound(KNOWN, gamma, p, epsilon=epsilon, cohort=B), 40, 5),
        (lambda: bounds.averaged_bound(KNOWN, gamma, p, epsilon=epsilon, cohort=B), 40, 5),
    ):
        made = make()
        for rounds in (1, 2, 3):
            some, total = slice(rounds), gamma[:rounds].sum()
            noise = sum(6 * rate * a * b / (2 - a) for a, b in zip(p[some], gamma[some], strict=True)) * SIGMA**2 / B
            rest = floor * sum(a * b**2 for a, b in zip(gamma[some], epsilon[some], strict=True))
            part = [curve[rounds - 1] for curve in made]
            assert part == pytest.approx(
                [rate * GAP / total, rate * alpha * ERROR / total, noise / total, rest / total]
            )
    printed = bounds.partial_bound(KNOWN, gamma, p, epsilon=epsilon, cohort=B, version="paper")
    assert printed.noise[-1] == pytest.approx(240 * (p * gamma).sum() * SIGMA**2 / B / gamma.sum())
    assert printed.inexactness[-1] == pytest.approx(7.5 * (gamma * epsilon**2).sum() / gamma.sum())
    paper = bounds.inexact_bound(KNOWN, gamma, p, epsilon=epsilon, cohort=B, version="paper")
    assert paper.noise[-1] == pytest.approx(2 * (p * gamma**2).sum() * SIGMA**2 / B / gamma.sum())
    assert paper.inexactness[-1] == pytest.approx((gamma * epsilon**2).sum() / gamma.sum() / 8)
    assert bounds.printed_fresh_weight(GAMMA, DELTA, 7) == pytest.approx(
        96 * (GAMMA * DELTA) ** 2 / (96 * (GAMMA * DELTA) ** 2 + 49)
    )


def test_lemmas_by_hand():
    e, step, slope = 0.7, 0.3, 1.9
    assert lemmas.estimation(e, step, P, DELTA, SIGMA, B) == pytest.approx(
        0.36 * e + (2 * 0.36 * DELTA**2 * step + 2 * P**2 * SIGMA**2) / B
    )
    assert lemmas.estimation(e, step, P, DELTA, SIGMA, B, "paper") == pytest.approx(
        0.36 * e + 2 * 0.36 * DELTA**2 * step / B**2 + 2 * P**2 * SIGMA**2 / B
    )
    assert lemmas.progress(slope, e, GAMMA) == pytest.approx(GAMMA**2 * (slope / 4 - e))
    assert lemmas.inexact_progress(slope, e, GAMMA, 0.2) == pytest.approx(GAMMA**2 * (slope / 5 - e - 0.04))
    assert lemmas.relative_progress(slope, e, GAMMA) == pytest.approx(GAMMA**2 * (slope / 5 - 0.8 * e))
    assert (lemmas.averaged_similarity(DELTA, B), lemmas.averaged_similarity(DELTA, B, "paper")) == (DELTA, DELTA / B)


def test_orders_and_promises_by_hand():
    noise = SIGMA**2 / B + DELTA * SIGMA * GAP / B / 0.1
    assert complexity.order(KNOWN, 0.01, cohort=B) == pytest.approx((DELTA * GAP + noise) / 0.01)
    noise = SIGMA**2 / B + DELTA * SIGMA * GAP / math.sqrt(B) / 0.1
    assert complexity.order(KNOWN, 0.01, cohort=B, version="paper") == pytest.approx((DELTA * GAP + noise) / 0.01)
    assert complexity.printed_varying_order(0.01) == pytest.approx(0.001)
    made = complexity.promise(KNOWN, 101, cohort=B)
    assert (made.exchanges, made.rounds) == (50, 51)
    gamma, p = made.parameters.step_size(0), made.parameters.fresh_weight(0)
    error = SIGMA**2 / (B * 50)
    by_hand = 32 * GAP / (gamma * 51) + 30 * error / ((2 * p - p**2) * 51) + 60 / (2 - p) * p * SIGMA**2 / B
    assert made.bound == pytest.approx(by_hand)
    least = complexity.trips_needed(KNOWN, 1.0, cohort=B)
    assert (
        complexity.promise(KNOWN, least, cohort=B).bound <= 1.0 < complexity.promise(KNOWN, least - 1, cohort=B).bound
    )


def test_premises_name_each_condition_alone():
    limit = 1 / (4 * DELTA)
    least = rules.least_fresh_weight(limit, DELTA, B)
    assert rules.premises(KNOWN, limit, least, cohort=B) == []
    assert rules.premises(KNOWN, 1.001 * limit, 0.999, cohort=B)[0].startswith("step size")
    assert rules.premises(KNOWN, limit, 0.999 * least, cohort=B)[0].startswith("fresh_weight")
    assert rules.premises(KNOWN, limit, least, cohort=B - 0.1)[0].startswith("fresh_weight")
    smooth = Constants(delta=DELTA, smoothness=3.0)
    assert rules.premises(smooth, 1 / (4 * 5.0), 0.99, averaged=True) == []
    assert "delta + rho" in rules.premises(smooth, 1.001 / (4 * 5.0), 0.99, averaged=True)[0]
    convex = Constants(delta=DELTA, smoothness=3.0, weak_convexity=0.0)
    assert rules.premises(convex, limit, 0.99, averaged=True) == []


# --- gradients ---


class Counting:
    """A handle that asks one client after another and counts the calls of their losses."""

    def __init__(self, method, population, x):
        draws = Draws(population)
        self.sample, self.everyone, self.client = draws.sample, draws.everyone, draws.client
        self._population, self._memory = population, [method.client_state(x)] * population.size
        self.calls = self.accepted = 0
        self.population_size = population.size

    def collect(self, cohort, work, /, **message):
        replies = []
        for id in map(int, cohort.ids):
            oracle = CountedOracle(self._population.client(id), self)
            if terms_of(work).stateful:
                reply, self._memory[id] = work(oracle, cohort.key, self._memory[id], **message)
            else:
                reply = work(oracle, cohort.key, **message)
            replies.append(reply)
        self.accepted = cohort.size
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *replies), jnp.ones(cohort.size, bool)

    def mean(self, cohort, work, /, **message):
        return jax.tree.map(lambda leaf: leaf.mean(0), self.collect(cohort, work, **message)[0])

    def cond(self, predicate, yes, no):
        return yes() if predicate else no()


class CountedOracle:
    def __init__(self, client, counter):
        self._client, self._counter = client, counter

    def __call__(self, params, key=None):
        self._counter.calls += 1
        return self._client(params, key)

    def __getattr__(self, name):
        return getattr(self._client, name)


TWO_STEPS = GradientDescent(steps=2)
MOVED = {
    "spam_pp": lambda movers: dataclasses.replace(spam_pp(3, 0.1, 0.3, solver=TWO_STEPS), movers=movers),
    "Factored": lambda movers: Factored(MVR(Constant(0.3)), TWO_STEPS, Constant(0.1), movers=movers, cohort_size=3),
}
# calls at a point whose gradient the client has from before, which count once, and losses that a line search looks at
AGAIN = {
    "feddyn": 4,
    "fedprox": 4,
    "fedexprox": 4,
    "sppm": 1,
    "auto_steps": 144,  # 4 clients, 20 halvings, 8 steps to find the rate and 8 more
    "mime": 4,
    "mime_momentum": 4,
    "mime_adam": 4,
}


@pytest.fixture(scope="module")
def clients():
    return quadratics(jax.random.key(0), clients=10, dimension=2, delta=0.1, condition=4.0, curvature=0.25, noise=0.1)


def gradients(method, clients):
    """As a round says, and as its clients are asked for."""
    x = jnp.ones(2)
    fed = Counting(method, clients, x)
    with jax.disable_jit():  # loops run in Python, and every step calls the loss
        state = method.init(x, jax.random.key(3), fed)
        fed.calls = 0
        _, info = method.round(state, jax.random.key(1), fed)
    return float(info.gradients), fed.calls


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_round_evaluates_the_gradients_that_it_counts(name, clients):
    said, done = gradients(METHODS[name].make(), clients)
    assert said == done - AGAIN.get(name, 0)


@pytest.mark.parametrize("movers", ["one", "fresh", "second", "average"])
@pytest.mark.parametrize("name", MOVED)
@pytest.mark.slow
def test_the_gradients_of_all_movers_are_counted(name, movers, clients):
    said, done = gradients(MOVED[name](movers), clients)
    assert said == done
    # two of every member of the cohort, and equally many of each mover
    assert (said - 6) % (3 if movers in ("second", "average") else 1) == 0

"""Rules against wrong replies: what they compute, what they withstand, and that every handle uses them alike."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from scipy import optimize

from fedspam import Faults, simulate, spam_pp, spam_ppa
from fedspam._internal import trees
from fedspam.clients.faults import Drift, Huge, SignFlip
from fedspam.federation import loopback
from fedspam.federation.aggregation import CenteredClipping, Clipped, GeometricMedian, Mean, Median, TrimmedMean
from fedspam.federation.traced import Traced
from fedspam.methods import Factored, proxy_prox, scaffold
from fedspam.methods.estimators import CohortGradient
from fedspam.methods.schedules import Constant
from fedspam.problems import quadratics
from fedspam.solvers import Exact

pytestmark = pytest.mark.x64  # sums in another order, to the last digits

RULES = [Mean(), Clipped(1.5), TrimmedMean(0.3), Median(), GeometricMedian(40), CenteredClipping(0.7, 5)]
ROBUST = [TrimmedMean(0.4), Median(), GeometricMedian(40), CenteredClipping(1.0, 5)]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
every_robust_rule = pytest.mark.parametrize("rule", ROBUST, ids=lambda rule: type(rule).__name__)


def points(seed=0, count=9, dimension=4):
    return np.random.default_rng(seed).normal(size=(count, dimension))


@every_rule
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_neither_overflows_nor_changes_dtype(rule, dtype):
    """Sums and squares of these replies are beyond float16, the replies and the results are not."""
    replies = jnp.asarray(5000 + 100 * points(count=20, dimension=3), dtype)
    result = rule(replies, jnp.ones(20, bool))
    assert result.dtype == dtype
    right = numpy_rule(rule, np.float64(replies))
    np.testing.assert_allclose(np.float64(result), right, rtol=float(jnp.finfo(dtype).eps))


def numpy_rule(rule, v):
    """The definitions, written once more in NumPy for the replies that count."""
    clip = lambda u, limit: u * np.minimum(1, limit / np.linalg.norm(u, axis=1, keepdims=True))
    match rule:
        case Mean():
            return v.mean(0)
        case Clipped():
            return clip(v, rule.norm).mean(0)
        case TrimmedMean():
            cut = int(rule.share * len(v))
            return np.sort(v, axis=0)[cut : len(v) - cut].mean(0)
        case Median():
            return np.median(v, axis=0)
        case GeometricMedian():
            start = np.median(v, axis=0)
            total = lambda z: np.linalg.norm(v - z, axis=1).sum()
            return optimize.minimize(total, start, method="BFGS", options={"gtol": 1e-9}).x
        case CenteredClipping():
            z = np.median(v, axis=0)
            for _ in range(rule.iterations):
                z = z + clip(v - z, rule.radius).mean(0)
            return z
    raise AssertionError(rule)


@every_rule
@pytest.mark.parametrize("missing", [(), (0, 3), (1, 2, 8)])
@pytest.mark.slow
def test_it_computes_its_definition_of_the_replies_that_count(rule, missing):
    v = points()
    accepted = np.array([i not in missing for i in range(9)])
    replies = np.where(accepted[:, None], v, 0)  # a handle puts zeros where nothing counts
    np.testing.assert_allclose(
        rule(jnp.asarray(replies), jnp.asarray(accepted)), numpy_rule(rule, v[accepted]), atol=1e-6
    )


@every_rule
def test_the_order_of_replies_does_not_matter(rule):
    v, order = points(1), np.random.default_rng(2).permutation(9)
    yes = jnp.ones(9, bool)
    np.testing.assert_allclose(rule(jnp.asarray(v), yes), rule(jnp.asarray(v[order]), yes), rtol=1e-12, atol=1e-12)


@every_robust_rule
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(wrong=hnp.arrays(np.float64, (4, 3), elements=st.floats(-1e6, 1e6)), shift=st.floats(-100, 100))
@pytest.mark.slow
def test_a_minority_cannot_drag_it_away(rule, wrong, shift):
    """With 4 wrong replies of 11 the result stays as near to the honest ones as these are to each other."""
    honest = points(3, 7, 3) + shift
    together = jnp.concatenate([jnp.asarray(honest), jnp.asarray(wrong)])
    away = np.linalg.norm(rule(together, jnp.ones(11, bool)) - honest.mean(0))
    assert away < 3 * np.linalg.norm(honest - honest.mean(0), axis=1).max()


@pytest.mark.parametrize("attack", [lambda honest: -honest, lambda honest: -0.5 * honest.mean(0) + 0 * honest])
def test_replies_that_oppose_the_mean_move_centered_clipping_by_a_share_of_its_radius(attack):
    """Sign flips and inner-product attacks, where honest replies are almost equal: other rules do not move."""
    honest = np.ones(4) / 2 + 1e-3 * points(6, 11, 4)
    v, yes = jnp.asarray(np.concatenate([honest, attack(honest[:4])])), jnp.ones(15, bool)
    away = lambda rule: np.linalg.norm(rule(v, yes) - honest.mean(0))
    assert all(away(rule) < 3e-3 for rule in (TrimmedMean(0.4), Median(), GeometricMedian(40)))
    for radius in (0.3, 1.0):
        assert 0.9 < away(CenteredClipping(radius)) / (radius * 4 / 11) < 1.01
    assert away(CenteredClipping(3e-3)) < 3e-3  # about the distance between honest replies


def test_one_is_enough_to_drag_the_mean_away():
    v = points()
    v[0] = 1e6
    assert np.linalg.norm(Mean()(jnp.asarray(v), jnp.ones(9, bool))) > 1e5


def test_moving_all_replies_moves_the_result():
    v = points(4)
    for rule in (Mean(), TrimmedMean(0.2), Median(), GeometricMedian(10), CenteredClipping(0.5)):
        moved = rule(jnp.asarray(v + 100), jnp.ones(9, bool))
        np.testing.assert_allclose(moved, rule(jnp.asarray(v), jnp.ones(9, bool)) + 100, rtol=1e-9)


class Report(NamedTuple):
    report = True
    steps: jax.Array


class Reply(NamedTuple):
    x: dict
    about: Report
    count: jax.Array


@every_rule
@pytest.mark.slow
def test_replies_of_any_shape(rule):
    """All arrays of a reply form one vector; reports and whole numbers are averaged."""
    v = points(5, 6, 7)
    reply = Reply(
        {"a": jnp.asarray(v[:, :6].reshape(6, 2, 3)), "b": jnp.asarray(v[:, 6])},
        Report(jnp.arange(6.0)),
        jnp.arange(6),
    )
    result = rule(reply, jnp.ones(6, bool))
    flat = rule(jnp.asarray(v), jnp.ones(6, bool))
    np.testing.assert_allclose(np.append(result.x["a"].ravel(), result.x["b"]), flat, rtol=1e-12)
    assert (result.about.steps, result.count) == (2.5, 2.5)


@every_rule
def test_float32_stays_float32_inside_compiled_code(rule):
    result = jax.jit(lambda rule, replies: rule(replies, jnp.ones(4, bool)))(rule, jnp.full((4, 2), 0.5, jnp.float32))
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, [0.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Clipped(0.0), "norm = 0.0"),
        (lambda: TrimmedMean(0.5), "use Median"),
        (lambda: TrimmedMean(-0.1), "share = -0.1"),
        (lambda: GeometricMedian(0), "iterations = 0"),
        (lambda: CenteredClipping(-1.0), "radius = -1.0"),
        (lambda: Faults(adversarial=1.5), "adversarial = 1.5"),
    ],
)
def test_impossible_rules_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


# --- in a simulation ---


@pytest.fixture(scope="module")
def clients():
    return quadratics(jax.random.key(0), clients=30, dimension=4, delta=0.1, condition=4.0, noise=0.05)


METHOD = spam_ppa(15, 0.8, 0.3, solver=Exact(), start="zero")


def distance(clients):
    return lambda x: {"norm": jnp.linalg.norm(clients.gradient(x))}


@pytest.mark.slow
def test_the_mean_as_a_rule_is_the_mean(clients):
    plain = simulate(METHOD, clients, jnp.ones(4), rounds=8, key=2)
    ruled = simulate(METHOD, clients, jnp.ones(4), rounds=8, key=2, aggregate=Mean())
    np.testing.assert_allclose(ruled.params, plain.params, rtol=1e-12)
    np.testing.assert_array_equal(ruled.rows["bytes_up"], plain.rows["bytes_up"])


@pytest.mark.slow
def test_over_bytes_it_is_the_same(clients):
    run = simulate(METHOD, clients, jnp.ones(4), rounds=4, key=2, aggregate=Median())
    state, fed = loopback.run(METHOD, clients, jnp.ones(4), rounds=4, key=2, aggregate=Median())
    np.testing.assert_allclose(METHOD.params(state), run.params, rtol=1e-12)
    start = sum(exchange.cohort * exchange.bytes_up for exchange in run.plan.start)
    assert fed.bytes_up == run.rows["bytes_up"].sum() + start


@pytest.mark.slow
@pytest.mark.parametrize("attack", [SignFlip(10.0), Huge(1e4)], ids=lambda attack: type(attack).__name__)
def test_with_a_rule_it_converges_and_without_it_does_not(clients, attack):
    faults = Faults(adversarial=0.2, attack=attack)
    assert int(faults.is_adversary(jnp.arange(30, dtype=jnp.uint32)).sum()) == 6
    norms = [
        simulate(
            METHOD, clients, jnp.ones(4), rounds=100, key=2, faults=faults, aggregate=rule, probe=distance(clients),
            every=5, record=(),
        ).probes["norm"]
        for rule in (Median(), None)
    ]  # fmt: skip
    first = np.linalg.norm(clients.gradient(jnp.ones(4)))
    assert np.median(norms[0][-5:]) < 0.1 * first
    assert not np.median(norms[1][-5:]) < 0.3 * first


@pytest.mark.slow
def test_the_prox_of_a_trusted_client_needs_fewer_rounds_than_robust_gradient_descent():
    """Alike clients with a bad condition, 6 of 30 attack: 20 times fewer, and without a rule it never arrives."""
    alike = quadratics(jax.random.key(1), clients=30, dimension=4, delta=0.1, condition=100.0, noise=0.01)
    faults = Faults(adversarial=0.2, attack=SignFlip(10.0))
    attacks = np.asarray(faults.is_adversary(jnp.arange(30, dtype=jnp.uint32)))
    hessian, linear = (jnp.mean(part[~attacks], axis=0) for part in (alike.hessians, alike.linears))
    norm = lambda x: float(jnp.linalg.norm(hessian @ x - linear))  # of the honest clients
    step = Constant(1 / float(jnp.linalg.eigvalsh(hessian)[-1]))
    descent = Factored(CohortGradient(), None, step, movers="server", cohort_size=None)
    proxied = proxy_prox(None, 1 / 0.1, proxy=int(np.argmin(attacks)), solver=Exact())

    @jax.jit
    def round(method, rule, state, key):
        return method.round(state, key, Traced(alike, faults=faults, aggregate=rule))[0]

    def rounds(method, rule):
        key, start = jax.random.key(2), jnp.ones(4)
        state = method.init(start, key, Traced(alike))
        for k in range(200):
            if norm(method.params(state)) < 0.001 * norm(start):
                return k
            state = round(method, rule, state, jax.random.fold_in(key, k))
        return np.inf

    assert rounds(proxied, TrimmedMean(0.2)) * 20 < rounds(descent, TrimmedMean(0.2)) < np.inf
    assert rounds(proxied, None) == np.inf


@pytest.mark.slow
def test_faults_and_quorum_apply_under_a_rule(clients):
    faults = Faults(dropout=0.3, nan=0.2)
    run = simulate(METHOD, clients, jnp.ones(4), rounds=100, key=2, faults=faults, aggregate=Median(), quorum=0.5)
    accepted = run.rows["difference.accepted"]
    assert abs(accepted.mean() / 15 - 0.5) < 0.05
    missed = (accepted < 8) | (run.rows["prox.accepted"] < 8)
    assert 0 < missed.sum() < 100
    np.testing.assert_array_equal(run.rows["void"], missed)
    assert np.isfinite(run.params).all()


@pytest.mark.slow
def test_a_quorum_is_not_raised_by_rounding(clients):
    """0.7 x 10 is a little more than 7 in floating point; seven replies are enough all the same."""
    method = spam_pp(10, 0.8, 0.3, solver=Exact(), start="zero")
    run = simulate(method, clients, jnp.ones(4), rounds=60, key=2, faults=Faults(dropout=0.3), quorum=0.7)
    seven = run.rows["difference.accepted"] == 7
    assert seven.any()
    np.testing.assert_array_equal(run.rows["void"][seven], run.rows["prox.accepted"][seven] == 0)


def test_adversaries_are_the_same_in_every_round():
    faults = Faults(adversarial=0.25)
    ids = jnp.arange(4000, dtype=jnp.uint32)
    mask = faults.is_adversary(ids)
    assert abs(float(mask.mean()) - 0.25) < 1e-3
    reply = {"x": jnp.ones(2)}
    for round in range(3):
        for id in (int(jnp.argmax(mask)), int(jnp.argmin(mask))):
            came, replied, timely = faults.strike(jax.random.key(round), jnp.uint32(id), reply)
            assert bool(replied & timely)
            np.testing.assert_array_equal(came["x"], -jnp.ones(2) if bool(mask[id]) else jnp.ones(2))


def test_attacks_leave_reports_alone():
    reply = Reply({"a": jnp.ones(2)}, Report(jnp.ones(())), jnp.ones((), int))
    for attack, value in ((SignFlip(3.0), -3.0), (Huge(7.0), 7.0), (Drift(0.5), 1.5)):
        came = attack(reply)
        np.testing.assert_array_equal(came.x["a"], np.full(2, value))
        assert (came.about.steps, came.count) == (1, 1)


def test_the_strength_of_a_rule_is_traced(clients):
    """One trace serves all radii, as it does all step sizes."""
    rules = [Clipped(1.0), Clipped(2.0)]
    assert jax.tree.structure(rules[0]) == jax.tree.structure(rules[1])
    assert jax.tree.leaves(rules[1]) == [2.0]
    assert dataclasses.replace(rules[0], norm=2.0).norm == 2.0


def test_methods_with_memory_under_a_rule(clients):
    method = scaffold(10, local_steps=2, local_rate=0.3)
    run = simulate(
        method, clients, jnp.ones(4), rounds=30, key=1, aggregate=GeometricMedian(4), probe=distance(clients)
    )
    assert run.probes["norm"][-1] < 0.3 * run.probes["norm"][0]


@pytest.mark.parametrize(("wrong", "count"), [(7, 23), (3, 37), (3, 47), (1, 49), (100, 1001)])
@pytest.mark.slow
def test_a_share_of_f_over_n_trims_exactly_f(wrong, count):
    """In floats f / n times n may be slightly below f; rounding down would let a wrong reply through."""
    replies = jnp.where(jnp.arange(count) < wrong, 1e9, 1.0).astype(jnp.float32)
    for share in (wrong / count, jnp.float32(wrong / count)):  # in float32, other numbers are rounded down
        assert float(TrimmedMean(share)(replies, jnp.ones(count, bool))) == 1.0


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_trimmed_mean_never_trims_all(count):
    """Just below one half, the share of two replies rounds up to one on each side."""
    replies = jnp.array([1.0, 3.0, 9.0, 9.0])
    assert float(TrimmedMean(0.4999)(replies, jnp.arange(4) < count)) == {1: 1.0, 2: 2.0, 4: 6.0}[count]


def test_finite_half_precision_numbers_are_finite():
    """Their squares overflow in half precision."""
    assert bool(trees.finite(jnp.full(8, 60_000.0, jnp.float16)))
    assert not bool(trees.finite(jnp.array([1.0, jnp.inf], jnp.float16)))

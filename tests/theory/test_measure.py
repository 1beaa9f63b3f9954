"""Measured constants against known ones: accuracy, coverage of the intervals, cost, and the same over real bytes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedspam import Generated, Hosted
from fedspam.app.cli import main
from fedspam.app.named_problems import of_quadratics
from fedspam.federation import ledger
from fedspam.federation.traced import Traced
from fedspam.problems import Quadratics, quadratics, solve, synthetic_logistic
from fedspam.theory import measure
from fedspam.theory._lanczos import ritz
from fedspam.theory.curvature import Hessian, Similarity
from fedspam.theory.intervals import mean_interval, missed, root_mean_interval, spread_interval
from fedspam.theory.measure import hessian_ends, mean_square_root, secant_of, similarity
from fedspam.theory.spread import Spread, secant_squares, spread_squares

pytestmark = pytest.mark.x64  # constants measured to the last digits

TRIALS = 100


@pytest.fixture(scope="module")
def clients():
    """60 clients in 12 dimensions, more than Lanczos takes steps below."""
    return quadratics(5, clients=60, dimension=12, delta=0.3, condition=20.0, noise=0.7)


def states(method, clients, rounds, point=None, trials=TRIALS):
    """The last states of many trials, side by side under vmap; the draws are those of `simulate`."""
    point = jnp.ones(clients.dimension) if point is None else point

    @jax.jit
    @jax.vmap
    def trial(key):
        state = method.init(point, jax.random.fold_in(key, 2**32 - 1), Traced(clients))
        step = lambda k, state: method.round(state, jax.random.fold_in(key, k), Traced(clients))[0]
        return jax.lax.fori_loop(0, rounds, step, state)

    found = trial(jax.vmap(jax.random.key)(jnp.arange(trials)))
    return [jax.tree.map(lambda leaf: np.asarray(leaf[number]), found) for number in range(trials)]


# --- accuracy and coverage ---


@pytest.mark.slow
def test_delta_is_within_five_percent_and_covered(clients):
    """7 steps in 12 dimensions, 8 candidates of 60: the random start and the choice of candidates both matter."""
    found = states(Similarity(steps=7, candidates=8), clients, 7)
    estimates = [similarity(state, 12) for state in found]
    assert all(abs(each.value / clients.delta - 1) < 0.05 for each in estimates)
    assert all(each.value <= clients.delta * (1 + 1e-9) for each in estimates)
    assert sum(each.covers(clients.delta) for each in estimates) >= 90
    assert np.median([each.high / each.low for each in estimates]) < 3  # 7 steps cannot promise more


@pytest.mark.slow
def test_extreme_curvatures_are_covered(clients):
    found = states(Hessian(steps=8), clients, 8)
    ends = [hessian_ends(state, 12) for state in found]
    assert sum(low.covers(clients.lowest_curvature) for low, _ in ends) >= 90
    assert sum(high.covers(clients.smoothness) for _, high in ends) >= 90
    assert all(abs(high.value / clients.smoothness - 1) < 0.05 for _, high in ends)


@pytest.mark.slow
def test_delta_in_mean_square_is_within_five_percent_and_covered(clients):
    found = states(Hessian(steps=8, mean_square=True), clients, 8)
    estimates = [mean_square_root(state, 12, 0.05, 60, 60) for state in found]
    assert all(abs(each.value / clients.delta_rms - 1) < 0.05 for each in estimates)
    assert sum(each.covers(clients.delta_rms) for each in estimates) >= 90


@pytest.mark.slow
@pytest.mark.parametrize("cohort", [10, 30])
def test_sigma_is_covered_by_intervals_from_cohorts(clients, cohort):
    """From 10 and from 30 of the 60 clients; and narrow enough to tell something."""
    point = jnp.ones(12)
    found = states(Spread(clients=cohort), clients, 1)
    truth = float(clients.sigma(point))
    estimates = [spread_interval(state.deviations.here, 0.95, 60) for state in found]
    assert sum(each.covers(truth) for each in estimates) >= 90
    assert np.median([each.high / each.low for each in estimates]) < (2.5 if cohort == 10 else 1.5)
    assert np.mean([each.value for each in estimates]) == pytest.approx(truth, rel=0.05)
    # the secant along the gradient: of a quadratic it is |(H_i - H) v| whatever its length
    gradient = clients.gradient(point)
    v = gradient / jnp.linalg.norm(gradient)
    along = float(jnp.sqrt(jnp.mean(jnp.sum(((clients.hessians - clients.hessians.mean(0)) @ v) ** 2, axis=1))))
    estimates = [secant_of(state, 0.95, 60) for state in found]
    assert sum(each.covers(along) for each in estimates) >= 90
    assert along < clients.delta_rms < clients.delta


@pytest.mark.slow
def test_sigma_of_an_endless_population_is_covered():
    """Clients at normal centres with lognormal weights: skewed, as squared norms are. sigma² = 4 E[w²] at 0."""
    make = lambda key: jax.random.normal(key, (4,)) * jnp.exp(0.25 * jax.random.normal(jax.random.fold_in(key, 1)))
    clients = Generated(make=make, loss=lambda x, centre: 0.5 * jnp.sum((x - centre) ** 2))
    truth = np.sqrt(4 * np.exp(2 * 0.25**2))
    found = states(Spread(clients=25), clients, 1, jnp.zeros(4))
    estimates = [spread_interval(state.deviations.here) for state in found]
    assert sum(each.covers(truth) for each in estimates) >= 90
    assert np.median([each.high / each.low for each in estimates]) < 1.8


@pytest.mark.slow
def test_intervals_from_samples_cover_extreme_eigenvalues():
    """delta in mean square, L and the lowest curvature from 30 of 120 clients, in six whole measurements."""
    clients = quadratics(6, clients=120, dimension=6, delta=1.0, condition=4.0, noise=0.5)
    found = [measure(clients, jnp.zeros(6), clients=30, seed=100 * trial, candidates=4) for trial in range(6)]
    assert sum(each.delta_rms.covers(clients.delta_rms) for each in found) >= 5
    assert sum(each.smoothness.covers(clients.smoothness) for each in found) >= 5
    assert sum(each.lowest_curvature.covers(clients.lowest_curvature) for each in found) >= 5
    assert np.mean([each.delta_rms.value for each in found]) == pytest.approx(clients.delta_rms, rel=0.1)
    assert np.median([each.delta_rms.high / each.delta_rms.low for each in found]) < 2


# --- on other problems, over other handles ---


@pytest.mark.slow
def test_logistic_regression_as_its_closed_form_has_it():
    clients = synthetic_logistic(0, clients=7, dimension=5, nonconvex=True)
    start, known = jnp.zeros(5), solve(clients, np.zeros(5))
    ids = jnp.arange(7, dtype=jnp.uint32)
    hessians = np.asarray(jax.vmap(lambda id: jax.hessian(clients.client(id))(start))(ids))
    truth = np.abs(np.linalg.eigvalsh(hessians - hessians.mean(0))).max()
    (apart,) = states(Similarity(steps=5), clients, 5, start, trials=1)
    found = similarity(apart, 5)
    assert found.value == pytest.approx(truth, rel=1e-9)
    assert found.covers(truth)
    assert found.value <= known.delta * (1 + 1e-9)  # which is the larger of those at the start and at the end


@pytest.mark.slow
def test_an_outlier_is_found_among_many():
    """One of 100 clients has a spike of 1 in one of 40 directions, all others deviate by 0.4 in all of them."""
    random = np.random.default_rng(0)
    deviations = random.standard_normal((100, 40, 40))
    deviations += deviations.swapaxes(1, 2)
    spike = random.standard_normal(40)
    spike /= np.linalg.norm(spike)
    deviations *= 0.4 / np.abs(np.linalg.eigvalsh(deviations)).max()
    deviations[17] = np.outer(spike, spike)
    deviations -= deviations.mean(0)
    clients = Quadratics.of(3 * np.eye(40) + deviations, np.zeros((100, 40)))
    found = states(Similarity(steps=16, candidates=8), clients, 16, trials=30)
    assert all(17 in state.candidates for state in found)
    estimates = [similarity(state, 40) for state in found]
    assert all(abs(each.value / clients.delta - 1) < 0.05 for each in estimates)
    assert sum(each.covers(clients.delta) for each in estimates) >= 27


def test_cost_is_what_the_methods_say():
    """Hessian: d + d floats down and d up, n clients; two gradients a product."""
    clients = quadratics(0, clients=6, dimension=4)
    point = jnp.zeros(4)
    (exchange,) = ledger.plan(Hessian(), point, clients).round
    assert (exchange.cohort, exchange.floats_down, exchange.floats_up) == (6, 8, 4)
    _, second = ledger.plan(Hessian(mean_square=True), point, clients).round
    assert (second.floats_down, second.floats_up) == (4, 4)  # x and the direction are there already
    (only,) = ledger.plan(Similarity(candidates=8), point, clients).round
    assert (only.cohort, only.floats_up) == (6, 6 * 4)
    mean, own = ledger.plan(Similarity(candidates=2), point, clients).round
    assert (mean.floats_up, own.cohort, own.floats_down) == (2 * 4, 2, 0)
    three = ledger.plan(Spread(), point, clients).round
    assert [exchange.floats_up for exchange in three] == [4, 4, 0]


def test_clients_outside_jax_are_measured_by_differences():
    clients = quadratics(3, clients=3, dimension=3, delta=0.5)
    hessians, linears = np.asarray(clients.hessians), np.asarray(clients.linears)

    def answer(id, params, seed):
        product = hessians[id] @ params
        return 0.5 * params @ product - linears[id] @ params, product - linears[id]

    hosted = Hosted(answer=answer, count=3)
    (state,) = states(Similarity(steps=3, secant=True), hosted, 3, jnp.ones(3), trials=1)
    assert similarity(state, 3).value == pytest.approx(clients.delta, rel=1e-5)


# --- the pieces ---


def test_lanczos_stops_where_the_start_reaches_no_further():
    clients = quadratics(0, clients=2, dimension=6, delta=0.0, condition=1.0, curvature=3.0, noise=0.0)
    (state,) = states(Hessian(steps=5), clients, 5, trials=1)
    found = ritz(state.krylov)
    assert (found.steps, found.exhausted) == (1, True)
    assert found.lowest == pytest.approx(3.0)
    low, high = hessian_ends(state, 6)
    assert high.high - low.low < 1e-9


def test_intervals_against_scipy():
    values = np.random.default_rng(0).standard_normal(20)
    low, high = stats.t.interval(0.95, 19, values.mean(), stats.sem(values))
    assert mean_interval(values)[1:] == pytest.approx((low, high), rel=1e-12)
    whole = mean_interval(values, population=20)
    assert whole.low == whole.value == whole.high
    assert root_mean_interval(np.zeros(5)) == (0, 0, 0)
    assert spread_interval(np.zeros(5)) == (0, 0, 0)


def test_the_jackknife_in_closed_form_is_the_jackknife():
    gradients = np.random.default_rng(1).standard_normal((9, 4))
    squares = spread_squares(gradients)
    logs = np.log([spread_squares(np.delete(gradients, i, 0)).sum() / 7 for i in range(9)])
    deviation = np.sqrt(8 / 9 * ((logs - logs.mean()) ** 2).sum())
    found = spread_interval(squares)
    assert np.log(found.high / found.value) == pytest.approx(stats.t.ppf(0.975, 8) * deviation / 2)
    assert found.value == pytest.approx(np.sqrt(squares.sum() / 8))


def test_secants_of_gradients_that_a_cohort_has():
    clients = quadratics(0, clients=30, dimension=5, delta=0.5)
    x, y = jnp.ones(5), jnp.zeros(5)
    gradients = [clients.hessians @ point - clients.linears for point in (y, x)]
    found = secant_squares(*gradients, step=y - x)
    deviations = (clients.hessians - clients.hessians.mean(0)) @ (y - x) / jnp.linalg.norm(y - x)
    assert found == pytest.approx(np.sum(np.asarray(deviations) ** 2, axis=1))
    assert np.sqrt(found.max()) < clients.delta
    with pytest.raises(ValueError, match="length 0"):
        secant_squares(*gradients, step=jnp.zeros(5))


def test_what_lanczos_may_miss_shrinks_with_steps():
    assert missed(10, 1000, 0.05) > missed(20, 1000, 0.05) > 0
    assert missed(20, 1000, 0.01) > missed(20, 1000, 0.05)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"clients": 2}, "clients = 2"),
        ({"steps": 1}, "steps = 1"),
        ({"confidence": 1.0}, "confidence = 1.0"),
        ({"params": jnp.array([jnp.nan])}, "NaN"),
    ],
)
def test_bad_arguments_are_named(clients, arguments, words):
    with pytest.raises(ValueError, match=words):
        measure(clients, **{"params": jnp.ones(12), **arguments})


def test_an_endless_population_must_be_sampled():
    clients = Generated(make=lambda key: jax.random.normal(key, (2,)), loss=lambda x, c: jnp.sum((x - c) ** 2))
    with pytest.raises(ValueError, match="endless"):
        measure(clients, jnp.zeros(2))


# --- the command ---


@pytest.fixture
def small(monkeypatch):
    clients = quadratics(1, clients=5, dimension=3, delta=0.5, noise=1.0)
    problem = of_quadratics("ridge", "five small quadratics", clients, np.ones(3))
    monkeypatch.setattr("fedspam.app.theory.measure.load", lambda name, folder: problem)
    return clients


@pytest.mark.slow
def test_the_command_prints_constants_and_cost_and_sends_what_it_simulates(small, capsys):
    """The same numbers and the same bytes from the simulation and from messages that are really encoded."""
    found, sent = {}, {}
    for where, words in ((found, []), (sent, ["--wire"])):
        assert main(["measure", "--problem", "ridge", "--json", *words]) == 0
        where.update(json.loads(capsys.readouterr().out))
    for name in ("delta", "delta_rms", "delta_secant", "sigma", "smoothness", "lowest_curvature"):
        assert sent[name] == pytest.approx(found[name], rel=1e-9)
    assert (sent["costs"], sent["population"], sent["worst_client"]) == (found["costs"], 5, found["worst_client"])
    assert found["delta"]["value"] == pytest.approx(small.delta, rel=1e-6)
    assert found["delta"]["low"] <= small.delta <= found["delta"]["high"]
    assert found["sigma"]["value"] == pytest.approx(float(small.sigma(jnp.ones(3))))
    assert found["cost"]["gradients"] == sum(part["gradients"] for part in found["costs"].values()) > 0
    assert main(["measure", "--problem", "ridge"]) == 0
    printed = capsys.readouterr().out
    assert "client gradients" in printed
    assert "γ ≤ 0.5" in printed


@pytest.mark.parametrize("words", [["--problem", "rigde"], ["--confidence", "2"], ["--clients", "1"]])
def test_the_command_refuses(words, capsys):
    with pytest.raises(SystemExit) as left:
        main(["measure", *words])
    assert left.value.code == 2
    assert words[1] in capsys.readouterr().err

"""Local steps that need no parameters: one round by hand, units, weights, zero directions, and when `auto` is them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Ragged, simulate
from fedspam.clients import DataOracle
from fedspam.federation import fitted, ledger
from fedspam.methods import Auto, AutoSteps, auto, auto_steps
from fedspam.methods.auto_steps import Walked
from fedspam.problems import quadratics

CLIENTS = quadratics(0, clients=4, dimension=3, delta=0.5, noise=1.0)
START = jnp.array([3.0, -1.0, 2.0])


def walked(hessian, linear, z, rate, damping, trials):
    """What a client does, in NumPy: the loss is x'Hx/2 - l'x."""
    loss = lambda y: 0.5 * y @ hessian @ y - linear @ y
    slope = lambda y: hessian @ y - linear
    if rate == 0:
        rate = found(loss, slope, z, damping, trials)
    y, now, met, ys, falls, linears, refused = z, rate, [], [], 0, 0, 0
    for _ in range(trials):
        d = slope(y)
        met.append(loss(y))
        after = loss(y - now * d)
        if after <= max(loss(y), np.mean(met) + np.std(met)):
            falls, linears = falls + loss(y) - after, linears + now * d @ d
            y, now = y - damping * now * d, min(1.2 * now, rate)
        else:
            now, refused = now / 2, refused + 1 / trials
        ys.append(y)
    return np.mean(ys[-max(1, trials // 4) :], 0) - z, np.log(rate), falls / linears, refused


def found(loss, slope, z, damping, trials):
    """The rate that a client of the first round finds, by Armijo's rule."""
    d = slope(z)
    rate = (1 + np.linalg.norm(z)) / np.linalg.norm(d)
    while loss(z - rate * d) > loss(z) - 0.1 * rate * d @ d:
        rate /= 2
    y, rates, weights = z, [], []
    for _ in range(trials):
        d = slope(y)
        fall = loss(y) - loss(y - rate * d)
        enough = fall >= 0.1 * rate * d @ d
        rates.append(rate)
        weights.append(fall if enough else 0.0)
        y, rate = (y - damping * rate * d, 1.2 * rate) if enough else (y, rate / 2)
    return np.exp(np.average(np.log(rates), weights=weights))


@pytest.mark.slow
def test_three_rounds_by_hand():
    run = simulate(auto_steps(4, trials=8), CLIENTS, START, rounds=3, key=0)
    x = average = np.asarray(START)
    velocity, rate, damping = np.zeros(3), 0.0, 1.0
    hessians, linears = np.asarray(CLIENTS.hessians), np.asarray(CLIENTS.linears)
    for k in range(3):
        replies = [walked(*own, x + 0.7 * velocity, rate, damping, 8) for own in zip(hessians, linears, strict=True)]
        move, log_rate, quality, refused = (np.mean(each, 0) for each in zip(*replies, strict=True))
        np.testing.assert_allclose(run.rows["damping"][k], damping, rtol=1e-9)
        if k:
            cosine = move @ velocity / np.linalg.norm(move) / np.linalg.norm(velocity)
            damping = np.clip(damping * np.exp((cosine - 0.1) / 2), 1 / np.sqrt(k + 2), 1)
        velocity = 0.7 * velocity + move
        x = x + velocity
        average = average + 9 / (k + 9) * (x - average)
        rate = rate * np.clip(0.1 / (1 - quality), 1, 4) if k else np.exp(log_rate)
        assert refused <= 0.5
        np.testing.assert_allclose(run.rows["local_rate"][k], rate, rtol=1e-9)
        np.testing.assert_allclose(run.rows["quality"][k], quality, rtol=1e-9)
    np.testing.assert_allclose(run.params, average, rtol=1e-9)


def walk(loss, x, rate, dtype=jnp.float32):
    client = DataOracle(jnp.zeros(()), loss=lambda y, _: loss(y))
    start = jnp.asarray(x, dtype)
    reply = jax.jit(auto_steps(2).walk)(client, jax.random.key(0), x=start, rate=dtype(rate), damping=dtype(1))
    return start + reply.move, reply


@pytest.mark.parametrize("rate", [0.0, 0.5, 1e6])
def test_a_zero_direction_leaves_the_rate_alone(rate):
    y, reply = walk(lambda y: 0.0 * jnp.sum(y) + 1.0, [1.0, 2.0], rate)
    np.testing.assert_array_equal(y, [1.0, 2.0])
    np.testing.assert_allclose(jnp.exp(reply.rate), rate or 1.0, rtol=1e-5)
    assert (reply.quality, reply.refused) == (0, 0)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_rounding_cannot_mislead_the_rate(rate):
    """At the optimum of a loss of size 1, float32 hides every fall: the rate seems neither too small nor too large."""
    y, reply = walk(lambda y: 1.0 + 0.5 * jnp.sum(y**2), [1e-4, 0.0], rate)
    assert np.abs(y).max() <= 1e-4
    assert (reply.quality, reply.refused) == (0, 0)
    assert np.isfinite(reply.rate)


def test_a_step_into_nothing_is_not_taken():
    y, _ = walk(lambda y: jnp.sum(y - jnp.log(1 - y)), [0.5], 0.0)
    assert np.isfinite(y).all()
    assert (y < 1).all()


def test_a_client_that_is_steeper_than_the_others_does_not_leave():
    """A rate a thousand times too large: steps are refused until it is small enough."""
    y, reply = walk(lambda y: 500 * jnp.sum(y**2), [3.0, 4.0], 1.0)
    assert np.linalg.norm(y) < 5
    assert 10 / 60 < reply.refused < 0.5
    assert float(reply.rate) == 0  # the server's; its mean with others would tell nothing


def state(rate):
    method = auto_steps(2)
    return method, method.init(jnp.zeros(2), jax.random.key(0), None)._replace(rate=jnp.float64(rate))


@pytest.mark.parametrize(
    ("quality", "refused", "change"),
    [(0.5, 0.0, 1), (-3.0, 0.4, 1), (0.95, 0.0, 2), (1.2, 0.0, 4), (0.95, 0.1, 1), (0.95, 0.6, 0.5)],
)
def test_the_rate_changes_only_where_it_is_far_off(quality, refused, change):
    method, now = state(0.3)
    replies = Walked(None, None, jnp.float64(7), jnp.float64(quality), jnp.float64(refused))
    np.testing.assert_allclose(method._rate(now, replies), 0.3 * change, rtol=1e-12)


def test_the_first_clients_find_the_rate():
    method, now = state(0)
    np.testing.assert_allclose(method._rate(now, Walked(None, None, jnp.log(0.2), 1.0, 0.9)), 0.2, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e38, np.nan])
def test_a_first_minibatch_without_a_finite_gradient_spoils_no_other(scale):
    """The first rate is sought on it. If it tells nothing, the next minibatch begins the search."""
    key = jax.random.key(0)
    first = jax.random.key_data(jax.random.fold_in(key, 0))
    factor = lambda key: jnp.where(jnp.all(jax.random.key_data(key) == first), jnp.float32(scale), 1)
    client = DataOracle(jnp.zeros(()), loss=lambda y, _, key: factor(key) * 0.5 * jnp.sum(y**2), minibatch=True)
    x = jnp.array([30.0, 40.0], jnp.float32)
    reply = jax.jit(auto_steps(2).walk)(client, key, x=x, rate=jnp.float32(0), damping=jnp.float32(1))
    assert np.isfinite(reply.rate)
    assert jnp.linalg.norm(x + reply.move) < 25


@pytest.mark.slow
def test_units_do_not_matter():
    """The same iterates for f and for 1024 f."""
    scaled = jax.tree.map(lambda leaf: 1024 * leaf, CLIENTS)
    ours, theirs = (simulate(auto_steps(2), each, START, rounds=5, key=0).params for each in (CLIENTS, scaled))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def ragged(**options):
    """Two clients who pull to 0 and to 1; the second has three times the rows."""
    loss = lambda x, rows: 0.5 * jnp.sum((rows - x) ** 2, axis=1)
    return Ragged.of([jnp.zeros((4, 2)), jnp.ones((12, 2))], loss, **options)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.slow
def test_examples_weigh_where_the_objective_says_so(weighted):
    run = simulate(auto(2), ragged(batch=2, weighted=weighted), jnp.full(2, 5.0), rounds=8, key=0)
    np.testing.assert_allclose(run.params, 0.75 if weighted else 0.5, atol=0.05)


def test_auto_is_these_steps_where_clients_draw_minibatches():
    sampled, whole = ragged(batch=2), ragged()
    assert isinstance(fitted(auto(2), sampled), AutoSteps)
    assert isinstance(fitted(auto(2), whole), Auto)
    assert isinstance(fitted(auto(2), ragged(batch=12)), Auto)  # every minibatch is all of the rows
    assert isinstance(fitted(auto(2, movers="one"), sampled), Auto)
    assert isinstance(auto(2, minibatches=True), AutoSteps)
    (only,) = ledger.plan(auto(2), jnp.zeros(2), sampled).round
    assert (only.floats_down, only.floats_up) == (2, 2)
    assert len(ledger.plan(auto(2), jnp.zeros(2), whole).round) == 2

"""Local steps that need no parameters: one round by hand, units, weights, zero directions, and when `auto` is them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Ragged, simulate
from fedspam._internal.trees import struct
from fedspam.clients import DataOracle
from fedspam.federation import fitted, ledger
from fedspam.methods import Auto, AutoSteps, auto, auto_steps
from fedspam.methods.auto_steps import Numbers
from fedspam.problems import quadratics

pytestmark = pytest.mark.x64  # rounds by hand and identities, to the last digits

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
@pytest.mark.parametrize("first", [0.0, 3.0, 0.001])  # found by the clients, too large, too small
def test_rounds_by_hand(first):
    """The same as in NumPy, with a rate that steps refuse, and with one that grows."""
    rounds, trials = 6, 12
    run = simulate(Begun(4, trials, first=first), CLIENTS, START, rounds=rounds, key=0)
    x = average = np.asarray(START)
    velocity, rate, damping = np.zeros(3), first, 1.0
    hessians, linears = np.asarray(CLIENTS.hessians), np.asarray(CLIENTS.linears)
    for k in range(rounds):
        own = zip(hessians, linears, strict=True)
        replies = [walked(*each, x + 0.7 * velocity, rate, damping, trials) for each in own]
        move, log_rate, quality, refused = (np.mean(each, 0) for each in zip(*replies, strict=True))
        np.testing.assert_allclose(run.rows["damping"][k], damping, rtol=1e-9)
        np.testing.assert_allclose(run.rows["quality"][k], quality, rtol=1e-9)
        np.testing.assert_allclose(run.rows["refused"][k], refused, rtol=1e-9)
        if k:
            cosine = move @ velocity / np.linalg.norm(move) / np.linalg.norm(velocity)
            damping = np.clip(damping * np.exp((cosine - 0.1) / 2), 1 / np.sqrt(k + 2), 1)
        velocity = 0.7 * velocity + move
        x = x + velocity
        average = average + 9 / (k + 9) * (x - average)
        growth = np.clip(0.1 / max(1 - quality, 1e-30), 1, 4) if refused == 0 else 1
        rate = rate * (0.5 if refused > 0.5 else growth) if rate else np.exp(log_rate)
        np.testing.assert_allclose(run.rows["local_rate"][k], rate, rtol=1e-9)
    np.testing.assert_allclose(run.params, average, rtol=1e-9)
    free = (run.rows["damping"] < 1) & (run.rows["damping"] > 1 / np.sqrt(np.arange(rounds) + 1))
    assert {0.0: free.any(), 3.0: refused_some(run), 0.001: run.rows["local_rate"][-1] > 0.01}[first]


def refused_some(run):
    return 0 < run.rows["refused"].max() < 1


@struct
class Begun(AutoSteps):
    """The same method with another rate to begin with."""

    first: float = 0.0

    def init(self, params, key, fed):
        return AutoSteps.init(self, params, key, fed)._replace(rate=jnp.asarray(self.first))


def walk(loss, x, rate, dtype=jnp.float32, trials=60, key=False):
    """Where a client ends, and the numbers it sends. With `key`, the loss takes one as well."""
    client = DataOracle(jnp.zeros(()), loss=lambda y, _, *sample: loss(y, *sample) if key else loss(y), minibatch=key)
    start = jnp.asarray(x, dtype)
    wide = jnp.promote_types(dtype, jnp.float32)
    method = auto_steps(2, trials=trials)
    reply = jax.jit(method.walk)(
        client, jax.random.key(0), x=start, rate=jnp.asarray(rate, wide), damping=jnp.asarray(1, wide)
    )
    return start + reply.move, Numbers(*map(float, reply.numbers))


def drawn(number, key):
    """Whether this key is that of minibatch `number` of the walks above."""
    wanted = jax.random.key_data(jax.random.fold_in(jax.random.key(0), number))
    return jnp.all(jax.random.key_data(key) == wanted)


@pytest.mark.parametrize("rate", [0.0, 0.5, 1e6])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_client_with_a_zero_direction_stays_and_has_no_say(rate, dtype):
    x = jnp.linspace(0.1, 9, 50).astype(dtype)  # many, since the mean of equal numbers is another one for a few only
    y, said = walk(lambda y: 0.0 * jnp.sum(y) + 1.0, x, rate, dtype)
    np.testing.assert_array_equal(y, x)
    assert said == Numbers(weight=1, heard=0, log_rate=0, quality=0, refused=0)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_rounding_cannot_mislead_the_rate(rate):
    """At the optimum of a loss of 200 rows, float32 hides every fall: nothing is heard, and nothing refused."""
    rows = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    loss = lambda y: 0.5 * jnp.mean(jnp.sum((rows - y) ** 2, axis=1))
    best = rows.mean(0)
    y, said = walk(loss, best, rate)
    np.testing.assert_allclose(y, best, atol=1e-3)
    assert said.refused == 0
    assert said.heard == 0 or 0.1 < np.exp(said.log_rate) < 10


def test_a_step_into_nothing_is_not_taken():
    y, _ = walk(lambda y: jnp.sum(y - jnp.log(1 - y)), [0.5], 0.0)
    assert np.isfinite(y).all()
    assert (y < 1).all()


def test_a_client_that_is_steeper_than_the_others_does_not_leave():
    """A rate a thousand times too large: steps are refused until it is small enough."""
    y, said = walk(lambda y: 500 * jnp.sum(y**2), [3.0, 4.0], 2.0)
    assert np.linalg.norm(y) < 5
    assert 10 / 60 < said.refused < 0.5
    np.testing.assert_allclose(np.exp(said.log_rate), 2, rtol=1e-6)  # that of the server


@pytest.mark.parametrize(("share", "refused"), [(0.5, 0), (0.99, 0), (1.01, 1)])
def test_a_loss_may_rise_to_one_deviation_above_the_mean(share, refused):
    """The client meets the losses 2, 0 and 0. The step after the third would end at this share of what is usual."""
    usual = np.mean([2, 0, 0]) + np.std([2, 0, 0])
    number = lambda key: jnp.argmax(jnp.stack([drawn(n, key) for n in range(3)]))

    def loss(y, key):
        after = jnp.where(y[0] < 0.5, share * usual, 0.0)  # y is 1, and 0 after a step of rate 1 along the slope 1
        third = after + y[0] - jax.lax.stop_gradient(y[0])
        return jnp.where(number(key) == 2, third, jnp.where(number(key) == 0, 2.0, 0.0))

    _, said = walk(loss, [1.0], 1.0, trials=3, key=True)
    np.testing.assert_allclose(said.refused, refused / 3, rtol=1e-6)


def test_a_damaged_minibatch_is_refused_alone():
    """A loss that is not a number on one minibatch leaves the others and the rate as they are."""
    whole = lambda y, key: 0.5 * jnp.sum(y**2)
    damaged = lambda y, key: jnp.where(drawn(5, key), jnp.nan, 1) * whole(y, key)
    (y, said), (same, rest) = (walk(loss, [3.0, 4.0], 0.01, key=True) for loss in (damaged, whole))
    assert said.refused == rest.refused == 0
    np.testing.assert_allclose(y, same, rtol=0.02)  # one step fewer of 60


def test_a_client_without_a_finite_loss_is_left_out():
    assert np.isnan(walk(lambda y: jnp.nan * jnp.sum(y), [1.0, 2.0], 0.1)[1]).all()


@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_losses_far_from_zero_are_judged_alike(offset):
    """The deviation of float32 losses is not lost in their mean."""
    loss = lambda level: lambda y, key: level + jax.random.normal(key) + 3 * jnp.sum(y**2)
    far, near = (walk(loss(level), [0.3], 0.5, key=True)[1].refused for level in (offset, 0.0))
    assert 0 < near < 1
    np.testing.assert_allclose(far, near, atol=0.1)


@pytest.mark.parametrize("scale", [1e38, np.nan])
def test_a_first_minibatch_without_a_finite_gradient_spoils_no_other(scale):
    """The first rate is sought on it. If it tells nothing, the next minibatch begins the search."""
    factor = lambda key: jnp.where(drawn(0, key), jnp.float32(scale), 1)
    y, said = walk(lambda y, key: factor(key) * 0.5 * jnp.sum(y**2), [30.0, 40.0], 0.0, key=True)
    assert said.heard == 1
    assert jnp.linalg.norm(y) < 25


def state(rate):
    method = auto_steps(2)
    return method, method.init(jnp.zeros(2), jax.random.key(0), None)._replace(rate=jnp.float64(rate))


@pytest.mark.parametrize(
    ("quality", "refused", "change"),
    [
        (0.5, 0, 1), (-3.0, 0.4, 1), (0.95, 0, 2), (1.2, 0, 4), (0.95, 0.01, 1), (0.95, 0.5, 1), (0.95, 0.51, 0.5),
    ],
)  # fmt: skip
def test_the_rate_changes_only_where_it_is_far_off(quality, refused, change):
    method, now = state(0.3)
    for heard in (1, 0.1):  # the share of the cohort that has something to say
        said = Numbers(1, heard, heard * 7, heard * quality, refused)
        np.testing.assert_allclose(method._rate(now, said), 0.3 * change, rtol=1e-12)


@pytest.mark.parametrize("heard", [1, 0.5])
def test_the_first_clients_find_the_rate(heard):
    method, now = state(0)
    said = Numbers(1, heard, heard * jnp.log(0.2), heard * 1.0, 0.9)
    np.testing.assert_allclose(method._rate(now, said), 0.2, rtol=1e-12)


def test_where_nobody_finds_a_rate_the_next_cohort_searches():
    method, now = state(0)
    assert method._rate(now, Numbers(1, 0, 0, 0, 0)) == 0


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
    (only,) = ledger.plan(auto(2), jnp.zeros(2), sampled).round
    assert (only.floats_down, only.floats_up) == (2, 2 + 5)
    assert len(ledger.plan(auto(2), jnp.zeros(2), whole).round) == 2

"""Parameters that choose themselves: invariances, safety, minibatch clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Ragged, simulate, simulate_many, spam_pp, spam_ppa
from fedspam.clients import DataOracle
from fedspam.federation.traced import Traced
from fedspam.methods import auto
from fedspam.models import mlp
from fedspam.problems import Quadratics, quadratics
from fedspam.solvers import Exact, GradientDescent, SampledSteps
from roundings import Rough

pytestmark = pytest.mark.x64  # rounds by hand and identities, to the last digits

PEOPLE = quadratics(0, clients=40, dimension=6, delta=1.0, noise=1.0)
START = jnp.full(6, 3.0)
MODEL = mlp(5, 3, hidden=(8,))


def clients(batch=4):
    """Twelve clients who mix three clusters in their own way."""
    random = np.random.default_rng(0)
    centres = 2 * random.normal(size=(3, 5))
    parts = []
    for _ in range(12):
        label = random.choice(3, size=random.integers(8, 20), p=random.dirichlet(np.ones(3)))
        features = centres[label] + random.normal(size=(len(label), 5))
        parts.append({"features": features.astype(np.float32), "label": label.astype(np.int32)})
    return Ragged.of(parts, MODEL.loss, batch=batch)


def loss(population, params):
    return np.mean([population.client(jnp.uint32(i))(params) for i in range(population.size)])


@pytest.mark.slow
@pytest.mark.parametrize("movers", ["average", "one"])
def test_scaling_f_changes_nothing(movers):
    """The same iterates for f and for 1000 f, up to rounding that the trust ratio's cancellations enlarge."""
    scaled = Quadratics.of(1000 * PEOPLE.hessians, 1000 * PEOPLE.linears)
    method = auto(5, solver=Exact(), movers=movers)
    ours, theirs = (simulate(method, population, START, rounds=15, key=0).params for population in (PEOPLE, scaled))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_the_cohort_size_is_all_it_needs():
    assert auto(5).movers == "average"
    with pytest.raises(ValueError, match="cohort_size = 1"):
        auto(1)


@pytest.mark.parametrize("build", [spam_pp, spam_ppa])
def test_spam_is_never_auto(build):
    """A constructor makes one kind of method: without its numbers it is an error, and not `auto`."""
    with pytest.raises(TypeError, match="'step_size' and 'fresh_weight'"):
        build(5)
    with pytest.raises(TypeError, match="'fresh_weight'"):
        build(5, 1.0)


@pytest.mark.slow
def test_a_cohort_of_everyone_has_no_noise():
    """Then g is the gradient: no error, and all of the weight on fresh gradients. Unless clients may come twice."""
    eight = Quadratics.of(PEOPLE.hessians[:8], PEOPLE.linears[:8])
    run = simulate(auto(8, solver=Exact()), eight, START, rounds=8, key=0)
    np.testing.assert_array_equal(run.rows["error"], 0)
    np.testing.assert_array_equal(run.rows["fresh_weight"], 1)
    assert np.linalg.norm(eight.gradient(run.params)) < 1e-3 * np.linalg.norm(eight.gradient(START))
    assert Traced(eight).population_size == 8
    assert Traced(Quadratics.of(eight.hessians, eight.linears, replace=True)).population_size is None


def counting():
    """Poisson regression: far from the optimum, losses explode, and soon they are not even finite."""
    random = np.random.default_rng(0)
    truth = 4 * random.normal(size=3)
    parts = []
    for _ in range(10):
        inputs = random.normal(size=(12, 3)) + random.normal(size=3)
        parts.append((inputs, random.poisson(np.exp(np.minimum(inputs @ truth, 3.0))).astype(float)))
    return Ragged.of(parts, lambda x, rows: jnp.exp(rows[0] @ x) - rows[1] * (rows[0] @ x))


@pytest.mark.slow
def test_a_run_that_has_converged_goes_on():
    """Once only rounding is left, every step looks bad: in float32 the step size fell to 0, and replies became NaN."""
    people = quadratics(0, clients=4, dimension=3, delta=0.5, noise=1.0)
    people = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.float64 else leaf, people)
    run = simulate(auto(4, solver=Exact()), people, jnp.full(3, 3.0, jnp.float32), rounds=400, key=0)
    assert run.status.kind == "completed"
    assert not run.rows["void"].any()
    assert run.rows["step_size"][-1] > 0


@pytest.mark.slow
def test_a_step_that_raises_f_is_taken_back():
    """Losses explode beyond some steps; without going back, the run ends in infinity."""
    population, start = counting(), jnp.zeros(3)
    run = simulate(auto(5), population, start, rounds=30, key=0)
    assert run.status.kind == "completed"
    assert loss(population, run.params) < loss(population, start) - 0.3


@pytest.mark.slow
@pytest.mark.parametrize("movers", ["average", pytest.param("one", marks=pytest.mark.thorough)])
def test_minibatch_clients_train_and_stay_finite(movers):
    """In the median of five runs: rounding alone moves a single run by a factor of ten."""
    population, start = clients(), MODEL.init(0)
    runs = simulate_many(auto(6, movers=movers), population, start, rounds=40, keys=range(5))
    assert runs.status.kind == "completed"
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(runs.params))
    ends = [loss(population, jax.tree.map(lambda leaf: leaf[0, seed], runs.params)) for seed in range(5)]
    assert np.median(ends) < (0.3 if movers == "average" else 0.7) * loss(population, start)


def test_a_server_that_does_not_see_minibatches_is_told():
    """Without a population, as on a Flower server, `auto` takes whole gradients; minibatch clients object."""
    oracle = clients().client(jnp.uint32(3))
    seed = jax.random.key_data(jax.random.key(1))
    with pytest.raises(ValueError, match=r"give it auto_steps\(4\)"):
        auto(4).begin(oracle, jax.random.key(1), x=MODEL.init(0), seed=seed)


@pytest.mark.slow
def test_gradients_see_all_of_a_minibatch_client():
    """The exchange of gradients is over a client's whole data, whichever minibatch the key would pick."""
    oracle, x = clients().client(jnp.uint32(3)), MODEL.init(0)
    seed = jax.random.key_data(jax.random.key(1))
    first, second = (auto(4, movers="one").begin(oracle, jax.random.key(k), x=x, seed=seed).g for k in (1, 2))
    whole = jax.grad(oracle)(x)
    jax.tree.map(np.testing.assert_array_equal, first, second)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), first, whole)


# --- minibatch steps -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1e-9, 0.1, 1e9])
def test_any_rate_finds_its_way(rate):
    """From a rate of 1e-9 or 1e9 most clients come down as far as from a good one, whatever minibatches they draw."""
    oracle, x = clients().client(jnp.uint32(3)), MODEL.init(0)
    g, solver = jax.grad(oracle)(x), SampledSteps(steps=300, rate=rate, reach=0.0)
    ends, last = jax.jit(jax.vmap(lambda key: solver.walk(oracle, key, x=x, g=g)))(
        jax.random.split(jax.random.key(0), 20)
    )
    assert np.median(jax.vmap(oracle)(ends)) < 0.3 * oracle(x)
    assert np.median(last) < 1e3


@pytest.mark.slow
def test_without_fading_they_are_corrected_steps():
    """With an endless reach and accepted steps: those of `GradientDescent` on minibatches."""
    oracle, x = clients().client(jnp.uint32(3)), MODEL.init(0)
    g, key = jax.grad(oracle)(x), jax.random.key(5)
    steps = SampledSteps(steps=3, rate=0.01, sufficient=-jnp.inf, grow=1.0)
    ours, _ = steps.walk(oracle, key, x=x, g=g)
    plain = GradientDescent(3, local_rate=0.01, minibatch=True, safeguard=False)
    theirs, _ = plain(oracle, key, x=x, g=g, step_size=jnp.inf)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7), ours, theirs)


def test_the_correction_fades():
    """Far from x the direction is the client's own gradient; at x it is g."""
    client = DataOracle(jnp.ones(2), loss=lambda x, centre: 0.5 * jnp.sum((x - centre) ** 2))
    x, g = jnp.zeros(2), jnp.array([5.0, 0.0])
    steps = SampledSteps(steps=2, rate=0.1, reach=0.1, sufficient=-jnp.inf, grow=1.0)
    y, _ = steps.walk(client, jax.random.key(0), x=x, g=g)
    first = x - 0.1 * g
    fade = np.exp(-0.5 * (0.5 / 0.1) ** 2)
    np.testing.assert_allclose(y, first - 0.1 * ((first - 1) + fade * (g + 1)), rtol=1e-12)


def test_steps_into_nothing_are_not_taken():
    """A loss that is not finite beyond x = 1 is never entered."""
    client = DataOracle(jnp.ones(1), loss=lambda x, _: jnp.sum(-jnp.log(1 - x)))
    y, rate = SampledSteps(steps=20, rate=10.0, reach=0.0).walk(
        client, jax.random.key(0), x=jnp.zeros(1), g=jnp.array([-3.0])
    )
    assert np.isfinite(client(y))
    assert np.isfinite(rate)


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_the_rate_stays_finite_where_nothing_limits_it(slope):
    """On a flat loss the rate is kept; on a straight one it grows, until a step has no meaning in the dtype."""
    client = DataOracle(jnp.ones(2), loss=lambda x, _: slope * jnp.sum(x))
    steps = SampledSteps(steps=500, rate=0.1, reach=0.0)
    y, rate = steps.walk(client, jax.random.key(0), x=jnp.zeros(2), g=slope * jnp.ones(2))
    assert np.all(np.isfinite(y))
    # without its cap the rate would be 0.1 * 1.2**500 = 4e38, beyond float32
    assert rate == 0.1 if slope == 0 else rate <= 1 / jnp.finfo(rate.dtype).eps


@pytest.mark.parametrize(("options", "wrong"), [({"steps": 0}, "steps = 0"), ({"rate": -1.0}, "rate = -1")])
def test_steps_are_checked(options, wrong):
    with pytest.raises(ValueError, match=wrong):
        SampledSteps(**options)


# --- rounding ---


@pytest.mark.parametrize(
    ("fitted", "dtype"),
    [
        (False, jnp.float32),
        (True, jnp.float64),
        pytest.param(False, jnp.float64, marks=pytest.mark.thorough),  # each compiles two programs of 400 rounds
        pytest.param(True, jnp.float32, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.slow
def test_no_rounding_makes_the_step_size_run_away(fitted, dtype):
    """At the optimum, where rounding decides every ratio, and with a cohort whose noise leaves only short steps."""
    clients = quadratics(
        jax.random.key(5), clients=6, dimension=10, delta=0.4, condition=20.0, curvature=0.5, noise=0.5
    )
    if fitted:  # all gradients vanish at the optimum
        clients = Quadratics.of(clients.hessians, np.asarray(clients.hessians) @ np.linspace(-1, 2, 10))
    clients = jax.tree.map(lambda leaf: leaf.astype(dtype), clients)
    x, key = jnp.ones(10, dtype), jax.random.key(0)

    def sizes(method, units, seed):
        population = Rough(clients, units, seed)

        def step(state, k):
            state, info = method.round(state, jax.random.fold_in(key, k), Traced(population, round=k))
            return state, info.step_size

        return jax.lax.scan(step, method.init(x, key, Traced(population)), jnp.arange(400))[1]

    for cohort in (6, 3):
        method = auto(cohort, solver=Exact())
        units = jnp.asarray([0, 1, 2, 8], dtype)
        found = jax.jit(jax.vmap(lambda units, seed, method=method: sizes(method, units, seed)))(
            units, jnp.arange(4) * 100
        )
        # it stood at 1e-154 in float64, 1e-19 in float32
        assert 1e-3 / float(clients.eigenvalues.max()) < np.min(found)
        assert np.max(found) < 1e10


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_no_rounding_makes_the_rate_of_minibatch_steps_vanish(dtype):
    """At the optimum a loss rises or falls by its rounding alone: half of the steps shrank the rate, to 1e-9."""
    clients = quadratics(jax.random.key(3), clients=2, dimension=4, delta=0.4, condition=4.0, curvature=0.5)
    clients = Quadratics.of(clients.hessians, clients.linears, np.full(2, 10.0))
    x = jnp.asarray(clients.minimizer, dtype)
    clients = jax.tree.map(lambda leaf: leaf.astype(dtype), clients)

    def last(units, seed, rate):
        oracle = Rough(clients, units, seed).client(jnp.uint32(1))
        g = jax.grad(oracle)(x)
        return SampledSteps(steps=300, rate=rate, reach=0.0).walk(oracle, jax.random.key(0), x=x, g=g)[1]

    units, rates = jnp.asarray([0, 0.5, 1, 2], dtype), jnp.asarray([0.1, 1e-6, 0.1, 1e6], dtype)
    found = np.asarray(jax.jit(jax.vmap(last))(units, jnp.arange(4) * 100, rates))
    # with two units of noise the rates of twenty seeds end between 0.013 and 0.5, after 300 steps as after 3,000
    assert np.min(found) > 1e-3
    assert np.max(found) < 10

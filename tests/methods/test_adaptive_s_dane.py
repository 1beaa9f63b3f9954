"""S-DANE and Acc-S-DANE with a line search: the printed loop, and rounding at the optimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import simulate
from fedspam.federation.traced import Traced
from fedspam.methods import acc_s_dane, adaptive_acc_s_dane, adaptive_s_dane, s_dane
from fedspam.problems import Quadratics, quadratics
from fedspam.solvers import Exact
from roundings import Rough
from rounds import START, Clients, same

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(jax.random.key(3), clients=6, dimension=4, delta=0.4, condition=4.0, curvature=0.5, noise=0.5)


SEARCHING = pytest.mark.parametrize(
    ("searching", "plain"), [(adaptive_s_dane, s_dane), (adaptive_acc_s_dane, acc_s_dane)]
)


def numpy_search(c, x, gamma, mu, rounds, accelerated):
    """The printed loop with the A and B of the paper; also the step sizes, and which of them passed the test."""
    everyone, v, A, B, tried = range(len(c.h)), x, 0.0, 1.0, []
    full = lambda y: np.mean([c.grad(i, y) for i in everyone], axis=0)
    for _ in range(rounds):
        a = (B + np.sqrt(B**2 + 4 * A * B / gamma)) * gamma / 2 if accelerated else gamma
        center = (A * x + a * v) / (A + a) if accelerated else v
        g = full(center)
        ends = [center - np.linalg.solve(c.h[i] + np.eye(len(x)) / gamma, g) for i in everyone]
        mean, slope = np.mean(ends, axis=0), np.mean([c.grad(i, ends[i]) for i in everyone], axis=0)
        gained = np.mean([
            (c.grad(i, ends[i]) - c.grad(i, mean) + full(mean)) @ (center - ends[i]) for i in everyone
        ])  # fmt: skip
        passed = gained >= gamma / 2 * slope @ slope
        tried.append((gamma, passed))
        if passed:
            weight = B if accelerated else 1.0
            x, v = mean, (mu * a * mean + weight * v - a * slope) / (mu * a + weight)
            A, B = (A + a, B + mu * a) if accelerated else (A, B)
        gamma = 2 * gamma if passed else gamma / 2
    return x, v, tried


@SEARCHING
def test_the_line_search_is_the_printed_loop(population, searching, plain):
    unlike = Quadratics.of(
        population.hessians + np.diag([0.0, 0.0, 0.0, 3.0]) * np.arange(6)[:, None, None], population.linears
    )
    run = simulate(searching(64.0, convexity=0.3, solver=Exact()), unlike, START, rounds=9, key=0)
    x, v, tried = numpy_search(Clients(unlike), START, 64.0, 0.3, 9, searching is adaptive_acc_s_dane)
    assert {passed for _, passed in tried} == {True, False}
    same(run.rows["step_size"], [gamma for gamma, _ in tried])
    same(run.rows["passed"], [passed for _, passed in tried])
    np.testing.assert_allclose(run.params, x, rtol=1e-9)
    np.testing.assert_allclose(run.state.v, v, rtol=1e-9)
    np.testing.assert_array_equal(run.rows["gradients"], 6 * (3 + run.rows["certificate.gradients"]))

    # the rounds that moved are those of the plain method with these step sizes
    moved = [gamma for gamma, passed in tried if passed]
    again = simulate(plain(None, moved, convexity=0.3, solver=Exact()), unlike, START, rounds=len(moved), key=0)
    np.testing.assert_allclose(again.params, run.params, rtol=1e-9)


def test_at_the_optimum_the_search_stands_still(population):
    """Rounding decides the test there: the step size neither grows nor shrinks without bound."""
    run = simulate(adaptive_s_dane(1.0, solver=Exact()), population, START, rounds=400, key=0)
    np.testing.assert_allclose(run.params, population.minimizer, atol=1e-12)
    assert 1e-3 < run.rows["step_size"][-200:].min() <= run.rows["step_size"][-200:].max() < 1e3


APART = quadratics(jax.random.key(5), clients=6, dimension=10, delta=0.4, condition=100.0, curvature=0.5, noise=0.5)


ROUNDED = {
    "apart": APART,  # gradients of single clients do not vanish at the optimum
    "centered": Quadratics.of(APART.hessians, APART.linears - APART.linears.mean(0)),  # it is 0, and points are exact
    "fitted": Quadratics.of(APART.hessians, np.asarray(APART.hessians) @ np.linspace(-1, 2, 10)),  # all vanish
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("kind", ROUNDED)
@SEARCHING
def test_no_rounding_makes_the_search_run_away(searching, plain, kind, dtype):
    """At the optimum every rounding leaves the step size between the scales of the problem, wherever it began."""
    clients = jax.tree.map(lambda leaf: leaf.astype(dtype), ROUNDED[kind])
    most, least = 1e5 / ROUNDED[kind].lowest_curvature, 0.1 / float(clients.eigenvalues.max())
    x, key, rounds = jnp.ones(clients.dimension, dtype), jax.random.key(0), 300

    def tried(units, seed, first):
        method, rough = searching(first, solver=Exact()), Rough(clients, units, seed)

        def step(carry, k):
            state, memory = carry
            fed = Traced(rough, memory=memory, round=k)
            state, info = method.round(state, key, fed)
            return (state, fed.memory), info.step_size

        memory = jnp.zeros((clients.size, clients.dimension), dtype)
        (state, _), sizes = jax.lax.scan(step, (method.init(x, key, Traced(rough)), memory), jnp.arange(rounds))
        return state.x, sizes

    units, first = jnp.asarray([0, 0.5, 1, 2, 8, 8], dtype), jnp.asarray([1, 1, 1e3, 1, 1, 1e-30], dtype)
    found, sizes = jax.jit(jax.vmap(tried))(units, jnp.arange(6) * 100, first)
    sizes = np.asarray(sizes)[:, rounds // 2 :]
    assert least <= sizes.min()
    assert sizes.max() <= most  # steps that pass on the way double it beyond 1 / delta
    # errors of 8 units times the condition, with room for their sums
    optimum = np.linalg.solve(np.asarray(clients.hessians, float).mean(0), np.asarray(clients.linears, float).mean(0))
    np.testing.assert_allclose(found, np.tile(optimum, (6, 1)), atol=1e4 * jnp.finfo(dtype).eps)

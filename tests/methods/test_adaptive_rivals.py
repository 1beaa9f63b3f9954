"""FedExP, FedExProx, FedACG, Delta-SGD, FedSPS, PAdaMFed, S-DANE with a line search: against NumPy and identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import simulate
from fedspam.federation.traced import Traced
from fedspam.methods import (
    acc_s_dane,
    adaptive_acc_s_dane,
    adaptive_s_dane,
    delta_sgd,
    fedacg,
    fedavg,
    fedexp,
    fedexprox,
    fedprox,
    fedsps,
    padamfed,
    s_dane,
)
from fedspam.problems import Quadratics, quadratics
from fedspam.solvers import Exact
from roundings import Rough
from rounds import COHORTS, START, Clients, one_round, same

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(jax.random.key(3), clients=6, dimension=4, delta=0.4, condition=4.0, curvature=0.5, noise=0.5)


def play(method, population, start=START, cohorts=COHORTS):
    """Some rounds with given cohorts: the parameters, and what each round recorded."""
    state, infos = method.init(jnp.asarray(start), jax.random.key(9), Traced(population)), []
    for k in range(len(cohorts)):
        key = jax.random.fold_in(jax.random.key(0), k)
        state, info = one_round(method, population, state, key, k, {"cohort": np.asarray(cohorts)})
        infos.append(info)
    return np.asarray(method.params(state)), infos


# --- FedExP and FedExProx ---


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_fedexp_is_the_printed_loop(population, damping):
    c, x, alphas = Clients(population), START, []
    for cohort in COHORTS:
        moves = np.stack([c.descended(i, x, 3, 0.4) - x for i in cohort])
        mean = moves.mean(0)
        alphas.append(max(1.0, np.sum(moves**2) / (2 * len(cohort) * (mean @ mean + damping))))
        x = x + alphas[-1] * mean
    found, infos = play(fedexp(2, 3, 0.4, damping=damping), population)
    same(found, x)
    same([info.extrapolation for info in infos], alphas)
    assert [int(info.gradients) for info in infos] == [6, 6, 6]


def test_fedexp_goes_farther_where_moves_differ():
    """Of two clients of one Hessian and nearly opposite minimizers, the moves nearly cancel."""
    ends = np.array([[1.0, 0.0, 1.0, 0.0], [-0.9, 0.1, -1.0, 0.0]])
    clients = Quadratics.of(np.tile(np.eye(4), (2, 1, 1)), ends)
    found, (info,) = play(fedexp(2, 3, 0.5, damping=0.0), clients, np.zeros(4), [[0, 1]])
    moves = (1 - 0.5**3) * ends
    alpha = np.mean(np.sum(moves**2, 1)) / (2 * np.sum(moves.mean(0) ** 2))
    assert alpha > 50
    same(info.extrapolation, alpha)
    same(found, alpha * moves.mean(0))


def test_heavily_damped_fedexp_is_fedavg(population):
    same(play(fedexp(2, 3, 0.4, damping=1e9), population)[0], play(fedavg(2, 3, 0.4), population)[0])


def test_fedexprox_is_the_printed_loop(population):
    c, x, alphas = Clients(population), START, []
    for cohort in COHORTS:
        moves = np.stack([c.prox(i, x, 0.7) - x for i in cohort])
        mean = moves.mean(0)
        alphas.append(np.mean(np.sum(moves**2, 1)) / (mean @ mean))
        x = x + alphas[-1] * mean
    found, infos = play(fedexprox(2, 0.7, solver=Exact()), population)
    same(found, x)
    same([info.extrapolation for info in infos], alphas)
    assert min(alphas) >= 1


def test_heavily_damped_fedexprox_is_fedprox(population):
    damped = fedexprox(2, 0.7, local_steps=3, local_rate=0.2, damping=1e9)
    same(play(damped, population)[0], play(fedprox(2, 0.7, local_steps=3, local_rate=0.2), population)[0])


def test_nobody_moves_and_nothing_breaks():
    clients = Quadratics.of(np.tile(np.eye(4), (2, 1, 1)), np.zeros((2, 4)))
    for method in (fedexp(2, 3, 0.5, damping=0.0), delta_sgd(2, 4), fedsps(2, 3)):
        np.testing.assert_array_equal(play(method, clients, np.zeros(4), [[0, 1]])[0], np.zeros(4))


# --- FedACG ---


def test_fedacg_is_the_printed_loop(population):
    c, x, m = Clients(population), START, np.zeros(4)
    for cohort in COHORTS:
        ahead = x + 0.6 * m
        m = 0.6 * m + np.mean([c.descended(i, ahead, 3, 0.2, pull=1 / 5) - ahead for i in cohort], axis=0)
        x = x + m
    found, infos = play(fedacg(2, 3, 0.2, momentum=0.6, step_size=5.0), population)
    same(found, x)
    assert int(infos[0].gradients) == 6


def test_fedacg_without_momentum_is_fedprox_and_without_a_prox_fedavg(population):
    same(
        play(fedacg(2, 3, 0.2, momentum=0.0, step_size=0.7), population)[0],
        play(fedprox(2, 0.7, local_steps=3, local_rate=0.2), population)[0],
    )
    same(
        play(fedacg(2, 3, 0.2, momentum=0.0, step_size=jnp.inf), population)[0], play(fedavg(2, 3, 0.2), population)[0]
    )


# --- Delta-SGD and FedSPS ---


def test_delta_sgd_is_the_printed_loop(population):
    c, x, rates = Clients(population), START, set()
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            eta, theta, previous, y = 0.5, 1.0, x, x - 0.5 * c.grad(i, x)
            for _ in range(3):
                change = np.linalg.norm(c.grad(i, y) - c.grad(i, previous))
                measured = 1.5 * np.linalg.norm(y - previous) / (2 * change)
                new = min(measured, np.sqrt(1 + 0.2 * theta) * eta)
                rates.add(new == measured)
                previous, y, eta, theta = y, y - new * c.grad(i, y), new, new / eta
            ends.append(y)
        x = np.mean(ends, axis=0)
    found, infos = play(delta_sgd(2, 4, 0.5, amplification=1.5, growth=0.2), population)
    same(found, x)
    assert rates == {True, False}  # the curvature and the growth each decided some steps
    assert int(infos[0].gradients) == 2 * 7


def test_delta_sgd_that_may_not_grow_is_fedavg(population):
    """With a rate far below the inverse curvature, the growth alone decides."""
    same(play(delta_sgd(2, 4, 1e-3, growth=0.0), population)[0], play(fedavg(2, 4, 1e-3), population)[0])


def test_fedsps_is_the_printed_loop(population):
    c, x, rates = Clients(population), START, set()
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            y = x
            for _ in range(3):
                g = c.grad(i, y)
                polyak = (c.value(i, y) + 3) / (4.0 * g @ g)
                rates.add(polyak < 0.4)
                y = y - min(polyak, 0.4) * g
            ends.append(y)
        x = np.mean(ends, axis=0)
    found, infos = play(fedsps(2, 3, 0.4, scale=4.0, lower_bound=-3.0), population)
    same(found, x)
    assert rates == {True, False}
    assert int(infos[0].gradients) == 6


def test_fedsps_with_a_deep_bound_is_fedavg(population):
    same(play(fedsps(2, 3, 0.4, lower_bound=-1e9), population)[0], play(fedavg(2, 3, 0.4), population)[0])


def test_fedsps_stays_where_the_loss_is_below_its_bound(population):
    """A bound that is not one must not turn descent into ascent."""
    same(play(fedsps(2, 3, 0.4, lower_bound=1e9), population)[0], START)


# --- S-DANE and Acc-S-DANE with a line search ---

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


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: fedexp(0, 1, 0.1), "cohort_size"),
        (lambda: fedexp(2, 1, 0.1, damping=-1.0), "damping"),
        (lambda: fedexprox(2, 1.0), "give both, or a solver"),
        (lambda: fedacg(2, 1, 0.1, momentum=1.5), "0 is FedProx"),
        (lambda: fedacg(2, 1, 0.1, step_size=-1.0), "step_size"),
        (lambda: delta_sgd(2, 0), "local_steps"),
        (lambda: delta_sgd(2, 1, amplification=0.0), "amplification"),
        (lambda: delta_sgd(2, 1, growth=-0.1), "growth"),
        (lambda: fedsps(2, 1, scale=0.0), "scale"),
        (lambda: fedsps(2, 1, 0.0), "local_rate"),
        (lambda: adaptive_s_dane(0.0), "step_size"),
        (lambda: adaptive_acc_s_dane(convexity=-1.0), "convexity"),
    ],
)
def test_bad_arguments_are_refused(build, says):
    with pytest.raises(ValueError, match=says):
        build()


# --- PAdaMFed ---


@pytest.mark.parametrize("reduced", [False, True])
def test_padamfed_is_the_printed_loop(population, reduced):
    c, x, steps, rounds = Clients(population), START, 3, 40
    method = padamfed(2, steps, rounds, variance_reduction=reduced)
    beta = min(1, (6 ** (1 / 3) / 40 ** (2 / 3)) if reduced else (6 / 40) ** 0.5)
    gamma, eta = beta if reduced else 6**0.25 / 40**0.75, 1 / (steps * rounds)
    controls, momentum, x_prev = np.zeros((6, 4)), np.zeros(4), x
    for cohort in COHORTS:
        mean, old, directions, moves = controls.mean(0), controls.copy(), [], []
        for i in cohort:
            y, seen = x, []
            for _ in range(steps):
                seen.append(c.grad(i, y))
                d = beta * (seen[-1] - old[i] + mean) + (1 - beta) * momentum
                if reduced:
                    d = seen[-1] - beta * (old[i] - mean) + (1 - beta) * (momentum - c.grad(i, x_prev))
                directions.append(d)
                y = y - eta * d / np.linalg.norm(d)
            controls[i] = np.mean(seen, axis=0)
            moves.append(x - y)
        momentum = np.mean(directions, axis=0)
        x, x_prev = x - gamma / (eta * steps) * np.mean(moves, axis=0), x
    run = simulate(method, population, jnp.asarray(START), rounds=3, key=0, replay={"cohort": COHORTS})
    same(run.params, x)
    same(run.state.g, momentum)
    same(run.memory, controls)
    same(run.state.control, controls.mean(0))
    assert run.rows["gradients"].tolist() == [2 * steps * (1 + reduced)] * 3

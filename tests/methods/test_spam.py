"""The SPAM family against hand-worked rounds, an independent NumPy loop, and the identities it must satisfy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import simulate, spam, spam_pp, spam_ppa
from fedspam.federation import ledger
from fedspam.methods import Factored
from fedspam.methods.estimators import MVR
from fedspam.methods.schedules import cube_root
from fedspam.problems import Quadratics, quadratics
from fedspam.solvers import Exact, GradientDescent

pytestmark = pytest.mark.x64  # rounds by hand and identities, to the last digits

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def clients():
    return quadratics(KEY, clients=8, dimension=5, delta=0.3)


def numpy_spam(clients, x, g, gammas, fresh_weights, cohorts, movers, first="given"):
    """Algorithms 1 to 3 written down once more: movers[k] lists the clients whose proxes are averaged."""
    hessians, linears = np.asarray(clients.hessians), np.asarray(clients.linears)
    gradient = lambda i, y: hessians[i] @ y - linears[i]
    previous = x
    for k, (gamma, p) in enumerate(zip(gammas, fresh_weights, strict=True)):
        if k == 0 and first == "given":
            p = 0.0
        g = np.mean([gradient(i, x) + (1 - p) * (g - gradient(i, previous)) for i in cohorts[k]], axis=0)
        proxes = [
            np.linalg.solve(hessians[i] + np.eye(len(x)) / gamma, gradient(i, x) - g + linears[i] + x / gamma)
            for i in movers[k]
        ]
        previous, x = x, np.mean(proxes, axis=0)
    return x, g


def test_two_rounds_of_spam_by_hand():
    # f_0 = x^2, f_1 = x^2/2 - x, so f' = 2x and x - 1; x_0 = 1, g_0 = 1, gamma = 1, p = 1/2; clients 0, then 1
    clients = Quadratics.of([[[2.0]], [[1.0]]], [[0.0], [1.0]])
    method = spam(step_size=1.0, fresh_weight=0.5, solver=Exact(), start=jnp.array([1.0]))
    run = simulate(method, clients, jnp.array([1.0]), rounds=2, key=0, replay={"cohort": [0, 1]})
    # round 0: g = 1; (2 + 1) s = -1, x_1 = 2/3
    # round 1: g = (2/3 - 1) + (1 - (1 - 1))/2 = 1/6; (1 + 1) s = -1/6, x_2 = 2/3 - 1/12 = 7/12
    np.testing.assert_allclose(run.params, [7 / 12], rtol=1e-15)
    np.testing.assert_allclose(run.state.g, [1 / 6], rtol=1e-14)


def test_printed_first_round_by_hand():
    # 'update' replaces g_0 by p grad f_0(x_0) + (1 - p) g_0 = (2 + 1)/2 = 3/2; 3 s = -3/2, x_1 = 1/2
    clients = Quadratics.of([[[2.0]]], [[0.0]])
    method = spam(1.0, 0.5, solver=Exact(), start=jnp.array([1.0]), first="update")
    run = simulate(method, clients, jnp.array([1.0]), rounds=1, key=0)
    np.testing.assert_allclose(run.params, [0.5], rtol=1e-15)


@pytest.mark.parametrize("first", ["given", "update"])
@pytest.mark.parametrize("method", ["spam", "spam_pp", "spam_ppa"])
@pytest.mark.slow
def test_replay_equals_an_independent_loop(clients, method, first):
    rounds, rng = 7, np.random.default_rng(1)
    gammas, fresh_weights = rng.uniform(0.2, 2, rounds), rng.uniform(0.1, 1, rounds)
    x, g = rng.normal(size=5), rng.normal(size=5)
    width = 1 if method == "spam" else 3
    cohorts = rng.integers(0, 8, (rounds, width))  # duplicates allowed
    prox = rng.integers(0, 8, rounds)  # in SPAM-PP not even of the cohort
    options = {"solver": Exact(), "start": jnp.asarray(g), "first": first}
    if method == "spam":
        made, movers, replay = spam(gammas, fresh_weights, **options), cohorts, {"cohort": cohorts}
    elif method == "spam_pp":
        made, movers, replay = (
            spam_pp(3, gammas, fresh_weights, **options),
            prox[:, None],
            {"cohort": cohorts, "prox": prox},
        )
    else:
        made, movers, replay = spam_ppa(3, gammas, fresh_weights, **options), cohorts, {"cohort": cohorts}
    run = simulate(made, clients, jnp.asarray(x), rounds=rounds, key=0, replay=replay)
    expected_x, expected_g = numpy_spam(clients, x, g, gammas, fresh_weights, cohorts, movers, first)
    np.testing.assert_allclose(run.params, expected_x, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(run.state.g, expected_g, rtol=1e-11, atol=1e-12)


def test_momentum_one_is_the_stochastic_proximal_point_method(clients):
    # p = 1, B = 1: the shift vanishes and x_{k+1} = prox_{gamma f_xi}(x_k)
    ids = [3, 1, 4, 1, 5]
    run = simulate(
        spam(0.7, 1.0, solver=Exact(), first="update"), clients, jnp.ones(5), rounds=5, key=0, replay={"cohort": ids}
    )
    x = np.ones(5)
    for i in ids:
        x = np.linalg.solve(np.asarray(clients.hessians[i]) + np.eye(5) / 0.7, np.asarray(clients.linears[i]) + x / 0.7)
    np.testing.assert_allclose(run.params, x, rtol=1e-12)


def test_one_client_in_total_is_the_proximal_point_method():
    clients = quadratics(KEY, clients=1, dimension=4, delta=0.0, noise=0.0)
    run = simulate(spam(0.5, 0.3, solver=Exact()), clients, jnp.ones(4), rounds=6, key=0)
    x, hessian, linear = np.ones(4), np.asarray(clients.hessians[0]), np.asarray(clients.linears[0])
    for _ in range(6):
        x = np.linalg.solve(hessian + np.eye(4) / 0.5, linear + x / 0.5)
    np.testing.assert_allclose(run.params, x, rtol=1e-12)


@pytest.mark.slow
def test_equal_hessians_and_a_huge_step_are_solved_in_one_round():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    clients = Quadratics.of(np.tile(root @ root.T + np.eye(4), (6, 1, 1)), rng.normal(size=(6, 4)))
    start = clients.gradient(jnp.ones(4))
    run = simulate(spam(1e12, 0.5, solver=Exact(), start=start), clients, jnp.ones(4), rounds=1, key=0)
    assert jnp.linalg.norm(clients.gradient(run.params)) < 1e-10 * jnp.linalg.norm(start)


def test_equal_hessians_with_no_fresh_gradient_keep_the_estimate_exact():
    # delta = 0, p -> 0, g_0 exact: g_k = grad f(x_k) for all k (p = 1e-300 stands for 0, which is not a fresh_weight)
    clients = Quadratics.of(np.tile(np.diag([1.0, 2.0, 3.0]), (5, 1, 1)), np.random.default_rng(1).normal(size=(5, 3)))
    start = clients.gradient(jnp.ones(3))
    run = simulate(spam_pp(2, 0.3, 1e-300, solver=Exact(), start=start), clients, jnp.ones(3), rounds=9, key=0)
    np.testing.assert_allclose(run.state.g, clients.gradient(run.state.x_prev), atol=1e-13)


def test_everyone_asked_and_an_exact_start_keep_the_estimate_exact(clients):
    run = simulate(
        spam_pp(8, 0.5, 0.4, solver=Exact(), start=clients.gradient(jnp.ones(5))), clients, jnp.ones(5), rounds=9, key=0
    )
    np.testing.assert_allclose(run.state.g, clients.gradient(run.state.x_prev), atol=1e-13)


@pytest.mark.slow
def test_a_cohort_of_one_is_spam(clients):
    ids = np.array([2, 7, 7, 0, 5, 3])
    options = {"solver": GradientDescent(steps=4), "start": jnp.arange(5.0)}
    alone = simulate(spam(0.8, 0.3, **options), clients, jnp.ones(5), rounds=6, key=0, replay={"cohort": ids})
    for method in (spam_pp, spam_ppa):
        run = simulate(
            method(1, 0.8, 0.3, **options),
            clients,
            jnp.ones(5),
            rounds=6,
            key=0,
            replay={"cohort": ids[:, None], "prox": ids},
        )
        np.testing.assert_allclose(run.params, alone.params, rtol=1e-13)


@pytest.mark.slow
def test_small_steps_move_like_server_mvr(clients):
    # gamma -> 0: x_{k+1} = x_k - gamma g_k + O(gamma^2)
    gap = []
    for gamma in (1e-3, 1e-4):
        run = simulate(spam_pp(4, gamma, 0.3, solver=Exact()), clients, jnp.ones(5), rounds=1, key=0)
        gap.append(float(jnp.linalg.norm((run.params - 1.0) / gamma + run.state.g)))
    assert gap[1] < 0.11 * gap[0]


@pytest.mark.slow
def test_scaling_the_loss_and_the_step_changes_nothing(clients):
    scaled = Quadratics.of(1000 * np.asarray(clients.hessians), 1000 * np.asarray(clients.linears))
    one = simulate(spam_pp(3, 0.5, 0.3, solver=Exact()), clients, jnp.ones(5), rounds=10, key=0)
    other = simulate(spam_pp(3, 0.0005, 0.3, solver=Exact()), scaled, jnp.ones(5), rounds=10, key=0)
    np.testing.assert_allclose(one.params, other.params, rtol=1e-11)


@pytest.mark.slow
def test_constant_schedules_given_as_arrays_are_the_constant_method(clients):
    constant = simulate(spam(0.6, 0.25, solver=Exact()), clients, jnp.ones(5), rounds=12, key=3)
    arrays = simulate(spam(np.full(12, 0.6), np.full(12, 0.25), solver=Exact()), clients, jnp.ones(5), rounds=12, key=3)
    np.testing.assert_allclose(constant.params, arrays.params, rtol=1e-14)


@pytest.mark.slow
def test_a_tight_tolerance_reproduces_the_exact_prox(clients):
    from fedspam.solvers import LBFGS, Absolute

    exact = simulate(spam(0.6, 0.25, solver=Exact()), clients, jnp.ones(5), rounds=8, key=3)
    inexact = simulate(spam(0.6, 0.25, solver=LBFGS(stop=Absolute(1e-12))), clients, jnp.ones(5), rounds=8, key=3)
    np.testing.assert_allclose(exact.params, inexact.params, atol=1e-10)


@pytest.mark.slow
def test_the_varying_schedule_goes_below_the_floor_of_the_constant_one():
    clients = quadratics(KEY, clients=20, dimension=4, delta=0.5, noise=1.0)
    probe = lambda x: {"norm": jnp.linalg.norm(clients.gradient(x))}
    varying = cube_root(clients.delta)
    decaying = simulate(
        spam(*varying, solver=Exact()), clients, jnp.ones(4), rounds=20_000, key=1, probe=probe, every=200, record=()
    )
    gamma = float(varying.step_size(jnp.int32(0)))
    constant = simulate(
        spam(gamma, float(varying.fresh_weight(jnp.int32(0))), solver=Exact()),
        clients, jnp.ones(4), rounds=20_000, key=1, probe=probe, every=200, record=(),
    )  # fmt: skip
    late = slice(-20, None)
    assert np.median(decaying.probes["norm"][late]) < 0.3 * np.median(constant.probes["norm"][late])


@pytest.mark.parametrize(
    ("argument", "value", "says"),
    [
        ("step_size", -1.0, "greater than 0"),
        ("step_size", 0.0, "greater than 0"),
        ("step_size", float("nan"), "greater than 0"),
        ("step_size", np.array([0.1, -0.1]), "greater than 0"),
        ("fresh_weight", 0.0, r"\(0, 1\]"),
        ("fresh_weight", 1.5, r"\(0, 1\]"),
        ("fresh_weight", float("nan"), r"\(0, 1\]"),
        ("start", "warm", "must be one of"),
        ("first", "gven", "did you mean 'given'"),
    ],
)
def test_bad_arguments_are_refused(argument, value, says):
    arguments = {"step_size": 0.1, "fresh_weight": 0.5, argument: value}
    with pytest.raises(ValueError, match=says):
        spam(**arguments)


def test_a_start_of_another_shape_is_refused(clients):
    with pytest.raises(ValueError, match="g_0"):
        simulate(spam(0.1, 0.5, start=jnp.ones(4)), clients, jnp.ones(5), rounds=1, key=0)


@pytest.mark.parametrize("first", ["given", pytest.param("update", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("movers", ["one", "fresh", "average"])
@pytest.mark.slow
def test_spam_pp_is_the_factored_method_with_mvr(clients, movers, first):
    """The same bits and the same messages as the template with these parts."""
    options = {"solver": GradientDescent(steps=3, local_rate=0.1), "scale": 0.5, "first": first}
    if movers == "average":
        method = spam_ppa(3, *cube_root(delta=0.3), **options)
    else:
        method = spam_pp(3, *cube_root(delta=0.3), prox_client="fresh" if movers == "fresh" else "cohort", **options)
    estimator = MVR(method.fresh_weight, 0.5, first=first)
    factored = Factored(estimator, options["solver"], method.step_size, method.start, movers=movers, cohort_size=3)
    own, template = (simulate(made, clients, jnp.ones(5), rounds=5, key=3) for made in (method, factored))
    assert own.rows.keys() == template.rows.keys()
    for a, b in zip(*map(jax.tree.leaves, ((own.state, own.rows), (template.state, template.rows))), strict=True):
        np.testing.assert_array_equal(a, b)
    assert ledger.plan(method, jnp.ones(5)) == ledger.plan(factored, jnp.ones(5))


def test_the_server_cannot_be_the_mover_of_spam_pp():
    with pytest.raises(ValueError, match="movers = 'server'"):
        dataclasses.replace(spam_pp(3, 1.0, 0.5), movers="server")


def test_a_plan_depends_on_shapes_and_not_on_numbers():
    """Then one plan serves every setting of a sweep."""
    solver = GradientDescent(1, smoothness=1.0)
    plan = lambda gamma, x, cohort=2: ledger.plan(spam_pp(cohort, gamma, 0.1, solver=solver), x)
    first = plan(0.1, jnp.ones(5))
    assert plan(0.2, jnp.zeros(5)) == first
    assert plan(0.1, jnp.ones(5), cohort=3).round[0].cohort == 3
    half = plan(0.1, jnp.ones(5, jnp.float32))
    assert half.round[0].bytes_down < first.round[0].bytes_down

"""The proximal relatives of SPAM: SPPM, DANE, SABER, SVRP, SVRS, S-DANE, the RG methods, and what they share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import simulate, simulate_many, spam, spam_pp, spam_ppa
from fedspam._internal import prng
from fedspam.federation import ledger
from fedspam.methods import (
    METHODS,
    Factored,
    Scales,
    acc_extragradient,
    acc_s_dane,
    acc_svrs,
    catalyzed_svrp,
    dane,
    dane_plus,
    feddane,
    mvr,
    page,
    proxy_prox,
    rg_saga,
    rg_svrg,
    s_dane,
    saber,
    saber_partial,
    sarah,
    sppm,
    storm_plus,
    svrp,
    svrs,
)
from fedspam.methods.estimators import SVRG
from fedspam.methods.schedules import Constant, Values
from fedspam.problems import Quadratics, quadratics
from fedspam.solvers import Exact

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]

ROUNDS, CLIENTS, D = 6, 6, 3
KEY = jax.random.key(0)
PROX = {"solver": Exact()}


@pytest.fixture(scope="module")
def population():
    return quadratics(KEY, clients=CLIENTS, dimension=D, delta=0.4, condition=3.0, noise=1.0)


@pytest.fixture(scope="module")
def alike():
    """Clients of equal Hessians: delta = 0, and their gradients differ by constants."""
    rng = np.random.default_rng(1)
    return Quadratics.of(np.tile(np.diag([1.0, 2.0, 3.0]), (CLIENTS, 1, 1)), rng.normal(size=(CLIENTS, D)))


def gradient(population, x, clients=None):
    gradients = np.asarray(population.hessians) @ x - np.asarray(population.linears)
    return (gradients if clients is None else gradients[clients]).mean(0)


def prox(population, client, x, g, gamma):
    return x - np.linalg.solve(np.asarray(population.hessians[client]) + np.eye(len(x)) / gamma, g)


# --- SPPM ---


def test_sppm_is_spam_that_forgets_bit_for_bit(play, population):
    alone = play(sppm(0.7, **PROX), population)
    forgetful = play(spam(0.7, 1.0, first="update", start="zero", **PROX), population)
    assert np.asarray(alone.params).tobytes() == np.asarray(forgetful.params).tobytes()


def test_sppm_stays_below_its_bound(population):
    gamma, mu = 0.5, float(np.asarray(population.eigenvalues).min())
    least = jnp.asarray(population.minimizer)
    probe = lambda x: {"square": jnp.sum((x - least) ** 2)}
    run = simulate_many(
        sppm(gamma, **PROX), population, jnp.ones(D), rounds=30, keys=range(300), probe=probe, record=()
    )
    square = run.probes["square"][0]
    contraction, floor = (
        (1 + gamma * mu) ** -2.0,
        gamma * float(population.sigma(least)) ** 2 / (2 * mu + gamma * mu**2),
    )
    bound = contraction ** np.arange(31) * square[0, 0] + floor
    error = square.std(0) / np.sqrt(300)
    assert (square.mean(0) <= bound + 3 * error).all()
    # and it is a ball, not the optimum, that it reaches
    assert square[:, -10:].mean() > 0.05 * floor


def test_sppm_contracts_where_all_clients_agree_on_the_optimum():
    population = quadratics(KEY, clients=5, dimension=D, delta=0.5, condition=3.0, noise=0.0)
    mu = float(np.asarray(population.eigenvalues).min())
    probe = lambda x: {"distance": jnp.linalg.norm(x - jnp.asarray(population.minimizer))}
    run = simulate(sppm(2.0, **PROX), population, jnp.ones(D), rounds=15, key=0, probe=probe)
    distance = run.probes["distance"]
    assert (distance[1:] <= distance[:-1] / (1 + 2.0 * mu) * (1 + 1e-9) + 1e-15).all()


# --- DANE and its relatives ---


def test_feddane_with_one_cohort_is_spam_ppa_that_forgets(play, population):
    rng = np.random.default_rng(3)
    cohorts = np.stack([rng.permutation(CLIENTS)[:3] for _ in range(ROUNDS)])
    one = play(feddane(3, 0.6, second_cohort=False, **PROX), population, cohort=cohorts)
    other = play(spam_ppa(3, 0.6, 1.0, first="update", **PROX), population, cohort=cohorts)
    np.testing.assert_allclose(one.params, other.params, rtol=1e-13)


def test_feddane_moves_the_second_cohort(play, population):
    run = play(feddane(2, 0.6, **PROX), population, 1, cohort=[[0, 1]], second=[[4, 5]])
    g = gradient(population, np.ones(D), [0, 1])
    np.testing.assert_allclose(
        run.params, np.mean([prox(population, i, np.ones(D), g, 0.6) for i in (4, 5)], axis=0), rtol=1e-13
    )


def test_dane_is_spam_ppa_with_everyone(play, population):
    start = population.gradient(jnp.ones(D))
    everyone = play(spam_ppa(CLIENTS, 0.6, 0.3, start=start, **PROX), population)
    np.testing.assert_allclose(play(dane(0.6, **PROX), population).params, everyone.params, rtol=1e-12)


def test_an_exact_gradient_and_one_random_client_are_the_same_method_under_three_names(play, population):
    # SPAM-PP with everyone, SABER with p = 1, DANE+: once their random client is the same
    keys = [jax.random.fold_in(jax.random.key(0), k) for k in range(ROUNDS)]
    movers = [int(prng.index(prng.fold_name(key, "one"), CLIENTS)) for key in keys]
    assert len(set(movers)) > 2
    x = np.ones(D)
    for mover in movers:
        x = prox(population, mover, x, gradient(population, x), 0.6)
    start = population.gradient(jnp.ones(D))
    replay = {"cohort": np.tile(np.arange(CLIENTS), (ROUNDS, 1)), "prox": movers}
    spam_everyone = play(spam_pp(CLIENTS, 0.6, 0.3, start=start, **PROX), population, **replay)
    saber_full = play(saber(CLIENTS, 0.6, 1.0, **PROX), population, **replay)
    np.testing.assert_allclose(play(dane_plus(0.6, **PROX), population).params, x, rtol=1e-12)
    np.testing.assert_allclose(spam_everyone.params, x, rtol=1e-12)
    np.testing.assert_allclose(saber_full.params, x, rtol=1e-12)


def test_svrp_that_always_moves_its_anchor_is_dane_plus(play, population):
    movers = [3, 1, 4, 1, 5, 0]
    x = np.ones(D)
    for mover in movers:
        x = prox(population, mover, x, gradient(population, x), 0.6)
    np.testing.assert_allclose(play(svrp(0.6, 1.0, **PROX), population, cohort=movers).params, x, rtol=1e-12)


# --- SABER ---


def test_saber_equals_an_independent_loop(play, population):
    cohorts, movers, many = (
        [[0, 1], [2, 3], [4, 0], [5, 1]],
        [1, 2, 5, 3],
        [[0, 1, 2, 3], [0] * 4, [1, 2, 4, 5], [0] * 4],
    )
    coins, gamma = np.array([1.0, 0, 1, 0]), 0.6
    full = play(saber(2, gamma, coins, **PROX), population, 4, cohort=cohorts, prox=movers)
    part = play(saber_partial(2, 4, gamma, coins, **PROX), population, 4, cohort=cohorts, many=many)
    for run, partial in ((full, False), (part, True)):
        x, previous, g = np.ones(D), np.ones(D), np.zeros(D)
        for k in range(4):
            change = gradient(population, x, cohorts[k]) - gradient(population, previous, cohorts[k])
            g = gradient(population, x, many[k] if partial else None) if coins[k] else g + change
            moving = cohorts[k] if partial else movers[k : k + 1]
            previous, x = x, np.mean([prox(population, i, x, g, gamma) for i in moving], axis=0)
        np.testing.assert_allclose(run.params, x, rtol=1e-12)


# --- SVRP: f_0 = x^2, f_1 = x^2/2 - x, so f_0' = 2x, f_1' = x - 1, f' = (3x - 1)/2; x_0 = 1, gamma = 1/2 ---


def test_three_rounds_of_svrp_by_hand():
    pair = Quadratics.of([[[2.0]], [[1.0]]], [[0.0], [1.0]])
    method = svrp(0.5, probability=np.array([0.0, 0.0, 1.0]), **PROX)
    run = simulate(method, pair, jnp.ones(1), rounds=3, key=0, replay={"cohort": [0, 1, 0]})
    # round 0: w = 1, f'(w) = 1; 2y + (1 - 2) + 2 (y - 1) = 0, y = 3/4
    # round 1: w = 1; (y - 1) + (1 - 0) + 2 (y - 3/4) = 0, y = 1/2
    # round 2: w = 1/2, f'(w) = 1/4; 2y + (1/4 - 1) + 2 (y - 1/2) = 0, y = 7/16
    np.testing.assert_allclose(run.params, [7 / 16], rtol=1e-15)
    np.testing.assert_allclose(run.state.anchor, [[0.5], [0.25]], rtol=1e-15)
    # 3d down and d up for the client; d and d for both when the anchor moves
    np.testing.assert_array_equal(run.rows["floats_down"], [5, 3, 5])
    np.testing.assert_array_equal(run.rows["floats_up"], [3, 1, 3])


def test_svrp_is_the_svrg_estimate_of_the_client_that_moves(play, population):
    ids, coins = [3, 1, 4, 1, 5, 0], jnp.array([1.0, 0, 0, 1, 0, 0])
    # two trips instead of one; where the anchor moves, the estimate is exact and so is SVRP's
    two = Factored(SVRG(Values(coins)), Exact(), Constant(0.6), movers="one", cohort_size=1)
    one = play(svrp(0.6, coins, **PROX), population, cohort=ids)
    np.testing.assert_allclose(play(two, population, cohort=ids).params, one.params, rtol=1e-12)


def test_catalyzed_svrp_equals_an_independent_loop(play, population):
    gamma, theta, mu, period = 0.6, 0.5, 0.8, 2
    ids, coins = [3, 1, 4, 1, 5, 0], [0.0, 0, 0, 1, 0, 0]
    run = play(catalyzed_svrp(gamma, np.array(coins), theta, mu, period, **PROX), population, cohort=ids)
    root = np.sqrt(mu / (mu + theta))
    beta = (1 - root) / (1 + root)
    x = centre = outer = np.ones(D)
    for k, i in enumerate(ids):
        if k % period == 0 and k > 0:
            centre, outer = x + beta * (x - outer), x
        if k % period == 0 or coins[k]:
            w = x
        # SVRP on f + theta/2 |x - centre|^2: the control variates of the square cancel
        H, b = np.asarray(population.hessians[i]), np.asarray(population.linears[i])
        shift = gradient(population, w) - gradient(population, w, [i])
        x = np.linalg.solve(H + (theta + 1 / gamma) * np.eye(D), b - shift + theta * centre + x / gamma)
    np.testing.assert_allclose(run.params, x, rtol=1e-12)


# --- SVRS ---


def test_accsvrs_without_its_acceleration_is_svrs(play, population):
    # tau = 1, mu = 0, alpha = gamma/p: z is where the epoch ended
    plain = play(svrs(2, 0.5, 0.4, **PROX), population, 12)
    restarted = play(acc_svrs(2, 0.5, 0.4, mixing=1.0, convexity=0.0, length=0.5 / 0.4, **PROX), population, 12)
    np.testing.assert_allclose(restarted.params, plain.params, rtol=1e-12)


def test_accsvrs_equals_an_independent_loop(play, population):
    gamma, p, tau, mu, cohort = 0.5, 0.5, 0.3, 0.7, [3, 1, 4, 1, 5, 0, 2, 2]
    alpha = gamma / (2 * p * tau)
    coins = [bool(k == 0 or _flip(k, p)) for k in range(8)]
    assert 2 < sum(coins) < 8
    run = play(acc_svrs(1, gamma, p, tau, mu, **PROX), population, 8, cohort=cohort)
    x = z = w = np.ones(D)
    for k, i in enumerate(cohort):
        if coins[k]:
            G = p * (w - x) / gamma
            z = (z + 0.5 * mu * alpha * x - alpha * G) / (1 + 0.5 * mu * alpha)
            x = w = tau * z + (1 - tau) * x
        x = prox(
            population,
            0,
            x,
            gradient(population, w) + gradient(population, x, [i]) - gradient(population, w, [i]),
            gamma,
        )
    np.testing.assert_allclose(run.params, x, rtol=1e-12)


def _flip(k, p):
    key = prng.fold_name(jax.random.fold_in(jax.random.key(0), k), "coin")
    return bool(jax.random.bernoulli(key, p))


# --- S-DANE ---


@pytest.mark.parametrize("accelerated", [False, True])
def test_s_dane_equals_an_independent_loop(play, population, accelerated):
    gamma, mu, cohorts = 0.6, 0.7, [[0, 1], [2, 3], [4, 0], [5, 1], [0, 3], [2, 4]]
    build = acc_s_dane if accelerated else s_dane
    run = play(build(2, gamma, convexity=mu, **PROX), population, cohort=cohorts)
    # with the A and B of the paper, whose ratio the method keeps
    x = v = np.ones(D)
    A, B = 0.0, 1.0
    for S in cohorts:
        if accelerated:
            a = (B + np.sqrt(B**2 + 4 * A * B / gamma)) * gamma / 2
            centre = (A * x + a * v) / (A + a)
        else:
            A, B, a, centre = 0.0, 1.0, gamma, v
        g = gradient(population, centre, S)
        moved = [prox(population, i, centre, g, gamma) for i in S]
        x, slope = (
            np.mean(moved, axis=0),
            np.mean([gradient(population, y, [i]) for i, y in zip(S, moved, strict=True)], axis=0),
        )
        v = (mu * a * x + B * v - a * slope) / (mu * a + B)
        A, B = A + a, B + mu * a
    np.testing.assert_allclose(run.params, x, rtol=1e-12)
    np.testing.assert_allclose(run.state.v, v, rtol=1e-12)


def test_extragradient_equals_an_independent_loop(play, population):
    gamma, mu = 0.6, 0.7
    run = play(acc_extragradient(gamma, convexity=mu, **PROX), population, 6)
    x = v = np.ones(D)
    A, B = 0.0, 1.0
    for _ in range(6):
        a = B * gamma / 4 + np.sqrt((B * gamma / 4) ** 2 + A * B * gamma / 2)
        assert 1 / gamma == pytest.approx((A + a) * B / (2 * a**2))  # the authors' rule for a
        centre = (A * x + a * v) / (A + a)
        x = prox(population, 0, centre, gradient(population, centre), gamma)
        v = (mu * a * x + B * v - a * gradient(population, x)) / (mu * a + B)
        A, B = A + a, B + mu * a
    np.testing.assert_allclose(run.params, x, rtol=1e-12)
    np.testing.assert_allclose(run.state.v, v, rtol=1e-12)


def test_acceleration_pays_where_the_condition_is_bad(play):
    population = quadratics(KEY, clients=8, dimension=8, delta=1.0, condition=1000.0, curvature=0.01)
    norm = {}
    for build in (s_dane, acc_s_dane):
        run = play(build(None, 0.5, convexity=0.01, **PROX), population, 120)
        norm[build] = float(jnp.linalg.norm(population.gradient(run.params)))
    assert norm[acc_s_dane] < 0.01 * norm[s_dane]


# --- ProxyProx ---


def test_a_round_of_proxy_prox_worked_by_hand(play):
    """f_0 = y^2 / 2 and f_1 = 3 y^2 / 2 - 2 y, at x = 2: gradients 2 and 4, so the proxy moves by -3 / (h + 1)."""
    clients = Quadratics.of(np.array([[[1.0]], [[3.0]]]), np.array([[0.0], [2.0]]))
    run = play(proxy_prox(None, 1.0, proxy=1, **PROX), clients, 1, x=np.array([2.0]))
    np.testing.assert_allclose(run.params, [1.25], rtol=1e-15)


def test_proxy_prox_equals_an_independent_loop(play, population):
    cohorts, x = np.array([[0, 3], [3, 1], [4, 2]]), np.ones(D)
    for cohort in cohorts:
        x = prox(population, 5, x, gradient(population, x, cohort), 0.6)
    run = play(proxy_prox(2, 0.6, proxy=5, **PROX), population, 3, cohort=cohorts)
    np.testing.assert_allclose(run.params, x, rtol=1e-12)


def test_proxy_prox_of_everyone_is_svrs_whose_anchor_always_moves(play, population):
    robust = play(proxy_prox(None, 0.6, **PROX), population, 4)
    np.testing.assert_allclose(robust.params, play(svrs(2, 0.6, 1.0, **PROX), population, 4).params, rtol=1e-12)


def test_a_proxy_that_is_not_there_is_refused(population):
    with pytest.raises(ValueError, match=r"asks client 6, but the clients are 0 to 5; name one of these"):
        ledger.plan(proxy_prox(None, 0.6, proxy=CLIENTS), jnp.ones(D), population)
    with pytest.raises(ValueError, match=r"proxy = -1 .* give the id of the client that you trust"):
        proxy_prox(None, 0.6, proxy=-1)


# --- the family ---

ONE_ROUND = {
    "dane": dane(1e12, **PROX),
    "dane_plus": dane_plus(1e12, **PROX),
    "saber": saber(2, 1e12, 0.0, **PROX),
    "svrp": svrp(1e12, 0.0, **PROX),
    "svrs": svrs(2, 1e12, 0.0, **PROX),
    "s_dane": s_dane(None, 1e12, **PROX),
    "rg_saga": rg_saga(2, 1e12, 0.3, **PROX),
    "rg_svrg": rg_svrg(2, 1e12, 0.3, 0.0, **PROX),
    "proxy_prox": proxy_prox(None, 1e12, **PROX),
}


@pytest.mark.parametrize("name", ONE_ROUND)
def test_equal_hessians_and_a_huge_step_are_solved_in_one_round(play, alike, name):
    run = play(ONE_ROUND[name], alike, 1)
    assert jnp.linalg.norm(alike.gradient(run.params)) < 1e-10 * jnp.linalg.norm(alike.gradient(jnp.ones(D)))


ALONE = {
    "sppm": sppm(0.5, **PROX),
    "dane": dane(0.5, **PROX),
    "dane_plus": dane_plus(0.5, **PROX),
    "feddane": feddane(1, 0.5, **PROX),
    "saber": saber(1, 0.5, 0.3, **PROX),
    "saber_partial": saber_partial(1, 1, 0.5, 0.3, **PROX),
    "svrp": svrp(0.5, 0.3, **PROX),
    "svrs": svrs(1, 0.5, 0.3, **PROX),
    "s_dane": s_dane(None, 0.5, **PROX),
    "rg_saga": rg_saga(1, 0.5, 0.3, **PROX),
    "rg_svrg": rg_svrg(1, 0.5, 0.3, 0.3, **PROX),
    "mvr": mvr(1, 0.5, 0.3),
    "page": page(1, 0.5, 0.3),
    "sarah": sarah(1, 0.5, 3),
}


@pytest.mark.parametrize("name", ALONE)
def test_one_client_in_total_leaves_the_proximal_point_method_or_gradient_descent(play, name):
    population = Quadratics.of([np.diag([1.0, 2.0, 0.5])], [[1.0, -1.0, 0.5]])
    x = np.ones(D)
    for _ in range(5):
        g = gradient(population, x)
        x = x - 0.5 * g if name in ("mvr", "page", "sarah") else prox(population, 0, x, g, 0.5)
    np.testing.assert_allclose(play(ALONE[name], population, 5).params, x, rtol=1e-12)


SCALED = {
    "sppm": lambda c: sppm(0.5 / c, **PROX),
    "feddane": lambda c: feddane(2, 0.5 / c, **PROX),
    "saber": lambda c: saber(2, 0.5 / c, 0.3, **PROX),
    "catalyzed_svrp": lambda c: catalyzed_svrp(0.5 / c, 0.3, 0.4 * c, 0.6 * c, 3, **PROX),
    "acc_svrs": lambda c: acc_svrs(2, 0.5 / c, 0.3, 0.5, 0.6 * c, **PROX),
    "acc_s_dane": lambda c: acc_s_dane(2, 0.5 / c, convexity=0.6 * c, **PROX),
    "rg_saga": lambda c: rg_saga(2, 0.5 / c, 0.3, **PROX),
    "rg_svrg": lambda c: rg_svrg(2, 0.5 / c, 0.3, 0.3, **PROX),
    "page": lambda c: page(2, 0.2 / c, 0.3),
}


@pytest.mark.parametrize("name", SCALED)
def test_scaling_the_loss_and_the_step_changes_nothing(play, population, name):
    scaled = Quadratics.of(1000 * np.asarray(population.hessians), 1000 * np.asarray(population.linears))
    one, other = play(SCALED[name](1.0), population, 8), play(SCALED[name](1000.0), scaled, 8)
    np.testing.assert_allclose(other.params, one.params, rtol=1e-10)


EXACT = {
    "mvr": (mvr(CLIENTS, 0.3, 0.3), 1e-12),
    "page": (page(2, 0.2, 0.3), 1e-12),
    "sarah": (sarah(2, 0.2, 3), 1e-12),
    "dane": (dane(1.0, **PROX), 1e-12),
    "dane_plus": (dane_plus(1.0, **PROX), 1e-12),
    "feddane": (feddane(CLIENTS, 1.0, **PROX), 1e-12),
    "saber": (saber(2, 0.5, 0.3, **PROX), 1e-12),
    "svrp": (svrp(0.5, 0.3, **PROX), 1e-12),
    "catalyzed_svrp": (catalyzed_svrp(0.5, 0.3, 0.2, 1.0, 6, **PROX), 1e-12),
    "svrs": (svrs(2, 0.5, 0.3, **PROX), 1e-12),
    "acc_svrs": (acc_svrs(2, 0.5, 0.3, 0.5, 1.0, **PROX), 1e-12),
    "s_dane": (s_dane(None, 1.0, convexity=1.0, **PROX), 1e-12),
    "acc_s_dane": (acc_s_dane(None, 1.0, convexity=1.0, **PROX), 1e-12),
    "acc_extragradient": (acc_extragradient(1.0, convexity=1.0, **PROX), 1e-12),
    "rg_saga": (rg_saga(2, 0.5, 0.3, **PROX), 1e-12),
    "rg_svrg": (rg_svrg(2, 0.5, 0.3, 0.3, **PROX), 1e-12),
    "proxy_prox": (proxy_prox(None, 0.5, **PROX), 1e-12),
    # its steps shrink as squared gradients add up, and its fresh weight with them
    "storm_plus": (storm_plus(CLIENTS), 1e-6),
}


@pytest.mark.parametrize("name", EXACT)
def test_the_optimum_is_found_to_the_last_digits(play, population, name):
    method, tolerance = EXACT[name]
    np.testing.assert_allclose(play(method, population, 300).params, population.minimizer, atol=tolerance)


@pytest.mark.parametrize("name", [*EXACT, "sppm", "saber_partial", "storm", "meta_storm", "adaptive_s_dane"])
def test_a_grid_proposes_twelve_different_settings(name):
    row = METHODS[name]
    grid = row.grid(Scales(delta=0.1, smoothness=2.0, clients=20, cohort=5))
    sizes = {"cohort_size": 5} if "cohort_size" in row.example else {}
    built = {str(row.build(**sizes, **setting)) for setting in grid}
    assert len(built) == len(grid) == 12


@pytest.mark.parametrize("build", [lambda: s_dane(None, 0.5, convexity=-1.0), lambda: acc_svrs(2, 0.5, 0.0, 0.5, 0.1)])
def test_bad_arguments_are_refused(build):
    with pytest.raises(ValueError, match="must lie in"):
        build()

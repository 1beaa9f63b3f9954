"""The gradient estimators and the plain server step: hand-worked rounds, an independent NumPy loop, identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Faults, Generated, simulate, simulate_many, spam, spam_pp, spam_ppa
from fedspam.methods import Factored, Given, meta_storm, mvr, page, rg_saga, rg_svrg, sarah, storm, storm_plus, svrs
from fedspam.methods.estimators import MVR, CohortGradient, coin
from fedspam.methods.schedules import Constant, Power, Values
from fedspam.problems import Quadratics, quadratics
from fedspam.solvers import Exact

pytestmark = pytest.mark.x64  # rounds by hand and identities, to the last digits

ROUNDS, CLIENTS, D = 6, 6, 3
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def population():
    return quadratics(KEY, clients=CLIENTS, dimension=D, delta=0.4, condition=3.0, noise=1.0)


@pytest.fixture(scope="module")
def alike():
    """Clients of equal Hessians: delta = 0, and their gradients differ by constants."""
    rng = np.random.default_rng(1)
    return Quadratics.of(np.tile(np.diag([1.0, 2.0, 3.0]), (CLIENTS, 1, 1)), rng.normal(size=(CLIENTS, D)))


class Twin:
    """The same clients in NumPy."""

    def __init__(self, population):
        self.hessians, self.linears = np.asarray(population.hessians), np.asarray(population.linears)

    def gradient(self, clients, x):
        """The mean gradient of some clients; of all for None."""
        hessians, linears = (
            (self.hessians, self.linears) if clients is None else (self.hessians[clients], self.linears[clients])
        )
        return (hessians @ x - linears).mean(0)

    def prox(self, client, x, g, gamma):
        return x - np.linalg.solve(self.hessians[client] + np.eye(D) / gamma, g)


@pytest.fixture(scope="module")
def draws():
    rng = np.random.default_rng(2)
    cohorts = np.stack([rng.permutation(CLIENTS)[:2] for _ in range(ROUNDS)])
    return {"cohorts": cohorts, "coins": np.array([1.0, 0, 0, 1, 0, 0]), "gammas": rng.uniform(0.1, 0.5, ROUNDS)}


# --- rounds worked by hand: f_0 = x^2, f_1 = x^2/2 - x, so f_0' = 2x, f_1' = x - 1, f' = (3x - 1)/2; x_0 = 1 ---

PAIR = Quadratics.of([[[2.0]], [[1.0]]], [[0.0], [1.0]])


@pytest.mark.slow
def test_three_rounds_of_page_by_hand():
    method = page(1, step_size=0.25, probability=np.array([0.0, 0.0, 0.0]))
    run = simulate(method, PAIR, jnp.ones(1), rounds=3, key=0, replay={"cohort": [0, 1, 0]})
    # round 0 asks everyone whatever the coin says: g = f'(1) = 1, x = 3/4
    # round 1, client 1: g = 1 + (3/4 - 1) = 3/4, x = 3/4 - 3/16 = 9/16
    # round 2, client 0: g = 3/4 + 2 (9/16 - 12/16) = 3/8, x = 9/16 - 3/32 = 15/32
    np.testing.assert_allclose(run.state.estimate.g, [3 / 8], rtol=1e-15)
    np.testing.assert_allclose(run.params, [15 / 32], rtol=1e-15)
    # everyone: d down, d up, from both; then 2d and d from one
    np.testing.assert_array_equal(run.rows["floats_down"], [2, 2, 2])
    np.testing.assert_array_equal(run.rows["floats_up"], [2, 1, 1])
    np.testing.assert_array_equal(run.rows["gradients"], [2, 2, 2])


def test_four_rounds_of_rg_saga_by_hand():
    method = rg_saga(1, step_size=1.0, pull=0.5, solver=Exact())
    run = simulate(method, PAIR, jnp.ones(1), rounds=4, key=0, replay={"cohort": [1, 1, 0, 0]})
    # the delegate's prox moves by -g / (2 + 1)
    # round 0, everyone: g = 1, x = 2/3
    # round 1, everyone: g = 1/2, x = 2/3 - 1/6 = 1/2; b = (4/3, -1/3)
    # round 2, client 0: G = 4/3 - 4/3 + 1/2, g = 1/2 + 2 (1/2 - 2/3) = 1/6, x = 1/2 - 1/18 = 4/9; b_0 = 4/3
    # round 3, client 0: G = 1 - 4/3 + 1/2 = 1/6, g = 1/12 + 1/12 + 2 (4/9 - 1/2) = 1/18, x = 4/9 - 1/54; b_0 = 1
    np.testing.assert_allclose(run.state.estimate.g, [1 / 18], rtol=1e-13)
    np.testing.assert_allclose(run.params, [23 / 54], rtol=1e-14)
    np.testing.assert_allclose(run.memory, [[1], [-1 / 3]], rtol=1e-14)
    np.testing.assert_allclose(run.state.estimate.memory, [1 / 3], rtol=1e-14)
    # d and d for everyone, or 2d and 2d for one client; then 2d and d for the delegate
    assert run.plan.start == ()
    np.testing.assert_array_equal(run.rows["floats_down"], [4, 4, 4, 4])
    np.testing.assert_array_equal(run.rows["floats_up"], [3, 3, 3, 3])
    np.testing.assert_array_equal(run.rows["gradients"], [3, 3, 3, 3])


# --- an independent loop: the estimators once more, with given cohorts, coins and step sizes ---


def numpy_page(twin, x, draws):
    previous = g = None
    for k in range(ROUNDS):
        S = draws["cohorts"][k]
        g = twin.gradient(None, x) if draws["coins"][k] else g + twin.gradient(S, x) - twin.gradient(S, previous)
        previous, x = x, x - draws["gammas"][k] * g
    return x


def numpy_svrs(twin, x, draws):
    for k in range(ROUNDS):
        S = draws["cohorts"][k]
        if draws["coins"][k]:
            w, at_w = x, twin.gradient(None, x)
        x = twin.prox(0, x, at_w + twin.gradient(S, x) - twin.gradient(S, w), draws["gammas"][k])
    return x


def numpy_rg_saga(twin, x, draws, beta, synchronizations):
    table = np.zeros((CLIENTS, D))
    previous = x
    for k in range(ROUNDS):
        S = draws["cohorts"][k]
        if k < synchronizations:
            table = np.stack([twin.gradient([i], x) for i in range(CLIENTS)])
            g = table.mean(0)
            previous, x = x, twin.prox(0, x, g, draws["gammas"][k])
            continue
        G = twin.gradient(S, previous) - table[S].mean(0) + table.mean(0)
        change = twin.gradient(S, x) - twin.gradient(S, previous)
        g = G if k == 0 else (1 - beta) * g + beta * G + change
        for i in S:
            table[i] = twin.gradient([i], previous)
        previous, x = x, twin.prox(0, x, g, draws["gammas"][k])
    return x


def numpy_rg_svrg(twin, x, draws, beta):
    previous = x
    for k in range(ROUNDS):
        S = draws["cohorts"][k]
        if draws["coins"][k]:
            w, at_w = previous, twin.gradient(None, previous)
        G = twin.gradient(S, previous) - twin.gradient(S, w) + at_w
        g = G if k == 0 else (1 - beta) * g + beta * G + twin.gradient(S, x) - twin.gradient(S, previous)
        previous, x = x, twin.prox(0, x, g, draws["gammas"][k])
    return x


def test_page_equals_an_independent_loop(play, population, draws):
    run = play(page(2, draws["gammas"], draws["coins"]), population, cohort=draws["cohorts"])
    np.testing.assert_allclose(run.params, numpy_page(Twin(population), np.ones(D), draws), rtol=1e-12)


def test_svrs_equals_an_independent_loop(play, population, draws):
    run = play(svrs(2, draws["gammas"], draws["coins"], solver=Exact()), population, cohort=draws["cohorts"])
    np.testing.assert_allclose(run.params, numpy_svrs(Twin(population), np.ones(D), draws), rtol=1e-12)


@pytest.mark.parametrize("synchronizations", [2, 1, 0])
def test_rg_saga_equals_an_independent_loop(play, population, draws, synchronizations):
    run = play(
        rg_saga(2, draws["gammas"], 0.3, synchronizations=synchronizations, solver=Exact()),
        population,
        cohort=draws["cohorts"],
    )
    np.testing.assert_allclose(
        run.params, numpy_rg_saga(Twin(population), np.ones(D), draws, 0.3, synchronizations), rtol=1e-12
    )


def test_rg_svrg_equals_an_independent_loop(play, population, draws):
    run = play(rg_svrg(2, draws["gammas"], 0.3, draws["coins"], solver=Exact()), population, cohort=draws["cohorts"])
    np.testing.assert_allclose(run.params, numpy_rg_svrg(Twin(population), np.ones(D), draws, 0.3), rtol=1e-12)


def test_mars_equals_an_independent_loop(play, population, draws):
    # g = (1-p) (g + s u) + p grad f_S, u the difference of the cohort's gradients
    s, p, twin = 0.3, 0.4, Twin(population)
    run = play(mvr(2, draws["gammas"], p, start=np.ones(D), scale=s), population, cohort=draws["cohorts"])
    x, previous, g = np.ones(D), np.ones(D), np.ones(D)
    for k in range(ROUNDS):
        S = draws["cohorts"][k]
        here, there = twin.gradient(S, x), twin.gradient(S, previous)
        g = g if k == 0 else (1 - p) * (g + s * (here - there)) + p * here
        previous, x = x, x - draws["gammas"][k] * g
    np.testing.assert_allclose(run.params, x, rtol=1e-12)


# --- SPAM's estimator, its scale, and the server's step ---


@pytest.mark.slow
@pytest.mark.parametrize("build", [spam, spam_pp, spam_ppa])
def test_a_scale_of_one_is_mvr_bit_for_bit(play, build, population):
    cohort = () if build is spam else (2,)
    scaled = lambda scale: play(build(*cohort, 0.5, 0.3, solver=Exact(), scale=scale), population).params
    one = np.asarray(scaled(1.0))
    assert one.tobytes() == np.asarray(scaled(None)).tobytes()
    assert not np.allclose(one, scaled(0.5), rtol=1e-6)


def test_a_scale_of_zero_is_sgd_with_fresh_weight(play, population, draws):
    p, twin = 0.4, Twin(population)
    run = play(mvr(2, draws["gammas"], p, start="zero", scale=0.0, first="update"), population, cohort=draws["cohorts"])
    x, g = np.ones(D), np.zeros(D)
    for k in range(ROUNDS):
        g = (1 - p) * g + p * twin.gradient(draws["cohorts"][k], x)
        x = x - draws["gammas"][k] * g
    np.testing.assert_allclose(run.params, x, rtol=1e-12)


def test_momentum_one_on_the_server_is_sgd(play, population, draws):
    run = play(mvr(2, draws["gammas"], 1.0, first="update"), population, cohort=draws["cohorts"])
    sgd = Factored(CohortGradient(), None, Values(jnp.asarray(draws["gammas"])), movers="server", cohort_size=2)
    np.testing.assert_allclose(run.params, play(sgd, population, cohort=draws["cohorts"]).params, rtol=1e-13)


def test_mvr_on_the_server_is_spam_pp_with_small_steps(play, population):
    gap = []
    for gamma in (1e-3, 1e-4):
        prox, step = (
            play(method, population, 3).params
            for method in (spam_pp(2, gamma, 0.3, solver=Exact()), mvr(2, gamma, 0.3))
        )
        gap.append(float(jnp.linalg.norm(prox - step)))
    # equal up to gamma^2
    assert 0 < gap[1] < 0.011 * gap[0]


def test_an_mvr_that_weighs_all_rounds_alike_averages_its_errors(play, alike):
    # equal Hessians, p_k = 1/(k+1): g_k - grad f(x_k) is the mean of the k+1 cohorts' errors
    run = play(mvr(1, 0.1, Power(1.0, 1.0), first="update"), alike, cohort=[3, 0, 0, 5, 1, 2])
    mean = np.asarray(alike.linears).mean(0)
    errors = [mean - np.asarray(alike.linears[i]) for i in (3, 0, 0, 5, 1, 2)]
    np.testing.assert_allclose(
        run.state.estimate.g - alike.gradient(run.state.x_prev), np.mean(errors, axis=0), atol=1e-14
    )


@pytest.mark.slow
def test_the_bound_of_server_mvr_holds(population):
    # gamma <= 1/(L + delta sqrt(2/(pB))): mean |grad f|^2 <= 2F/(gamma K) + e_0/(pK) + 2 p sigma^2/B
    B, p, rounds = 2, 0.2, 60
    gamma = 1 / (population.smoothness + population.delta * np.sqrt(2 / (p * B)))
    probe = lambda x: {"square": jnp.sum(population.gradient(x) ** 2), "sigma": population.sigma(x)}
    start = population.gradient(jnp.ones(D))
    run = simulate_many(
        mvr(B, gamma, p, start=start), population, jnp.ones(D), rounds=rounds, keys=range(40), probe=probe, record=()
    )
    gap = float(population.loss(jnp.ones(D))) - population.optimum
    bound = 2 * gap / (gamma * rounds) + 2 * p * run.probes["sigma"].max() ** 2 / B
    assert run.probes["square"][..., :-1].mean() <= bound


# --- coins ---


def test_round_zero_asks_everyone_and_later_rounds_as_often_as_they_should():
    keys = jax.random.split(KEY, 4000)
    thrown = lambda k: jax.vmap(lambda key: coin(Constant(0.3), key, jnp.int32(k)))(keys)
    assert thrown(0).all()
    assert abs(float(thrown(1).mean()) - 0.3) < 4 * np.sqrt(0.21 / 4000)


@pytest.mark.slow
def test_sarah_is_page_with_a_regular_coin(play, population):
    regular = play(page(2, 0.2, np.array([1.0, 0, 0, 1, 0, 0])), population)
    run = simulate(sarah(2, 0.2, period=3), population, jnp.ones(D), rounds=ROUNDS, key=0)
    np.testing.assert_array_equal(run.params, regular.params)
    np.testing.assert_array_equal(run.rows["floats_up"], D * np.array([CLIENTS, 2, 2, CLIENTS, 2, 2]))


def test_without_fresh_gradients_mvr_is_sarah(play, population):
    start = population.gradient(jnp.ones(D))
    estimator = MVR(Constant(0.0))
    run = play(Factored(estimator, None, Constant(0.2), Given(start), movers="server", cohort_size=2), population)
    np.testing.assert_allclose(run.params, play(page(2, 0.2, 0.0), population).params, rtol=1e-13)


@pytest.mark.slow
def test_without_a_pull_rg_is_sarah(play, population):
    made = [rg_saga(2, 0.5, 0.0, synchronizations=1, solver=Exact()), rg_svrg(2, 0.5, 0.0, 0.4, solver=Exact())]
    plain = Factored(page(2, 1.0, 0.0).estimator, Exact(), Constant(0.5), movers="delegate", cohort_size=2)
    expected = play(plain, population).params
    for method in made:
        np.testing.assert_allclose(play(method, population).params, expected, rtol=1e-12)


def test_everyone_in_every_round_is_gradient_descent(play, population):
    x = np.ones(D)
    for _ in range(ROUNDS):
        x = x - 0.2 * Twin(population).gradient(None, x)
    for method in (page(1, 0.2, 1.0), sarah(1, 0.2, 1), mvr(CLIENTS, 0.2, 0.3, start=population.gradient(jnp.ones(D)))):
        np.testing.assert_allclose(play(method, population).params, x, rtol=1e-12)


@pytest.mark.parametrize(
    "method",
    [page(2, 0.2, 0.0), svrs(2, 0.2, 0.0, solver=Exact()), rg_svrg(2, 0.2, 0.3, 0.0, solver=Exact())],
    ids=["page", "svrg", "rg_svrg"],
)
@pytest.mark.slow
def test_clients_of_equal_hessians_keep_the_estimate_exact(play, method, alike):
    # after the exact start nothing adds an error, though only two of six clients are asked
    run = play(method, alike, 9)
    np.testing.assert_allclose(run.state.estimate.g, alike.gradient(run.state.x_prev), atol=1e-13)


def test_rg_with_everyone_is_exact_and_remembers_the_last_gradients(play, population):
    run = play(rg_saga(CLIENTS, 0.5, 0.3, solver=Exact()), population)
    np.testing.assert_allclose(run.state.estimate.g, population.gradient(run.state.x_prev), atol=1e-13)


@pytest.mark.slow
def test_the_server_knows_the_mean_of_what_clients_remember_though_replies_are_lost(population):
    faults, method = Faults(dropout=0.3), rg_saga(2, 0.3, 0.3, solver=Exact())
    run = simulate(method, population, jnp.ones(D), rounds=40, key=0, faults=faults, record=())
    np.testing.assert_allclose(run.state.estimate.memory, run.memory.mean(0), atol=1e-14)


@pytest.mark.slow
def test_page_with_many_instead_of_all_runs_without_end():
    population = Generated(
        make=lambda key: jax.random.normal(key, (D,)), loss=lambda x, centre: 0.5 * jnp.sum((x - centre) ** 2)
    )
    run = simulate(page(2, 0.5, 0.5, many=50), population, jnp.ones(D), rounds=40, key=0)
    # the mean is 0; each restart sees 50 clients
    assert jnp.linalg.norm(run.params) < 0.6
    assert set(run.rows["floats_up"]) == {50 * D, 2 * D}
    with pytest.raises(ValueError, match="endless"):
        simulate(page(2, 0.5, 0.5), population, jnp.ones(D), rounds=1, key=0)


# --- adaptive rules ---


def numpy_storm(twin, x, cohorts, rule):
    """Three rules; p of a round is fixed by the rounds before it."""
    previous, g, p, last = x, np.zeros(D), 1.0, None
    gradients = estimates = surprises = 0.0
    for S in cohorts:
        here, there = twin.gradient(S, x), twin.gradient(S, previous)
        g = here + (1 - p) * (g - there)
        gradients += here @ here
        surprises += 0 if last is None else (there - last) @ (there - last)
        if rule == "storm":
            gamma = 0.7 / (2.0 + gradients) ** (1 / 3)
            p = min(1, 3.0 * gamma**2)
        elif rule == "storm_plus":
            p = (1 + gradients) ** (-2 / 3)
            estimates += g @ g / p
            gamma = 0.8 * estimates ** (-1 / 3)
        else:
            p = (1 + surprises / 0.5) ** (-2 / 3)
            estimates += g @ g
            gamma = 0.9 * p ** ((1 - 0.4) / 2) / (1.5 + estimates) ** 0.4
        last = here
        previous, x = x, x - gamma * g
    return x, gamma, p


@pytest.mark.parametrize(
    ("rule", "method"),
    [
        ("storm", storm(2, kappa=0.7, w=2.0, c=3.0)),
        ("storm_plus", storm_plus(2, step_size=0.8)),
        ("meta_storm", meta_storm(2, step_size=0.9, a=0.5, b=1.5, exponent=0.4)),
    ],
)
@pytest.mark.slow
def test_adaptive_rules_equal_an_independent_loop(rule, method, population, draws):
    replay = {"cohort": draws["cohorts"]}
    run = simulate(method, population, jnp.ones(D), rounds=ROUNDS, key=0, replay=replay)
    x, gamma, p = numpy_storm(Twin(population), np.ones(D), draws["cohorts"], rule)
    np.testing.assert_allclose(run.params, x, rtol=1e-12)
    np.testing.assert_allclose(run.rows["step_size"][-1], gamma, rtol=1e-12)
    np.testing.assert_allclose(run.state.fresh_weight, p, rtol=1e-12)
    assert run.rows["fresh_weight"][0] == 1


def test_a_gradient_of_zero_does_not_divide_by_zero(play):
    population = Quadratics.of(np.ones((2, 1, 1)), [[1.0], [-1.0]])
    np.testing.assert_array_equal(play(storm_plus(2), population, 2, x=[0.0]).params, [0.0])


# --- what is refused ---


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: page(2, 0.1, 1.5), r"probability = 1.5 must lie in \[0, 1\]"),
        (lambda: page(2, 0.1, np.array([0.5, -0.1])), "must lie in"),
        (lambda: page(2, 0.1, 0.5, many=0), "many = 0"),
        (lambda: sarah(2, 0.1, 0), "period = 0"),
        (lambda: mvr(2, 0.1, 0.5, scale=1.5), r"scale = 1.5 must lie in \[0, 1\]"),
        (lambda: spam(0.1, 0.5, scale=-0.5), "scale = -0.5"),
        (lambda: rg_saga(2, 0.1, 2.0), "pull = 2.0"),
        (lambda: storm(2, kappa=0.0), "kappa = 0.0"),
        (lambda: meta_storm(2, exponent=0.8), "exponent = 0.8"),
        (lambda: Factored(CohortGradient(), None, Constant(0.1), movers="one"), "solver is None"),
        (lambda: Factored(CohortGradient(), None, Constant(0.1), movers="sever"), "did you mean 'server'"),
    ],
)
def test_bad_arguments_are_refused(build, says):
    with pytest.raises(ValueError, match=says):
        build()

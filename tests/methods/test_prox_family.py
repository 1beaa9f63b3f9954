"""What the proximal relatives of SPAM share: one round where Hessians are equal, one client, scaling, the optimum."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedspam.methods import (
    METHODS,
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
from fedspam.problems import Quadratics, quadratics
from proximal import CLIENTS, KEY, PROX, D, gradient, prox

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(KEY, clients=CLIENTS, dimension=D, delta=0.4, condition=3.0, noise=1.0)


@pytest.fixture(scope="module")
def alike():
    """Clients of equal Hessians: delta = 0, and their gradients differ by constants."""
    rng = np.random.default_rng(1)
    return Quadratics.of(np.tile(np.diag([1.0, 2.0, 3.0]), (CLIENTS, 1, 1)), rng.normal(size=(CLIENTS, D)))


def test_acceleration_pays_where_the_condition_is_bad(play):
    population = quadratics(KEY, clients=8, dimension=8, delta=1.0, condition=1000.0, curvature=0.01)
    norm = {}
    for build in (s_dane, acc_s_dane):
        run = play(build(None, 0.5, convexity=0.01, **PROX), population, 120)
        norm[build] = float(jnp.linalg.norm(population.gradient(run.params)))
    assert norm[acc_s_dane] < 0.01 * norm[s_dane]


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

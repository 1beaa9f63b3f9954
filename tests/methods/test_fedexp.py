"""FedExP and FedExProx: the printed loops, and FedAvg and FedProx where they are damped."""

import jax
import numpy as np
import pytest

from fedspam.methods import delta_sgd, fedavg, fedexp, fedexprox, fedprox, fedsps
from fedspam.problems import Quadratics, quadratics
from fedspam.solvers import Exact
from rounds import COHORTS, START, Clients, reached, same

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(jax.random.key(3), clients=6, dimension=4, delta=0.4, condition=4.0, curvature=0.5, noise=0.5)


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_fedexp_is_the_printed_loop(population, damping):
    c, x, alphas = Clients(population), START, []
    for cohort in COHORTS:
        moves = np.stack([c.descended(i, x, 3, 0.4) - x for i in cohort])
        mean = moves.mean(0)
        alphas.append(max(1.0, np.sum(moves**2) / (2 * len(cohort) * (mean @ mean + damping))))
        x = x + alphas[-1] * mean
    found, infos = reached(fedexp(2, 3, 0.4, damping=damping), population)
    same(found, x)
    same([info.extrapolation for info in infos], alphas)
    assert [int(info.gradients) for info in infos] == [6, 6, 6]


def test_fedexp_goes_farther_where_moves_differ():
    """Of two clients of one Hessian and nearly opposite minimizers, the moves nearly cancel."""
    ends = np.array([[1.0, 0.0, 1.0, 0.0], [-0.9, 0.1, -1.0, 0.0]])
    clients = Quadratics.of(np.tile(np.eye(4), (2, 1, 1)), ends)
    found, (info,) = reached(fedexp(2, 3, 0.5, damping=0.0), clients, np.zeros(4), [[0, 1]])
    moves = (1 - 0.5**3) * ends
    alpha = np.mean(np.sum(moves**2, 1)) / (2 * np.sum(moves.mean(0) ** 2))
    assert alpha > 50
    same(info.extrapolation, alpha)
    same(found, alpha * moves.mean(0))


def test_heavily_damped_fedexp_is_fedavg(population):
    same(reached(fedexp(2, 3, 0.4, damping=1e9), population)[0], reached(fedavg(2, 3, 0.4), population)[0])


def test_fedexprox_is_the_printed_loop(population):
    c, x, alphas = Clients(population), START, []
    for cohort in COHORTS:
        moves = np.stack([c.prox(i, x, 0.7) - x for i in cohort])
        mean = moves.mean(0)
        alphas.append(np.mean(np.sum(moves**2, 1)) / (mean @ mean))
        x = x + alphas[-1] * mean
    found, infos = reached(fedexprox(2, 0.7, solver=Exact()), population)
    same(found, x)
    same([info.extrapolation for info in infos], alphas)
    assert min(alphas) >= 1


def test_heavily_damped_fedexprox_is_fedprox(population):
    damped = fedexprox(2, 0.7, local_steps=3, local_rate=0.2, damping=1e9)
    same(reached(damped, population)[0], reached(fedprox(2, 0.7, local_steps=3, local_rate=0.2), population)[0])


def test_nobody_moves_and_nothing_breaks():
    clients = Quadratics.of(np.tile(np.eye(4), (2, 1, 1)), np.zeros((2, 4)))
    for method in (fedexp(2, 3, 0.5, damping=0.0), delta_sgd(2, 4), fedsps(2, 3)):
        np.testing.assert_array_equal(reached(method, clients, np.zeros(4), [[0, 1]])[0], np.zeros(4))

"""FedNova: the printed loop, and FedAvg with equal steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Ragged, simulate
from fedspam.methods import Epochs, fedavg, fednova
from fedspam.problems import quadratics
from rounds import ALL, CLIENTS, ETA, SIZES, descended, parabola, play, played, same

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(jax.random.key(3), clients=CLIENTS, dimension=4, delta=0.4, condition=4.0, curvature=0.5)


@pytest.fixture(scope="module")
def averaged(population):
    """FedAvg with three steps, to which several methods reduce."""
    return played(fedavg(2, 3, ETA), population).params


@pytest.fixture(scope="module")
def uneven():
    """Clients of one, two and three rows. Those of one client are equal, so that their order does not matter."""
    rows = [[0.5, 1.0, 0.0], [1.0, 0.0, 2.0], [1.5, -1.0, -1.0]]
    return Ragged.of([np.tile(row, (size, 1)) for row, size in zip(rows, SIZES, strict=True)], parabola, batch=1)


def test_fednova_is_the_printed_loop(uneven):
    x, p = np.array([1.0, -1.0]), np.array(SIZES) / sum(SIZES)
    for _ in ALL:
        taus = [2 * size for size in SIZES]
        ends = [descended(uneven, i, x, tau, 0.5, 0.1) for i, tau in enumerate(taus)]
        # a: how often the gradient of each step counts in the end
        lengths = np.array([sum((1 - 0.5 ** (tau - j)) / (1 - 0.5) for j in range(tau)) for tau in taus])
        directions = np.stack([(end - x) / length for end, length in zip(ends, lengths, strict=True)])
        x = x + (p @ lengths) * (p @ directions)
    state, infos = play(fednova(3, Epochs(2), ETA, momentum=0.5, weight_decay=0.1), uneven, [1.0, -1.0], ALL)
    same(state.x, x)
    same([info.effective_steps for info in infos], [p @ lengths] * 3)
    assert [float(info.gradients) for info in infos] == [2 * sum(SIZES)] * 3


def test_fednova_with_equal_steps_is_fedavg(population, averaged):
    same(play(fednova(2, 3, ETA), population)[0].x, averaged)


@pytest.mark.thorough
def test_fednova_minimizes_the_mean_loss_where_fedavg_does_not(uneven):
    """With small rates FedAvg stops at the minimum of the losses times their numbers of steps."""
    rows = np.asarray(uneven.examples)[[0, 1, 3]]
    minimum = lambda weights: np.average(rows[:, 1:], axis=0, weights=weights * rows[:, 0])
    ends = {
        build: simulate(build(3, Epochs(1), 0.01, weighted=False), uneven, jnp.zeros(2), rounds=2000, key=0).params
        for build in (fedavg, fednova)
    }
    np.testing.assert_allclose(ends[fednova], minimum(np.ones(3)), atol=0.01)
    np.testing.assert_allclose(ends[fedavg], minimum(np.array(SIZES)), atol=0.01)
    assert np.linalg.norm(minimum(np.ones(3)) - minimum(np.array(SIZES))) > 0.2

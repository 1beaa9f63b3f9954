"""Passes over rows instead of steps: every row once, stragglers, weights, and an optimizer of Optax."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedspam import Ragged
from fedspam.methods import Epochs, fedavg, fedprox, scaffold
from fedspam.methods._local import count_steps
from fedspam.problems import quadratics
from rounds import ALL, CLIENTS, COHORTS, ETA, SIZES, START, Clients, descended, parabola, play, played, same

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(jax.random.key(3), clients=CLIENTS, dimension=4, delta=0.4, condition=4.0, curvature=0.5)


@pytest.fixture(scope="module")
def uneven():
    """Clients of one, two and three rows. Those of one client are equal, so that their order does not matter."""
    rows = [[0.5, 1.0, 0.0], [1.0, 0.0, 2.0], [1.5, -1.0, -1.0]]
    return Ragged.of([np.tile(row, (size, 1)) for row, size in zip(rows, SIZES, strict=True)], parabola, batch=1)


def test_a_pass_has_every_row_once_and_the_next_another_order():
    clients = Ragged.of([np.eye(7)[:5], np.eye(7)], lambda x, rows: rows @ x, batch=2)
    for id, rows in ((0, 5), (1, 7)):
        client = clients.client(jnp.uint32(id))
        assert int(client.minibatches) == -(-rows // 2)
        gradient, orders = jax.jit(jax.grad(client.minibatch)), set()
        for key in jax.random.split(jax.random.key(1), 4):
            means = np.stack([gradient(jnp.zeros(7), key, number) for number in range(-(-rows // 2))])
            used = means > 0
            assert used.sum(1).tolist() == [2] * (rows // 2) + [1]
            assert used.sum(0).tolist() == [1] * rows + [0] * (7 - rows)
            same(means.sum(1), np.ones(len(means)))
            orders.add(used.tobytes())
        assert len(orders) > 1


def test_without_a_batch_a_pass_is_one_step(uneven):
    whole = Ragged.of([np.asarray(uneven.examples)[:3], np.asarray(uneven.examples)[3:]], parabola)
    state, (info,) = play(fedavg(2, Epochs(2), ETA), whole, np.ones(2), [[0, 1]])
    same(state.x, play(fedavg(2, 2, ETA), whole, np.ones(2), [[0, 1]])[0].x)
    assert int(info.gradients) == 2 * 2


@pytest.mark.parametrize("share", [0.5, 0.1, 1.5, 1 / 3])
def test_a_share_of_a_pass_is_rounded_up(uneven, share):
    counts = [int(count_steps(uneven.client(jnp.uint32(i)), Epochs(share), jax.random.key(0))) for i in range(3)]
    assert counts == [math.ceil(share * size - 1e-9) for size in SIZES]
    _, (info,) = play(fedavg(3, Epochs(share), ETA), uneven, [1.0, -1.0], ALL[:1])
    assert int(info.gradients) == sum(counts)


def test_fedavg_passes_over_its_rows(uneven):
    x = np.array([1.0, -1.0])
    for _ in ALL:
        ends = [descended(uneven, i, x, 2 * size, 0.5, 0.1) for i, size in enumerate(SIZES)]
        x = np.average(ends, axis=0, weights=SIZES)
    optimizer = optax.chain(optax.add_decayed_weights(0.1), optax.trace(0.5))
    state, infos = play(fedavg(3, Epochs(2), ETA, weighted=True, optimizer=optimizer), uneven, [1.0, -1.0], ALL)
    same(state.x, x)
    assert [float(info.gradients) for info in infos] == [2 * sum(SIZES)] * 3


def test_stragglers_stop_early(uneven):
    """If all straggle, two passes become one, to the same bits; else some clients do all passes, and some fewer."""
    one, two = (
        play(fedavg(3, passes, ETA), uneven, [1.0, -1.0], ALL) for passes in (Epochs(1), Epochs(2, stragglers=1.0))
    )
    np.testing.assert_array_equal(one[0].x, two[0].x)
    assert [int(info.gradients) for info in two[1]] == [sum(SIZES)] * 3
    keys = jax.random.split(jax.random.key(0), 500)
    client = uneven.client(jnp.uint32(1))
    steps = jax.vmap(lambda key: count_steps(client, Epochs(4, stragglers=0.5), key))(keys)
    passes = np.bincount(np.asarray(steps) // int(client.minibatches), minlength=5) / 500
    np.testing.assert_allclose(passes, [0, 1 / 6, 1 / 6, 1 / 6, 1 / 2], atol=0.06)


def test_scaffold_passes_over_its_rows(uneven):
    """The controls are those of each client's own number of steps; c is their weighted mean, outside the optimizer."""
    x, c, controls = np.array([1.0, -1.0]), np.zeros(2), np.zeros((3, 2))
    for _ in ALL:
        ends, old = np.zeros((3, 2)), controls.copy()
        for i, size in enumerate(SIZES):
            h, *center = np.asarray(uneven.examples)[[0, 1, 3][i]]
            y, v, seen = x, 0.0, []
            for _ in range(2 * size):
                v = 0.5 * v + h * (y - np.array(center))
                seen.append(v)
                y = y - ETA * (v - old[i] + c)
            ends[i], controls[i] = y, np.mean(seen, axis=0)
        x, c = np.average(ends, axis=0, weights=SIZES), np.average(controls, axis=0, weights=SIZES)
    run = played(scaffold(3, Epochs(2), ETA, weighted=True, optimizer=optax.trace(0.5)), uneven, [1.0, -1.0], ALL)
    same(run.params, x)
    same(run.memory, controls)
    same(run.state.mean, c)
    assert run.rows["gradients"].tolist() == [2 * sum(SIZES)] * 3
    assert run.rows["floats_up"].tolist() == [3 * 2 * 2] * 3


def test_weighted_scaffold_derives_the_controls(uneven):
    run = played(scaffold(3, 2, ETA, weighted=True), uneven, [1.0, -1.0], ALL)
    same(run.state.mean, np.average(run.memory, axis=0, weights=SIZES))
    assert run.rows["floats_up"].tolist() == [3 * 2] * 3


def test_fedprox_takes_an_optimizer(population):
    x, c = START, Clients(population)
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            y, v = x, 0.0
            for _ in range(3):
                v = 0.5 * v + c.grad(i, y) + (y - x) / 0.7
                y = y - ETA * v
            ends.append(y)
        x = np.mean(ends, axis=0)
    method = fedprox(2, 0.7, local_steps=3, local_rate=ETA, optimizer=optax.trace(0.5))
    same(play(method, population)[0].x, x)


def test_passes_need_rows(population):
    with pytest.raises(ValueError, match=r"these clients have no rows to pass over; give a number of steps"):
        play(fedavg(2, Epochs(1), ETA), population)

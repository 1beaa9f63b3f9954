"""FedCM and SCAFFOLD-M, with and without variance reduction: NumPy, a round by hand, and identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Ragged
from fedspam.methods import fedavg, fedcm, fedcm_vr, mvr, scaffold, scaffold_m, scaffold_m_vr
from fedspam.problems import Quadratics, quadratics
from rounds import BETA, CLIENTS, COHORTS, ETA, START, Clients, parabola, play, played, same

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


def test_fedcm_is_the_printed_loop(population):
    c, x, g = Clients(population), START, np.zeros(4)
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            y = x
            for _ in range(3):
                y = y - ETA * (BETA * c.grad(i, y) + (1 - BETA) * g)
            ends.append(y)
        g = (x - np.mean(ends, axis=0)) / (3 * ETA)
        x = x - 0.7 * 3 * ETA * g
    state, infos = play(fedcm(2, 3, ETA, fresh_weight=BETA, server_step_size=0.7), population)
    same(state.x, x)
    same(state.g, g)
    assert int(infos[0].gradients) == 6


def test_fedcm_without_memory_is_fedavg(population, averaged):
    same(play(fedcm(2, 3, ETA, fresh_weight=1.0), population)[0].x, averaged)


def test_fedcm_vr_is_the_printed_loop(population):
    c, x, x_prev, g = Clients(population), START, START, np.zeros(4)
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            y = x
            for _ in range(3):
                y = y - ETA * (c.grad(i, y) + (1 - BETA) * (g - c.grad(i, x_prev)))
            ends.append(y)
        g = (x - np.mean(ends, axis=0)) / (3 * ETA)
        x, x_prev = x - 0.7 * 3 * ETA * g, x
    run = played(fedcm_vr(2, 3, ETA, fresh_weight=BETA, server_step_size=0.7), population)
    same(run.params, x)
    same(run.state.x_prev, x_prev)
    same(run.state.g, g)
    assert run.rows["gradients"].tolist() == [2 * 2 * 3] * 3
    assert run.rows["floats_down"].tolist() == [2 * 3 * 4] * 3


def test_fedcm_vr_without_memory_is_fedavg(population, averaged):
    same(play(fedcm_vr(2, 3, ETA, fresh_weight=1.0), population)[0].x, averaged)


def test_fedcm_vr_of_one_step_is_mvr(population):
    state, _ = play(fedcm_vr(2, 1, ETA, fresh_weight=BETA), population)
    other, _ = play(mvr(2, ETA, BETA, start="zero", first="update"), population)
    same(state.x, other.x)


def test_fedcm_vr_evaluates_both_gradients_on_the_same_minibatch():
    """At x = x_prev the noise of both gradients cancels but for beta times that of one."""
    clients, g = Ragged.of([np.array([[1.0, -3.0], [1.0, 5.0], [1.0, 4.0]])], parabola, batch=1), jnp.array([0.5])
    method, zero = fedcm_vr(1, 1, 1.0, fresh_weight=0.25), jnp.zeros(1)
    train = lambda key: method.train(clients.client(jnp.uint32(0)), key, x=zero, x_prev=zero, g=g, local_rate=1.0)
    ends = np.unique(jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 20)))
    same(ends, 0.25 * np.array([-3.0, 4.0, 5.0]) - 0.75 * 0.5)


def test_scaffold_m_is_the_printed_loop(population):
    c, x, g, control, controls = Clients(population), START, np.zeros(4), np.zeros(4), np.zeros((CLIENTS, 4))
    for cohort in COHORTS:
        ends, old = [], controls.copy()
        for i in cohort:
            y, gradients = x, []
            for _ in range(3):
                gradients.append(c.grad(i, y))
                y = y - ETA * (BETA * (gradients[-1] - old[i] + control) + (1 - BETA) * g)
            ends.append(y)
            controls[i] = np.mean(gradients, axis=0)
        g = (x - np.mean(ends, axis=0)) / (3 * ETA)
        x = x - 0.7 * 3 * ETA * g
        control = control + (controls - old).sum(0) / CLIENTS
    run = played(scaffold_m(2, 3, ETA, fresh_weight=BETA, server_step_size=0.7), population)
    same(run.params, x)
    same(run.memory, controls)
    same(run.state.control, controls.mean(0))


def test_scaffold_m_vr_is_the_printed_loop(population):
    c, x, x_prev, g, control = Clients(population), START, START, np.zeros(4), np.zeros(4)
    controls = np.zeros((CLIENTS, 4))
    for cohort in COHORTS:
        ends, old = [], controls.copy()
        for i in cohort:
            y, gradients = x, []
            for _ in range(3):
                gradients.append(c.grad(i, y))
                momentum = g + gradients[-1] - c.grad(i, x_prev)  # carried from the last point to this one
                y = y - ETA * (BETA * (gradients[-1] - old[i] + control) + (1 - BETA) * momentum)
            ends.append(y)
            controls[i] = np.mean(gradients, axis=0)
        g = (x - np.mean(ends, axis=0)) / (3 * ETA)
        x, x_prev = x - 0.7 * 3 * ETA * g, x
        control = control + (controls - old).sum(0) / CLIENTS
    run = played(scaffold_m_vr(2, 3, ETA, fresh_weight=BETA, server_step_size=0.7), population)
    same(run.params, x)
    same(run.memory, controls)
    same(run.state.control, controls.mean(0))
    same(run.state.g, g)
    assert run.rows["gradients"].tolist() == [2 * 2 * 3] * 3
    assert run.rows["floats_down"].tolist() == [2 * 4 * 4] * 3
    assert run.rows["floats_up"].tolist() == [2 * 2 * 4] * 3


def test_a_round_of_scaffold_m_vr_worked_by_hand():
    """f = h (y - a)^2 / 2 with h = 2, a = 1; x = 1, x_prev = 0, g = 4, c_i = 1, c = 3, beta = 1/2, eta = 1/4, m = 2.

    The gradient at x_prev is -2. So a step goes along 2 (y - 1) - (1 - 3) / 2 + (4 + 2) / 2 = 2 y + 2: by 1 from 1 to
    0, by 1/2 from 0 to -1/2. The gradients on the way, 0 and -2, have the mean -1.
    """
    client = Quadratics.of(np.full((1, 1, 1), 2.0), np.array([[2.0]])).client(jnp.uint32(0))
    x, x_prev, g, own, control = (jnp.array([number]) for number in (1.0, 0.0, 4.0, 1.0, 3.0))
    method = scaffold_m_vr(1, 2, 0.25, fresh_weight=0.5)
    message = {"x": x, "x_prev": x_prev, "g": g, "control": control, "local_rate": 0.25}
    (moved, changed, *_), new = method.train(client, jax.random.key(0), own, **message)
    assert (float(moved[0]), float(changed[0]), float(new[0])) == (-1.5, -2.0, -1.0)


def test_scaffold_m_vr_without_controls_is_fedcm_vr():
    """Also on minibatches: both gradients of a step are on the same one."""
    clients = Ragged.of([np.array([[1.0, -3.0], [2.0, 5.0], [0.5, 4.0]])], parabola, batch=1)
    client, zero, message = clients.client(jnp.uint32(0)), jnp.zeros(1), {"x_prev": jnp.array([2.0]), "local_rate": ETA}
    message |= {"x": jnp.array([1.0]), "g": jnp.array([0.5])}
    plain, controlled = (build(1, 3, ETA, fresh_weight=BETA) for build in (fedcm_vr, scaffold_m_vr))

    def both(key):
        reply, _ = controlled.train(client, key, zero, control=zero, **message)
        return plain.train(client, key, **message), reply.moved

    moves = jax.jit(jax.vmap(both))(jax.random.split(jax.random.key(0), 8))
    same(*moves)
    assert len(np.unique(moves[0])) > 3  # minibatches differ


@pytest.mark.parametrize("build", [scaffold_m, scaffold_m_vr])
def test_scaffold_m_without_memory_is_scaffold(population, build):
    plain = played(scaffold(2, 3, ETA), population)
    run = played(build(2, 3, ETA, fresh_weight=1.0), population)
    same(run.params, plain.params)
    same(run.memory, plain.memory)

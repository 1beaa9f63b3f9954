"""FedNova, FedCM, SCAFFOLD-M, SPPM-AS, Ditto, passes over rows, Optax on both sides: NumPy and identities."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedspam import Ragged, simulate
from fedspam.federation.traced import Traced
from fedspam.methods import (
    Epochs,
    ditto,
    fedacg,
    fedavg,
    fedavgm,
    fedcm,
    fedcm_vr,
    fednova,
    fedopt,
    fedprox,
    mvr,
    scaffold,
    scaffold_m,
    scaffold_m_vr,
    sppm,
    sppm_as,
)
from fedspam.methods._local import count_steps
from fedspam.methods.fedopt import WITHOUT_RATE, without_rate
from fedspam.problems import Quadratics, quadratics
from fedspam.solvers import Exact
from rounds import COHORTS, START, Clients, one_round, same

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]

CLIENTS = 6
ETA, BETA = 0.2, 0.3


@pytest.fixture(scope="module")
def population():
    return quadratics(jax.random.key(3), clients=CLIENTS, dimension=4, delta=0.4, condition=4.0, curvature=0.5)


def play(method, population, start=START, cohorts=COHORTS):
    """Some rounds with given cohorts: the last state, and what each round recorded. Clients keep nothing."""
    state, infos = method.init(jnp.asarray(start), jax.random.key(9), Traced(population)), []
    for k in range(len(cohorts)):
        key = jax.random.fold_in(jax.random.key(0), k)
        state, info = one_round(method, population, state, key, k, {"cohort": np.asarray(cohorts)})
        infos.append(info)
    return state, infos


def played(method, population, start=START, cohorts=COHORTS):
    """A run with given cohorts, with the memory of the clients."""
    return simulate(method, population, jnp.asarray(start), rounds=len(cohorts), key=0, replay={"cohort": cohorts})


@pytest.fixture(scope="module")
def averaged(population):
    """FedAvg with three steps, to which several methods reduce."""
    return played(fedavg(2, 3, ETA), population).params


# --- passes over rows ---

SIZES = (1, 2, 3)


def parabola(x, rows):
    """Each row is a curvature and a center."""
    return 0.5 * rows[:, 0] * jnp.sum((x - rows[:, 1:]) ** 2, axis=1)


@pytest.fixture(scope="module")
def uneven():
    """Clients of one, two and three rows. Those of one client are equal, so that their order does not matter."""
    rows = [[0.5, 1.0, 0.0], [1.0, 0.0, 2.0], [1.5, -1.0, -1.0]]
    return Ragged.of([np.tile(row, (size, 1)) for row, size in zip(rows, SIZES, strict=True)], parabola, batch=1)


ALL = np.array([[0, 1, 2]] * 3)


def descended(uneven, i, x, steps, momentum=0.0, decay=0.0):
    h, *center = np.asarray(uneven.examples)[[0, 1, 3][i]]
    y, v = x, 0.0
    for _ in range(steps):
        v = momentum * v + h * (y - np.array(center)) + decay * y
        y = y - ETA * v
    return y


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


# --- FedNova ---


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


# --- FedCM and SCAFFOLD-M ---


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


# --- SPPM-AS ---


def test_sppm_as_is_the_printed_loop(population):
    c, x = Clients(population), START
    for cohort in COHORTS:
        y = x
        for _ in range(3):
            slope = np.mean([c.grad(i, y) for i in cohort], axis=0) + (y - x) / 0.7
            y = y - ETA * slope
        x = y
    state, infos = play(sppm_as(2, 0.7, ETA, exchanges=3), population)
    same(state.x, x)
    same(infos[-1].stationarity, np.linalg.norm(slope))
    assert int(infos[-1].gradients) == 3 * 2


def test_sppm_as_of_one_client_is_sppm_once_it_has_converged():
    """On f = |x - a|^2 / 2 a step of 1 / (1 + 1 / gamma) is the prox."""
    clients = Quadratics.of(np.tile(np.eye(4), (5, 1, 1)), np.arange(20.0).reshape(5, 4))
    cohorts = np.array([[0], [3], [4]])
    state, infos = play(sppm_as(1, 0.7, 1 / (1 + 1 / 0.7), exchanges=2), clients, cohorts=cohorts)
    same(state.x, play(sppm(0.7, solver=Exact()), clients, cohorts=cohorts)[0].x)
    np.testing.assert_allclose([info.stationarity for info in infos], 0, atol=1e-12)


# --- Ditto ---


@pytest.mark.parametrize("pull", [0.0, 0.4])
def test_ditto_is_fedavg_and_personal_steps(population, averaged, pull):
    c, x, personal = Clients(population), START, np.tile(START, (CLIENTS, 1))
    for cohort in COHORTS:
        for i in cohort:
            for _ in range(2):
                v = personal[i]
                personal[i] = v - 0.1 * (c.grad(i, v) + pull * (v - x))
        x = np.mean([c.descended(i, x, 3, ETA) for i in cohort], axis=0)
    run = played(ditto(2, 3, ETA, pull=pull, personal_steps=2, personal_rate=0.1), population)
    np.testing.assert_array_equal(run.params, averaged)
    same(run.memory, personal)
    assert run.rows["gradients"].tolist() == [2 * (3 + 2)] * 3


# --- Optax ---


def test_fedopt_with_sgd_is_fedavg_and_with_momentum_fedavgm(population, averaged):
    same(play(fedopt(2, 3, ETA, optax.sgd(1.0)), population)[0].x, averaged)
    heavy, _ = play(fedopt(2, 3, ETA, optax.sgd(0.3, momentum=0.9)), population)
    same(heavy.x, play(fedavgm(2, 3, ETA, server_step_size=0.3), population)[0].x)


def test_fedopt_by_name_is_the_optimizer_of_optax(population):
    named = play(fedopt(2, 3, ETA, "adam", server_step_size=0.1), population)[0]
    same(named.x, play(fedopt(2, 3, ETA, optax.adam(0.1)), population)[0].x)


@pytest.mark.parametrize("name", WITHOUT_RATE)
def test_a_name_is_the_part_of_the_optimizer_without_its_rate(name):
    """Two steps in a row, on a gradient with both signs; Lion's weight decay is not part of its direction."""
    whole = getattr(optax, name)(0.1, **({"weight_decay": 0.0} if name == "lion" else {}))
    part, x, gradient = without_rate(name), jnp.ones(3), jnp.array([0.5, -2.0, 1.0])
    states = whole.init(x), part.init(x)
    for _ in range(2):
        (update, first), (direction, second) = whole.update(gradient, states[0], x), part.update(gradient, states[1], x)
        same(update, -0.1 * direction)
        states = first, second


# --- what is refused ---


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fedavg(2, 3, 0.1, optimizer=optax.sgd(0.1)), "it has a rate of its own; give the part without"),
        (lambda: fedavg(2, 3, 0.1, optimizer=0.9), "must be an Optax transformation, such as"),
        (lambda: fedprox(2, 0.7, solver=Exact(), optimizer=optax.trace(0.9)), "leave out local_steps, local_rate and"),
        (lambda: fedopt(2, 3, 0.1, 0.9), "must be an Optax optimizer, such as"),
        (lambda: fedopt(2, 3, 0.1, "adam"), "is a name without a rate; give server_step_size"),
        (lambda: fedopt(2, 3, 0.1, "Adam", server_step_size=0.1), "did you mean 'adam'"),
        (lambda: fedopt(2, 3, 0.1, optax.adam(0.1), server_step_size=0.1), "give the rate to the optimizer itself"),
        (lambda: fedavg(2, 0, 0.1), "local_steps = 0 .* or give Epochs"),
        (lambda: Epochs(0), "passes"),
        (lambda: Epochs(2, stragglers=1.5), "stragglers = 1.5"),
        (lambda: Epochs(float("nan")), "passes = nan"),
        (lambda: Epochs(1, stragglers=0.5), "but there is only 1; give more passes"),
        (lambda: Epochs(2.5, stragglers=0.5), "only 2.5; give more passes, a whole number of them"),
        (lambda: fedacg(2, Epochs(1), 0.1), "local_steps"),
        (lambda: fednova(2, 3, 0.1, momentum=1.0), "0 is plain SGD"),
        (lambda: fedcm(2, 3, 0.1, fresh_weight=0.0), "1 is FedAvg or SCAFFOLD"),
        (lambda: fedcm_vr(2, 3, 0.1, fresh_weight=0.0), "1 is FedAvg or SCAFFOLD"),
        (lambda: scaffold_m(2, 3, 0.1, fresh_weight=1.5), "1 is FedAvg or SCAFFOLD"),
        (lambda: scaffold_m_vr(2, 3, 0.1, fresh_weight=0.0), "1 is FedAvg or SCAFFOLD"),
        (lambda: sppm_as(2, 1.0, 0.1, exchanges=0), "exchanges"),
        (lambda: ditto(2, 3, 0.1, pull=-1.0), "0 is training alone"),
    ],
)
def test_wrong_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_passes_need_rows(population):
    with pytest.raises(ValueError, match=r"these clients have no rows to pass over; give a number of steps"):
        play(fedavg(2, Epochs(1), ETA), population)

"""FedAvg and its optimizers, SCAFFOLD, FedDyn, Scaffnew, FedRed, MIME, CE-LSGD, BVR-L-SGD, FedProx: local steps.

Hand-worked rounds, independent NumPy loops, and the identities they must satisfy.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Faults, Ragged, spam
from fedspam.clients import DataOracle
from fedspam.federation import ledger
from fedspam.federation.traced import Traced
from fedspam.methods import (
    METHODS,
    Adam,
    Factored,
    Momentum,
    Scales,
    bvr_l_sgd,
    ce_lsgd,
    dane,
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    feddyn,
    fedprox,
    fedred,
    fedred_memory,
    fedyogi,
    mime,
    mime_lite,
    mime_lite_mvr,
    mime_mvr,
    mvr,
    scaffnew,
    scaffold,
    spam_ppa,
)
from fedspam.methods._local import Sarah, descend, until_heads
from fedspam.methods.estimators import OwnGradient
from fedspam.methods.schedules import Constant
from fedspam.problems import Quadratics, quadratics
from fedspam.solvers import Exact, GradientDescent

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]

START = np.array([1.0, -1.0, 0.5, 2.0])
N, ROUNDS = 6, 5
COHORTS = np.array([[0, 3], [3, 1], [4, 2], [1, 0], [3, 4]])  # two of six; client 5 is never asked
EVERYONE = np.tile(np.arange(N), (ROUNDS, 1))


@pytest.fixture(scope="module")
def population():
    return quadratics(jax.random.key(3), clients=N, dimension=4, delta=0.4, condition=4.0, curvature=0.5, noise=0.5)


@pytest.fixture(scope="module")
def twins():
    """Six times the same client."""
    one = quadratics(jax.random.key(4), clients=1, dimension=4, delta=0.0, noise=0.0, condition=4.0, curvature=0.5)
    return Quadratics.of(np.tile(one.hessians, (N, 1, 1)), np.tile(one.linears, (N, 1)))


@jax.jit
def one_round(method, population, replay, faults, state, memory, k, key):
    fed = Traced(population, round=k, memory=memory, replay=replay, faults=faults)
    state, info = method.round(state, key, fed)
    return state, fed.memory, info


def play(method, population, x, rounds, cohorts=None, key=0, faults=None):
    """Some rounds: the last state, what clients remember, the infos. Methods that differ in numbers compile once."""
    memory = jax.tree.map(lambda leaf: jnp.stack([leaf] * population.size), method.client_state(jnp.asarray(x)))
    replay = cohorts if cohorts is None or isinstance(cohorts, dict) else {"cohort": np.asarray(cohorts)}
    fed = Traced(population, memory=memory)
    state, infos = method.init(jnp.asarray(x), jax.random.key(99), fed), []
    memory = fed.memory
    for k in range(rounds):
        key_k = jax.random.fold_in(jax.random.key(key), k)
        state, memory, info = one_round(method, population, replay, faults, state, memory, k, key_k)
        infos.append(info)
    return state, memory, infos


def final(method, population, x=START, rounds=ROUNDS, cohorts=None, key=0):
    state, _, _ = play(method, population, x, rounds, cohorts, key)
    return np.asarray(method.params(state))


class Numpy:
    """The clients once more, in NumPy."""

    def __init__(self, population):
        self.h, self.b, self.n = np.asarray(population.hessians), np.asarray(population.linears), population.size
        self.hessian, self.linear = self.h.mean(0), self.b.mean(0)

    def grad(self, i, y):
        return self.h[i] @ y - self.b[i]

    def full(self, y, ids=None):
        return np.mean([self.grad(i, y) for i in (range(self.n) if ids is None else ids)], axis=0)

    def descended(self, x, steps, eta, full=None):
        for _ in range(steps):
            x = x - eta * (self.full(x) if full is None else full(x))
        return x


# --- worked by hand: f_0 = x^2 and f_1 = x^2/2 - x, so that f' is 2x and x - 1 ---

TWO = Quadratics.of([[[2.0]], [[1.0]]], [[0.0], [1.0]])
BOTH = [[0, 1], [0, 1]]


def by_hand(method, rounds=2, population=TWO, x=1.0):
    cohorts = BOTH if population is TWO else [[0], [0]]
    return final(method, population, np.array([x]), rounds, cohorts)[0]


def test_fedavg_by_hand():
    # client 0: 1, 1/2, 1/4; client 1 is at its minimizer; mean 5/8, moved by -3/8, of which half: 13/16
    assert by_hand(fedavg(2, 2, 0.25, server_step_size=0.5), 1) == 13 / 16


@pytest.mark.parametrize("option", ["steps", "gradient"])
def test_scaffold_by_hand(option):
    method = scaffold(2, 2, 0.25, option=option)
    state, memory, _ = play(method, TWO, np.array([1.0]), 2, BOTH)
    if option == "steps":
        # round 0 is FedAvg, x = 5/8; c_0 = (1 - 1/4)/(1/2) = 3/2, c_1 = 0, c = 3/4
        # client 0: 5/8, 1/2, 7/16; client 1: 5/8, 17/32, 59/128; c_0 += -3/4 + 3/8, c_1 += -3/4 + 21/64
        expected, controls = (7 / 16 + 59 / 128) / 2, [3 / 2 - 3 / 4 + 3 / 8, -3 / 4 + 21 / 64]
    else:
        # controls are the gradients at x_0 = 1 and then at x_1 = 5/8: 2 and 0, c = 1; then 5/4 and -3/8
        # client 0: 5/8, 9/16 (2y - 1), 17/32; client 1 (y - 1 + 1): 5/8, 15/32, 45/128
        expected, controls = (17 / 32 + 45 / 128) / 2, [5 / 4, -3 / 8]
    np.testing.assert_allclose(state.x, [expected], rtol=1e-15)
    np.testing.assert_allclose(memory[:, 0], controls, rtol=1e-14)
    np.testing.assert_allclose(state.mean, [np.mean(controls)], rtol=1e-14)


def test_server_optimisers_by_hand():
    # one client, f' = x, x_0 = 2, one step of 1/2: the moves are -1 and, if x_1 = 1, -1/2
    client = Quadratics.of([[[1.0]]], [[0.0]])
    numbers = {"momentum": 0.5, "square_momentum": 0.75, "adaptivity": 1.0}
    # M = -1/2, V = 3/4 + 1/4 = 1, x = 2 - 4/2/2 = 1; M = -1/4 - 1/4, V = 3/4 + 1/16
    x = by_hand(fedadam(1, 1, 0.5, 4.0, **numbers), population=client, x=2.0)
    np.testing.assert_allclose(x, 1 - 2 / (1 + np.sqrt(13 / 16)), rtol=1e-14)
    # V stays 1, as V = Delta^2; then V = 1 - 1/4 * 1/4
    x = by_hand(fedyogi(1, 1, 0.5, 4.0, **numbers), population=client, x=2.0)
    np.testing.assert_allclose(x, 1 - 2 / (1 + np.sqrt(15 / 16)), rtol=1e-14)
    # M = Delta: V = 1 + 1, x = 2 - 1/(1 + sqrt 2); Delta = -x/2, V = 2 + x^2/4
    x = 2 - 1 / (1 + np.sqrt(2))
    expected = x - x / 2 / (1 + np.sqrt(2 + x**2 / 4))
    np.testing.assert_allclose(
        by_hand(fedadagrad(1, 1, 0.5, 1.0, adaptivity=1.0), population=client, x=2.0), expected, rtol=1e-14
    )
    # M = -1, x = 1; M = -1/4 - 1/2, x = 1/4
    assert by_hand(fedavgm(1, 1, 0.5, momentum=0.25), population=client, x=2.0) == 1 / 4


def test_feddyn_by_hand():
    # one client, f' = x, gamma = 1, x_0 = 2: y = 1, h = 1 = f'(y), x = y - h = 0; then (y - 1) + y = 0, y = 1/2
    client = Quadratics.of([[[1.0]]], [[0.0]])
    for solver in ({"solver": Exact()}, {"local_steps": 60, "local_rate": 0.4}):
        state, memory, _ = play(feddyn(1, 1.0, **solver), client, np.array([2.0]), 1)
        np.testing.assert_allclose([state.x[0], state.mean[0], memory[0, 0]], [0, 1, 1], atol=1e-12)
        state, memory, _ = play(feddyn(1, 1.0, **solver), client, np.array([2.0]), 2)
        np.testing.assert_allclose([state.x[0], state.mean[0], memory[0, 0]], [0, 0.5, 0.5], atol=1e-12)


# --- independent loops ---


def numpy_scaffold(c, x, eta, m, eta_s, cohorts, option):
    own, control = np.zeros((c.n, len(x))), np.zeros(len(x))
    for cohort in cohorts:
        moves, changes = [], []
        for i in cohort:
            y = c.descended(x, m, eta, lambda y: c.grad(i, y) - own[i] + control)
            new = c.grad(i, x) if option == "gradient" else own[i] - control + (x - y) / (m * eta)
            moves.append(y - x)
            changes.append(new - own[i])
            own[i] = new
        x, control = x + eta_s * np.mean(moves, axis=0), control + np.sum(changes, axis=0) / c.n
    return x, control, own


@pytest.mark.parametrize("option", ["steps", "gradient"])
def test_scaffold_remembers_right_when_few_are_asked(population, option):
    method = scaffold(2, 3, 0.2, server_step_size=0.7, option=option)
    state, memory, _ = play(method, population, START, ROUNDS, COHORTS)
    x, control, own = numpy_scaffold(Numpy(population), START, 0.2, 3, 0.7, COHORTS, option)
    np.testing.assert_allclose(state.x, x, rtol=1e-12)
    np.testing.assert_allclose(state.mean, control, rtol=1e-12)
    np.testing.assert_allclose(memory, own, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(state.mean, memory.mean(0), atol=1e-14)
    assert not np.any(memory[5])
    assert np.all(np.any(memory[:5], axis=1))


def test_feddyn_remembers_right_when_few_are_asked(population):
    c, gamma = Numpy(population), 0.8
    state, memory, _ = play(feddyn(2, gamma, solver=Exact()), population, START, ROUNDS, COHORTS)
    x, h, own = START, np.zeros(4), np.zeros((N, 4))
    for cohort in COHORTS:
        answers = [np.linalg.solve(c.h[i] + np.eye(4) / gamma, c.b[i] + own[i] + x / gamma) for i in cohort]
        for i, y in zip(cohort, answers, strict=True):
            own[i] = own[i] - (y - x) / gamma
            np.testing.assert_allclose(own[i], c.grad(i, y), atol=1e-12)  # what it remembers is its gradient there
        h = h - sum(y - x for y in answers) / (gamma * N)
        x = np.mean(answers, axis=0) - gamma * h
    np.testing.assert_allclose(state.x, x, rtol=1e-11)
    np.testing.assert_allclose(memory, own, atol=1e-12)
    np.testing.assert_allclose(state.mean, memory.mean(0), atol=1e-12)


@pytest.mark.parametrize("build", [lambda: scaffold(4, 2, 0.2), lambda: scaffold(4, 2, 0.2, option="gradient"),
                                   lambda: feddyn(4, 0.8, local_steps=3, local_rate=0.2)])  # fmt: skip
def test_the_server_knows_the_mean_memory_where_replies_are_lost(population, build):
    state, memory, _ = play(build(), population, START, 8, faults=Faults(dropout=0.4))
    server = state.mean
    np.testing.assert_allclose(server, memory.mean(0), atol=1e-14)
    assert np.any(memory)


@pytest.mark.parametrize("pull", [0.0, 0.3])
def test_scaffnew_is_the_printed_loop(population, pull):
    """ProxSkip as printed, one coin a step, and FedRed with remembered controls; the coins are those of the run."""
    c, eta, p = Numpy(population), 0.3, 0.4
    method = scaffnew(eta, p) if pull == 0 else fedred_memory(eta, pull, p)
    state, memory, infos = play(method, population, START, ROUNDS)
    steps = [int(info.steps) for info in infos]
    assert len(set(steps)) > 1
    y, h, x = np.tile(START, (N, 1)), np.zeros((N, 4)), START
    if pull > 0:  # the controls of FedRed are first those of its other form
        h = np.array([c.grad(i, START) for i in range(N)]) - c.full(START)
    for count in steps:
        for _ in range(count):
            y = np.array([(y[i] / eta + pull * x + h[i] - c.grad(i, y[i])) / (1 / eta + pull) for i in range(N)])
        last_h, x = h, y.mean(0)
        h, y = h + p / eta * (x - y), np.tile(x, (N, 1))
    np.testing.assert_allclose(state.x, x, rtol=1e-12)
    np.testing.assert_allclose(memory.h, last_h, atol=1e-12)  # the last update comes with the next average
    np.testing.assert_allclose(memory.h.sum(0), 0, atol=1e-12)


@pytest.mark.parametrize("model", ["average", "one"])
def test_fedred_is_dane_with_as_many_gradient_steps(population, model):
    eta, pull = 0.3, 0.2
    method = fedred(eta, pull, 0.3, model=model)
    state, _, (info,) = play(method, population, START, 1, key=3)
    assert int(info.steps) > 2
    c, g = Numpy(population), Numpy(population).full(START)
    ends = []
    for i in range(N):
        y, h = START, c.grad(i, START) - g
        for _ in range(int(info.steps)):
            y = (y / eta + pull * START + h - c.grad(i, y)) / (1 / eta + pull)
        ends.append(y)
    if model == "one":
        assert min(np.abs(state.x - y).max() for y in ends) < 1e-13
    else:
        np.testing.assert_allclose(state.x, np.mean(ends, axis=0), rtol=1e-12)
        solver = GradientDescent(steps=int(info.steps), local_rate=eta / (1 + eta * pull), safeguard=False)
        np.testing.assert_allclose(state.x, final(dane(1 / pull, solver=solver), population, rounds=1), rtol=1e-12)


def test_fedred_with_many_steps_is_dane(population):
    state, _, (info,) = play(fedred(0.4, 0.3, 1e-3), population, START, 1)
    assert int(info.steps) > 200
    np.testing.assert_allclose(state.x, final(dane(1 / 0.3, solver=Exact()), population, rounds=1), atol=1e-12)


def numpy_mime(c, x, eta, m, eta_s, cohorts, base, lite):
    """Mime and MimeLite with Adam; momentum is Adam that does not divide."""
    beta, square, epsilon = base
    first, second = np.zeros(4), np.full(4, epsilon**2)
    for cohort in cohorts:
        control = c.full(x, cohort)

        def direction(i, y):
            g = c.grad(i, y) if lite else c.grad(i, y) - c.grad(i, x) + control
            g = (1 - beta) * g + beta * first
            return g if square is None else g / (np.sqrt(second) + epsilon)

        moved = np.mean([c.descended(x, m, eta, lambda y: direction(i, y)) - x for i in cohort], axis=0)
        first = beta * first + (1 - beta) * control
        second = second if square is None else square * second + (1 - square) * control**2
        x = x + eta_s * moved
    return x


@pytest.mark.parametrize("build", [mime, mime_lite])
@pytest.mark.parametrize(
    ("base", "numbers"), [(Adam(0.6, 0.8, 0.3), (0.6, 0.8, 0.3)), (Momentum(0.6), (0.6, None, 0.0))]
)
def test_mime_is_the_printed_loop(population, build, base, numbers):
    made = build(2, 3, 0.1, base=base, server_step_size=0.8)
    expected = numpy_mime(Numpy(population), START, 0.1, 3, 0.8, COHORTS, numbers, build is mime_lite)
    np.testing.assert_allclose(final(made, population, cohorts=COHORTS), expected, rtol=1e-12)
    if build is mime:  # minibatches of a client without any are the whole
        made = build(2, 3, 0.1, base=base, server_step_size=0.8, minibatch=True)
        np.testing.assert_allclose(final(made, population, cohorts=COHORTS), expected, rtol=1e-12)


def numpy_recursive(c, x, g, p, eta, m, cohorts, who):
    """MimeMVR (average), CE-LSGD (one, in SARAH's form) and MimeLiteMVR."""
    previous = x
    for k, cohort in enumerate(cohorts):
        estimate = c.full(x, cohort) + (1 - p) * (g - c.full(previous, cohort))
        estimate = g if k == 0 and who != "lite" else estimate  # the first estimate is the given one
        if who == "lite":
            ends = [
                c.descended(x, m, eta, lambda y: c.grad(i, y) + (1 - p) * (g - c.grad(i, previous))) for i in cohort
            ]
        elif who == "average":
            ends = [c.descended(x, m, eta, lambda y: c.grad(i, y) - c.grad(i, x) + estimate) for i in cohort]
        else:
            w, v = x, estimate
            for _ in range(m):
                moved = w - eta * v
                w, v = moved, v + c.grad(who[k], moved) - c.grad(who[k], w)
            ends = [w]
        previous, x, g = x, np.mean(ends, axis=0), estimate
    return x


def test_recursive_methods_are_the_printed_loops(population):
    c, g = Numpy(population), np.array([0.3, -0.2, 0.1, 0.4])
    numbers = (4, 0.15, 0.3)
    start = {"start": jnp.asarray(g)}
    expected = numpy_recursive(c, START, g, 0.3, 0.15, 4, COHORTS, "average")
    np.testing.assert_allclose(final(mime_mvr(2, *numbers, **start), population, cohorts=COHORTS), expected, rtol=1e-12)
    expected = numpy_recursive(c, START, g, 0.3, 0.15, 4, COHORTS, "lite")
    np.testing.assert_allclose(
        final(mime_lite_mvr(2, *numbers, **start), population, cohorts=COHORTS), expected, rtol=1e-12
    )
    movers = [0, 1, 2, 1, 3]
    replay = {"cohort": COHORTS, "prox": np.array(movers)}
    expected = numpy_recursive(c, START, g, 0.3, 0.15, 4, COHORTS, movers)
    for minibatch in (False, True):
        method = ce_lsgd(2, *numbers, **start, minibatch=minibatch)
        np.testing.assert_allclose(final(method, population, cohorts=replay), expected, rtol=1e-12)


# --- identities ---


def test_one_local_step_is_sgd_on_the_cohort(population):
    c, x = Numpy(population), START
    for cohort in COHORTS:
        x = x - 0.3 * c.full(x, cohort)
    for method in (fedavg(2, 1, 0.3), mime(2, 1, 0.3), mime_lite(2, 1, 0.3), fedavgm(2, 1, 0.3, momentum=0.0)):
        np.testing.assert_allclose(final(method, population, cohorts=COHORTS), x, rtol=1e-12)


@pytest.mark.parametrize("build", [mime, mime_lite])
def test_one_local_step_of_mime_is_the_central_optimiser(population, build):
    c, x, first, second = Numpy(population), START, np.zeros(4), np.full(4, 0.09)
    for cohort in COHORTS:
        g = c.full(x, cohort)
        first, divisor = 0.6 * first + 0.4 * g, np.sqrt(second) + 0.3
        x, second = x - 0.1 * first / divisor, 0.8 * second + 0.2 * g**2
    made = build(2, 1, 0.1, base=Adam(0.6, 0.8, 0.3))
    np.testing.assert_allclose(final(made, population, cohorts=COHORTS), x, rtol=1e-12)


def test_with_everyone_and_one_step_scaffold_and_scaffnew_are_gradient_descent(population):
    x = Numpy(population).descended(START, ROUNDS, 0.3)
    for method in (
        scaffold(N, 1, 0.3),
        scaffold(N, 1, 0.3, option="gradient"),
        scaffnew(0.3, 1.0),
        bvr_l_sgd(None, 1, 0.3),
    ):
        np.testing.assert_allclose(final(method, population), x, rtol=1e-12)


ONE_CLIENT = {
    "fedavg": fedavg(1, 3, 0.2), "scaffold": scaffold(1, 3, 0.2),
    "scaffold_gradient": scaffold(1, 3, 0.2, option="gradient"),
    "mime": mime(1, 3, 0.2), "mime_lite": mime_lite(1, 3, 0.2), "mime_mvr": mime_mvr(1, 3, 0.2, 0.4),
    "mime_lite_mvr": mime_lite_mvr(1, 3, 0.2, 0.4), "ce_lsgd": ce_lsgd(1, 3, 0.2, 0.4),
    "bvr_l_sgd": bvr_l_sgd(None, 3, 0.2),
    "scaffnew": scaffnew(0.2, 0.5), "fedred": fedred(0.2, 0.0, 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_CLIENT)
def test_of_one_client_every_local_method_is_gradient_descent(twins, name):
    alone = Quadratics.of(twins.hessians[:1], twins.linears[:1])
    state, _, infos = play(ONE_CLIENT[name], alone, START, 3)
    steps = sum(3 if isinstance(info.steps, tuple) else int(info.steps) for info in infos)
    np.testing.assert_allclose(ONE_CLIENT[name].params(state), Numpy(alone).descended(START, steps, 0.2), rtol=1e-12)


def test_identical_clients_make_the_correction_of_mime_needless(twins):
    for base in (None, Momentum(0.5), Adam(0.5, 0.9, 0.1)):
        with_correction = final(mime(N, 3, 0.1, base=base), twins)
        np.testing.assert_allclose(final(mime_lite(N, 3, 0.1, base=base), twins), with_correction, rtol=1e-12)
    np.testing.assert_allclose(
        final(fedavg(N, 4, 0.1), twins), Numpy(twins).descended(START, 4 * ROUNDS, 0.1), rtol=1e-12
    )


def test_mime_lite_with_sgd_is_fedavg(population):
    pair = (
        final(mime_lite(2, 3, 0.2, server_step_size=0.6), population),
        final(fedavg(2, 3, 0.2, server_step_size=0.6), population),
    )
    np.testing.assert_array_equal(*pair)


def test_mime_mvr_and_ce_lsgd_are_spam_with_gradient_steps_and_no_prox(population):
    ids = np.array([[2], [5], [5], [0], [3]])
    steps = GradientDescent(steps=4, local_rate=0.2, safeguard=False)
    options = {"start": jnp.asarray(START)}
    expected = final(spam(np.inf, 0.3, solver=steps, **options), population, cohorts=ids)
    for method in (mime_mvr, ce_lsgd):
        np.testing.assert_allclose(
            final(method(1, 4, 0.2, 0.3, **options), population, cohorts=ids), expected, rtol=1e-13
        )
    averaged = final(spam_ppa(2, np.inf, 0.3, solver=steps, **options), population, cohorts=COHORTS)
    np.testing.assert_array_equal(final(mime_mvr(2, 4, 0.2, 0.3, **options), population, cohorts=COHORTS), averaged)


def test_ce_lsgd_with_one_step_is_server_mvr_and_with_many_the_prox(population):
    start = {"start": jnp.asarray(START)}
    np.testing.assert_allclose(
        final(ce_lsgd(2, 1, 0.2, 0.3, **start), population, cohorts=COHORTS),
        final(mvr(2, 0.2, 0.3, **start), population, cohorts=COHORTS), rtol=1e-13,
    )  # fmt: skip
    method = ce_lsgd(1, 400, 0.4, 0.3, **start)
    expected = START - np.linalg.solve(population.hessians[4], START)  # gamma = infinity: x - H^-1 g
    np.testing.assert_allclose(final(method, population, rounds=1, cohorts=[[4]]), expected, rtol=1e-12)


def test_fedprox_is_the_prox_of_the_clients_own_losses(population):
    own = Factored(OwnGradient(), Exact(), Constant(0.7), movers="average", cohort_size=2)
    exact = final(fedprox(2, 0.7, solver=Exact()), population, cohorts=COHORTS)
    np.testing.assert_allclose(exact, final(own, population, cohorts=COHORTS), rtol=1e-13)
    steps = final(fedprox(2, 0.7, local_steps=120, local_rate=0.25), population, cohorts=COHORTS)
    np.testing.assert_allclose(steps, exact, rtol=1e-12)


def test_small_proxes_of_fedprox_are_gradient_steps(population):
    g = Numpy(population).full(START, [0, 3])
    gap = [
        np.abs((final(fedprox(2, s, solver=Exact()), population, rounds=1, cohorts=COHORTS) - START) / s + g).max()
        for s in (1e-3, 1e-4)
    ]
    assert gap[1] < 0.11 * gap[0] < 0.02


def test_a_large_tau_makes_fedadam_momentum(population):
    # V stays tau^2, so that a move is divided by 2 tau; the running mean is (1 - beta) times the heavy ball
    tau = 1e6
    adam = fedadam(2, 3, 0.2, 0.7 * 2 * tau, momentum=0.6, square_momentum=1.0, adaptivity=tau)
    ball = fedavgm(2, 3, 0.2, momentum=0.6, server_step_size=0.7 * 0.4)
    pair = (final(method, population, cohorts=COHORTS) for method in (adam, ball))
    np.testing.assert_allclose(*pair, rtol=1e-12)


SCALED = {  # of the sizes of `EXACT`, which are compiled already
    "fedavg": lambda s: fedavg(N, 4, 0.2 * s), "fedprox": lambda s: fedprox(N, s, solver=Exact()),
    "scaffold": lambda s: scaffold(N, 5, 0.2 * s), "feddyn": lambda s: feddyn(N, s, solver=Exact()),
    "scaffnew": lambda s: scaffnew(0.3 * s, 0.5), "fedred": lambda s: fedred(0.3 * s, 0.2 / s, 0.5),
    "mime": lambda s: mime(N, 3, 0.2 * s, base=Momentum(0.5)), "mime_mvr": lambda s: mime_mvr(N, 5, 0.2 * s, 0.3),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALED)
def test_scaling_the_loss_and_the_steps_changes_nothing(population, name):
    larger = Quadratics.of(100 * np.asarray(population.hessians), 100 * np.asarray(population.linears))
    pair = final(SCALED[name](1.0), population, rounds=3), final(SCALED[name](0.01), larger, rounds=3)
    np.testing.assert_allclose(*pair, rtol=1e-11)


# --- where they converge to ---

EXACT = {
    "scaffold": (scaffold(N, 5, 0.15), 150), "scaffold_gradient": (scaffold(N, 5, 0.1, option="gradient"), 250),
    "feddyn": (feddyn(N, 1.0, solver=Exact()), 120), "scaffnew": (scaffnew(0.4, 0.4), 250),
    "fedred": (fedred(0.4, 0.3, 0.3), 60), "fedred_one": (fedred(0.4, 0.4, 0.4, model="one"), 120),
    "fedred_memory": (fedred_memory(0.4, 0.3, 0.4), 250), "mime": (mime(N, 3, 0.2), 120),
    "mime_momentum": (mime(N, 3, 0.2, base=Momentum(0.5)), 150),
    "mime_adam": (mime(N, 3, 0.05, base=Adam(0.5, 0.9, 0.2)), 300),
    "mime_mvr": (mime_mvr(N, 5, 0.2, 0.5), 80), "ce_lsgd": (ce_lsgd(None, 4, 0.2, 0.5, start=jnp.zeros(4)), 150),
    "bvr_l_sgd": (bvr_l_sgd(None, 4, 0.2), 120),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_with_everyone_it_reaches_the_optimum(population, name):
    method, rounds = EXACT[name]
    state, memory, _ = play(method, population, START, rounds)
    np.testing.assert_allclose(method.params(state), population.minimizer, atol=1e-9)
    if name in ("scaffold", "scaffold_gradient", "scaffnew", "fedred_memory", "feddyn"):
        remembered = memory.h if name in ("scaffnew", "fedred_memory") else memory
        gradients = population.hessians @ population.minimizer - population.linears
        np.testing.assert_allclose(remembered, gradients, atol=1e-8)


@pytest.fixture(scope="module")
def biased(population):
    """Where m local steps of size 0.2 stop to move: sum_i (I - (I - eta H_i)^m)(x - x_i) = 0."""
    c, eta, m = Numpy(population), 0.2, 4
    weights = [np.eye(4) - np.linalg.matrix_power(np.eye(4) - eta * h, m) for h in c.h]
    minimizers = [np.linalg.solve(h, b) for h, b in zip(c.h, c.b, strict=True)]
    return np.linalg.solve(sum(weights), sum(w @ x for w, x in zip(weights, minimizers, strict=True)))


LOCAL_SGD = {
    "fedavg": (fedavg(N, 4, 0.2), 100), "fedavg_server": (fedavg(N, 4, 0.2, server_step_size=0.5), 200),
    "fedavgm": (fedavgm(N, 4, 0.2, momentum=0.5, server_step_size=0.4), 200), "mime_lite": (mime_lite(N, 4, 0.2), 100),
    "fedadam": (fedadam(N, 4, 0.2, 0.1, momentum=0.5, square_momentum=0.9, adaptivity=0.1), 300),
    "fedyogi": (fedyogi(N, 4, 0.2, 0.2, momentum=0.5, square_momentum=0.9, adaptivity=0.1), 400),
}  # fmt: skip


@pytest.mark.parametrize("name", LOCAL_SGD)
def test_local_sgd_converges_to_its_bias(population, biased, name):
    method, rounds = LOCAL_SGD[name]
    np.testing.assert_allclose(final(method, population, rounds=rounds), biased, atol=1e-9)
    assert np.abs(biased - population.minimizer).max() > 1e-3


def test_fedprox_converges_to_its_bias(population):
    c, gamma = Numpy(population), 0.7
    # sum_i (H_i + I/gamma)^-1 (H_i x - b_i) = 0
    inverses = [np.linalg.inv(h + np.eye(4) / gamma) for h in c.h]
    solve = lambda parts: sum(w @ part for w, part in zip(inverses, parts, strict=True))
    bias = np.linalg.solve(solve(c.h), solve(c.b))
    np.testing.assert_allclose(final(fedprox(N, gamma, solver=Exact()), population, rounds=100), bias, atol=1e-10)
    assert np.abs(bias - population.minimizer).max() > 1e-3


def test_scaffold_corrects_what_fedavg_gets_wrong_with_few_clients_too(population):
    method = scaffold(2, 4, 0.1)
    np.testing.assert_allclose(final(method, population, rounds=600), population.minimizer, atol=1e-7)


# --- minibatches, weights, schedules, messages ---

ROWS = [np.eye(2), np.eye(2)[:, ::-1] * 2.0]  # two clients of two rows
LINEAR = Ragged.of(ROWS, lambda x, rows: rows @ x, batch=1)  # a row is its gradient


def test_every_local_step_sees_a_minibatch_of_its_own():
    moved = final(fedavg(1, 50, 1.0), LINEAR, np.zeros(2), 1, [[0]])
    assert moved.sum() == -50
    assert np.all(moved < -10)


WHOLE = np.array([0.75, 0.75])  # the gradient of all rows
OF_MINIBATCHES = {
    "mime": mime(2, 7, 0.5, minibatch=True), "bvr_l_sgd": bvr_l_sgd(None, 7, 0.5, minibatch=True),
    "ce_lsgd": ce_lsgd(2, 7, 0.5, 0.3, start=jnp.asarray(WHOLE), minibatch=True),
    "mime_mvr": mime_mvr(2, 7, 0.5, 0.3, start=jnp.asarray(WHOLE), minibatch=True),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_MINIBATCHES)
def test_a_difference_sees_one_minibatch_at_both_points(name):
    # the two gradients of a linear loss cancel, so that all steps go along the whole gradient
    end = final(OF_MINIBATCHES[name], LINEAR, np.zeros(2), 1, [[0, 1]])
    np.testing.assert_allclose(end, -7 * 0.5 * WHOLE, rtol=1e-14)


def test_sarah_follows_its_recursion_on_minibatches():
    curvature = lambda key: 1 + jax.random.uniform(key)
    client = DataOracle(0.0, loss=lambda x, data, key: 0.5 * curvature(key) * jnp.sum(x**2), minibatch=True)
    key, x, g = jax.random.key(7), np.array([1.0, -2.0]), np.array([0.5, 1.0])
    solve = jax.jit(lambda client, x, g, step_size: Sarah(0.3, steps=4)(client, key, x=x, g=g, step_size=step_size))
    for gamma in (np.inf, 2.0):
        y, certificate = solve(client, x=jnp.asarray(x), g=jnp.asarray(g), step_size=gamma)
        w, v = x, g
        for j in range(4):
            moved = w - 0.3 * (v + (w - x) / gamma)
            w, v = moved, v + float(curvature(jax.random.fold_in(key, j))) * (moved - w)
        np.testing.assert_allclose(y, w, rtol=1e-13)
        assert certificate.gradients == 2 * 3 + 2  # two a step but the last, and one at each end


def test_weights_make_local_sgd_that_of_the_pooled_examples():
    rows = [np.array([[1.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 3.0], [2.0, 2.0]])]
    uneven = Ragged.of(rows, lambda x, rows: 0.5 * jnp.sum((x - rows) ** 2, axis=1))
    pooled = np.concatenate(rows).mean(0)
    np.testing.assert_allclose(
        final(fedavg(2, 1, 0.5, weighted=True), uneven, np.zeros(2), 1), 0.5 * pooled, rtol=1e-14
    )
    np.testing.assert_allclose(
        final(fedavg(2, 1, 0.5), uneven, np.zeros(2), 1), 0.5 * np.mean([r.mean(0) for r in rows], axis=0), rtol=1e-14
    )


def test_step_sizes_follow_their_schedules(population):
    c, x, local, server = Numpy(population), START, np.linspace(0.3, 0.1, ROUNDS), np.linspace(0.5, 1.0, ROUNDS)
    for eta, eta_s, cohort in zip(local, server, COHORTS, strict=True):
        x = x + eta_s * np.mean([c.descended(x, 2, eta, lambda y: c.grad(i, y)) - x for i in cohort], axis=0)
    method = fedavg(2, 2, local, server_step_size=server)
    np.testing.assert_allclose(final(method, population, cohorts=COHORTS), x, rtol=1e-12)


@pytest.mark.parametrize("probability", [1.0, 0.25])
def test_the_coin_is_thrown_until_it_shows_heads(probability):
    counts = np.asarray(jax.vmap(lambda key: until_heads(key, probability))(jax.random.split(jax.random.key(0), 4000)))
    assert counts.min() == 1
    if probability == 1:
        assert counts.max() == 1
    else:  # mean 4, standard deviation of the mean sqrt(12 / 4000) = 0.055; P(1) = 1/4, with 0.007
        assert abs(counts.mean() - 4) < 0.22
        assert abs((counts == 1).mean() - 0.25) < 0.03


def floats(method, population):
    plan = ledger.plan(method, jnp.zeros(4), population)
    return [(exchange.cohort, exchange.floats_down // 4, exchange.floats_up // 4) for exchange in plan.round]


def test_what_is_sent(population):
    assert floats(fedavg(2, 3, 0.1, weighted=True), population) == [(2, 1, 1)]
    assert floats(fedprox(2, 1.0, solver=Exact()), population) == [(2, 1, 1)]
    assert floats(scaffold(2, 3, 0.1), population) == [(2, 2, 1)]
    assert floats(scaffold(2, 3, 0.1, option="gradient"), population) == [(2, 2, 2)]
    assert floats(mime(2, 3, 0.1), population) == [(2, 1, 1), (2, 1, 1)]
    assert floats(mime(2, 3, 0.1, base=Adam()), population) == [(2, 1, 1), (2, 3, 1)]
    assert floats(mime_lite(2, 3, 0.1, base=Momentum()), population) == [(2, 2, 2)]
    assert floats(mime_lite_mvr(2, 3, 0.1, 0.3), population) == [(2, 3, 2)]
    assert floats(ce_lsgd(2, 3, 0.1, 0.3), population) == [(2, 2, 1), (1, 1, 1)]
    assert floats(bvr_l_sgd(None, 3, 0.1), population) == [(N, 1, 1), (1, 1, 1)]
    assert floats(fedred(0.1, 0.1, 0.5, model="one"), population) == [(N, 1, 1), (1, 1, 1)]
    assert floats(scaffnew(0.1, 0.5), population) == [(N, 1, 1)]


@pytest.mark.parametrize(
    ("method", "per_round"),  # of sizes that are compiled already
    [
        (scaffold(2, 3, 0.1), 2 * 3),
        (scaffold(2, 3, 0.1, option="gradient"), 2 * (3 + 1)),
        (mime(2, 3, 0.1, base=Momentum()), 2 * (1 + 2)),
        (mime(2, 3, 0.1, base=Momentum(), minibatch=True), 2 * (1 + 2 * 2)),
        (mime_lite(2, 3, 0.1, base=Momentum()), 2 * (3 + 1)),
        (mime_lite_mvr(2, 4, 0.1, 0.3, start=jnp.zeros(4)), 2 * 2 * (4 + 1)),
    ],
)
def test_gradients_are_counted(population, method, per_round):
    _, _, (info,) = play(method, population, START, 1, COHORTS)
    assert info.gradients == per_round


FILES = {"fedavg", "fedopt", "fedprox", "scaffold", "feddyn", "scaffnew", "fedred", "mime", "ce_lsgd"}
FILES |= {"fedexp", "fedacg", "delta_sgd", "fedsps", "fednova", "fedcm", "ditto"}
LOCAL = [name for name, row in METHODS.items() if row.build.__module__.split(".")[-1] in FILES]


@pytest.mark.parametrize("name", LOCAL)
def test_grids_and_trees(name):
    """Every setting of a grid builds, about twelve of them, and every method takes parameters in any tree."""
    row = METHODS[name]
    sizes = {"cohort_size": 2} if "cohort_size" in row.example else {}
    grid = row.grid(Scales(delta=0.1, smoothness=2.0, clients=6, cohort=2))
    assert 10 <= len(grid) <= 14
    built = [row.build(**sizes, **setting) for setting in grid]
    assert len({str(jax.tree.leaves(method)) + str(jax.tree.structure(method)) for method in built}) == len(grid)

    params = {"a": jnp.ones(2), "b": (jnp.ones((2, 3)),)}
    loss = lambda x, rows: rows[:, 0] * jnp.sum(x["a"] ** 2) + jnp.sum(x["b"][0] ** 2)
    clients = Ragged.of([np.ones((3, 1))] * 6, loss)
    plan = ledger.plan(built[0], params, clients)
    assert all(exchange.floats_down % 8 == 0 and exchange.floats_up % 8 == 0 for exchange in plan.round)
    memory = jax.tree.map(lambda leaf: jnp.stack([leaf] * 6), built[0].client_state(params))

    def two_rounds(params):
        state = built[0].init(params, jax.random.key(0), Traced(clients, memory=memory))
        after, _ = built[0].round(state, jax.random.key(0), Traced(clients, memory=memory))
        return state, after

    state, after = jax.eval_shape(two_rounds, params)
    assert state == after  # the same tree, shapes and dtypes


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: fedavg(0, 1, 0.1), "cohort_size"),
        (lambda: fedavg(2, 0, 0.1), "local_steps"),
        (lambda: fedavg(2, 1, -0.1), "local_rate"),
        (lambda: fedavg(2, 1, 0.1, server_step_size=0.0), "server_step_size"),
        (lambda: fedavgm(2, 1, 0.1, momentum=1.5), "momentum"),
        (lambda: fedadam(2, 1, 0.1, 0.1, adaptivity=0.0), "adaptivity"),
        (lambda: fedprox(2, 1.0), "give both, or a solver"),
        (lambda: fedprox(2, 1.0, solver=Exact(), local_steps=3), "leave out"),
        (lambda: feddyn(2, -1.0, solver=Exact()), "step_size"),
        (lambda: scaffold(2, 1, 0.1, option="gradients"), "did you mean 'gradient'"),
        (lambda: scaffnew(0.1, 0.0), "probability"),
        (lambda: fedred(0.1, -1.0, 0.5), "regularization"),
        (lambda: mime(2, 0, 0.1), "local_steps"),
        (lambda: mime_mvr(2, 3, 0.1, 0.0), "fresh_weight"),
        (lambda: ce_lsgd(2, 0, 0.1, 0.5), "local_steps"),
        (lambda: Momentum(2.0), "momentum"),
    ],
)
def test_bad_arguments_are_refused(build, says):
    with pytest.raises(ValueError, match=says):
        build()


def test_local_steps_take_whole_trees_shifts_and_pulls():
    client = DataOracle(2.0, loss=lambda x, a: 0.5 * a * (x["u"] @ x["u"] + x["v"] ** 2))
    x, shift = {"u": jnp.ones(2), "v": jnp.array(3.0)}, {"u": jnp.array([1.0, 0.0]), "v": jnp.array(-1.0)}
    y = descend(client, jax.random.key(0), x, steps=jnp.int32(2), local_rate=0.1, shift=shift, pull=0.5)
    first = {"u": 1 - 0.1 * (2 + np.array([1.0, 0.0])), "v": 3 - 0.1 * (6 - 1)}
    second = {name: first[name] - 0.1 * (2 * first[name] + shift[name] + 0.5 * (first[name] - x[name])) for name in x}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-14), y, second)

"""EF21-PP: rounds by hand and in NumPy, its bound, and gradient descent with everyone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coded import ALPHA, COHORTS, MU, TOP, D, L, N, Numbers, played, same
from fedspam import Faults, simulate
from fedspam.federation import ledger, loopback, on_client
from fedspam.methods import ef21_pp, fedavg
from fedspam.problems import Quadratics, quadratics
from fedspam.theory import ef21_step_size

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def clients():
    return quadratics(jax.random.key(3), clients=N, dimension=D, delta=0.1, condition=4.0, curvature=MU)


@pytest.fixture(scope="module")
def c(clients):
    return Numbers(clients)


def test_two_rounds_of_ef21_pp_by_hand():
    """f_0 = x^2/2 and f_1 = (x - 4)^2, from x = 2 with gamma = 1/2; client 0, then client 1."""
    pair = Quadratics.of(np.array([[[1.0]], [[2.0]]]), np.array([[0.0], [8.0]]))
    run = simulate(ef21_pp(1, 0.5), pair, jnp.array([2.0]), rounds=2, key=0, replay={"cohort": np.array([[0], [1]])})
    # g_0 = 2, g = 1, x = 3/2; then g_1 = 2 * 3/2 - 8 = -5, g = (2 - 5)/2, x = 3/2 + 3/4
    same(run.memory, [[2.0], [-5.0]])
    same(run.state.mean, [-1.5])
    same(run.params, [2.25])


def test_ef21_pp_is_the_printed_loop_and_charges_its_codes(clients, c):
    x, g, own = np.ones(D), np.zeros(D), np.zeros((N, D))
    for cohort in COHORTS:
        for i in cohort:
            change = c.top(c.grad(i, x) - own[i])
            own[i], g = own[i] + change, g + change / N
        x = x - 0.1 * g
    replay, codecs = {"cohort": COHORTS}, {"up": TOP}
    run = played(ef21_pp(2, 0.1), clients, replay=replay, codecs=codecs)
    same(run.params, x)
    same(run.memory, own)
    same(run.state.mean, own.mean(0))
    state, fed = loopback.run(ef21_pp(2, 0.1), clients, jnp.ones(D), rounds=4, key=0, replay=replay, codecs=codecs)
    same(state.x, run.params)
    assert fed.bytes_up == run.rows["bytes_up"].sum()
    (plain,) = ledger.plan(ef21_pp(2, 0.1), jnp.ones(D), clients).round
    assert COHORTS.size * plain.bytes_up - fed.bytes_up > 0.4 * 8 * D * COHORTS.size  # of 8 bytes per number


def test_lost_replies_leave_g_the_mean_of_what_clients_remember(clients):
    run = played(ef21_pp(2, 0.1), clients, rounds=20, codecs={"up": TOP}, faults=Faults(dropout=0.3))
    assert run.rows["gradient_change.accepted"].sum() < 40
    same(run.state.mean, run.memory.mean(0))


def test_ef21_pp_with_everyone_is_gradient_descent(clients, c):
    x = np.ones(D)
    for _ in range(3):
        x = x - 0.3 * c.full(x)
    same(played(ef21_pp(N, 0.3), clients, rounds=3).params, x)


def test_ef21_pp_keeps_its_bound_and_reaches_the_optimum(clients, c):
    """At the theoretical step size; FedAvg with one step, which is SGD with the same codec, stalls."""
    gamma = ef21_step_size(L, ALPHA, share=0.5, client_smoothness=c.smoothness)
    rounds = 3000
    norms = lambda x: {"squared": jnp.sum(jnp.square(jnp.asarray(c.h.mean(0)) @ x - jnp.asarray(c.b.mean(0))))}
    run = played(ef21_pp(2, gamma), clients, rounds=rounds, codecs={"up": TOP}, probe=norms)
    theta = 1 - np.sqrt(1 - 0.5 * ALPHA)
    first = np.mean([np.sum(c.grad(i, np.ones(D)) ** 2) for i in range(N)])
    bound = 2 * c.value(np.ones(D)) / (gamma * rounds) + first / (theta * rounds)
    assert np.mean(run.probes["squared"]) <= bound
    assert np.linalg.norm(c.full(run.params)) < 1e-6 * np.linalg.norm(c.full(np.ones(D)))
    stalled = played(fedavg(2, 1, gamma), clients, rounds=rounds, codecs={"up": TOP})
    assert np.linalg.norm(c.full(stalled.params)) > 1e-3 * np.linalg.norm(c.full(np.ones(D)))


def test_only_a_memory_can_depend_on_what_arrived():
    with pytest.raises(ValueError, match="stateful=True"):
        on_client(echo=True)

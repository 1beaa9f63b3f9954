"""EF21-PP, DASHA-PP, LoCoDL, OLGA: rounds in NumPy, identities with methods without a codec, and their theorems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Faults, simulate
from fedspam.federation import ledger, loopback, on_client
from fedspam.federation.codecs import RandK, TopK
from fedspam.methods import dasha_pp, ef21_pp, fedavg, locodl, olga, scaffnew
from fedspam.problems import Quadratics, quadratics
from fedspam.solvers import Exact
from fedspam.theory import dasha_step_size, ef21_step_size, locodl_rate, olga_parameters

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]

N, D, KEPT = 4, 64, 16
COHORTS = np.array([[0, 3], [3, 1], [2, 0], [1, 2]])
TOP, RAND = TopK(0.25), RandK(0.25)
OMEGA, ALPHA = 3.0, 0.25
MU, L = 0.5, 2.0


@pytest.fixture(scope="module")
def clients():
    return quadratics(jax.random.key(3), clients=N, dimension=D, delta=0.1, condition=4.0, curvature=MU)


class Numbers:
    """The clients in NumPy, and the codec that keeps the largest quarter."""

    def __init__(self, clients):
        self.h, self.b = np.asarray(clients.hessians), np.asarray(clients.linears)
        self.smoothness = np.sqrt(np.mean(np.linalg.eigvalsh(self.h)[:, -1] ** 2))
        self.best = np.linalg.solve(self.h.mean(0), self.b.mean(0))

    def grad(self, i, x):
        return self.h[i] @ x - self.b[i]

    def full(self, x):
        return self.h.mean(0) @ x - self.b.mean(0)

    def value(self, x):
        return 0.5 * (x - self.best) @ self.h.mean(0) @ (x - self.best)

    def top(self, v):
        kept = np.argsort(-np.abs(v), kind="stable")[:KEPT]
        out = np.zeros_like(v)
        out[kept] = v[kept]
        return out


@pytest.fixture(scope="module")
def c(clients):
    return Numbers(clients)


def same(x, y):
    np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


def played(method, clients, rounds=4, key=0, **options):
    return simulate(method, clients, jnp.ones(D), rounds=rounds, key=key, **options)


# --- EF21-PP ---


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


# --- DASHA-PP ---


def test_dasha_pp_is_the_printed_loop(clients, c):
    share, a, b = 0.5, 0.5 / (2 * OMEGA + 1), 0.5 / 1.5
    x = x_prev = np.ones(D)
    g, own, h = np.zeros(D), np.zeros((N, D)), np.zeros((N, D))
    for cohort in COHORTS:
        for i in cohort:
            k = c.grad(i, x) - c.grad(i, x_prev) - b * (h[i] - c.grad(i, x_prev))
            m = c.top(k / share - a / share * (own[i] - h[i]))
            h[i], own[i], g = h[i] + k / share, own[i] + m, g + m / N
        x, x_prev = x - 0.1 * g, x
    run = played(dasha_pp(2, 0.1, omega=OMEGA), clients, replay={"cohort": COHORTS}, codecs={"up": TOP})
    same(run.params, x)
    same(run.memory.g, own)
    same(run.memory.h, h)
    same(run.state.g, own.mean(0))


def test_dasha_pp_with_everyone_is_gradient_descent_or_mvr(clients, c):
    for b in (1.0, 0.4):
        x = x_prev = np.ones(D)
        g = np.zeros(D)
        for _ in range(4):
            g = (1 - b) * g + c.full(x) - (1 - b) * c.full(x_prev)
            x, x_prev = x - 0.3 * g, x
        same(played(dasha_pp(N, 0.3, fresh_weight=b), clients).params, x)


@pytest.mark.thorough
def test_dasha_pp_reaches_the_optimum_with_the_step_size_of_its_theorem(clients, c):
    gamma = dasha_step_size(L, OMEGA, clients=N, cohort=2, client_smoothness=c.smoothness)
    run = played(dasha_pp(2, gamma, omega=OMEGA), clients, rounds=6000, codecs={"up": RAND})
    assert np.linalg.norm(c.full(run.params)) < 1e-3 * np.linalg.norm(c.full(np.ones(D)))


# --- LoCoDL ---


def test_locodl_is_the_printed_loop(clients, c):
    eta, p, lam, omega = 0.3, 0.4, 0.2, 0.5
    run = played(locodl(eta, p, omega=omega, shared_curvature=lam), clients, codecs={"up": TOP})
    rho = chi = 1 / (1 + omega)
    x, u = np.ones((N, D)), np.zeros((N, D))
    y, v = np.ones(D), np.zeros(D)
    for steps in run.rows["steps"]:
        for _ in range(steps):
            x = np.stack([x[i] - eta * (c.grad(i, x[i]) - lam * x[i] - u[i]) for i in range(N)])
            y = y - eta * (lam * y - v)
        parts = np.stack([c.top(x[i] - y) for i in range(N)])
        d, rate = parts.sum(0) / (2 * N), p * chi / (eta * (1 + 2 * omega))
        last = x, u + rate * (-parts)  # the client adds the rest at the beginning of its next task
        x, u = (1 - rho) * x + rho * (y + d), u + rate * (d - parts)
        y, v = y + rho * d, v + rate * d
    assert run.rows["steps"].max() > 1
    same(run.params, y)
    same(run.state.v, v)
    same(run.memory.x, last[0])
    same(u.mean(0) + v, np.zeros(D))


def test_locodl_without_a_codec_is_scaffnew_with_copies_of_the_server(clients, c):
    lam = 0.2
    both = Quadratics.of(
        np.concatenate([c.h - lam * np.eye(D), np.tile(lam * np.eye(D), (N, 1, 1))]),
        np.concatenate([c.b, np.zeros((N, D))]),
    )
    run = played(locodl(0.3, 0.4, shared_curvature=lam), clients)
    other = played(scaffnew(0.3, 0.4), both)
    assert run.rows["steps"].tolist() == other.rows["steps"].tolist()
    same(run.params, other.params)


@pytest.mark.thorough
def test_locodl_has_the_rate_of_its_theorem(clients, c):
    """The expectation of Psi / rate^steps, which stops after some communications, is at most the first Psi."""
    lam, eta, p = 0.2, 0.4, 0.5
    low, high = np.linalg.eigvalsh(c.h).min() - lam, np.linalg.eigvalsh(c.h).max() - lam
    convexity = min(low, lam)
    method = locodl(eta, p, omega=OMEGA, mean_omega=OMEGA / N, shared_curvature=lam)
    rate = locodl_rate(high, convexity, eta, p, omega=OMEGA, mean_omega=OMEGA / N)
    assert rate < 1
    ends = np.stack([c.grad(i, c.best) - lam * c.best for i in range(N)])
    weight = eta * (1 + 2 * OMEGA) / (p**2 / (1 + OMEGA / N))

    def psi(x, u, y, v):
        points = np.sum((x - c.best) ** 2) + N * np.sum((y - c.best) ** 2)
        return points / eta + weight * (np.sum((u - ends) ** 2) + N * np.sum((v - lam * c.best) ** 2))

    first, found = psi(np.ones((N, D)), np.zeros((N, D)), np.ones(D), np.zeros(D)), []
    for key in range(8):
        run = played(method, clients, rounds=150, key=key, codecs={"up": RAND})
        m, average = run.memory, run.state.average
        x = m.x + float(method.mixing) * (average - m.x)
        u = m.u + float(method.dual_rate) * (average - m.known)
        found.append(psi(x, u, run.state.y, run.state.v) / rate ** run.rows["steps"].sum())
    assert np.mean(found) <= first
    assert np.linalg.norm(c.full(run.params)) < 1e-3 * np.linalg.norm(c.full(np.ones(D)))


# --- OLGA ---

CODED = {"shifted_change": TOP}


def test_olga_in_one_epoch_is_the_printed_loop(clients, c):
    """Algorithm 1: no coin shows heads."""
    theta, x = 2.0, np.ones(D)
    w, full = x, c.full(x)
    for _ in range(4):
        parts = [c.top(c.grad(m, x) - c.grad(0, x) - c.grad(m, w) + c.grad(0, w)) for m in range(N)]
        t = np.mean(parts, axis=0) - c.grad(0, w) + full
        x = np.linalg.solve(c.h[0] + np.eye(D) / theta, c.b[0] - t + x / theta)
    method = olga(theta, 1e-9, mixing=0.5, convexity=MU, solver=Exact())
    same(played(method, clients, codecs=CODED).params, x)


def test_olga_of_single_steps_is_accelerated_extragradient(clients, c):
    """Every coin shows heads; the potential of the theorem shrinks at its rate in every round."""
    step_size, p, tau, mu, alpha = olga_parameters(0.5, MU, 0.0, 1.0, clients=N)
    y = z = np.ones(D)
    potential = lambda y, z: alpha / tau * c.value(y) + (1 + mu * alpha) / 2 * np.sum((z - c.best) ** 2)
    before = potential(y, z)
    for _ in range(4):
        x = tau * z + (1 - tau) * y
        t = c.full(x) - c.grad(0, x)
        y = np.linalg.solve(c.h[0] + np.eye(D) / step_size, c.b[0] - t + x / step_size)
        z = (z + alpha * mu * y - alpha * c.full(y)) / (1 + alpha * mu)
        assert potential(y, z) <= max(1 - tau, 1 / (1 + mu * alpha)) * before
        before = potential(y, z)
    method = olga(step_size, p, tau, mu, length=alpha, solver=Exact())
    run = played(method, clients, codecs=CODED)
    same(run.params, y)


@pytest.mark.thorough
def test_olga_reaches_the_optimum_with_the_parameters_of_its_theorem(clients, c):
    """Compressed differences: an epoch shrinks the potential, in the mean over seeds, as the theorem says."""
    delta = max(np.abs(np.linalg.eigvalsh(h - c.h.mean(0))).max() for h in c.h)
    step_size, p, tau, mu, alpha = olga_parameters(delta, MU, OMEGA, 0.25, clients=N)
    method = olga(step_size, p, tau, mu, length=alpha, solver=Exact())
    run = played(method, clients, rounds=300, codecs={"shifted_change": RAND})
    assert np.linalg.norm(c.full(run.params)) < 1e-6 * np.linalg.norm(c.full(np.ones(D)))


# --- what arrived ---


def test_only_a_memory_can_depend_on_what_arrived():
    with pytest.raises(ValueError, match="stateful=True"):
        on_client(echo=True)

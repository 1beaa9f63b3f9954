"""Local solvers: what their certificates say is checked against NumPy, for every solver alike.

One family of losses holds convex, non-convex and unbounded clients, told apart by numbers alone, so that each solver is
compiled once for all of them.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedspam._internal import trees
from fedspam._internal.trees import struct
from fedspam.clients import DataOracle, Hosted, Ragged
from fedspam.solvers import (
    LBFGS,
    Absolute,
    Accelerated,
    AdaptiveDescent,
    Backtracking,
    Exact,
    GradientDescent,
    Never,
    NewtonCG,
    Optax,
    Optimistix,
    Relative,
)

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]

THETA = np.sqrt(3) / 4
DIMENSION = 6


# --- the clients, in JAX and in NumPy --------------------------------------------------------------------------------


@struct
class Client:
    """A client's loss: scale * (quadratic + logistic + quartic + Welsch + cosine) + constant, each with a factor."""

    hessian: Any
    linear: Any
    rows: Any
    factors: Any  # of logistic, quartic, Welsch, cosine
    scale: Any
    constant: Any
    smoothness: Any

    @property
    def weight(self) -> float:
        return 1.0

    def __call__(self, params: Any, key: Any = None) -> Any:
        x, _ = trees.vectorize(params)
        logistic, quartic, welsch, cosine = self.factors
        margins = self.rows @ x
        total = 0.5 * x @ self.hessian @ x - self.linear @ x + logistic * jnp.mean(jax.nn.softplus(margins))
        total += quartic * jnp.sum(x**4) / 4 + welsch * jnp.mean(1 - jnp.exp(-((margins - 1) ** 2)))
        return self.scale * (total + cosine * jnp.sum(jnp.cos(x))) + self.constant


class Twin:
    """The same client in float64 NumPy, and its phi."""

    def __init__(self, client: Client) -> None:
        self.c = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), client)

    def value(self, x: np.ndarray) -> float:
        c, m = self.c, self.c.rows @ x
        logistic, quartic, welsch, cosine = c.factors
        total = 0.5 * x @ c.hessian @ x - c.linear @ x + logistic * np.mean(np.logaddexp(0, m))
        total += quartic * np.sum(x**4) / 4 + welsch * np.mean(1 - np.exp(-((m - 1) ** 2))) + cosine * np.sum(np.cos(x))
        return float(c.scale * total + c.constant)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        c, m = self.c, self.c.rows @ x
        logistic, quartic, welsch, cosine = c.factors
        along = logistic / (1 + np.exp(-m)) + welsch * 2 * (m - 1) * np.exp(-((m - 1) ** 2))
        total = c.hessian @ x - c.linear + c.rows.T @ along / len(m) + quartic * x**3 - cosine * np.sin(x)
        return c.scale * total

    def rise(self, y: np.ndarray, x: np.ndarray, g: np.ndarray, gamma: float) -> float:
        """phi(y) - phi(x)."""
        step = y - x
        return self.value(y) - self.value(x) + (g - self.gradient(x)) @ step + step @ step / (2 * gamma)

    def slope(self, y: np.ndarray, x: np.ndarray, g: np.ndarray, gamma: float) -> np.ndarray:
        return self.gradient(y) - self.gradient(x) + g + (y - x) / gamma


def make(
    eigenvalues: Any = 0.0,
    *,
    logistic: Any = 0,
    quartic: Any = 0,
    welsch: Any = 0,
    cosine: Any = 0,
    smoothness: Any = None,
) -> Client:
    rng = np.random.default_rng(7)
    turn, _ = np.linalg.qr(rng.normal(size=(DIMENSION, DIMENSION)))
    eigenvalues = np.broadcast_to(np.asarray(eigenvalues, float), DIMENSION)
    rows = rng.normal(size=(12, DIMENSION))
    if smoothness is None:
        most = np.linalg.norm(rows, 2) ** 2 / len(rows)
        smoothness = np.abs(eigenvalues).max() + (logistic / 4 + 2 * welsch) * most + cosine
    factors = np.array([logistic, quartic, welsch, cosine], float)
    parts = (turn * eigenvalues @ turn.T, rng.normal(size=DIMENSION), rows, factors, 1.0, 0.0, smoothness)
    return Client(*(jnp.asarray(part, jnp.float64) for part in parts))


CONVEX = {
    "flat": make(0.0),
    "quadratic": make(np.linspace(0, 4, DIMENSION)),
    "logistic": make(0.01, logistic=1.0),
    "quartic": make(0.1, quartic=1.0, smoothness=100.0),
}
BENT = {
    "saddle": make(np.linspace(-1, 4, DIMENSION)),
    "welsch": make(0.0, welsch=1.0),
    "cosine": make(0.1, cosine=1.0),
    "double well": make(-1.0, quartic=1.0, smoothness=100.0),
}
CLIENTS = CONVEX | BENT
X = np.random.default_rng(1).normal(size=DIMENSION)


def direction(client: Client, share: float = 1.0) -> np.ndarray:
    """A g that is like the client's gradient, but not the same."""
    gradient = Twin(client).gradient(X)
    noise = np.random.default_rng(2).normal(size=DIMENSION)
    return share * (gradient + 0.3 * np.linalg.norm(gradient) * noise / np.sqrt(DIMENSION))


# --- the solvers: a new one gets all tests by a line here ------------------------------------------------------------


def _bfgs() -> Any:
    optimistix = pytest.importorskip("optimistix", reason="the extra optimistix is not installed")
    return Optimistix(optimistix.BFGS(rtol=1e-6, atol=1e-6))


STOPPING = {  # those that stop by a rule
    "gradient descent": lambda: GradientDescent(steps=1000, stop=Relative()),
    "backtracking": lambda: Backtracking(steps=1000),
    "accelerated": lambda: Accelerated(steps=1000),
    "adaptive": lambda: AdaptiveDescent(steps=1000),
    "lbfgs": LBFGS,
    "newton": NewtonCG,
}
SOLVERS = STOPPING | {
    "fixed steps": lambda: GradientDescent(steps=5),
    "minibatch": lambda: GradientDescent(steps=5, minibatch=True),
    "adam": lambda: Optax(ADAM, steps=50),
    "optimistix": _bfgs,
}
ADAM = optax.adam(0.02)  # one object: another would compile anew

every_solver = pytest.mark.parametrize("name", SOLVERS)
stopping_solvers = pytest.mark.parametrize("name", STOPPING)


@jax.jit
def run(solver: Any, client: Any, x: Any, g: Any, step_size: Any) -> Any:
    return solver(client, jax.random.key(0), x=x, g=g, step_size=step_size)


@jax.jit
def run_all(solver: Any, clients: Any, x: Any, g: Any, step_size: Any) -> Any:
    """All clients side by side."""
    return jax.vmap(lambda client, g: run(solver, client, x, g, step_size))(clients, g)


def answers(solver: Any, clients: Any, gs: Any, gamma: float) -> list[tuple[np.ndarray, dict[str, float]]]:
    """The answers of as many clients as `CLIENTS` has; the last is repeated if there are fewer."""
    clients, gs = list(clients), list(gs)
    count, missing = len(clients), len(CLIENTS) - len(clients)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients, *[clients[-1]] * missing)
    ys, says = run_all(solver, stacked, jnp.asarray(X), jnp.stack([*gs, *[gs[-1]] * missing]), gamma)
    columns = {name: np.asarray(column) for name, column in says._asdict().items()}
    return [(np.asarray(ys[i]), {name: float(column[i]) for name, column in columns.items()}) for i in range(count)]


def answer(solver: Any, client: Client, g: np.ndarray, gamma: float) -> tuple[np.ndarray, dict[str, float]]:
    y, certificate = run(solver, client, jnp.asarray(X), jnp.asarray(g), gamma)
    return np.asarray(y), {name: float(value) for name, value in certificate._asdict().items()}


# --- certificates ----------------------------------------------------------------------------------------------------


@every_solver
def test_certificates_are_true(name: str) -> None:
    gs = [direction(client) for client in CLIENTS.values()]
    for gamma in (0.05, 0.5, 20.0):
        found = answers(SOLVERS[name](), CLIENTS.values(), gs, gamma)
        for client, g, (y, says) in zip(CLIENTS.values(), gs, found, strict=True):
            twin, used = Twin(client), says["step_size"]
            scale = abs(twin.value(y)) + abs(twin.value(X)) + np.linalg.norm(g)
            rise, slope = twin.rise(y, X, g, used), np.linalg.norm(twin.slope(y, X, g, used))
            assert says["decrease"] == pytest.approx(rise, rel=1e-9, abs=1e-12 * scale)
            assert says["stationarity"] == pytest.approx(slope, rel=1e-9, abs=1e-12 * scale)
            assert says["distance"] == pytest.approx(np.linalg.norm(y - X), rel=1e-12)
            assert says["decrease"] <= 0
            assert says["certified"] == (slope <= THETA * np.linalg.norm(y - X) / used)
            assert says["gradients"] >= says["steps"] + 1 or name == "adam"
            assert np.log2(gamma / used) == np.round(np.log2(gamma / used)) >= 0


@stopping_solvers
def test_solvers_reach_their_certificate(name: str) -> None:
    gs = [direction(client) for client in CLIENTS.values()]
    for gamma in (0.05, 0.5, 5.0):
        for _, says in answers(STOPPING[name](), CLIENTS.values(), gs, gamma):
            assert says["certified"] == 1
            assert says["decrease"] < 0


@stopping_solvers
@pytest.mark.parametrize("rule", [Absolute(1e-5), Relative(0.01)], ids=["absolute", "relative"])
def test_stopping_rules_are_respected(name: str, rule: Any) -> None:
    loose = STOPPING[name]()
    clients = [CLIENTS["logistic"], CLIENTS["double well"]]
    gs = [direction(client) for client in clients]
    tight = answers(dataclasses.replace(loose, stop=rule), clients, gs, 0.4)
    for client, g, (y, says), (_, early) in zip(clients, gs, tight, answers(loose, clients, gs, 0.4), strict=True):
        twin = Twin(client)
        assert says["certified"] == 1
        bound = 1e-5 if isinstance(rule, Absolute) else 0.01 * np.linalg.norm(y - X) / says["step_size"]
        assert np.linalg.norm(twin.slope(y, X, g, says["step_size"])) <= bound
        # and no earlier or later than it must: a looser rule stops earlier, short of the tighter one
        assert early["gradients"] < says["gradients"]
        assert early["stationarity"] > bound


@stopping_solvers
def test_an_absolute_tolerance_above_the_slope_is_met_by_staying(name: str) -> None:
    client, solver = CLIENTS["logistic"], dataclasses.replace(STOPPING[name](), stop=Absolute(1e-5))
    ((y, says),) = answers(solver, [client], [np.full(DIMENSION, 1e-6)], 1.0)
    np.testing.assert_array_equal(y, X)
    assert (says["certified"], says["steps"], says["gradients"]) == (1, 0, 1)


@every_solver
def test_no_direction_no_step(name: str) -> None:
    for y, says in answers(SOLVERS[name](), CLIENTS.values(), np.zeros((len(CLIENTS), DIMENSION)), 2.0):
        np.testing.assert_array_equal(y, X)
        assert (says["decrease"], says["stationarity"], says["distance"], says["step_size"]) == (0, 0, 0, 2.0)
        assert says["certified"] == 1


# --- clients that are not convex -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*STOPPING, "optimistix"])
def test_an_unbounded_phi_halves_the_step_size(name: str) -> None:
    client = CLIENTS["saddle"]  # curvature -1: phi is unbounded below for gamma > 1
    twin, (_, vectors) = Twin(client), np.linalg.eigh(np.asarray(client.hessian))
    gs = [direction(client), 1e-3 * vectors[:, 0]]  # in general position, and all along the unbounded direction
    for g, (y, says) in zip(gs, answers(SOLVERS[name](), [client] * 2, gs, 8.0), strict=True):
        assert says["step_size"] in (0.25, 0.5, 1.0)
        assert says["certified"] == 1
        assert says["decrease"] < 0
        assert twin.rise(y, X, g, says["step_size"]) == pytest.approx(says["decrease"], rel=1e-6)
    # along it the minimizer is g gamma / (1 - gamma) away, more than 1.5 gamma g until gamma is 1/3
    assert says["step_size"] == 0.25 or says["distance"] <= 1.5 * 0.5 * 1e-3


@every_solver
def test_convex_clients_never_halve(name: str) -> None:
    gs = [direction(client) for client in CONVEX.values()]
    for gamma in (1e-3, 1.0, 1e4):
        for _, says in answers(SOLVERS[name](), CONVEX.values(), gs, gamma):
            assert says["step_size"] == gamma


def test_a_convex_client_may_overshoot() -> None:
    # phi of a linear client falls up to 2 gamma |g| from x, and its minimizer is gamma |g| from x
    client, gamma = CLIENTS["flat"], 0.5
    g = direction(client)
    y, says = answer(GradientDescent(steps=1, local_rate=1.9 * gamma), client, g, gamma)
    np.testing.assert_allclose(y, X - 1.9 * gamma * g)
    assert says["step_size"] == gamma
    assert says["decrease"] == pytest.approx((1.9**2 / 2 - 1.9) * gamma * g @ g)


@every_solver
def test_a_client_without_a_loss_leaves_x_alone(name: str) -> None:
    client = dataclasses.replace(CLIENTS["logistic"], constant=jnp.asarray(np.nan, jnp.float64))
    ((y, says),) = answers(SOLVERS[name](), [client], [direction(CLIENTS["logistic"])], 1.0)
    np.testing.assert_array_equal(y, X)
    assert (says["certified"], says["distance"], says["decrease"]) == (0, 0, 0)


@pytest.mark.parametrize("name", ["backtracking", "adaptive", "lbfgs", "newton"])
def test_overflow_is_only_a_step_too_long(name: str) -> None:
    solver = dataclasses.replace(STOPPING[name](), stop=Absolute(1e-5))
    client = CLIENTS["quartic"]  # whose loss is infinite at x - gamma g
    ((y, says),) = answers(solver, [client], [direction(client)], 1e100)
    assert np.all(np.isfinite(y))
    assert says["certified"] == 1
    assert says["decrease"] < 0


# --- what solvers share ----------------------------------------------------------------------------------------------


def small(client: Client, x: np.ndarray, g: np.ndarray) -> tuple[Client, Any, Any]:
    """The client and its vectors in float32, as a tree of two arrays."""
    tree = lambda a: {"b": jnp.asarray(a[:4].reshape(2, 2), jnp.float32), "w": jnp.asarray(a[4:], jnp.float32)}
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), client), tree(x), tree(g)


@every_solver
def test_trees_of_float32_alone_and_vectors_of_float64_side_by_side(name: str) -> None:
    clients = [CLIENTS["logistic"], CLIENTS["saddle"]]
    gs = [direction(client) for client in clients]
    for client, g, (wide, certificate) in zip(clients, gs, answers(SOLVERS[name](), clients, gs, 0.3), strict=True):
        little, x32, g32 = small(client, X, g)
        y, says = run(SOLVERS[name](), little, x32, g32, jnp.float32(0.3))
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), y) == {
            "b": ((2, 2), jnp.float32),
            "w": ((2,), jnp.float32),
        }
        assert {value.dtype for value in says} == {jnp.dtype(jnp.float32)}
        # optimistix stops by tolerances of its own, near the rounding of float32
        np.testing.assert_allclose(trees.vectorize(y)[0], wide, rtol=1e-2 if name == "optimistix" else 1e-4, atol=1e-4)
        assert says.step_size == np.float32(certificate["step_size"])


@stopping_solvers
def test_a_decrease_below_the_rounding_of_the_loss(name: str) -> None:
    # late in a run: f is 1000, phi falls by 1e-8, and float32 tells numbers near 1000 apart by 6e-5
    x = 1e-3 * X
    for kind in ("logistic", "saddle", "cosine"):
        client = dataclasses.replace(CLIENTS[kind], constant=jnp.asarray(1e3, jnp.float64))
        g = 1e-4 * direction(CLIENTS[kind])
        little, x32, g32 = small(client, x, g)
        x64, g64 = (np.asarray(trees.vectorize(tree)[0], np.float64) for tree in (x32, g32))
        y, says = run(STOPPING[name](), little, x32, g32, jnp.float32(0.25))
        y64 = np.asarray(trees.vectorize(y)[0], np.float64)
        twin = Twin(little)
        twin.c = dataclasses.replace(twin.c, constant=0.0)
        rise, slope = twin.rise(y64, x64, g64, 0.25), np.linalg.norm(twin.slope(y64, x64, g64, 0.25))
        assert says.certified == 1
        assert says.step_size == 0.25
        assert -1e-6 < rise < 0
        # gradients of size 1 are rounded to 1e-7, and |g| is 1e-4
        assert float(says.decrease) == pytest.approx(rise, rel=1e-2)
        assert float(says.stationarity) == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("name", [*STOPPING, "fixed steps"])
def test_units_do_not_matter(name: str) -> None:
    # c f with gamma / c and c g has the phi of f, times c
    for kind in ("logistic", "double well"):
        client, g = CLIENTS[kind], direction(CLIENTS[kind])
        little, x32, g32 = small(client, X, g)
        plain, one = run(SOLVERS[name](), little, x32, g32, jnp.float32(0.3))
        for c in (2.0**-20, 2.0**20):
            scaled = dataclasses.replace(little, scale=little.scale * c, smoothness=little.smoothness * c)
            y, says = run(SOLVERS[name](), scaled, x32, trees.scale(c, g32), jnp.float32(0.3 / c))
            np.testing.assert_allclose(trees.vectorize(y)[0], trees.vectorize(plain)[0], rtol=1e-3, atol=1e-5)
            assert says.certified == one.certified
            assert says.gradients == one.gradients


@stopping_solvers
def test_no_prox_term(name: str) -> None:
    solver = dataclasses.replace(STOPPING[name](), stop=Absolute(1e-5))
    client = make(np.linspace(0.5, 2, DIMENSION), logistic=1.0)
    twin, g = Twin(client), direction(client)
    ((y, says),) = answers(solver, [client], [g], np.inf)
    assert says["certified"] == 1
    assert says["step_size"] == np.inf
    assert np.linalg.norm(twin.gradient(y) - twin.gradient(X) + g) <= 1e-5
    assert says["decrease"] == pytest.approx(twin.rise(y, X, g, np.inf), rel=1e-6)


COUNTED = [name for name in SOLVERS if name not in ("newton", "optimistix")]  # which need a JAX loss


@pytest.mark.parametrize("name", COUNTED)
def test_gradients_are_counted(name: str) -> None:
    calls, twin = [], Twin(CLIENTS["logistic"])

    def on_host(id: int, x: np.ndarray, seed: Any) -> tuple[float, np.ndarray]:
        calls.append(x)
        return twin.value(x), twin.gradient(x)

    solver = SOLVERS[name]()
    if hasattr(solver, "smoothness"):
        solver = dataclasses.replace(solver, smoothness=2.0)
    client = Hosted(on_host, count=1).client(jnp.uint32(0))
    _, says = jax.block_until_ready(
        run(solver, client, jnp.asarray(X), jnp.asarray(direction(CLIENTS["logistic"])), 50.0)
    )
    assert len(calls) == says.gradients
    if name in STOPPING:
        assert says.gradients > 2


def test_gradients_of_optimistix_are_counted() -> None:
    calls = []

    def loss(x: Any, client: Client) -> Any:
        jax.debug.callback(calls.append, 0)
        return client(x)

    client, g = CLIENTS["logistic"], jnp.asarray(direction(CLIENTS["logistic"]))
    _, says = jax.block_until_ready(run(_bfgs(), DataOracle(client, loss=loss), jnp.asarray(X), g, 50.0))
    jax.effects_barrier()
    assert len(calls) == says.gradients > 2


# --- one by one ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.7, np.inf])
def test_gradient_descent_by_hand(gamma: float) -> None:
    client = CLIENTS["logistic"]
    twin, g = Twin(client), direction(client)
    for solver in (GradientDescent(steps=5), GradientDescent(steps=5, local_rate=0.3, safeguard=False)):
        step = 1 / (float(client.smoothness) + 1 / gamma) if solver.local_rate is None else solver.local_rate
        by_hand = X
        for _ in range(5):
            by_hand = by_hand - step * twin.slope(by_hand, X, g, gamma)
        y, says = answer(solver, client, g, gamma)
        np.testing.assert_allclose(y, by_hand, rtol=1e-12)
        assert (says["steps"], says["gradients"], says["step_size"]) == (5, 6, gamma)
        assert says["decrease"] == pytest.approx(twin.rise(by_hand, X, g, gamma), rel=1e-10)


def test_without_safeguard_the_answer_is_returned_as_it_is() -> None:
    client = CLIENTS["quadratic"]
    twin, g = Twin(client), direction(client)
    wild = GradientDescent(steps=6, local_rate=3.0, safeguard=False)
    y, says = answer(wild, client, g, np.inf)
    assert says["decrease"] == pytest.approx(twin.rise(y, X, g, np.inf), rel=1e-9)
    assert says["decrease"] > 0
    assert says["certified"] == 0
    y, says = answer(dataclasses.replace(wild, safeguard=True), client, g, np.inf)
    np.testing.assert_array_equal(y, X)
    assert says["decrease"] == 0
    assert says["stationarity"] == pytest.approx(np.linalg.norm(g))
    y, says = answer(Optax(optax.sgd(3.0), steps=6, minibatch=False), client, g, 1.0)
    np.testing.assert_array_equal(y, X)
    assert says["step_size"] == 1.0


@pytest.mark.parametrize("kind", ["gradient descent", "optax"])
def test_minibatches_are_the_same_at_y_and_x(kind: str) -> None:
    rng = np.random.default_rng(3)
    population = Ragged.of([rng.normal(size=(8, 3))], lambda x, rows: jnp.log1p((rows @ x) ** 2), batch=2)
    client, key, g = population.client(jnp.uint32(0)), jax.random.key(5), jnp.asarray(rng.normal(size=3))
    x, gamma, local, steps = jnp.asarray(rng.normal(size=3)), 0.8, 0.2, 4
    gradient, y = jax.jit(jax.grad(client)), x
    for i in range(steps):
        batch = jax.random.fold_in(key, i)
        y = y - local * (gradient(y, batch) - gradient(x, batch) + g + (y - x) / gamma)
    if kind == "optax":
        solver = Optax(optax.sgd(local), steps=steps)
    else:
        solver = GradientDescent(steps=steps, local_rate=local, minibatch=True)
    found, says = jax.jit(solver)(client, key, x=x, g=g, step_size=gamma)
    np.testing.assert_allclose(found, y, rtol=1e-9)
    assert says.decrease < 0
    # the first step needs no gradient, the others two, the certificate one and x one
    assert says.gradients == 2 * (steps - 1) + 2


def test_adam_begins_afresh_in_every_call() -> None:
    client, g = CLIENTS["logistic"], direction(CLIENTS["logistic"])
    twin, y = Twin(client), X
    first = second = np.zeros(DIMENSION)
    for i in range(1, 51):
        slope = twin.slope(y, X, g, 1.0)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        y = y - 0.02 * (first / (1 - 0.9**i)) / (np.sqrt(second / (1 - 0.999**i)) + 1e-8)
    for _ in range(2):
        found, says = answer(Optax(ADAM, steps=50, minibatch=False), client, g, 1.0)
        np.testing.assert_allclose(found, y, rtol=1e-6)
    assert says["gradients"] == 51


def test_adaptive_descent_by_hand() -> None:
    client = CLIENTS["quadratic"]
    twin, g, gamma = Twin(client), direction(client), 0.3
    last, local, growth = X, gamma, 1e6  # gamma is short enough for the first step to be a descent
    y = last - local * g
    assert twin.rise(y, X, g, gamma) < 0
    for _ in range(11):
        slope, before = twin.slope(y, X, g, gamma), twin.slope(last, X, g, gamma)
        curved = np.linalg.norm(y - last) / (2 * np.linalg.norm(slope - before))
        following = min(np.sqrt(1 + growth) * local, curved)
        growth, local = following / local, following
        last, y = y, y - local * slope
    found, says = answer(AdaptiveDescent(steps=12, stop=Absolute(1e-300)), client, g, gamma)
    np.testing.assert_allclose(found, y, rtol=1e-9)
    assert says["gradients"] == 13


def test_backtracking_satisfies_armijo() -> None:
    client = CLIENTS["double well"]
    twin, g = Twin(client), direction(client)
    for gamma in (0.05, 0.9):
        y, says = answer(Backtracking(steps=1), client, g, gamma)
        used = says["step_size"]
        length = (X - y) @ g / (g @ g)
        np.testing.assert_allclose(y, X - length * g, rtol=1e-9)
        assert 0 < length <= used * (1 + 1e-12)
        assert twin.rise(y, X, g, used) <= -1e-4 * length * g @ g


def test_acceleration_pays() -> None:
    # condition 1000: acceleration takes the root of the steps of gradient descent, up to a factor
    client = make(np.geomspace(0.01, 100, DIMENSION))
    g, rule = direction(client), Absolute(1e-3)
    _, fast = answer(Accelerated(steps=2_000, stop=rule), client, g, 10.0)
    _, slow = answer(GradientDescent(steps=50_000, stop=rule), client, g, 10.0)
    _, memory = answer(LBFGS(stop=rule), client, g, 10.0)
    assert fast["certified"] == slow["certified"] == memory["certified"] == 1
    assert 10 * fast["gradients"] < slow["gradients"]
    assert 5 * memory["gradients"] < fast["gradients"]


def test_acceleration_survives_a_smoothness_that_is_too_small() -> None:
    client = CLIENTS["quadratic"]  # whose smoothness is 4
    y, says = answer(Accelerated(steps=500, smoothness=0.1), client, direction(client), 3.0)
    assert says["certified"] == 1
    assert says["decrease"] == pytest.approx(Twin(client).rise(y, X, direction(client), 3.0), rel=1e-9)


def test_newton_solves_a_quadratic_in_one_step() -> None:
    client = CLIENTS["quadratic"]
    g, gamma = direction(client), 2.0
    y, says = answer(NewtonCG(steps=5, cg_steps=DIMENSION, stop=Relative(1e-6)), client, g, gamma)
    exact = X - np.linalg.solve(np.asarray(client.hessian) + np.eye(DIMENSION) / gamma, g)
    assert says["steps"] <= 3  # one for each hundredth
    np.testing.assert_allclose(y, exact, atol=1e-5)


def test_the_exact_prox() -> None:
    from fedspam.problems import Quadratics

    hessian = np.asarray(CLIENTS["saddle"].hessian)
    client = Quadratics.of(hessian[None], np.zeros((1, DIMENSION))).client(jnp.uint32(0))
    twin, g = Twin(dataclasses.replace(CLIENTS["saddle"], linear=jnp.zeros(DIMENSION))), np.ones(DIMENSION)
    for gamma, used in ((0.4, 0.4), (4.8, 0.6)):  # curvature -1: phi has a minimizer for gamma < 1
        y, says = answer(Exact(), client, g, gamma)
        assert says["step_size"] == pytest.approx(used)
        np.testing.assert_allclose(y, X - np.linalg.solve(hessian + np.eye(DIMENSION) / used, g), rtol=1e-9)
        assert says["decrease"] == pytest.approx(twin.rise(y, X, g, used), rel=1e-9)
        assert says["stationarity"] < 1e-12
        assert says["certified"] == 1


@pytest.mark.parametrize("name", [*STOPPING, "optimistix"])
def test_answers_are_near_the_exact_prox(name: str) -> None:
    client, gamma = CLIENTS["quadratic"], 2.0
    g = direction(client)
    exact = X - np.linalg.solve(np.asarray(client.hessian) + np.eye(DIMENSION) / gamma, g)
    ((y, says),) = answers(SOLVERS[name](), [client], [g], gamma)
    # phi is 1/gamma-strongly convex
    assert np.linalg.norm(y - exact) <= gamma * says["stationarity"] + 1e-9
    assert 0.5 * g @ (exact - X) <= says["decrease"] * (1 - 1e-9)


# --- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused() -> None:
    client = dataclasses.replace(CLIENTS["logistic"])
    nameless = lambda x, key=None: client(x)
    for solver in (GradientDescent(steps=3), Accelerated(steps=3)):
        with pytest.raises(ValueError, match="has no smoothness constant"):
            solver(nameless, jax.random.key(0), x=jnp.asarray(X), g=jnp.asarray(X), step_size=1.0)
    for wrong in (
        lambda: GradientDescent(steps=0),
        lambda: Backtracking(steps=-1),
        lambda: Accelerated(steps=2.5),
        lambda: AdaptiveDescent(steps=0),
        lambda: LBFGS(memory=0),
        lambda: NewtonCG(cg_steps=0),
        lambda: Optax(ADAM, steps=0),
        lambda: Optimistix(None, steps=0),
    ):
        with pytest.raises(ValueError, match="must be a whole number of at least 1"):
            wrong()
    with pytest.raises(ValueError, match="use stop=Never"):
        GradientDescent(steps=3, minibatch=True, stop=Relative())
    with pytest.raises(ValueError, match="must be an Optax optimizer"):
        Optax(0.1, steps=3)
    with pytest.raises(ValueError, match="theta"):
        Relative(0.0)
    with pytest.raises(ValueError, match="epsilon"):
        Absolute(-1.0)
    assert isinstance(GradientDescent(steps=3).stop, Never)

"""The constants of the problems, against NumPy that shares no line with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import simulate, spam
from fedspam.problems import Quadratics, logistic, logistic_smoothness, quadratics, ridge, synthetic_logistic
from fedspam.solvers import Exact

pytestmark = pytest.mark.x64  # constants and closed forms, to the last digits

KEY = jax.random.key(3)


def arrays(people):
    return np.asarray(people.hessians), np.asarray(people.linears), np.asarray(people.constants)


def client_value(H, b, c, x):
    return 0.5 * x @ H @ x - b @ x + c


@pytest.fixture(scope="module")
def people():
    random = np.random.default_rng(0)
    roots = random.standard_normal((5, 4, 4))
    hessians = roots @ roots.transpose(0, 2, 1) - 0.5 * np.eye(4)  # some clients curve downwards
    return Quadratics.of(hessians, random.standard_normal((5, 4)), random.standard_normal(5))


def test_loss_gradient_and_sigma_are_those_of_the_clients(people):
    H, b, c = arrays(people)
    x = np.array([1.0, -2.0, 0.5, 3.0])
    gradients = np.array([H[i] @ x - b[i] for i in range(5)])
    full = sum(gradients) / 5
    spread = np.sqrt(sum(np.linalg.norm(gradient - full) ** 2 for gradient in gradients) / 5)
    np.testing.assert_allclose(people.loss(x), sum(client_value(H[i], b[i], c[i], x) for i in range(5)) / 5, rtol=1e-12)
    np.testing.assert_allclose(people.gradient(x), full, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(jax.grad(people.loss))(jnp.asarray(x)), full, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(type(people).sigma)(people, jnp.asarray(x)), spread, rtol=1e-12)


def test_constants_are_spectral_norms(people):
    H, _, _ = arrays(people)
    mean = sum(H) / 5
    norm = lambda matrix: np.linalg.svd(matrix, compute_uv=False)[0]
    np.testing.assert_allclose(people.delta, max(norm(h - mean) for h in H), rtol=1e-12)
    np.testing.assert_allclose(people.delta_rms**2, norm(sum((h - mean) @ (h - mean) for h in H) / 5), rtol=1e-12)
    np.testing.assert_allclose(people.smoothness, norm(mean), rtol=1e-12)
    np.testing.assert_allclose(people.client_smoothness, [norm(h) for h in H], rtol=1e-12)
    np.testing.assert_allclose(people.lowest_curvature, 1 / norm(np.linalg.inv(mean)), rtol=1e-10)
    assert people.delta_rms <= people.delta
    assert min(np.linalg.eigvalsh(h)[0] for h in H) < 0  # or the test would miss the sign of a curvature


def test_the_minimizer_is_one(people):
    x, random = people.minimizer, np.random.default_rng(1)
    H, b, c = arrays(people)
    f = lambda x: sum(client_value(H[i], b[i], c[i], x) for i in range(5)) / 5
    np.testing.assert_allclose(people.optimum, f(x), rtol=1e-12)
    assert np.linalg.norm(sum(H[i] @ x - b[i] for i in range(5))) < 1e-12
    assert all(f(x + 1e-3 * random.standard_normal(4)) > people.optimum for _ in range(20))


def test_a_concave_direction_has_no_minimizer():
    with pytest.raises(ValueError, match=r"curvature -1.*no single minimizer"):
        _ = Quadratics.of([np.diag([-1.0, 2.0])], [np.zeros(2)]).minimizer


def test_constants_do_not_depend_on_the_float_type(people):
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), people)
    np.testing.assert_allclose(narrow.delta, people.delta, rtol=1e-6)
    assert isinstance(narrow.delta, float)
    assert narrow.minimizer.dtype == np.float64


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize(
    ("delta", "clients", "nonconvex"), [(0.3, 6, False), (2.0, 5, False), (2.5, 5, True), (4.0, 2, True)]
)
def test_random_quadratics_are_as_asked_for(delta, clients, nonconvex, diagonal):
    made = quadratics(
        KEY, clients, 7, delta=delta, condition=30.0, curvature=1.0, noise=0.25, nonconvex=nonconvex, diagonal=diagonal
    )
    H, b, _ = arrays(made)
    mean, solution = H.mean(0), np.linalg.solve(H.mean(0), b.mean(0))
    gradients = np.einsum("nij,j->ni", H, solution) - b
    np.testing.assert_allclose(max(np.linalg.norm(h - mean, 2) for h in H), delta, rtol=1e-10)
    np.testing.assert_allclose(np.linalg.eigvalsh(mean)[[0, -1]], [1.0, 30.0], rtol=1e-10)
    np.testing.assert_allclose(np.sqrt((gradients**2).sum(1).mean()), 0.25, rtol=1e-8)
    lowest = min(np.linalg.eigvalsh(h)[0] for h in H)
    assert np.isclose(lowest, 1.0 - delta) if nonconvex else lowest >= -1e-12
    off_diagonal = np.abs(H * (1 - np.eye(7))).max()
    assert off_diagonal == 0 if diagonal else off_diagonal > 0.1


def test_equal_clients_and_one_client():
    alike = quadratics(KEY, 4, 3, delta=0.0, noise=0.0)
    assert alike.delta < 1e-14
    assert float(alike.sigma(jnp.ones(3))) < 1e-14
    assert quadratics(KEY, 1, 3, delta=0.0, noise=0.0).size == 1


def test_seeds_and_keys_decide_the_draw():
    same, other = quadratics(7, 3, 4), quadratics(8, 3, 4)
    np.testing.assert_array_equal(same.hessians, quadratics(jax.random.key(7), 3, 4).hessians)
    assert not np.allclose(same.hessians, other.hessians)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, "clients = 0 must be a whole number"),
        ({"delta": -1.0}, "delta = -1.0 must be finite and not negative"),
        ({"noise": float("nan")}, "noise = nan"),
        ({"condition": 0.5}, "condition = 0.5"),
        ({"curvature": 0.0}, "curvature = 0.0"),
        ({"clients": 1}, "give delta=0 and noise=0"),
        ({"nonconvex": True, "delta": 0.5}, "keeps every client convex"),
        ({"delta": 9.0, "condition": 2.0}, "allow nonconvex=True"),
    ],
)
def test_bad_quadratics_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        quadratics(KEY, **options)


@pytest.mark.parametrize(
    ("hessians", "linears", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 3)), "one square matrix per client"),
        (np.ones((2, 3, 3)), np.ones((2, 4)), r"it must be \(2, 3\)"),
        (np.full((1, 2, 2), np.nan), np.ones((1, 2)), "hessians holds NaN"),
        (np.array([[[1.0, 2.0], [0.0, 1.0]]]), np.ones((1, 2)), "must be symmetric"),
    ],
)
def test_bad_arrays_are_refused(hessians, linears, message):
    with pytest.raises(ValueError, match=message):
        Quadratics.of(hessians, linears)


# --- ridge -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_matrix", ["gram", "symmetric"])
@pytest.mark.parametrize("shift", ["printed", "none", "flipped"])
def test_ridge_is_the_printed_loss_under_every_reading(shift, noise_matrix):
    n, d, scale, strength = 3, 5, 0.7, 0.1
    population, start = ridge(11, n, d, regularization=strength, scale=scale, shift=shift, noise_matrix=noise_matrix)
    random = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.key(11))))
    A0, B0 = random.standard_normal((d, d)), random.standard_normal((n, d, d))
    y, x0 = random.standard_normal((n, d)), random.standard_normal(d)
    np.testing.assert_array_equal(start, x0)
    x = random.standard_normal(d)
    for i in range(n):
        B = B0[i] @ B0[i].T if noise_matrix == "gram" else 0.5 * (B0[i] + B0[i].T)
        A = A0 @ A0.T + scale * B
        lowest = min(np.linalg.eigvalsh(A))
        A = {"printed": A + lowest * np.eye(d), "none": A, "flipped": A - lowest * np.eye(d)}[shift]
        loss = np.sum((A @ x - y[i]) ** 2) + strength / 2 * np.sum(x**2)
        slope = 2 * A.T @ (A @ x - y[i]) + strength * x
        client = population.client(jnp.uint32(i))
        np.testing.assert_allclose(client(jnp.asarray(x)), loss, rtol=1e-11)
        np.testing.assert_allclose(jax.grad(client)(jnp.asarray(x)), slope, rtol=1e-10, atol=1e-10)
        if shift == "flipped":
            assert np.linalg.eigvalsh(A)[0] > -1e-10


def test_the_scale_of_ridge_controls_delta():
    deltas = [ridge(0, 4, 8, scale=scale)[0].delta for scale in (0.0, 0.1, 1.0)]
    assert deltas[0] < 1e-9 < deltas[1] < deltas[2]


def test_ridge_has_the_papers_sizes_and_refuses_other_readings():
    population, start = ridge(0)
    assert (population.size, population.dimension, start.shape) == (10, 100, (100,))
    with pytest.raises(ValueError, match="did you mean 'flipped'"):
        ridge(0, shift="fliped")


# --- logistic --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nonconvex", [False, True])
@pytest.mark.parametrize("coding", [(0, 1), (-1, 1)])
@pytest.mark.slow
def test_logistic_gradient(nonconvex, coding):
    random = np.random.default_rng(5)
    features, owners = random.standard_normal((9, 3)), np.array([4, 2, 2, 4, 7, 7, 7, 2, 4])
    signs = random.choice([-1, 1], 9)
    made = logistic(
        features, np.where(signs == 1, coding[1], coding[0]), owners, regularization=0.3, nonconvex=nonconvex
    )
    x = random.standard_normal(3)
    for number, owner in enumerate((2, 4, 7)):
        a, y = features[owners == owner], signs[owners == owner]
        inner = y * (a @ x)
        penalty = np.sum(x**2 / (1 + x**2)) if nonconvex else np.sum(x**2) / 2
        pull = 2 * x / (1 + x**2) ** 2 if nonconvex else x
        client = made.client(jnp.uint32(number))
        loss = np.mean(np.log1p(np.exp(-inner))) + 0.3 * penalty
        slope = -(a * (y / (1 + np.exp(inner)))[:, None]).mean(0) + 0.3 * pull
        np.testing.assert_allclose(client(jnp.asarray(x)), loss, rtol=1e-12)
        np.testing.assert_allclose(jax.grad(client)(jnp.asarray(x)), slope, rtol=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("nonconvex", [False, True])
@pytest.mark.slow
def test_logistic_smoothness_is_the_curvature_at_zero_and_nowhere_exceeded(nonconvex, weighted):
    drawn = synthetic_logistic(1, clients=3, dimension=4, rows=(3, 8), regularization=0.2, nonconvex=nonconvex)
    owners = np.repeat(np.arange(3), np.diff(drawn.offsets))
    rows = drawn.examples
    made = logistic(rows["features"], rows["label"], owners, regularization=0.2, nonconvex=nonconvex, weighted=weighted)
    known = logistic_smoothness(made)
    curvature = jax.jit(lambda i, x: jnp.max(jnp.abs(jnp.linalg.eigvalsh(jax.hessian(made.client(i))(x)))))
    for i in range(3):
        np.testing.assert_allclose(curvature(jnp.uint32(i), jnp.zeros(4)), known[i], rtol=1e-10)
        for point in np.random.default_rng(0).standard_normal((5, 4)):
            assert curvature(jnp.uint32(i), jnp.asarray(point)) <= known[i] * (1 + 1e-12)


def test_large_margins_do_not_overflow():
    client = logistic([[1000.0]], [1], [0], regularization=0.0).client(jnp.uint32(0))
    assert float(client(jnp.array([-5.0]))) == 5000.0
    assert float(jax.grad(client)(jnp.array([-5.0]))[0]) == -1000.0


def test_equal_losses_compile_once():
    first, second = (synthetic_logistic(seed, clients=2, dimension=2, rows=3) for seed in (0, 1))
    assert jax.tree.structure(first) == jax.tree.structure(second)


@pytest.mark.slow
def test_heterogeneity_separates_clients():
    def spread(heterogeneity):
        made = synthetic_logistic(0, clients=20, dimension=3, rows=200, heterogeneity=heterogeneity)
        slopes = jax.vmap(lambda i: jax.grad(made.client(i))(jnp.zeros(3)))(jnp.arange(20, dtype=jnp.uint32))
        return float(jnp.std(slopes, axis=0).sum())

    assert spread(2.0) > 3 * spread(0.0)


@pytest.mark.parametrize(
    ("features", "labels", "clients", "message"),
    [
        ([1.0], [1], [0], "one row per example"),
        ([[1.0]], [1, 0], [0], r"labels has shape \(2,\)"),
        ([[1.0]], [1], [0, 1], r"clients has shape \(2,\)"),
        ([[np.inf]], [1], [0], "NaN or infinite"),
        ([[1.0], [2.0]], [1, 2], [0, 0], "must be 0 and 1, or -1 and 1"),
    ],
)
def test_bad_rows_are_refused(features, labels, clients, message):
    with pytest.raises(ValueError, match=message):
        logistic(features, labels, clients)


def test_spam_finds_the_minimizer_of_clients_that_agree():
    made = quadratics(KEY, 5, 4, delta=0.2, noise=0.0)
    run = simulate(spam(1.0, 0.5, solver=Exact()), made, jnp.zeros(4), rounds=200, key=0)
    np.testing.assert_allclose(run.params, made.minimizer, atol=1e-8)

r"""The solution of a regression, and its exact similarity and smoothness.

Everything is computed in NumPy's float64 from closed forms: a row's Hessian is :math:`C \otimes aa^\top` with a small
curvature matrix C of its scores. For estimates on any clients, with confidence intervals, see `fedspam.theory.measure`.
"""

import itertools
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from fedspam._internal.trees import Params
from fedspam.clients import Ragged
from fedspam.problems.regression import LogisticLoss, SoftmaxLoss

STATIONARY = 1e-12  # the gradient norm at which Newton's method stops
STEPS = 200
RegressionLoss: TypeAlias = LogisticLoss | SoftmaxLoss


class Solution(NamedTuple):
    """A solved regression. Similarity and smoothness are the larger of their values at start and solution."""

    delta: float  # max_i |H_i - H|
    smoothness: float  # |H|
    point: Float[np.ndarray, "..."]  # a stationary point of f; the minimizer where f is convex
    value: float  # f(point): the optimum where f is convex
    gradient_norm: float  # |grad f(point)|
    convex: bool


class _Rows(NamedTuple):
    """The examples of a population as NumPy arrays, and the weight of each in f."""

    features: Float[np.ndarray, "rows d"]
    labels: np.ndarray
    weights: Float[np.ndarray, " rows"]


def row_weights(population: Ragged) -> Float[np.ndarray, " rows"]:
    """The weight of each row's loss in f, the mean over clients of their mean losses; the weights sum to 1.

    >>> from fedspam.problems import logistic
    >>> row_weights(logistic([[1.0], [2.0], [3.0]], [1, 0, 1], [0, 0, 1])).tolist()
    [0.25, 0.25, 0.5]
    """
    sizes = np.diff(np.asarray(population.offsets)).astype(float)
    each = np.full(len(sizes), 1 / sizes.sum()) if population.weighted else 1 / (sizes * len(sizes))
    return np.repeat(each, sizes.astype(int))


def solve(population: Ragged, start: Params) -> Solution:
    """Solve a regression centrally to high accuracy, and compute its similarity and smoothness.

    Newton's method with a line search; where f is not convex, with the absolute values of the Hessian's eigenvalues.

    Arguments:
        population: made by `logistic` or `softmax`.
        start: where a method would start.

    >>> import numpy as np
    >>> from fedspam.problems import synthetic_logistic
    >>> found = solve(synthetic_logistic(0, clients=4, dimension=3), np.zeros(3))
    >>> found.gradient_norm <= 1e-12, found.convex, round(found.smoothness, 3)
    (True, True, 0.562)
    """
    loss = population.loss
    if not isinstance(loss, RegressionLoss):
        raise ValueError(f"{loss} is not a regression whose Hessian is known; use logistic or softmax")
    label = population.examples["label"]
    rows = _Rows(np.asarray(population.examples["features"], np.float64), np.asarray(label), row_weights(population))
    start = np.asarray(start, np.float64)
    point, value, gradient_norm = _newton(loss, start, rows)
    constants = [_similarity_and_smoothness(loss, x, rows, np.asarray(population.offsets)) for x in (start, point)]
    delta, smoothness = (max(pair) for pair in zip(*constants, strict=True))
    return Solution(delta, smoothness, point, value, gradient_norm, not loss.nonconvex)


def _similarity_and_smoothness(
    loss: RegressionLoss, x: np.ndarray, rows: _Rows, offsets: np.ndarray
) -> tuple[float, float]:
    """max_i |H_i - H| and |H| at a point."""
    mean = _hessian(loss, x, rows)
    clients, delta = len(offsets) - 1, 0.0
    for begin, end in itertools.pairwise(offsets):
        # a client's weights in f sum to 1/clients, or to its share of the rows; in f_i they are `clients` times larger
        own = _Rows(rows.features[begin:end], rows.labels[begin:end], rows.weights[begin:end] * clients)
        delta = max(delta, _spectral_norm(_hessian(loss, x, own) - mean))
    return delta, _spectral_norm(mean)


def _spectral_norm(matrix: Float[np.ndarray, "n n"]) -> float:
    values = np.linalg.eigvalsh(matrix)
    return float(max(-values[0], values[-1]))


def _newton(loss: RegressionLoss, x: np.ndarray, rows: _Rows) -> tuple[np.ndarray, float, float]:
    value, gradient = _value_and_gradient(loss, x, rows)
    for _ in range(STEPS):
        norm = float(np.linalg.norm(gradient))
        if norm <= STATIONARY:
            break
        matrix = _hessian(loss, x, rows)
        if not loss.nonconvex:
            step = -np.linalg.solve(matrix, gradient.ravel())
        else:
            values, vectors = np.linalg.eigh(matrix)
            step = -vectors @ ((gradient.ravel() @ vectors) / np.maximum(np.abs(values), 1e-8 * np.abs(values).max()))
        step, length = step.reshape(x.shape), 1.0
        while length > 1e-10:
            new_value, new_gradient = _value_and_gradient(loss, x + length * step, rows)
            # near the solution rounding hides the decrease of the value, but not that of the gradient
            if new_value <= value + 1e-4 * length * np.vdot(gradient, step) or np.linalg.norm(new_gradient) < norm / 2:
                break
            length /= 2
        else:
            break
        x, value, gradient = x + length * step, new_value, new_gradient
    return x, value, float(np.linalg.norm(gradient))


# --- closed forms ----------------------------------------------------------------------------------------------------


def _value_and_gradient(loss: RegressionLoss, x: np.ndarray, rows: _Rows) -> tuple[float, np.ndarray]:
    """The weighted sum of the rows' losses, and its gradient."""
    scores = rows.features @ x
    if isinstance(loss, LogisticLoss):
        margins = rows.labels * scores
        losses, residuals = np.logaddexp(0, -margins), -rows.labels * _sigmoid(-margins)
    else:
        residuals, normalizers = _softmax(scores)
        own = np.arange(len(scores)), rows.labels
        losses = normalizers - scores[own]
        residuals[own] -= 1
    penalty, penalty_gradient, _ = _penalty(loss, x)
    weights = rows.weights.reshape(-1, *(1,) * (residuals.ndim - 1))
    value = float(rows.weights @ losses + penalty * rows.weights.sum())
    return value, rows.features.T @ (weights * residuals) + penalty_gradient


def _hessian(loss: RegressionLoss, x: np.ndarray, rows: _Rows) -> Float[np.ndarray, "n n"]:
    """The Hessian of the weighted sum of the rows' losses, x as one vector."""
    scores = rows.features @ x
    if isinstance(loss, LogisticLoss):
        probability = _sigmoid(scores)
        curvatures = (probability * (1 - probability))[:, None, None]
    else:
        probabilities, _ = _softmax(scores)
        curvatures = probabilities[:, :, None] * (np.eye(scores.shape[1]) - probabilities[:, None, :])
    d, classes = rows.features.shape[1], curvatures.shape[1]
    blocks = np.empty((d, classes, d, classes))
    for c, e in itertools.combinations_with_replacement(range(classes), 2):
        block = rows.features.T @ ((rows.weights * curvatures[:, c, e])[:, None] * rows.features)
        blocks[:, c, :, e] = blocks[:, e, :, c] = block
    _, _, penalty_curvature = _penalty(loss, x)
    return blocks.reshape(d * classes, d * classes) + rows.weights.sum() * np.diag(penalty_curvature.ravel())


def _penalty(loss: RegressionLoss, x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """lambda R(x), its gradient and the diagonal of its Hessian."""
    factor, squares = loss.regularization, x**2
    if not loss.nonconvex:
        return 0.5 * factor * float(squares.sum()), factor * x, np.full_like(x, factor)
    value = factor * float((squares / (1 + squares)).sum())
    return value, factor * 2 * x / (1 + squares) ** 2, factor * (2 - 6 * squares) / (1 + squares) ** 3


def _sigmoid(t: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(t / 2))


def _softmax(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The softmax of each row, and the logarithm of its denominator."""
    top = scores.max(axis=1, keepdims=True)
    powers = np.exp(scores - top)
    total = powers.sum(axis=1, keepdims=True)
    return powers / total, (top + np.log(total))[:, 0]

r"""What is known of a regression only after looking: its similarity, its smoothness, and where it ends.

Everything is computed in NumPy's float64 from closed forms: a row's Hessian is :math:`C \otimes aa^\top` with a small
curvature C of its scores.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fedspam._internal.trees import Params
from fedspam.clients import Ragged
from fedspam.problems.logistic import LogisticLoss
from fedspam.problems.softmax import SoftmaxLoss

STATIONARY = 1e-12  # the gradient norm at which a solve has arrived
STEPS = 200


class Measured(NamedTuple):
    """The constants of a regression. Similarity and smoothness are the largest seen at the start and at the end."""

    delta: float  # max_i |H_i - H|
    smoothness: float  # |H|
    end: Float[np.ndarray, "..."]  # a stationary point of f; its minimiser where f is convex
    value: float  # f there: the optimum where f is convex
    slope: float  # the gradient norm that was reached
    convex: bool


class _Rows(NamedTuple):
    """The examples of a population as NumPy has them, and how much each weighs in f."""

    features: Float[np.ndarray, "rows d"]
    labels: np.ndarray
    weights: Float[np.ndarray, " rows"]


def row_weights(population: Ragged) -> Float[np.ndarray, " rows"]:
    """By how much each row's loss enters f, the mean over clients of their mean losses; the weights sum to 1.

    >>> from fedspam.problems import logistic
    >>> row_weights(logistic([[1.0], [2.0], [3.0]], [1, 0, 1], [0, 0, 1])).tolist()
    [0.25, 0.25, 0.5]
    """
    sizes = np.diff(np.asarray(population.offsets)).astype(float)
    each = np.full(len(sizes), 1 / sizes.sum()) if population.weighted else 1 / (sizes * len(sizes))
    return np.repeat(each, sizes.astype(int))


def measure(population: Ragged, start: Params) -> Measured:
    """Solve a regression to high accuracy and measure its similarity on the way.

    Newton's method with a line search, and with eigenvalues replaced by their absolute values where f is not convex.

    Arguments:
        clients: made by `logistic` or `softmax`.
        start: where a method would start.

    >>> import numpy as np
    >>> from fedspam.problems import synthetic_logistic
    >>> found = measure(synthetic_logistic(0, clients=4, dimension=3), np.zeros(3))
    >>> found.slope <= 1e-12, found.convex, round(found.smoothness, 3)
    (True, True, 0.562)
    """
    loss = population.loss
    if not isinstance(loss, LogisticLoss | SoftmaxLoss):
        raise ValueError(f"{loss} is no regression whose Hessian is known; make the clients by logistic or softmax")
    label = population.examples["label"]
    rows = _Rows(np.asarray(population.examples["features"], np.float64), np.asarray(label), row_weights(population))
    start = np.asarray(start, np.float64)
    convex = not getattr(loss, "nonconvex", False)
    end, value, slope = _newton(lambda x: _look(loss, x, rows), lambda x: _hessian(loss, x, rows), start, convex)
    scales = [_similarity(loss, x, rows, np.asarray(population.offsets)) for x in (start, end)]
    delta, smoothness = (max(pair) for pair in zip(*scales, strict=True))
    return Measured(delta, smoothness, end, value, slope, convex)


def _similarity(loss: Any, x: np.ndarray, rows: _Rows, offsets: np.ndarray) -> tuple[float, float]:
    """max_i |H_i - H| and |H| at a point."""
    whole = _hessian(loss, x, rows)
    clients, furthest = len(offsets) - 1, 0.0
    for begin, end in itertools.pairwise(offsets):
        # a client's rows weigh 1/clients together, or its share where f is pooled; alone they weigh that times clients
        part = _Rows(rows.features[begin:end], rows.labels[begin:end], rows.weights[begin:end] * clients)
        furthest = max(furthest, _spectral(_hessian(loss, x, part) - whole))
    return furthest, _spectral(whole)


def _spectral(matrix: Float[np.ndarray, "n n"]) -> float:
    values = np.linalg.eigvalsh(matrix)
    return float(max(-values[0], values[-1]))


def _newton(
    look: Callable[[np.ndarray], tuple[float, np.ndarray]],
    hessian: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    convex: bool,
) -> tuple[np.ndarray, float, float]:
    value, gradient = look(x)
    for _ in range(STEPS):
        slope = float(np.linalg.norm(gradient))
        if slope <= STATIONARY:
            break
        matrix = hessian(x)
        if convex:
            step = -np.linalg.solve(matrix, gradient.ravel())
        else:
            values, vectors = np.linalg.eigh(matrix)
            step = -vectors @ ((gradient.ravel() @ vectors) / np.maximum(np.abs(values), 1e-8 * np.abs(values).max()))
        step, length = step.reshape(x.shape), 1.0
        while length > 1e-10:
            new_value, new_gradient = look(x + length * step)
            # near the end the value no longer resolves the step, the gradient still does
            if new_value <= value + 1e-4 * length * np.vdot(gradient, step) or np.linalg.norm(new_gradient) < slope / 2:
                break
            length /= 2
        else:
            break
        x, value, gradient = x + length * step, new_value, new_gradient
    return x, value, float(np.linalg.norm(gradient))


# --- closed forms ----------------------------------------------------------------------------------------------------


def _look(loss: Any, x: np.ndarray, rows: _Rows) -> tuple[float, np.ndarray]:
    """f(x) and its gradient."""
    scores = rows.features @ x
    if isinstance(loss, LogisticLoss):
        margins = rows.labels * scores
        losses, pull = np.logaddexp(0, -margins), -rows.labels * _sigmoid(-margins)
    else:
        chances, total = _chances(scores)
        own = np.arange(len(scores)), rows.labels
        losses, pull = total - scores[own], chances
        pull[own] -= 1
    penalty, slope, _ = _penalty(loss, x)
    weights = rows.weights.reshape(-1, *(1,) * (pull.ndim - 1))
    value = float(rows.weights @ losses + penalty * rows.weights.sum())
    return value, rows.features.T @ (weights * pull) + slope


def _hessian(loss: Any, x: np.ndarray, rows: _Rows) -> Float[np.ndarray, "n n"]:
    """The Hessian of the weighted sum of losses, the penalty weighed by the sum of the weights, x as one vector."""
    scores = rows.features @ x
    if isinstance(loss, LogisticLoss):
        chance = _sigmoid(scores)
        curvatures = (chance * (1 - chance))[:, None, None]
    else:
        chances, _ = _chances(scores)
        curvatures = chances[:, :, None] * (np.eye(scores.shape[1]) - chances[:, None, :])
    d, classes = rows.features.shape[1], curvatures.shape[1]
    blocks = np.empty((d, classes, d, classes))
    for c, e in itertools.combinations_with_replacement(range(classes), 2):
        block = rows.features.T @ ((rows.weights * curvatures[:, c, e])[:, None] * rows.features)
        blocks[:, c, :, e] = blocks[:, e, :, c] = block
    _, _, bend = _penalty(loss, x)
    return blocks.reshape(d * classes, d * classes) + rows.weights.sum() * np.diag(bend.ravel())


def _penalty(loss: Any, x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """lambda R(x), its gradient and the diagonal of its Hessian."""
    factor, squares = loss.regularisation, x**2
    if not getattr(loss, "nonconvex", False):
        return 0.5 * factor * float(squares.sum()), factor * x, np.full_like(x, factor)
    value = factor * float((squares / (1 + squares)).sum())
    return value, factor * 2 * x / (1 + squares) ** 2, factor * (2 - 6 * squares) / (1 + squares) ** 3


def _sigmoid(t: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(t / 2))


def _chances(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The softmax of each row, and the logarithm of its denominator."""
    top = scores.max(axis=1, keepdims=True)
    powers = np.exp(scores - top)
    total = powers.sum(axis=1, keepdims=True)
    return powers / total, (top + np.log(total))[:, 0]

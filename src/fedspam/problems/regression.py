r"""Logistic and softmax regression over clients, without an intercept: add a column of ones for one.

.. math:: f_i(x) = \frac1{m_i}\sum_j \ell(x; a_{ij}, y_{ij}) + \lambda R(x),
          \qquad R(x) = \tfrac12\|x\|^2 \quad\text{or}\quad \sum_l \frac{x_l^2}{1 + x_l^2}

For two classes :math:`\ell = \log(1 + e^{-y\langle a, x\rangle})`; for more, with one column :math:`x_c` per class,
:math:`\ell = \log\sum_c e^{\langle a, x_c\rangle} - \langle a, x_y\rangle`.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import ArrayLike

from fedspam._internal import checks, prng
from fedspam._internal.trees import Key
from fedspam.clients import Ragged


def cross_entropy(scores: Float[Array, "..."], labels: Shaped[Array, "..."]) -> Float[Array, "..."]:
    """The negative log-likelihood of each label.

    Arguments:
        scores: one more axis than the labels, over the classes; or the labels' own axes, for two classes.
        labels: classes from 0 on; for two classes, 1 against anything that is not positive. Padding (a negative class)
            counts as class 0: mask it afterwards.

    >>> cross_entropy(jnp.zeros((2, 3)), jnp.array([0, 2]))  # log 3
    Array([1.0986123, 1.0986123], dtype=float32)
    """
    if scores.ndim == labels.ndim:
        return jnp.logaddexp(0, jnp.where(labels > 0, -scores, scores))
    own = jnp.take_along_axis(scores, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(scores, axis=-1) - own


@dataclass(frozen=True)
class LogisticLoss:
    """One loss per row, labels -1 and 1. Equal settings are equal functions, so that nothing is compiled twice."""

    regularization: float
    nonconvex: bool = False

    def __call__(self, params: Float[Array, " d"], rows: dict[str, Any]) -> Float[Array, " rows"]:
        squares = params**2
        penalty = jnp.sum(squares / (1 + squares)) if self.nonconvex else 0.5 * jnp.sum(squares)
        return cross_entropy(rows["features"] @ params, rows["label"]) + self.regularization * penalty


@dataclass(frozen=True)
class SoftmaxLoss:
    """One loss per row, labels 0, 1, ..., one column of parameters per class. Equal settings are equal functions."""

    regularization: float
    nonconvex = False  # as `LogisticLoss` has it

    def __call__(self, params: Float[Array, "d classes"], rows: dict[str, Any]) -> Float[Array, " rows"]:
        penalty = 0.5 * self.regularization * jnp.sum(params**2)
        return cross_entropy(rows["features"] @ params, rows["label"]) + penalty


def logistic(
    features: ArrayLike, labels: ArrayLike, clients: ArrayLike,
    *, regularization: float = 0.1, nonconvex: bool = False, batch: int | None = None, replace: bool = False,
    weighted: bool = False,
) -> Ragged:  # fmt: skip
    r"""The clients of a logistic regression. (`fedspam.models.logistic_regression` is the same loss as a model.)

    Arguments:
        features: one row per example.
        labels: one per example, of two values: 0 and 1, or -1 and 1.
        clients: for each example the number of its client; the clients are those that occur, in order of number.
        regularization: :math:`\lambda`.
        nonconvex: the penalty :math:`\sum_l x_l^2/(1+x_l^2)` instead of :math:`\frac12\|x\|^2`.
        batch, replace, weighted: as in `Ragged.of`.

    >>> import jax.numpy as jnp
    >>> clients = logistic([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [1, 0, 1], [7, 7, 9])
    >>> clients.size, round(float(clients.client(jnp.uint32(1))(jnp.zeros(2))), 4)
    (2, 0.6931)
    """
    labels = np.asarray(labels)
    if not (np.isin(labels, (0, 1)).all() or np.isin(labels, (-1, 1)).all()):
        raise ValueError(f"labels hold {np.unique(labels)[:5].tolist()}; they must be 0 and 1, or -1 and 1")
    signs = jnp.asarray(np.where(labels == 1, 1.0, -1.0), jnp.result_type(float))
    loss = LogisticLoss(float(regularization), nonconvex)
    return _population(features, signs, clients, loss, batch=batch, replace=replace, weighted=weighted)


def softmax(
    features: ArrayLike, labels: ArrayLike, clients: ArrayLike,
    *, regularization: float = 0.1, batch: int | None = None, replace: bool = False, weighted: bool = False,
) -> Ragged:  # fmt: skip
    r"""The clients of a softmax regression. (`fedspam.models.softmax_regression` is the same loss as a model.)

    Arguments:
        labels: the class of each example, a whole number from 0 on.

    The other arguments are those of `logistic`.

    >>> import jax.numpy as jnp
    >>> clients = softmax([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0, 1, 2], [7, 7, 9])
    >>> clients.size, round(float(clients.client(jnp.uint32(1))(jnp.zeros((2, 3)))), 4)  # log 3
    (2, 1.0986)
    """
    labels = np.asarray(labels)
    if not np.issubdtype(labels.dtype, np.integer) or labels.min(initial=0) < 0:
        raise ValueError(f"labels hold {np.unique(labels)[:5].tolist()}; they must be whole numbers from 0 on")
    loss = SoftmaxLoss(float(regularization))
    classes = jnp.asarray(labels, jnp.int32)
    return _population(features, classes, clients, loss, batch=batch, replace=replace, weighted=weighted)


def logistic_smoothness(population: Ragged) -> Float[np.ndarray, " clients"]:
    r"""For each client the Lipschitz constant of its gradient, attained at x = 0, where all margins vanish.

    .. math:: L_i = \lambda_{\max}(A_i^\top A_i)/(4m_i) + \lambda\max R''

    >>> clients = logistic([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], [1, 0, 1], [0, 0, 1], regularization=0.5)
    >>> logistic_smoothness(clients).tolist()
    [0.625, 1.5]
    """
    if not isinstance(population.loss, LogisticLoss):
        raise ValueError(f"{population.loss} is not a logistic loss; give a population made by logistic(...)")
    features, offsets = np.asarray(population.examples["features"], np.float64), np.asarray(population.offsets)
    # the curvature of the non-convex penalty, (2 - 6x²)/(1 + x²)³, is 2 at 0, and -1/2 at its least
    penalty = population.loss.regularization * (2.0 if population.loss.nonconvex else 1.0)
    constants = []
    for begin, end in itertools.pairwise(offsets):
        curvature = np.linalg.norm(features[begin:end], 2) ** 2 / (4 * (end - begin))
        share = (end - begin) * population.size / offsets[-1] if population.weighted else 1.0
        constants.append((curvature + penalty) * share)
    return np.array(constants)


def synthetic_logistic(
    key: Key | int, clients: int = 10, dimension: int = 5,
    *, rows: int | tuple[int, int] = 20, heterogeneity: float = 0.5, regularization: float = 0.1,
    nonconvex: bool = False, batch: int | None = None,
) -> Ragged:  # fmt: skip
    """Logistic regression on drawn data: clients share a model up to a normal deviation, and draw their own features.

    Arguments:
        rows: examples per client; a pair draws the number uniformly from low to high, both included.
        heterogeneity: standard deviation of the clients' models and of the centers of their features; 0 makes clients
            differ by chance alone.

    The other arguments are those of `logistic`.

    >>> clients = synthetic_logistic(0, clients=3, dimension=4, rows=(5, 9))
    >>> clients.size, clients.capacity <= 9
    (3, True)
    """
    checks.whole("clients", clients, 1)
    checks.whole("dimension", dimension, 1)
    checks.between("heterogeneity", heterogeneity, 0, np.inf)
    low, high = rows if isinstance(rows, tuple) else (rows, rows)
    checks.whole("rows", low, 1)
    checks.whole("rows", high, low)
    random = prng.numpy_generator(key)
    shared = random.standard_normal(dimension)
    features, labels, owners = [], [], []
    for client in range(clients):
        model = shared + heterogeneity * random.standard_normal(dimension)
        center = heterogeneity * random.standard_normal(dimension)
        count = int(random.integers(low, high + 1))
        drawn = center + random.standard_normal((count, dimension))
        features.append(drawn)
        labels.append(random.random(count) < 1 / (1 + np.exp(-drawn @ model)))
        owners.append(np.full(count, client))
    return logistic(
        np.concatenate(features),
        np.concatenate(labels).astype(int),
        np.concatenate(owners),
        regularization=regularization,
        nonconvex=nonconvex,
        batch=batch,
    )


def _population(
    features: Any, labels: Shaped[Array, " rows"], clients: Any, loss: LogisticLoss | SoftmaxLoss, **options: Any
) -> Ragged:
    """The rows sorted by client."""
    checks.between("regularization", loss.regularization, 0, np.inf)
    features, clients = np.asarray(features, np.float64), np.asarray(clients)
    if features.ndim != 2 or len(features) == 0:
        raise ValueError(f"features has shape {features.shape}; give a matrix with one row per example")
    for name, array in (("labels", labels), ("clients", clients)):
        if array.shape != features.shape[:1]:
            raise ValueError(f"{name} has shape {array.shape}; with these features it must be {features.shape[:1]}")
    if not np.isfinite(features).all():
        raise ValueError("features hold NaN or infinite values; every number must be finite")
    order = np.argsort(clients, kind="stable")
    sizes = np.unique(clients, return_counts=True)[1]
    examples = {"features": jnp.asarray(features[order], jnp.result_type(float)), "label": labels[order]}
    return Ragged.of_sizes(examples, sizes.tolist(), loss, **options)

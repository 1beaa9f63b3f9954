r"""Logistic regression over clients, convex or not.

.. math:: f_i(x) = \frac1{m_i}\sum_j \log(1 + e^{-y_{ij}\langle a_{ij}, x\rangle}) + \lambda R(x),
          \qquad R(x) = \tfrac12\|x\|^2 \quad\text{or}\quad \sum_l \frac{x_l^2}{1 + x_l^2}
"""

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from fedspam._internal import checks
from fedspam.clients import Ragged


@dataclass(frozen=True)
class LogisticLoss:
    """One loss a row, labels -1 and 1. Equal settings are equal functions, so that nothing is compiled twice."""

    regularisation: float
    nonconvex: bool

    def __call__(self, params: Float[Array, " d"], rows: dict[str, Any]) -> Float[Array, " rows"]:
        margins = rows["label"] * (rows["features"] @ params)
        squares = params**2
        penalty = jnp.sum(squares / (1 + squares)) if self.nonconvex else 0.5 * jnp.sum(squares)
        return jnp.logaddexp(0.0, -margins) + self.regularisation * penalty

    @property
    def penalty_smoothness(self) -> float:
        """The largest curvature of the penalty: (2 - 6x²)/(1 + x²)³ is 2 at 0, and -1/2 at its least."""
        return self.regularisation * (2.0 if self.nonconvex else 1.0)


def logistic(
    features: Any,
    labels: Any,
    clients: Any,
    *,
    regularisation: float = 0.1,
    nonconvex: bool = False,
    batch: int | None = None,
    replace: bool = False,
    weighted: bool = False,
) -> Ragged:
    r"""Regularised logistic regression on rows that belong to clients.

    Arguments:
        features: one row a example.
        labels: two values, one an example: 0 and 1, or -1 and 1.
        clients: for each example the number of its client; the clients are those that occur, in order of number.
        regularisation: :math:`\lambda`.
        nonconvex: the penalty :math:`\sum_l x_l^2/(1+x_l^2)` instead of :math:`\frac12\|x\|^2`.
        batch, replace, weighted: as in `Ragged.of`.

    >>> import jax.numpy as jnp
    >>> clients = logistic([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [1, 0, 1], [7, 7, 9])
    >>> clients.size, round(float(clients.client(jnp.uint32(1))(jnp.zeros(2))), 4)
    (2, 0.6931)
    """
    features, labels, clients = np.asarray(features, np.float64), np.asarray(labels), np.asarray(clients)
    checks.between("regularisation", regularisation, 0, np.inf)
    if features.ndim != 2 or len(features) == 0:
        raise ValueError(f"features has shape {features.shape}; give a matrix with one row an example")
    for name, array in (("labels", labels), ("clients", clients)):
        if array.shape != features.shape[:1]:
            raise ValueError(f"{name} has shape {array.shape}; with these features it must be {features.shape[:1]}")
    if not np.isfinite(features).all():
        raise ValueError("features hold NaN or infinite values; every number must be finite")
    if not (np.isin(labels, (0, 1)).all() or np.isin(labels, (-1, 1)).all()):
        raise ValueError(f"labels hold {np.unique(labels)[:5].tolist()}; they must be 0 and 1, or -1 and 1")

    order = np.argsort(clients, kind="stable")
    sizes = np.unique(clients, return_counts=True)[1]
    dtype = jnp.result_type(float)
    examples = {
        "features": jnp.asarray(features[order], dtype),
        "label": jnp.asarray(np.where(labels[order] == 1, 1.0, -1.0), dtype),
    }
    loss = LogisticLoss(float(regularisation), nonconvex)
    return Ragged.of_sizes(examples, sizes.tolist(), loss, batch=batch, replace=replace, weighted=weighted)


def logistic_smoothness(population: Ragged) -> Float[np.ndarray, " clients"]:
    r"""For each client the Lipschitz constant of its gradient, attained at x = 0, where all margins vanish.

    .. math:: L_i = \lambda_{\max}(A_i^\top A_i)/(4m_i) + \lambda\max R''

    >>> clients = logistic([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], [1, 0, 1], [0, 0, 1], regularisation=0.5)
    >>> logistic_smoothness(clients).tolist()
    [0.625, 1.5]
    """
    if not isinstance(population.loss, LogisticLoss):
        raise ValueError(f"{population.loss} is no logistic loss; give a population made by logistic(...)")
    features, offsets = np.asarray(population.examples["features"], np.float64), np.asarray(population.offsets)
    constants = []
    for begin, end in itertools.pairwise(offsets):
        curvature = (
            np.linalg.norm(features[begin:end], 2) ** 2 / (4 * (end - begin)) + population.loss.penalty_smoothness
        )
        constants.append(curvature * ((end - begin) * population.size / offsets[-1] if population.weighted else 1.0))
    return np.array(constants)


def synthetic_logistic(
    key: Key[Array, ""] | int,
    clients: int = 10,
    dimension: int = 5,
    *,
    rows: int | tuple[int, int] = 20,
    heterogeneity: float = 0.5,
    regularisation: float = 0.1,
    nonconvex: bool = False,
    batch: int | None = None,
) -> Ragged:
    """Logistic regression on drawn data: clients share a model up to a normal deviation, and draw their own features.

    Arguments:
        key: the randomness, a key or a seed.
        rows: examples a client; a pair draws the number uniformly from low to high, both included.
        heterogeneity: standard deviation of the clients' models and of the centres of their features; 0 makes clients
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
    key = jax.random.key(key) if isinstance(key, int) else key
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    shared = random.standard_normal(dimension)
    features, labels, owners = [], [], []
    for client in range(clients):
        model = shared + heterogeneity * random.standard_normal(dimension)
        centre = heterogeneity * random.standard_normal(dimension)
        count = int(random.integers(low, high + 1))
        drawn = centre + random.standard_normal((count, dimension))
        features.append(drawn)
        labels.append(random.random(count) < 1 / (1 + np.exp(-drawn @ model)))
        owners.append(np.full(count, client))
    return logistic(
        np.concatenate(features),
        np.concatenate(labels).astype(int),
        np.concatenate(owners),
        regularisation=regularisation,
        nonconvex=nonconvex,
        batch=batch,
    )

r"""Softmax regression over clients.

.. math:: f_i(X) = \frac1{m_i}\sum_j \Bigl(\log\sum_c e^{\langle a_{ij}, x_c\rangle} - \langle a_{ij}, x_{y_{ij}}\rangle
          \Bigr) + \tfrac\lambda2\|X\|^2
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedspam._internal import checks
from fedspam.clients import Ragged


@dataclass(frozen=True)
class SoftmaxLoss:
    """One loss a row, labels 0, 1, ..., one column of parameters a class. Equal settings are equal functions."""

    regularisation: float

    def __call__(self, params: Float[Array, "d classes"], rows: dict[str, Any]) -> Float[Array, " rows"]:
        scores = rows["features"] @ params
        own = jnp.take_along_axis(scores, rows["label"][:, None], axis=1)[:, 0]
        return jax.nn.logsumexp(scores, axis=1) - own + 0.5 * self.regularisation * jnp.sum(params**2)


def softmax(
    features: Any,
    labels: Any,
    clients: Any,
    *,
    regularisation: float = 0.1,
    batch: int | None = None,
    replace: bool = False,
    weighted: bool = False,
) -> Ragged:
    r"""Regularised softmax regression on rows that belong to clients. There is no intercept: add a column of ones.

    Arguments:
        features: one row an example.
        labels: the class of each, a whole number from 0 on.
        clients: for each example the number of its client; the clients are those that occur, in order of number.
        regularisation: :math:`\lambda`.
        batch, replace, weighted: as in `Ragged.of`.

    >>> import jax.numpy as jnp
    >>> clients = softmax([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0, 1, 2], [7, 7, 9])
    >>> clients.size, round(float(clients.client(jnp.uint32(1))(jnp.zeros((2, 3)))), 4)  # log 3
    (2, 1.0986)
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
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise ValueError(f"labels hold {np.unique(labels)[:5].tolist()}; they must be whole numbers from 0 on")
    order = np.argsort(clients, kind="stable")
    sizes = np.unique(clients, return_counts=True)[1]
    examples = {
        "features": jnp.asarray(features[order], jnp.result_type(float)),
        "label": jnp.asarray(labels[order], jnp.int32),
    }
    loss = SoftmaxLoss(float(regularisation))
    return Ragged.of_sizes(examples, sizes.tolist(), loss, batch=batch, replace=replace, weighted=weighted)

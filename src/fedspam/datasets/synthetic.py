r"""Data that needs no download: LEAF's synthetic(α, β), and the digits that come with scikit-learn.

.. math:: u_k \sim N(0, \alpha^2),\ B_k \sim N(0, \beta^2),\quad W_k, b_k \sim N(u_k, 1),\ v_k \sim N(B_k, 1),\quad
          x \sim N(v_k, \Sigma),\ \Sigma_{jj} = j^{-1.2},\quad y = \arg\max(x W_k + b_k)

α sets how much the clients' models differ, β how much their features do.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from fedspam._internal import checks
from fedspam._internal.reading import missing
from fedspam.clients import Generated, Loss
from fedspam.datasets.federated import FederatedData

LEAST_ROWS, MOST_ROWS = 50, 10**5  # of one client


def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    clients: int = 30,
    *,
    dimension: int = 60,
    classes: int = 10,
    iid: bool = False,
    seed: int = 0,
) -> FederatedData:
    r"""LEAF's and FedProx's synthetic(α, β): ``features`` and ``label``, at least 50 rows per client, log-normally
    distributed.

    As in FedProx's code, α and β are standard deviations; its paper writes them as variances.

    Arguments:
        alpha, beta: how much models and features differ between clients.
        clients: how many.
        dimension, classes: of the rows.
        iid: one model for all clients, and features centered at zero.
        seed: which data.

    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks, 2018,
    arXiv:1812.06127, section 5.1; Shamir, Srebro, Zhang 2014.

    >>> data = synthetic(1, 1, clients=5)
    >>> len(data), data.examples["features"].shape[1], int(data.sizes.min()) >= 50
    (5, 60, True)
    """
    _settings(alpha, beta, dimension, classes)
    checks.whole("clients", clients, 1)
    _check_size(clients, LEAST_ROWS * clients, LEAST_ROWS, dimension, classes)  # before their sizes are drawn
    random = np.random.default_rng(seed)
    sizes = np.minimum(random.lognormal(4, 2, clients).astype(int) + LEAST_ROWS, MOST_ROWS)
    _check_size(clients, int(sizes.sum()), int(sizes.max()), dimension, classes)
    deviation = np.arange(1, dimension + 1) ** -0.6
    shared = random.standard_normal((dimension + 1, classes))
    parts = []
    for client, size in enumerate(sizes):
        mean, center = random.normal(0, alpha), random.normal(0, beta)
        model = shared if iid else mean + random.standard_normal((dimension + 1, classes))
        middle = np.zeros(dimension) if iid else center + random.standard_normal(dimension)
        features = middle + deviation * random.standard_normal((size, dimension))
        label = np.argmax(features @ model[:-1] + model[-1], axis=1)
        parts.append((str(client), {"features": features, "label": label.astype(np.int32)}))
    return FederatedData.of(parts)


@dataclass(frozen=True)
class SyntheticClient:
    """One client of the endless synthetic(α, β), made from its key. Equal settings are equal functions."""

    alpha: float
    beta: float
    rows: int
    dimension: int
    classes: int

    def __call__(self, key: Key[Array, ""]) -> dict[str, Array]:
        means, models, middles, noise = jax.random.split(key, 4)
        mean, center = jax.random.normal(means, (2,)) * jnp.array([self.alpha, self.beta])
        model = mean + jax.random.normal(models, (self.dimension + 1, self.classes))
        middle = center + jax.random.normal(middles, (self.dimension,))
        deviation = jnp.arange(1, self.dimension + 1) ** -0.6
        features = middle + deviation * jax.random.normal(noise, (self.rows, self.dimension))
        return {"features": features, "label": jnp.argmax(features @ model[:-1] + model[-1], axis=1)}


@dataclass(frozen=True)
class MeanLoss:
    """The mean over rows of a loss that gives one number per row."""

    loss: Loss

    def __call__(self, params: Any, rows: Any) -> Any:
        return jnp.mean(self.loss(params, rows))


def endless(
    loss: Loss,
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    rows: int = 50,
    dimension: int = 60,
    classes: int = 10,
    seed: int = 0,
) -> Generated:
    """An endless population whose clients follow synthetic(α, β), made on demand, all with the same number of rows.

    Arguments:
        loss: (params, rows) -> one loss per row, such as ``model.loss``.
        alpha, beta, dimension, classes, seed: as in `synthetic`.
        rows: examples per client.

    >>> import jax, jax.numpy as jnp
    >>> from fedspam.problems import SoftmaxLoss
    >>> clients = endless(SoftmaxLoss(0.0))
    >>> round(float(clients.client(jnp.uint32(7))(jnp.zeros((60, 10)))), 4)  # log 10
    2.3026
    """
    _settings(alpha, beta, dimension, classes)
    checks.whole("rows", rows, 1)
    _check_size(1, rows, rows, dimension, classes)
    make = SyntheticClient(float(alpha), float(beta), rows, dimension, classes)
    return Generated(make=make, loss=MeanLoss(loss), seed=seed)


def read_digits() -> dict[str, np.ndarray]:
    """The 1,797 digits that come with scikit-learn: ``features`` (64 numbers from 0 to 1) and ``label``. Split them
    among clients with `iid`, `dirichlet` or `shards`.

    Alpaydin, Kaynak: Optical recognition of handwritten digits, UCI, 1998.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise missing("scikit-learn") from None
    digits: Any = load_digits()
    return {"features": (digits.data / 16).astype(np.float32), "label": digits.target.astype(np.int32)}


def _settings(alpha: float, beta: float, dimension: int, classes: int) -> None:
    checks.between("alpha", alpha, 0, np.inf)
    checks.between("beta", beta, 0, np.inf)
    checks.whole("dimension", dimension, 1)
    checks.whole("classes", classes, 2)


def _check_size(clients: int, rows: int, most: int, dimension: int, classes: int) -> None:
    """Refuse features of all rows, and a model and scores of the client with most rows, that are too large."""
    what = f"clients = {clients}, dimension = {dimension}, classes = {classes} with at least {rows} rows"
    size = 8 * (rows * dimension + classes * (dimension + 1 + most))
    checks.memory(what, size, "give fewer clients, a lower dimension or fewer classes")

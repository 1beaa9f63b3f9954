"""Means and deviations of features that no server may pool, as the minimizer of a loss."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from fedspam._internal import checks
from fedspam.datasets.standardizer import Standardizer


@dataclass(frozen=True)
class Moments:
    r"""A loss whose minimizer is the mean and the deviation of the clients' features, missing values (NaN) left out.

    .. math:: \ell(p, s, v; a) = \tfrac12\|p - m\|^2 + \tfrac12\|s - m a\|^2 + \tfrac12\|v - m (a - s/p)^2\|^2

    Here a is a row, m is 1 where a feature is present and 0 where it is missing, and s/p is held fixed. One gradient
    step of length 1 with all clients sets p and s to their means over all rows, and a second step sets v. So two rounds
    of FedAvg with one local step find what `Standardizer.of` finds on pooled rows: as private as training, in any
    world, at a price that the ledger charges. The mean of an indicator of a category is its frequency.

    Arguments:
        width: the number of features.

    >>> import numpy as np
    >>> from fedspam import fedavg, simulate
    >>> from fedspam.datasets import FederatedData
    >>> data = FederatedData.by({"features": np.array([[1.0], [3.0], [8.0]])}, [0, 0, 1])
    >>> moments = Moments(width=1)
    >>> clients = data.population(moments.loss, weighted=True)
    >>> once = fedavg(cohort_size=2, local_steps=1, local_rate=1.0)
    >>> run = simulate(once, clients, moments.init(), rounds=2, key=0)
    >>> scale = moments.standardizer(run.params)
    >>> scale.mean.round(3).tolist(), scale.deviation.round(3).tolist()
    ([4.0], [2.944])
    """

    width: int

    def __post_init__(self) -> None:
        checks.whole("width", self.width, 1)

    def init(self) -> dict[str, Array]:
        """The parameters before the first round."""
        return {name: jnp.zeros(self.width) for name in ("present", "sum", "square")}

    def loss(self, params: Mapping[str, Array], rows: Mapping[str, Array]) -> Float[Array, " rows"]:
        """One number per row."""
        features = rows["features"]
        present = ~jnp.isnan(features)
        filled = jnp.where(present, features, 0.0)
        fixed = jax.lax.stop_gradient(params)
        mean = fixed["sum"] / jnp.where(fixed["present"] > 0, fixed["present"], 1.0)
        goals = {"present": present, "sum": filled, "square": jnp.where(present, filled - mean, 0.0) ** 2}
        return sum((jnp.sum((params[name] - goal) ** 2, axis=1) for name, goal in goals.items()), jnp.zeros(())) / 2

    def standardizer(self, params: Mapping[str, Array]) -> Standardizer:
        """What scales the features. A feature that never varies is only centered, as in `Standardizer.of`."""
        present, total, square = (np.asarray(params[name], np.float64) for name in ("present", "sum", "square"))
        if not np.all(present > 0):
            raise ValueError(f"feature {int(np.argmin(present))} is missing in every row of every client; leave it out")
        deviation = np.sqrt(square / present)
        return Standardizer(total / present, np.where(deviation > 0, deviation, 1.0))

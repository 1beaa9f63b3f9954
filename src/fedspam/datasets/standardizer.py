"""Features scaled to mean 0 and standard deviation 1."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from fedspam._internal.brief import brief


class Standardizer(NamedTuple):
    """Scales features by the mean and the standard deviation of the training rows. Build it with `Standardizer.of`.

    >>> scale = Standardizer.of([[1.0, 5.0], [3.0, 5.0]])
    >>> scale([[1.0, 5.0], [2.0, 7.0]]).tolist()
    [[-1.0, 0.0], [0.0, 2.0]]
    """

    mean: Float[np.ndarray, "..."]
    deviation: Float[np.ndarray, "..."]

    def __repr__(self) -> str:
        return brief(self)

    @classmethod
    def of(cls, train: ArrayLike) -> "Standardizer":
        """From the training rows, along their first axis. A feature that never varies is only centered."""
        rows = np.asarray(train, np.float64)
        deviation = rows.std(0)
        return cls(rows.mean(0), np.where(deviation > 0, deviation, 1.0))

    def __call__(self, features: ArrayLike, *, intercept: bool = False) -> Float[np.ndarray, "..."]:
        """The scaled features; with `intercept`, and a last column of ones (for features that are one vector per row).

        >>> Standardizer.of([[0.0], [2.0]])([[4.0]], intercept=True).tolist()
        [[3.0, 1.0]]
        """
        scaled = (np.asarray(features, np.float64) - self.mean) / self.deviation
        return np.concatenate([scaled, np.ones((len(scaled), 1))], axis=1) if intercept else scaled

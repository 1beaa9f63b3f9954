r"""A bound on the influence of one client: a mod that clips the replies of the gradient exchanges.

.. math:: \text{clip}(v) = v \cdot \min(1, C/\|v\|)
"""

from dataclasses import dataclass

import numpy as np
from flwr.clientapp.typing import Mod

from ..._internal import checks
from ..wire.node import RefusedError
from .mods import GRADIENTS, Coverage, Values, treated

SUMMED = 2.0**-40  # more than a sum of squares in float64 is off by


@dataclass(frozen=True)
class Clipping:
    """Scales values down to a norm of at most `bound`.

    >>> import numpy as np
    >>> Clipping(1.0)({"reply": np.array([3.0, 4.0])})["reply"].round(6).tolist()
    [0.6, 0.8]
    """

    bound: float

    def __post_init__(self) -> None:
        checks.positive("bound", self.bound)

    def __call__(self, values: Values) -> Values:
        length = np.sqrt(sum(np.sum(np.square(value.astype(np.float64))) for value in values.values()))
        if not np.isfinite(length):
            raise RefusedError("its reply holds NaN or infinity and cannot be clipped")
        if length <= self.bound:
            return values
        factor = self.bound / length * (1 - SUMMED)
        return {name: _towards_zero(factor * value.astype(np.float64), value.dtype) for name, value in values.items()}


def _towards_zero(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Rounded so that no number grows: to the nearest, half of all replies would end above the bound."""
    nearest = exact.astype(dtype)
    return np.where(np.abs(nearest.astype(np.float64)) > np.abs(exact), np.nextafter(nearest, dtype.type(0)), nearest)


def clipping_mod(bound: float, works: tuple[str, ...] = GRADIENTS, *, in_clear: tuple[str, ...] = ()) -> Mod:
    """A mod for `client_app` that clips each covered reply to the norm `bound`.

    Arguments:
        bound: C.
        works: the works whose replies are clipped. Not ``prox``: its reply is a point, not a step.
        in_clear: message types that may pass unprotected; all others are refused.

    >>> mod = clipping_mod(1.0, in_clear=("train.prox",))
    """
    if "prox" in works:
        raise ValueError(
            "works must not hold 'prox': its reply is a point, whose norm does not bound the influence of the client; "
            "clip gradients only"
        )
    return treated(Clipping(bound), Coverage(tuple(works), tuple(in_clear)))

r"""The best constants that the assumptions allow for one round of SPAM, in closed form.

Each has a proof that `fedspam.theory.programs` checks in exact arithmetic:

.. math:: \mathrm{E}V_{k+1} \le V_k - \frac{\gamma}{R}\,\mathrm{E}\|\nabla f(x_{k+1})\|^2 + \text{noise}, \qquad
    R = 4r + \frac1c + \frac{(2c(1 - r + \theta) - 1)^2}{c\,(2c(1 - r) - 1 - 4c^2s^2)}

Here :math:`r = \gamma\delta`; :math:`\theta` is the relative precision of the prox (0 if it is exact); c is the
weight of the estimator's error in V; and :math:`s^2` is the drift of the estimator, :math:`\mathrm{E}\,e_{k+1} \le
(1 - q)e_k + qs^2\|x_{k+1} - x_k\|^2/\gamma^2 + \text{noise}` with :math:`q = 2p - p^2`. The paper has R = 32 for
:math:`r \le 1/4`. The derivation is in docs/tight.md.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np

from fedspam._internal import checks
from fedspam.theory.programs import Exact


def drift(ratio: Any, fresh_weight: Any, cohort: Any = 1.0, split: Any = 2.0) -> Any:
    r""":math:`s^2` of momentum variance reduction, :math:`\frac{u}{u-1}\frac{r^2(1-p)^2}{(2p-p^2)B_\mathrm{eff}}`.

    Arguments:
        split: u > 1, where the noise of a round is :math:`u\alpha p^2\sigma^2/B_\mathrm{eff}`; 2 in the paper.
    """
    kept = (ratio * (1 - fresh_weight)) ** 2
    return split * kept / ((split - 1) * fresh_weight * (2 - fresh_weight) * cohort)


def margin(ratio: Any, drift: Any, weight: Any) -> Any:
    """There is a proof with this weight where this is positive."""
    return 2 * weight * (1 - ratio) - 1 - 4 * weight**2 * drift


def best_weight(ratio: Any, drift: Any, relative: Any = 0.0) -> Any:
    """The weight c with the smallest rate; it exists where 2 s < 1 - r."""
    s = drift**0.5
    return (s + relative) / (2 * s * (1 - ratio - s + relative)) if relative else 1 / (2 * (1 - ratio - s))


def rate(ratio: Any, drift: Any, weight: Any, relative: Any = 0) -> Any:
    """R with these numbers, fractions or arrays; it is a proof where `margin` is positive.

    >>> rate(Fraction(1, 4), 0, Fraction(3, 4))  # without drift; the paper has 32
    Fraction(5, 2)
    """
    slope = 2 * weight * (1 - ratio + relative) - 1
    return 4 * ratio + 1 / weight + slope**2 / (weight * margin(ratio, drift, weight))


def best_rate(ratio: float, drift: float, relative: float = 0.0) -> float:
    r"""The smallest R over all weights: no proof of this form has a smaller one, whatever the number of clients.

    .. math:: R^* = 4r + \frac{2(1 - r - s + \theta)^2}{1 - r - 2s}

    It is infinite where :math:`2s \ge 1 - r`.

    >>> round(best_rate(0.25, drift(0.25, 6 / 7)), 3), best_rate(0.25, 0.2)
    (2.508, inf)
    """
    checks.between("ratio", ratio, 0, 1)
    s = math.sqrt(drift)
    left = 1 - ratio - 2 * s
    return 4 * ratio + 2 * (1 - ratio - s + relative) ** 2 / left if left > 0 else math.inf


def averaged_rate(ratio: Any, drift: Any, weight: Any, weak: Any, relative: float = 0.0) -> Any:
    r"""R of SPAM-PPA, at the clients' own points, where f is :math:`\rho`-weakly convex and `weak` is
    :math:`\gamma\rho`; infinite where there is no proof.

    .. math:: R = \max\Bigl\{R_\text{SPAM},\; 4r + \frac{2(1 - r)^2}{1 - r - \gamma\rho}\Bigr\}

    for an exact prox. With a relative one, a multiplier :math:`\nu > 0` adds :math:`1/\nu` and reduces
    :math:`\gamma\rho` and :math:`c s^2` by its share; the best of some is taken.

    >>> round(float(averaged_rate(0.1, 0.01, 0.6, 0.15)), 3)
    2.56
    """

    def worse(nu: Any) -> Any:
        taken = nu * relative**2
        left = np.asarray(1 - ratio - weak - 2 * taken)
        apart = np.where(left > 0, 4 * ratio + 2 * (1 - ratio) ** 2 / np.where(left > 0, left, 1), np.inf)
        return np.maximum(proved(ratio, drift + taken / weight, weight), apart)

    if not relative:
        return worse(0.0)
    return np.min([worse(nu) + 1 / nu for nu in np.geomspace(0.1, 10, 60)], axis=0)


def proved(ratio: Any, drift: Any, weight: Any, relative: Any = 0.0) -> Any:
    """`rate` where `margin` is positive, and infinity elsewhere."""
    ratio, drift, weight = np.broadcast_arrays(*map(np.float64, (ratio, drift, weight)))
    good = (weight > 0) & (margin(ratio, drift, weight) > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(good, rate(ratio, drift, weight, relative), np.inf)


def least_tight_weight(ratio: Any, cohort: Any = 1.0, limit: float = 32.0) -> Any:
    r"""The least fresh weight for which some proof has a rate of at most `limit`; 1 where none has.

    >>> round(float(least_tight_weight(0.25)), 3)  # the paper has 6/7 = 0.857 for the same rate 32
    0.277
    """
    ratio = np.float64(ratio)
    room, left = limit - 4 * ratio, 1 - ratio
    s = left - room / 2 + np.sqrt(np.maximum(room * (room - 2 * left), 0)) / 2
    odds = np.maximum(s, 0) ** 2 * cohort / (2 * ratio**2)  # (1 - p)^2 / (2p - p^2)
    return 1 - np.sqrt(odds / (1 + odds))


def multipliers(ratio: Exact, drift: Exact, weight: Exact, relative: Exact = 0) -> dict[str, Fraction]:
    """The proof of `rate` for the program `prox_round`."""
    found = {"gain": 1 / Fraction(rate(ratio, drift, weight, relative)), "weight": Fraction(weight)}
    if relative:
        slope = 2 * weight * (1 - ratio + relative) - 1
        found["relative"] = Fraction(margin(ratio, drift, weight), 1) / (2 * relative * slope)
    return found

r"""Client-level differential privacy of the gradient exchange: clipped replies, Gaussian noise, an accountant.

.. math:: \tilde v_i = \text{clip}_C(v_i) + \mathcal N\bigl(0, z^2C^2/m \cdot I\bigr)

Each client adds its part of the noise, so that a sum over at least m clients has noise of standard deviation
:math:`zC` or more. With a `SecureSum` nobody sees a value with less noise than that. The noise comes from a
cryptographic generator with a seed of the operating system, because the server knows every random key of the run.

The guarantee: two federations that differ in one client, whose replies to the covered exchanges are all replaced by
zeros, lead to sums that cannot be distinguished better than :math:`(\varepsilon, \delta)` allows. Messages that pass in
clear are not part of it. The reply of a prox client is made from its data and becomes the next iterate: with a prox
client the trained parameters are not private, whatever :math:`\varepsilon` is. See docs/deploy.md for what remains.

Needs ``pip install dp-accounting``.
"""

import math
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.clientapp.typing import Mod
from scipy.special import ndtri

from fedspam._internal import checks
from fedspam.flower.privacy import masks
from fedspam.flower.privacy.clipping import Clipping
from fedspam.flower.privacy.mods import GRADIENTS, Coverage, Values, treated


@dataclass(frozen=True)
class Privacy:
    r"""The Gaussian mechanism on the sum of a cohort's replies.

    Arguments:
        bound: C, the norm that replies are clipped to.
        noise_multiplier: z, the standard deviation of the noise in the sum, divided by the bound.
        least: m, the smallest number of replies in a sum: the cohort size times the server's ``quorum``, rounded up.
        works: the client works that are covered.
        in_clear: message types that pass unprotected; all others are refused.

    >>> privacy = Privacy(bound=1.0, noise_multiplier=2.0, least=8)
    >>> round(privacy.deviation, 3)          # each client's part
    0.707
    >>> round(privacy.epsilon(1e-5, participations=4), 2)
    4.38
    """

    bound: float
    noise_multiplier: float
    least: int
    works: tuple[str, ...] = GRADIENTS
    in_clear: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks.positive("bound", self.bound)
        checks.positive("noise_multiplier", self.noise_multiplier)
        checks.whole("least", self.least, 1)
        if "prox" in self.works:
            raise ValueError(
                "works must not hold 'prox': its reply is a point, not a bounded step; cover gradients only"
            )
        _ = self._coverage

    @property
    def _coverage(self) -> Coverage:
        return Coverage(tuple(self.works), tuple(self.in_clear))

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise that one client adds to each entry."""
        return self.noise_multiplier * self.bound / math.sqrt(self.least)

    def mod(self) -> Mod:
        """The mod for ``client_app(..., mods=[privacy.mod()])``: clips, then adds this client's part of the noise."""
        return treated(self.protect, self._coverage)

    def protect(self, values: Values) -> Values:
        """The values that a client sends instead of its own."""
        clipped = Clipping(self.bound)(values)
        noisy = lambda value: value.astype(np.float64) + self.deviation * gaussian(value.size).reshape(value.shape)
        return {name: noisy(value).astype(value.dtype) for name, value in clipped.items()}

    def epsilon(self, delta: float, participations: int) -> float:
        r"""The privacy loss of a client that took part in this many covered exchanges, at this :math:`\delta`.

        It does not assume that cohorts are secret: it holds against a server that knows who took part. Cohorts do not
        depend on data, so the client's own number of participations counts. The number of all exchanges, including
        the start, is an upper bound of it.
        """
        accounting = _accounting()
        checks.whole("participations", participations, 1)
        event = accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(self.noise_multiplier), participations)
        return float(accounting.pld.PLDAccountant().compose(event).get_epsilon(_share(delta)))

    def epsilon_amplified(self, delta: float, exchanges: int, clients: int, cohort_size: int) -> float:
        r"""The privacy loss of a client towards observers that do not know the cohorts: amplification by sampling.

        It assumes cohorts drawn uniformly with a secret seed, no retries with other clients, and an observer that sees
        only the parameters. The server is no such observer, and neither is anyone who knows ``seed``, which the run
        folder holds. Here neighboring federations differ in one client that is replaced by another, which moves a sum
        by up to 2C; the accountant therefore uses z/2.
        """
        accounting = _accounting()
        checks.whole("exchanges", exchanges, 1)
        checks.whole("cohort_size", cohort_size, 1)
        checks.whole("clients", clients, cohort_size, remedy="a cohort is part of the clients")
        inner = accounting.GaussianDpEvent(self.noise_multiplier / 2)
        sampled = accounting.SampledWithoutReplacementDpEvent(clients, cohort_size, inner)
        relation = accounting.NeighboringRelation.REPLACE_ONE
        accountant = accounting.rdp.RdpAccountant(neighboring_relation=relation)
        event = accounting.SelfComposedDpEvent(sampled, exchanges)
        return float(accountant.compose(event).get_epsilon(_share(delta)))

    def report(self, delta: float, participations: int) -> dict[str, Any]:
        """The facts to publish with a model, including the message types that are not covered."""
        return {
            "epsilon": self.epsilon(delta, participations),
            "delta": delta,
            "neighbors": "one client's covered replies replaced by zeros",
            "participations": participations,
            "bound": self.bound,
            "noise_multiplier": self.noise_multiplier,
            "covered": list(self.works),
            "not covered": list(self.in_clear),
            "private parameters": not any(kind.startswith("train") for kind in self.in_clear),
            "amplification by sampling": "not counted",
        }


def gaussian(count: int) -> np.ndarray:
    """Standard normal numbers from the ChaCha20 stream of a fresh seed of the operating system.

    Numbers of 53 bits become quantiles, so that none is larger than 8.3.
    """
    words = masks.stream(secrets.token_bytes(masks.SEED), count)
    return ndtri(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)


def noise_for(epsilon: float, delta: float, participations: int) -> float:
    r"""The smallest noise multiplier with which this many participations cost at most :math:`\varepsilon`.

    >>> round(noise_for(1.0, 1e-5, participations=1), 2)
    3.73
    """
    accounting = _accounting()
    checks.positive("epsilon", epsilon)
    checks.whole("participations", participations, 1)
    made = lambda z: accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(z), participations)
    found = accounting.calibrate_dp_mechanism(accounting.pld.PLDAccountant, made, epsilon, _share(delta), tol=1e-4)
    return float(found)


def _share(delta: float) -> float:
    checks.between("delta", delta, 0, 0.1, open_low=True, remedy="well below one over the number of clients is usual")
    return delta


def _accounting() -> Any:
    try:
        import dp_accounting
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "dp_accounting":
            raise
        raise ModuleNotFoundError(
            "epsilon needs dp-accounting, which is not installed: pip install dp-accounting", name="dp_accounting"
        ) from error
    return dp_accounting

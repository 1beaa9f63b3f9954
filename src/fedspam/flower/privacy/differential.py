r"""Client-level differential privacy of the gradient exchange: clipped replies, discrete noise, an accountant.

.. math:: \tilde v_i = h \bigl(\lfloor \text{clip}_C(v_i) / h \rfloor_0 + \mathcal N_{\mathbb Z}(0, z^2C^2/mh^2)\bigr)

Each client adds its part of the noise, so that a sum over at least m clients has noise of standard deviation
:math:`zC` or more. Only a `SecureSum` hides single replies, and its clients unmask no sum over fewer than m: with
``secure=`` the multiplier towards the server is z. Without it a client cannot know what the server adds up, so
:math:`\varepsilon` is that of a single reply, whose multiplier is :math:`z/\sqrt m`.

Value and noise are whole multiples of a grid h, which is that of the secure sum if there is one: noise in floating
point would leak in its last bits, or round away. Rounding towards zero (:math:`\lfloor\cdot\rfloor_0`) lifts no reply
above the bound. A sum of discrete Gaussians is not exactly one, but with at least 16 grid steps of noise per client
the difference is below :math:`10^{-1000}` (Kairouz, Liu, Steinke 2021, Theorem 1). The noise comes from a cryptographic
generator with a seed of the operating system, because the server knows every random key of the run.

The guarantee: two federations that differ in one client, whose replies to the covered exchanges are all replaced by
zeros, lead to sums that cannot be distinguished better than :math:`(\varepsilon, \delta)` allows. Messages that pass in
clear are not part of it. The accountant composes Renyi divergences, which for discrete Gaussian noise are at most those
of continuous noise, in every dimension (Canonne, Kamath, Steinke 2020). The reply of a prox client is made from its
data and becomes the next iterate: with a prox client the trained parameters are not private, whatever
:math:`\varepsilon` is. See docs/adversaries.md for what remains.

Needs ``pip install dp-accounting``.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Context
from flwr.clientapp.typing import Mod

from ..._internal import checks
from ..wire.node import RefusedError, partition_of
from .mods import GRADIENTS, SUMMED, Clipping, Coverage, Values, treated
from .noise import discrete_gaussian
from .secure_client import FOLDER, SecureSum

STATE = "fedspam.privacy"  # the name of the client's record of its participations
FINEST = 16  # steps of the grid that the noise of one client must span
STEPS = 2.0**20  # of the grid in the noise of one client, where no secure sum has a grid
LARGEST = 2.0**53  # steps that float64 counts exactly
FAR = 40  # standard deviations that no draw exceeds: e^-800


def _noted(note: bytes) -> float:
    """The cost in a note; all of the budget where a note was cut off or changed."""
    try:
        cost = float(note)
    except ValueError:
        return math.inf
    return cost if cost >= 0 else math.inf


@dataclass(frozen=True)
class Privacy:
    r"""The discrete Gaussian mechanism on the sum of replies. ``client_app(..., privacy=privacy)`` applies it.

    Arguments:
        bound: C, the norm that replies are clipped to.
        noise_multiplier: z, the standard deviation of the noise in the sum, divided by the bound.
        least: m, the smallest number of replies in a sum: the cohort size less the clients that may be lost.
        works: the client works that are covered.
        in_clear: message types that pass unprotected; all others are refused.
        secure: the secure sum of the covered works, the same as on the server. Its own `least` must be m or more, so
            that clients unmask no sum with less noise. None if the server sees single replies.
        participations: the most covered replies that a client sends in one run; it refuses more. None for no limit.
        lifetime: rho, the zero-concentrated privacy that a client spends at most in all runs, whatever their settings,
            as `rho_for` finds it; each covered reply costs :math:`1/2z^2`. The client keeps what it spent in its
            ``memory-folder``, and refuses without one. None for no limit.

    >>> privacy = Privacy(bound=1.0, noise_multiplier=2.0, least=8, secure=SecureSum(least=8))
    >>> round(privacy.deviation, 3)          # each client's part
    0.707
    >>> round(privacy.epsilon(1e-5, participations=4), 2)
    4.73
    >>> round(Privacy(bound=1.0, noise_multiplier=2.0, least=8).epsilon(1e-5, participations=4), 2)  # single replies
    16.51
    """

    bound: float
    noise_multiplier: float
    least: int
    works: tuple[str, ...] = GRADIENTS
    in_clear: tuple[str, ...] = ()
    secure: SecureSum | None = None
    participations: int | None = None
    lifetime: float | None = None

    def __post_init__(self) -> None:
        checks.positive("bound", self.bound)
        checks.positive("noise_multiplier", self.noise_multiplier)
        checks.whole("least", self.least, 1)
        if "prox" in self.works:
            raise ValueError(
                "works must not hold 'prox': its reply is a point, not a bounded step; cover gradients only"
            )
        _ = self._coverage
        if self.participations is not None:
            checks.whole("participations", self.participations, 1)
        if self.lifetime is not None:
            checks.positive("lifetime", self.lifetime)
        if self.secure is not None:
            self._check_sum(self.secure)
        if self.bound + FAR * self.deviation > LARGEST * self.grid:
            remedy = "add more noise" if self.secure is None else "use fewer fraction_bits, or scale the replies down"
            raise ValueError(
                f"a reply of norm {self.bound:g} with noise of {self.deviation:.3g} does not fit into 2^53 steps of "
                f"the grid, {self.grid:.3g}; {remedy}"
            )

    def _check_sum(self, secure: SecureSum) -> None:
        """Refuse a secure sum under which less noise than promised would be seen."""
        if secure.least < self.least:
            raise ValueError(
                f"secure.least = {secure.least} must be at least least = {self.least}, because a sum over fewer "
                f"replies has less noise; give SecureSum(least={self.least})"
            )
        seen = sorted(set(self.works) - set(secure.works))
        if seen:
            raise ValueError(
                f"the replies of {seen} are noised but not summed securely, so that the server sees single ones; add "
                "them to the works of SecureSum"
            )
        if self.deviation < FINEST * self.grid:
            raise ValueError(
                f"the noise of one client, {self.deviation:.3g}, must be at least {FINEST} times the grid of the "
                f"secure sum, {self.grid:.3g}, or the grid is too coarse for it; raise fraction_bits, or scale the "
                "replies up"
            )

    @property
    def _coverage(self) -> Coverage:
        return Coverage(tuple(self.works), tuple(self.in_clear))

    @property
    def enforced_multiplier(self) -> float:
        """The noise multiplier of what the server sees: sums if they are secure, single replies otherwise."""
        return self.noise_multiplier if self.secure is not None else self.single_multiplier

    @property
    def single_multiplier(self) -> float:
        """The noise multiplier of one client's reply."""
        return self.noise_multiplier / math.sqrt(self.least)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise that one client adds to each entry."""
        return self.noise_multiplier * self.bound / math.sqrt(self.least)

    @property
    def grid(self) -> float:
        """The step of values and noise: that of the secure sum, or a power of two far below the noise."""
        if self.secure is not None:
            return 2.0**-self.secure.fraction_bits
        return 2.0 ** math.floor(math.log2(self.deviation / STEPS))

    def applied(self, secure: SecureSum | None, mods: list[Mod] | None) -> tuple[SecureSum | None, list[Mod]]:
        """The secure sum and the mods of an app with this mechanism, which is the innermost mod."""
        if secure not in (None, self.secure):
            raise ValueError(
                f"secure = {secure} is not that of privacy, {self.secure}; give it to Privacy(secure=) alone"
            )
        return self.secure, [*(mods or []), treated(self.protect, self._coverage, before=self._spend)]

    def _spend(self, context: Context) -> None:
        """Count a participation of this client in this run, before anything of it can leave."""
        before = cast(int, context.state.config_records.get(STATE, {}).get("participations", 0))
        if self.participations is not None and before >= self.participations:
            raise RefusedError(f"it took part {before} times in this run, which is all that its privacy allows")
        if self.lifetime is not None:
            self._spend_for_life(context, self.lifetime)
        context.state[STATE] = ConfigRecord({"participations": before + 1})

    def _spend_for_life(self, context: Context, lifetime: float) -> None:
        """Note the cost of a reply in a file of its own, which one process alone can create."""
        found, cost = context.node_config.get(FOLDER), 0.5 / self.enforced_multiplier**2
        if found is None:
            raise RefusedError(f"lifetime = {lifetime:g} needs a folder; start the SuperNode with a {FOLDER}")
        folder = Path(str(found)) / "spent" / f"client-{partition_of(context)}"
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            notes = [path.read_bytes() for path in folder.iterdir()]
            spent = math.fsum(map(_noted, notes))
            if spent + cost > lifetime * (1 + SUMMED):
                raise RefusedError(
                    f"it has spent rho = {spent:.6g} in all runs, and {cost:.6g} more is above its lifetime = "
                    f"{lifetime:g}"
                )
            try:
                with (folder / str(len(notes))).open("x") as note:
                    note.write(repr(cost))
                    note.flush()
                    os.fsync(note.fileno())
                return
            except FileExistsError:  # another process was faster: what is left is less now
                continue

    def protect(self, values: Values) -> Values:
        """The values that a client sends instead of its own."""
        deviation = self.deviation / self.grid * (1 + SUMMED)  # clipping may leave that much above the bound

        def noisy(value: np.ndarray) -> np.ndarray:
            steps = np.trunc(value.astype(np.float64) / self.grid)
            noised = self.grid * (steps + discrete_gaussian(deviation, value.size).reshape(value.shape))
            # a secure sum adds them exactly; where replies are seen one by one, rounding comes after the protection
            return noised if self.secure is not None else noised.astype(value.dtype)

        return {name: noisy(value) for name, value in Clipping(self.bound)(values).items()}

    def epsilon(self, delta: float, participations: int | None = None) -> float:
        r"""The privacy loss of a client towards the server, at this :math:`\delta`.

        It does not assume that cohorts are secret: it holds against a server that knows who took part. Cohorts do not
        depend on data, so the client's own number of participations counts. The number of all exchanges, including
        the start, is an upper bound of it.

        Arguments:
            participations: covered replies that the client sent; its limit if there is one.
        """
        return self._epsilon(self.enforced_multiplier, delta, participations)

    def _epsilon(self, multiplier: float, delta: float, participations: int | None) -> float:
        accounting, times = _accounting(), self._times(participations)
        # discrete noise has the Renyi divergences of Gaussian noise as bounds, whatever the dimension
        event = accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(multiplier), times)
        return float(accounting.rdp.RdpAccountant().compose(event).get_epsilon(_share(delta)))

    def _times(self, participations: int | None) -> int:
        """How often a client took part: what is given, or the limit that it enforces."""
        times = self.participations if participations is None else participations
        if times is None:
            raise ValueError("participations = None needs a limit, Privacy(participations=); or give their number")
        checks.whole("participations", times, 1)
        if self.participations is not None and times > self.participations:
            raise ValueError(
                f"participations = {times} must be at most {self.participations}, the limit that clients enforce"
            )
        return times

    def epsilon_amplified(self, delta: float, exchanges: int, clients: int, cohort_size: int) -> float:
        r"""The privacy loss of a client towards observers that do not know the cohorts: amplification by sampling.

        It assumes cohorts drawn uniformly with a secret seed, no retries with other clients, and an observer that sees
        only the parameters. The server is not such an observer, and neither is anyone who knows ``seed``, which the run
        folder holds. Here neighboring federations differ in one client that is replaced by another, which moves a sum
        by up to 2C; the accountant therefore uses half of the multiplier, and takes the noise for continuous.
        """
        accounting = _accounting()
        checks.whole("exchanges", exchanges, 1)
        checks.whole("cohort_size", cohort_size, 1)
        checks.whole("clients", clients, cohort_size, remedy="a cohort is part of the clients")
        inner = accounting.GaussianDpEvent(self.enforced_multiplier / 2)
        sampled = accounting.SampledWithoutReplacementDpEvent(clients, cohort_size, inner)
        relation = accounting.NeighboringRelation.REPLACE_ONE
        accountant = accounting.rdp.RdpAccountant(neighboring_relation=relation)
        event = accounting.SelfComposedDpEvent(sampled, exchanges)
        return float(accountant.compose(event).get_epsilon(_share(delta)))

    def report(self, delta: float, participations: int | None = None) -> dict[str, Any]:
        """The facts to publish with a model, including the message types that are not covered."""
        times = self._times(participations)
        single = self._epsilon(self.single_multiplier, delta, times)
        sums = self._epsilon(self.noise_multiplier, delta, times) if self.secure is not None else None
        return {
            "epsilon": single if sums is None else sums,
            "epsilon if the server sees single replies": single,
            "epsilon if the server sees sums only": "not enforced: there is no secure sum" if sums is None else sums,
            "delta": delta,
            "neighbors": "one client's covered replies replaced by zeros",
            "participations": times,
            "participations enforced": self.participations is not None,
            "rho of all runs": "not limited" if self.lifetime is None else self.lifetime,
            "bound": self.bound,
            "noise_multiplier": self.noise_multiplier,
            "least": self.least,
            "covered": list(self.works),
            "not covered": list(self.in_clear),
            "private parameters": not any(kind.startswith("train") for kind in self.in_clear),
            "amplification by sampling": "not counted",
        }


def noise_for(epsilon: float, delta: float, participations: int) -> float:
    r"""The smallest noise multiplier with which this many participations cost at most :math:`\varepsilon`.

    >>> round(noise_for(1.0, 1e-5, participations=1), 2)
    4.05
    """
    accounting = _accounting()
    checks.positive("epsilon", epsilon)
    checks.whole("participations", participations, 1)
    made = lambda z: accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(z), participations)
    found = accounting.calibrate_dp_mechanism(accounting.rdp.RdpAccountant, made, epsilon, _share(delta), tol=1e-4)
    return float(found)


def rho_for(epsilon: float, delta: float) -> float:
    r"""The largest rho whose zero-concentrated privacy is :math:`(\varepsilon, \delta)`: the `lifetime` of `Privacy`.

    Canonne, Kamath, Steinke 2020, Proposition 12, without a library.

    >>> round(rho_for(4.0, 1e-5), 3), round(rho_for(1.0, 1e-5), 4)
    (0.373, 0.0306)
    """
    checks.positive("epsilon", epsilon)
    orders = 1 + np.exp(np.linspace(-7, 14, 20_000))
    # the epsilon of rho at order a is a rho + log(1 - 1/a) - log(a delta) / (a - 1); solved for rho
    return float(np.max((epsilon - np.log1p(-1 / orders) + np.log(_share(delta) * orders) / (orders - 1)) / orders))


def _share(delta: float) -> float:
    checks.between("delta", delta, 0, 0.1, open_low=True, remedy="well below one over the number of clients is usual")
    return delta


def _accounting() -> Any:
    try:
        import dp_accounting
    except ModuleNotFoundError as error:
        text = "epsilon needs dp-accounting, which is not installed: pip install dp-accounting"
        raise ModuleNotFoundError(text, name=error.name) from error
    return dp_accounting

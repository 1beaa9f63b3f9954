"""A summary of a run's certificates: how many a-prox answers pass which test, and the floor that they imply."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fedspam.solvers._certificate import RELATIVE


class Certificates(NamedTuple):
    r"""The a-prox answers of a run (Definition 4.1).

    The floors are what `inexact_bound` adds for inexact answers, :math:`\frac{c}{\Gamma_K}\sum\gamma_k\epsilon_k^2`;
    answers that pass the relative test count as exact.
    """

    answers: int  # rounds in which a client moved
    decreased: float  # the share with phi(y) <= phi(x)
    relative: float  # the share with |grad phi(y)| <= sqrt(3)/4 |y - x| / gamma: they imply no floor
    absolute: float | None  # the share with |grad phi(y)| <= epsilon; None without an epsilon
    shrunk: float  # the share whose client had to use a smaller gamma
    certified: float  # the share that passed the solver's own test
    stationarity: Float[np.ndarray, " answers"]  # |grad phi(y)|
    epsilons: Float[np.ndarray, " answers"]  # the same, 0 where the relative test holds
    floor: float  # 5 eps^2, which is proved
    printed_floor: float  # eps^2/8 over all answers, as Theorem 4.1 prints it
    printed_partial_floor: float  # 7.5 eps^2 over all answers, as Theorem 5.1 prints it


def certificates(rows: Mapping[str, np.ndarray], *, epsilon: float | None = None) -> Certificates:
    """Summarize the certificates in the rows of a run (`Run.rows`).

    Where several clients move per round (SPAM-PPA), a round's certificate is their mean, and the shares are of rounds.

    >>> import jax.numpy as jnp
    >>> from fedspam import simulate, spam
    >>> from fedspam.problems import quadratics
    >>> clients = quadratics(0, clients=10, dimension=5)
    >>> run = simulate(spam(step_size=1.0, fresh_weight=0.5), clients, jnp.ones(5), rounds=20, key=0)
    >>> found = certificates(run.rows)
    >>> found.decreased, found.relative, found.floor
    (1.0, 1.0, 0.0)

    Arguments:
        epsilon: the required precision, if any.
    """
    names = ("decrease", "stationarity", "distance", "step_size", "certified")
    missing = [name for name in names if f"certificate.{name}" not in rows]
    if missing:
        raise ValueError(
            f"the rows hold no certificate.{missing[0]}; run a method whose clients solve a prox, "
            "and record its certificates (record=None keeps all)"
        )
    counted = ~np.asarray(rows["void"], bool) if "void" in rows else np.ones(rows["certificate.decrease"].shape, bool)
    if not counted.any():
        raise ValueError("every round of this run is void; there are no answers")
    decrease, stationarity, distance, used, certified = (
        np.asarray(rows[f"certificate.{name}"], np.float64)[counted] for name in names
    )
    given = np.asarray(rows["step_size"], np.float64)[counted] if "step_size" in rows else used
    # both sides have rounding errors of the run's precision
    rounding = 1 + 8 * np.finfo(rows["certificate.stationarity"].dtype).eps
    relative = stationarity <= RELATIVE * distance / used * rounding
    epsilons = np.where(relative, 0.0, stationarity)
    share = lambda flags: float(np.mean(flags))
    floor = lambda values: float(np.sum(used * values**2) / np.sum(used))
    return Certificates(
        answers=int(counted.sum()),
        decreased=share(decrease <= 0),
        relative=share(relative),
        absolute=None if epsilon is None else share(stationarity <= epsilon * rounding),
        shrunk=share(used < given * (1 - 1e-6)),
        certified=float(np.mean(certified)),
        stationarity=stationarity,
        epsilons=epsilons,
        floor=5 * floor(epsilons),
        printed_floor=floor(stationarity) / 8,
        printed_partial_floor=7.5 * floor(stationarity),
    )


def table(found: Certificates) -> list[tuple[str, str]]:
    """The summary as pairs of a label and a text."""
    percent = lambda share: f"{100 * share:.1f} %"
    lines: list[tuple[str, Any]] = [
        ("a-prox answers", str(found.answers)),
        ("did not increase phi", percent(found.decreased)),
        ("pass the relative test", percent(found.relative)),
        ("used a smaller step size", percent(found.shrunk)),
        ("largest |grad phi|", f"{found.stationarity.max():.3g}"),
        ("floor implied, 5 eps²", f"{found.floor:.3g}"),
        ("floor as printed, eps²/8", f"{found.printed_floor:.3g}"),
    ]
    if found.absolute is not None:
        lines.insert(3, ("reach the given epsilon", percent(found.absolute)))
    return lines

r"""What the theorems bound, laid over what a run did.

A theorem bounds :math:`\frac1{\Gamma_K}\sum_{k<K}\gamma_k\mathrm{E}\|\nabla f(x_{k+1})\|^2`, so the run's curve
beside it is the root of the same mean of its own squared gradient norms.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedspam._internal import checks
from fedspam.app.report.series import Curve, Series, Source
from fedspam.app.report.sources import RENAMED
from fedspam.theory import Constants, inexact_bound
from fedspam.theory.constants import Version

ROOT = ", root mean square"  # ends the name of a metric that the bound is drawn over


@dataclass(frozen=True)
class BoundOverlay:
    """The constants from which a bound is computed."""

    constants: Constants  # of the problem, known or measured (`fedspam measure`)
    metric: str = "gradient"  # the name of the probe that is the norm of the gradient of f
    unit: float = 1.0  # the number by which the probe was divided, such as the norm at the start
    cohort: float | None = None  # the effective cohort; None for the method's cohort size
    version: Version = "corrected"  # of the constants

    @classmethod
    def of(cls, text: str) -> "BoundOverlay":
        """From text such as ``delta=0.5,gap=3``.

        >>> BoundOverlay.of("delta=0.5,sigma=0.1,gap=3").constants.delta
        0.5
        """
        given: dict[str, Any] = {}
        for word in filter(None, map(str.strip, text.split(","))):
            name, sign, value = (part.strip() for part in word.partition("="))
            known = ("delta", "sigma", "gap", "error", "unit", "cohort", "metric", "version")
            if name not in known or not sign:
                raise ValueError(f"{word!r} must be one of {', '.join(known)} with its value, such as delta=0.5")
            try:
                given[name] = value if name in ("metric", "version") else float(value)
            except ValueError:
                raise ValueError(f"{name} = {value!r} must be a number") from None
        if "delta" not in given or "gap" not in given:
            raise ValueError("a bound needs at least delta, the similarity, and gap, f(x_0) - inf f: delta=0.5,gap=3")
        checks.one_of("version", given.get("version", "corrected"), ("corrected", "tight", "paper"))
        own = {name: given.pop(name) for name in ("unit", "cohort", "metric", "version") if name in given}
        return cls(Constants(**given), **own)


def with_bounds(source: Source, overlay: BoundOverlay) -> Source:
    """The folder with bounds on its series, where their step sizes and fresh weights are known."""
    return replace(source, series=[_with_bound(series, source.configuration, overlay) for series in source.series])


def _with_bound(series: Series, configuration: Mapping[str, Any], overlay: BoundOverlay) -> Series:
    metric = overlay.metric if overlay.metric in series.metrics else RENAMED.get(overlay.metric, overlay.metric)
    curve, gamma = series.metrics.get(metric), series.details.get("step_size")
    number = functools.partial(_number, configuration.get("method"))
    fresh_weight = number("estimator", "fresh_weight", "value") or number("fresh_weight", "value")
    if "fresh_weight" in series.details:
        fresh_weight = series.details["fresh_weight"].value
    if curve is None or gamma is None or fresh_weight is None or not np.isfinite(gamma.value).all():
        return series
    rounds = len(gamma.at)
    cohort = overlay.cohort or number("cohort_size") or 1.0
    epsilons = (series.certificates or {}).get("epsilons")
    epsilon = epsilons if epsilons is not None and len(epsilons) == rounds else 0.0
    options: dict[str, Any] = {"epsilon": epsilon, "cohort": cohort, "version": overlay.version}
    total = inexact_bound(overlay.constants, gamma.value, fresh_weight, **options).total
    if not np.isfinite(total).all():  # no proof with these parameters
        return series
    # the mean is over the points after each round, as far as they were probed
    later = curve.at >= 1
    at, weights = curve.at[later], gamma.value[curve.at[later].astype(int) - 1]
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.sqrt(np.cumsum(weights * curve.value[later] ** 2) / np.cumsum(weights))
    name = f"{metric}{ROOT}"
    bound = Curve(gamma.at, np.sqrt(total) / overlay.unit)
    return replace(series, metrics={**series.metrics, name: Curve(at, mean)}, bounds={**series.bounds, name: bound})


def _number(configuration: Any, *path: str) -> float | None:
    for name in path:
        configuration = configuration.get(name) if isinstance(configuration, Mapping) else None
    return float(configuration) if isinstance(configuration, int | float) else None

"""When a run ends before its last round: it diverges, has reached its target, or has not improved for a while."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params
from fedspam.simulation.engine import Bounds
from fedspam.simulation.status import Status

Probes = Sequence[Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Watch:
    """When a diverging run is stopped.

    Arguments:
        patience: void rounds in a row after which no more are tried; rounds that `Faults` alone made void do not count.
        growth: how many times its first value the probe may reach; without a probe, how many times max(1, ‖x_0‖) the
            norm of the parameters may. None for no bound.
        probe: the name of that probe; it should fall when all is well, as a loss does.
    """

    patience: int = 20
    growth: float | None = None
    probe: str | None = None

    def __post_init__(self) -> None:
        checks.whole("patience", self.patience, 1)
        if self.growth is not None and not self.growth > 1:
            raise ValueError(f"growth = {self.growth!r} must be greater than 1; 1e3, say, allows for noise")
        if self.probe is not None and self.growth is None:
            raise ValueError(f"probe = {self.probe!r} is watched for its growth; say how much is too much: growth=1e3")


@dataclass(frozen=True)
class Target:
    """The value of a probe at which a run ends.

    Arguments:
        probe: its name, such as 'accuracy'.
        at_least: reached once the probe is not below this; for an accuracy.
        at_most: reached once it is not above this; for a loss. One of the two.
        evaluations: how many in a row must reach it, so that one lucky value does not.

    >>> Target("accuracy", at_least=0.75)
    Target(probe='accuracy', at_least=0.75, at_most=None, evaluations=1)
    """

    probe: str
    at_least: float | None = None
    at_most: float | None = None
    evaluations: int = 1

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(
                f"the target for {self.probe!r} has at_least = {self.at_least} and at_most = {self.at_most}; give one "
                "of them: at_least for an accuracy, at_most for a loss"
            )
        if np.isnan(self.value):
            raise ValueError(f"the target for {self.probe!r} is NaN, which no value reaches; give a number")
        checks.whole("evaluations", self.evaluations, 1)

    @property
    def value(self) -> float:
        return float(self.at_most if self.at_least is None else self.at_least)  # type: ignore[arg-type]

    def reached(self, probes: Probes) -> Status | None:
        """The status of the run if the last values of the probe have reached the target."""
        if self.streak(probes) < self.evaluations:
            return None
        last = float(np.concatenate([part[self.probe] for part in probes])[-1])
        return Status("reached", f"{self.probe} = {last:.6g} is {self.words}")

    def streak(self, probes: Probes) -> int:
        """How many of the last values in a row have reached the target.

        >>> Target("loss", at_most=0.1, evaluations=2).streak([{"loss": np.array([0.1, 0.2, 0.1, 0.05])}])
        2
        """
        last_first = (value for part in reversed(probes) for value in part[self.probe][::-1])
        met = (value >= self.value if self.at_least is not None else value <= self.value for value in last_first)
        return sum(1 for _ in itertools.takewhile(bool, met))

    @property
    def words(self) -> str:
        """The condition: 'at least 0.75'."""
        return f"{'at least' if self.at_least is not None else 'at most'} {self.value:g}"


@dataclass(frozen=True)
class Patience:
    """A run ends once a probe has not improved for a while.

    Arguments:
        probe: its name, such as 'accuracy'.
        evaluations: without improvement, after which the run ends.
        largest: whether the largest value is the best, instead of the smallest.
        least: the least improvement that counts.

    >>> values = np.array([0.5, 0.6, 0.6, 0.59])
    >>> print(Patience("accuracy", 2, largest=True).reached([{"accuracy": values}]))
    reached: accuracy has not improved on 0.6 for 2 evaluations
    """

    probe: str
    evaluations: int
    largest: bool = False
    least: float = 0.0

    def __post_init__(self) -> None:
        checks.whole("evaluations", self.evaluations, 1)
        checks.between("least", self.least, 0, float("inf"))

    def reached(self, probes: Probes) -> Status | None:
        """The status of the run if the probe has not improved for as many evaluations."""
        values = np.concatenate([part[self.probe] for part in probes]).astype(np.float64)
        best, since = values[0], 0
        for value in values[1:]:
            gain = value - best if self.largest else best - value
            best, since = (value, 0) if gain > self.least else (best, since + 1)
        if since < self.evaluations:
            return None
        return Status("reached", f"{self.probe} has not improved on {best:.6g} for {since} evaluations")


def check_probes(watch: Watch | None, until: Target | Patience | None, known: Iterable[str]) -> None:
    """Refuse names that no probe of the run has."""
    for name, owner in ((watch and watch.probe, "watch.probe"), (until and until.probe, "until.probe")):
        if name is not None and name not in known:
            raise ValueError(f"{owner} = {name!r} is not a probe of this run; it has {sorted(known)}")


def bounds(watch: Watch | None, until: Target | Patience | None, params: Params, first: float = 1.0) -> Bounds:
    """The bounds that the compiled rounds check; `first` is the first value of the watched probe."""
    found: dict[str, Any] = {}
    if isinstance(until, Target):
        found |= {"goal": until.value, "goal_name": until.probe, "rising": until.at_least is not None}
        found |= {"evaluations": jnp.int32(until.evaluations)}
    if watch is not None:
        found |= {"void_streak": jnp.int32(watch.patience)}
        if watch.growth is not None and watch.probe is None:
            found |= {"norm": watch.growth * max(1.0, float(trees.norm(params)))}
        elif watch.growth is not None and watch.probe is not None:
            found |= {"probe": watch.growth * first, "name": watch.probe}
    return Bounds(**found)

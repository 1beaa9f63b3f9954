"""One row per method: its facts, a small example, and the settings to tune.

The table of methods, the documentation and every contract test are made from these rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fedspam.methods._method import Method

Answer = Literal["yes", "no", "partly"]


class Cost(NamedTuple):
    """Model-sized vectors that travel in a round: per client of the cohort, and for a client that moves alone.

    `extra` counts the floats in small arrays that each client of the cohort also sends.
    """

    cohort: int
    alone: int = 0
    extra: int = 0

    def __str__(self) -> str:
        many = {0: "0", 1: "d"}.get(self.cohort, f"{self.cohort}d")
        one = {0: "", 1: " (+d)"}.get(self.alone, f" (+{self.alone}d)")
        return many + one + (f" + {self.extra}" if self.extra else "")


class Scales(NamedTuple):
    """The constants of a problem from which a grid makes its settings."""

    delta: float
    smoothness: float
    clients: int
    cohort: int


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the table of methods. The defaults are those of a plain method: one exchange, d floats each way."""

    name: str  # in its paper
    build: Callable[..., Method[Any]]  # the constructor
    # arguments of `build` with which the method converges on a small, well-conditioned quadratic (10 clients,
    # delta = 0.1, L = 1); every contract test runs it
    example: Mapping[str, Any]
    similarity: Answer = "no"  # whether its theory gains from similar Hessians
    partial: Answer = "yes"  # whether its theory allows a cohort of some clients
    stateless: Answer = "yes"  # whether clients keep no state between rounds
    nonsmooth: Answer = "no"  # whether its theory needs no smoothness
    nonconvex: Answer = "yes"  # whether its theory covers non-convex losses
    estimator: str = "–"  # how g is made
    oracle: str = "–"  # what a client does
    phases: int = 1  # exchanges per round that must follow each other
    up: Cost = field(default=Cost(1))  # from a client to the server
    down: Cost = field(default=Cost(1))  # from the server to a client
    reference: str  # paper, year, arXiv number
    # what it was compared with: its authors' code, the paper's text, or neither; 'own' is a method of this library
    verified: Literal["code", "text", "no", "own"] = "text"
    # the outcome for which `up` and `down` hold, where a coin decides whether a round asks a cohort or everyone
    coin: Literal["", "yes", "no"] = ""
    exact: bool = True  # whether it converges to the optimum on quadratics with a constant step size and all clients
    # the settings that a comparison tries on a problem
    grid: Callable[[Scales], list[Mapping[str, Any]]] = field(default=lambda scales: [{}])

    def make(self) -> Method[Any]:
        """The example."""
        return self.build(**self.example)


METHODS: dict[str, Entry] = {}


def register(key: str, method: Entry) -> None:
    """Add a row. The key is what a user types."""
    if key in METHODS:
        raise ValueError(f"method {key!r} is registered already; choose another key")
    METHODS[key] = method

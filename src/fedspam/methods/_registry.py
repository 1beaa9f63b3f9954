"""One row for every method: its facts, a small example, and what may be tuned.

The table of methods, the documentation and every contract test are made from these rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fedspam.methods._algorithm import Algorithm

Answer = Literal["yes", "no", "partly"]


class Cost(NamedTuple):
    """Model-sized vectors that travel in a round: for each client of the cohort, and for the one that moves alone.

    `extra` counts the floats in small arrays that a client of the cohort sends besides.
    """

    cohort: int
    alone: int = 0
    extra: int = 0

    def __str__(self) -> str:
        many = {0: "0", 1: "d"}.get(self.cohort, f"{self.cohort}d")
        one = {0: "", 1: " (+d)"}.get(self.alone, f" (+{self.alone}d)")
        return many + one + (f" + {self.extra}" if self.extra else "")


class Scales(NamedTuple):
    """What is known of a problem when step sizes are proposed: similarity, smoothness, clients, cohort."""

    delta: float
    smoothness: float
    clients: int
    cohort: int


@dataclass(frozen=True)
class Method:
    """A row of the table of methods.

    Arguments:
        name: as its paper writes it.
        build: the constructor.
        example: arguments of `build` with which the method converges on a small, well-conditioned quadratic
            (10 clients, delta = 0.1, L = 1); every contract test runs it.
        similarity: whether its theory gains from alike Hessians.
        partial: whether its theory allows a cohort of some clients.
        stateless: whether clients remember nothing.
        nonsmooth: whether its theory needs no smoothness.
        nonconvex: whether its theory covers non-convex losses.
        estimator: how g is made.
        oracle: what a client does.
        phases: trips to clients that must follow each other in a round.
        up: model-sized vectors from a client to the server.
        down: and from the server to a client.
        coin: where a coin decides which clients a round asks, the side of it that `up` and `down` are of; on the other
            side everyone is asked. '' where there is no coin.
        reference: paper, year, arXiv number.
        exact: whether it converges to the optimum on quadratics with a constant step size and all clients asked.
        grid: proposes settings to try on a problem, all of them the method's own step sizes.
    """

    name: str
    build: Callable[..., Algorithm[Any]]
    example: Mapping[str, Any]
    similarity: Answer
    partial: Answer
    stateless: Answer
    nonsmooth: Answer
    nonconvex: Answer
    estimator: str
    oracle: str
    phases: int
    up: Cost
    down: Cost
    reference: str
    coin: Literal["", "yes", "no"] = ""
    exact: bool = True
    grid: Callable[[Scales], list[Mapping[str, Any]]] = field(default=lambda scales: [{}])

    def make(self) -> Algorithm[Any]:
        """The example."""
        return self.build(**self.example)


METHODS: dict[str, Method] = {}


def register(key: str, method: Method) -> None:
    """Add a row. The key is what a user types."""
    if key in METHODS:
        raise ValueError(f"there already is a method {key!r}")
    METHODS[key] = method

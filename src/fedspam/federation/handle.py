"""What a method can ask of its clients.

A method's round is an ordinary function. It calls a handle, `fed`, wherever the pseudocode says that clients send
something. `Federation` is the protocol of that handle.
"""

from collections.abc import Callable
from typing import Any, Protocol

from jaxtyping import Array, Bool, Key, UInt32

from fedspam.clients import Population
from fedspam.federation.cohorts import Cohort
from fedspam.federation.works import Work


class Federation(Protocol):
    """What a method can ask of its clients."""

    @property
    def accepted(self) -> Any:
        """How many replies of the last exchange were accepted: all of them, unless something went wrong."""
        ...

    @property
    def population_size(self) -> int | None:
        """How many clients a cohort is drawn from, none of them twice; None if endless, unknown, or with repetition."""
        ...

    def sample(self, key: Key[Array, ""], count: int, role: str = "cohort", times: int = 1) -> Cohort:
        """A fresh cohort, or several independent ones together.

        The role separates the draws of one round, and names them in a replay.
        """
        ...

    def everyone(self, key: Key[Array, ""]) -> Cohort:
        """All clients of a finite population, as one cohort."""
        ...

    def client(self, id: int | UInt32[Array, ""], key: Key[Array, ""]) -> Cohort:
        """The cohort of this one client."""
        ...

    def mean(self, cohort: Cohort, work: Work, /, **message: Any) -> Any:
        """Send the message to the cohort, let each member do the work, and average the replies."""
        ...

    def collect(self, cohort: Cohort, work: Work, /, **message: Any) -> tuple[Any, Bool[Array, " cohort"]]:
        """The replies, stacked, and which of them are accepted. For small replies."""
        ...

    def cond(self, predicate: Bool[Array, ""], yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """`yes()` or `no()`; either may contain exchanges."""
        ...


def fitted(method: Any, population: Population | None) -> Any:
    """The form of a method that fits these clients. Only a method with `for_clients` has more than one form."""
    choose = getattr(method, "for_clients", None)
    return method if choose is None or population is None else choose(population)

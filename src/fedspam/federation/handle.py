"""What a method can ask of its clients.

A method's round is an ordinary function. It calls a handle, `fed`, wherever the pseudocode says that clients send
something. `Federation` is the protocol of that handle.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Bool, UInt32

from fedspam._internal.trees import Key
from fedspam.clients import BatchLoss, Ids, Population
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
        """Number of clients, if draws do not repeat; None if it is infinite, unknown, or draws repeat."""
        ...

    def sample(self, key: Key, count: int, role: str = "cohort", times: int = 1) -> Cohort:
        """A fresh cohort, or several independent ones together.

        The role separates the draws of one round, and names them in a replay.
        """
        ...

    def everyone(self, key: Key) -> Cohort:
        """All clients of a finite population, as one cohort."""
        ...

    def client(self, id: int | UInt32[Array, ""], key: Key) -> Cohort:
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


@runtime_checkable
class NetworkFederation(Protocol):
    """A handle over a network, which knows what is under way. Asynchronous methods use it."""

    def flush(self, cohort: Cohort, work: Work, busy: Ids, k: int, /, **message: Any) -> tuple[Any, Any, Ids]:
        """Send the message to the cohort, and wait for as many replies, whichever messages they answer.

        Returns the stacked replies, the updates before the message of each, and the clients that are busy now.
        """
        ...

    def blank_replies(self, work: Work, count: int) -> Any: ...  # replies of zeros to an exchange of the round


@runtime_checkable
class FittingMethod(Protocol):
    """A method with more than one form, such as `auto`, which chooses by the clients."""

    def for_clients(self, population: Population) -> Any: ...


@runtime_checkable
class _LossPopulation(Protocol):
    @property
    def loss(self) -> Any: ...


def fitted(method: Any, population: Population | None) -> Any:
    """The form of a method that fits these clients, with what their loss needs beside it."""
    if isinstance(method, FittingMethod) and population is not None:
        method = method.for_clients(population)
    if isinstance(population, _LossPopulation) and isinstance(population.loss, BatchLoss):
        return population.loss.around(method)
    return method

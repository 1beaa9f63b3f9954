"""The protocols of a client and a population."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Key, UInt32

from fedspam._internal.trees import Params, Scalar

Ids = UInt32[Array, " cohort"]
Loss = Callable[..., Any]


@runtime_checkable
class RowsCheckingLoss(Protocol):
    """A loss that knows which rows it cannot take, such as that of a model with two outputs for three classes."""

    def check(self, examples: Any) -> None:
        """Raise ValueError for rows that the loss would take and treat wrongly."""
        ...

    def __call__(self, params: Params, rows: Any) -> Any: ...


class Oracle(Protocol):
    """One client's loss f_xi, differentiable in the parameters; the key, if given, chooses the minibatch."""

    @property
    def weight(self) -> Any:
        """The number of the client's examples, or 1."""
        ...

    def __call__(self, params: Params, key: Key[Array, ""] | None = None) -> Scalar: ...


@runtime_checkable
class RowsOracle(Protocol):
    """A client with rows of its own, which can be passed over in minibatches."""

    @property
    def minibatches(self) -> Any:
        """How many minibatches one pass over the rows has."""
        ...

    def minibatch(self, params: Params, key: Key[Array, ""], number: Any) -> Scalar:
        """The mean loss over one minibatch of a pass over the rows, which the key shuffles."""
        ...


class Population(Protocol):
    """A distribution over clients: it draws ids, and makes the client of an id on demand."""

    @property
    def size(self) -> int | None:
        """How many clients there are; None if endless."""
        ...

    def sample(self, key: Key[Array, ""], count: int) -> Ids: ...

    def client(self, id: UInt32[Array, ""]) -> Oracle: ...

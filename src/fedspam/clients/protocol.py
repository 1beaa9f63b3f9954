"""The protocols of a client and a population."""

from collections.abc import Callable
from typing import Any, Protocol

from jaxtyping import Array, Key, UInt32

from fedspam._internal.trees import Params, Scalar

Ids = UInt32[Array, " cohort"]
Loss = Callable[..., Any]


class Oracle(Protocol):
    """One client's loss f_xi, differentiable in the parameters; the key, if given, chooses the minibatch."""

    @property
    def weight(self) -> Any:
        """The number of the client's examples, or 1."""
        ...

    def __call__(self, params: Params, key: Key[Array, ""] | None = None) -> Scalar: ...


class Population(Protocol):
    """A distribution over clients: it draws ids, and makes the client of an id on demand."""

    @property
    def size(self) -> int | None:
        """How many clients there are; None if endless."""
        ...

    def sample(self, key: Key[Array, ""], count: int) -> Ids: ...

    def client(self, id: UInt32[Array, ""]) -> Oracle: ...

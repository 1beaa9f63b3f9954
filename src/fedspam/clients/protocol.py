"""The protocols of a client and a population, and of what only some of them can do."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from jax.sharding import Mesh
from jaxtyping import Array, Float, UInt32

from fedspam._internal.trees import Key, Params, Scalar
from fedspam.clients.delays import Delay

Ids = UInt32[Array, " cohort"]
Loss = Callable[..., Any]


@runtime_checkable
class RowsCheckingLoss(Protocol):
    """A loss that knows which rows it cannot take, such as that of a model with two outputs for three classes."""

    def check(self, examples: Any) -> None: ...  # raise ValueError for rows that the loss would take and treat wrongly

    def __call__(self, params: Params, rows: Any) -> Any: ...


@runtime_checkable
class BatchLoss(Protocol):
    """A loss that sees the rows of a batch together, or draws: of a network with batch normalization or dropout."""

    @property
    def moves(self) -> bool: ...  # whether parameters hold running statistics, which local steps move

    def of_batch(self, params: Params, rows: Any, *, key: Any, kept: Any) -> tuple[Any, Params]:
        """One loss per row, and the parameters with the running statistics after this batch.

        Arguments:
            params, rows: as for a plain loss.
            key: of dropout; equal keys draw equally, so that two points can be compared. None switches it off.
            kept: which rows are real; the others are padding.
        """
        ...

    def moments(self, params: Params, rows: Any, *, kept: Any) -> Any:
        """The means of the activations over a batch, and those of their squares, times the number of real rows."""
        ...

    def own(self, params: Params, rows: Any, *, kept: Any) -> Params:
        """What predicts these rows, all of one client: the parameters, with its statistics if it keeps its own."""
        ...

    def around(self, method: Any) -> Any:
        """The method with what this loss needs beside it, or ValueError if they do not go together."""
        ...


class Oracle(Protocol):
    """One client's loss f_xi, differentiable in the parameters; the key, if given, chooses the minibatch."""

    @property
    def weight(self) -> Any: ...  # the number of the client's examples, or 1

    def __call__(self, params: Params, key: Key | None = None) -> Scalar: ...


@runtime_checkable
class RowsOracle(Protocol):
    """A client with rows of its own, which can be passed over in minibatches."""

    @property
    def minibatches(self) -> Any: ...  # how many minibatches one pass over the rows has

    def minibatch(self, params: Params, key: Key, number: Any) -> Scalar:
        """The mean loss over one minibatch of a pass over the rows, which the key shuffles."""
        ...


@runtime_checkable
class BatchOracle(Protocol):
    """A client whose loss may be a `BatchLoss`."""

    def moved(self, params: Params, key: Any, number: Any = None) -> tuple[Scalar, Params]:
        """The loss, and the parameters after it, of which only the running statistics have moved.

        Arguments:
            params: the point.
            key: of the minibatch and of dropout.
            number: which minibatch of a pass over the rows; None for one of its own.
        """
        ...

    def whole(self, params: Params, key: Any = None) -> Scalar:
        """The loss on all of its rows, with the dropout and the crops of this key."""
        ...

    def moments(self, params: Params, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Any, Any]:
        """The number of its rows, and `BatchLoss.moments` of all of them; `shapes` are those of the statistics."""
        ...

    def own(self, params: Params) -> Params:
        """`BatchLoss.own` of all of its rows."""
        ...

    def predicted(self, params: Params) -> Scalar:
        """The loss of a prediction of all of its rows: without dropout, by running statistics."""
        ...


@runtime_checkable
class MinibatchOracle(Protocol):
    """A client, or a population, whose losses with a key are those of minibatches of at most `batch` rows."""

    @property
    def batch(self) -> int | None: ...

    @property
    def capacity(self) -> int: ...  # the rows of the largest client


@runtime_checkable
class TrainedOracle(Protocol):
    """A client that has trained by code of its own, of which only the trained model is known."""

    @property
    def steps(self) -> Any: ...  # how many steps it took, or a number in proportion to them

    def trained(self, x: Params) -> Params: ...  # the model after its training from x


@runtime_checkable
class SteppingOracle(Protocol):
    """A client that may make local steps by an optimizer of its own, such as one of PyTorch."""

    @property
    def has_optimizer(self) -> bool: ...

    def descended(
        self, x: Params, key: Key, count: Any, rate: Any, *, shift: Any, pull: Any, anchor: Params, in_passes: bool
    ) -> Params:
        """The model after `count` steps from x; in passes over the rows, or each on a minibatch of its own."""
        ...


@runtime_checkable
class ScaledOracle(Protocol):
    """A client whose loss is the mean over its rows times a factor, such as its share of all rows."""

    @property
    def factor(self) -> Any: ...


@runtime_checkable
class SmoothOracle(Protocol):
    """A client that knows the smoothness constant of its loss."""

    @property
    def smoothness(self) -> Any: ...


@runtime_checkable
class QuadraticLoss(Protocol):
    """A client with a quadratic loss, whose prox is the solution of a linear system."""

    @property
    def lowest_curvature(self) -> Scalar: ...

    def shifted_solve(self, g: Params, step_size: Any) -> Params: ...  # (H + I/step_size)^-1 g, where H is the Hessian


class Population(Protocol):
    """A distribution over clients: it draws ids, and makes the client of an id on demand."""

    @property
    def size(self) -> int | None: ...  # how many clients there are; None if endless

    def sample(self, key: Key, count: int) -> Ids: ...

    def client(self, id: UInt32[Array, ""]) -> Oracle: ...


@runtime_checkable
class TimedPopulation(Protocol):
    """A population whose clients take time, such as `OverSelected`."""

    @property
    def delay(self) -> Delay: ...

    def timed(self, key: Key, count: int) -> tuple[Ids, Float[Array, " cohort"]]:
        """A cohort and the seconds of each of its members."""
        ...


@runtime_checkable
class PlacedPopulation(Population, Protocol):
    """A population whose clients live on certain devices, and work there, such as `Sharded`."""

    @property
    def mesh(self) -> Mesh: ...

    @property
    def owners(self) -> Any: ...  # the number of the device of each client

    @property
    def placement(self) -> Any:
        """What of the population is split over the devices, in the form that `shard_map` takes."""
        ...

    def on_device(self) -> Population: ...  # the clients of one device, inside `shard_map`


@runtime_checkable
class _WithReplacement(Protocol):
    @property
    def replace(self) -> bool: ...


def repeats(population: Any) -> bool:
    """Whether a cohort of this population may hold a client twice."""
    return isinstance(population, _WithReplacement) and bool(population.replace)

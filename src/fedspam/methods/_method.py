"""The protocol of a method, and what several methods share: starts of g, the clients that move, records."""

from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedspam._internal import checks, trees
from fedspam._internal.trees import Key, Params, count, struct
from fedspam.clients import Oracle
from fedspam.federation import Cohort, Federation, on_client
from fedspam.solvers import Certificate

State = TypeVar("State")

MOVERS = ("one", "fresh", "second", "average", "everyone", "delegate")


class Method(Protocol[State]):
    """A federated method: a frozen pytree dataclass whose floats are leaves and whose sizes are static.

    A registered method also has a static field `name`, its key in `METHODS`, which the records of a run keep.
    """

    def init(self, params: Params, key: Key, fed: Federation) -> State:
        """The server's state before the first round. Exchanges made here are charged."""
        ...

    def round(self, state: State, key: Key, fed: Federation) -> tuple[State, Any]:
        """One round: the new state, and the row that is recorded."""
        ...

    def params(self, state: State) -> Params: ...

    def client_state(self, params: Params) -> PyTree:
        """A client's memory before its first exchange; () if clients keep no state."""
        ...


class Stateless:
    """A method whose clients remember nothing between rounds. Its model is the x of its state."""

    def init(self, params: Params, key: Key, fed: Federation) -> Any:
        return PointState(x=params, k=jnp.zeros((), jnp.int32))

    def params(self, state: Any) -> Params:
        return state.x

    def client_state(self, params: Params) -> Any:
        return ()


class Stateful(Stateless):
    """A method whose clients remember a vector, which is 0 at first."""

    def client_state(self, params: Params) -> Any:
        return trees.zeros_like(params)


class Tracking(Stateful):
    """A stateful method whose server keeps the mean of what all clients remember (see `tracked_mean`)."""

    def init(self, params: Params, key: Key, fed: Federation) -> Any:
        return TrackedState(x=params, mean=trees.zeros_like(params), k=jnp.zeros((), jnp.int32))


class PointState(NamedTuple):
    """What the server keeps where it has no estimate of its own."""

    x: Params
    k: Any  # rounds that counted; the index of the schedules


class TrackedState(NamedTuple):
    """What the server of a `Tracking` method keeps."""

    x: Params
    mean: Params  # of the vectors that all clients remember
    k: Any  # rounds that counted; the index of the schedules


class OptimizerState(NamedTuple):
    """What the server keeps where it has an optimizer of its own."""

    x: Params
    memory: Any  # of the optimizer, such as a momentum
    k: Any  # rounds that counted; the index of the schedules


class RoundInfo(NamedTuple):
    """What a round records: the columns of a run's rows. A method leaves out those that it does not have."""

    step_size: Any = ()  # gamma_k
    fresh_weight: Any = ()  # p_k
    local_rate: Any = ()  # eta_k of the local steps
    extrapolation: Any = ()  # times the mean move
    effective_steps: Any = ()  # the weighted mean of |a| of FedNova
    stationarity: Any = ()  # the norm of the gradient of a cohort's prox problem before the last step
    passed: Any = ()  # 1 if a round with a line search moved, 0 if its step size was too large
    steps: Any = ()  # local steps of every client, where a coin decides
    error: Any = ()  # auto's estimate of |g - grad f(x)|^2
    noise: Any = ()  # of sigma^2, the spread of the clients' gradients
    similarity: Any = ()  # of delta^2 in mean square, along the steps taken
    ratio: Any = ()  # of the change of f over the last step to what the movers promised
    damping: Any = ()  # the share of their rate that the clients of auto_steps use
    alignment: Any = ()  # cosine of the move and the velocity
    quality: Any = ()  # how far losses fell, as a share of what linear ones would have fallen
    refused: Any = ()  # the share of steps that clients refused
    certificate: Any = ()  # the mean of the movers' `Certificate`
    gradients: Any = ()  # client gradients evaluated in this round


def sample_or_all(count: int | None, key: Key, fed: Federation) -> Cohort:
    """A cohort of this size, or everyone."""
    return fed.everyone(key) if count is None else fed.sample(key, count)


def over_everyone(mean: Params, fed: Federation, key: Key) -> Params:
    """The sum of a cohort's replies, of which `mean` is the mean, over the number of all clients."""
    return trees.divide(trees.scale(fed.accepted, mean), fed.everyone(key).size)


def tracked_mean(mean: Params, change: Params, fed: Federation, key: Key) -> Params:
    """The mean of what all clients remember, after a cohort's memories changed by `change` on average.

    Only the clients whose replies arrived have changed theirs, so that it stays the mean where replies are lost.
    """
    return trees.add(mean, over_everyone(change, fed, key))


class Start(Protocol):
    """How the first estimate g_0 is made."""

    def __call__(self, params: Params, key: Key, fed: Federation) -> Params: ...


# An argument `start`: g_0 = 0, one gradient of a client, one of each client of a cohort, a number of exchanges,
# g_0 itself, or a `Start`.
StartLike: TypeAlias = Literal["zero", "client", "cohort"] | int | Params | Start


@struct
class Given:
    """g_0 is known, for example the full gradient."""

    g: Params

    def __call__(self, params: Params, key: Key, fed: Federation) -> Params:
        checks.same_tree("g_0", self.g, "the parameters", params)
        return jax.tree.map(lambda g, x: jnp.asarray(g, x.dtype), self.g, params)


@struct
class Zero:
    """g_0 = 0."""

    def __call__(self, params: Params, key: Key, fed: Federation) -> Params:
        return trees.zeros_like(params)


@struct
class WarmStart:
    """g_0 is the mean gradient at x_0 over a number of exchanges with fresh cohorts, each of them charged.

    ``WarmStart(1)`` is one exchange with one client.
    """

    exchanges: int = count(default=1)
    cohort_size: int = count(default=1)

    def __call__(self, params: Params, key: Key, fed: Federation) -> Params:
        cohorts = fed.sample(key, self.cohort_size, role="start", times=self.exchanges)
        return fed.mean(cohorts, self.starting_gradient, x=params)

    @on_client(affine=True)
    def starting_gradient(self, oracle: Oracle, key: Key, *, x: Params) -> Params:
        return jax.grad(oracle)(x, key)


def start_from(value: StartLike, cohort_size: int) -> Start:
    """The `Start` that an argument `start` means."""
    if isinstance(value, str):
        checks.one_of("start", value, ("zero", "client", "cohort"))
        return {"zero": Zero(), "client": WarmStart(1, 1), "cohort": WarmStart(1, cohort_size)}[value]
    if isinstance(value, int):
        return WarmStart(value, cohort_size)
    if isinstance(value, Given | Zero | WarmStart):
        return value
    return Given(value)


class Move(NamedTuple):
    """Where a client wants to go, and what its solver reached."""

    x: Params
    certificate: Certificate


@on_client
def prox(self: Any, oracle: Oracle, key: Key, *, x: Params, g: Params | None, step_size: Any) -> Move:
    """The work of a mover; without g it uses its own gradient."""
    g = jax.grad(oracle)(x, key) if g is None else g
    return Move(*self.solver(oracle, key, x=x, g=g, step_size=step_size))


class SpamState(NamedTuple):
    """What the server of SPAM, SPAM-PP or SPAM-PPA keeps between rounds."""

    x: Params
    x_prev: Params
    g: Params
    k: Any  # rounds that counted; the index of the schedules


def select_movers(movers: str, cohort: Cohort, key: Key, fed: Federation) -> Cohort:
    """The clients that move in a round whose estimate the cohort has made; `Factored` explains the choices."""
    match movers:
        case "one":
            return cohort.one(key)
        case "fresh":
            return fed.sample(key, 1, role="prox")
        case "second":
            return fed.sample(key, cohort.size, role="second")
        case "average":
            return cohort
        case "everyone":
            return fed.everyone(key)
        case _:
            return fed.client(0, key)


def mvr_difference(oracle: Oracle, key: Key, x: Params, x_prev: Params, fresh_weight: Any, scale: Any = None) -> Params:
    r"""A client's part of the estimate, :math:`g_k - (1-p)g_{k-1}`."""
    here, there = jax.grad(oracle)(x, key), jax.grad(oracle)(x_prev, key)
    difference = trees.axpy(fresh_weight - 1, there, here)
    if scale is None:
        return difference
    # what the scale adds to MVR: exactly 0 at s = 1
    return trees.axpy((scale - 1) * (1 - fresh_weight), trees.subtract(here, there), difference)


@on_client(affine=True)
def difference(self: Any, oracle: Oracle, key: Key, *, x: Params, x_prev: Params, fresh_weight: Any) -> Params:
    """The work of a cohort that makes the estimate."""
    return mvr_difference(oracle, key, x, x_prev, fresh_weight, self.scale)

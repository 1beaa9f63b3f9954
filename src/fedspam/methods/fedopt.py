"""Local training and a server optimizer: FedAvgM, FedAdam, FedYogi and FedAdagrad; the base of FedAvg and FedProx."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Integer, Key

from fedspam._internal import trees
from fedspam._internal.trees import Params, Scalar, choice, count, dynamic, number, positive, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import few_steps_grid, grid, over_smoothness, with_fixed
from fedspam.methods._local import ClientOptimizer, LocalSteps, Steps, Training
from fedspam.methods._method import RoundInfo, Stateless
from fedspam.methods._registry import Entry, register
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule


class FedOptState(NamedTuple):
    """What the server keeps between rounds."""

    x: Params
    memory: Any  # of the server optimizer
    k: Any  # rounds that counted; the index of the schedules


class Update(NamedTuple):
    """What a client sends: the move of its model, times its weight where moves are weighted, and the certificate."""

    moved: Params
    weight: Any
    certificate: Any


class ServerOptimizer(Protocol):
    r"""What the server does with :math:`\Delta`, the mean move of the clients."""

    def init(self, params: Params) -> Any: ...

    def update(self, x: Params, moved: Params, memory: Any, k: Integer[Array, ""]) -> tuple[Params, Any]: ...


@struct
class FedOpt(Stateless):
    r"""Clients train on their own loss, the server treats their mean move as a gradient. `fedavg`, `fedprox`, `fedadam`
    and others build it.

    .. math:: \Delta_k = \frac{\sum_{i\in S_k} w_i\,(y_i - x_k)}{\sum_{i\in S_k} w_i}, \qquad
        x_{k+1} = \mathrm{server}(x_k, \Delta_k)

    Arguments:
        training: what a client does: `Steps` or `Prox`.
        server: what the server does with :math:`\Delta_k`: `Average`, `HeavyBall` or `Adaptive`.
        cohort_size: clients per round.
        weighted: whether :math:`w_i` is the number of a client's examples, instead of 1. Clients then send
            :math:`w_i(y_i - x_k)` and :math:`w_i`, and the server divides the means.
        name: key of the method in `METHODS`.
    """

    training: Training
    server: ServerOptimizer
    cohort_size: int = count()
    weighted: bool = static(default=False)
    name: str = static(kw_only=True)

    def init(self, params: Params, key: Key[Array, ""], fed: Federation) -> FedOptState:
        return FedOptState(x=params, memory=self.server.init(params), k=jnp.zeros((), jnp.int32))

    def round(self, state: FedOptState, key: Key[Array, ""], fed: Federation) -> tuple[FedOptState, RoundInfo]:
        cohort = fed.sample(key, self.cohort_size)
        update = fed.mean(cohort, self.train, x=state.x, **self.training.numbers(state.k))
        moved = trees.divide(update.moved, update.weight) if self.weighted else update.moved

        x, memory = self.server.update(state.x, moved, state.memory, state.k)
        gradients = cohort.size * self.training.gradients(update.certificate)
        info = RoundInfo(certificate=update.certificate, gradients=gradients)
        return FedOptState(x, memory, state.k + 1), info

    @on_client
    def train(self, oracle: Oracle, key: Key[Array, ""], *, x: Params, **numbers: Any) -> Update:
        y, certificate = self.training(oracle, key, x, None, numbers)
        moved = trees.subtract(y, x)
        if not self.weighted:
            return Update(moved, (), certificate)
        weight = jnp.asarray(oracle.weight, jax.tree.leaves(x)[0].dtype)
        return Update(trees.scale(weight, moved), weight, certificate)


@struct
class Average:
    r""":math:`x + \eta_s\Delta`."""

    server_step_size: Schedule = dynamic(converter=positive_schedule, default=1.0)

    def init(self, params: Params) -> tuple[()]:
        return ()

    def update(self, x: Params, moved: Params, memory: tuple[()], k: Integer[Array, ""]) -> tuple[Params, tuple[()]]:
        return trees.axpy(self.server_step_size(k), moved, x), memory


@struct
class HeavyBall:
    r""":math:`M \leftarrow \beta M + \Delta`, then :math:`x + \eta_s M`."""

    server_step_size: Schedule = dynamic(converter=positive_schedule)
    momentum: float | Scalar = number(0, 1, remedy="0 is FedAvg, 0.9 is common")

    def init(self, params: Params) -> Params:
        return trees.zeros_like(params)

    def update(self, x: Params, moved: Params, memory: Params, k: Integer[Array, ""]) -> tuple[Params, Params]:
        memory = trees.axpy(self.momentum, memory, moved)
        return trees.axpy(self.server_step_size(k), memory, x), memory


class AdamMoments(NamedTuple):
    """Running means of the moves and of their squares, coordinate by coordinate."""

    first: Params
    second: Params


@struct
class Adaptive:
    """The adaptive server steps of `fedadam`, `fedyogi` and `fedadagrad`, without bias correction."""

    server_step_size: Schedule = dynamic(converter=positive_schedule)
    momentum: float | Scalar = number(0, 1)
    square_momentum: float | Scalar = number(0, 1)
    adaptivity: float | Scalar = positive("it divides the first move; the paper's is 0.001")
    rule: str = choice("adagrad", "yogi", "adam")

    def init(self, params: Params) -> AdamMoments:
        second = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.asarray(self.adaptivity, leaf.dtype) ** 2), params)
        return AdamMoments(trees.zeros_like(params), second)

    def update(
        self, x: Params, moved: Params, memory: AdamMoments, k: Integer[Array, ""]
    ) -> tuple[Params, AdamMoments]:
        eta = self.server_step_size(k)
        first = trees.axpy(self.momentum, memory.first, trees.scale(1 - self.momentum, moved))
        second = jax.tree.map(self._second, memory.second, moved)

        def step(x: Array, m: Array, v: Array) -> Array:
            return x + jnp.asarray(eta, x.dtype) * m / (jnp.sqrt(v) + jnp.asarray(self.adaptivity, x.dtype))

        return jax.tree.map(step, x, first, second), AdamMoments(first, second)

    def _second(self, v: Array, moved: Array) -> Array:
        squared, fresh = moved**2, jnp.asarray(1 - self.square_momentum, v.dtype)
        if self.rule == "adagrad":
            return v + squared
        if self.rule == "yogi":
            return v - fresh * squared * jnp.sign(v - squared)
        return jnp.asarray(self.square_momentum, v.dtype) * v + fresh * squared


def fedavgm(
    cohort_size: int,
    local_steps: LocalSteps,
    local_rate: ScheduleLike,
    *,
    momentum: float = 0.9,
    server_step_size: ScheduleLike = 1.0,
    weighted: bool = False,
    optimizer: ClientOptimizer = None,
) -> FedOpt:
    r"""FedAvg with momentum on the server.

    .. math:: M_k = \beta M_{k-1} + \frac1B\sum_{i\in S_k}(y_i - x_k), \qquad x_{k+1} = x_k + \eta_s M_k

    where :math:`y_i` is :math:`x_k` after m local steps :math:`y \leftarrow y - \eta_k\nabla f_i(y)`. One exchange, d
    floats down and d up for each client, no state on clients, one vector more on the server.

    Arguments:
        cohort_size, local_steps, local_rate, weighted, optimizer: as `fedavg`.
        momentum: :math:`\beta` in [0, 1].
        server_step_size: :math:`\eta_s`, a number or a schedule. In total a move counts :math:`1/(1-\beta)` times.

    Hsu, Qi, Brown 2019, arXiv:1909.06335; Reddi et al. 2021, arXiv:2003.00295.

    >>> from fedspam.problems import progress
    >>> progress(fedavgm(10, 5, 0.02)) < 0.1
    True
    """
    steps, server = Steps(local_rate, None, local_steps, optimizer), HeavyBall(server_step_size, momentum)
    return FedOpt(steps, server, cohort_size, weighted, name="fedavgm")


def fedadam(
    cohort_size: int,
    local_steps: LocalSteps,
    local_rate: ScheduleLike,
    server_step_size: ScheduleLike,
    *,
    momentum: float = 0.9,
    square_momentum: float = 0.99,
    adaptivity: float = 1e-3,
    weighted: bool = False,
    optimizer: ClientOptimizer = None,
) -> FedOpt:
    r"""Adam on the server, with the mean move :math:`\Delta_k` of the clients as its gradient.

    .. math::
        M &\leftarrow \beta_1 M + (1-\beta_1)\Delta_k, \qquad V \leftarrow \beta_2 V + (1-\beta_2)\Delta_k^2 \\
        x_{k+1} &= x_k + \eta_s\,M/(\sqrt V + \tau), \qquad M_{-1} = 0,\ V_{-1} = \tau^2

    The moves come from m local steps :math:`y \leftarrow y - \eta_k\nabla f_i(y)`. There is no bias correction: the
    paper's Algorithm 2 has none, and a correction would make another method. One exchange, d floats down and d up for
    each client, no state on clients, two vectors more on the server.

    Arguments:
        cohort_size, local_steps, local_rate, server_step_size, weighted, optimizer: as `fedavg`.
        momentum: :math:`\beta_1` in [0, 1].
        square_momentum: :math:`\beta_2` in [0, 1].
        adaptivity: :math:`\tau`, on the scale of the moves; a large one makes it FedAvg with momentum.

    Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive federated optimization, 2021,
    arXiv:2003.00295, Algorithm 2.

    >>> from fedspam.problems import progress
    >>> progress(fedadam(10, 5, 0.02, 0.05), rounds=100) < 0.1
    True
    """
    steps = Steps(local_rate, None, local_steps, optimizer)
    server = Adaptive(server_step_size, momentum, square_momentum, adaptivity, rule="adam")
    return FedOpt(steps, server, cohort_size, weighted, name="fedadam")


def fedyogi(
    cohort_size: int,
    local_steps: LocalSteps,
    local_rate: ScheduleLike,
    server_step_size: ScheduleLike,
    *,
    momentum: float = 0.9,
    square_momentum: float = 0.99,
    adaptivity: float = 1e-3,
    weighted: bool = False,
    optimizer: ClientOptimizer = None,
) -> FedOpt:
    r"""Yogi on the server: as `fedadam`, but V changes by at most :math:`(1-\beta_2)\Delta_k^2`.

    .. math:: V \leftarrow V - (1-\beta_2)\,\Delta_k^2\,\mathrm{sign}(V - \Delta_k^2)

    Arguments and costs: as `fedadam`.

    Reddi et al.: Adaptive federated optimization, 2021, arXiv:2003.00295, Algorithm 2.

    >>> fedyogi(10, 5, 0.02, 0.05).server.rule
    'yogi'
    """
    steps = Steps(local_rate, None, local_steps, optimizer)
    server = Adaptive(server_step_size, momentum, square_momentum, adaptivity, rule="yogi")
    return FedOpt(steps, server, cohort_size, weighted, name="fedyogi")


def fedadagrad(
    cohort_size: int,
    local_steps: LocalSteps,
    local_rate: ScheduleLike,
    server_step_size: ScheduleLike,
    *,
    momentum: float = 0.0,
    adaptivity: float = 1e-3,
    weighted: bool = False,
    optimizer: ClientOptimizer = None,
) -> FedOpt:
    r"""Adagrad on the server: as `fedadam`, but V sums up all squares, so that steps shrink over time.

    .. math:: V \leftarrow V + \Delta_k^2

    Arguments and costs: as `fedadam`; the paper runs it without momentum.

    Reddi et al.: Adaptive federated optimization, 2021, arXiv:2003.00295, Algorithm 2.

    >>> fedadagrad(10, 5, 0.02, 0.05).server.rule
    'adagrad'
    """
    steps = Steps(local_rate, None, local_steps, optimizer)
    server = Adaptive(server_step_size, momentum, 0.0, adaptivity, rule="adagrad")
    return FedOpt(steps, server, cohort_size, weighted, name="fedadagrad")


# with a server momentum of 0.9 a move counts ten times; a smaller server step makes up for part of it
_momentum_grid = with_fixed(few_steps_grid, server_step_size=0.3)
# the server's step size is on the scale of x itself: the length of Adam's steps is their step size
adaptive_grid = grid(
    server_step_size=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3), local_rate=over_smoothness(0.1, 0.3), local_steps=(5,)
)

for _key, _name, _build, _more, _grid in (
    ("fedavgm", "FedAvgM", fedavgm, {"server_step_size": 0.3}, _momentum_grid),
    ("fedadam", "FedAdam", fedadam, {"server_step_size": 0.03, "adaptivity": 0.03}, adaptive_grid),
    ("fedyogi", "FedYogi", fedyogi, {"server_step_size": 0.03, "adaptivity": 0.03}, adaptive_grid),
    ("fedadagrad", "FedAdagrad", fedadagrad, {"server_step_size": 0.1, "adaptivity": 0.03}, adaptive_grid),
):
    register(_key, Entry(
        name=_name, build=_build, example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3, **_more},
        oracle="m steps", exact=False, grid=_grid,
        reference="Hsu, Qi, Brown 2019, arXiv:1909.06335" if _build is fedavgm else
        "Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan 2021, arXiv:2003.00295",
    ))  # fmt: skip

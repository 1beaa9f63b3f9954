"""FedOpt: local training and an optimizer on the server, such as FedAdam, FedYogi and FedAdagrad."""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Integer

from fedspam._internal import checks, trees
from fedspam._internal.trees import Key, Params, Scalar, choice, count, dynamic, number, positive, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._central import AdamStatistics, begin_adam, mixed
from fedspam.methods._grids import grid, over_smoothness, with_fixed
from fedspam.methods._local import ClientOptimizer, LocalSteps, Steps, Training, Update
from fedspam.methods._method import OptimizerState, RoundInfo, Stateless
from fedspam.methods._registry import Entry, register
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule
from fedspam.solvers.external import optax_optimizer

if TYPE_CHECKING:
    import optax


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

    :math:`w_i` is 1; if `weighted`, it is the number of a client's examples. Clients then send :math:`w_i(y_i - x_k)`
    and :math:`w_i`, and the server divides the means.
    """

    training: Training  # what a client does: `Steps` or `Prox`
    server: ServerOptimizer  # such as `Average`, `HeavyBall` or `Adaptive`
    cohort_size: int = count()
    weighted: bool = static(default=False)
    name: str = static(kw_only=True)

    def init(self, params: Params, key: Key, fed: Federation) -> OptimizerState:
        return OptimizerState(x=params, memory=self.server.init(params), k=jnp.zeros((), jnp.int32))

    def round(self, state: OptimizerState, key: Key, fed: Federation) -> tuple[OptimizerState, RoundInfo]:
        cohort = fed.sample(key, self.cohort_size)
        update = fed.mean(cohort, self.train, x=state.x, **self.training.numbers(state.k))
        moved = trees.divide(update.moved, update.weight) if self.weighted else update.moved

        x, memory = self.server.update(state.x, moved, state.memory, state.k)
        gradients = cohort.size * self.training.gradients(update.certificate)
        info = RoundInfo(certificate=update.certificate, gradients=gradients)
        return OptimizerState(x, memory, state.k + 1), info

    @on_client
    def train(self, oracle: Oracle, key: Key, *, x: Params, **numbers: Any) -> Update:
        y, certificate = self.training(oracle, key, x, None, numbers)
        moved = trees.subtract(y, x)
        if not self.weighted:
            return Update(moved, certificate=certificate)
        weight = jnp.asarray(oracle.weight, jax.tree.leaves(x)[0].dtype)
        return Update(trees.scale(weight, moved), weight, certificate=certificate)


@struct
class Average:
    r""":math:`x + \eta_s\Delta`."""

    server_step_size: Schedule = dynamic(converter=positive_schedule, default=1.0)

    def init(self, params: Params) -> tuple[()]:
        return ()

    def update(self, x: Params, moved: Params, memory: tuple[()], k: Integer[Array, ""]) -> tuple[Params, tuple[()]]:
        return trees.axpy(self.server_step_size(k), moved, x), memory


@struct
class Adaptive:
    """The adaptive server steps of `fedadam`, `fedyogi` and `fedadagrad`, without bias correction."""

    server_step_size: Schedule = dynamic(converter=positive_schedule)
    momentum: float | Scalar = number(0, 1)
    square_momentum: float | Scalar = number(0, 1)
    adaptivity: float | Scalar = positive("it divides the first move; the paper's is 0.001")
    rule: str = choice("adagrad", "yogi", "adam")

    def init(self, params: Params) -> AdamStatistics:
        return begin_adam(params, self.adaptivity)

    def update(
        self, x: Params, moved: Params, memory: AdamStatistics, k: Integer[Array, ""]
    ) -> tuple[Params, AdamStatistics]:
        eta = self.server_step_size(k)
        m, v = mixed(self.momentum, memory.m, moved), jax.tree.map(self._second, memory.v, moved)

        def step(x: Array, m: Array, v: Array) -> Array:
            return x + jnp.asarray(eta, x.dtype) * m / (jnp.sqrt(v) + jnp.asarray(self.adaptivity, x.dtype))

        return jax.tree.map(step, x, m, v), AdamStatistics(m, v)

    def _second(self, v: Array, moved: Array) -> Array:
        squared, fresh = moved**2, jnp.asarray(1 - self.square_momentum, v.dtype)
        if self.rule == "adagrad":
            return v + squared
        if self.rule == "yogi":
            return v - fresh * squared * jnp.sign(v - squared)
        return jnp.asarray(self.square_momentum, v.dtype) * v + fresh * squared


# the part of an optimizer of Optax that has no rate, by the name of the optimizer
WITHOUT_RATE: Mapping[str, str] = {
    "adagrad": "scale_by_rss",
    "adam": "scale_by_adam",
    "lion": "scale_by_lion",
    "sgd": "identity",
    "yogi": "scale_by_yogi",
}


@struct
class OptaxServer:
    r"""Any Optax optimizer, with :math:`-\Delta` as its gradient."""

    optimizer: "optax.GradientTransformation" = static(converter=optax_optimizer)

    def init(self, params: Params) -> Any:
        return self.optimizer.init(params)

    def update(self, x: Params, moved: Params, memory: Any, k: Integer[Array, ""]) -> tuple[Params, Any]:
        update, memory = self.optimizer.update(trees.scale(-1, moved), memory, x)
        return trees.add(x, update), memory


@struct
class NamedServer:
    r"""An Optax optimizer by its name, whose step size is a leaf: :math:`x - \eta_s T(-\Delta)`."""

    server_step_size: Schedule = dynamic(converter=positive_schedule)
    optimizer: str = static()

    def init(self, params: Params) -> Any:
        return without_rate(self.optimizer).init(params)

    def update(self, x: Params, moved: Params, memory: Any, k: Integer[Array, ""]) -> tuple[Params, Any]:
        direction, memory = without_rate(self.optimizer).update(trees.scale(-1, moved), memory, x)
        return trees.axpy(-self.server_step_size(k), direction, x), memory


@functools.cache
def without_rate(name: str) -> "optax.GradientTransformation":
    """The transformation T of the optimizer of this name, with Optax's defaults."""
    import optax

    return getattr(optax, WITHOUT_RATE[name])()


def fedadam(
    cohort_size: int, local_steps: LocalSteps, local_rate: ScheduleLike, server_step_size: ScheduleLike,
    *, momentum: float = 0.9, square_momentum: float = 0.99, adaptivity: float = 1e-3, weighted: bool = False,
    optimizer: ClientOptimizer = None,
) -> FedOpt:  # fmt: skip
    r"""Adam on the server, with the mean move :math:`\Delta_k` of the clients as its gradient.

    .. math::
        M &\leftarrow \beta_1 M + (1-\beta_1)\Delta_k, \qquad V \leftarrow \beta_2 V + (1-\beta_2)\Delta_k^2 \\
        x_{k+1} &= x_k + \eta_s\,M/(\sqrt V + \tau), \qquad M_{-1} = 0,\ V_{-1} = \tau^2

    The moves come from m local steps :math:`y \leftarrow y - \eta_k\nabla f_i(y)`. There is no bias correction: the
    paper's Algorithm 2 has none, and a correction would make another method.

    Arguments:
        momentum, square_momentum: :math:`\beta_1` and :math:`\beta_2` in [0, 1].
        adaptivity: :math:`\tau`, on the scale of the moves; a large one makes it FedAvg with momentum.
        weighted, optimizer: as `fedavg`.

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
    cohort_size: int, local_steps: LocalSteps, local_rate: ScheduleLike, server_step_size: ScheduleLike,
    *, momentum: float = 0.9, square_momentum: float = 0.99, adaptivity: float = 1e-3, weighted: bool = False,
    optimizer: ClientOptimizer = None,
) -> FedOpt:  # fmt: skip
    r"""Yogi on the server: as `fedadam`, but V changes by at most :math:`(1-\beta_2)\Delta_k^2`.

    .. math:: V \leftarrow V - (1-\beta_2)\,\Delta_k^2\,\mathrm{sign}(V - \Delta_k^2)

    Arguments and paper: as `fedadam`.
    """
    steps = Steps(local_rate, None, local_steps, optimizer)
    server = Adaptive(server_step_size, momentum, square_momentum, adaptivity, rule="yogi")
    return FedOpt(steps, server, cohort_size, weighted, name="fedyogi")


def fedadagrad(
    cohort_size: int, local_steps: LocalSteps, local_rate: ScheduleLike, server_step_size: ScheduleLike,
    *, momentum: float = 0.0, adaptivity: float = 1e-3, weighted: bool = False, optimizer: ClientOptimizer = None,
) -> FedOpt:  # fmt: skip
    r"""Adagrad on the server: as `fedadam`, but V sums up all squares, so that steps shrink over time.

    .. math:: V \leftarrow V + \Delta_k^2

    Arguments and paper: as `fedadam`; the paper runs it without momentum.
    """
    steps = Steps(local_rate, None, local_steps, optimizer)
    server = Adaptive(server_step_size, momentum, 0.0, adaptivity, rule="adagrad")
    return FedOpt(steps, server, cohort_size, weighted, name="fedadagrad")


def fedopt(
    cohort_size: int, local_steps: LocalSteps, local_rate: ScheduleLike,
    server_optimizer: "optax.GradientTransformation | str",
    *, server_step_size: ScheduleLike | None = None, weighted: bool = False, optimizer: ClientOptimizer = None,
) -> FedOpt:  # fmt: skip
    r"""FedOpt with any Optax optimizer on the server, which gets minus the mean move of the clients as its gradient.

    .. math:: x_{k+1} = x_k + \mathrm{update}\Big(-\frac1B\sum_{i\in S_k}(y_i - x_k)\Big)

    ``optax.sgd(1.0)`` makes it FedAvg, ``optax.sgd(1.0, momentum=0.9)`` FedAvgM. Adam of Optax corrects its bias, that
    of `fedadam` does not.

    Arguments:
        server_optimizer: such as ``optax.adam(0.01)``, with its rate; it is part of the compiled program, so another
            one recompiles. Or a name: 'adagrad', 'adam', 'lion', 'sgd' or 'yogi', with Optax's other defaults.
        server_step_size: :math:`\eta_s`, the rate of an optimizer that is given by its name: a number or a schedule.
            One compiled program serves all of them.
        weighted, optimizer: as `fedavg`.

    Paper: as `fedadam`, Algorithm 1.

    >>> import optax
    >>> from fedspam.problems import progress
    >>> progress(fedopt(10, 5, 0.02, optax.sgd(1.0, momentum=0.5))) < 0.1
    True
    >>> progress(fedopt(10, 5, 0.02, "adam", server_step_size=0.05), rounds=100) < 0.1
    True
    """
    if isinstance(server_optimizer, str):
        checks.one_of("server_optimizer", server_optimizer, WITHOUT_RATE)
        if server_step_size is None:
            raise ValueError(f"server_optimizer = {server_optimizer!r} is a name without a rate; give server_step_size")
        server = NamedServer(server_step_size, server_optimizer)
    elif server_step_size is not None:
        raise ValueError(
            f"server_step_size = {server_step_size} goes with an optimizer that is given by its name, such as 'adam'; "
            "give the rate to the optimizer itself, such as optax.adam(0.01)"
        )
    else:
        server = OptaxServer(server_optimizer)
    return FedOpt(Steps(local_rate, None, local_steps, optimizer), server, cohort_size, weighted, name="fedopt")


# the server's step size is on the scale of x itself: the length of Adam's steps is their step size
adaptive_grid = grid(
    server_step_size=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3), local_rate=over_smoothness(0.1, 0.3), local_steps=(5,)
)

REDDI = "Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan 2021, arXiv:2003.00295"

for _name, _build, _step_size in (
    ("FedAdam", fedadam, 0.03),
    ("FedYogi", fedyogi, 0.03),
    ("FedAdagrad", fedadagrad, 0.1),
):
    register(_name.lower(), Entry(
        name=_name, build=_build, oracle="m steps", exact=False, grid=adaptive_grid, reference=REDDI,
        example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3, "server_step_size": _step_size,
                 "adaptivity": 0.03},
    ))  # fmt: skip

register("fedopt", Entry(
    name="FedOpt, Optax", build=fedopt, oracle="m steps", exact=False,
    example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3, "server_optimizer": "adam",
             "server_step_size": 0.01},
    grid=with_fixed(adaptive_grid, server_optimizer="adam"),
    reference=REDDI,
))  # fmt: skip

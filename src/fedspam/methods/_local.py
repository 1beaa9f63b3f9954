"""What clients do between two exchanges: plain gradient steps, or a prox."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Integer, Key

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import Oracle
from fedspam.federation import on_client
from fedspam.methods.schedules import Schedule, ScheduleLike, schedule, step_size_schedule
from fedspam.solvers import Answer, GradientDescent, LocalSolver, Never, Surrogate, certified


def descend(
    oracle: Oracle,
    key: Key[Array, ""],
    x: Params,
    *,
    steps: int | Integer[Array, ""],
    local_rate: float | Scalar,
    shift: Params | None = None,
    pull: float | Scalar | None = None,
) -> Params:
    r"""Plain steps from x, each on a minibatch of its own, with the shift s and the pull :math:`\lambda`:

    .. math:: y \leftarrow y - \eta\,(\nabla f_i(y; \zeta_j) + s + \lambda\,(y - x))
    """
    gradient = jax.grad(oracle)

    def step(j: Any, y: Params) -> Params:
        direction = gradient(y, jax.random.fold_in(key, j))
        if shift is not None:
            direction = trees.add(direction, shift)
        if pull is not None:
            direction = trees.axpy(pull, trees.subtract(y, x), direction)
        return trees.axpy(-local_rate, direction, y)

    return lax.fori_loop(0, steps, step, x)


@on_client(affine=True)
def gradient(self: Any, oracle: Oracle, key: Key[Array, ""], *, x: Params) -> Params:
    """The gradient of the client's whole loss, also where it draws minibatches."""
    return jax.grad(oracle)(x, None)


class Trained(NamedTuple):
    """The client's model after local training, and its certificate, or () where there is none."""

    y: Params
    certificate: Any = ()


class TrainingInfo(NamedTuple):
    """What a round of training on the clients records."""

    certificate: Any
    gradients: Any  # client gradients evaluated in this round


class RateInfo(NamedTuple):
    """What a round of local steps records."""

    local_rate: Any
    gradients: Any  # client gradients evaluated in this round


class StepsInfo(NamedTuple):
    """What a round of a random number of local steps records."""

    steps: Any
    gradients: Any  # client gradients evaluated in this round


class PointState(NamedTuple):
    """What a server keeps that has no estimate of its own."""

    x: Params
    k: Any  # rounds that counted


class Training(Protocol):
    """How a client trains on its own loss, perhaps shifted by a linear term and held near x."""

    def numbers(self, k: Integer[Array, ""]) -> dict[str, Any]:
        """The numbers of round k, by the names under which they are sent."""
        ...

    def __call__(
        self, oracle: Oracle, key: Key[Array, ""], x: Params, shift: Params | None, numbers: Mapping[str, Any]
    ) -> Trained: ...

    def gradients(self, certificate: Any) -> Any:
        """Gradients per client."""
        ...


@struct
class Steps:
    """A number of plain SGD steps, each on a minibatch of its own, without a certificate and without a fallback."""

    local_rate: Schedule
    step_size: Schedule | None = None  # gamma of a proximal term |y - x|^2 / (2 gamma)
    steps: int = static(default=1)

    def __post_init__(self) -> None:
        checks.whole("local_steps", self.steps, 1)

    def numbers(self, k: Integer[Array, ""]) -> dict[str, Any]:
        local = {"local_rate": self.local_rate(k)}
        return local if self.step_size is None else {**local, "step_size": self.step_size(k)}

    def __call__(
        self, oracle: Oracle, key: Key[Array, ""], x: Params, shift: Params | None, numbers: Mapping[str, Any]
    ) -> Trained:
        eta, pull = numbers["local_rate"], None if self.step_size is None else 1 / numbers["step_size"]
        return Trained(descend(oracle, key, x, steps=self.steps, local_rate=eta, shift=shift, pull=pull))

    def gradients(self, certificate: Any) -> Any:
        return self.steps


@struct
class Prox:
    r"""The prox of the client's own loss, answered by a local solver with its certificate.

    .. math:: \min_y f_i(y) + \langle s, y\rangle + \frac{1}{2\gamma}\|y - x\|^2
    """

    step_size: Schedule
    solver: LocalSolver

    def numbers(self, k: Integer[Array, ""]) -> dict[str, Any]:
        return {"step_size": self.step_size(k)}

    def __call__(
        self, oracle: Oracle, key: Key[Array, ""], x: Params, shift: Params | None, numbers: Mapping[str, Any]
    ) -> Trained:
        # the solver's phi with g = grad f(x) + s
        g = jax.grad(oracle)(x, key)
        g = g if shift is None else trees.add(g, shift)
        return Trained(*self.solver(oracle, key, x=x, g=g, step_size=numbers["step_size"]))

    def gradients(self, certificate: Any) -> Any:
        return certificate.gradients


def training(
    step_size: ScheduleLike, local_steps: int | None, local_rate: ScheduleLike | None, solver: LocalSolver | None
) -> Training:
    """The training of a method with a prox: by a solver, or by a number of steps of a given rate."""
    if solver is not None:
        if local_steps is not None or local_rate is not None:
            raise ValueError(
                "a solver is given together with local_steps or local_rate, but a solver makes its own steps; leave "
                "out local_steps and local_rate, or the solver"
            )
        return Prox(step_size_schedule(step_size), solver)
    if local_steps is None or local_rate is None:
        raise ValueError(
            f"local_steps = {local_steps!r} and local_rate = {local_rate!r}: give both, or a solver such as LBFGS() "
            "instead of them"
        )
    return Steps(positive_schedule(local_rate, "local_rate"), step_size_schedule(step_size), local_steps)


@struct
class Sarah:
    r"""Recursive steps. Each evaluates a minibatch of its own at the last two points:

    .. math:: w_{j+1} = w_j - \eta v_j, \qquad v_{j+1} = v_j + \nabla f_i(w_{j+1}; \zeta_j) - \nabla f_i(w_j; \zeta_j),
        \qquad w_0 = x,\ v_0 = g

    With whole gradients the sum telescopes to :math:`v_j = \nabla f_i(w_j) - \nabla f_i(x) + g`: those are the steps of
    `fedspam.solvers.GradientDescent`. A finite :math:`\gamma` adds :math:`(w_j - x)/\gamma` to the direction.

    Nguyen, Liu, Scheinberg, Takáč: SARAH, 2017, arXiv:1703.00102.
    """

    local_rate: float | Scalar
    steps: int = static()

    def __post_init__(self) -> None:
        checks.whole("steps", self.steps, 1)
        checks.positive("local_rate", self.local_rate)

    __call__ = certified(Never(), safeguard=False)

    def _solve(self, phi: Surrogate) -> Answer:
        gradient = jax.grad(phi.oracle)

        def move(w: Params, v: Params) -> Params:
            slope = trees.add(v, trees.divide(trees.subtract(w, phi.x), phi.step_size))
            return trees.axpy(-self.local_rate, slope, w)

        def step(j: Any, now: tuple[Params, Params]) -> tuple[Params, Params]:
            w, v = now
            moved, own_key = move(w, v), jax.random.fold_in(phi.key, j)
            return moved, trees.add(v, trees.subtract(gradient(moved, own_key), gradient(w, own_key)))

        w, v = lax.fori_loop(0, self.steps - 1, step, (phi.x, phi.g))
        return Answer(phi.at(move(w, v)), self.steps, 2 * self.steps - 1)


def surrogate_steps(steps: int, local_rate: float, minibatch: bool, *, recursive: bool) -> LocalSolver:
    r"""m steps along :math:`D(y) = \nabla f_i(y) - \nabla f_i(x) + g`, the gradient of phi at :math:`\gamma = \infty`.

    The anchored and the recursive form are the same with whole gradients, and differ with minibatches.
    """
    checks.whole("local_steps", steps, 1)
    if minibatch and recursive:
        return Sarah(local_rate, steps=steps)
    return GradientDescent(steps=steps, local_rate=local_rate, minibatch=minibatch, safeguard=False)


def until_heads(key: Key[Array, ""], probability: float | Scalar) -> Integer[Array, ""]:
    """The number of local steps before a coin shows heads, drawn at once, so that a round is one communication."""
    return jax.random.geometric(key, jnp.asarray(probability), dtype=jnp.int32)


def positive_schedule(value: ScheduleLike, name: str) -> Schedule:
    checks.positive(name, value)
    return schedule(value, name)

"""What clients do between two exchanges: plain gradient steps, or a prox."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Integer

from fedspam._internal import checks, prng, trees
from fedspam._internal.trees import Key, Params, Scalar, count, dynamic, positive, static, struct
from fedspam.clients import BatchOracle, Oracle, RowsOracle, SteppingOracle, TrainedOracle, joined, parted
from fedspam.federation import on_client
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule, step_size_schedule
from fedspam.solvers import Answer, GradientDescent, LocalSolver, Never, Surrogate, certified

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True)
class Epochs:
    """Passes over a client's rows in place of a number of local steps: ``fedavg(10, Epochs(5), 0.01)``.

    Each pass shuffles the rows anew and goes through them in minibatches, of which the last may be smaller. So a client
    with more rows takes more steps. The clients must have rows of their own, as `fedspam.Ragged` has.

    Arguments:
        passes: over the rows, per round; 0.5 takes half of the minibatches of one pass, rounded up.
        stragglers: the probability that a client is slow in a round and stops after fewer passes: a random number of
            them, from 1 to one less than `passes`.
    """

    passes: float
    stragglers: float = 0.0

    def __post_init__(self) -> None:
        checks.between("passes", self.passes, 0.001, 1e6)
        checks.between("stragglers", self.stragglers, 0, 1)
        if self.stragglers and (self.passes < 2 or self.passes % 1):
            raise ValueError(
                f"stragglers = {self.stragglers} stop after fewer whole passes, but there is only {self.passes:g}; "
                "give more passes, a whole number of them"
            )


@dataclass(frozen=True)
class OwnTraining:
    """Whatever the ``train`` function of a Flower app does, in place of a number of local steps.

    `fedspam.flower.own_training` makes methods with it. They run over Flower alone: no simulation knows that function.

    Arguments:
        examples_key: the metric of a reply that holds the number of examples.
        steps_key: the metric that holds the number of steps; None takes the number of examples in its place, which is
            in proportion to the steps if all clients pass over their rows as often, in minibatches of one size.
    """

    examples_key: str = "num-examples"
    steps_key: str | None = None


LocalSteps: TypeAlias = int | Epochs
Numbers: TypeAlias = Mapping[str, Any]  # of a round, by the names under which they are sent
ClientOptimizer: TypeAlias = "optax.GradientTransformation | None"


def check_local_steps(steps: LocalSteps | OwnTraining, name: str = "local_steps") -> Any:
    if not isinstance(steps, Epochs | OwnTraining):
        checks.whole(name, steps, 1, "or give Epochs(1) to pass over a client's rows")
    return steps


def count_steps(oracle: Oracle, steps: Any, key: Key) -> Any:
    """How many steps this client takes in the round of this key."""
    if isinstance(steps, OwnTraining):
        return self_trained(oracle).steps
    if not isinstance(steps, Epochs):
        return steps
    if not isinstance(oracle, RowsOracle):
        raise ValueError(
            f"local_steps = {steps}, but these clients have no rows to pass over; give a number of steps, or clients "
            "with rows: fedspam.Ragged.of(rows, loss, batch=32)"
        )
    if not steps.stragglers:
        share = Fraction(steps.passes).limit_denominator(1000)  # whole numbers, so that 0.1 of 10 is 1
        count = share.numerator * oracle.minibatches
        return count if share.denominator == 1 else (count + share.denominator - 1) // share.denominator
    slow, fewer = jax.random.split(prng.fold_name(key, "straggler"))
    passes = jnp.where(
        jax.random.bernoulli(slow, steps.stragglers),
        jax.random.randint(fewer, (), 1, int(steps.passes)),
        int(steps.passes),
    )
    return passes * oracle.minibatches


def self_trained(oracle: Oracle) -> TrainedOracle:
    if not isinstance(oracle, TrainedOracle):
        raise ValueError(
            "the method has no local steps of its own: it is for the train function of a Flower app; give local_steps "
            "to simulate it, or to run it over fedspam.flower.client_app"
        )
    return oracle


def descend(
    oracle: Oracle, key: Key, x: Params,
    *, steps: LocalSteps | OwnTraining | Integer[Array, ""], local_rate: float | Scalar, shift: Params | None = None,
    pull: float | Scalar | None = None, anchor: Params | None = None, optimizer: ClientOptimizer = None,
) -> Params:  # fmt: skip
    r"""Plain steps from x, each on a minibatch of its own, with the shift s and the pull :math:`\lambda`:

    .. math:: y \leftarrow y - \eta\,\big(T(\nabla f_i(y; \zeta_j) + \lambda\,(y - a)) + s\big)

    The anchor a is x, unless another one is given. T is the identity, unless an Optax transformation is given, or the
    client has an optimizer of its own.
    """
    if isinstance(steps, OwnTraining):
        if shift is not None or anchor is not None:
            raise ValueError("its clients correct each of their steps, which the train function of an app does not")
        return self_trained(oracle).trained(x)
    anchor, count = x if anchor is None else anchor, count_steps(oracle, steps, key)
    if isinstance(oracle, SteppingOracle) and oracle.has_optimizer:
        if optimizer is not None:
            raise ValueError("both the method and the client have an optimizer; leave one of them out")
        in_passes = isinstance(steps, Epochs)
        return oracle.descended(x, key, count, local_rate, shift=shift, pull=pull, anchor=anchor, in_passes=in_passes)

    moving = oracle if isinstance(oracle, BatchOracle) and parted(x)[1] is not None else None

    def slope(j: Any, y: Params) -> tuple[Params, Params]:
        """The direction of step j, and y with the running statistics that the step has moved, if there are any."""
        own_key, number, after = jax.random.fold_in(key, j), None, y
        if isinstance(steps, Epochs) and isinstance(oracle, RowsOracle):  # `count_steps` has refused others
            own_key, number = jax.random.fold_in(key, j // oracle.minibatches), j % oracle.minibatches
        if moving is not None:
            direction, after = jax.grad(moving.moved, has_aux=True)(y, own_key, number)
        elif number is not None and isinstance(oracle, RowsOracle):
            direction = jax.grad(oracle.minibatch)(y, own_key, number)
        else:
            direction = jax.grad(oracle)(y, own_key)
        if shift is not None and optimizer is None:
            direction = trees.add(direction, shift)
        if pull is not None:
            direction = trees.axpy(pull, trees.subtract(y, anchor), direction)
        return direction, after

    def step(j: Any, now: tuple[Params, Any]) -> tuple[Params, Any]:
        y, memory = now
        update, after = slope(j, y)
        if optimizer is not None:
            update, memory = optimizer.update(update, memory, y)
            update = update if shift is None else trees.add(update, shift)
        new = trees.axpy(-local_rate, update, y)
        return (joined(parted(new)[0], parted(after)[1]) if moving is not None else new), memory

    return lax.fori_loop(0, count, step, (x, () if optimizer is None else optimizer.init(x)))[0]


def client_optimizer(optimizer: ClientOptimizer, name: str = "optimizer") -> ClientOptimizer:
    """The optimizer, checked: it must leave the sign and the rate of a step to `local_rate`."""
    if optimizer is None:
        return None
    import optax  # here, since its import is slow and only few methods need it

    if not isinstance(optimizer, optax.GradientTransformation):
        raise ValueError(f"{name} = {optimizer!r} must be an Optax transformation, such as optax.trace(0.9)")
    one = jnp.ones(2)
    with jax.ensure_compile_time_eval():
        update, _ = optimizer.update(one, optimizer.init(one), jnp.zeros(2))
        backward = bool(jnp.all(jnp.asarray(update) < 0))
    if backward:
        raise ValueError(
            "the optimizer turns a gradient of 1 into a negative step, so it has a rate of its own; give the part "
            "without the rate, such as optax.trace(0.9) instead of optax.sgd(0.1, 0.9), and the rate as local_rate"
        )
    return optimizer


@on_client(affine=True)
def gradient(self: Any, oracle: Oracle, key: Key, *, x: Params) -> Params:
    """The gradient of the client's whole loss, also where it draws minibatches."""
    return jax.grad(oracle)(x, None)


class Trained(NamedTuple):
    """The client's model after local training, and its certificate, or () where there is none."""

    y: Params
    certificate: Any = ()


class Update(NamedTuple):
    """What a client sends after training: the move of its model, and what else the server asks for."""

    moved: Params
    weight: Any = ()  # where clients count by their examples; the move is multiplied by it
    square: Any = ()  # the squared length of the move
    certificate: Any = ()


class Training(Protocol):
    """How a client trains on its own loss, perhaps shifted by a linear term and held near x."""

    def numbers(self, k: Integer[Array, ""]) -> dict[str, Any]:
        """The numbers of round k."""
        ...

    def __call__(self, oracle: Oracle, key: Key, x: Params, shift: Params | None, numbers: Numbers) -> Trained: ...

    def gradients(self, certificate: Any) -> Any:
        """Gradients per client."""
        ...


class StepCount(NamedTuple):
    """How many steps a client took, where clients take different numbers of them."""

    steps: Any


@struct
class Steps:
    """A number of SGD steps, each on a minibatch of its own, or passes over the client's rows; without a certificate
    and without a fallback."""

    local_rate: Schedule = dynamic(converter=positive_schedule)
    step_size: Schedule | None = None  # gamma of a proximal term |y - x|^2 / (2 gamma)
    local_steps: LocalSteps | OwnTraining = static(converter=check_local_steps, default=1)
    optimizer: Any = static(converter=client_optimizer, default=None)  # an Optax transformation of the direction

    def __post_init__(self) -> None:
        if isinstance(self.local_steps, OwnTraining) and self.optimizer is not None:
            raise ValueError("the clients train by code of their own; leave optimizer out, and choose it there")

    def numbers(self, k: Integer[Array, ""]) -> dict[str, Any]:
        local = {} if isinstance(self.local_steps, OwnTraining) else {"local_rate": self.local_rate(k)}
        return local if self.step_size is None else {**local, "step_size": self.step_size(k)}

    def __call__(self, oracle: Oracle, key: Key, x: Params, shift: Params | None, numbers: Numbers) -> Trained:
        steps = self.local_steps
        if isinstance(steps, OwnTraining):
            return Trained(descend(oracle, key, x, steps=steps, local_rate=1.0, shift=shift))
        eta, pull = numbers["local_rate"], None if self.step_size is None else 1 / numbers["step_size"]
        y = descend(oracle, key, x, steps=steps, local_rate=eta, shift=shift, pull=pull, optimizer=self.optimizer)
        if not isinstance(steps, Epochs):
            return Trained(y)
        return Trained(y, StepCount(jnp.asarray(count_steps(oracle, steps, key), jax.tree.leaves(x)[0].dtype)))

    def gradients(self, certificate: Any) -> Any:
        if isinstance(self.local_steps, OwnTraining):
            return jnp.nan  # unknown
        return certificate.steps if isinstance(self.local_steps, Epochs) else self.local_steps


@struct
class Prox:
    r"""The prox of the client's own loss, answered by a local solver with its certificate.

    .. math:: \min_y f_i(y) + \langle s, y\rangle + \frac{1}{2\gamma}\|y - x\|^2
    """

    step_size: Schedule = dynamic(converter=step_size_schedule)
    solver: LocalSolver

    def numbers(self, k: Integer[Array, ""]) -> dict[str, Any]:
        return {"step_size": self.step_size(k)}

    def __call__(self, oracle: Oracle, key: Key, x: Params, shift: Params | None, numbers: Numbers) -> Trained:
        # the solver's phi with g = grad f(x) + s
        g = jax.grad(oracle)(x, key)
        g = g if shift is None else trees.add(g, shift)
        return Trained(*self.solver(oracle, key, x=x, g=g, step_size=numbers["step_size"]))

    def gradients(self, certificate: Any) -> Any:
        return certificate.gradients


def training(
    step_size: ScheduleLike, local_steps: LocalSteps | None, local_rate: ScheduleLike | None,
    solver: LocalSolver | None, optimizer: ClientOptimizer = None,
) -> Training:  # fmt: skip
    """The training of a method with a prox: by a solver, or by a number of steps of a given rate."""
    if solver is not None:
        if local_steps is not None or local_rate is not None or optimizer is not None:
            raise ValueError(
                "a solver is given together with local_steps, local_rate or optimizer, but it makes its own steps; "
                "leave out local_steps, local_rate and optimizer, or the solver"
            )
        return Prox(step_size, solver)
    if local_steps is None or local_rate is None:
        raise ValueError(
            f"local_steps = {local_steps!r} and local_rate = {local_rate!r}: give both, or a solver such as LBFGS() "
            "instead of them"
        )
    return Steps(local_rate, step_size_schedule(step_size), local_steps, optimizer)


@struct
class Sarah:
    r"""Recursive steps. Each evaluates a minibatch of its own at the last two points:

    .. math:: w_{j+1} = w_j - \eta v_j, \qquad v_{j+1} = v_j + \nabla f_i(w_{j+1}; \zeta_j) - \nabla f_i(w_j; \zeta_j),
        \qquad w_0 = x,\ v_0 = g

    With whole gradients the sum telescopes to :math:`v_j = \nabla f_i(w_j) - \nabla f_i(x) + g`: those are the steps of
    `fedspam.solvers.GradientDescent`. A finite :math:`\gamma` adds :math:`(w_j - x)/\gamma` to the direction.

    Nguyen, Liu, Scheinberg, Takáč: SARAH, 2017, arXiv:1703.00102.
    """

    local_rate: float | Scalar = positive()
    steps: int = count()

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


def until_heads(key: Key, probability: float | Scalar) -> Integer[Array, ""]:
    """The number of local steps before a coin shows heads, drawn at once, so that a round is one communication."""
    return jax.random.geometric(key, jnp.asarray(probability), dtype=jnp.int32)

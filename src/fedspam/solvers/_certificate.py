r"""The client's subproblem, and the certificate of an answer to it.

.. math:: \phi(y) = f_\xi(y) + \langle g - \nabla f_\xi(x), y - x\rangle + \frac{1}{2\gamma}\|y - x\|^2

An approximate prox (the paper's a-prox) must satisfy :math:`\phi(y) \le \phi(x)` and
:math:`\|\nabla\phi(y)\| \le \epsilon`. Whatever solver is used, these two numbers are computed here, at the point that
is returned.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, Scalar, number, positive, static, struct
from fedspam.clients import Oracle

RELATIVE = math.sqrt(3) / 4
MOST_HALVINGS = 40


class Certificate(NamedTuple):
    """What is known about an approximate prox. All are floats, so that certificates can be averaged."""

    report = True  # only recorded, never part of the server's state: see `fedspam.federation.sound`

    decrease: Scalar  # phi(y) - phi(x), never positive: a solver returns its best point, x included
    stationarity: Scalar  # |grad phi(y)|
    distance: Scalar  # |y - x|
    step_size: Scalar  # the gamma that was used: the given one, possibly halved several times
    steps: Scalar  # iterations of the solver
    gradients: Scalar  # gradients of the client's loss evaluated, including the one at x
    certified: Scalar  # 1 if the answer passes the solver's own test, else 0


class LocalSolver(Protocol):
    """Anything that answers a prox: new parameters and their certificate."""

    def __call__(
        self, oracle: Oracle, key: Key, *, x: Params, g: Params, step_size: Any
    ) -> tuple[Params, Certificate]: ...


class Stop(Protocol):
    """When the gradient of phi is small enough."""

    def bound(self, distance: Scalar, step_size: Any) -> Any: ...


@struct
class Relative:
    r"""Stop at :math:`\|\nabla\phi(y)\| \le \theta\|y - x\|/\gamma`.

    With :math:`\theta \le \sqrt3/4` the inexact theorem holds without its :math:`\epsilon` floor, so there is no
    tolerance to choose.
    """

    theta: float | Scalar = number(0, 1, open_low=True, default=RELATIVE)

    def bound(self, distance: Scalar, step_size: Any) -> Any:
        return jnp.asarray(self.theta, distance.dtype) * distance / step_size


@struct
class Absolute:
    r"""Stop at :math:`\|\nabla\phi(y)\| \le \epsilon`, as the paper's definition of a-prox has it."""

    epsilon: float | Scalar = positive()

    def bound(self, distance: Scalar, step_size: Any) -> Any:
        return jnp.asarray(self.epsilon, distance.dtype)


@struct
class Never:
    """Take all steps. The certificate still applies the relative rule."""

    def bound(self, distance: Scalar, step_size: Any) -> Any:
        return -jnp.ones_like(distance)


class Point(NamedTuple):
    """A point where the client has evaluated its loss and gradient, which costs one gradient."""

    y: Params
    value: Scalar  # f(y), not phi(y)
    slope: Params  # grad phi(y)


@struct
class Surrogate:
    """phi around x, as a solver sees it."""

    oracle: Oracle
    key: Key
    x: Params
    g: Params
    value_at_x: Scalar  # f(x)
    gradient_at_x: Params  # grad f(x)
    step_size: Scalar

    @property
    def start(self) -> Point:
        """x, where the gradient of phi is g and costs nothing."""
        return Point(self.x, self.value_at_x, self.g)

    def at(self, y: Params) -> Point:
        value, gradient = jax.value_and_grad(self.oracle)(y, self.key)
        return Point(y, value, self._correct(gradient, self.gradient_at_x, y))

    def __call__(self, y: Params) -> Scalar:
        """phi(y) - phi(x), differentiable. It has the rounding error of f; use `rise` for small steps."""
        step = trees.subtract(y, self.x)
        tilt = trees.dot(trees.subtract(self.g, self.gradient_at_x), step)
        return self.oracle(y, self.key) - self.value_at_x + tilt + trees.squared_norm(step) / (2 * self.step_size)

    def gradient(self, y: Params) -> Params:
        return self._correct(jax.grad(self.oracle)(y, self.key), self.gradient_at_x, y)

    def minibatch_gradient(self, y: Params, key: Key) -> Params:
        """An estimate of the gradient from one minibatch, the same at y and x, so that it is exact at y = x.

        It costs two gradients.
        """
        gradient = jax.grad(self.oracle)
        return self._correct(gradient(y, key), gradient(self.x, key), y)

    def rise(self, point: Point) -> Scalar:
        """phi(point) - phi(x)."""
        return self.change(self.start, point)

    def change(self, a: Point, b: Point) -> Scalar:
        """phi(b) - phi(a), without the cancellation of two nearly equal losses.

        Where rounding of the losses could hide the change, it comes from the gradients instead, by the trapezoid rule.
        That is exact for quadratics, and its error for such small steps is far below the rounding, which also bounds
        it. The rounding of the losses is not known; eps^(2/3) of their size leaves room for cancellation inside them.
        """
        step = trees.subtract(b.y, a.y)
        # phi without f is quadratic: its change is its gradient in the middle times the step
        pull = jax.tree.map(
            lambda g, there, a, b, x: g - there + (a - x + b - x) / jnp.asarray(2 * self.step_size, x.dtype),
            self.g, self.gradient_at_x, a.y, b.y, self.x,
        )  # fmt: skip
        change = b.value - a.value + trees.dot(pull, step)
        size = jnp.abs(a.value) + jnp.abs(b.value) + trees.dot(jax.tree.map(jnp.abs, pull), jax.tree.map(jnp.abs, step))
        doubt = jnp.finfo(change.dtype).eps ** (2 / 3) * size
        trapezoid = 0.5 * trees.dot(trees.add(a.slope, b.slope), step)
        hidden = jnp.abs(change) <= doubt
        return jnp.where(hidden, jnp.clip(trapezoid, change - doubt, change + doubt), change)

    def settled(self, point: Point, stop: Stop) -> Bool[Array, ""]:
        """Whether the stopping rule holds here, or no further progress is possible at this gamma."""
        return (trees.norm(point.slope) <= stop.bound(self.distance(point), self.step_size)) | self.concave(point)

    def distance(self, point: Point) -> Scalar:
        return trees.norm(trees.subtract(point.y, self.x))

    def concave(self, point: Point) -> Bool[Array, ""]:
        r"""Whether this point shows that the client is not convex on the scale 1/gamma.

        That is: the step is longer than :math:`1.5\gamma\|g\|`, and the curvature of f along it is below
        :math:`-1/(3\gamma)`. Where phi is stationary the second follows from the first. Elsewhere it excludes convex
        clients, which move by at most :math:`\gamma\|g\|` to the minimizer, but by up to twice that to a point that is
        merely lower than x.
        """
        step = trees.subtract(point.y, self.x)
        length = trees.squared_norm(step)
        far = jnp.sqrt(length) > 1.5 * self.step_size * trees.norm(self.g)
        bent = trees.dot(trees.subtract(point.slope, self.g), step) < length / (1.5 * self.step_size)
        return far & bent

    def _correct(self, gradient: Params, at_x: Params, y: Params) -> Params:
        def correct(here: Array, there: Array, g: Array, y: Array, x: Array) -> Array:
            return here - there + g + (y - x) / jnp.asarray(self.step_size, y.dtype)

        return jax.tree.map(correct, gradient, at_x, self.g, y, self.x)


@struct
class Vectorized:
    """A client whose parameters are one vector."""

    oracle: Oracle
    restore: Callable[[Array], Params] = static()

    @property
    def weight(self) -> Any:
        return self.oracle.weight

    def __call__(self, params: Params, key: Key | None = None) -> Scalar:
        return self.oracle(self.restore(params), key)


class Answer(NamedTuple):
    """What a solver's loop returns: a point it has evaluated, so that the certificate needs no further gradient."""

    point: Point
    steps: Any
    gradients: Any  # evaluated by the loop, including the one at the point


def certify(
    solve: Callable[[Surrogate], Answer], oracle: Oracle, key: Key,
    *, x: Params, g: Params, step_size: Any, stop: Stop, guard: bool = True, safeguard: bool = True,
    vectorize: bool = True,
) -> tuple[Params, Certificate]:  # fmt: skip
    r"""Run a solver on phi, certify its answer, and fall back where it is not good.

    Arguments:
        solve: phi -> answer.
        stop: the rule that certifies the answer; for `Never` it is `Relative`.
        guard: whether to halve :math:`\gamma` and solve again where the answer is not finite, or too far from x for a
            client that is convex at the scale :math:`1/\gamma` (see `Surrogate.concave`).
        safeguard: whether to replace an answer worse than x by x itself.
        vectorize: whether the solver sees all parameters as one vector. It makes the compiled program smaller, most of
            all where there are many arrays.
    """
    if vectorize:
        x, restore = trees.vectorize(x)
        g, _ = trees.vectorize(g)
        oracle = Vectorized(oracle, restore=restore)
    else:
        restore = lambda y: y
    value_at_x, gradient_at_x = jax.value_and_grad(oracle)(x, key)
    dtype = value_at_x.dtype
    test = Relative() if isinstance(stop, Never) else stop

    def attempt(step_size: Scalar) -> tuple[Params, Certificate, Bool[Array, ""]]:
        phi = Surrogate(oracle, key, x, g, value_at_x, gradient_at_x, step_size)
        point, steps, gradients = solve(phi)
        decrease, stationarity, distance = phi.rise(point), trees.norm(point.slope), phi.distance(point)
        certified = (decrease <= 0) & (stationarity <= test.bound(distance, step_size))
        sound = jnp.isfinite(decrease) & jnp.isfinite(stationarity) & ~phi.concave(point)
        numbers = (decrease, stationarity, distance, step_size, steps, gradients, certified)
        return point.y, Certificate(*(jnp.asarray(number, dtype) for number in numbers)), sound

    step_size = jnp.asarray(step_size, dtype)
    if guard and safeguard:
        # where x itself has no finite loss, direction and gradient, no gamma helps
        hope = jnp.isfinite(value_at_x) & jnp.isfinite(trees.norm(g)) & jnp.isfinite(trees.norm(gradient_at_x))

        def unsound(carry: Any) -> Any:
            _, old, sound, tries = carry
            return hope & ~sound & (tries <= MOST_HALVINGS) & ((tries == 0) | jnp.isfinite(old.step_size))

        def again(carry: Any) -> Any:
            _, old, _, tries = carry
            y, new, sound = attempt(jnp.where(tries == 0, old.step_size, old.step_size / 2))
            spent = new._replace(steps=old.steps + new.steps, gradients=old.gradients + new.gradients)
            return y, spent, sound, tries + 1

        # the first attempt is inside the loop, so that the solver is compiled once
        zero = jnp.zeros((), dtype)
        nothing = Certificate(zero, zero, zero, step_size, zero, zero, zero)
        y, certificate, sound, _ = lax.while_loop(unsound, again, (x, nothing, jnp.array(False), jnp.int32(0)))
        good = sound & (certificate.decrease <= 0)
    else:
        y, certificate, _ = attempt(step_size)
        good = (certificate.decrease <= 0) & jnp.isfinite(certificate.stationarity)
    certificate = certificate._replace(gradients=certificate.gradients + 1)
    if safeguard:
        # otherwise x, which has no decrease and the slope g
        zero, length = jnp.zeros((), dtype), trees.norm(g).astype(dtype)
        passes = (length <= test.bound(zero, certificate.step_size)).astype(dtype)
        stay = certificate._replace(decrease=zero, stationarity=length, distance=zero, certified=passes)
        y, certificate = trees.where(good, y, x), trees.where(good, certificate, stay)
    return restore(y), certificate


def certified(stop: Stop | None = None, **options: bool) -> Any:
    """`LocalSolver.__call__` of a solver with a loop `_solve`, certified by `stop` or the solver's own rule `stop`."""

    def call(self: Any, oracle: Oracle, key: Key, **around: Any) -> tuple[Params, Certificate]:
        return certify(self._solve, oracle, key, stop=self.stop if stop is None else stop, **around, **options)

    return call

"""Gradient methods for the prox: a fixed number of steps, or until the certificate holds."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Integer

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, Scalar, count, positive, static, struct
from fedspam.clients import Oracle, SmoothOracle
from fedspam.solvers._certificate import (
    Absolute,
    Answer,
    Certificate,
    Never,
    Point,
    Relative,
    Stop,
    Surrogate,
    Vectorized,
    certified,
    certify,
)
from fedspam.solvers._search import Search, all_steps, first_length, search


def smooth_rate(phi: Surrogate, given: Any) -> Any:
    """1/(L + 1/gamma), where L is the given smoothness constant, or the client's own attribute `smoothness`."""
    oracle = phi.oracle.oracle if isinstance(phi.oracle, Vectorized) else phi.oracle
    if given is not None:
        smoothness = given
    elif isinstance(oracle, SmoothOracle):
        smoothness = oracle.smoothness
    else:
        raise ValueError(
            f"{type(oracle).__name__} has no smoothness constant; give the solver smoothness=L or a local_rate, "
            "or use a solver that needs neither: Backtracking(steps=10), AdaptiveDescent(steps=10), LBFGS()"
        )
    return 1 / (smoothness + 1 / phi.step_size)


@struct
class GradientDescent:
    r"""Gradient steps on phi, the "m local steps" of the paper's figure:

    .. math:: y \leftarrow y - \eta\,\nabla\phi(y), \qquad \eta = 1/(L_\xi + 1/\gamma)

    Arguments:
        local_rate: :math:`\eta`; None for :math:`1/(L_\xi + 1/\gamma)`.
        smoothness: :math:`L_\xi`, where the client has none of its own.
        minibatch: whether a step sees one minibatch, the same at y and x, instead of the client's whole loss.
        safeguard: whether an answer worse than x is replaced by x, and :math:`\gamma` halved where phi is not convex.
            Methods with local steps use ``safeguard=False`` and :math:`\gamma = \infty`.

    >>> import jax, jax.numpy as jnp
    >>> from fedspam.clients import DataOracle
    >>> client = DataOracle(jnp.ones(2), loss=lambda x, center: 0.5 * jnp.sum((x - center) ** 2))
    >>> solver = GradientDescent(steps=2, local_rate=0.5, safeguard=False)
    >>> y, certificate = solver(client, jax.random.key(0), x=jnp.zeros(2), g=jnp.ones(2), step_size=jnp.inf)
    >>> y.tolist(), float(certificate.gradients)
    ([-0.75, -0.75], 3.0)
    """

    steps: int = count()
    local_rate: float | Scalar | None = positive(default=None)
    smoothness: float | Scalar | None = positive(default=None)
    stop: Stop = Never()
    minibatch: bool = static(default=False)
    safeguard: bool = static(default=True)

    def __post_init__(self) -> None:
        if self.minibatch and isinstance(self.stop, Relative | Absolute):
            raise ValueError(
                f"stop = {self.stop!r} needs the gradient of the whole loss, but minibatch=True never evaluates it; "
                "use stop=Never()"
            )

    def __call__(self, oracle: Oracle, key: Key, **around: Any) -> tuple[Params, Certificate]:
        return certify(self._solve, oracle, key, stop=self.stop, safeguard=self.safeguard, **around)

    def _solve(self, phi: Surrogate) -> Answer:
        local = smooth_rate(phi, self.smoothness) if self.local_rate is None else self.local_rate
        if self.minibatch or isinstance(self.stop, Never):
            move = lambda y, slope, _: (trees.axpy(-local, slope, y), ())
            return all_steps(phi, self.steps, move, (), minibatch=self.minibatch)

        def step(now: _Descent) -> _Descent:
            new = phi.at(trees.axpy(-local, now.best.slope, now.best.y))
            return _Descent(new, _same(new.y, now.best.y), now.trials + 1)

        begin = _Descent(phi.start, jnp.array(False), jnp.zeros((), jnp.int32))
        return _until_settled(phi, self, step, begin)


class _Descent(NamedTuple):
    best: Point
    still: Bool[Array, ""]
    trials: Integer[Array, ""]


def _until_settled(phi: Surrogate, solver: Any, step: Callable[[Any], Any], begin: Any) -> Answer:
    """Step until `best` passes the stopping rule, nothing moves any more, or the trials are used up."""
    unfinished = lambda now: (now.trials < solver.steps) & ~now.still & ~phi.settled(now.best, solver.stop)
    end = lax.while_loop(unfinished, step, begin)
    return Answer(end.best, end.trials, end.trials)


def _same(a: Params, b: Params) -> Bool[Array, ""]:
    """Whether rounding cancelled a step, and so would cancel all further ones."""
    return trees.squared_norm(trees.subtract(a, b)) == 0


@struct
class Backtracking:
    r"""Gradient steps on phi whose length is found by Armijo's rule, where no smoothness constant is known.

    .. math:: y \leftarrow y - t\,\nabla\phi(y), \qquad
        \phi(y - t\nabla\phi(y)) \le \phi(y) - 10^{-4}\,t\,\|\nabla\phi(y)\|^2

    The first trial is :math:`t = \gamma`, and later twice the last t if that was not shortened. A refused t is replaced
    by the minimizer of the parabola with the two slopes.

    Armijo: Minimization of functions having Lipschitz continuous first partial derivatives, 1966.
    """

    steps: int = count()
    stop: Stop = Relative()

    __call__ = certified()

    def _solve(self, phi: Surrogate) -> Answer:
        def turn(now: Search) -> tuple[Scalar, Params]:
            longer = now.length * now.memory * jnp.where(now.refused == 0, 2, 1)
            local = jnp.where(now.fresh, longer, now.memory)
            return local, trees.scale(-local, now.point.slope)

        return search(phi, self.stop, self.steps, first_length(phi) / 2, turn)[0]


class _Momentum(NamedTuple):
    best: Point
    last: Params  # the last gradient step
    local: Scalar
    plain: Bool[Array, ""]  # whether the next step goes without momentum
    still: Bool[Array, ""]
    trials: Integer[Array, ""]


@struct
class Accelerated:
    r"""Nesterov's accelerated gradient for a strongly convex phi, of condition :math:`\kappa = \gamma L_\xi + 1`.

    .. math:: u = y - \eta\nabla\phi(y), \qquad
        y \leftarrow u + \frac{\sqrt\kappa - 1}{\sqrt\kappa + 1}(u - u_{\text{last}})

    Gradients are taken at the extrapolated points y, and one of them is the answer: so the certificate is about the
    answer and costs no gradient of its own. A y where phi is not lower than before is rejected and followed by a
    step without momentum; both count as steps. If phi is not lower there either (the given smoothness
    :math:`L_\xi` is too small), :math:`\eta` is halved.

    Nesterov: Lectures on convex optimization, 2018, section 2.2; O'Donoghue, Candès: Adaptive restart for accelerated
    gradient schemes, 2015.
    """

    steps: int = count()
    smoothness: float | Scalar | None = positive(default=None)
    stop: Stop = Relative()

    __call__ = certified()

    def _solve(self, phi: Surrogate) -> Answer:
        local = jnp.asarray(smooth_rate(phi, self.smoothness), phi.value_at_x.dtype)
        root = jnp.sqrt(local / phi.step_size)  # 1 / sqrt(kappa), and 0 without a prox term
        momentum = (1 - root) / (1 + root)

        def step(now: _Momentum) -> _Momentum:
            point = now.best
            moved = trees.axpy(-now.local, point.slope, point.y)
            ahead = trees.axpy(jnp.where(now.plain, 0, momentum), trees.subtract(moved, now.last), moved)
            trial = phi.at(ahead)
            lower = (phi.change(point, trial) <= 0) & jnp.isfinite(trees.squared_norm(trial.slope))
            local = jnp.where(now.plain & ~lower, now.local / 2, now.local)
            still = _same(trial.y, point.y)
            return _Momentum(trees.where(lower, trial, point), moved, local, ~lower, still, now.trials + 1)

        no = jnp.array(False)
        begin = _Momentum(phi.start, phi.x, local, no, no, jnp.zeros((), jnp.int32))
        return _until_settled(phi, self, step, begin)


class _Adaptive(NamedTuple):
    point: Point
    best: Point
    local: Scalar
    growth: Scalar  # of the local step size in the last step
    first: Bool[Array, ""]
    still: Bool[Array, ""]
    trials: Integer[Array, ""]


@struct
class AdaptiveDescent:
    r"""Gradient steps on phi as long as the curvature met on the way allows: no smoothness constant, no line search.

    .. math:: \lambda_j = \min\Bigl\{\sqrt{1 + \theta_{j-1}}\,\lambda_{j-1},\
        \frac{\|y_j - y_{j-1}\|}{2\|\nabla\phi(y_j) - \nabla\phi(y_{j-1})\|}\Bigr\},
        \qquad \theta_j = \lambda_j/\lambda_{j-1}

    The first trial is :math:`\lambda_0 = \gamma`, shortened until phi falls; later phi may rise for a while, and the
    lowest point is the answer.

    Malitsky, Mishchenko: Adaptive gradient descent without descent, 2020, arXiv:1910.09529, Algorithm 1.
    """

    steps: int = count()
    stop: Stop = Relative()

    __call__ = certified()

    def _solve(self, phi: Surrogate) -> Answer:
        def step(now: _Adaptive) -> _Adaptive:
            point, local = now.point, now.local
            trial = phi.at(trees.axpy(-local, point.slope, point.y))
            moved, turned = trees.subtract(trial.y, point.y), trees.subtract(trial.slope, point.slope)
            curved = 0.5 * jnp.sqrt(trees.squared_norm(moved) / trees.squared_norm(turned))
            change = phi.change(now.best, trial)
            finite = jnp.isfinite(change) & jnp.isfinite(curved)
            accepted = finite & ((change <= 0) | ~now.first)
            # the theory may begin with any step and any growth
            following = jnp.minimum(jnp.sqrt(1 + now.growth) * local, curved)
            shorter = jnp.where(finite, jnp.clip(curved, 0.01 * local, 0.5 * local), 0.1 * local)
            return _Adaptive(
                trees.where(accepted, trial, point),
                trees.where(finite & (change <= 0), trial, now.best),
                jnp.where(accepted, following, shorter),
                jnp.where(accepted, following / local, now.growth),
                now.first & ~accepted,
                _same(trial.y, point.y),
                now.trials + 1,
            )

        local = first_length(phi)
        growth, yes, zero = jnp.full_like(local, 1e6), jnp.array(True), jnp.zeros((), jnp.int32)
        return _until_settled(phi, self, step, _Adaptive(phi.start, phi.start, local, growth, yes, ~yes, zero))

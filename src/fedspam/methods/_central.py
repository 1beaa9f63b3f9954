"""Central optimizers, split as Mime needs them: a direction for frozen statistics, and the update of the statistics."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedspam._internal import trees
from fedspam._internal.trees import Params, Scalar, number, positive, struct

Gradient = Callable[[Params], Params]


class Base(Protocol):
    """A central optimizer: a direction for frozen statistics, and the update of the statistics."""

    @property
    def points(self) -> int:
        """Gradients per direction."""
        ...

    def init(self, x: Params, g: Params) -> Any:
        """The statistics before the first round, where g is the start's gradient."""
        ...

    def direction(self, gradient: Gradient, y: Params, statistics: Any) -> Params:
        """U: the direction of a client's step from y, given its (corrected) gradient as a function."""
        ...

    def observe(self, gradient: Gradient, x: Params, statistics: Any) -> Params:
        """What a client sends about x; affine in its gradients."""
        ...

    def update(self, observed: Params, x: Params, statistics: Any) -> Any:
        """V: the statistics after the mean of what the cohort observed at x."""
        ...


class OneGradient:
    """An optimizer whose directions and statistics need one gradient each."""

    points = 1

    def observe(self, gradient: Gradient, x: Params, statistics: Any) -> Params:
        return gradient(x)


@struct
class Plain(OneGradient):
    """SGD: no statistics."""

    def init(self, x: Params, g: Params) -> tuple[()]:
        return ()

    def direction(self, gradient: Gradient, y: Params, statistics: tuple[()]) -> Params:
        return gradient(y)

    def update(self, observed: Params, x: Params, statistics: tuple[()]) -> tuple[()]:
        return ()


@struct
class Momentum(OneGradient):
    r"""Momentum: :math:`U = V = (1-\beta)g + \beta m`, with :math:`m_0 = 0`."""

    momentum: float | Scalar = number(0, 1, default=0.9)

    def init(self, x: Params, g: Params) -> Params:
        return trees.zeros_like(x)

    def direction(self, gradient: Gradient, y: Params, statistics: Params) -> Params:
        return mixed(self.momentum, statistics, gradient(y))

    def update(self, observed: Params, x: Params, statistics: Params) -> Params:
        return mixed(self.momentum, statistics, observed)


class AdamStatistics(NamedTuple):
    """Running means of the gradient and of its square, coordinate by coordinate."""

    m: Params
    v: Params


def begin_adam(x: Params, epsilon: Any) -> AdamStatistics:
    """No moves yet, and squares of a length that does not let the first step explode."""
    v = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.asarray(epsilon, leaf.dtype) ** 2), x)
    return AdamStatistics(trees.zeros_like(x), v)


@struct
class Adam(OneGradient):
    r"""Adam: :math:`U = ((1-\beta_1)g + \beta_1 m)/(\sqrt v + \epsilon)`, where V updates m and v.

    No bias correction, and v stays as it was during the local steps. The paper leaves :math:`v_0` open; with 0 the
    first round would divide by :math:`\epsilon` alone, so we begin as FedAdam does, at :math:`m_0 = 0` and :math:`v_0
    = \epsilon^2`.
    """

    momentum: float | Scalar = number(0, 1, default=0.9)
    square_momentum: float | Scalar = number(0, 1, default=0.99)
    epsilon: float | Scalar = positive(default=1e-3)

    def init(self, x: Params, g: Params) -> AdamStatistics:
        return begin_adam(x, self.epsilon)

    def direction(self, gradient: Gradient, y: Params, statistics: AdamStatistics) -> Params:
        scaled = lambda u, v: u / (jnp.sqrt(v) + jnp.asarray(self.epsilon, v.dtype))
        return jax.tree.map(scaled, mixed(self.momentum, statistics.m, gradient(y)), statistics.v)

    def update(self, observed: Params, x: Params, statistics: AdamStatistics) -> AdamStatistics:
        squares = jax.tree.map(jnp.square, observed)
        return AdamStatistics(
            mixed(self.momentum, statistics.m, observed), mixed(self.square_momentum, statistics.v, squares)
        )


class RecursiveStatistics(NamedTuple):
    """The last estimate and the point it belongs to."""

    g: Params
    x_prev: Params


@struct
class Recursive:
    r"""Momentum variance reduction for MimeLite: :math:`U = \nabla f_i(y) + (1-p)(g_{k-1} - \nabla f_i(x_{k-1}))`.

    V is the estimator of SPAM, :math:`g_k = \nabla f_S(x_k) + (1-p)(g_{k-1} - \nabla f_S(x_{k-1}))`, whose client part
    :math:`\nabla f_i(x_k) - (1-p)\nabla f_i(x_{k-1})` is what is observed. In the first round :math:`x_{-1} = x_0`.
    """

    points = 2
    fresh_weight: float | Scalar = number(0, 1, open_low=True)

    def init(self, x: Params, g: Params) -> RecursiveStatistics:
        return RecursiveStatistics(g, x)

    def direction(self, gradient: Gradient, y: Params, statistics: RecursiveStatistics) -> Params:
        return trees.axpy(1 - self.fresh_weight, statistics.g, self.observe(gradient, y, statistics))

    def observe(self, gradient: Gradient, x: Params, statistics: RecursiveStatistics) -> Params:
        return trees.axpy(self.fresh_weight - 1, gradient(statistics.x_prev), gradient(x))

    def update(self, observed: Params, x: Params, statistics: RecursiveStatistics) -> RecursiveStatistics:
        return RecursiveStatistics(trees.axpy(1 - self.fresh_weight, statistics.g, observed), x)


def mixed(old_share: Any, old: Params, new: Params) -> Params:
    return trees.axpy(old_share, old, trees.scale(1 - old_share, new))

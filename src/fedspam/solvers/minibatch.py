"""Minibatch steps that choose their own length, for clients that cannot certify a prox."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, Scalar, count, positive, struct
from fedspam.clients import Oracle
from fedspam.solvers._certificate import Answer, Never, Surrogate, certified


@struct
class SampledSteps:
    r"""Corrected steps on minibatches :math:`\zeta`, whose correction fades as the client moves away from x:

    .. math::
        y \leftarrow y - \eta\,\bigl(\nabla f_\xi(y;\zeta) + \alpha\,(g - \nabla f_\xi(x;\zeta)) + \tfrac1\gamma(y - x)
        \bigr), \qquad \alpha = e^{-\|y - x\|^2/(2r^2)}

    At x the direction is g, free of the minibatch's noise and of the client's bias. Beyond the reach r, at which
    clients' gradients differ in other ways than at x, the correction would only mislead. With r = 0 all steps
    but the first are FedAvg's, with :math:`r = \infty` those of `GradientDescent` with ``minibatch=True``.

    A step is taken where the minibatch's own surrogate falls by :math:`c\,\eta\|d\|^2` along its direction d, up to
    rounding; then the next :math:`\eta` is longer by `grow`, otherwise shorter by `shrink`. So :math:`\eta` may start
    anywhere. It never grows beyond one over the precision of its dtype (8e6 in float32), and not beyond the first
    :math:`\eta` where d = 0, which says nothing about lengths.

    Arguments:
        steps: each takes two gradients and one loss of a minibatch.
        rate: the first :math:`\eta`.
        reach: r; infinite keeps the whole correction.
        sufficient: c.

    Armijo's rule on minibatches: Vaswani, Mishkin, Laradji, Schmidt, Gidel, Lacoste-Julien: Painless stochastic
    gradient, 2019, arXiv:1905.09997. The fading correction is new here.

    >>> import jax, jax.numpy as jnp
    >>> from fedspam.clients import DataOracle
    >>> client = DataOracle(jnp.ones(2), loss=lambda x, center: 0.5 * jnp.sum((x - center) ** 2))
    >>> solver = SampledSteps(steps=20, rate=100.0, reach=0.0)
    >>> y, rate = solver.walk(client, jax.random.key(0), x=jnp.zeros(2), g=-jnp.ones(2))
    >>> bool(jnp.allclose(y, 1.0, atol=0.05)), bool(rate < 2)
    (True, True)
    """

    steps: int = count(default=60)
    rate: float | Scalar = positive(default=0.1)
    reach: float | Scalar = jnp.inf
    sufficient: float | Scalar = 0.1
    grow: float | Scalar = 1.2
    shrink: float | Scalar = 2.0

    __call__ = certified(Never(), safeguard=False)

    def _solve(self, phi: Surrogate) -> Answer:
        y, _ = self.walk(phi.oracle, phi.key, x=phi.x, g=phi.g, step_size=phi.step_size)
        return Answer(phi.at(y), self.steps, 2 * self.steps + 1)

    def walk(
        self, oracle: Oracle, key: Key, *, x: Params, g: Params, step_size: Any = jnp.inf
    ) -> tuple[Params, Scalar]:
        """The point after the steps, and the rate of the next one."""

        def step(i: Any, now: tuple[Params, Scalar]) -> tuple[Params, Scalar]:
            y, rate = now
            sample = jax.random.fold_in(key, i)
            there = jax.grad(oracle)(x, sample)
            far = trees.squared_norm(trees.subtract(y, x))
            fade = jnp.where(far == 0, 1.0, jnp.exp(-far / (2 * self.reach**2))).astype(rate.dtype)
            tilt = trees.scale(fade, trees.subtract(g, there))

            def surrogate(y: Params) -> Scalar:
                moved = trees.subtract(y, x)
                return oracle(y, sample) + trees.dot(tilt, moved) + trees.squared_norm(moved) / (2 * step_size)

            value, direction = jax.value_and_grad(surrogate)(y)
            new = trees.axpy(-rate, direction, y)
            length = trees.squared_norm(direction)
            rounding = 8 * jnp.finfo(dtype).eps * jnp.abs(value)  # a rise that rounding makes is not a reason to shrink
            enough = surrogate(new) <= value - self.sufficient * rate * length + rounding
            next_rate = rate * jnp.where(enough, self.grow, 1 / self.shrink).astype(rate.dtype)
            longest = jnp.where(length == 0, first, jnp.asarray(1 / jnp.finfo(dtype).eps, dtype))
            return trees.where(enough, new, y), jnp.minimum(next_rate, jnp.maximum(rate, longest))

        dtype = jax.eval_shape(oracle, x, key).dtype
        first = jnp.asarray(self.rate, dtype)
        return lax.fori_loop(0, self.steps, step, (x, first))

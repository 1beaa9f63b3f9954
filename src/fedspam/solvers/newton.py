"""Newton's method with conjugate gradients for the prox."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Integer

from fedspam._internal import trees
from fedspam._internal.trees import Params, count, struct
from fedspam.solvers._certificate import Answer, Point, Relative, Stop, Surrogate, certified
from fedspam.solvers._search import Search, first_length, search


@struct
class NewtonCG:
    r"""Newton's method, its equations solved by conjugate gradients and its steps shortened by Armijo's rule.

    .. math:: (\nabla^2 f_\xi(y) + I/\gamma)\,d \approx -\nabla\phi(y), \qquad y \leftarrow y + t\,d

    Conjugate gradients stop once the linear model predicts half of the bound of the stopping rule, or at a residual of
    a hundredth. On negative curvature they stop with the direction so far, which is one of descent.

    Arguments:
        cg_steps: largest number of products with the Hessian per step. A product is counted as two gradients.

    JAX must be able to differentiate the client's loss twice, so a loss computed outside JAX does not work.

    Nocedal, Wright: Numerical optimization, 2006, Algorithm 7.1; Steihaug: The conjugate gradient method and trust
    regions in large scale optimization, 1983.

    >>> import jax, jax.numpy as jnp
    >>> from fedspam.clients import DataOracle
    >>> client = DataOracle(jnp.eye(3), loss=lambda x, rows: jnp.mean(jax.nn.softplus(rows @ x)))
    >>> y, certificate = NewtonCG()(client, jax.random.key(0), x=jnp.zeros(3), g=jnp.ones(3), step_size=2.0)
    >>> float(certificate.certified), float(certificate.steps)
    (1.0, 1.0)
    """

    steps: int = count(default=20)
    cg_steps: int = count(default=50)
    stop: Stop = Relative()

    __call__ = certified()

    def _solve(self, phi: Surrogate) -> Answer:
        def turn(now: Search) -> tuple[Any, Params]:
            direction, products = self._direction(phi, now.point, now.fresh)
            return now.memory + products, direction

        answer, products = search(phi, self.stop, self.steps, jnp.zeros((), jnp.int32), turn)
        return answer._replace(gradients=answer.gradients + 2 * products)

    def _direction(self, phi: Surrogate, point: Point, due: Bool[Array, ""]) -> tuple[Params, Integer[Array, ""]]:
        """The truncated Newton direction, and its number of products with the Hessian: 0 where no direction is due."""
        size = trees.norm(point.slope)
        # solve for a slope of length 1, since squares of short ones vanish in float32
        unit = trees.divide(point.slope, jnp.where(size > 0, size, 1))

        def step(now: _Conjugate) -> _Conjugate:
            _, product = jax.jvp(phi.gradient, (point.y,), (now.along,))
            curvature, before = trees.dot(now.along, product), trees.squared_norm(now.residual)
            bent = ~(curvature > 0)
            length = jnp.where(bent, 0, before / curvature)
            direction = trees.axpy(length, now.along, now.direction)
            residual = trees.axpy(length, product, now.residual)
            after = trees.squared_norm(residual)
            ahead = trees.norm(trees.axpy(size, direction, trees.subtract(point.y, phi.x)))
            promised = self.stop.bound(ahead, phi.step_size)
            enough = size * jnp.sqrt(after) <= jnp.maximum(promised / 2, size / 100)
            # bent at once: go down the slope as far as the same curvature upwards would allow, but at most gamma
            downhill = trees.scale(-1 / jnp.maximum(jnp.abs(curvature), 1 / first_length(phi)), unit)
            direction = trees.where(bent & (now.products == 0), downhill, direction)
            along = trees.axpy(after / before, now.along, trees.scale(-1, residual))
            return _Conjugate(direction, residual, along, ~bent & ~enough, now.products + 1)

        zero = jnp.zeros((), jnp.int32)
        begin = _Conjugate(trees.zeros_like(point.y), unit, trees.scale(-1, unit), due, zero)
        end = lax.while_loop(lambda now: now.unfinished & (now.products < self.cg_steps), step, begin)
        return trees.scale(size, end.direction), end.products


class _Conjugate(NamedTuple):
    direction: Params
    residual: Params
    along: Params
    unfinished: Bool[Array, ""]
    products: Integer[Array, ""]

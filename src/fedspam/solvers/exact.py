"""The prox in closed form, for clients with a quadratic loss."""

from typing import Any

import jax
import jax.numpy as jnp

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, struct
from fedspam.clients import Oracle, QuadraticLoss
from fedspam.solvers._certificate import Certificate


@struct
class Exact:
    r"""The exact prox of a quadratic client: :math:`y = x - (H_\xi + I/\gamma)^{-1} g`.

    The client must have ``shifted_solve(g, step_size)``, which uses a factorization of :math:`H_\xi` made once, and
    ``lowest_curvature``, the least eigenvalue of :math:`H_\xi`. Where phi has no minimizer, :math:`\gamma` is halved
    until it has one.

    >>> import jax, jax.numpy as jnp
    >>> from fedspam.problems import quadratics
    >>> client = quadratics(jax.random.key(0), clients=3, dimension=4).client(0)
    >>> g = jnp.ones(4)
    >>> y, certificate = Exact()(client, jax.random.key(0), x=jnp.zeros(4), g=g, step_size=0.5)
    >>> bool(certificate.stationarity < 1e-5)
    True
    """

    def __call__(self, oracle: Oracle, key: Key, *, x: Params, g: Params, step_size: Any) -> tuple[Params, Certificate]:
        if not isinstance(oracle, QuadraticLoss):
            raise ValueError(
                f"Exact needs a quadratic client with shifted_solve, but {type(oracle).__name__} has none; "
                "use a solver such as LBFGS() or GradientDescent(steps=10)"
            )
        dtype = g.dtype
        # the smallest number of halvings that makes H + I/gamma positive definite
        ratio = -oracle.lowest_curvature * jnp.asarray(step_size, dtype)
        halvings = jnp.where(ratio < 1, 0, jnp.floor(jnp.log2(jnp.maximum(ratio, 1))) + 1)
        step_size = jnp.asarray(step_size, dtype) * 2.0**-halvings
        step = -oracle.shifted_solve(g, step_size)
        y = trees.add(x, step)
        # phi is quadratic: its gradient at y is g + H step + step / gamma, its rise the trapezoid of the two gradients
        _, bent = jax.jvp(lambda point: jax.grad(oracle)(point, key), (x,), (step,))
        slope = bent + g + step / step_size
        stationarity = trees.norm(slope)
        decrease = 0.5 * trees.dot(trees.add(g, slope), step)
        distance = trees.norm(step)
        one = jnp.ones((), dtype)
        certified = (decrease <= 0) & (stationarity <= 0.01 * distance / step_size)
        return y, Certificate(decrease, stationarity, distance, step_size, one, one, certified.astype(dtype))

"""Delta-SGD: every client finds the rate of its local steps from the change of its gradient."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Integer

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, Scalar, count, dynamic, number, positive, struct
from fedspam.clients import Oracle
from fedspam.methods._grids import grid
from fedspam.methods._local import Numbers, Trained
from fedspam.methods._registry import Entry, register
from fedspam.methods.fedopt import Average, FedOpt
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule


@struct
class SmoothnessSteps:
    """Local steps whose rate follows the inverse of the curvature along the last step."""

    local_rate: Schedule = dynamic(converter=positive_schedule)  # of the first step
    amplification: float | Scalar = positive()
    growth: float | Scalar = number(0)
    local_steps: int = count()

    def numbers(self, k: Integer[Array, ""]) -> dict[str, Any]:
        return {"local_rate": self.local_rate(k)}

    def __call__(self, oracle: Oracle, key: Key, x: Params, shift: Params | None, numbers: Numbers) -> Trained:
        gradient = jax.grad(oracle)
        g = gradient(x, jax.random.fold_in(key, 0))
        dtype = jax.tree.leaves(g)[0].dtype
        eta = jnp.asarray(numbers["local_rate"], dtype)
        gamma, delta = jnp.asarray(self.amplification, dtype), jnp.asarray(self.growth, dtype)

        def step(j: Any, now: tuple[Any, ...]) -> tuple[Any, ...]:
            y_prev, y, eta, theta = now
            own = jax.random.fold_in(key, j)  # the same minibatch at both points: its noise cancels
            g = gradient(y, own)
            change = trees.norm(trees.subtract(g, gradient(y_prev, own)))
            length = trees.norm(trees.subtract(y, y_prev))
            inverse = jnp.where(change > 0, gamma * length / (2 * jnp.where(change > 0, change, 1)), jnp.inf)
            new = jnp.minimum(inverse, jnp.sqrt(1 + delta * theta) * eta).astype(dtype)
            return y, trees.axpy(-new, g, y), new, new / eta

        first = (x, trees.axpy(-eta, g, x), eta, jnp.ones_like(eta))
        return Trained(lax.fori_loop(1, self.local_steps, step, first)[1])

    def gradients(self, certificate: Any) -> Any:
        return 2 * self.local_steps - 1


def delta_sgd(
    cohort_size: int, local_steps: int, local_rate: ScheduleLike = 0.2,
    *, amplification: float = 2.0, growth: float = 0.1, weighted: bool = False,
) -> FedOpt:  # fmt: skip
    r"""Delta-SGD: FedAvg whose clients choose the rates of their local steps themselves, step by step.

    .. math::
        y_{j+1} &= y_j - \eta_j\nabla f_i(y_j; \zeta_j), \qquad \theta_j = \eta_j/\eta_{j-1}, \qquad \theta_0 = 1 \\
        \eta_j &= \min\Big\{
            \frac{\gamma\,\|y_j - y_{j-1}\|}{2\,\|\nabla f_i(y_j;\zeta_j) - \nabla f_i(y_{j-1};\zeta_j)\|},\
            \sqrt{1 + \delta\theta_{j-1}}\;\eta_{j-1}\Big\}, \qquad x_{k+1} = \tfrac1B\sum_{i\in S_k} y_i

    Every round starts again from :math:`\eta_0`. A step after the first takes two gradients, both of the same
    minibatch.

    Arguments:
        local_rate: :math:`\eta_0`, of the first step of every round; the paper's is 0.2. It may be far too large.
        amplification, growth: :math:`\gamma` and :math:`\delta`; the paper's are 2 and 0.1.

    Kim, Toghani, Uribe, Kyrillidis: Adaptive federated learning with auto-tuned clients, 2024, arXiv:2306.11201,
    Algorithm 1.

    >>> from fedspam.problems import progress
    >>> progress(delta_sgd(10, 5, 0.02)) < 0.1
    True
    """
    steps = SmoothnessSteps(local_rate, amplification, growth, local_steps)
    return FedOpt(steps, Average(), cohort_size, weighted, name="delta_sgd")


register("delta_sgd", Entry(
    name="Delta-SGD", build=delta_sgd, example={"cohort_size": 4, "local_steps": 3, "amplification": 1.0},
    oracle="m steps, own rates", exact=False, reference="Kim, Toghani, Uribe, Kyrillidis 2024, arXiv:2306.11201",
    grid=grid(amplification=(0.3, 0.6, 1.0, 2.0), local_steps=(1, 5, 20)),
))  # fmt: skip

"""FedSPS: local steps with Polyak's step size."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Integer

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, Scalar, count, dynamic, positive, struct
from fedspam.clients import Oracle
from fedspam.methods._grids import few_steps_grid
from fedspam.methods._local import Numbers, Trained
from fedspam.methods._registry import Entry, register
from fedspam.methods.fedopt import Average, FedOpt
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule


@struct
class PolyakSteps:
    """Local steps as long as the loss and its gradient suggest, up to a largest rate."""

    local_rate: Schedule = dynamic(converter=positive_schedule)  # the largest
    scale: float | Scalar = positive()
    lower_bound: float | Scalar
    local_steps: int = count()

    def numbers(self, k: Integer[Array, ""]) -> dict[str, Any]:
        return {"local_rate": self.local_rate(k)}

    def __call__(self, oracle: Oracle, key: Key, x: Params, shift: Params | None, numbers: Numbers) -> Trained:
        def step(j: Any, y: Params) -> Params:
            value, g = jax.value_and_grad(oracle)(y, jax.random.fold_in(key, j))
            above = jnp.maximum(value - jnp.asarray(self.lower_bound, value.dtype), 0)
            slope = jnp.asarray(self.scale, value.dtype) * trees.squared_norm(g)
            most = jnp.asarray(numbers["local_rate"], value.dtype)
            # without a division, which would fail where the slope is zero
            rate = jnp.where(above < most * slope, above / jnp.where(slope > 0, slope, 1), most)
            return trees.axpy(-rate, g, y)

        return Trained(lax.fori_loop(0, self.local_steps, step, x))

    def gradients(self, certificate: Any) -> Any:
        return self.local_steps


def fedsps(
    cohort_size: int, local_steps: int, local_rate: ScheduleLike = 1.0,
    *, scale: float = 0.5, lower_bound: float = 0.0, weighted: bool = False,
) -> FedOpt:  # fmt: skip
    r"""FedSPS: FedAvg whose clients take the stochastic Polyak step size, each its own.

    .. math:: y \leftarrow y - \min\Big\{\frac{f_i(y;\zeta) - \ell}{c\,\|\nabla f_i(y;\zeta)\|^2},\ \gamma_b\Big\}
        \nabla f_i(y;\zeta), \qquad x_{k+1} = \frac1B\sum_{i\in S_k} y_i

    It converges where a model can fit all clients; otherwise to a neighborhood of the optimum that shrinks with
    :math:`\gamma_b`.

    Arguments:
        local_rate: :math:`\gamma_b`, the largest rate; the paper's is 1.
        scale: c; the paper's is 0.5.
        lower_bound: :math:`\ell`, of the losses; 0 for losses that are not negative.

    Mukherjee, Loizou, Stich: Locally adaptive federated learning, 2024, arXiv:2307.06306, Algorithm 1.

    >>> from fedspam.problems import progress
    >>> progress(fedsps(10, 5, 0.05, lower_bound=-100.0)) < 0.1
    True
    """
    steps = PolyakSteps(local_rate, scale, lower_bound, local_steps)
    return FedOpt(steps, Average(), cohort_size, weighted, name="fedsps")


register("fedsps", Entry(
    name="FedSPS", build=fedsps, oracle="m steps, own rates", exact=False, partial="no", nonconvex="partly",
    example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3, "lower_bound": -1.0},
    grid=few_steps_grid,
    reference="Mukherjee, Loizou, Stich 2024, arXiv:2307.06306",
))  # fmt: skip

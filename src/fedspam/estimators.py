"""How the server's estimate g of the gradient is made: one of the three factors of a method.

An estimator turns one exchange with the round's cohort into the new g. It knows nothing of what is done with g.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Integer, Key

from fedspam import _check, _tree
from fedspam._tree import Params, static, struct
from fedspam.federation import Cohort, Federation, on_client
from fedspam.population import Oracle
from fedspam.schedules import Schedule


class Estimate(NamedTuple):
    """The state of an estimator between rounds."""

    g: Params
    memory: Any = ()  # what a particular estimator keeps besides g


class Estimator(Protocol):
    """How g_k is made from the exchange with a cohort."""

    def update(
        self, old: Estimate, cohort: Cohort, fed: Federation, *, k: Integer[Array, ""], x: Params, x_prev: Params
    ) -> tuple[Estimate, Any]:
        """The new estimate, and how many client gradients it took."""
        ...


@struct
class MVR:
    r"""Momentum variance reduction (STORM), the estimator of SPAM:

    .. math:: g_k = \nabla f_S(x_k) + (1 - p_k)\,(g_{k-1} - \nabla f_S(x_{k-1}))

    Both gradients are of the same clients on the same minibatch. In the first round :math:`x_{-1} = x_0`;
    ``first="given"`` keeps :math:`g_0` as it was started, ``first="update"`` follows the printed loop, which replaces
    it by :math:`p_0\nabla f_S(x_0) + (1-p_0)g_0`.
    """

    momentum: Schedule
    first: str = static(default="given")

    def __post_init__(self) -> None:
        _check.one_of("first", self.first, ("given", "update"))

    def update(
        self, old: Estimate, cohort: Cohort, fed: Federation, *, k: Integer[Array, ""], x: Params, x_prev: Params
    ) -> tuple[Estimate, Any]:
        p = first_momentum(self.momentum, self.first, k)
        difference = fed.mean(cohort, self.difference, x=x, x_prev=x_prev, momentum=p)
        return Estimate(_tree.axpy(1 - p, old.g, difference)), 2 * cohort.size

    @on_client(affine=True)
    def difference(self, oracle: Oracle, key: Key[Array, ""], *, x: Params, x_prev: Params, momentum: Any) -> Params:
        gradient = jax.grad(oracle)
        return _tree.axpy(momentum - 1, gradient(x_prev, key), gradient(x, key))


def first_momentum(momentum: Schedule, first: str, k: Integer[Array, ""]) -> Any:
    """p_k, where in round 0 p = 0 keeps the given g_0: with x_{-1} = x_0 the two gradients cancel exactly."""
    p = momentum(k)
    return jnp.where(k == 0, jnp.zeros_like(p), p) if first == "given" else jnp.asarray(p)

"""PAdaMFed and PAdaMFed-VR: normalized local steps with momentum and controls, and no number to tune.

Unverified: the paper was not at hand.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedspam._internal import checks, trees
from fedspam._internal.trees import Key, Params, Scalar, count, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._method import RoundInfo, Stateful, tracked_mean
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.fedcm import FedCMState


class PAdaMFedReply(NamedTuple):
    """The move of a client's model, that of its control, and with variance reduction its mean direction."""

    moved: Params
    control: Params
    direction: Any


@struct
class PAdaMFed(Stateful):
    """PAdaMFed. Use `padamfed` to build it."""

    local_rate: float | Scalar  # eta
    server_step_size: float | Scalar  # gamma
    fresh_weight: float | Scalar  # beta
    cohort_size: int = count()
    local_steps: int = count()
    variance_reduction: bool = static(default=False)
    name: str = static(default="padamfed")

    def init(self, params: Params, key: Key, fed: Federation) -> FedCMState:
        zero = trees.zeros_like(params)
        return FedCMState(x=params, x_prev=params, g=zero, control=zero, k=jnp.zeros((), jnp.int32))

    def round(self, state: FedCMState, key: Key, fed: Federation) -> tuple[FedCMState, RoundInfo]:
        x, c, beta = state.x, state.control, self.fresh_weight
        shift = trees.axpy(beta, c, trees.scale(1 - beta, state.g))
        points = {"x": x, "x_prev": state.x_prev} if self.variance_reduction else {"x": x}

        cohort = fed.sample(key, self.cohort_size)
        reply = fed.mean(cohort, self.train_reduced if self.variance_reduction else self.train, **points, shift=shift)

        # the mean of the directions of all steps, which the server can derive without variance reduction
        g = reply.direction if self.variance_reduction else trees.axpy(beta, reply.control, shift)
        c = tracked_mean(c, reply.control, fed, key)
        moved = trees.axpy(self.server_step_size / (self.local_rate * self.local_steps), reply.moved, x)
        spent = cohort.size * self.local_steps * (1 + self.variance_reduction)
        return FedCMState(moved, x, g, c, state.k + 1), RoundInfo(local_rate=self.local_rate, gradients=spent)

    @on_client(stateful=True)
    def train(
        self, oracle: Oracle, key: Key, memory: Params, *, x: Params, shift: Params
    ) -> tuple[PAdaMFedReply, Params]:
        return self._steps(oracle, key, memory, x, None, shift)

    @on_client(stateful=True)
    def train_reduced(
        self, oracle: Oracle, key: Key, memory: Params, *, x: Params, x_prev: Params, shift: Params
    ) -> tuple[PAdaMFedReply, Params]:
        return self._steps(oracle, key, memory, x, x_prev, shift)

    def _steps(
        self, oracle: Oracle, key: Key, control: Params, x: Params, x_prev: Params | None, shift: Params
    ) -> tuple[PAdaMFedReply, Params]:
        beta = self.fresh_weight

        def step(j: Any, now: tuple[Params, Params, Params]) -> tuple[Params, Params, Params]:
            y, gradients, directions = now
            own_key = jax.random.fold_in(key, j)
            fresh = jax.grad(oracle)(y, own_key)
            if x_prev is None:
                direction = trees.axpy(beta, trees.subtract(fresh, control), shift)
            else:
                past = trees.axpy(beta, control, trees.scale(1 - beta, jax.grad(oracle)(x_prev, own_key)))
                direction = trees.add(trees.subtract(fresh, past), shift)
            length = jnp.maximum(trees.norm(direction), jnp.finfo(jax.tree.leaves(x)[0].dtype).tiny)
            y = trees.axpy(-self.local_rate / length, direction, y)
            return y, trees.add(gradients, fresh), trees.add(directions, direction)

        zero = trees.zeros_like(x)
        y, gradients, directions = lax.fori_loop(0, self.local_steps, step, (x, zero, zero))
        new = trees.divide(gradients, self.local_steps)
        direction = () if x_prev is None else trees.divide(directions, self.local_steps)
        return PAdaMFedReply(trees.subtract(y, x), trees.subtract(new, control), direction), new


def padamfed(cohort_size: int, local_steps: int, rounds: int, *, variance_reduction: bool = False) -> PAdaMFed:
    r"""PAdaMFed: m normalized local steps with momentum and controls; nothing depends on the problem.

    .. math::
        d_j &= \beta\,(\nabla f_i(y_j;\zeta_j) - c_i + c) + (1-\beta)\,g, \qquad
        y_{j+1} = y_j - \eta\,\frac{d_j}{\|d_j\|}, \qquad y_0 = x_k \\
        c_i^+ &= \frac1m\sum_j\nabla f_i(y_j;\zeta_j), \qquad
        x_{k+1} = x_k - \frac{\gamma}{\eta m}\cdot\frac1B\sum_{i\in S_k}(x_k - y_m^i), \qquad
        g^+ = \frac{1}{Bm}\sum_{i\in S_k}\sum_j d_j^i

    where c is the mean of all :math:`c_i`. PAdaMFed-VR adds the gradient of the same minibatch at the last point:

    .. math:: d_j = \nabla f_i(y_j;\zeta_j) - \beta\,(c_i - c) + (1-\beta)\,(g - \nabla f_i(x_{k-1};\zeta_j))

    For K rounds, :math:`\eta = 1/(mK)` and :math:`\beta = \min\{1, \sqrt{mB/K}\}`, :math:`\gamma = (mB)^{1/4}K^{-3/4}`;
    with variance reduction :math:`\beta = \gamma = (mB)^{1/3}K^{-2/3}`, at most 1. A round moves x by at most
    :math:`\gamma`, so :math:`K\gamma` must reach the optimum, in the units of the parameters. All :math:`c_i` start at
    0.

    Arguments:
        rounds: K, the length of the run, from which the step sizes follow.
        variance_reduction: whether it is PAdaMFed-VR, with two gradients per step.

    Yan, Zhang, Wang, Cao: Problem-parameter-free federated learning, 2025, ICLR. PAdaMFed-VR follows a published
    implementation, with g as the mean of all directions; PAdaMFed is from memory.

    >>> from fedspam.problems import progress
    >>> progress(padamfed(10, 5, rounds=100), clients=20) < 0.2
    True
    """
    checks.whole("cohort_size", cohort_size, 1)
    checks.whole("local_steps", local_steps, 1)
    checks.whole("rounds", rounds, 1)
    samples = cohort_size * local_steps
    if variance_reduction:
        beta = gamma = samples ** (1 / 3) / rounds ** (2 / 3)
    else:
        beta, gamma = (samples / rounds) ** 0.5, samples**0.25 / rounds**0.75
    eta, name = 1 / (local_steps * rounds), "padamfed_vr" if variance_reduction else "padamfed"
    return PAdaMFed(eta, gamma, min(1.0, beta), cohort_size, local_steps, variance_reduction, name)


for _key, _name, _more in (("padamfed", "PAdaMFed", {}), ("padamfed_vr", "PAdaMFed-VR", {"variance_reduction": True})):
    register(_key, Entry(
        name=_name, build=padamfed, example={"cohort_size": 4, "local_steps": 3, "rounds": 300, **_more},
        stateless="no", verified="no", estimator="MVR, control" if _more else "momentum, control",
        oracle="m normalized steps", up=Cost(3 if _more else 2), down=Cost(3 if _more else 2), exact=False,
        grid=lambda scales, _more=_more: [{"local_steps": m, "rounds": 300, **_more} for m in (1, 5, 20)],
        reference="Yan, Zhang, Wang, Cao 2025, ICLR",
    ))  # fmt: skip

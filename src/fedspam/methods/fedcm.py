"""FedCM and SCAFFOLD-M: local steps that also go along the server's last direction; both with variance reduction.

Clients of FedCM, also called FedAvg-M, keep nothing. SCAFFOLD-M adds the controls of SCAFFOLD. The VR forms are
unverified: they are made from the abstract of their paper.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, Scalar, count, dynamic, number, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import few_steps_grid
from fedspam.methods._method import RoundInfo, Stateless, tracked_mean
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.scaffold import ScaffoldReply
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule

CHENG = "Cheng, Huang, Wu, Yuan 2024, arXiv:2306.16504"


class FedCMState(NamedTuple):
    """What the server keeps between rounds."""

    x: Params
    x_prev: Any  # () without variance reduction
    g: Params  # the mean direction of the last round
    control: Any  # c, the mean of all clients' c_i; () without controls
    k: Any  # rounds that counted; the index of the schedules


@struct
class FedCM(Stateless):
    """FedCM and FedAvg-M-VR. Use `fedcm` or `fedcm_vr` to build it."""

    local_rate: Schedule = dynamic(converter=positive_schedule)
    server_step_size: Schedule = dynamic(converter=positive_schedule)
    fresh_weight: float | Scalar = number(0, 1, open_low=True, remedy="1 is FedAvg or SCAFFOLD, 0.1 is common")
    cohort_size: int = count()
    local_steps: int = count()
    variance_reduction: bool = static(kw_only=True)
    name: str = static(kw_only=True)

    def init(self, params: Params, key: Key, fed: Federation) -> FedCMState:
        x_prev = params if self.variance_reduction else ()
        return FedCMState(params, x_prev, trees.zeros_like(params), (), jnp.zeros((), jnp.int32))

    def round(self, state: FedCMState, key: Key, fed: Federation) -> tuple[FedCMState, RoundInfo]:
        cohort, eta = fed.sample(key, self.cohort_size), self.local_rate(state.k)
        moved = fed.mean(cohort, self.train, x=state.x, x_prev=state.x_prev, g=state.g, local_rate=eta)
        return self._moved(state, moved, eta, cohort.size)

    @on_client
    def train(self, oracle: Oracle, key: Key, *, x: Params, x_prev: Any, g: Params, local_rate: Any) -> Params:
        return self._steps(oracle, key, x, x_prev, trees.scale(1 - self.fresh_weight, g), local_rate)[0]

    def _steps(
        self, oracle: Oracle, key: Key, x: Params, x_prev: Any, shift: Params, eta: Any
    ) -> tuple[Params, Params]:
        r"""How far m steps lead along :math:`\beta\nabla f_i(y) + s`, and the mean gradient on the way.

        With variance reduction they go along :math:`\nabla f_i(y; \zeta) - (1-\beta)\nabla f_i(x_{k-1}; \zeta) + s`.
        """
        beta = self.fresh_weight

        def step(j: Any, now: tuple[Params, Params]) -> tuple[Params, Params]:
            (y, total), own_key = now, jax.random.fold_in(key, j)
            gradient = jax.grad(oracle)(y, own_key)
            if self.variance_reduction:
                direction = trees.axpy(beta - 1, jax.grad(oracle)(x_prev, own_key), gradient)
            else:
                direction = trees.scale(beta, gradient)
            return trees.axpy(-eta, trees.add(direction, shift), y), trees.add(total, gradient)

        y, total = lax.fori_loop(0, self.local_steps, step, (x, trees.zeros_like(x)))
        return trees.subtract(y, x), trees.divide(total, self.local_steps)

    def _moved(self, state: FedCMState, moved: Params, eta: Any, size: int) -> tuple[FedCMState, RoundInfo]:
        """The server's step; its direction is the mean of those of all local steps."""
        g = trees.divide(moved, -self.local_steps * eta)
        x = trees.axpy(self.server_step_size(state.k), moved, state.x)
        info = RoundInfo(local_rate=eta, gradients=(1 + self.variance_reduction) * size * self.local_steps)
        x_prev = state.x if self.variance_reduction else ()
        return state._replace(x=x, x_prev=x_prev, g=g, k=state.k + 1), info


@struct
class ScaffoldM(FedCM):
    """SCAFFOLD-M and SCAFFOLD-M-VR: FedCM with controls. Use `scaffold_m` or `scaffold_m_vr` to build it."""

    def init(self, params: Params, key: Key, fed: Federation) -> FedCMState:
        return super().init(params, key, fed)._replace(control=trees.zeros_like(params))

    def round(self, state: FedCMState, key: Key, fed: Federation) -> tuple[FedCMState, RoundInfo]:
        cohort, c, eta = fed.sample(key, self.cohort_size), state.control, self.local_rate(state.k)
        reply = fed.mean(cohort, self.train, x=state.x, x_prev=state.x_prev, control=c, g=state.g, local_rate=eta)
        changed = reply.control
        if not self.variance_reduction:  # the mean of c_i⁺ - c_i = -c + ((x - y_i) / (m eta) - (1 - beta) g) / beta
            direction = trees.scale(-1 / (self.local_steps * eta), reply.moved)
            direction = trees.axpy(self.fresh_weight - 1, state.g, direction)
            changed = trees.subtract(trees.divide(direction, self.fresh_weight), c)
        state, info = self._moved(state, reply.moved, eta, cohort.size)
        return state._replace(control=tracked_mean(c, changed, fed, key)), info

    @on_client(stateful=True)
    def train(
        self, oracle: Oracle, key: Key, memory: Params,
        *, x: Params, x_prev: Any, control: Params, g: Params, local_rate: Any,
    ) -> tuple[ScaffoldReply, Params]:  # fmt: skip
        beta = self.fresh_weight
        shift = trees.axpy(1 - beta, g, trees.scale(beta, trees.subtract(control, memory)))
        moved, new = self._steps(oracle, key, x, x_prev, shift, local_rate)
        return ScaffoldReply(moved, trees.subtract(new, memory) if self.variance_reduction else ()), new

    def client_state(self, params: Params) -> Params:
        return trees.zeros_like(params)


def fedcm(
    cohort_size: int, local_steps: int, local_rate: ScheduleLike,
    *, fresh_weight: float = 0.1, server_step_size: ScheduleLike = 1.0,
) -> FedCM:  # fmt: skip
    r"""FedCM, also called FedAvg-M: FedAvg whose local steps go along the server's direction, too.

    .. math::
        y_i &\leftarrow y_i - \eta_k\,\big(\beta\nabla f_i(y_i) + (1-\beta)\,g_k\big)
            \quad\text{(m times, from } x_k) \\
        g_{k+1} &= \frac{1}{m\eta_k B}\sum_{i\in S_k}(x_k - y_i), \qquad
        x_{k+1} = x_k - \eta_s m\eta_k\,g_{k+1}, \qquad g_0 = 0

    The part :math:`1-\beta` of a step is the same for all clients, so they drift apart :math:`\beta` times as fast. If
    all clients take part, it converges without a bound on their dissimilarity, with a constant rate (Cheng et al.).

    Arguments:
        fresh_weight: :math:`\beta` in (0, 1], the weight of the fresh gradient; 1 is FedAvg.
        server_step_size: :math:`\eta_s`; Cheng et al.'s :math:`\gamma` is :math:`\eta_s m\eta`.

    Xu, Wang, Wang, Yao: FedCM: Federated learning with client-level momentum, 2021, arXiv:2106.10874; Cheng, Huang, Wu,
    Yuan: Momentum benefits non-IID federated learning simply and provably, 2024, arXiv:2306.16504, FedAvg-M.

    >>> from fedspam.problems import progress
    >>> progress(fedcm(10, 5, 0.05), rounds=100) < 0.1
    True
    """
    numbers = local_rate, server_step_size, fresh_weight
    return FedCM(*numbers, cohort_size, local_steps, variance_reduction=False, name="fedcm")


def fedcm_vr(
    cohort_size: int, local_steps: int, local_rate: ScheduleLike,
    *, fresh_weight: float = 0.1, server_step_size: ScheduleLike = 1.0,
) -> FedCM:  # fmt: skip
    r"""FedAvg-M-VR: `fedcm` with variance reduction, by the recursion of `mvr` in every local step.

    .. math::
        y_i \leftarrow y_i - \eta_k\,\big(\nabla f_i(y_i; \zeta) + (1-\beta)\,(g_k - \nabla f_i(x_{k-1}; \zeta))\big)
            \quad\text{(m times, from } x_k), \qquad x_{-1} = x_0

    and the rest as `fedcm`. A step costs two gradients, both on the same minibatch :math:`\zeta`. With one local step
    on whole gradients it is `mvr` from :math:`g_0 = 0`.

    Unverified, as the full text was not at hand: this is `fedcm` with the direction of STORM, and the paper may begin
    with another :math:`g_0`.

    Arguments:
        local_steps: m, each with two gradients on a minibatch of its own.
        fresh_weight: :math:`\beta` in (0, 1]; 1 is FedAvg.

    Cheng, Huang, Wu, Yuan: Momentum benefits non-IID federated learning simply and provably, 2024, arXiv:2306.16504,
    FedAvg-M-VR.

    >>> from fedspam.problems import progress
    >>> progress(fedcm_vr(10, 5, 0.05), rounds=100) < 0.1
    True
    """
    numbers = local_rate, server_step_size, fresh_weight
    return FedCM(*numbers, cohort_size, local_steps, variance_reduction=True, name="fedcm_vr")


def scaffold_m(
    cohort_size: int, local_steps: int, local_rate: ScheduleLike,
    *, fresh_weight: float = 0.1, server_step_size: ScheduleLike = 1.0,
) -> ScaffoldM:  # fmt: skip
    r"""SCAFFOLD-M: the controls of SCAFFOLD and the momentum of `fedcm`.

    .. math::
        y_i &\leftarrow y_i - \eta_k\,\big(\beta\,(\nabla f_i(y_i) - c_i + c) + (1-\beta)\,g_k\big)
            \quad\text{(m times, from } x_k) \\
        c_i^+ &= \text{the mean of the m gradients}
            = c_i - c + \frac1\beta\Big(\frac{x_k - y_i}{m\eta_k} - (1-\beta)g_k\Big), \qquad
        c \leftarrow c + \frac1n\sum_{i\in S_k}(c_i^+ - c_i)

    and the rest as `fedcm`. The server derives the mean of :math:`c_i^+ - c_i`. Each client remembers :math:`c_i`,
    first 0, so the clients must be identifiable and take part again, and their number n must be known. (The paper
    begins with :math:`c_i` and :math:`g_0` from one gradient of every client.)

    Arguments:
        fresh_weight: :math:`\beta` in (0, 1]; 1 is SCAFFOLD.

    Cheng, Huang, Wu, Yuan: Momentum benefits non-IID federated learning simply and provably, 2024, arXiv:2306.16504,
    SCAFFOLD-M.

    >>> from fedspam.problems import progress
    >>> progress(scaffold_m(10, 5, 0.05), rounds=100) < 0.1
    True
    """
    numbers = local_rate, server_step_size, fresh_weight
    return ScaffoldM(*numbers, cohort_size, local_steps, variance_reduction=False, name="scaffold_m")


def scaffold_m_vr(
    cohort_size: int, local_steps: int, local_rate: ScheduleLike,
    *, fresh_weight: float = 0.1, server_step_size: ScheduleLike = 1.0,
) -> ScaffoldM:  # fmt: skip
    r"""SCAFFOLD-M-VR: `scaffold_m` with variance reduction, by the recursion of `mvr` in every local step.

    .. math::
        y_i &\leftarrow y_i - \eta_k\,\big(\nabla f_i(y_i; \zeta) - \beta\,(c_i - c)
            + (1-\beta)\,(g_k - \nabla f_i(x_{k-1}; \zeta))\big) \quad\text{(m times, from } x_k) \\
        c_i^+ &= \text{the mean of the m gradients } \nabla f_i(y_i; \zeta)

    and the rest as `scaffold_m`. A step costs two gradients, both on the same minibatch :math:`\zeta`, and the server
    cannot derive :math:`c_i^+ - c_i` from the move. Without controls it is `fedcm_vr`; its fixed point is the optimum,
    with :math:`c_i = \nabla f_i(x^*)`, where that of `fedcm_vr` is not.

    Unverified: only the abstract was at hand, which announces a variance-reduced SCAFFOLD. This is `scaffold_m` with
    its momentum carried to the present point, as in `fedcm_vr`. The paper may begin with other :math:`c_i` and
    :math:`g_0`.

    Arguments:
        local_steps: m, each with two gradients on a minibatch of its own.
        fresh_weight: :math:`\beta` in (0, 1]; 1 is SCAFFOLD.

    Cheng, Huang, Wu, Yuan: Momentum benefits non-IID federated learning simply and provably, 2024, arXiv:2306.16504,
    SCAFFOLD-M-VR.

    >>> from fedspam.problems import progress
    >>> progress(scaffold_m_vr(10, 5, 0.05), rounds=100) < 0.1
    True
    """
    numbers = local_rate, server_step_size, fresh_weight
    return ScaffoldM(*numbers, cohort_size, local_steps, variance_reduction=True, name="scaffold_m_vr")


for _key, _name, _build, _facts in (
    ("fedcm", "FedCM, FedAvg-M", fedcm, {"estimator": "momentum", "down": Cost(2), "exact": False,
     "reference": f"Xu, Wang, Wang, Yao 2021, arXiv:2106.10874; {CHENG}"}),
    ("fedcm_vr", "FedAvg-M-VR", fedcm_vr, {"estimator": "MVR", "down": Cost(3), "partial": "no", "exact": False,
     "verified": "no"}),
    ("scaffold_m", "SCAFFOLD-M", scaffold_m, {"estimator": "SAG, momentum", "down": Cost(3), "stateless": "no"}),
    ("scaffold_m_vr", "SCAFFOLD-M-VR", scaffold_m_vr, {"estimator": "SAG, MVR", "down": Cost(4), "up": Cost(2),
     "stateless": "no", "verified": "no"}),
):  # fmt: skip
    register(_key, Entry(**{
        "name": _name, "build": _build, "oracle": "m steps", "grid": few_steps_grid, "reference": CHENG,
        "example": {"cohort_size": 4, "local_steps": 3, "local_rate": 0.3, "fresh_weight": 0.3}, **_facts,
    }))  # fmt: skip

"""DASHA-PP: compressed changes of an estimate that each client keeps, with cohorts and minibatches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedspam._internal import checks, trees
from fedspam._internal.trees import Key, Params, Scalar, count, dynamic, number, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import grid, over_smoothness
from fedspam.methods._method import RoundInfo, SpamState, Stateless, tracked_mean
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.schedules import Schedule, ScheduleLike, step_size_schedule


class DashaMemory(NamedTuple):
    """What a client remembers: its estimate of its gradient, and what the server knows of it."""

    h: Params
    g: Params


@struct
class DashaPP(Stateless):
    """DASHA-PP. Use `dasha_pp` to build it."""

    step_size: Schedule = dynamic(converter=step_size_schedule)
    compression_weight: float | Scalar = number(0, 1, open_low=True)  # a / p_a
    fresh_weight: float | Scalar | None = number(0, 1, open_low=True)  # b
    cohort_size: int = count()
    name: str = static(default="dasha_pp")

    def init(self, params: Params, key: Key, fed: Federation) -> SpamState:
        return SpamState(x=params, x_prev=params, g=trees.zeros_like(params), k=jnp.zeros((), jnp.int32))

    def round(self, state: SpamState, key: Key, fed: Federation) -> tuple[SpamState, RoundInfo]:
        gamma = self.step_size(state.k)

        cohort, clients = fed.sample(key, self.cohort_size), fed.everyone(key).size
        share = jnp.asarray(cohort.size / clients, jax.tree.leaves(state.x)[0].dtype)
        change = fed.mean(cohort, self.estimate_change, x=state.x, x_prev=state.x_prev, share=share)

        g = tracked_mean(state.g, change, fed, key)
        x = trees.axpy(-gamma, g, state.x)
        return SpamState(x, state.x, g, state.k + 1), RoundInfo(step_size=gamma, gradients=2 * cohort.size)

    @on_client(stateful=True, echo=True)
    def estimate_change(
        self, oracle: Oracle, key: Key, memory: DashaMemory, *, x: Params, x_prev: Params, share: Any
    ) -> tuple[Params, Callable[[Params], DashaMemory]]:
        h, g = memory
        b = share / (2 - share) if self.fresh_weight is None else self.fresh_weight
        here, there = jax.grad(oracle)(x, key), jax.grad(oracle)(x_prev, key)
        k = trees.subtract(trees.subtract(here, there), trees.scale(b, trees.subtract(h, there)))
        moved = trees.divide(k, share)
        message = trees.axpy(-self.compression_weight, trees.subtract(g, h), moved)
        return message, lambda arrived: DashaMemory(trees.add(h, moved), trees.add(g, arrived))

    def client_state(self, params: Params) -> DashaMemory:
        return DashaMemory(h=trees.zeros_like(params), g=trees.zeros_like(params))


def dasha_pp(
    cohort_size: int, step_size: ScheduleLike, *, omega: float = 0.0, fresh_weight: float | None = None
) -> DashaPP:
    r"""DASHA-PP: variance-reduced gradients, sent as compressed changes, with cohorts of some clients.

    With :math:`p_a = B/n`, each client i of the cohort :math:`S_k` does

    .. math::
        k_i &= \nabla f_i(x_k) - \nabla f_i(x_{k-1}) - b\,(h_i - \nabla f_i(x_{k-1})) \\
        m_i &= C\Bigl(\frac{1}{p_a}k_i - \frac{a}{p_a}(g_i - h_i)\Bigr), \quad
        h_i \leftarrow h_i + \frac1{p_a}k_i, \quad g_i \leftarrow g_i + m_i, \qquad a = \frac{p_a}{2\omega + 1} \\
        g_{k+1} &= g_k + \frac1n\sum_{i\in S_k} m_i, \qquad x_{k+1} = x_k - \gamma_k\,g_{k+1}

    C is the unbiased codec of the replies, which the run chooses, for example
    ``simulate(..., codecs={"up": "randk-0.1"})``; unlike `ef21_pp`, errors of the clients average out. Both gradients
    use the same minibatch, which makes it DASHA-PP-MVR. Without a codec and with all clients it is gradient descent for
    b = 1, and MVR with p = b otherwise.

    Theory for non-convex f: `fedspam.theory.dasha_step_size`. It starts from :math:`h_i = g_i = \nabla f_i(x_0)`; here
    both are 0, so that no exchange with everyone is needed. The start is forgotten at the rate b.

    Arguments:
        omega: :math:`\omega` of the codec, ``codec.omega(params)``; 0 without one.
        fresh_weight: b in (0, 1]; None for :math:`p_a/(2-p_a)`, that of the theory for whole gradients.

    Tyurin, Richtárik: A computation and communication efficient method for distributed nonconvex problems in the
    partial participation setting, 2022, arXiv:2205.15580, Algorithm 1.

    >>> from fedspam.problems import progress
    >>> progress(dasha_pp(10, 0.1), clients=20, rounds=200) < 0.01
    True
    """
    checks.between("omega", omega, 0, float("inf"), remedy="a codec states it: RandK(0.1).omega(params)")
    return DashaPP(step_size, 1 / (2 * omega + 1), fresh_weight, cohort_size)


register("dasha_pp", Entry(
    name="DASHA-PP", build=dasha_pp, verified="code", example={"cohort_size": 4, "step_size": 0.2}, stateless="no",
    estimator="compressed MVR", oracle="one step, by the server", down=Cost(2),
    grid=grid(step_size=over_smoothness(0.03, 0.1, 0.3, 1.0), fresh_weight=(0.03, 0.1, 0.3)),
    reference="Tyurin, Richtárik 2022, arXiv:2205.15580",
))  # fmt: skip

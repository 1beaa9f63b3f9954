"""LoCoDL: local steps whose number a coin decides, and compressed differences from a common point.

Unverified: the paper was not at hand.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Integer

from fedspam._internal import checks, prng, trees
from fedspam._internal.trees import Key, Params, Scalar, number, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._local import descend, until_heads
from fedspam.methods._method import RoundInfo, Stateless
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.scaffnew import coin_steps_grid


class LocodlState(NamedTuple):
    """What the server keeps: its point after the last average, its dual vector, and the average that clients use."""

    y: Params
    v: Params
    average: Params  # of all clients' points and the server's, each side with weight 1/2
    k: Any  # rounds that counted


class LocodlMemory(NamedTuple):
    """What a client remembers: its point, its dual vector, and the point that the server took for its own."""

    x: Params
    u: Params
    known: Params


@struct
class LoCoDL(Stateless):
    r"""LoCoDL. Use `locodl` to build it.

    A round is one communication and the local steps before it. What clients do with the average, they do at the
    beginning of their next task.
    """

    local_rate: float | Scalar
    probability: float | Scalar = number(0, 1, open_low=True, remedy="1 communicates after every step")
    shared_curvature: float | Scalar = number(0)  # lambda
    mixing: float | Scalar  # rho
    dual_rate: float | Scalar  # p chi / (eta (1 + 2 omega))
    name: str = static(default="locodl")

    def init(self, params: Params, key: Key, fed: Federation) -> LocodlState:
        return LocodlState(y=params, v=trees.zeros_like(params), average=params, k=jnp.zeros((), jnp.int32))

    def round(self, state: LocodlState, key: Key, fed: Federation) -> tuple[LocodlState, RoundInfo]:
        steps = until_heads(prng.fold_name(key, "coin"), self.probability)
        y = self._own_steps(state.y, state.v, steps)

        everyone = fed.everyone(key)
        difference = fed.mean(everyone, self.train_apart, average=state.average, y=y, steps=steps)

        half = trees.scale(0.5, difference)  # the paper's d
        v = trees.axpy(self.dual_rate, half, state.v)
        average = trees.add(y, half)
        y = trees.axpy(self.mixing, half, y)
        return LocodlState(y, v, average, state.k + 1), RoundInfo(steps=steps, gradients=everyone.size * steps)

    def _own_steps(self, y: Params, v: Params, steps: Integer[Array, ""]) -> Params:
        """The server's own local steps, on (lambda/2)|y|^2."""
        eta, shrink = self.local_rate, 1 - self.local_rate * self.shared_curvature
        return lax.fori_loop(0, steps, lambda _, y: trees.axpy(eta, v, trees.scale(shrink, y)), y)

    @on_client(stateful=True, echo=True)
    def train_apart(
        self, oracle: Oracle, key: Key, memory: LocodlMemory, *, average: Params, y: Params, steps: Integer[Array, ""]
    ) -> tuple[Params, Callable[[Params], LocodlMemory]]:
        x = trees.axpy(self.mixing, trees.subtract(average, memory.x), memory.x)
        u = trees.axpy(self.dual_rate, trees.subtract(average, memory.known), memory.u)
        # on f_i(x) - (lambda/2)|x|^2
        x = descend(
            oracle, key, x, steps=steps, local_rate=self.local_rate, shift=trees.scale(-1, u),
            pull=-1 * self.shared_curvature, anchor=trees.zeros_like(x),
        )  # fmt: skip
        return trees.subtract(x, y), lambda arrived: LocodlMemory(x, u, trees.add(y, arrived))

    def params(self, state: LocodlState) -> Params:
        return state.y

    def client_state(self, params: Params) -> LocodlMemory:
        return LocodlMemory(x=params, u=trees.zeros_like(params), known=params)


def locodl(
    local_rate: float, probability: float,
    *, omega: float = 0.0, mean_omega: float | None = None, shared_curvature: float = 0.0,
) -> LoCoDL:  # fmt: skip
    r"""LoCoDL: ScaffNew with compressed replies: a coin after each local step decides whether to communicate.

    The server has a point y and a loss :math:`g(y) = \frac\lambda2\|y\|^2` of its own, which is subtracted from the
    clients' losses: :math:`\tilde f_i = f_i - g`. So the sum is still f. All take local steps, and with
    probability p they communicate:

    .. math::
        \hat x_i &= x_i - \eta\,(\nabla\tilde f_i(x_i) - u_i), \qquad \hat y = y - \eta\,(\nabla g(y) - v) \\
        d_i &= C(\hat x_i - \hat y), \qquad d = \frac{1}{2n}\sum_i d_i, \qquad c = \frac{p\chi}{\eta(1 + 2\omega)} \\
        x_i &= (1-\rho)\,\hat x_i + \rho\,(\hat y + d), \quad u_i \leftarrow u_i + c\,(d - d_i), \quad
        y = \hat y + \rho d, \quad v \leftarrow v + c\,d

    C is the unbiased codec of the replies, which the run chooses, for example
    ``simulate(..., codecs={"up": "randk-0.1"})``. A round here is one communication: the number of steps before it is
    drawn at once. The paper broadcasts d alone, from which clients make copies of y; here the server sends :math:`\hat
    y + d` and its next :math:`\hat y`, so that a client that missed a round is not left behind. Without a codec it is
    `scaffnew` on the n clients and n copies of the server's loss.

    Theory, for :math:`\tilde f_i` and g :math:`\mu`-strongly convex and L-smooth: with :math:`\eta < 2/L` and
    :math:`\rho = \chi = 1/(1+\omega_{av})`, as here, errors shrink per local step by the factor
    :math:`\max\{(1-\eta\mu)^2, (1-\eta L)^2, 1 - p^2\chi/(1+2\omega)\}` (Theorem 3.1). `fedspam.theory.locodl_rate`
    has it. None for a sample of the clients.

    Arguments:
        omega: :math:`\omega` of the codec, ``codec.omega(params)``; 0 without one.
        mean_omega: :math:`\omega_{av}`, that of the mean of all n codecs; None for :math:`\omega`, which always
            holds. Independent draws, as those of the library, have :math:`\omega/n`.
        shared_curvature: :math:`\lambda`. The theory wants about half of the convexity of f; 0 works too.

    Condat, Maranjyan, Richtárik: LoCoDL: communication-efficient distributed learning with local training and
    compression, 2024, arXiv:2403.04348, Algorithm 1; from memory. Tests confirm the rate of the theorem on quadratics.

    >>> from fedspam.problems import progress
    >>> progress(locodl(0.1, 0.3), rounds=100) < 0.01
    True
    """
    checks.positive("local_rate", local_rate, "try 1 / L")
    checks.between("omega", omega, 0, float("inf"), remedy="a codec states it: RandK(0.1).omega(params)")
    mixing = 1 / (1 + (omega if mean_omega is None else mean_omega))
    dual_rate = probability * mixing / (local_rate * (1 + 2 * omega))
    return LoCoDL(local_rate, probability, shared_curvature, mixing, dual_rate)


register("locodl", Entry(
    name="LoCoDL", build=locodl, example={"local_rate": 0.7, "probability": 0.4}, partial="no", stateless="no",
    verified="no", nonconvex="no", estimator="dual, compressed", oracle="random m steps", down=Cost(2),
    grid=coin_steps_grid, reference="Condat, Maranjyan, Richtárik 2024, arXiv:2403.04348",
))  # fmt: skip

"""OLGA: a prox by the server's own client, accelerated, around compressed gradient differences of all clients."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedspam._internal import checks, prng, trees
from fedspam._internal.trees import Key, Params, Scalar, number, positive, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import grid, prox_sizes
from fedspam.methods._local import gradient
from fedspam.methods._method import RoundInfo, Stateless
from fedspam.methods._registry import Cost, Entry, register
from fedspam.solvers import LBFGS, Certificate, Exact, LocalSolver


class Anchored(NamedTuple):
    """Where an epoch began: the point w, the gradient of f and that of the delegate there."""

    x: Params
    full: Params
    own: Params


class OlgaState(NamedTuple):
    """What the server keeps between rounds."""

    x: Params
    own: Params  # the delegate's gradient at x
    anchor: Anchored
    z: Params  # the slow sequence
    k: Any  # rounds that counted


class DelegateMove(NamedTuple):
    """The delegate's prox, and its gradients before and after it."""

    x: Params
    before: Params
    after: Params
    certificate: Certificate


@struct
class Olga(Stateless):
    """OLGA. Use `olga` to build it."""

    solver: LocalSolver
    step_size: float | Scalar = positive()  # theta
    probability: float | Scalar  # p
    mixing: float | Scalar  # tau
    length: float | Scalar = positive()  # alpha
    convexity: float | Scalar = number(0)  # mu
    name: str = static(default="olga")

    def init(self, params: Params, key: Key, fed: Federation) -> OlgaState:
        full = fed.mean(fed.everyone(key), self.gradient, x=params)
        own = fed.mean(fed.client(0, key), self.gradient, x=params)
        anchor = Anchored(params, full, own)
        return OlgaState(x=params, own=own, anchor=anchor, z=params, k=jnp.zeros((), jnp.int32))

    def round(self, state: OlgaState, key: Key, fed: Federation) -> tuple[OlgaState, RoundInfo]:
        everyone, w = fed.everyone(key), state.anchor
        alpha, mu, tau = self.length, self.convexity, self.mixing
        # heads ends an epoch; its first step always happens, as the coin of round 0 is not thrown
        ends = (state.k > 0) & jax.random.bernoulli(prng.fold_name(key, "coin"), self.probability)

        def begin_epoch() -> tuple[Params, Params, Anchored, Params, Any]:  # Algorithm 2
            y = state.x
            full = fed.mean(everyone, self.gradient, x=y)
            t = trees.subtract(trees.subtract(w.own, w.full), trees.subtract(state.own, full))
            slope = trees.axpy(1 / self.step_size, trees.subtract(w.x, y), t)
            z = trees.axpy(alpha * mu, y, trees.axpy(-alpha * self.probability, slope, state.z))
            z = trees.divide(z, 1 + alpha * mu)
            x = trees.axpy(tau, trees.subtract(z, y), y)
            full = fed.mean(everyone, self.gradient, x=x)
            return x, full, Anchored(x, full, w.own), z, jnp.asarray(2 * everyone.size)

        def stay() -> tuple[Params, Params, Anchored, Params, Any]:  # Algorithm 1, lines 6 to 11
            shift = trees.subtract(state.own, w.own)
            change = fed.mean(everyone, self.shifted_change, x=state.x, anchor=w.x, shift=shift)
            g = trees.add(w.full, trees.add(shift, change))
            return state.x, g, w, state.z, jnp.asarray(2 * everyone.size)

        x, g, w, z, spent = fed.cond(ends, begin_epoch, stay)

        move = fed.mean(fed.client(0, key), self.delegate_prox, x=x, g=g, step_size=self.step_size)
        w = w._replace(own=trees.where(ends, move.before, w.own))
        gradients = spent + move.certificate.gradients + 2
        info = RoundInfo(step_size=self.step_size, certificate=move.certificate, gradients=gradients)
        return OlgaState(move.x, move.after, w, z, state.k + 1), info

    gradient = gradient

    @on_client(affine=True)
    def shifted_change(self, oracle: Oracle, key: Key, *, x: Params, anchor: Params, shift: Params) -> Params:
        change = trees.subtract(jax.grad(oracle)(x, None), jax.grad(oracle)(anchor, None))
        return trees.subtract(change, shift)

    @on_client
    def delegate_prox(self, oracle: Oracle, key: Key, *, x: Params, g: Params, step_size: Any) -> DelegateMove:
        y, certificate = self.solver(oracle, key, x=x, g=g, step_size=step_size)
        return DelegateMove(y, jax.grad(oracle)(x, None), jax.grad(oracle)(y, None), certificate)


def olga(
    step_size: float, probability: float, mixing: float, convexity: float,
    *, length: float | None = None, solver: LocalSolver = LBFGS(),
) -> Olga:  # fmt: skip
    r"""OLGA: similarity, compression and acceleration: a delegate moves, everyone sends compressed differences.

    An epoch begins at w with the exact :math:`\nabla f(w)`, and a coin with probability p ends it. Its steps are

    .. math::
        g_k &= \nabla f(w) + \nabla f_0(x_k) - \nabla f_0(w)
            + \frac1n\sum_i C\bigl(\nabla(f_i - f_0)(x_k) - \nabla(f_i - f_0)(w)\bigr) \\
        x_{k+1} &\approx \arg\min_y f_0(y) + \langle g_k - \nabla f_0(x_k), y\rangle
            + \tfrac{1}{2\theta}\|y - x_k\|^2

    and between two epochs, of which the last ended at y,

    .. math::
        G &= p\bigl(\nabla(f_0 - f)(w) - \nabla(f_0 - f)(y) + \tfrac1\theta(w - y)\bigr), \qquad
        z \leftarrow \frac{z + \alpha\mu\,y - \alpha G}{1 + \alpha\mu}, \qquad w \leftarrow \tau z + (1-\tau)\,y

    The delegate is client 0, in place of the paper's server with data of its own. C is the unbiased codec of the work
    ``shifted_change``; the full gradients at the ends of epochs are not compressed:
    ``simulate(..., codecs={"shifted_change": "randk-0.1"})``. A round is one step; one that begins an epoch has an
    exchange more, and full gradients in place of differences. Without a codec :math:`g_k = \nabla f(x_k)`, and for p =
    1 also :math:`G = \nabla f(y)`: that is the accelerated extragradient method of Kovalev, Beznosikov, Borodich,
    Gasnikov and Scutari 2022, arXiv:2205.15136.

    Theory, for :math:`\mu`-strongly convex f whose clients may be non-convex, with `fedspam.theory.olga_parameters`:
    :math:`\tilde O(1/p + \sqrt{\delta/\mu}\,(n^{-1/4}/p + p^{-1/2}))` exchanges (Theorem 1, Corollary 1), where C makes
    messages 1/p times smaller.

    Arguments:
        step_size, mixing, convexity: :math:`\theta`, :math:`\tau` in (0, 1], and :math:`\mu` of f, which may be 0.
        length: :math:`\alpha`; None for :math:`\theta/(8p\tau)`, the paper's.

    Bylinkin, Beznosikov: Accelerated methods with compressed communications for distributed optimization problems
    under data similarity, 2024, arXiv:2412.16414, Algorithms 1 and 2.

    >>> from fedspam.problems import progress
    >>> progress(olga(2.0, 0.5, mixing=0.5, convexity=1.0, solver=Exact()), rounds=30, clients=10) < 0.01
    True
    """
    checks.between("probability", probability, 0, 1, open_low=True)
    checks.between("mixing", mixing, 0, 1, open_low=True)
    length = step_size / (8 * probability * mixing) if length is None else length
    return Olga(solver, step_size, probability, mixing, length, convexity)


register("olga", Entry(
    name="OLGA", build=olga, similarity="yes", partial="no", nonsmooth="yes", nonconvex="no",
    example={"step_size": 2.0, "probability": 0.5, "mixing": 0.5, "convexity": 0.25, "solver": Exact()},
    estimator="SVRG, compressed", oracle="prox, delegate", phases=2, up=Cost(1, 3), down=Cost(3, 2), coin="no",
    grid=grid(step_size=prox_sizes, probability=(0.3,), mixing=(0.1, 0.3, 0.9), convexity=(0.0,)),
    reference="Bylinkin, Beznosikov 2024, arXiv:2412.16414",
))  # fmt: skip

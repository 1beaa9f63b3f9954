"""Accelerated Extragradient: a prox by one client, and two gradients of all."""

import jax.numpy as jnp

from fedspam._internal.trees import Key, struct
from fedspam.federation import Federation
from fedspam.methods._grids import step_grid
from fedspam.methods._method import RoundInfo, prox
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.s_dane import StableDane, StableState, center_of, next_v
from fedspam.methods.schedules import ScheduleLike
from fedspam.solvers import LBFGS, Exact, LocalSolver


@struct
class AccExtragradient(StableDane):
    """Accelerated Extragradient. Use `acc_extragradient` to build it."""

    def round(self, state: StableState, key: Key, fed: Federation) -> tuple[StableState, RoundInfo]:
        gamma, mu, weight = self.step_size(state.k), self.convexity, state.weight
        a, center = center_of(state, gamma / 2, True)

        everyone = fed.everyone(key)
        g = fed.mean(everyone, self.gradient, x=center)
        x, certificate = fed.mean(fed.client(0, key), self.prox, x=center, g=g, step_size=gamma)
        slope = fed.mean(everyone, self.gradient, x=x)

        v = next_v(state.v, a, mu, x, slope)
        weight = jnp.asarray((weight + a) / (1 + mu * a), weight.dtype)
        gradients = 2 * everyone.size + certificate.gradients
        info = RoundInfo(step_size=gamma, certificate=certificate, gradients=gradients)
        return StableState(x, v, weight, state.k + 1), info

    prox = prox  # type: ignore[assignment]


def acc_extragradient(
    step_size: ScheduleLike, *, convexity: float = 0.0, solver: LocalSolver = LBFGS()
) -> AccExtragradient:
    r"""Accelerated Extragradient: one client, the delegate, solves all proxes; the others only send gradients.

    .. math::
        \tfrac2\gamma a^2 &= A_k + a, \qquad c_k = \frac{A_kx_k + a v_k}{A_k + a}, \qquad A_0 = 0 \\
        x_{k+1} &\approx \arg\min_y f_0(y) + \langle\nabla f(c_k) - \nabla f_0(c_k), y\rangle
            + \tfrac{1}{2\gamma}\|y - c_k\|^2 \\
        v_{k+1} &= \frac{\mu a\,x_{k+1} + v_k - a\nabla f(x_{k+1})}{1 + \mu a}, \qquad
            A_{k+1} = \frac{A_k + a}{1 + \mu a}

    The delegate is client 0, in place of the paper's server with data of its own. :math:`\gamma = 1/\delta`,
    :math:`O(\sqrt{\delta/\mu}\log 1/\epsilon)` rounds on :math:`\mu`-strongly convex f. The weights A and a are those
    of S-DANE's authors, whose baseline it is; the paper has their limits.

    The argument `convexity` is :math:`\mu`, of f; 0 is always valid.

    Kovalev, Beznosikov, Borodich, Gasnikov, Scutari: Optimal gradient sliding and its application to distributed
    optimization under similarity, 2022, arXiv:2205.15136.

    >>> from fedspam.problems import progress
    >>> progress(acc_extragradient(step_size=5.0, convexity=1.0, solver=Exact()), rounds=20, clients=10) < 0.001
    True
    """
    return AccExtragradient(step_size, convexity, solver, None, accelerated=True, name="acc_extragradient")


register("acc_extragradient", Entry(
    name="Accelerated Extragradient", build=acc_extragradient, verified="code",
    example={"step_size": 0.5, "convexity": 0.25, "solver": Exact()}, similarity="yes", partial="no", nonconvex="no",
    estimator="exact", oracle="prox, delegate", phases=3, up=Cost(2, 1), down=Cost(2, 2), grid=step_grid,
    reference="Kovalev, Beznosikov, Borodich, Gasnikov, Scutari 2022, arXiv:2205.15136",
))  # fmt: skip

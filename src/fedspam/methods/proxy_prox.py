"""ProxyProx: a prox by a client that the server trusts, around a gradient that attackers cannot drag away."""

from fedspam._internal.trees import Key, count, dynamic, static, struct
from fedspam.federation import Federation
from fedspam.methods._grids import step_grid
from fedspam.methods._method import PointState, RoundInfo, Stateless, prox, sample_or_all
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.estimators import gradient
from fedspam.methods.schedules import Schedule, ScheduleLike, step_size_schedule
from fedspam.solvers import LBFGS, Exact, LocalSolver


@struct
class ProxyProx(Stateless):
    """ProxyProx. Use `proxy_prox` to build it."""

    solver: LocalSolver
    step_size: Schedule = dynamic(converter=step_size_schedule)
    cohort_size: int | None = count(1, "or None for everyone", or_none=True)
    proxy: int = count(0, "give the id of the client that you trust")
    name: str = static(default="proxy_prox")

    def round(self, state: PointState, key: Key, fed: Federation) -> tuple[PointState, RoundInfo]:
        x, gamma = state.x, self.step_size(state.k)

        cohort = sample_or_all(self.cohort_size, key, fed)
        g = fed.mean(cohort, self.gradient, x=x)
        x, certificate = fed.mean(fed.client(self.proxy, key), self.prox, x=x, g=g, step_size=gamma)

        gradients = cohort.size + certificate.gradients
        return PointState(x, state.k + 1), RoundInfo(step_size=gamma, certificate=certificate, gradients=gradients)

    gradient, prox = gradient, prox


def proxy_prox(
    cohort_size: int | None, step_size: ScheduleLike, *, proxy: int = 0, solver: LocalSolver = LBFGS()
) -> ProxyProx:
    r"""ProxyProx: the gradients of all clients, combined by a robust rule, and the prox of one trusted client.

    .. math::
        g_k &= \mathrm{aggregate}\big(\nabla f_i(x_k) : i\in S_k\big) \\
        x_{k+1} &\approx \arg\min_y \hat f(y) + \langle g_k - \nabla\hat f(x_k), y\rangle
            + \tfrac{1}{2\gamma_k}\|y - x_k\|^2

    :math:`\hat f` is the loss of the client `proxy`: data of the server's own, or a site that is trusted. The rule is
    that of the run, ``simulate(..., aggregate=TrimmedMean(0.2))``; attackers can move :math:`g_k` only as far as the
    rule lets them, and the prox is not theirs. Without a rule :math:`g_k` is the mean; if all clients take part, the
    step is then that of `dane_plus` with a fixed mover, and that of `svrs` with p = 1.

    A proxy that is the server itself would save its 3d floats. With :math:`\gamma \approx 1/\delta`, where
    :math:`\delta` is how far the Hessian of :math:`\hat f` is from that of the mean, alike clients need far fewer
    rounds than robust gradient descent with its step size of about 1/L. The error that the rule leaves in :math:`g_k`
    limits both.

    The authors' code, which calls this step FedProxyProx, and the abstract were at hand; the full text with its theory
    was not. A cohort of some clients is our addition.

    Arguments:
        proxy: id of the client whose loss is :math:`\hat f`. In simulated attacks choose one that is honest:
            ``not faults.is_adversary(proxy)``; client 0 always is an adversary there.

    Gaucher, Dieuleveut, Hendrikx: From inexact gradients to Byzantine robustness: acceleration and optimization under
    similarity, 2026, arXiv:2602.03329.

    >>> from fedspam.problems import progress
    >>> progress(proxy_prox(None, step_size=5.0, solver=Exact()), rounds=10, clients=10) < 0.001
    True
    """
    return ProxyProx(solver, step_size, cohort_size, proxy)


register("proxy_prox", Entry(
    name="ProxyProx", build=proxy_prox, verified="code",
    example={"cohort_size": None, "step_size": 5.0, "solver": Exact()}, similarity="yes", partial="no", nonconvex="no",
    estimator="robust gradient", oracle="prox, delegate", phases=2, up=Cost(1, 1), down=Cost(1, 2), grid=step_grid,
    reference="Gaucher, Dieuleveut, Hendrikx 2026, arXiv:2602.03329",
))  # fmt: skip

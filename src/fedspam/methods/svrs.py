"""SVRS and AccSVRS: a prox by the server's own client, corrected at an anchor.

AccSVRS is unverified: one of its constants is derived, and a term of its generalization, `olga`, is missing.
"""

from typing import NamedTuple

from fedspam._internal import checks, trees
from fedspam._internal.trees import Key, Params, Scalar, number, static, struct
from fedspam.federation import Federation
from fedspam.methods._grids import cohort_share, coin_grid, grid, prox_sizes
from fedspam.methods._method import RoundInfo, Stateless
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods._template import Factored, FactoredState
from fedspam.methods.estimators import SVRG, Anchor, coin
from fedspam.methods.schedules import ScheduleLike
from fedspam.solvers import LBFGS, Exact, LocalSolver


def svrs(
    cohort_size: int, step_size: ScheduleLike, probability: ScheduleLike, *, solver: LocalSolver = LBFGS()
) -> Factored:
    r"""SVRS: gradients from all clients, the prox always from the delegate, client 0.

    .. math::
        g_k &= \nabla f(w) + \nabla f_S(x_k) - \nabla f_S(w), \qquad
            w = x_k \text{ with probability } p, \text{ and in round } 0 \\
        x_{k+1} &\approx \arg\min_y f_0(y) + \langle g_k - \nabla f_0(x_k), y\rangle + \tfrac{1}{2\gamma}\|y - x_k\|^2

    When the anchor moves, everyone is asked in place of the cohort. The delegate stands for the paper's server with
    data of its own, to which nothing would travel. The paper's epochs of geometric length, each from where the last
    ended, are these coins. Theory, for :math:`\mu`-strongly convex f whose clients may be non-convex: :math:`\gamma =
    1/(2\sqrt n\delta)`, :math:`p = 1/n`, B = 1, :math:`O((n + \sqrt n\delta/\mu)\log 1/\epsilon)`.

    The paper's :math:`\theta` is :math:`\gamma`. Its accuracy, :math:`\|\nabla\phi(y)\|^2 \le \frac{\mu}{20\gamma}\|x_k
    - y_*\|^2`, is tighter where :math:`\gamma\mu` is small: ``LBFGS(stop=Relative(...))``.

    Lin, Han, Ye, Zhang: Stochastic distributed optimization under average second-order similarity, 2023,
    arXiv:2304.07504.

    >>> from fedspam.problems import progress
    >>> progress(svrs(2, step_size=1.0, probability=0.2, solver=Exact()), rounds=40, clients=10) < 0.01
    True
    """
    return Factored(SVRG(probability), solver, step_size, movers="delegate", cohort_size=cohort_size, name="svrs")


class AccSvrsState(NamedTuple):
    """What the server keeps: the state of SVRS, and the slow sequence z."""

    inner: FactoredState
    z: Params


@struct
class AccSvrs(Stateless):
    """AccSVRS. Use `acc_svrs` to build it."""

    inner: Factored
    mixing: float | Scalar  # tau
    convexity: float | Scalar = number(0)  # mu
    length: float | Scalar  # alpha
    name: str = static(default="acc_svrs")

    def init(self, params: Params, key: Key, fed: Federation) -> AccSvrsState:
        return AccSvrsState(self.inner.init(params, key, fed), params)

    def round(self, state: AccSvrsState, key: Key, fed: Federation) -> tuple[AccSvrsState, RoundInfo]:
        inner, k, svrg = state.inner, state.inner.k, self.inner.estimator
        assert isinstance(svrg, SVRG)
        anchor: Anchor = inner.estimate.memory
        p, gamma = svrg.probability(k), self.inner.step_size(k)

        # the coin that SVRG is about to throw: heads ends an epoch, whose last point is y
        ends, y, bend = coin(svrg.probability, key, k), inner.x, 0.5 * self.convexity * self.length
        slope = trees.scale(p / gamma, trees.subtract(anchor.x, y))
        z = trees.axpy(bend, y, trees.axpy(-self.length, slope, state.z))
        z = trees.where(ends, trees.divide(z, 1 + bend), state.z)
        x = trees.where(ends, trees.axpy(self.mixing, z, trees.scale(1 - self.mixing, y)), y)

        inner, info = self.inner.round(inner._replace(x=x), key, fed)
        return AccSvrsState(inner, z), info

    def params(self, state: AccSvrsState) -> Params:
        return state.inner.x


def acc_svrs(
    cohort_size: int, step_size: float, probability: float, mixing: float, convexity: float,
    *, length: float | None = None, solver: LocalSolver = LBFGS(),
) -> AccSvrs:  # fmt: skip
    r"""AccSVRS: epochs of SVRS, accelerated from the outside as in Katyusha X.

    .. math::
        w_{t+1} &= \tau z_t + (1-\tau)\,y_t, \qquad y_{t+1} = \text{an epoch of SVRS from } w_{t+1} \\
        G_{t+1} &= \tfrac{p}{\gamma}(w_{t+1} - y_{t+1}), \qquad
            z_{t+1} = \frac{z_t + \frac12\mu\alpha\,y_{t+1} - \alpha G_{t+1}}{1 + \frac12\mu\alpha}

    Theory: :math:`\gamma = 1/(2\sqrt n\delta)`, :math:`p = 1/n`, :math:`\tau = \frac14 n^{1/4}\sqrt{\mu/\delta}`,
    :math:`O((n + n^{3/4}\sqrt{\delta/\mu})\log 1/\epsilon)` contacts. The paper's :math:`\alpha` could not be checked;
    :math:`\alpha = \gamma/(2p\tau)` follows from matching Katyusha X, where an epoch is one step of length
    :math:`\gamma/p`. `olga`, which generalizes AccSVRS, adds :math:`p(\nabla(f_0 - f)(w) - \nabla(f_0 - f)(y))` to G,
    for one more gradient of everyone per epoch. This variant does without: the two differ where the delegate is unlike
    the others.

    Arguments:
        mixing, convexity: :math:`\tau` in (0, 1], and :math:`\mu` of f, which may be 0.
        length: :math:`\alpha`; None for :math:`\gamma/(2p\tau)`.

    Paper: as `svrs`.

    >>> from fedspam.problems import progress
    >>> progress(acc_svrs(2, 1.0, 0.2, mixing=0.5, convexity=1.0, solver=Exact()), rounds=60, clients=10) < 0.01
    True
    """
    checks.between("mixing", mixing, 0, 1, open_low=True)
    checks.between("probability", probability, 0, 1, open_low=True)
    inner = svrs(cohort_size, step_size, probability, solver=solver)
    return AccSvrs(inner, mixing, convexity, step_size / (2 * probability * mixing) if length is None else length)


_accelerated_grid = grid(step_size=prox_sizes, probability=cohort_share(1), mixing=(0.1, 0.3, 0.9), convexity=(0.0,))

for _key, _name, _build, _more, _build_grid in (
    ("svrs", "SVRS", svrs, {}, coin_grid),
    ("acc_svrs", "AccSVRS", acc_svrs, {"mixing": 0.5, "convexity": 0.25}, _accelerated_grid),
):
    register(_key, Entry(
        name=_name, build=_build, verified="no" if _build is acc_svrs else "text", similarity="yes", partial="partly",
        nonsmooth="yes", nonconvex="no",
        example={"cohort_size": 2, "step_size": 2.0, "probability": 0.2, "solver": Exact(), **_more}, estimator="SVRG",
        oracle="prox, delegate", phases=2, up=Cost(1, 1), down=Cost(2, 2), coin="no", grid=_build_grid,
        reference="Lin, Han, Ye, Zhang 2023, arXiv:2304.07504",
    ))  # fmt: skip

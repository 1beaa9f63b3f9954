"""I-CGM-RG-SAGA and I-CGM-RG-SVRG: recursive gradients, the prox of one fixed client."""

from fedspam.methods._grids import Axis, cohort_share, grid, prox_sizes
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods._template import Factored
from fedspam.methods.estimators import RecursiveSAGA, RecursiveSVRG
from fedspam.methods.schedules import ScheduleLike
from fedspam.solvers import LBFGS, Exact, LocalSolver


def rg_saga(
    cohort_size: int, step_size: ScheduleLike, pull: ScheduleLike,
    *, synchronizations: int = 2, solver: LocalSolver = LBFGS(),
) -> Factored:  # fmt: skip
    r"""I-CGM-RG-SAGA: clients remember a gradient, the delegate, client 0, moves.

    .. math::
        g_k &= (1-\beta)\,g_{k-1} + \beta\,\bigl(\nabla f_S(x_{k-1}) - b_S + \bar b\bigr)
            + \nabla f_S(x_k) - \nabla f_S(x_{k-1}), \qquad b_i \leftarrow \nabla f_i(x_{k-1}),\ i\in S \\
        x_{k+1} &\in \text{a-prox}(x_k, g_k, \gamma_k, 0)

    The first two rounds ask everyone, as in the paper: :math:`g_0 = \nabla f(x_0)`, then :math:`g_1 = \nabla f(x_1)`
    and :math:`b_i = \nabla f_i(x_1)`. After them there is no exchange with everyone, and no noise floor. The paper's
    solver takes a random number of gradient steps on phi; any a-prox satisfies the same two conditions. Theory:
    :math:`1/\gamma = 3\Delta_1 + 113\sqrt{n/B}\,\delta_B` and :math:`\beta = B/(112n)`, where :math:`\Delta_1` is the
    similarity of the delegate to f and :math:`\delta_B^2 = \delta^2(n-B)/(B(n-1))`; the authors run :math:`1/\gamma =
    \sqrt{n/B}\,\delta + \Delta_1` and :math:`\beta = B/n`.

    Arguments:
        step_size: one over the paper's :math:`\lambda`.
        pull: :math:`\beta` in [0, 1].
        synchronizations: rounds at the start that ask everyone. 1 saves the second one; 0 needs none, with all
            :math:`b_i = 0` and :math:`g_0 = \nabla f_S(x_0)`.

    Jiang, Rodomanov, Stich: Non-convex federated optimization under cost-aware client selection, 2025,
    arXiv:2512.05327.

    >>> from fedspam.problems import progress
    >>> progress(rg_saga(3, step_size=2.0, pull=0.3, solver=Exact()), rounds=40, clients=10) < 0.01
    True
    """
    estimator = RecursiveSAGA(pull, synchronizations)
    return Factored(estimator, solver, step_size, movers="delegate", cohort_size=cohort_size, name="rg_saga")


def rg_svrg(
    cohort_size: int, step_size: ScheduleLike, pull: ScheduleLike, probability: ScheduleLike,
    *, solver: LocalSolver = LBFGS(),
) -> Factored:  # fmt: skip
    r"""I-CGM-RG-SVRG: an anchor instead of memories, the delegate, client 0, moves.

    .. math::
        g_k &= (1-\beta)\,g_{k-1} + \beta\,\bigl(\nabla f_S(x_{k-1}) - \nabla f_S(w) + \nabla f(w)\bigr)
            + \nabla f_S(x_k) - \nabla f_S(x_{k-1}) \\
        w &= x_{k-1} \text{ with probability } p, \text{ and in round } 0; \qquad
            x_{k+1} \in \text{a-prox}(x_k, g_k, \gamma_k, 0)

    When the anchor moves, everyone is asked. The paper counts three gradients up; here clients know :math:`\beta` and
    send one combined vector. Arguments: as `rg_saga`.

    >>> from fedspam.problems import progress
    >>> progress(rg_svrg(3, step_size=2.0, pull=0.3, probability=0.3, solver=Exact()), rounds=40, clients=10) < 0.01
    True
    """
    estimator = RecursiveSVRG(pull, probability)
    return Factored(estimator, solver, step_size, movers="delegate", cohort_size=cohort_size, name="rg_svrg")


_axes: dict[str, Axis] = {"step_size": prox_sizes, "pull": cohort_share(0.1, 0.3, 1)}
_grid, _anchored_grid = grid(**_axes), grid(**_axes, probability=cohort_share(1))

for _key, _name, _build, _more, _estimator, _up, _down, _build_grid in (
    ("rg_saga", "I-CGM-RG-SAGA", rg_saga, {}, "RG-SAGA", Cost(2, 1), Cost(2, 2), _grid),
    ("rg_svrg", "I-CGM-RG-SVRG", rg_svrg, {"probability": 0.3}, "RG-SVRG", Cost(1, 1), Cost(3, 2), _anchored_grid),
):
    register(_key, Entry(
        name=_name, build=_build, example={"cohort_size": 4, "step_size": 2.0, "pull": 0.4, "solver": Exact(), **_more},
        similarity="yes", partial="yes" if _build is rg_saga else "partly",
        stateless="no" if _build is rg_saga else "yes", estimator=_estimator, oracle="a-prox, delegate", phases=2,
        up=_up, down=_down, coin="no", grid=_build_grid,
        reference="Jiang, Rodomanov, Stich 2025, arXiv:2512.05327",
    ))  # fmt: skip

"""SPAM-PP and SPAM-PPA: a cohort makes the estimate, one client or the whole cohort moves (Algorithms 2 and 3)."""

from typing import Any

from fedspam._internal import checks
from fedspam.methods._algorithm import start_from
from fedspam.methods._registry import Cost, Method, prox_grid, register
from fedspam.methods._template import Factored
from fedspam.methods.auto import Auto, auto
from fedspam.methods.estimators import MVR
from fedspam.methods.schedules import fresh_weight_schedule, step_size_schedule
from fedspam.solvers import LBFGS, Exact, LocalSolver


def spam_pp(
    cohort_size: int,
    step_size: Any = None,
    fresh_weight: Any = None,
    *,
    solver: LocalSolver | None = None,
    prox_client: str = "cohort",
    start: Any = "cohort",
    scale: float | None = None,
    first: str = "given",
) -> Factored | Auto:
    r"""SPAM with partial participation.

    .. math::
        g_k &= (1-p_k)\,g_{k-1} + \frac1B\sum_{i\in S_k}\bigl(\nabla f_i(x_k) - (1-p_k)\nabla f_i(x_{k-1})\bigr) \\
        x_{k+1} &\in \text{a-prox}(x_k, g_k, \gamma_k, \xi_k)

    Two exchanges a round: 2d floats down and d up for each client of the cohort, then d more down and d up for the
    prox client (2d down if it is fresh). Corrected theory: :math:`\gamma \le 1/(4\delta)`,
    :math:`p \ge 96r^2/(96r^2 + B)`, :math:`r = \gamma\delta`; the printed :math:`B^2` needs clients that the paper does
    not assume.

    Arguments:
        cohort_size: B.
        step_size: :math:`\gamma_k`: a number, one value per round, or a schedule. Without it and without a fresh
            weight, both choose themselves: see `auto`.
        fresh_weight: :math:`p_k`, likewise, in (0, 1].
        solver: how the prox client answers; L-BFGS until the relative certificate holds unless given.
        prox_client: 'cohort' picks it from the cohort, as the theorem does; 'fresh' asks another, as the pseudocode
            does.
        start: how :math:`g_0` is made: 'cohort' (one gradient each), 'client', 'zero', a number of exchanges, or the
            gradient.
        scale: s of MARS, in [0, 1]: how far the estimate trusts the gradient difference (see `MVR`); None is s = 1.
        first: 'given' keeps :math:`g_0` in round 0, 'update' runs the printed loop from there.

    Karagulyan, Shulgin, Sadiev, Richtárik: SPAM, 2024, arXiv:2405.20127, Algorithm 2.

    >>> import jax, jax.numpy as jnp
    >>> from fedspam import simulate, spam_pp
    >>> from fedspam.problems import quadratics
    >>> clients = quadratics(jax.random.key(0), clients=50, dimension=5, delta=0.1)
    >>> run = simulate(spam_pp(10, step_size=1.0, fresh_weight=0.2), clients, jnp.ones(5), rounds=60, key=1)
    >>> bool(jnp.linalg.norm(clients.gradient(run.params)) < 0.1 * jnp.linalg.norm(clients.gradient(jnp.ones(5))))
    True
    """
    checks.one_of("prox_client", prox_client, ("cohort", "fresh"))
    who = "one" if prox_client == "cohort" else "fresh"
    return _spam("spam_pp", cohort_size, step_size, fresh_weight, solver, who, start, scale, first)


def spam_ppa(
    cohort_size: int,
    step_size: Any = None,
    fresh_weight: Any = None,
    *,
    solver: LocalSolver | None = None,
    start: Any = "cohort",
    scale: float | None = None,
    first: str = "given",
) -> Factored | Auto:
    r"""SPAM with partial participation and averaging: every client of the cohort moves, the server averages.

    .. math:: x_{k+1} = \frac1B\sum_{i\in S_k} x_{k+1}^i, \qquad x_{k+1}^i \in \text{a-prox}(x_k, g_k, \gamma_k, i)

    3d floats down and 2d up for each client, in two exchanges. The paper needs :math:`\gamma \le 1/(4(\delta+L))` and
    bounds the gradient at the local points; weak convexity of f suffices.

    Arguments: as `spam_pp`.

    Karagulyan, Shulgin, Sadiev, Richtárik: SPAM, 2024, arXiv:2405.20127, Algorithm 3.
    """
    return _spam("spam_ppa", cohort_size, step_size, fresh_weight, solver, "average", start, scale, first)


def _spam(
    name: str,
    cohort_size: int,
    step_size: Any,
    fresh_weight: Any,
    solver: LocalSolver | None,
    who: str,
    start: Any,
    scale: float | None,
    first: str,
) -> Factored | Auto:
    if (step_size is None) != (fresh_weight is None):
        missing = "step_size" if step_size is None else "fresh_weight"
        raise ValueError(
            f"{missing} is missing; give both step_size and fresh_weight, or neither: then both are chosen"
        )
    if step_size is None:
        asked = {"prox_client='fresh'": who == "fresh", f"start={start!r}": start != "cohort",
                 f"scale={scale!r}": scale is not None, f"first={first!r}": first != "given"}  # fmt: skip
        if any(asked.values()):
            wrong = ", ".join(name for name, given in asked.items() if given)
            raise ValueError(f"{wrong} needs a step_size and a fresh weight; give them, or leave it out")
        return auto(cohort_size, solver=solver, who=who)
    return Factored(
        estimator=MVR(fresh_weight_schedule(fresh_weight), scale, first=first),
        solver=LBFGS() if solver is None else solver,
        step_size=step_size_schedule(step_size),
        start=start_from(start, cohort_size),
        who=who,
        cohort_size=cohort_size,
        name=name,
    )


for _key, _name, _build, _oracle, _up, _down in (
    ("spam_pp", "SPAM-PP", spam_pp, "a-prox, one client", Cost(1, 1), Cost(2, 1)),
    ("spam_ppa", "SPAM-PPA", spam_ppa, "a-prox, all", Cost(2), Cost(3)),
):
    register(_key, Method(
        name=_name, build=_build, example={"cohort_size": 4, "step_size": 1.0, "fresh_weight": 0.2, "solver": Exact()},
        similarity="yes", partial="yes", stateless="yes", nonsmooth="no" if _build is spam_ppa else "yes",
        nonconvex="yes", estimator="MVR", oracle=_oracle, phases=2, up=_up, down=_down, grid=prox_grid,
        reference="Karagulyan, Shulgin, Sadiev, Richtárik 2024, arXiv:2405.20127",
    ))  # fmt: skip

"""SPAM-PP and SPAM-PPA: a cohort makes the estimate, one client or the whole cohort moves (Algorithms 2 and 3)."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Key

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import prox_grid
from fedspam.methods._method import (
    MOVERS,
    Move,
    ProxInfo,
    SpamState,
    Start,
    StartLike,
    current_x,
    mvr_difference,
    no_memory,
    select_movers,
    start_from,
)
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.auto import Auto, auto
from fedspam.methods.auto_steps import AutoSteps
from fedspam.methods.schedules import (
    Schedule,
    ScheduleLike,
    first_fresh_weight,
    fresh_weight_schedule,
    step_size_schedule,
)
from fedspam.solvers import LBFGS, Exact, LocalSolver


@struct
class SpamPP:
    r"""SPAM-PP (Algorithm 2) and SPAM-PPA (Algorithm 3). Use `spam_pp` or `spam_ppa` to build it.

    The movers, who take the prox and whose answers are averaged, are 'one' client of the cohort, a 'fresh' client drawn
    apart from it, or the whole cohort ('average', which is SPAM-PPA). `Factored` lists more choices.
    """

    step_size: Schedule
    fresh_weight: Schedule
    solver: LocalSolver
    start: Start
    scale: float | Scalar | None = None
    movers: str = static(default="one")
    cohort_size: int = static(default=1)
    first: str = static(default="given")
    name: str = static(default="spam_pp")

    def __post_init__(self) -> None:
        checks.whole("cohort_size", self.cohort_size, 1)
        checks.between("scale", self.scale, 0, 1, remedy="1 is MVR, 0 is SGD with momentum")
        checks.one_of("movers", self.movers, MOVERS)
        checks.one_of("first", self.first, ("given", "update"))

    def init(self, params: Params, key: Key[Array, ""], fed: Federation) -> SpamState:
        g = self.start(params, key, fed)
        return SpamState(x=params, x_prev=params, g=g, k=jnp.zeros((), jnp.int32))

    def round(self, state: SpamState, key: Key[Array, ""], fed: Federation) -> tuple[SpamState, ProxInfo]:
        gamma = self.step_size(state.k)
        p = first_fresh_weight(self.fresh_weight, self.first, state.k)

        cohort = fed.sample(key, self.cohort_size)
        c = fed.mean(cohort, self.difference, x=state.x, x_prev=state.x_prev, fresh_weight=p)
        g = trees.axpy(1 - p, state.g, c)

        movers = select_movers(self.movers, cohort, key, fed)
        x, certificate = fed.mean(movers, self.prox, x=state.x, g=g, step_size=gamma)

        gradients = 2 * cohort.size + movers.size * certificate.gradients
        return SpamState(x=x, x_prev=state.x, g=g, k=state.k + 1), ProxInfo(gamma, certificate, gradients)

    @on_client(affine=True)
    def difference(
        self, oracle: Oracle, key: Key[Array, ""], *, x: Params, x_prev: Params, fresh_weight: Any
    ) -> Params:
        return mvr_difference(oracle, key, x, x_prev, fresh_weight, self.scale)

    @on_client
    def prox(self, oracle: Oracle, key: Key[Array, ""], *, x: Params, g: Params, step_size: Any) -> Move:
        return Move(*self.solver(oracle, key, x=x, g=g, step_size=step_size))

    params, client_state = current_x, no_memory


def spam_pp(
    cohort_size: int,
    step_size: ScheduleLike | None = None,
    fresh_weight: ScheduleLike | None = None,
    *,
    solver: LocalSolver = LBFGS(),
    prox_client: str = "cohort",
    start: StartLike = "cohort",
    scale: float | None = None,
    first: str = "given",
) -> SpamPP | Auto | AutoSteps:
    r"""SPAM with partial participation.

    .. math::
        g_k &= (1-p_k)\,g_{k-1} + \frac1B\sum_{i\in S_k}\bigl(\nabla f_i(x_k) - (1-p_k)\nabla f_i(x_{k-1})\bigr) \\
        x_{k+1} &\in \text{a-prox}(x_k, g_k, \gamma_k, \xi_k)

    Two exchanges per round: 2d floats down and d up for each client of the cohort, then d more down and d up for the
    prox client (2d down if it is fresh). Corrected theory: :math:`\gamma \le 1/(4\delta)`,
    :math:`p \ge 96r^2/(96r^2 + B)`, :math:`r = \gamma\delta`; the printed :math:`B^2` needs clients that the paper does
    not assume.

    Arguments:
        cohort_size: B.
        step_size: :math:`\gamma_k`: a number, one value per round, or a schedule. Leave out both this and the fresh
            weight to have them chosen: see `auto`.
        fresh_weight: :math:`p_k`, likewise, in (0, 1].
        solver: how the prox client answers.
        prox_client: 'cohort' picks it from the cohort, as the theorem does; 'fresh' draws another, as the pseudocode
            does.
        start: how :math:`g_0` is made: 'cohort' (one gradient each), 'client', 'zero', a number of exchanges, or the
            gradient.
        scale, first: as `spam`.

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
    movers = "one" if prox_client == "cohort" else "fresh"
    if step_size is None and fresh_weight is None:
        options = {"prox_client='fresh'": movers == "fresh", f"start={start!r}": start != "cohort",
                   f"scale={scale!r}": scale is not None, f"first={first!r}": first != "given"}  # fmt: skip
        if any(options.values()):
            wrong = ", ".join(option for option, given in options.items() if given)
            raise ValueError(f"{wrong} needs a step_size and a fresh_weight; give both, or leave it out")
        return auto(cohort_size, solver=solver, movers=movers)
    if step_size is None or fresh_weight is None:
        missing = "step_size" if step_size is None else "fresh_weight"
        raise ValueError(f"{missing} is missing; give both step_size and fresh_weight, or neither to have both chosen")
    return SpamPP(
        step_size=step_size_schedule(step_size),
        fresh_weight=fresh_weight_schedule(fresh_weight),
        solver=solver,
        start=start_from(start, cohort_size),
        scale=scale,
        movers=movers,
        cohort_size=cohort_size,
        first=first,
    )


def spam_ppa(
    cohort_size: int,
    step_size: ScheduleLike | None = None,
    fresh_weight: ScheduleLike | None = None,
    *,
    solver: LocalSolver = LBFGS(),
    start: StartLike = "cohort",
    scale: float | None = None,
    first: str = "given",
) -> SpamPP | Auto | AutoSteps:
    r"""SPAM with partial participation and averaging: every client of the cohort moves, the server averages.

    .. math:: x_{k+1} = \frac1B\sum_{i\in S_k} x_{k+1}^i, \qquad x_{k+1}^i \in \text{a-prox}(x_k, g_k, \gamma_k, i)

    3d floats down and 2d up for each client, in two exchanges. The paper needs :math:`\gamma \le 1/(4(\delta+L))` and
    bounds the gradient at the local points; weak convexity of f suffices.

    Arguments: as `spam_pp`.

    Karagulyan, Shulgin, Sadiev, Richtárik: SPAM, 2024, arXiv:2405.20127, Algorithm 3.
    """
    method = spam_pp(cohort_size, step_size, fresh_weight, solver=solver, start=start, scale=scale, first=first)
    name = "spam_ppa" if isinstance(method, SpamPP) else method.name
    return dataclasses.replace(method, movers="average", name=name)


for _key, _name, _build, _oracle, _up, _down in (
    ("spam_pp", "SPAM-PP", spam_pp, "a-prox, one client", Cost(1, 1), Cost(2, 1)),
    ("spam_ppa", "SPAM-PPA", spam_ppa, "a-prox, all", Cost(2), Cost(3)),
):
    register(_key, Entry(
        name=_name, build=_build, example={"cohort_size": 4, "step_size": 1.0, "fresh_weight": 0.2, "solver": Exact()},
        similarity="yes", nonsmooth="no" if _build is spam_ppa else "yes", estimator="MVR", oracle=_oracle, phases=2,
        up=_up, down=_down, grid=prox_grid, reference="Karagulyan, Shulgin, Sadiev, Richtárik 2024, arXiv:2405.20127",
    ))  # fmt: skip

"""SPAM-PP and SPAM-PPA: a cohort makes the estimate, one client or the whole cohort moves (Algorithms 2 and 3)."""

from fedspam._internal import checks, trees
from fedspam._internal.trees import Key, choice, count, struct
from fedspam.federation import Federation
from fedspam.methods._grids import prox_grid
from fedspam.methods._method import MOVERS, RoundInfo, SpamState, StartLike, difference, prox, select_movers, start_from
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.schedules import ScheduleLike, first_fresh_weight
from fedspam.methods.spam import SpamParameters
from fedspam.solvers import LBFGS, Exact, LocalSolver


@struct
class SpamPP(SpamParameters):
    r"""SPAM-PP (Algorithm 2) and SPAM-PPA (Algorithm 3). Use `spam_pp` or `spam_ppa` to build it.

    The movers, who take the prox and whose answers are averaged, are 'one' client of the cohort, a 'fresh' client drawn
    apart from it, or the whole cohort ('average', which is SPAM-PPA). `Factored` lists more choices.
    """

    movers: str = choice(*MOVERS, default="one")
    cohort_size: int = count(default=1)

    def round(self, state: SpamState, key: Key, fed: Federation) -> tuple[SpamState, RoundInfo]:
        gamma = self.step_size(state.k)
        p = first_fresh_weight(self.fresh_weight, self.first, state.k)

        cohort = fed.sample(key, self.cohort_size)
        c = fed.mean(cohort, self.difference, x=state.x, x_prev=state.x_prev, fresh_weight=p)
        g = trees.axpy(1 - p, state.g, c)

        movers = select_movers(self.movers, cohort, key, fed)
        x, certificate = fed.mean(movers, self.prox, x=state.x, g=g, step_size=gamma)

        gradients = 2 * cohort.size + movers.size * certificate.gradients
        info = RoundInfo(step_size=gamma, certificate=certificate, gradients=gradients)
        return SpamState(x=x, x_prev=state.x, g=g, k=state.k + 1), info

    difference, prox = difference, prox


def spam_pp(
    cohort_size: int, step_size: ScheduleLike, fresh_weight: ScheduleLike,
    *, solver: LocalSolver = LBFGS(), prox_client: str = "cohort", start: StartLike = "cohort",
    scale: float | None = None, first: str = "given",
) -> SpamPP:  # fmt: skip
    r"""SPAM with partial participation.

    .. math::
        g_k &= (1-p_k)\,g_{k-1} + \frac1B\sum_{i\in S_k}\bigl(\nabla f_i(x_k) - (1-p_k)\nabla f_i(x_{k-1})\bigr) \\
        x_{k+1} &\in \text{a-prox}(x_k, g_k, \gamma_k, \xi_k)

    Corrected theory: :math:`\gamma \le 1/(4\delta)`, :math:`p \ge 96r^2/(96r^2 + B)`, :math:`r = \gamma\delta`; the
    printed :math:`B^2` needs clients that the paper does not assume.

    Arguments:
        step_size: ``auto(B, movers="one")`` chooses it and the fresh weight itself.
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
    movers, start = "one" if prox_client == "cohort" else "fresh", start_from(start, cohort_size)
    return SpamPP(step_size, fresh_weight, solver, start, scale, first, "spam_pp", movers, cohort_size)


def spam_ppa(
    cohort_size: int, step_size: ScheduleLike, fresh_weight: ScheduleLike,
    *, solver: LocalSolver = LBFGS(), start: StartLike = "cohort", scale: float | None = None, first: str = "given",
) -> SpamPP:  # fmt: skip
    r"""SPAM with partial participation and averaging: every client of the cohort moves, the server averages.

    .. math:: x_{k+1} = \frac1B\sum_{i\in S_k} x_{k+1}^i, \qquad x_{k+1}^i \in \text{a-prox}(x_k, g_k, \gamma_k, i)

    The paper needs :math:`\gamma \le 1/(4(\delta+L))` and bounds the gradient at the local points; weak convexity of f
    suffices. Arguments: as `spam_pp`.

    Karagulyan, Shulgin, Sadiev, Richtárik: SPAM, 2024, arXiv:2405.20127, Algorithm 3.
    """
    start = start_from(start, cohort_size)
    return SpamPP(step_size, fresh_weight, solver, start, scale, first, "spam_ppa", "average", cohort_size)


for _key, _name, _build, _oracle, _up, _down in (
    ("spam_pp", "SPAM-PP", spam_pp, "a-prox, one client", Cost(1, 1), Cost(2, 1)),
    ("spam_ppa", "SPAM-PPA", spam_ppa, "a-prox, all", Cost(2), Cost(3)),
):
    register(_key, Entry(
        name=_name, build=_build, example={"cohort_size": 4, "step_size": 1.0, "fresh_weight": 0.2, "solver": Exact()},
        similarity="yes", nonsmooth="no" if _build is spam_ppa else "yes", estimator="MVR", oracle=_oracle, phases=2,
        up=_up, down=_down, grid=prox_grid, reference="Karagulyan, Shulgin, Sadiev, Richtárik 2024, arXiv:2405.20127",
    ))  # fmt: skip

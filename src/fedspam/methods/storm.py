"""STORM, STORM+ and META-STORM: MVR on the server, whose step size and fresh weight follow from what it observes."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, Scalar, count, number, positive, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import grid, over_smoothness, server_step_grid
from fedspam.methods._method import RoundInfo, Stateless
from fedspam.methods._registry import Cost, Entry, register


class Seen(NamedTuple):
    """What a rule observes in a round: squared norms of three vectors that the server has."""

    gradient: Scalar  # the cohort's gradient at x_k
    surprise: Scalar  # this cohort's gradient at x_{k-1} less the last cohort's; 0 in round 0
    estimate: Scalar  # g_k


class AdaptiveRule(Protocol):
    """The step size of a round and the fresh weight of the next, from sums over the past."""

    @property
    def kept(self) -> int:
        """Number of sums."""
        ...

    def __call__(self, sums: tuple[Scalar, ...], seen: Seen) -> tuple[tuple[Any, ...], Any, Any]:
        """The new sums, the step size of this round, the fresh weight of the next."""
        ...


@struct
class StormRule:
    """The rule of `storm`."""

    kept = 1
    kappa: float = positive()
    w: float = positive()
    c: float = positive()

    def __call__(self, sums: tuple[Scalar, ...], seen: Seen) -> tuple[tuple[Any, ...], Any, Any]:
        total = sums[0] + seen.gradient
        step_size = self.kappa / jnp.cbrt(self.w + total)
        return (total,), step_size, jnp.minimum(1, self.c * step_size**2)


@struct
class StormPlusRule:
    """The rule of `storm_plus`."""

    kept = 2
    step_size: float = positive()

    def __call__(self, sums: tuple[Scalar, ...], seen: Seen) -> tuple[tuple[Any, ...], Any, Any]:
        gradients = sums[0] + seen.gradient
        fresh_weight = jnp.cbrt(1 + gradients) ** -2
        estimates = sums[1] + seen.estimate / fresh_weight
        # all g = 0 so far: do not move
        step_size = jnp.where(estimates > 0, self.step_size / jnp.cbrt(estimates), 0)
        return (gradients, estimates), step_size, fresh_weight


@struct
class MetaStormRule:
    """The rule of `meta_storm`."""

    kept = 2
    step_size: float = positive()
    a: float = positive()
    b: float = positive()
    exponent: float = number(0, 0.5, open_low=True)  # r

    def __call__(self, sums: tuple[Scalar, ...], seen: Seen) -> tuple[tuple[Any, ...], Any, Any]:
        surprises, estimates = sums[0] + seen.surprise, sums[1] + seen.estimate
        fresh_weight = jnp.cbrt(1 + surprises / self.a) ** -2
        step_size = self.step_size * fresh_weight ** ((1 - self.exponent) / 2) / (self.b + estimates) ** self.exponent
        return (surprises, estimates), step_size, fresh_weight


class StormState(NamedTuple):
    """What the server keeps between rounds."""

    x: Params
    x_prev: Params
    g: Params
    gradient: Params  # the last cohort's, at x_prev
    sums: tuple[Scalar, ...]
    fresh_weight: Scalar  # of the coming round, fixed before its cohort is drawn
    k: Any


@struct
class Storm(Stateless):
    r"""Server MVR with an adaptive rule. Use `storm`, `storm_plus` or `meta_storm` to build it.

    .. math::
        g_k &= \nabla f_S(x_k) + (1-p_k)\,(g_{k-1} - \nabla f_S(x_{k-1})), \qquad p_0 = 1 \\
        x_{k+1} &= x_k - \gamma_k g_k

    The rules need the cohort's gradient itself, so each client sends its two gradients separately: 2d floats down, 2d
    up.
    """

    rule: AdaptiveRule
    cohort_size: int = count()
    name: str = static(kw_only=True)

    def init(self, params: Params, key: Key, fed: Federation) -> StormState:
        dtype = jnp.result_type(*jax.tree.leaves(params))
        zero = trees.zeros_like(params)
        sums = (jnp.zeros((), dtype),) * self.rule.kept
        return StormState(params, params, zero, zero, sums, jnp.ones((), dtype), jnp.zeros((), jnp.int32))

    def round(self, state: StormState, key: Key, fed: Federation) -> tuple[StormState, RoundInfo]:
        cohort = fed.sample(key, self.cohort_size)
        here, there = fed.mean(cohort, self.gradients, x=state.x, x_prev=state.x_prev)

        p = state.fresh_weight
        g = trees.axpy(1 - p, trees.subtract(state.g, there), here)
        surprise = jnp.where(state.k == 0, 0, trees.squared_norm(trees.subtract(there, state.gradient)))
        seen = Seen(trees.squared_norm(here), surprise, trees.squared_norm(g))
        sums, gamma, fresh_weight = self.rule(state.sums, seen)
        x = trees.axpy(-gamma, g, state.x)

        sums = tuple(new.astype(old.dtype) for new, old in zip(sums, state.sums, strict=True))
        state = StormState(x, state.x, g, here, sums, fresh_weight.astype(p.dtype), state.k + 1)
        return state, RoundInfo(step_size=gamma, fresh_weight=p, gradients=2 * cohort.size)

    @on_client(affine=True)
    def gradients(self, oracle: Oracle, key: Key, *, x: Params, x_prev: Params) -> tuple[Params, Params]:
        return jax.grad(oracle)(x, key), jax.grad(oracle)(x_prev, key)


def storm(cohort_size: int, *, kappa: float = 1.0, w: float = 10.0, c: float = 100.0) -> Storm:
    r"""STORM as published: step size and fresh weight from the gradients so far.

    .. math:: \gamma_k = \frac{\kappa}{(w + \sum_{i\le k}\|\nabla f_{S_i}(x_i)\|^2)^{1/3}}, \qquad
        p_{k+1} = \min(1, c\gamma_k^2)

    For f of smoothness L and gradients of at most G the theorem takes :math:`\kappa = bG^{2/3}/L`, :math:`c = 28L^2 +
    G^2/(7L\kappa^3)` and :math:`w = \max\{(4L\kappa)^3, 2G^2, (c\kappa/4L)^3\}` for any b. The defaults are those of
    the authors' code, which keeps the sums for each coordinate and clips g; here they are of whole vectors and nothing
    is clipped, as published.

    Arguments:
        kappa, w: the scale of the steps, and what damps the first ones.
        c: the ratio of fresh weight to squared step size, of the order of L².

    Cutkosky, Orabona: Momentum-based variance reduction in non-convex SGD, 2019, arXiv:1905.10018, Algorithm 1.

    >>> from fedspam.problems import progress
    >>> progress(storm(10, kappa=0.5, c=10.0), rounds=200, clients=50) < 0.1
    True
    """
    return Storm(StormRule(kappa, w, c), cohort_size=cohort_size, name="storm")


def storm_plus(cohort_size: int, *, step_size: float = 1.0) -> Storm:
    r"""STORM+: no parameter at all in theory, and one scale in practice.

    .. math:: p_{k+1} = \Bigl(1 + \sum_{i\le k}\|\nabla f_{S_i}(x_i)\|^2\Bigr)^{-2/3}, \qquad
        \gamma_k = \gamma\,\Bigl(\sum_{i\le k}\|g_i\|^2/p_{i+1}\Bigr)^{-1/3}

    The theory bounds losses and gradients.

    Arguments:
        step_size: :math:`\gamma`; 1 in the paper.

    Levy, Kavis, Cevher: STORM+, 2021, arXiv:2111.01040.

    >>> from fedspam.problems import progress
    >>> progress(storm_plus(10), rounds=200, clients=50) < 0.1
    True
    """
    return Storm(StormPlusRule(step_size), cohort_size=cohort_size, name="storm_plus")


def meta_storm(
    cohort_size: int, step_size: float = 1.0, *, a: float = 1.0, b: float = 1.0, exponent: float = 0.5
) -> Storm:
    r"""META-STORM: the fresh weight follows the variance, measured by two cohorts at the same point.

    .. math:: p_{k+1} = \Bigl(1 + \frac1a\sum_{i<k}\|\nabla f_{S_i}(x_i) - \nabla f_{S_{i+1}}(x_i)\|^2\Bigr)^{-2/3},
        \qquad \gamma_k = \frac{\gamma\,p_{k+1}^{(1-r)/2}}{(b + \sum_{i\le k}\|g_i\|^2)^r}

    The sum for :math:`p_{k+1}` ends at i = k - 1, the last point at which two cohorts have sent gradients, so that it
    is fixed before the cohort of round k + 1 is drawn.

    Arguments:
        a, b: the scale of the variance, and what damps the first steps.
        exponent: r in (0, 1/2]; the paper's pair of exponents adds up as :math:`r + 2q = 1`.

    Liu, Nguyen, Nguyen, Ene, Nguyen: META-STORM, 2022, arXiv:2209.14853.

    >>> from fedspam.problems import progress
    >>> progress(meta_storm(10, step_size=0.3), rounds=200, clients=50) < 0.1
    True
    """
    return Storm(MetaStormRule(step_size, a, b, exponent), cohort_size=cohort_size, name="meta_storm")


_storm_grid = grid(
    kappa=over_smoothness(0.1, 0.3, 1.0, 3.0), c=lambda scales: [c * scales.smoothness**2 for c in (0.3, 3.0, 30.0)]
)

for _key, _name, _build, _example, _grid, _reference in (
    ("storm", "STORM", storm, {"kappa": 0.5, "c": 1.0}, _storm_grid, "Cutkosky, Orabona 2019, arXiv:1905.10018"),
    ("storm_plus", "STORM+", storm_plus, {}, server_step_grid, "Levy, Kavis, Cevher 2021, arXiv:2111.01040"),
    ("meta_storm", "META-STORM", meta_storm, {}, server_step_grid,
     "Liu, Nguyen, Nguyen, Ene, Nguyen 2022, arXiv:2209.14853"),
):  # fmt: skip
    register(_key, Entry(
        name=_name, build=_build, example={"cohort_size": 4, **_example}, estimator="MVR, adaptive", up=Cost(2),
        verified="text" if _build is storm else "code", down=Cost(2), grid=_grid, reference=_reference,
    ))  # fmt: skip

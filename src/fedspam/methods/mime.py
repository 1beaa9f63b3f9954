"""Mime: local steps of a central optimizer whose statistics the server keeps, corrected; MimeLite does not correct."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, count, dynamic, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._central import Adam, Base, Momentum, Plain, Recursive
from fedspam.methods._grids import grid, local_grid, recursive_grid, with_fixed
from fedspam.methods._local import gradient, surrogate_steps
from fedspam.methods._method import OptimizerState, RoundInfo, Start, StartLike, Stateless, Zero, start_from
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods._template import Factored
from fedspam.methods.estimators import MVR
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule


class LiteReply(NamedTuple):
    """The move of a client's model, and what it observed at the server's point."""

    moved: Params
    observed: Params


@struct
class Mime(Stateless):
    """Mime with SGD, momentum or Adam. Use `mime` to build it."""

    base: Base
    local_rate: Schedule = dynamic(converter=positive_schedule)
    server_step_size: Schedule = dynamic(converter=positive_schedule)
    cohort_size: int = count()
    local_steps: int = count()
    start: Start = Zero()
    minibatch: bool = static(default=False)
    name: str = static(default="mime")

    def init(self, params: Params, key: Key, fed: Federation) -> OptimizerState:
        return OptimizerState(params, self.base.init(params, self.start(params, key, fed)), jnp.zeros((), jnp.int32))

    def round(self, state: OptimizerState, key: Key, fed: Federation) -> tuple[OptimizerState, RoundInfo]:
        x, s, eta = state.x, state.memory, self.local_rate(state.k)

        cohort = fed.sample(key, self.cohort_size)
        c = fed.mean(cohort, self.gradient, x=x)
        moved = fed.mean(cohort, self.train, x=x, control=c, statistics=s, local_rate=eta)

        s = self.base.update(c, x, s)
        x = trees.axpy(self.server_step_size(state.k), moved, x)
        # the first local step needs no gradient, and without minibatches the one at x is that of the first exchange
        spent = 1 + (2 if self.minibatch else 1) * (self.local_steps - 1)
        return OptimizerState(x, s, state.k + 1), RoundInfo(local_rate=eta, gradients=cohort.size * spent)

    gradient = gradient

    @on_client
    def train(
        self, oracle: Oracle, key: Key, *, x: Params, control: Params, statistics: Any, local_rate: Any
    ) -> Params:
        gradient, whole = jax.grad(oracle), jax.grad(oracle)(x, None)

        def step(j: Any, y: Params) -> Params:
            own_key = jax.random.fold_in(key, j) if self.minibatch else None
            at_x = gradient(x, own_key) if self.minibatch else whole
            corrected = lambda y: trees.add(trees.subtract(gradient(y, own_key), at_x), control)
            return trees.axpy(-local_rate, self.base.direction(corrected, y, statistics), y)

        # at x the two gradients cancel, on every minibatch
        first = trees.axpy(-local_rate, self.base.direction(lambda y: control, x, statistics), x)
        return trees.subtract(lax.fori_loop(1, self.local_steps, step, first), x)


@struct
class MimeLite(Mime):
    """Mime without the correction. Use `mime_lite` or `mime_lite_mvr` to build it."""

    def round(self, state: OptimizerState, key: Key, fed: Federation) -> tuple[OptimizerState, RoundInfo]:
        x, s, eta = state.x, state.memory, self.local_rate(state.k)

        cohort = fed.sample(key, self.cohort_size)
        reply = fed.mean(cohort, self.train, x=x, statistics=s, local_rate=eta)

        s = self.base.update(reply.observed, x, s)
        x = trees.axpy(self.server_step_size(state.k), reply.moved, x)
        gradients = cohort.size * self.base.points * (self.local_steps + 1)
        return OptimizerState(x, s, state.k + 1), RoundInfo(local_rate=eta, gradients=gradients)

    @on_client
    def train(self, oracle: Oracle, key: Key, *, x: Params, statistics: Any, local_rate: Any) -> LiteReply:
        gradient = jax.grad(oracle)

        def step(j: Any, y: Params) -> Params:
            own_key = jax.random.fold_in(key, j)
            direction = self.base.direction(lambda y: gradient(y, own_key), y, statistics)
            return trees.axpy(-local_rate, direction, y)

        moved = trees.subtract(lax.fori_loop(0, self.local_steps, step, x), x)
        return LiteReply(moved, self.base.observe(lambda x: gradient(x, None), x, statistics))


def mime(
    cohort_size: int, local_steps: int, local_rate: ScheduleLike,
    *, base: Base | None = None, server_step_size: ScheduleLike = 1.0, minibatch: bool = False,
) -> Mime:  # fmt: skip
    r"""Mime: local steps imitate those of the central optimizer, with the cohort's gradient as control.

    .. math::
        c &= \frac1B\sum_{i\in S_k}\nabla f_i(x_k) \\
        y_i &\leftarrow y_i - \eta_k\,U(\nabla f_i(y_i) - \nabla f_i(x_k) + c;\ s) \quad\text{(m times, from } x_k) \\
        x_{k+1} &= x_k + \eta_s\,\frac1B\sum_{i\in S_k}(y_i - x_k), \qquad s \leftarrow V(c, s)

    The statistics s are frozen during the local steps. With momentum variance reduction it is `mime_mvr`.

    Arguments:
        local_steps: m. One step and :math:`\eta_s = 1` make it the central optimizer on the cohort.
        base: `Momentum`, `Adam` or `Plain`, which is SGD and the default.
        minibatch: whether a local step sees one minibatch, the same at :math:`y_i` and :math:`x_k`; c is always made of
            whole gradients.

    Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh: Breaking the centralized barrier for cross-device federated
    learning (Mime), 2021, arXiv:2008.03606, Algorithm 1 and Table 2.

    >>> from fedspam.problems import progress
    >>> progress(mime(20, 10, 0.09)) < 1e-3
    True
    """
    base = Plain() if base is None else base
    name = {Momentum: "mime_momentum", Adam: "mime_adam"}.get(type(base), "mime")
    return Mime(base, local_rate, server_step_size, cohort_size, local_steps, minibatch=minibatch, name=name)


def mime_mvr(
    cohort_size: int, local_steps: int, local_rate: float, fresh_weight: ScheduleLike,
    *, minibatch: bool = False, start: StartLike = "cohort", first: str = "given",
) -> Factored:  # fmt: skip
    r"""MimeMVR: m local steps along the cohort's variance-reduced estimate, then the average.

    .. math:: y_i \leftarrow y_i - \eta\,(\nabla f_i(y_i) - \nabla f_i(x_k) + g_k), \qquad
        x_{k+1} = \frac1B\sum_{i\in S_k} y_i

    where :math:`g_k` is the estimate of SPAM-PP. So it is SPAM-PPA with m gradient steps in place of the prox and
    :math:`\gamma = \infty`, and :math:`m\eta` in the role of :math:`\gamma`. With :math:`m \ge L/\delta` and
    :math:`\eta \approx 1/(\delta m)` it takes :math:`O(\delta F/\epsilon + \zeta^2/(B\epsilon) + \delta\zeta F/(\sqrt
    B\epsilon^{3/2}))` rounds.

    Arguments:
        cohort_size, local_steps, minibatch: as `mime`.
        start, first: as in `fedspam.spam_pp`.

    Karimireddy et al.: Mime, 2021, arXiv:2008.03606; the printed s is :math:`(g_{k-1}, x_{k-1})`.

    >>> from fedspam.problems import progress
    >>> progress(mime_mvr(10, 10, 0.09, 0.2)) < 0.1
    True
    """
    estimator, start = MVR(fresh_weight, first=first), start_from(start, cohort_size)
    solver = surrogate_steps(local_steps, local_rate, minibatch, recursive=False)
    return Factored(estimator, solver, jnp.inf, start, movers="average", cohort_size=cohort_size, name="mime_mvr")


def mime_lite(
    cohort_size: int, local_steps: int, local_rate: ScheduleLike,
    *, base: Base | None = None, server_step_size: ScheduleLike = 1.0,
) -> MimeLite:  # fmt: skip
    r"""MimeLite: Mime without the correction, so that one exchange suffices.

    .. math:: y_i \leftarrow y_i - \eta_k\,U(\nabla f_i(y_i);\ s), \qquad
        s \leftarrow V\Bigl(\frac1B\sum_{i\in S_k}\nabla f_i(x_k),\ s\Bigr)

    Each local step sees a minibatch of its own. With SGD it is FedAvg, and like FedAvg it has a biased fixed point for
    m > 1. Arguments: as `mime`.

    Karimireddy et al.: Mime, 2021, arXiv:2008.03606, Algorithm 1.
    """
    base = Plain() if base is None else base
    return MimeLite(base, local_rate, server_step_size, cohort_size, local_steps, name="mime_lite")


def mime_lite_mvr(
    cohort_size: int, local_steps: int, local_rate: ScheduleLike, fresh_weight: float,
    *, server_step_size: ScheduleLike = 1.0, start: StartLike = "cohort",
) -> MimeLite:  # fmt: skip
    r"""MimeLite with momentum variance reduction: the old estimate, corrected on each client and at each local step.

    .. math:: y_i \leftarrow y_i - \eta_k\bigl(\nabla f_i(y_i) + (1-p)(g_{k-1} - \nabla f_i(x_{k-1}))\bigr)

    In round 0 :math:`x_{-1} = x_0` and :math:`g_{-1}` is the start. Arguments: as `mime_mvr`, but the fresh weight is
    one number, and the local rate may be a schedule.
    """
    base, start = Recursive(fresh_weight), start_from(start, cohort_size)
    return MimeLite(base, local_rate, server_step_size, cohort_size, local_steps, start, name="mime_lite_mvr")


# the length of Adam's steps is their rate, on the scale of x itself
_adam_grid = grid(local_rate=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3), local_steps=(1, 5), base=(Adam(),))
_REFERENCE = "Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh 2021, arXiv:2008.03606"
_EXAMPLE = {"cohort_size": 4, "local_steps": 5, "local_rate": 0.3}


for _key, _name, _base, _down, _grid in (
    ("mime", "Mime, SGD", {}, Cost(2), local_grid),
    ("mime_momentum", "Mime, momentum", {"base": Momentum(0.5)}, Cost(3), with_fixed(local_grid, base=Momentum())),
    ("mime_adam", "Mime, Adam", {"base": Adam(0.5, 0.9, 0.1), "local_rate": 0.03}, Cost(4), _adam_grid),
):
    register(_key, Entry(
        name=_name, build=mime, verified="code", example={**_EXAMPLE, **_base}, similarity="partly",
        estimator="cohort gradient", oracle="m steps", phases=2, up=Cost(2), down=_down, grid=_grid,
        reference=_REFERENCE,
    ))  # fmt: skip

register("mime_mvr", Entry(
    name="MimeMVR", build=mime_mvr, example={**_EXAMPLE, "fresh_weight": 0.2}, similarity="yes", estimator="MVR",
    oracle="m steps", phases=2, up=Cost(2), down=Cost(3), grid=recursive_grid, reference=_REFERENCE,
))  # fmt: skip

for _key, _name, _build, _more, _down, _grid in (
    ("mime_lite", "MimeLite, momentum", mime_lite, {"base": Momentum(0.5)}, Cost(2),
     with_fixed(local_grid, base=Momentum())),
    ("mime_lite_mvr", "MimeLiteMVR", mime_lite_mvr, {"fresh_weight": 0.2}, Cost(3), recursive_grid),
):  # fmt: skip
    register(_key, Entry(
        name=_name, build=_build, example={**_EXAMPLE, "local_steps": 3, **_more}, similarity="partly", up=Cost(2),
        verified="code" if _build is mime_lite else "text", down=_down, estimator="server statistics", oracle="m steps",
        exact=False, grid=_grid, reference=_REFERENCE,
    ))  # fmt: skip

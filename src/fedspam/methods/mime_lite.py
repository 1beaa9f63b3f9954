"""MimeLite: Mime without control variates, and MimeLiteMVR."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Key

from fedspam._internal import trees
from fedspam._internal.trees import Params, count, dynamic, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._central import Base, Momentum, Plain, Recursive
from fedspam.methods._grids import local_grid, recursive_grid, with_fixed
from fedspam.methods._method import RoundInfo, Start, StartLike, Stateless, Zero, start_from
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.mime import _EXAMPLE, _REFERENCE, MimeState
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule


class LiteReply(NamedTuple):
    """The move of a client's model, and what it observed at the server's point."""

    moved: Params
    observed: Params


@struct
class MimeLite(Stateless):
    """MimeLite. Use `mime_lite` or `mime_lite_mvr` to build it."""

    base: Base
    local_rate: Schedule = dynamic(converter=positive_schedule)
    server_step_size: Schedule = dynamic(converter=positive_schedule)
    start: Start
    cohort_size: int = count()
    local_steps: int = count()
    name: str = static()

    def init(self, params: Params, key: Key[Array, ""], fed: Federation) -> MimeState:
        return MimeState(params, self.base.init(params, self.start(params, key, fed)), jnp.zeros((), jnp.int32))

    def round(self, state: MimeState, key: Key[Array, ""], fed: Federation) -> tuple[MimeState, RoundInfo]:
        x, s, eta = state.x, state.statistics, self.local_rate(state.k)

        cohort = fed.sample(key, self.cohort_size)
        reply = fed.mean(cohort, self.train, x=x, statistics=s, local_rate=eta)

        s = self.base.update(reply.observed, x, s)
        x = trees.axpy(self.server_step_size(state.k), reply.moved, x)
        gradients = cohort.size * self.base.points * (self.local_steps + 1)
        return MimeState(x, s, state.k + 1), RoundInfo(local_rate=eta, gradients=gradients)

    @on_client
    def train(self, oracle: Oracle, key: Key[Array, ""], *, x: Params, statistics: Any, local_rate: Any) -> LiteReply:
        gradient = jax.grad(oracle)

        def step(j: Any, y: Params) -> Params:
            own_key = jax.random.fold_in(key, j)
            direction = self.base.direction(lambda y: gradient(y, own_key), y, statistics)
            return trees.axpy(-local_rate, direction, y)

        moved = trees.subtract(lax.fori_loop(0, self.local_steps, step, x), x)
        return LiteReply(moved, self.base.observe(lambda x: gradient(x, None), x, statistics))


def mime_lite(
    cohort_size: int,
    local_steps: int,
    local_rate: ScheduleLike,
    *,
    base: Base | None = None,
    server_step_size: ScheduleLike = 1.0,
) -> MimeLite:
    r"""MimeLite: Mime without the correction, so that one exchange suffices.

    .. math:: y_i \leftarrow y_i - \eta_k\,U(\nabla f_i(y_i);\ s), \qquad
        s \leftarrow V\Bigl(\frac1B\sum_{i\in S_k}\nabla f_i(x_k),\ s\Bigr)

    d floats and s down, 2d up for each client, no state on clients. Each local step sees a minibatch of its own. With
    SGD it is FedAvg, and like FedAvg it has a biased fixed point for m > 1.

    Arguments: as `mime`.

    Karimireddy et al.: Mime, 2021, arXiv:2008.03606, Algorithm 1.

    >>> mime_lite(10, 5, 0.05, base=Momentum(0.5)).base.momentum
    0.5
    """
    base = Plain() if base is None else base
    return MimeLite(base, local_rate, server_step_size, Zero(), cohort_size, local_steps, "mime_lite")


def mime_lite_mvr(
    cohort_size: int,
    local_steps: int,
    local_rate: ScheduleLike,
    fresh_weight: float,
    *,
    server_step_size: ScheduleLike = 1.0,
    start: StartLike = "cohort",
) -> MimeLite:
    r"""MimeLite with momentum variance reduction: the old estimate, corrected on each client and at each local step.

    .. math:: y_i \leftarrow y_i - \eta_k\bigl(\nabla f_i(y_i) + (1-p)(g_{k-1} - \nabla f_i(x_{k-1}))\bigr)

    One exchange, 3d floats down (:math:`x_k, x_{k-1}, g_{k-1}`) and 2d up for each client. In round 0
    :math:`x_{-1} = x_0` and :math:`g_{-1}` is the start.

    Arguments: as `mime_mvr`, but the fresh weight is one number, and the local rate may be a schedule.

    Karimireddy et al.: Mime, 2021, arXiv:2008.03606.

    >>> mime_lite_mvr(10, 5, 0.05, 0.2).base.fresh_weight
    0.2
    """
    base, start = Recursive(fresh_weight), start_from(start, cohort_size)
    return MimeLite(base, local_rate, server_step_size, start, cohort_size, local_steps, "mime_lite_mvr")


for _key, _name, _build, _more, _down, _grid in (
    ("mime_lite", "MimeLite, momentum", mime_lite, {"base": Momentum(0.5)}, Cost(2),
     with_fixed(local_grid, base=Momentum())),
    ("mime_lite_mvr", "MimeLiteMVR", mime_lite_mvr, {"fresh_weight": 0.2}, Cost(3), recursive_grid),
):  # fmt: skip
    register(_key, Entry(
        name=_name, build=_build, example={**_EXAMPLE, "local_steps": 3, **_more}, similarity="partly", up=Cost(2),
        down=_down, estimator="server statistics", oracle="m steps", exact=False, grid=_grid, reference=_REFERENCE,
    ))  # fmt: skip

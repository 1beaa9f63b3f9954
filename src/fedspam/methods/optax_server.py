"""FedOpt with an optimizer of Optax on the server."""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxtyping import Array, Integer

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params, dynamic, static, struct
from fedspam.methods._grids import with_fixed
from fedspam.methods._local import ClientOptimizer, LocalSteps, Steps
from fedspam.methods._registry import Entry, register
from fedspam.methods.fedopt import FedOpt, adaptive_grid
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule

if TYPE_CHECKING:
    import optax

# the part of an optimizer of Optax that has no rate, by the name of the optimizer
WITHOUT_RATE: Mapping[str, str] = {
    "adagrad": "scale_by_rss",
    "adam": "scale_by_adam",
    "lion": "scale_by_lion",
    "sgd": "identity",
    "yogi": "scale_by_yogi",
}


@struct
class OptaxServer:
    r"""Any Optax optimizer, with :math:`-\Delta` as its gradient."""

    optimizer: "optax.GradientTransformation" = static()

    def __post_init__(self) -> None:
        import optax  # here, since its import is slow and only this server needs it

        if not isinstance(self.optimizer, optax.GradientTransformation):
            raise ValueError(f"optimizer = {self.optimizer!r} must be an Optax optimizer, such as optax.adam(0.01)")

    def init(self, params: Params) -> Any:
        return self.optimizer.init(params)

    def update(self, x: Params, moved: Params, memory: Any, k: Integer[Array, ""]) -> tuple[Params, Any]:
        update, memory = self.optimizer.update(trees.scale(-1, moved), memory, x)
        return trees.add(x, update), memory


@struct
class NamedServer:
    r"""An Optax optimizer by its name, whose step size is a leaf: :math:`x - \eta_s T(-\Delta)`."""

    server_step_size: Schedule = dynamic(converter=positive_schedule)
    optimizer: str = static()

    def init(self, params: Params) -> Any:
        return without_rate(self.optimizer).init(params)

    def update(self, x: Params, moved: Params, memory: Any, k: Integer[Array, ""]) -> tuple[Params, Any]:
        direction, memory = without_rate(self.optimizer).update(trees.scale(-1, moved), memory, x)
        return trees.axpy(-self.server_step_size(k), direction, x), memory


@functools.cache
def without_rate(name: str) -> "optax.GradientTransformation":
    """The transformation T of the optimizer of this name, with Optax's defaults."""
    import optax

    return getattr(optax, WITHOUT_RATE[name])()


def fedopt(
    cohort_size: int,
    local_steps: LocalSteps,
    local_rate: ScheduleLike,
    server_optimizer: "optax.GradientTransformation | str",
    *,
    server_step_size: ScheduleLike | None = None,
    weighted: bool = False,
    optimizer: ClientOptimizer = None,
) -> FedOpt:
    r"""FedOpt with any Optax optimizer on the server, which gets minus the mean move of the clients as its gradient.

    .. math:: x_{k+1} = x_k + \mathrm{update}\Big(-\frac1B\sum_{i\in S_k}(y_i - x_k)\Big)

    ``optax.sgd(1.0)`` makes it FedAvg, ``optax.sgd(1.0, momentum=0.9)`` FedAvgM. Adam of Optax corrects its bias, that
    of `fedadam` does not. One exchange, d floats down and d up for each client, no state on clients.

    Arguments:
        cohort_size, local_steps, local_rate, weighted, optimizer: as `fedavg`.
        server_optimizer: such as ``optax.adam(0.01)``, with its rate; it is part of the compiled program, so another
            one recompiles. Or a name: 'adagrad', 'adam', 'lion', 'sgd' or 'yogi', with Optax's other defaults.
        server_step_size: :math:`\eta_s`, the rate of an optimizer that is given by its name: a number or a schedule.
            One compiled program serves all of them.

    Reddi et al.: Adaptive federated optimization, 2021, arXiv:2003.00295, Algorithm 1.

    >>> import optax
    >>> from fedspam.problems import progress
    >>> progress(fedopt(10, 5, 0.02, optax.sgd(1.0, momentum=0.5))) < 0.1
    True
    >>> progress(fedopt(10, 5, 0.02, "adam", server_step_size=0.05), rounds=100) < 0.1
    True
    """
    if isinstance(server_optimizer, str):
        checks.one_of("server_optimizer", server_optimizer, WITHOUT_RATE)
        if server_step_size is None:
            raise ValueError(f"server_optimizer = {server_optimizer!r} is a name without a rate; give server_step_size")
        server = NamedServer(server_step_size, server_optimizer)
    elif server_step_size is not None:
        raise ValueError(
            f"server_step_size = {server_step_size} goes with an optimizer that is given by its name, such as 'adam'; "
            "give the rate to the optimizer itself, such as optax.adam(0.01)"
        )
    else:
        server = OptaxServer(server_optimizer)
    return FedOpt(Steps(local_rate, None, local_steps, optimizer), server, cohort_size, weighted, name="fedopt")


register("fedopt", Entry(
    name="FedOpt, Optax", build=fedopt, oracle="m steps", exact=False,
    example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3, "server_optimizer": "adam",
             "server_step_size": 0.01},
    grid=with_fixed(adaptive_grid, server_optimizer="adam"),
    reference="Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan 2021, arXiv:2003.00295",
))  # fmt: skip

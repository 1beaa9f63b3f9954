"""FedAvg, or local SGD: clients train on their own loss, the server averages their models. FedAvgM adds momentum."""

from jaxtyping import Array, Integer

from fedspam._internal import trees
from fedspam._internal.trees import Params, Scalar, dynamic, number, struct
from fedspam.methods._grids import few_steps_grid, with_fixed
from fedspam.methods._local import ClientOptimizer, LocalSteps, Steps
from fedspam.methods._registry import Entry, register
from fedspam.methods.fedopt import Average, FedOpt
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule


@struct
class HeavyBall:
    r""":math:`M \leftarrow \beta M + \Delta`, then :math:`x + \eta_s M`."""

    server_step_size: Schedule = dynamic(converter=positive_schedule)
    momentum: float | Scalar = number(0, 1, remedy="0 is FedAvg, 0.9 is common")

    def init(self, params: Params) -> Params:
        return trees.zeros_like(params)

    def update(self, x: Params, moved: Params, memory: Params, k: Integer[Array, ""]) -> tuple[Params, Params]:
        memory = trees.axpy(self.momentum, memory, moved)
        return trees.axpy(self.server_step_size(k), memory, x), memory


def fedavg(
    cohort_size: int, local_steps: LocalSteps, local_rate: ScheduleLike,
    *, server_step_size: ScheduleLike = 1.0, weighted: bool = False, optimizer: ClientOptimizer = None,
) -> FedOpt:  # fmt: skip
    r"""FedAvg: m steps of SGD on each client of the cohort, then the average.

    .. math:: y_i \leftarrow y_i - \eta_k\nabla f_i(y_i)\ \text{(m times, from } x_k), \qquad
        x_{k+1} = x_k + \eta_s\,\frac1B\sum_{i\in S_k}(y_i - x_k)

    With :math:`\eta_s m\eta \lesssim 1/L` it takes :math:`O(LF\zeta^2/(B\epsilon^2) + LF\zeta/\epsilon^{3/2} +
    LF/\epsilon)` rounds to :math:`E\|\nabla f\|^2 \le \epsilon`. For m > 1 and a constant step size its fixed point is
    not the optimum, even if all clients take part: on quadratics it solves :math:`\sum_i (I - (I - \eta H_i)^m)(x -
    x_i^*) = 0`, with :math:`x_i^*` the minimizer of client i.

    Arguments:
        local_steps: m, or ``Epochs(2)`` to pass twice over each client's shuffled rows, so that larger clients take
            more steps. One step and :math:`\eta_s = 1` make it SGD on the cohort.
        weighted: average by the number of examples, as McMahan et al. do; then f is the mean over examples.
        optimizer: an Optax transformation T of the clients' gradients, begun afresh in every round:
            :math:`y_i \leftarrow y_i - \eta_k T(\nabla f_i(y_i))`. ``optax.trace(0.9)`` is momentum,
            ``optax.scale_by_adam()`` is Adam, and with ``optax.chain(optax.add_decayed_weights(1e-5),
            optax.trace(0.9))`` it is PyTorch's SGD with weight decay and momentum.

    McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-efficient learning of deep networks from
    decentralized data, 2017, arXiv:1602.05629; the server's step size is that of Karimireddy et al. 2020.

    >>> import jax.numpy as jnp
    >>> from fedspam import simulate
    >>> from fedspam.problems import quadratics
    >>> clients = quadratics(0, clients=20, dimension=5)
    >>> run = simulate(fedavg(10, 5, 0.05), clients, jnp.ones(5), rounds=50, key=1)
    >>> bool(jnp.linalg.norm(clients.gradient(run.params)) < 0.1 * jnp.linalg.norm(clients.gradient(jnp.ones(5))))
    True
    """
    steps = Steps(local_rate, None, local_steps, optimizer)
    return FedOpt(steps, Average(server_step_size), cohort_size, weighted, name="fedavg")


def fedavgm(
    cohort_size: int, local_steps: LocalSteps, local_rate: ScheduleLike,
    *, momentum: float = 0.9, server_step_size: ScheduleLike = 1.0, weighted: bool = False,
    optimizer: ClientOptimizer = None,
) -> FedOpt:  # fmt: skip
    r"""FedAvg with momentum on the server.

    .. math:: M_k = \beta M_{k-1} + \frac1B\sum_{i\in S_k}(y_i - x_k), \qquad x_{k+1} = x_k + \eta_s M_k

    where :math:`y_i` is :math:`x_k` after m local steps :math:`y \leftarrow y - \eta_k\nabla f_i(y)`.

    Arguments:
        momentum: :math:`\beta` in [0, 1]. In total a move counts :math:`\eta_s/(1-\beta)` times.
        weighted, optimizer: as `fedavg`.

    Hsu, Qi, Brown 2019, arXiv:1909.06335; Reddi et al. 2021, arXiv:2003.00295.

    >>> from fedspam.problems import progress
    >>> progress(fedavgm(10, 5, 0.02)) < 0.1
    True
    """
    steps, server = Steps(local_rate, None, local_steps, optimizer), HeavyBall(server_step_size, momentum)
    return FedOpt(steps, server, cohort_size, weighted, name="fedavgm")


register("fedavg", Entry(
    name="FedAvg", build=fedavg, example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3}, oracle="m steps",
    exact=False, grid=few_steps_grid,
    reference="McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017, arXiv:1602.05629",
))  # fmt: skip

register("fedavgm", Entry(
    name="FedAvgM", build=fedavgm, oracle="m steps", exact=False,
    example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3, "server_step_size": 0.3},
    # with a server momentum of 0.9 a move counts ten times; a smaller server step makes up for part of it
    grid=with_fixed(few_steps_grid, server_step_size=0.3), reference="Hsu, Qi, Brown 2019, arXiv:1909.06335",
))  # fmt: skip

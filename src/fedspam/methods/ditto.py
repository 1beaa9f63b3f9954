"""Ditto: FedAvg, and beside it a model of each client's own that is held near the common one."""

from typing import Any

import jax
import jax.numpy as jnp

from fedspam._internal import prng, trees
from fedspam._internal.trees import Key, Params, Scalar, count, dynamic, number, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import few_steps_grid
from fedspam.methods._local import descend
from fedspam.methods._method import PointState, RoundInfo, Stateless
from fedspam.methods._registry import Entry, register
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule


@struct
class Ditto(Stateless):
    """Ditto. Use `ditto` to build it."""

    local_rate: Schedule = dynamic(converter=positive_schedule)
    personal_rate: Schedule = dynamic(converter=positive_schedule)
    pull: float | Scalar = number(0, remedy="0 is training alone, 0.1 to 1 are common")
    cohort_size: int = count()
    local_steps: int = count()
    personal_steps: int = count()
    name: str = static(default="ditto")

    def round(self, state: PointState, key: Key, fed: Federation) -> tuple[PointState, RoundInfo]:
        rates = {"local_rate": self.local_rate(state.k), "personal_rate": self.personal_rate(state.k)}

        cohort = fed.sample(key, self.cohort_size)
        moved = fed.mean(cohort, self.train, x=state.x, **rates)

        gradients = cohort.size * (self.local_steps + self.personal_steps)
        info = RoundInfo(local_rate=rates["local_rate"], gradients=gradients)
        return PointState(trees.add(state.x, moved), state.k + 1), info

    @on_client(stateful=True)
    def train(
        self, oracle: Oracle, key: Key, memory: Params, *, x: Params, local_rate: Any, personal_rate: Any
    ) -> tuple[Params, Params]:
        y = descend(oracle, key, x, steps=self.local_steps, local_rate=local_rate)
        own_key = prng.fold_name(key, "personal")
        personal = descend(
            oracle, own_key, memory, steps=self.personal_steps, local_rate=personal_rate, pull=self.pull, anchor=x
        )
        return trees.subtract(y, x), personal

    def client_state(self, params: Params) -> Params:
        return jax.tree.map(jnp.asarray, params)


def ditto(
    cohort_size: int, local_steps: int, local_rate: ScheduleLike,
    *, pull: float = 0.1, personal_steps: int | None = None, personal_rate: ScheduleLike | None = None,
) -> Ditto:  # fmt: skip
    r"""Ditto: FedAvg for a common model x, and for each client a model :math:`v_i` of its own, held near x.

    .. math::
        y_i &\leftarrow y_i - \eta_k\nabla f_i(y_i) \ \text{(m times, from } x_k), \qquad
        x_{k+1} = \frac1B\sum_{i\in S_k} y_i \\
        v_i &\leftarrow v_i - \eta'_k\big(\nabla f_i(v_i) + \lambda\,(v_i - x_k)\big) \ \text{(s times, for } i\in S_k),
        \qquad v_i = x_0 \text{ at first}

    So :math:`v_i` approaches :math:`\mathrm{prox}_{f_i/\lambda}(x)`: one prox towards the common model. :math:`\lambda
    = 0` is training alone, a large :math:`\lambda` is the common model, which is that of FedAvg. Each client remembers
    :math:`v_i`; nothing of it is sent. After a simulation, ``run.memory`` holds the models of all clients, one per row,
    and ``run.params`` the common one.

    Arguments:
        pull: :math:`\lambda`.
        personal_steps: s; m by default.
        personal_rate: :math:`\eta'_k`; the local rate by default.

    Li, Hu, Beirami, Smith: Ditto: Fair and robust federated learning through personalization, 2021, arXiv:2012.04221,
    Algorithm 1.

    >>> import jax.numpy as jnp
    >>> from fedspam import simulate
    >>> from fedspam.problems import quadratics
    >>> clients = quadratics(0, clients=4, dimension=3)
    >>> run = simulate(ditto(4, 5, 0.05), clients, jnp.ones(3), rounds=40, key=1)
    >>> loss = lambda i, x: float(clients.client(jnp.uint32(i))(x))
    >>> all(loss(i, run.memory[i]) < loss(i, run.params) for i in range(4))
    True
    """
    personal_rate = local_rate if personal_rate is None else personal_rate
    personal_steps = local_steps if personal_steps is None else personal_steps
    return Ditto(local_rate, personal_rate, pull, cohort_size, local_steps, personal_steps)


register("ditto", Entry(
    name="Ditto", build=ditto, verified="code", example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3},
    stateless="no", oracle="2m steps", exact=False, grid=few_steps_grid,
    reference="Li, Hu, Beirami, Smith 2021, arXiv:2012.04221",
))  # fmt: skip

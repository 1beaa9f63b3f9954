"""FedPer: FedAvg on a part of the parameters; each client keeps the rest, such as its head, to itself."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, count, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._local import ClientOptimizer, LocalSteps, Steps, Trained
from fedspam.methods._method import PointState, RoundInfo, Stateless
from fedspam.methods.schedules import ScheduleLike


@struct
class FedPer(Stateless):
    """FedPer. Use `fedper` to build it."""

    training: Steps
    cohort_size: int = count()
    personal: tuple[str, ...] = static()
    name: str = static(default="fedper")

    def round(self, state: PointState, key: Key, fed: Federation) -> tuple[PointState, RoundInfo]:
        shared, first = self._split(state.x)

        cohort = fed.sample(key, self.cohort_size)
        moved, certificate = fed.mean(cohort, self.train, shared=shared, **self.training.numbers(state.k))

        x = trees.combine(trees.add(shared, moved), first)
        gradients = cohort.size * self.training.gradients(certificate)
        return PointState(x, state.k + 1), RoundInfo(certificate=certificate, gradients=gradients)

    @on_client(stateful=True)
    def train(
        self, oracle: Oracle, key: Key, memory: Params, *, shared: Params, **numbers: Any
    ) -> tuple[Trained, Params]:
        y, certificate = self.training(oracle, key, trees.combine(shared, memory), None, numbers)
        common, own = self._split(y)
        return Trained(trees.subtract(common, shared), certificate), own

    def client_state(self, params: Params) -> Params:
        return jax.tree.map(jnp.asarray, self._split(params)[1])

    def _split(self, params: Params) -> tuple[Params, Params]:
        """What is shared and what is personal."""
        if self.personal and trees.names(params) == [""]:
            raise ValueError(
                f"personal = {self.personal} names parts of the parameters, but they are one array without parts; "
                'give a tree, such as {"body": ..., "head": ...} or the parameters of a model'
            )
        own = trees.matching(params, self.personal)
        if len(own) == len(jax.tree.leaves(params)):
            raise ValueError(
                f"personal = {self.personal} matches every parameter, so that nothing would be shared; leave some out, "
                "or let clients train alone with fedspam.simulation.fine_tune"
            )
        return trees.split(params, own)


def fedper(
    cohort_size: int, local_steps: LocalSteps, local_rate: ScheduleLike, personal: str | Sequence[str],
    *, optimizer: ClientOptimizer = None,
) -> FedPer:  # fmt: skip
    r"""FedPer: a body x that all clients share, and a head :math:`h_i` of each client's own, trained together.

    .. math::
        (y_i, h_i) \leftarrow (y_i, h_i) - \eta_k\nabla f_i(y_i, h_i) \ \text{(m times, from } (x_k, h_i),\
        i\in S_k), \qquad x_{k+1} = \frac1B\sum_{i\in S_k} y_i, \qquad h_i = h \text{ at first}

    So clients whose labels mean different things can still share what comes before them. Only the body is sent and
    charged, in one exchange, and each client remembers :math:`h_i`. ``run.memory`` holds the heads of all clients, one
    per row, and None in place of the body; `fedspam.simulation.personal_models` puts both together. ``run.params`` is
    the body with the first head h: the model of a client that was never asked. Without personal parameters it is
    FedAvg. It is not in `METHODS`: which parameters are personal depends on the model, and a row of the table counts
    what travels in multiples of all parameters.

    Arguments:
        personal: patterns of the names that stay on the clients, such as ``"dense1.*"``.
        optimizer: an Optax transformation of the clients' gradients, as in `fedavg`.

    Arivazhagan, Aggarwal, Singh, Choudhary: Federated learning with personalization layers, 2019, arXiv:1912.00818.

    >>> import jax.numpy as jnp
    >>> from fedspam import Ragged, simulate
    >>> from fedspam.simulation import personal_models
    >>> loss = lambda x, rows: 0.5 * (x["body"] + x["head"] - rows[:, 0]) ** 2
    >>> clients = Ragged.of([jnp.array([[2.0]]), jnp.array([[4.0]])], loss)
    >>> start = {"body": jnp.zeros(()), "head": jnp.zeros(())}
    >>> run = simulate(fedper(2, 5, 0.2, "head"), clients, start, rounds=20, key=0)
    >>> own = personal_models(run.params, run.memory)
    >>> (own["body"] + own["head"]).round(3).tolist()
    [2.0, 4.0]
    """
    names = (personal,) if isinstance(personal, str) else tuple(personal)
    return FedPer(Steps(local_rate, None, local_steps, optimizer), cohort_size, names)

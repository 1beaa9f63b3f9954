"""What happens to the running statistics of batch normalization: the policies, and the method that recalibrates."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedspam._internal import checks
from fedspam._internal.trees import Key, Params, static, struct
from fedspam.clients import BatchOracle, Oracle, Population, joined, parted
from fedspam.federation import Federation, on_client
from fedspam.methods.fedopt import Average, FedOpt
from fedspam.methods.scaffold import Scaffold
from fedspam.methods.schedules import Constant

POLICIES = {
    "averaged": "running statistics travel and are averaged with the parameters, as in most papers; wrong where "
    "clients differ so much that the mean of their variances is far from the variance of all, and for methods "
    "without local steps",
    "local": "every client predicts with the statistics of its own rows (FedBN); wrong for clients without rows, and "
    "for one model that serves everyone",
    "recalibrated": "training uses the statistics of batches alone, and before an evaluation they are computed over "
    "all clients; wrong where batches are very small, since training then sees other statistics than prediction",
    "group": "group normalization takes the place of batch normalization: no statistics; wrong where trained weights "
    "of the original network are to be kept",
}


@dataclass(frozen=True)
class Normalization:
    """A policy for running statistics.

    Arguments:
        policy: 'averaged', 'local', 'recalibrated' or 'group'; `POLICIES` says what they do and when they are wrong.
        every: under 'recalibrated', rounds between two computations of the statistics.
        clients: under 'recalibrated', how many clients take part in it, drawn anew each time; None for all.
    """

    policy: str
    every: int = 1
    clients: int | None = None

    def __post_init__(self) -> None:
        checks.one_of("normalization", self.policy, tuple(POLICIES))
        checks.whole("every", self.every, 1)
        if self.clients is not None:
            checks.whole("clients", self.clients, 1)

    @property
    def travels(self) -> bool:
        """Whether parameters have the statistics beside them."""
        return self.policy in ("averaged", "recalibrated")

    @property
    def moves(self) -> bool:
        """Whether local steps move them."""
        return self.policy == "averaged"

    def around(self, method: Any, params: Params) -> Any:
        """The method with what the policy needs, or ValueError if they do not go together.

        `fedspam.simulate` does this by itself. Over Flower, server and clients need it alike, because the server does
        not see the model: ``method = Normalization("recalibrated").around(fedavg(...), params)``.

        Arguments:
            params: the initial ones, with the statistics beside them where these travel.
        """
        statistics = parted(params)[1]
        if self.travels and statistics is None:
            raise ValueError(
                f"normalization = {self.policy!r} needs parameters with running statistics beside them, and these have "
                f"none; give model.init(0), or torch_params(module, {self.policy!r})"
            )
        if self.policy == "averaged":
            _check_averages(method)
        if self.policy != "recalibrated" or isinstance(method, Recalibrated):
            return method
        shapes = tuple((name, tuple(leaf.shape)) for name, leaf in sorted((statistics or {}).items()))
        return Recalibrated(method, shapes, every=self.every, clients=self.clients)


def normalization_of(value: "str | Normalization | None") -> Normalization | None:
    return Normalization(value) if isinstance(value, str) else value


def check_policy(given: Normalization | None, statistics: Any) -> None:
    """A network with running statistics needs a policy: a choice that nobody sees is the commonest mistake."""
    if statistics and given is None:
        lines = "; ".join(f"{name!r}: {text.split(';')[0]}" for name, text in POLICIES.items())
        raise ValueError(
            f"the network has batch normalization: say what happens to its statistics, normalization={lines}"
        )


def _check_averages(method: Any) -> None:
    """Refuse a server that does more with the models than to average them."""
    step = None
    if isinstance(method, FedOpt):
        step = method.server.server_step_size if isinstance(method.server, Average) else "another optimizer"
    elif isinstance(method, Scaffold):
        step = method.server_step_size
    if step is not None and not (isinstance(step, Constant) and step.value == 1):
        raise ValueError(
            "normalization = 'averaged' needs a server that averages, but this one takes other steps, which would take "
            "running variances below 0; use server_step_size=1, or the policy 'recalibrated' or 'group'"
        )


def is_variance(name: str) -> bool:
    """Whether a statistic is a variance: its name ends in ``var``."""
    return name.endswith("var")


def mean_of(name: str) -> str:
    """The name of the mean that belongs to a variance."""
    return name[: -len("var")] + "mean" if is_variance(name) else name


class RecalibratedState(NamedTuple):
    """The state of the method, and the statistics of all clients at its parameters."""

    own: Any
    statistics: Any
    k: Any  # rounds


class RowMoments(NamedTuple):
    """The number of a client's rows, and the sums of its activations and of their squares."""

    count: Any
    sums: Any


@struct
class Recalibrated:
    r"""A method beside which the statistics of batch normalization are computed exactly, as sums over clients:

    .. math:: \mu = \frac{\sum_i n_i\mu_i}{\sum_i n_i}, \qquad
        \sigma^2 = \frac{\sum_i n_i(\sigma_i^2 + \mu_i^2)}{\sum_i n_i} - \mu^2

    where :math:`\mu_i` and :math:`\sigma_i^2` are those of all rows of client i, in one pass with the current
    parameters. One more exchange in every `every` rounds, charged like all others. Models with
    ``normalization="recalibrated"`` put it around the method by themselves.
    """

    inner: Any
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = static()  # of the statistics, by name
    every: int = static(default=1)
    clients: int | None = static(default=None)

    @property
    def name(self) -> str:
        return self.inner.name

    def init(self, params: Params, key: Key, fed: Federation) -> RecalibratedState:
        own, statistics = parted(params)
        state = self.inner.init(own, key, fed)
        return RecalibratedState(state, statistics, jnp.zeros((), jnp.int32))

    def round(self, state: RecalibratedState, key: Key, fed: Federation) -> tuple[RecalibratedState, Any]:
        own, info = self.inner.round(state.own, key, fed)
        x, k = self.inner.params(own), state.k + 1
        compute = lambda: self._computed(x, state.statistics, key, fed)
        keep = lambda: state.statistics
        statistics = compute() if self.every == 1 else fed.cond(k % self.every == 0, compute, keep)
        return RecalibratedState(own, statistics, k), info

    def _computed(self, x: Params, old: Any, key: Key, fed: Federation) -> Any:
        some = self.clients
        cohort = fed.everyone(key) if some is None else fed.sample(key, some, role="statistics")
        count, sums = fed.mean(cohort, self.batch_moments, x=x)
        new = of_moments(count, sums)
        return {name: new[name].astype(leaf.dtype) for name, leaf in old.items()}

    @on_client
    def batch_moments(self, oracle: Oracle, key: Key, *, x: Params) -> RowMoments:
        if not isinstance(oracle, BatchOracle):
            raise ValueError("these clients have no rows of their own, so no statistics; use the policy 'group'")
        return RowMoments(*oracle.moments(x, dict(self.shapes)))

    def params(self, state: RecalibratedState) -> Params:
        return joined(self.inner.params(state.own), state.statistics)

    def client_state(self, params: Params) -> Any:
        return self.inner.client_state(parted(params)[0])


def own_statistics(params: Params, population: Population) -> Params:
    """The parameters for each client with the statistics of its own rows, stacked: the policy 'local'.

    ``evaluation.personal(own_statistics(run.params, clients))`` is each client's accuracy. With
    ``fedper(..., personal=model.network.norm_params())`` the affine parameters stay on the clients as well, as in Li,
    Jiang, Zhang, Kamp, Dou: FedBN, 2021, arXiv:2102.07623. Nothing is sent.

    Arguments:
        params: those of all clients, such as ``run.params``.
        population: the clients, whose number must be known.
    """
    if population.size is None:
        raise ValueError("the population is endless, and each client would get statistics; give a finite one")

    def alone(population: Population, params: Params) -> Params:
        def one(id: Any) -> Params:
            oracle = population.client(id)
            if not isinstance(oracle, BatchOracle):
                raise ValueError("these clients have no rows of their own, so no statistics; use the policy 'group'")
            return joined(params, of_moments(*oracle.moments(params, {})))

        return jax.lax.map(one, jnp.arange(population.size, dtype=jnp.uint32))

    return jax.jit(alone)(population, parted(params)[0])


def of_moments(count: Any, sums: Any) -> Any:
    """The statistics that belong to sums over rows."""
    means = {name: leaf / count for name, leaf in sums.items()}
    return {
        name: jnp.maximum(leaf - means[mean_of(name)] ** 2, 0) if is_variance(name) else leaf
        for name, leaf in means.items()
    }

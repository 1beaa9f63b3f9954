"""Models of the clients' own, made from a common one."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedspam._internal import checks, prng
from fedspam._internal.trees import Key, Params, Scalar
from fedspam.clients import Population
from fedspam.methods._local import LocalSteps, check_local_steps, client_optimizer, descend

if TYPE_CHECKING:
    import optax


def fine_tune(
    population: Population, params: Params, local_steps: LocalSteps, local_rate: float, *,
    key: Key | int, optimizer: "optax.GradientTransformation | None" = None,
) -> Params:  # fmt: skip
    r"""The model of each client after steps on its own loss, from a common model that was trained before:

    .. math:: y_i \leftarrow y_i - \eta\,\nabla f_i(y_i) \quad\text{(m times, from } x)

    The result is stacked: the first axis of every array is that of the clients. ``evaluation.per_client(x)`` and
    ``evaluation.personal(y)`` are each client's accuracy before and after. Nothing is sent.

    Arguments:
        population: the clients; their number must be known.
        params: x, such as ``run.params``.
        local_steps: m, or `Epochs`.
        local_rate: :math:`\eta`.
        key: of the minibatches.
        optimizer: an Optax transformation of the gradients, as in `fedavg`.

    Jiang, Konečný, Rush, Kannan: Improving federated learning personalization via model agnostic meta learning, 2019,
    arXiv:1909.12488.

    >>> import jax.numpy as jnp
    >>> from fedspam import Ragged
    >>> clients = Ragged.of([jnp.zeros((2, 1)), jnp.ones((2, 1))], lambda x, rows: 0.5 * (rows[:, 0] - x) ** 2)
    >>> fine_tune(clients, jnp.array(0.5), 1, 0.5, key=0).tolist()
    [0.25, 0.75]
    """
    check_local_steps(local_steps)
    checks.positive("local_rate", local_rate)
    if population.size is None:
        raise ValueError("the population is endless, and each client would get a model; give a finite one")
    key, rate = prng.key_of(key), jnp.asarray(local_rate, jax.tree.leaves(params)[0].dtype)

    def alone(population: Population, params: Params, key: Key, rate: Scalar) -> Any:
        def one(id: Any) -> Params:
            own_key = jax.random.fold_in(key, id)
            return descend(
                population.client(id), own_key, params,
                steps=local_steps, local_rate=rate, optimizer=client_optimizer(optimizer),
            )  # fmt: skip

        return jax.lax.map(one, jnp.arange(population.size, dtype=jnp.uint32))

    return jax.jit(alone)(population, jax.tree.map(jnp.asarray, params), key, rate)


def personal_models(params: Params, memory: Params) -> Params:
    """The whole model of each client, stacked, where clients keep only a part of it, as those of `fedper` do.

    ``evaluation.per_client(run.params)`` and ``evaluation.personal(personal_models(run.params, run.memory))`` are each
    client's accuracy with the common model and with its own.

    Arguments:
        params: ``run.params``, whose shared part every client gets.
        memory: ``run.memory``, the parts of the clients, stacked, with None in place of the shared part.

    >>> import jax.numpy as jnp
    >>> start = {"body": jnp.array(1.0), "head": jnp.array(0.0)}
    >>> own = personal_models(start, {"body": None, "head": jnp.array([2.0, 3.0])})
    >>> own["body"].tolist(), own["head"].tolist()
    ([1.0, 1.0], [2.0, 3.0])
    """
    counts = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(memory)}
    if len(counts) != 1 or counts == {()}:
        raise ValueError(
            f"the memory has first axes {sorted(counts)}, but must have one row per client; give run.memory of a run "
            "whose clients keep a part of the model, as those of fedper"
        )
    (count,) = counts

    def fill(own: Any, common: Any) -> Array:
        return jnp.broadcast_to(common, (*count, *jnp.shape(common))) if own is None else own

    try:
        return jax.tree.map(fill, memory, params, is_leaf=lambda leaf: leaf is None)
    except ValueError as error:
        raise ValueError(
            "the memory and the parameters have different trees; give run.params and run.memory of the same run, "
            "or run.memory.own where a codec keeps its errors beside it"
        ) from error

"""The mean client of a cohort."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from fedspam._internal.trees import Key, Params, Scalar, static, struct
from fedspam.clients.protocol import BatchLoss, Ids, Population
from fedspam.clients.ragged import Ragged, RaggedOracle, per_row, take_rows, with_several_capacities


@struct
class MeanOracle:
    """The mean client of a cohort: affine client work is done once on it, instead of once per client.

    Its loss is the mean of the cohort's losses, so its gradient costs as much as a central gradient over the same
    examples. Above `chunk` clients the gradient is accumulated chunk by chunk; if clients differ much in size, over
    blocks with as many rows as `chunk` small clients have. An accumulated loss has gradients and their directional
    derivatives, no other derivatives.

    Arguments:
        population: all clients.
        ids: the cohort.
        chunk: clients computed side by side.
        kept: which of the ids count; None for all.
    """

    population: Population
    ids: Ids
    chunk: int = static()
    kept: Bool[Array, " cohort"] | None = None

    @property
    def weight(self) -> float:
        return 1.0

    def __call__(self, params: Params, key: Key | None = None) -> Scalar:
        size = self.ids.shape[0]
        kept = jnp.ones(size, bool) if self.kept is None else self.kept
        count = size if self.kept is None else jnp.maximum(jnp.sum(kept), 1)
        unequal = with_several_capacities(self.population)
        if unequal is not None and not isinstance(unequal.loss, BatchLoss):
            part, parts = self._packed(unequal, kept)
        elif size <= self.chunk:
            return self._total(params, key, self.ids, kept) / count
        else:  # one chunk of clients, and how many chunks there are
            padding = -size % self.chunk
            ids = jnp.concatenate([self.ids, jnp.repeat(self.ids[-1:], padding)]).reshape(-1, self.chunk)
            slots = jnp.concatenate([kept, jnp.zeros(padding, bool)]).reshape(-1, self.chunk)
            part, parts = lambda params, index: self._total(params, key, ids[index], slots[index]), ids.shape[0]

        @jax.custom_vjp
        def mean(params: Params) -> Scalar:
            return accumulated(part, params) / count

        def mean_and_gradient(params: Params) -> tuple[Scalar, Params]:
            sums = accumulated(jax.value_and_grad(part), params)
            return jax.tree.map(lambda leaf: leaf / jnp.asarray(count, leaf.dtype), sums)

        def accumulated(function: Any, params: Params) -> Any:
            shapes = jax.eval_shape(function, params, 0)
            start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            add = lambda index, sums: jax.tree.map(jnp.add, sums, function(params, index))
            return lax.fori_loop(0, parts, add, start)

        mean.defvjp(
            mean_and_gradient, lambda gradient, cotangent: (jax.tree.map(lambda leaf: cotangent * leaf, gradient),)
        )
        return mean(params)

    def _packed(self, clients: Ragged, kept: Bool[Array, " cohort"]) -> tuple[Any, Any]:
        """The sum over one block of rows, and how many blocks there are. The blocks hold the rows of all clients end to
        end, without the padding that clients of unequal sizes would need."""
        counts = jnp.where(kept, clients.counts(self.ids), 0)
        ends = jnp.cumsum(counts)
        # from a row's place in the blocks to its place in the population's arrays
        shifts = take_rows(clients.offsets, self.ids) - (ends - counts)
        share = clients.factor(self.ids, counts) / jnp.maximum(counts, 1)
        block = self.chunk * clients.capacities[0]

        def part(params: Params, index: Any) -> Scalar:
            place = index * block + jnp.arange(block)
            inside = jnp.minimum(place, ends[-1] - 1)
            client = jnp.searchsorted(ends, inside, side="right")
            losses = per_row(clients.loss(params, take_rows(clients.examples, shifts[client] + inside)), place.shape[0])
            return jnp.sum(jnp.where(place < ends[-1], share[client].astype(losses.dtype) * losses, 0))

        return part, (ends[-1] + block - 1) // block

    def _total(self, params: Params, key: Key | None, ids: Ids, kept: Bool[Array, " chunk"]) -> Scalar:
        own_key = lambda id: None if key is None else jax.random.fold_in(key, id)
        client: Any = self.population.client
        if ids.shape[0] == 1:
            return client(ids[0])(params, own_key(ids[0])) * kept[0]
        if isinstance(first := client(ids[0]), RaggedOracle) and not isinstance(first.loss, BatchLoss):
            # the rows of all clients as one batch: faster than vmap over clients
            rows, shares = jax.vmap(lambda id: client(id).rows_and_shares(own_key(id)))(ids)
            flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows)
            losses = per_row(first.loss(params, flat), shares.size).reshape(shares.shape)
            shares = jnp.where(kept[:, None], shares, 0).astype(losses.dtype)
            return jnp.sum(jnp.where(shares > 0, shares * losses, 0))
        losses = jax.vmap(lambda id: client(id)(params, own_key(id)))(ids)
        return jnp.sum(jnp.where(kept, losses, 0))

"""A finite population on the device, whose clients hold different numbers of examples."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Key, PyTree, UInt32

from fedspam import _check, _random
from fedspam._tree import Params, Scalar, static, struct
from fedspam.population.protocol import Ids, Loss, draw


@struct
class RaggedOracle:
    """The mean loss over one client's rows; the padding beyond them repeats its last row and weighs nothing."""

    examples: PyTree[Array]
    offset: Integer[Array, ""]
    count: Integer[Array, ""]
    factor: Scalar | float
    loss: Loss = static()
    capacity: int = static()
    batch: int | None = static()

    @property
    def weight(self) -> Scalar:
        return self.count.astype(jnp.result_type(float))

    def __call__(self, params: Params, key: Key[Array, ""] | None = None) -> Scalar:
        rows, kept = self._rows(key)
        losses = self.loss(params, jax.tree.map(lambda leaf: leaf[rows], self.examples))
        mean = jnp.sum(jnp.where(kept, losses, 0)) / jnp.sum(kept)
        return jnp.asarray(self.factor, mean.dtype) * mean

    def picked(self, key: Key[Array, ""] | None = None) -> tuple[PyTree[Array], Float[Array, " rows"]]:
        """The rows that a call with this key looks at, and the share of each in the loss; that of padding is 0."""
        rows, kept = self._rows(key)
        shares = jnp.where(kept, self.factor / jnp.sum(kept).astype(jnp.result_type(float)), 0)
        return jax.tree.map(lambda leaf: leaf[rows], self.examples), shares

    def _rows(self, key: Key[Array, ""] | None) -> tuple[Integer[Array, " rows"], Bool[Array, " rows"]]:
        if key is None or self.batch is None or self.batch >= self.capacity:
            position = jnp.arange(self.capacity)
        else:
            # distinct rows of this client; those beyond its own number are masked
            slot = jnp.arange(self.batch, dtype=jnp.uint32)
            shuffled = _random.permuted(key, jnp.minimum(slot, jnp.uint32(self.count - 1)), self.count)
            position = jnp.where(slot < self.count, shuffled.astype(jnp.int32), self.capacity)
        return self.offset + jnp.minimum(position, self.count - 1), position < self.count


@struct
class Ragged:
    """A finite population whose clients hold different numbers of examples.

    Build it with `Ragged.of`. The objective is the unweighted mean over clients of each client's mean
    loss; with ``weighted=True`` a client's loss is scaled by its share of the examples, so that the same
    unweighted mean is the pooled loss.

    >>> import jax.numpy as jnp
    >>> mean = lambda x, rows: 0.5 * jnp.sum((rows - x) ** 2, axis=1)
    >>> people = Ragged.of([jnp.ones((2, 3)), jnp.zeros((5, 3))], mean)
    >>> people.size, people.capacity, float(people.client(jnp.uint32(0))(jnp.zeros(3)))
    (2, 5, 1.5)
    """

    examples: PyTree[Array]
    offsets: Integer[Array, " clients_and_one"]
    loss: Loss = static()
    capacity: int = static()
    batch: int | None = static(default=None)
    replace: bool = static(default=False)
    weighted: bool = static(default=False)

    @classmethod
    def of(
        cls,
        clients: Sequence[PyTree],
        loss: Loss,
        *,
        batch: int | None = None,
        replace: bool = False,
        weighted: bool = False,
    ) -> "Ragged":
        """From one pytree of arrays per client, all with the rows as first axis.

        Arguments:
            clients: the examples of each client.
            loss: (params, rows) -> one loss per row.
            batch: rows in a minibatch; None for all of a client's rows at every call.
            replace: whether a cohort may hold a client twice.
            weighted: whether f is the mean over examples instead of the mean over clients.
        """
        if not clients:
            raise ValueError("the population has no clients; give at least one")
        structure = jax.tree.structure(clients[0])
        for number, client in enumerate(clients):
            if jax.tree.structure(client) != structure:
                raise ValueError(
                    f"client {number} has the structure {jax.tree.structure(client)}, client 0 has {structure}; "
                    "every client needs the same pytree of arrays"
                )
        sizes = []
        for number, client in enumerate(clients):
            rows = {np.shape(leaf)[0] for leaf in jax.tree.leaves(client)}
            if len(rows) != 1:
                raise ValueError(f"client {number} has arrays of {sorted(rows)} rows; all its arrays need the same")
            sizes.append(rows.pop())
        examples = jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *clients)
        return cls.of_sizes(examples, sizes, loss, batch=batch, replace=replace, weighted=weighted)

    @classmethod
    def of_sizes(
        cls,
        examples: PyTree,
        sizes: Sequence[int],
        loss: Loss,
        *,
        batch: int | None = None,
        replace: bool = False,
        weighted: bool = False,
    ) -> "Ragged":
        """From the examples of all clients end to end, and how many each client has."""
        rows = np.asarray(sizes, np.int64)
        if rows.size == 0:
            raise ValueError("the population has no clients; give at least one")
        empty = np.flatnonzero(rows < 1)
        if empty.size:
            raise ValueError(
                f"client {empty[0]} has {rows[empty[0]]} examples; every client needs at least one: leave it out"
            )
        total = {np.shape(leaf)[0] for leaf in jax.tree.leaves(examples)}
        if total != {int(rows.sum())}:
            raise ValueError(f"the sizes add up to {rows.sum()} rows, the arrays have {sorted(total)}; they must agree")
        if batch is not None:
            _check.whole("batch", batch, 1)
        offsets = jnp.asarray(np.concatenate([[0], np.cumsum(rows)]), jnp.int32)
        return cls(
            jax.tree.map(jnp.asarray, examples),
            offsets,
            loss=loss,
            capacity=int(rows.max()),
            batch=batch,
            replace=replace,
            weighted=weighted,
        )

    @property
    def size(self) -> int:
        return self.offsets.shape[0] - 1

    def sample(self, key: Key[Array, ""], count: int) -> Ids:
        return draw(key, count, self.size, self.replace)

    def client(self, id: UInt32[Array, ""]) -> RaggedOracle:
        offset, end = self.offsets[id], self.offsets[id + 1]
        count = end - offset
        total = jax.tree.leaves(self.examples)[0].shape[0]
        factor = count.astype(jnp.result_type(float)) * (self.size / total) if self.weighted else 1.0
        return RaggedOracle(
            self.examples, offset, count, factor, loss=self.loss, capacity=self.capacity, batch=self.batch
        )

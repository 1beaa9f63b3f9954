"""A finite population on the device, whose clients hold different numbers of examples."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Key, PyTree, UInt32

from fedspam._internal import checks, prng
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import gather
from fedspam.clients.protocol import Ids, Loss, Population, draw

SMALL = 2**15  # numbers of a client: padding to fewer costs less than what sizes of their own do
MANY = 0.2  # of the clients are worth a capacity of their own


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
    fetched: bool = static(default=False)  # whether the examples are this client's alone

    @property
    def weight(self) -> Scalar:
        return self.count.astype(jnp.result_type(float))

    def __call__(self, params: Params, key: Key[Array, ""] | None = None) -> Scalar:
        rows, kept = self._rows(key)
        losses = self.loss(params, rows)
        mean = jnp.sum(jnp.where(kept, losses, 0)) / jnp.sum(kept)
        return jnp.asarray(self.factor, mean.dtype) * mean

    def picked(self, key: Key[Array, ""] | None = None) -> tuple[PyTree[Array], Float[Array, " rows"]]:
        """The rows that a call with this key looks at, and the share of each in the loss; that of padding is 0."""
        rows, kept = self._rows(key)
        shares = jnp.where(kept, self.factor / jnp.sum(kept).astype(jnp.result_type(float)), 0)
        return rows, shares

    def fetch(self) -> "RaggedOracle":
        """The same with all its rows at hand, once for all calls; itself where it looks at minibatches."""
        if self.batch is not None:
            return self
        return dataclasses.replace(self, examples=self._all(), offset=jnp.zeros_like(self.offset), fetched=True)

    def _rows(self, key: Key[Array, ""] | None) -> tuple[PyTree[Array], Bool[Array, " rows"]]:
        if key is None or self.batch is None or self.batch >= self.capacity:
            return self.examples if self.fetched else self._all(), jnp.arange(self.capacity) < self.count
        # distinct rows of this client; those beyond its own number are masked
        slot = jnp.arange(self.batch, dtype=jnp.uint32)
        shuffled = prng.permuted(key, jnp.minimum(slot, jnp.uint32(self.count - 1)), self.count)
        places = self.offset + shuffled.astype(jnp.int32)
        return gather.rows(self.examples, places), slot < self.count.astype(jnp.uint32)

    def _all(self) -> PyTree[Array]:
        total = jax.tree.leaves(self.examples)[0].shape[0]
        length = min(self.capacity, total)
        start = jnp.minimum(self.offset, total - length)
        near = gather.runs(self.examples, start, length)
        own = self.offset - start + jnp.minimum(jnp.arange(self.capacity), self.count - 1)
        return jax.tree.map(lambda leaf: leaf[own], near)


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
    capacities: tuple[int, ...] = static(default=())  # rows that clients are padded to, where one for all wastes much

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
            checks.whole("batch", batch, 1)
        offsets = jnp.asarray(np.concatenate([[0], np.cumsum(rows)]), jnp.int32)
        return cls(
            jax.tree.map(jnp.asarray, examples),
            offsets,
            loss=loss,
            capacity=int(rows.max()),
            batch=batch,
            replace=replace,
            weighted=weighted,
            capacities=_capacities(rows, examples) if batch is None else (),
        )

    @property
    def size(self) -> int:
        return self.offsets.shape[0] - 1

    def sample(self, key: Key[Array, ""], count: int) -> Ids:
        return draw(key, count, self.size, self.replace)

    def counts(self, ids: Ids) -> Integer[Array, " cohort"]:
        """How many rows each of these clients has."""
        begins_and_ends = gather.runs(self.offsets, ids, 2)
        return begins_and_ends[:, 1] - begins_and_ends[:, 0]

    def factor(self, ids: UInt32[Array, "*shape"], counts: Integer[Array, "*shape"]) -> Float[Array, "*shape"]:
        """What the losses of clients with so many rows are multiplied by; that of a number that nobody has is NaN."""
        total = jax.tree.leaves(self.examples)[0].shape[0]
        share = counts.astype(jnp.result_type(float)) * (self.size / total) if self.weighted else 1.0
        return jnp.where(jnp.asarray(ids) < self.size, share, jnp.nan)

    def within(self, capacity: int) -> "Ragged":
        """The same for clients that have no more rows than this, padded no further."""
        return dataclasses.replace(self, capacity=capacity, capacities=())

    def client(self, id: UInt32[Array, ""]) -> RaggedOracle:
        offset, end = gather.runs(self.offsets, id, 2)
        count = end - offset
        factor = self.factor(id, count)
        oracle = RaggedOracle(
            self.examples, offset, count, factor, loss=self.loss, capacity=self.capacity, batch=self.batch
        )
        return oracle.fetch()


def of_unequal_sizes(population: Population) -> Ragged | None:
    """The population, if its clients are padded to several capacities."""
    if not isinstance(population, Ragged) or population.batch is not None or not population.capacities:
        return None
    return population


def _capacities(sizes: Integer[np.ndarray, " clients"], examples: PyTree) -> tuple[int, ...]:
    """Half the largest size, a quarter, an eighth, and the largest itself: of them those that many clients need.

    Each is compiled for itself, so there are few; and where the largest client is small, there is one.
    """
    largest = int(sizes.max())
    if largest * sum(math.prod(np.shape(leaf)[1:]) for leaf in jax.tree.leaves(examples)) < SMALL:
        return ()
    kept, below = [], 0
    for capacity in (-(-largest // 8), -(-largest // 4), -(-largest // 2), largest):
        fits = int(np.count_nonzero(sizes <= capacity))
        if fits - below >= MANY * sizes.size or capacity == largest:
            kept.append(capacity)
            below = fits
    return tuple(kept) if len(kept) > 1 else ()

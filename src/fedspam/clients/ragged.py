"""A finite population on the device, whose clients have different numbers of examples."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Integer, PyTree, UInt32

from fedspam._internal import prng
from fedspam._internal.trees import Key, Params, Scalar, count, static, struct
from fedspam.clients.protocol import BatchLoss, Ids, Loss, Population, RowsCheckingLoss
from fedspam.clients.statistics import parted

# one program is compiled per capacity, and more capacities compile longer than they save:
SMALL_CLIENT = 2**15  # numbers; if the largest client has fewer, one capacity serves all
LEAST_SHARE = 0.2  # of the clients, for a capacity of their own
UNROLLED = 4  # at most so many slices are taken without a loop


@struct
class RaggedOracle:
    """The mean loss over one client's rows; padding repeats the last row and has weight 0."""

    examples: PyTree[Array]
    offset: Integer[Array, ""]
    count: Integer[Array, ""]
    factor: Scalar | float
    loss: Loss = static()
    capacity: int = static()
    batch: int | None = static()
    fetched: bool = static(default=False)  # whether `examples` holds only this client's rows

    @property
    def weight(self) -> Scalar:
        return self.count.astype(jnp.result_type(float))

    def __call__(self, params: Params, key: Key | None = None) -> Scalar:
        check_moves(params, self.loss)
        return self._mean(params, *self._rows(key), key)[0]

    def whole(self, params: Params, key: Key | None = None) -> Scalar:
        """The mean loss over all rows, with the dropout and the crops of this key."""
        check_moves(params, self.loss)
        return self._mean(params, *self._rows(None), key)[0]

    def _mean(
        self, params: Params, rows: PyTree[Array], kept: Bool[Array, " rows"], key: Key | None
    ) -> tuple[Scalar, Params]:
        """The mean loss over the real rows, and the parameters after it."""
        if isinstance(self.loss, BatchLoss):
            own_key = None if key is None else prng.fold_name(key, "layers")
            losses, params = self.loss.of_batch(params, rows, key=own_key, kept=kept)
        else:
            losses = self.loss(params, rows)
        return self._scaled(losses, kept), params

    def _scaled(self, losses: Any, kept: Bool[Array, " rows"]) -> Scalar:
        mean = jnp.sum(jnp.where(kept, per_row(losses, kept.shape[0]), 0)) / jnp.sum(kept)
        return jnp.asarray(self.factor, mean.dtype) * mean

    def moved(self, params: Params, key: Key, number: Integer[Array, ""] | None = None) -> tuple[Scalar, Params]:
        """The loss of one minibatch, and the parameters with the running statistics after it."""
        if not (isinstance(self.loss, BatchLoss) and self.loss.moves):
            check_moves(params, self.loss)
        if number is None:
            return self._mean(params, *self._rows(key), key)
        own_key = jax.random.fold_in(key, number)
        if self._batch == self.capacity:
            return self._mean(params, *self._rows(None), own_key)
        return self._mean(params, *self._shuffled(key, jnp.uint32(number) * self._batch), own_key)

    def moments(self, params: Params, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Scalar, Params]:
        """The number of rows, and the moments of all of them."""
        if not isinstance(self.loss, BatchLoss):
            raise ValueError("the loss of these clients has no batch normalization; leave recalibrated out")
        rows, kept = self._rows(None)
        return self.weight, self.loss.moments(params, rows, kept=kept)

    def own(self, params: Params) -> Params:
        """What predicts the client's rows: the parameters, with its statistics if it keeps its own."""
        if not isinstance(self.loss, BatchLoss):
            return params
        rows, kept = self._rows(None)
        return self.loss.own(params, rows, kept=kept)

    def predicted(self, params: Params) -> Scalar:
        """The mean loss of a prediction of all rows."""
        rows, kept = self._rows(None)
        return self._scaled(self.loss(params, rows), kept)

    @property
    def minibatches(self) -> Integer[Array, ""]:
        """How many minibatches one pass over the rows has; the last may be smaller."""
        return (self.count + self._batch - 1) // self._batch

    def minibatch(self, params: Params, key: Key, number: Integer[Array, ""]) -> Scalar:
        """The mean loss over one minibatch of a pass over the rows, which the key shuffles."""
        return self.moved(params, key, number)[0]

    @property
    def _batch(self) -> int:
        return self.capacity if self.batch is None else min(self.batch, self.capacity)

    def rows_and_shares(self, key: Key | None = None) -> tuple[PyTree[Array], Float[Array, " rows"]]:
        """The rows that a call with this key uses, and the share of each in the loss; 0 for padding."""
        rows, kept = self._rows(key)
        shares = jnp.where(kept, self.factor / jnp.sum(kept).astype(jnp.result_type(float)), 0)
        return rows, shares

    def fetch(self) -> "RaggedOracle":
        """The same client with its rows gathered once for all calls; itself if it uses minibatches."""
        if self.batch is not None:
            return self
        return dataclasses.replace(self, examples=self._all(), offset=jnp.zeros_like(self.offset), fetched=True)

    def _rows(self, key: Key | None) -> tuple[PyTree[Array], Bool[Array, " rows"]]:
        if key is None or self.batch is None or self.batch >= self.capacity:
            return self.examples if self.fetched else self._all(), jnp.arange(self.capacity) < self.count
        return self._shuffled(key, jnp.uint32(0))

    def _shuffled(self, key: Key, begin: UInt32[Array, ""]) -> tuple[PyTree[Array], Bool[Array, " rows"]]:
        """A minibatch of the client's rows in a random order; slots beyond its number of rows are masked."""
        slot = begin + jnp.arange(self._batch, dtype=jnp.uint32)
        shuffled = prng.permuted(key, jnp.minimum(slot, jnp.uint32(self.count - 1)), self.count, self.capacity)
        places = self.offset + shuffled.astype(jnp.int32)
        return take_rows(self.examples, places), slot < self.count.astype(jnp.uint32)

    def _all(self) -> PyTree[Array]:
        total = jax.tree.leaves(self.examples)[0].shape[0]
        length = min(self.capacity, total)
        start = jnp.minimum(self.offset, total - length)
        near = take_runs(self.examples, start, length)
        own = self.offset - start + jnp.minimum(jnp.arange(self.capacity), self.count - 1)
        return jax.tree.map(lambda leaf: leaf[own], near)


UNMOVED = (
    "normalization = 'averaged' moves running statistics in local steps, but this method takes gradients in other "
    "ways; use 'recalibrated' or 'group', or a method of local steps such as fedavg or scaffold"
)
UNWRAPPED = (
    "running statistics travel here, and nothing computes them; over Flower, give server and clients "
    "Normalization('recalibrated').around(method, params) instead of the method"
)


def check_moves(params: Params, loss: Any) -> None:
    """Refuse a gradient at parameters with running statistics, which only local steps move."""
    if isinstance(loss, BatchLoss) and parted(params)[1] is not None:
        raise ValueError(UNMOVED if loss.moves else UNWRAPPED)


def per_row(losses: Any, rows: int) -> Any:
    """The losses, checked: a loss that is already a mean would count the padding too."""
    if jnp.shape(losses) != (rows,):
        raise ValueError(
            f"the loss has shape {jnp.shape(losses)} for {rows} rows; it must return one loss per row, without a mean"
        )
    return losses


@struct
class Ragged:
    """A finite population whose clients have different numbers of examples. Build it with `Ragged.of`.

    The objective is the mean over clients of each client's mean loss. With ``weighted=True`` a client's loss is scaled
    by its number of examples, so that the objective is the mean over all examples.

    >>> import jax.numpy as jnp
    >>> mean = lambda x, rows: 0.5 * jnp.sum((rows - x) ** 2, axis=1)
    >>> clients = Ragged.of([jnp.ones((2, 3)), jnp.zeros((5, 3))], mean)
    >>> clients.size, clients.capacity, float(clients.client(jnp.uint32(0))(jnp.zeros(3)))
    (2, 5, 1.5)
    """

    examples: PyTree[Array]
    offsets: Integer[Array, " clients_and_one"]
    loss: Loss = static()
    capacity: int = static()
    batch: int | None = count(or_none=True, default=None)
    replace: bool = static(default=False)
    weighted: bool = static(default=False)
    capacities: tuple[int, ...] = static(default=())  # numbers of rows to pad to, if one for all wastes much

    @classmethod
    def of(
        cls, clients: Sequence[PyTree], loss: Loss, *,
        batch: int | None = None, replace: bool = False, weighted: bool = False,
    ) -> "Ragged":  # fmt: skip
        """From one pytree of arrays per client; the first axis of every array is that of the rows.

        Arguments:
            clients: the examples of each client.
            loss: (params, rows) -> one loss per row.
            batch: rows in a minibatch; None to use all of a client's rows in every call.
            replace: whether a cohort may hold a client twice.
            weighted: whether the objective is the mean over examples instead of over clients.
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
        cls, examples: PyTree, sizes: Sequence[int], loss: Loss, *,
        batch: int | None = None, replace: bool = False, weighted: bool = False,
    ) -> "Ragged":  # fmt: skip
        """From the concatenated examples of all clients, and the number of each client's."""
        rows = checked_sizes(sizes)
        total = {np.shape(leaf)[0] for leaf in jax.tree.leaves(examples)}
        if total != {int(rows.sum())}:
            raise ValueError(f"the sizes add up to {rows.sum()} rows, the arrays have {sorted(total)}; they must agree")
        if rows.sum() >= 2**31:  # offsets have 32 bits, and would wrap
            raise ValueError(
                f"the clients have {rows.sum()} rows together; a population on the device holds at most {2**31 - 1}: "
                "leave rows out, or read them on demand with Generated or Hosted"
            )
        if isinstance(loss, RowsCheckingLoss):
            loss.check(examples)
        offsets = jnp.asarray(np.concatenate([[0], np.cumsum(rows)]), jnp.int32)
        capacities = _capacities(rows, examples) if batch is None else ()
        arrays = jax.tree.map(jnp.asarray, examples)
        return cls(arrays, offsets, loss, int(rows.max()), batch, replace, weighted, capacities)

    @property
    def size(self) -> int:
        return self.offsets.shape[0] - 1

    def sample(self, key: Key, count: int) -> Ids:
        return prng.draw(key, count, self.size, self.replace)

    def counts(self, ids: Ids) -> Integer[Array, " cohort"]:
        """How many rows each of these clients has."""
        begins_and_ends = take_runs(self.offsets, ids, 2)
        return begins_and_ends[:, 1] - begins_and_ends[:, 0]

    def factor(self, ids: UInt32[Array, "*shape"], counts: Integer[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The factor on the loss of clients with these numbers of rows; NaN for ids outside the population."""
        total = jax.tree.leaves(self.examples)[0].shape[0]
        share = counts.astype(jnp.result_type(float)) * (self.size / total) if self.weighted else 1.0
        return jnp.where(jnp.asarray(ids) < self.size, share, jnp.nan)

    def within(self, capacity: int) -> "Ragged":
        """The same population padded to this number of rows, for clients that have at most so many."""
        return dataclasses.replace(self, capacity=capacity, capacities=())

    def client(self, id: UInt32[Array, ""]) -> RaggedOracle:
        offset, end = take_runs(self.offsets, id, 2)
        count = end - offset
        options = {"loss": self.loss, "capacity": self.capacity, "batch": self.batch}
        return RaggedOracle(self.examples, offset, count, self.factor(id, count), **options).fetch()


def checked_sizes(sizes: Any) -> Integer[np.ndarray, " clients"]:
    """How many examples each client has: there is a client, and each has one."""
    rows = np.asarray(sizes, np.int64)
    if rows.size == 0:
        raise ValueError("the population has no clients; give at least one")
    empty = np.flatnonzero(rows < 1)
    if empty.size:
        raise ValueError(f"client {empty[0]} has {rows[empty[0]]} examples; it needs at least one: leave it out")
    return rows


def with_several_capacities(population: Population) -> Ragged | None:
    """The population if its clients are padded to several capacities, else None."""
    if not isinstance(population, Ragged) or population.batch is not None or not population.capacities:
        return None
    return population


def _capacities(sizes: Integer[np.ndarray, " clients"], examples: PyTree) -> tuple[int, ...]:
    """Which of an eighth, a quarter, a half and all of the largest size enough clients need; () for one capacity."""
    largest = int(sizes.max())
    if largest * sum(math.prod(np.shape(leaf)[1:]) for leaf in jax.tree.leaves(examples)) < SMALL_CLIENT:
        return ()
    kept, below = [], 0
    for capacity in (-(-largest // 8), -(-largest // 4), -(-largest // 2), largest):
        fitting = int(np.count_nonzero(sizes <= capacity))
        if fitting - below >= LEAST_SHARE * sizes.size or capacity == largest:
            kept.append(capacity)
            below = fitting
    return tuple(kept) if len(kept) > 1 else ()


def take_runs(arrays: PyTree[Array], starts: Integer[Array, "*starts"], length: int) -> PyTree[Array]:
    """``array[start : start + length]`` for every start, of every array; the slice must lie within it.

    >>> import jax.numpy as jnp
    >>> take_runs(jnp.arange(6), jnp.array([1, 4]), 2).tolist()
    [[1, 2], [4, 5]]
    """
    starts = jnp.asarray(starts)
    cut = _cut if jax.default_backend() == "cpu" else _indexed
    return jax.tree.map(lambda array: cut(array, starts, length), arrays)


def take_rows(arrays: PyTree[Array], places: Integer[Array, "*places"]) -> PyTree[Array]:
    """``array[places]``, of every array.

    >>> import jax.numpy as jnp
    >>> take_rows(jnp.arange(6).reshape(3, 2), jnp.array([2, 0])).tolist()
    [[4, 5], [0, 1]]
    """
    return jax.tree.map(lambda array: jnp.squeeze(array, axis=jnp.ndim(places)), take_runs(arrays, places, 1))


def _indexed(array: Array, starts: Integer[Array, "*starts"], length: int) -> Array:
    return array[starts[..., None] + jnp.arange(length)]


def _cut(array: Array, starts: Integer[Array, "*starts"], length: int) -> Array:
    """Slices, taken one by one also under ``vmap``.

    On a CPU, XLA estimates the cost of indexing that is fused with other work by the size of the whole array, and
    splits it among all threads: with three million small clients a round took three times as long as with a thousand.
    Slices are estimated correctly, but ``vmap`` would turn them into indexing.
    """

    @jax.custom_batching.custom_vmap
    def cut(array: Any, starts: Any) -> Any:
        one = partial(lax.dynamic_slice_in_dim, array, slice_size=length)
        flat = starts.reshape(-1)
        unrolled = flat.size <= UNROLLED
        result = jnp.stack([one(flat[i]) for i in range(flat.size)]) if unrolled else lax.map(one, flat)
        return result.reshape(*starts.shape, *result.shape[1:])

    @cut.def_vmap
    def _(size: int, batched: Sequence[bool], array: Any, starts: Any) -> tuple[Any, bool]:
        if batched[0]:  # one array per element of the batch: these are small
            axes = tuple(0 if each else None for each in batched)
            return jax.vmap(lambda array, starts: _indexed(array, starts, length), axes)(array, starts), True
        return cut(array, starts), True

    return cut(array, starts)

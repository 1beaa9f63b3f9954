"""Who there is to ask: the distribution D of the paper, and what one client can answer.

Three kinds of population serve the same protocol:

- `Generated`: endless. A client's id is 32 random bits and its data is made from them on demand.
- `Ragged`: finite, on the device. The examples of all clients lie end to end in one array.
- `Hosted`: finite, computed by Python code of any framework outside JAX.

All of them are pytrees, so that their data enters a compiled function as an argument.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Integer, Key, PyTree, UInt32

from fedspam import _check, _random
from fedspam._tree import Params, Scalar, static, struct

Ids = UInt32[Array, " cohort"]
Loss = Callable[..., Any]


class Oracle(Protocol):
    """One client's loss f_xi: differentiable in its parameters; the key, if any, picks the minibatch."""

    @property
    def weight(self) -> Any:
        """The number of its examples, or 1."""
        ...

    def __call__(self, params: Params, key: Key[Array, ""] | None = None) -> Scalar: ...


class Population(Protocol):
    """A distribution over clients: draw ids, and build the client of an id on demand."""

    @property
    def size(self) -> int | None:
        """How many clients there are; None where they never end."""
        ...

    def sample(self, key: Key[Array, ""], count: int) -> Ids: ...

    def client(self, id: UInt32[Array, ""]) -> Oracle: ...


def draw(key: Key[Array, ""], count: int, size: int, replace: bool) -> Ids:
    """`count` uniform ids below `size`: distinct unless `replace`, at a cost that grows with `count` alone."""
    _check.whole("cohort size", count, 1)
    if replace:
        return jax.random.bits(key, (count,), jnp.uint32) % jnp.uint32(size)
    if count > size:
        raise ValueError(
            f"cohort size = {count} is larger than the population of {size} clients; "
            f"ask for at most {size}, or sample with replace=True"
        )
    if count == 1:
        return _random.index(key, size)[None]
    return _random.permuted(key, jnp.arange(count, dtype=jnp.uint32), size)


@struct
class DataOracle:
    """A loss closed over one client's data."""

    data: PyTree
    loss: Loss = static()
    minibatch: bool = static(default=False)

    @property
    def weight(self) -> float:
        return 1.0

    def __call__(self, params: Params, key: Key[Array, ""] | None = None) -> Scalar:
        return self.loss(params, self.data, key) if self.minibatch else self.loss(params, self.data)


@struct
class Generated:
    """An endless population: client `id` owns ``make(key)`` where the key follows from seed and id.

    Nothing is stored, so four billion clients cost what one costs.

    >>> import jax, jax.numpy as jnp
    >>> people = Generated(make=lambda key: jax.random.normal(key, (3,)),
    ...                    loss=lambda x, centre: 0.5 * jnp.sum((x - centre) ** 2))
    >>> ids = people.sample(jax.random.key(0), 2)
    >>> people.client(ids[0])(jnp.zeros(3)).shape
    ()

    Arguments:
        make: key -> data of one client, traceable.
        loss: (params, data) -> scalar; with `minibatch`, (params, data, key) -> scalar.
        seed: which endless population.
        minibatch: whether the loss takes a key and draws from the data.
    """

    make: Callable[[Key[Array, ""]], PyTree] = static()
    loss: Loss = static()
    seed: int = 0
    minibatch: bool = static(default=False)

    @property
    def size(self) -> None:
        return None

    def sample(self, key: Key[Array, ""], count: int) -> Ids:
        _check.whole("cohort size", count, 1)
        return jax.random.bits(key, (count,), jnp.uint32)

    def client(self, id: UInt32[Array, ""]) -> DataOracle:
        data = self.make(jax.random.fold_in(jax.random.key(self.seed), id))
        return DataOracle(data, loss=self.loss, minibatch=self.minibatch)


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
        if key is None or self.batch is None or self.batch >= self.capacity:
            position = jnp.arange(self.capacity)
        else:
            # distinct rows of this client; those beyond its own number are masked
            slot = jnp.arange(self.batch, dtype=jnp.uint32)
            shuffled = _random.permuted(key, jnp.minimum(slot, jnp.uint32(self.count - 1)), self.count)
            position = jnp.where(slot < self.count, shuffled.astype(jnp.int32), self.capacity)
        kept = position < self.count
        rows = self.offset + jnp.minimum(position, self.count - 1)
        losses = self.loss(params, jax.tree.map(lambda leaf: leaf[rows], self.examples))
        mean = jnp.sum(jnp.where(kept, losses, 0)) / jnp.sum(kept)
        return jnp.asarray(self.factor, mean.dtype) * mean


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


@struct
class HostedOracle:
    """A client whose loss and gradient are computed outside JAX, by a call back to the host."""

    id: UInt32[Array, ""]
    weight: Scalar
    answer: Callable[..., Any] = static()

    def __call__(self, params: Params, key: Key[Array, ""] | None = None) -> Scalar:
        seed = jnp.zeros(2, jnp.uint32) if key is None else jax.random.key_data(key).astype(jnp.uint32)[:2]
        return _hosted(self.answer, self.id, seed, jnp.array(key is not None), params)


@struct
class Hosted:
    """A finite population whose clients live on the host: PyTorch modules, files, anything.

    Arguments:
        answer: (id, params, seed) -> (loss, gradient); NumPy in, NumPy out. The seed is None, or two
            32-bit integers that must pick the minibatch: equal seeds, equal minibatch.
        count: how many clients there are.
        weights: the number of examples of each, or None for 1.
    """

    answer: Callable[[int, Any, tuple[int, int] | None], tuple[Any, Any]] = static()
    count: int = static()
    weights: Float[Array, " clients"] | None = None
    replace: bool = static(default=False)

    def __post_init__(self) -> None:
        _check.whole("count", self.count, 1)

    @property
    def size(self) -> int:
        return self.count

    def sample(self, key: Key[Array, ""], count: int) -> Ids:
        return draw(key, count, self.size, self.replace)

    def client(self, id: UInt32[Array, ""]) -> HostedOracle:
        weight = jnp.ones(()) if self.weights is None else self.weights[id]
        return HostedOracle(id, weight, answer=self.answer)


def _hosted(
    answer: Callable[..., Any],
    id: UInt32[Array, ""],
    seed: UInt32[Array, " 2"],
    seeded: Bool[Array, ""],
    params: Params,
) -> Scalar:
    dtype = jnp.result_type(*jax.tree.leaves(params))

    def on_host(id: Any, seed: Any, seeded: Any, params: Any) -> tuple[Any, Any]:
        pick = (int(seed[0]), int(seed[1])) if bool(seeded) else None
        value, gradient = answer(int(id), jax.tree.map(np.asarray, params), pick)
        gradient = jax.tree.map(lambda got, like: np.asarray(got, like.dtype).reshape(like.shape), gradient, params)
        return np.asarray(value, dtype), gradient

    def both(params: Params) -> tuple[Scalar, Params]:
        shapes = (
            jax.ShapeDtypeStruct((), dtype),
            jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params),
        )
        return jax.pure_callback(on_host, shapes, id, seed, seeded, params, vmap_method="sequential")

    @jax.custom_vjp
    def loss(params: Params) -> Scalar:
        return both(params)[0]

    loss.defvjp(both, lambda gradient, cotangent: (jax.tree.map(lambda leaf: cotangent * leaf, gradient),))
    return loss(params)


@struct
class MeanOracle:
    """The mean client of a cohort: what an affine work is done on once, instead of once per client.

    Its loss is the mean of the cohort's losses, so that its gradient costs what a central gradient over
    the same examples costs. Above `chunk` clients the gradient is accumulated chunk by chunk.
    """

    population: Population
    ids: Ids
    chunk: int = static()

    @property
    def weight(self) -> float:
        return 1.0

    def __call__(self, params: Params, key: Key[Array, ""] | None = None) -> Scalar:
        count = self.ids.shape[0]
        if count <= self.chunk:
            return self._total(params, key, self.ids, jnp.ones(count, bool)) / count

        padding = -count % self.chunk
        ids = jnp.concatenate([self.ids, jnp.repeat(self.ids[-1:], padding)]).reshape(-1, self.chunk)
        kept = (jnp.arange(count + padding) < count).reshape(-1, self.chunk)

        @jax.custom_vjp
        def mean(params: Params) -> Scalar:
            value = jax.eval_shape(self._total, params, key, ids[0], kept[0])
            start = jnp.zeros((), value.dtype)
            total, _ = lax.scan(lambda sum, slot: (sum + self._total(params, key, *slot), None), start, (ids, kept))
            return total / count

        def mean_and_gradient(params: Params) -> tuple[Scalar, Params]:
            both = jax.value_and_grad(self._total)
            shapes = jax.eval_shape(both, params, key, ids[0], kept[0])
            start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

            def accumulate(sums: Any, slot: Any) -> tuple[Any, None]:
                return jax.tree.map(jnp.add, sums, both(params, key, *slot)), None

            sums, _ = lax.scan(accumulate, start, (ids, kept))
            return jax.tree.map(lambda leaf: leaf / count, sums)

        mean.defvjp(
            mean_and_gradient, lambda gradient, cotangent: (jax.tree.map(lambda leaf: cotangent * leaf, gradient),)
        )
        return mean(params)

    def _total(self, params: Params, key: Key[Array, ""] | None, ids: Ids, kept: Bool[Array, " chunk"]) -> Scalar:
        def loss(id: UInt32[Array, ""]) -> Scalar:
            return self.population.client(id)(params, None if key is None else jax.random.fold_in(key, id))

        if ids.shape[0] == 1:
            return loss(ids[0]) * kept[0]
        return jnp.sum(jnp.where(kept, jax.vmap(loss)(ids), 0))

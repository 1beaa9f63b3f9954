"""Clients whose data stays on the host or on disk and is sent to the device when rounds need it.

The draws of a method follow from the key alone, so they are known before their rounds run. While the device runs one
window of rounds, the rows that the next window needs are gathered and sent.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, Bool, Integer, PyTree, UInt32

from fedspam._internal.brief import Brief
from fedspam._internal.trees import Key, count, static, struct
from fedspam.clients import Ids, Loss, Population, RaggedOracle, draw
from fedspam.clients.ragged import checked_sizes
from fedspam.federation import Cohort, Work
from fedspam.federation.codecs import NO_CODECS
from fedspam.simulation.engine import Carry, Setup

ROOM = 2  # size of the buffer in average windows, so that later windows fit and nothing is compiled again


@dataclass(frozen=True, eq=False, repr=False)
class Shelf(Brief):
    """The rows of all clients, in the memory of the host or mapped from a file."""

    examples: Mapping[str, np.ndarray]
    offsets: Integer[np.ndarray, " clients_and_one"]

    @property
    def size(self) -> int:
        return len(self.offsets) - 1

    def rows(self, ids: Integer[np.ndarray, " n"]) -> tuple[Integer[np.ndarray, " rows"], Integer[np.ndarray, " n"]]:
        """The indices of the rows of these clients, concatenated, and the number of rows of each."""
        begins, counts = self.offsets[ids], self.offsets[ids + 1] - self.offsets[ids]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(begins, counts) + within, counts


@struct
class Stored:
    """A finite population whose examples stay on the host; `simulate` sends them to the device ahead of time.

    Build it with `Stored.of`. Results are those of `Ragged` to the bit, or, where that pads whole-batch clients of very
    unequal sizes to several capacities, up to the rounding of sums. Outside of `simulate`, and for a method whose
    draws depend on its state, each client is fetched by a call back to the host instead.

    >>> import jax.numpy as jnp
    >>> from fedspam.datasets import FederatedData
    >>> data = FederatedData.of([("a", {"x": [1.0, 3.0]}), ("b", {"x": [5.0]})])
    >>> clients = Stored.of(data, lambda m, rows: (rows["x"] - m) ** 2)
    >>> clients.size, float(clients.client(jnp.uint32(0))(jnp.array(2.0)))
    (2, 1.0)
    """

    shelf: Shelf = static()
    loss: Loss = static()
    capacity: int = static()
    batch: int | None = count(or_none=True, default=None)
    replace: bool = static(default=False)
    weighted: bool = static(default=False)
    window: int = count(default=10)

    @classmethod
    def of(
        cls, data: Any, loss: Loss, *,
        batch: int | None = None, replace: bool = False, weighted: bool = False, window: int = 10,
    ) -> "Stored":  # fmt: skip
        """From examples end to end and how many each client has, such as `fedspam.datasets.FederatedData` holds them.

        Arguments:
            data: its ``examples`` and ``sizes``; arrays may be mapped from files (`fedspam.datasets.open_mapped`).
            window: rounds whose clients are on the device together; those of the next window are on their way.
            loss, batch, replace, weighted: as in `Ragged.of`.
        """
        sizes = checked_sizes(data.sizes)
        shelf = Shelf(dict(data.examples), np.concatenate([[0], np.cumsum(sizes)]))
        return cls(shelf, loss, int(sizes.max()), batch, replace, weighted, window)

    @property
    def size(self) -> int:
        return self.shelf.size

    def sample(self, key: Key, count: int) -> Ids:
        return draw(key, count, self.size, self.replace)

    def client(self, id: UInt32[Array, ""]) -> RaggedOracle:
        shapes = {
            name: jax.ShapeDtypeStruct((self.capacity, *column.shape[1:]), jax.dtypes.canonicalize_dtype(column.dtype))
            for name, column in self.shelf.examples.items()
        }
        # the callback gets all clients that vmap runs side by side at once
        like = shapes, jax.ShapeDtypeStruct((), jnp.int32)
        fetched = jax.pure_callback(self._fetch, like, id, vmap_method="expand_dims")
        return self._oracle(fetched[0], jnp.int32(0), fetched[1], jnp.array(True))

    def _oracle(self, examples: PyTree[Array], offset: Any, count: Any, found: Any) -> RaggedOracle:
        factor = count.astype(jnp.result_type(float)) * (self.size / int(self.shelf.offsets[-1]))
        factor = jnp.where(found, factor if self.weighted else jnp.ones_like(factor), jnp.nan)
        oracle = RaggedOracle(examples, offset, count, factor, loss=self.loss, capacity=self.capacity, batch=self.batch)
        return oracle.fetch()

    def _fetch(self, id: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
        ids = np.asarray(id).astype(np.int64)
        begins, counts = self.shelf.offsets[ids], self.shelf.offsets[ids + 1] - self.shelf.offsets[ids]
        rows = begins[..., None] + np.minimum(np.arange(self.capacity), counts[..., None] - 1)
        columns = self.shelf.examples.items()
        kind = jax.dtypes.canonicalize_dtype
        return {name: np.asarray(c[rows], kind(c.dtype)) for name, c in columns}, counts.astype(np.int32)


@struct
class Window:
    """Some of the clients of a `Stored` population, on the device."""

    ids: UInt32[Array, " slots"]  # ascending; the last is repeated
    offsets: Integer[Array, " slots"]
    counts: Integer[Array, " slots"]
    examples: PyTree[Array]
    stored: Stored

    @property
    def size(self) -> int:
        return self.stored.size

    @property
    def replace(self) -> bool:
        return self.stored.replace

    def sample(self, key: Key, count: int) -> Ids:
        return self.stored.sample(key, count)

    def client(self, id: UInt32[Array, ""]) -> RaggedOracle:
        slot = jnp.minimum(jnp.searchsorted(self.ids, id), self.ids.shape[0] - 1)
        found = self.ids[slot] == id  # always true; otherwise the loss is NaN rather than that of another client
        return self.stored._oracle(self.examples, self.offsets[slot], self.counts[slot], found)


Lend = Callable[[Carry, int, int], Population]


@contextmanager
def lending(setup: Setup, length: int, rounds: int) -> Iterator[Lend]:
    """Gives each segment its population: the population itself, or the window of a `Stored` one that it needs."""
    if not isinstance(setup.population, Stored):
        yield lambda carry, start, count: setup.population
        return
    with ThreadPoolExecutor(1) as hands:
        yield _Lender(setup, length, rounds, hands)


class _Lender:
    """Prepares each window while the previous one is in use."""

    def __init__(self, setup: Setup, length: int, rounds: int, hands: ThreadPoolExecutor) -> None:
        # faults and the replay matter to draws, codecs and the rule of aggregation do not
        self._setup = dataclasses.replace(setup, probe=None, aggregate=None, codecs=NO_CODECS)
        self._stored: Any = setup.population  # a `Stored` one
        self._length, self._rounds, self._hands = length, rounds, hands
        self._carry: Carry | None = None
        self._known = False  # whether draws are known ahead
        self._next: tuple[int, Future[Window]] | None = None
        self._rows = 0  # capacity of the buffer
        one = lambda carry, key, round: self._ids_of(carry, jnp.float32(0), key, round)
        self._draws = jax.jit(jax.vmap(one, (None, None, 0)))

    def __call__(self, carry: Carry, start: int, count: int) -> Population:
        if self._carry is None:
            self._carry = carry
            self._known = not _depends_on_state(self._ids_of, carry, self._setup.key)
        if not self._known:
            return self._stored
        ready = self._next is not None and self._next[0] == start
        window = self._next[1].result() if self._next is not None and ready else self._make(start)
        if start + count < self._rounds:
            self._next = (start + count, self._hands.submit(self._make, start + count))
        return window

    def _ids_of(self, carry: Carry, token: Any, key: Any, round: Any) -> Ids:
        """The ids that a round draws. No client works here: replies are zeros that depend on the token."""
        fed = _Listening(self._setup.fed(carry.memory, round), token)
        self._setup.method.round(carry.state, jax.random.fold_in(key, round), fed)
        return jnp.concatenate(fed.ids)

    def _make(self, start: int) -> Window:
        assert self._carry is not None
        rounds = jnp.arange(start, start + self._length)
        drawn = self._draws(self._carry, self._setup.key, rounds)
        ids = np.unique(np.asarray(drawn)).astype(np.int64)
        slots = min(drawn.size, self._stored.size)
        rows, counts = self._stored.shelf.rows(ids)
        if len(rows) > self._rows:
            sizes = np.diff(self._stored.shelf.offsets)
            most = int(np.sort(sizes)[-slots:].sum())  # no window can need more
            self._rows = min(ROOM * max(len(rows), int(slots * sizes.mean()) + 1), most)
        padded = np.resize(np.append(rows, np.zeros(max(0, self._rows - len(rows)), int)), self._rows)
        examples = {name: jnp.asarray(column[padded]) for name, column in self._stored.shelf.examples.items()}
        fill = lambda values: np.concatenate([values, np.repeat(values[-1:], slots - len(values))])
        return Window(
            jnp.asarray(fill(ids), jnp.uint32),
            jnp.asarray(fill(np.cumsum(counts) - counts), jnp.int32),
            jnp.asarray(fill(counts), jnp.int32),
            examples,
            self._stored,
        )


class _Listening:
    """A handle that notes the ids of every exchange and replies with zeros."""

    def __init__(self, inner: Any, token: Any) -> None:
        self._inner, self._token = inner, token
        self.sample, self.everyone, self.client = inner.sample, inner.everyone, inner.client
        self.population_size = inner.population_size
        self.ids: list[Ids] = []

    @property
    def accepted(self) -> Any:
        return jnp.int32(1) + self._token.astype(jnp.int32)

    def mean(self, cohort: Cohort, work: Work, /, **message: Any) -> Any:
        return self._reply(cohort, lambda: self._inner.mean(cohort, work, **message))

    def collect(self, cohort: Cohort, work: Work, /, **message: Any) -> tuple[Any, Bool[Array, " cohort"]]:
        return self._reply(cohort, lambda: self._inner.collect(cohort, work, **message))

    def cond(self, predicate: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        # both branches run, so that the ids of either are noted
        return jax.tree.map(lambda a, b: jnp.where(predicate, a, b), yes(), no())

    def _reply(self, cohort: Cohort, ask: Callable[[], Any]) -> Any:
        self.ids.append(cohort.ids)
        memory = self._inner.memory
        shapes = jax.eval_shape(ask)
        self._inner.memory = memory  # the dry run changed it
        blank = lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) + self._token.astype(leaf.dtype)
        return jax.tree.map(blank, shapes)


def _depends_on_state(ids_of: Callable[..., Ids], carry: Carry, key: Any) -> bool:
    """Whether the ids that a round draws depend on the state or on replies, by following the program."""
    program = jax.make_jaxpr(ids_of)(carry, jnp.float32(0), key, jnp.int32(0)).jaxpr
    reached = set(program.invars[: len(jax.tree.leaves(carry)) + 1])  # by the state, or by the token in replies
    depends = lambda parts: any(not isinstance(part, Literal) and part in reached for part in parts)
    for equation in program.eqns:
        if depends(equation.invars):
            reached.update(equation.outvars)
    return depends(program.outvars)

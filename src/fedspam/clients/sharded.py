"""A finite population whose rows lie on several devices, also of several hosts; each holds those of its own clients."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as Spread
from jaxtyping import Array, Float, Integer, PyTree, UInt32

from fedspam._internal import hosts, prng
from fedspam._internal.trees import Key, count, static, struct
from fedspam.clients.protocol import Ids, Loss, RowsCheckingLoss
from fedspam.clients.ragged import RaggedOracle, checked_sizes

AXIS = "clients"  # of a mesh of devices
T = TypeVar("T")


@struct
class Sharded:
    """A finite population whose clients live on different devices. Build it with `Sharded.of`.

    A client works on the device that holds its rows, so that rows never travel: only messages and replies do. Draws
    are those of `Ragged`, and so are results, up to the order of sums. They have the same bits wherever the number of
    devices is the same, on one host or on several.

    >>> import jax.numpy as jnp
    >>> from fedspam.datasets import FederatedData
    >>> read = lambda n: FederatedData.of([(f"{n}{i}", {"x": np.full(i + 1, 1.0 * n)}) for i in range(3)])
    >>> clients = Sharded.of([0, 1], read, lambda m, rows: (rows["x"] - m) ** 2, devices=jax.devices()[:1])
    >>> clients.size, clients.capacity, float(clients.client(jnp.uint32(5))(jnp.array(3.0)))
    (6, 3, 4.0)
    """

    examples: PyTree[Array]  # [devices, rows, ...], padded with the last row
    shares: Float[Array, "devices rows"]  # of each row in the objective; 0 for padding
    owners: Integer[Array, " clients"]  # the number of the device of each client
    offsets: Integer[Array, " clients"]  # the client's first row on its device
    counts: Integer[Array, " clients"]
    mesh: Mesh = static()
    loss: Loss = static()
    capacity: int = static()
    rows: int = static()  # of all clients
    batch: int | None = count(or_none=True, default=None)
    replace: bool = static(default=False)
    weighted: bool = static(default=False)

    @classmethod
    def of(
        cls, parts: Sequence[T], read: Callable[[T], Any], loss: Loss, *,
        devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]
        batch: int | None = None, replace: bool = False, weighted: bool = False,
    ) -> "Sharded":  # fmt: skip
        """From parts of the data, such as folders. A process reads only the parts of its own devices.

        Arguments:
            parts: in the order of the clients, and the same in every process; at least one per device. Each device
                gets a run of them.
            read: a part -> its ``examples`` and ``sizes``, such as `fedspam.datasets.open_mapped` returns.
            devices: the devices, also of other hosts; None for all.
            loss, batch, replace, weighted: as in `fedspam.Ragged.of`.
        """
        devices = jax.devices() if devices is None else list(devices)
        number = len(devices)
        if len(parts) < number or not number:
            raise ValueError(
                f"there are {len(parts)} parts for {number} devices; give every device at least one part: write more "
                "parts, or use fewer devices"
            )
        mesh = Mesh(np.array(devices), (AXIS,))
        mine = [n for n, device in enumerate(devices) if device.process_index == jax.process_index()]
        ranges = [(n * len(parts) // number, (n + 1) * len(parts) // number) for n in range(number)]
        shards = hosts.together(lambda: {n: _joined([read(part) for part in parts[slice(*ranges[n])]]) for n in mine})
        if isinstance(loss, RowsCheckingLoss):
            hosts.together(lambda: [loss.check(examples) for examples, _ in shards.values()])
        sizes = _sizes_everywhere({n: sizes for n, (_, sizes) in shards.items()}, number)
        capacity, longest = max(int(each.max()) for each in sizes), max(int(each.sum()) for each in sizes)
        everywhere = lambda values: _placed({n: np.asarray(values, np.int32) for n in mine}, mesh, whole=True)
        total, clients = int(sum(each.sum() for each in sizes)), sum(map(len, sizes))
        share = lambda own: np.full(own.sum(), 1 / total) if weighted else np.repeat(1 / (clients * own), own)
        filled = lambda own: np.append(share(own), np.zeros(longest - own.sum())).astype(jnp.result_type(float))

        def lengthened(column: np.ndarray) -> np.ndarray:
            whole = np.concatenate([column, np.broadcast_to(column[-1:], (longest - len(column), *column.shape[1:]))])
            return whole.astype(jax.dtypes.canonicalize_dtype(column.dtype), copy=False)[None]

        def place(*columns: np.ndarray) -> Array:  # one of each device of this process
            return _placed(dict(zip(mine, map(lengthened, columns), strict=True)), mesh)

        return cls(
            jax.tree.map(place, *(examples for examples, _ in shards.values())),
            _placed({n: filled(sizes[n])[None] for n in mine}, mesh),
            everywhere(np.repeat(np.arange(number), [len(each) for each in sizes])),
            everywhere(np.concatenate([np.cumsum(each) - each for each in sizes])),
            everywhere(np.concatenate(sizes)),
            mesh, loss, capacity, total, batch, replace, weighted,
        )  # fmt: skip

    @property
    def size(self) -> int:
        return self.counts.shape[0]

    def sample(self, key: Key, count: int) -> Ids:
        return prng.draw(key, count, self.size, self.replace)

    def client(self, id: UInt32[Array, ""]) -> RaggedOracle:
        """A client, where all rows are at hand: in one process."""
        return self._oracle(jax.tree.map(lambda leaf: leaf[self.owners[id]], self.examples), id)

    @property
    def placement(self) -> "Sharded":
        """Which parts of this population are split over the devices, in the form that `shard_map` takes."""
        each, whole = jax.tree.map(lambda _: Spread(AXIS), self.examples), Spread()
        return dataclasses.replace(self, examples=each, shares=Spread(AXIS), owners=whole, offsets=whole, counts=whole)

    def on_device(self) -> "Shard":
        """The clients of one device, inside `shard_map`."""
        return Shard(jax.tree.map(lambda leaf: leaf[0], self.examples), self)

    def _oracle(self, examples: PyTree[Array], id: UInt32[Array, ""]) -> RaggedOracle:
        count = self.counts[id]
        share = count.astype(jnp.result_type(float)) * (self.size / self.rows) if self.weighted else 1.0
        factor = jnp.where(jnp.asarray(id) < self.size, share, jnp.nan)
        options = {"loss": self.loss, "capacity": self.capacity, "batch": self.batch}
        return RaggedOracle(examples, self.offsets[id], count, factor, **options).fetch()


@struct
class Shard:
    """The clients of a `Sharded` population whose rows are on one device."""

    examples: PyTree[Array]
    whole: Sharded

    @property
    def size(self) -> int:
        return self.whole.size

    def sample(self, key: Key, count: int) -> Ids:
        return self.whole.sample(key, count)

    def client(self, id: UInt32[Array, ""]) -> RaggedOracle:
        return self.whole._oracle(self.examples, id)


def _joined(parts: Sequence[Any]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The rows of several parts end to end, and the sizes of their clients."""
    sizes = checked_sizes(np.concatenate([part.sizes for part in parts]))
    examples = {name: np.concatenate([np.asarray(part.examples[name]) for part in parts]) for name in parts[0].examples}
    if sizes.sum() >= 2**31:
        raise ValueError(f"a device gets {sizes.sum()} rows; it holds at most {2**31 - 1}: use more devices")
    return examples, sizes


def _sizes_everywhere(mine: dict[int, np.ndarray], devices: int) -> list[np.ndarray]:
    """The sizes of the clients of every device, in every process."""
    told = hosts.all_bytes(json.dumps({number: sizes.tolist() for number, sizes in mine.items()}).encode())
    found = {int(number): np.array(sizes, np.int64) for data in told for number, sizes in json.loads(data).items()}
    return [found[number] for number in range(devices)]


def _placed(parts: dict[int, np.ndarray], mesh: Mesh, *, whole: bool = False) -> Array:
    """One array of which each device holds its part: a slice of the first axis, or the whole array."""
    shape = next(iter(parts.values())).shape
    pieces = [jax.device_put(part, mesh.devices.flat[number]) for number, part in parts.items()]
    placement = NamedSharding(mesh, Spread() if whole else Spread(AXIS))
    return jax.make_array_from_single_device_arrays(shape if whole else (mesh.size, *shape[1:]), placement, pieces)

"""An endless population."""

import numbers
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, UInt32

from fedspam._internal import checks, prng
from fedspam._internal.trees import Key, Params, Scalar, static, struct
from fedspam.clients.protocol import Ids, Loss


@struct
class DataOracle:
    """A loss of one client's data."""

    data: PyTree
    loss: Loss = static()
    minibatch: bool = static(default=False)

    @property
    def weight(self) -> float:
        return 1.0

    def __call__(self, params: Params, key: Key | None = None) -> Scalar:
        return self.loss(params, self.data, key) if self.minibatch else self.loss(params, self.data)


@struct
class Generated:
    """An endless population: client `id` has the data ``make(key)``, with a key made from seed and id.

    Nothing is stored, so four billion clients cost as much as one.

    >>> import jax, jax.numpy as jnp
    >>> clients = Generated(make=lambda key: jax.random.normal(key, (3,)),
    ...                    loss=lambda x, center: 0.5 * jnp.sum((x - center) ** 2))
    >>> ids = clients.sample(jax.random.key(0), 2)
    >>> clients.client(ids[0])(jnp.zeros(3)).shape
    ()

    Arguments:
        make: key -> the data of one client; traceable.
        loss: (params, data) -> scalar; with `minibatch`, (params, data, key) -> scalar.
        seed: of the population, from 0 to 2^32 - 1; another seed gives other clients.
        minibatch: whether the loss takes a key, to draw a minibatch from the data.
    """

    make: Callable[[Key], PyTree] = static()
    loss: Loss = static()
    seed: int = 0
    minibatch: bool = static(default=False)

    def __post_init__(self) -> None:
        if isinstance(self.seed, numbers.Number | str) and not isinstance(self.seed, bool):
            prng.check_seed("seed", self.seed)

    @property
    def size(self) -> None:
        return None

    def sample(self, key: Key, count: int) -> Ids:
        checks.whole("cohort size", count, 1)
        return jax.random.bits(key, (count,), jnp.uint32)

    def client(self, id: UInt32[Array, ""]) -> DataOracle:
        data = self.make(jax.random.fold_in(jax.random.key(self.seed), id))
        return DataOracle(data, loss=self.loss, minibatch=self.minibatch)

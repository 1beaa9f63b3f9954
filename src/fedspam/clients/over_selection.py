"""Over-selection: ask more clients than a cohort needs, and take those that reply first."""

import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt32

from fedspam._internal import checks, prng
from fedspam._internal.trees import static, struct
from fedspam.clients.protocol import Ids, Oracle, Population


class Delay(Protocol):
    """How long a client takes: a pytree that is called with a key of the draw and the client's id."""

    def __call__(self, key: Key[Array, ""], id: UInt32[Array, ""]) -> Any: ...


@struct
class RandomDelay:
    r"""Log-normal seconds, :math:`m \exp(\sigma_i + \sigma)`, in part the client's own and in part luck.

    Arguments:
        median: m, in seconds.
        spread: the standard deviation of :math:`\sigma`, drawn anew each time. With 1, one reply in a hundred takes ten
            times the median.
        own_spread: the standard deviation of :math:`\sigma_i`, which a client keeps: some are always slow.
        seed: of the clients' own speeds.
    """

    median: float = 1.0
    spread: float = 1.0
    own_spread: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        checks.positive("median", self.median)
        for name in ("spread", "own_spread"):
            checks.between(name, getattr(self, name), 0, math.inf)

    def __call__(self, key: Key[Array, ""], id: UInt32[Array, ""]) -> Float[Array, ""]:
        own = jax.random.normal(jax.random.fold_in(jax.random.key(self.seed), id))
        return self.median * jnp.exp(self.own_spread * own + self.spread * jax.random.normal(key))


@struct
class OverSelected:
    """A population of whose draws only the fastest clients take part.

    A cohort of B is drawn as one of B + ⌈more · B⌉ clients, and the B whose delays are the shortest are the cohort. The
    same key gives the same cohort. Over Flower, `FedspamStrategy(over_selection=more)` does this with real replies.

    **It is biased.** A client counts in proportion to how often it is among the fastest of a draw. If speed has to do
    with data (old devices, large hospitals, another time zone), the model fits the fast clients. Only with delays that
    are independent of the client (``own_spread=0``) are all equally likely. Exchanges with everyone are not
    over-selected.

    >>> import jax
    >>> from fedspam.problems import quadratics
    >>> clients = OverSelected(quadratics(0, clients=100, dimension=3), RandomDelay(), more=0.5)
    >>> clients.sample(jax.random.key(0), 10).shape
    (10,)
    >>> waits = [float(clients.wait(jax.random.key(seed), 10)) for seed in range(50)]
    >>> everyone = OverSelected(clients.population, RandomDelay(), more=0.0)
    >>> sum(waits) < 0.5 * sum(float(everyone.wait(jax.random.key(seed), 10)) for seed in range(50))
    True

    Arguments:
        population: the clients.
        delay: (key, id) -> seconds, a pytree such as `RandomDelay`.
        more: further clients to ask, as a share of the cohort.
    """

    population: Population
    delay: Delay
    more: float = static(default=0.3)

    def __post_init__(self) -> None:
        checks.between("more", self.more, 0, math.inf)

    @property
    def size(self) -> int | None:
        return self.population.size

    @property
    def replace(self) -> bool:
        return bool(getattr(self.population, "replace", False))

    def sample(self, key: Key[Array, ""], count: int) -> Ids:
        ids, seconds = self._asked(key, count)
        return ids[jnp.sort(jnp.argsort(seconds)[:count])]  # in the order of the draw

    def wait(self, key: Key[Array, ""], count: int) -> Float[Array, ""]:
        """The seconds until the cohort of this draw is complete."""
        return jnp.sort(self._asked(key, count)[1])[count - 1]

    def client(self, id: UInt32[Array, ""]) -> Oracle:
        return self.population.client(id)

    def _asked(self, key: Key[Array, ""], count: int) -> tuple[Ids, Float[Array, " asked"]]:
        ids = self.population.sample(key, asked(count, self.more, self.size))
        keys = jax.vmap(lambda id: jax.random.fold_in(prng.fold_name(key, "delay"), id))(ids)
        return ids, jax.vmap(self.delay)(keys, ids)


def asked(count: int, more: float, size: int | None) -> int:
    """How many clients are asked for a cohort of this size."""
    total = count + math.ceil(more * count - 1e-9)
    return total if size is None else max(count, min(total, size))

"""Clients that take time: a round waits for its slowest client, or asks more of them and takes the fastest."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from fedspam._internal import prng
from fedspam._internal.trees import Key, number, struct
from fedspam.clients.delays import Delay
from fedspam.clients.protocol import Ids, Oracle, Population, repeats


@struct
class OverSelected:
    """A population with delays. Each draw asks more clients than needed and keeps the fastest.

    A cohort of B is drawn as one of B + ⌈more · B⌉ clients, and the B whose delays are the shortest are the cohort. The
    same key gives the same cohort. Over Flower, ``Replies(over_selection=more)`` does this with real replies.

    Runs record ``seconds``: how long each round waits, exchange after exchange, for the slowest client of each. With
    ``more=0`` those are the seconds of plain synchronous rounds, with the draws of the population itself. What the
    server computes, and the start of the method, take no time. `fedspam.methods.buffered` does not wait for the
    slowest at all.

    **It is biased.** A client counts in proportion to how often it is among the fastest of a draw. If speed has to do
    with data (old devices, large hospitals, another time zone), the model fits the fast clients. Only with delays that
    are independent of the client (``own_spread=0``) are all equally likely. Exchanges with everyone are not
    over-selected.

    >>> import jax
    >>> from fedspam.clients import RandomDelay
    >>> from fedspam.problems import quadratics
    >>> clients = OverSelected(quadratics(0, clients=100, dimension=3), RandomDelay(), more=0.5)
    >>> clients.sample(jax.random.key(0), 10).shape
    (10,)
    >>> everyone = OverSelected(clients.population, RandomDelay(), more=0.0)
    >>> keys = jax.random.split(jax.random.key(1), 50)
    >>> hurried, patient = (jax.vmap(lambda key: each.wait(key, 10))(keys).mean() for each in (clients, everyone))
    >>> bool(hurried < 0.5 * patient)
    True

    Arguments:
        population: the clients.
        delay: (key, id) -> seconds, a pytree such as `RandomDelay`.
        more: further clients to ask, as a share of the cohort.
    """

    population: Population
    delay: Delay
    more: float = number(0, default=0.3, fixed=True)

    @property
    def size(self) -> int | None:
        return self.population.size

    @property
    def replace(self) -> bool:
        return repeats(self.population)

    def sample(self, key: Key, count: int) -> Ids:
        return self.timed(key, count)[0]

    def timed(self, key: Key, count: int) -> tuple[Ids, Float[Array, " cohort"]]:
        """A cohort and the seconds of each of its members."""
        ids = self.population.sample(key, asked(count, self.more, self.size))
        keys = jax.vmap(lambda id: jax.random.fold_in(prng.fold_name(key, "delay"), id))(ids)
        seconds = jax.vmap(self.delay)(keys, ids)
        fastest = jnp.sort(jnp.argsort(seconds)[:count])  # in the order of the draw
        return ids[fastest], seconds[fastest]

    def wait(self, key: Key, count: int) -> Float[Array, ""]:
        """The seconds until the cohort of this draw is complete."""
        return jnp.max(self.timed(key, count)[1])

    def client(self, id: UInt32[Array, ""]) -> Oracle:
        return self.population.client(id)


def asked(count: int, more: float, size: int | None) -> int:
    """How many clients are asked for a cohort of this size."""
    total = count + math.ceil(more * count - 1e-9)
    return total if size is None else max(count, min(total, size))

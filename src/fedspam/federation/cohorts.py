"""How a cohort is drawn: from the population, or from a replay that prescribes the ids of every round."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Integer, UInt32

from fedspam._internal import prng
from fedspam._internal.trees import Key
from fedspam.clients import Ids, Population, TimedPopulation, repeats

Replay = Mapping[str, Integer[Array, "rounds ..."]]


@dataclass(frozen=True)
class Cohort:
    """The clients that take part in an exchange, and the key of the round."""

    ids: Ids
    key: Key
    chosen: UInt32[Array, ""] | None = None  # the member that a replay prescribes for `one`
    fixed: bool = False  # whether no other client can stand in for a member
    seconds: Any = None  # until each member replies for the first time, where clients take time
    # Identity of the draw: members already hold fields that were sent to it earlier in the round.
    origin: object = field(default_factory=object)

    @property
    def size(self) -> int:
        return self.ids.shape[0]

    def one(self, key: Key) -> "Cohort":
        """One member, drawn uniformly."""
        if self.chosen is not None:
            id = self.chosen
        elif self.size == 1:
            return self
        else:
            id = self.ids[prng.index(prng.fold_name(key, "one"), self.size)]
        return replace(self, ids=jnp.asarray(id, jnp.uint32)[None], seconds=None)


class Draws:
    """Makes the cohorts of a round: from the population, or from a replay that prescribes the ids.

    Arguments:
        population: the clients; None where only the sizes of cohorts matter.
        replay: ids by role and round.
        round: which round of the replay.
    """

    def __init__(self, population: Population | None, replay: Replay | None = None, round: Any = 0) -> None:
        self._population, self._replay, self.round = population, replay, round
        self.roles: set[str] = set()  # of the draws made so far
        self.names_a_client = False  # whether a client was asked for by its id

    @property
    def population_size(self) -> int | None:
        """Number of clients, if draws do not repeat; None if it is infinite, unknown, or draws repeat."""
        return None if self._population is None or repeats(self._population) else self._population.size

    def sample(self, key: Key, count: int, role: str = "cohort", times: int = 1) -> Cohort:
        self.roles.add(role)
        ids, seconds = self._prescribed(role, count * times), None
        if ids is None:
            ids, seconds = self._drawn(prng.fold_name(key, role), count, times)
        chosen = self._prescribed("prox", 1) if role == "cohort" else None
        return Cohort(ids, key, None if chosen is None else chosen[0], seconds=seconds)

    def everyone(self, key: Key) -> Cohort:
        if self._population is None:
            raise ValueError("this method asks every client; give the population, so that their number is known")
        if self._population.size is None:
            raise ValueError("this method asks every client, and the population is endless; use a finite one")
        return Cohort(jnp.arange(self._population.size, dtype=jnp.uint32), key, fixed=True)

    def client(self, id: int | UInt32[Array, ""], key: Key) -> Cohort:
        self.names_a_client = True
        size = None if self._population is None else self._population.size
        if isinstance(id, int) and size is not None and not 0 <= id < size:
            raise ValueError(f"this method asks client {id}, but the clients are 0 to {size - 1}; name one of these")
        return Cohort(jnp.asarray(id, jnp.uint32)[None], key, fixed=True)

    def _drawn(self, key: Key, count: int, times: int) -> tuple[Ids, Any]:
        """The ids, and the seconds of each client where clients take time."""
        population = self._population
        if population is None:
            return jnp.zeros(count * times, jnp.uint32), None
        timed = isinstance(population, TimedPopulation)
        draw = population.timed if timed else lambda key, count: (population.sample(key, count), None)
        if times == 1:
            return draw(key, count)
        drawn = jax.vmap(lambda key: draw(key, count))(jax.random.split(key, times))
        return jax.tree.map(lambda part: part.reshape(-1), drawn)

    def _prescribed(self, role: str, count: int) -> Ids | None:
        if self._replay is None or role not in self._replay:
            return None
        ids = jnp.asarray(self._replay[role], jnp.uint32)
        ids = ids[:, None] if ids.ndim == 1 else ids
        if ids.shape[1] != count:
            raise ValueError(
                f"replay[{role!r}] has {ids.shape[1]} clients per round, but the method draws {count}; "
                f"give an array of shape (rounds, {count})"
            )
        return ids[self.round]


def check_replay(replay: Replay | None, rounds: int, population: Population, roles: frozenset[str]) -> None:
    """Refuse a replay that is too short, holds no ids, or names clients or draws that do not exist."""
    known = roles | {"prox"} if "cohort" in roles else roles  # which member of the cohort moves
    for role, ids in (replay or {}).items():
        if role not in known:
            names = ", ".join(sorted(known)) or "none"
            raise ValueError(f"replay[{role!r}] is not a draw of this method; it draws {names}")
        ids = np.asarray(ids)
        if ids.ndim == 0:
            raise ValueError(f"replay[{role!r}] = {ids!r} is one value; give ids of clients for each round")
        if ids.shape[0] < rounds:
            raise ValueError(
                f"replay[{role!r}] has {ids.shape[0]} rounds, but rounds={rounds}; shorten the run or extend the replay"
            )
        if not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(
                f"replay[{role!r}] has dtype {ids.dtype}; ids of clients must be integers: "
                "use .astype(int) if they are whole numbers"
            )
        size = 2**32 if population.size is None else population.size
        if ids.size and (ids.min() < 0 or ids.max() >= size):
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise ValueError(f"replay[{role!r}] names client {wrong}; the population has clients 0 to {size - 1}")

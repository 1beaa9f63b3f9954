"""How long clients take: seconds between a message and its reply, given or measured.

A delay is a pytree that is called with a key and the id of a client. `OverSelected` gives it to a population, and then
every run records the seconds of its rounds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, UInt32

from fedspam._internal import checks
from fedspam._internal.reading import csv_rows, lines, listed, number, opened, shown
from fedspam._internal.trees import Key, number as number_of, positive, struct

MOST = 64 * 2**20  # bytes of a file of measured delays
CLIENT = "it must be a whole number from 0: correct it"
SECONDS = "it must be a finite number of at least 0: correct it, or leave the row out"
KIND = "a CSV file with a column 'seconds', and where clients differ a column 'client'"


class Delay(Protocol):
    """How long a client takes: a pytree that is called with a key of the draw and the client's id."""

    def __call__(self, key: Key, id: UInt32[Array, ""]) -> Any: ...


@struct
class FixedDelay:
    """Always the same seconds: one number for all clients, or one per client.

    >>> import jax
    >>> float(FixedDelay(jax.numpy.array([1.0, 5.0]))(jax.random.key(0), 1))
    5.0
    """

    seconds: float | Float[Array, " clients"] = 1.0

    def __post_init__(self) -> None:
        if checks.is_number(self.seconds):
            checks.positive("seconds", self.seconds)

    def __call__(self, key: Key, id: UInt32[Array, ""]) -> Float[Array, ""]:
        seconds = jnp.asarray(self.seconds, jnp.result_type(float))
        return seconds if seconds.ndim == 0 else seconds[id]


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

    median: float = positive(default=1.0)
    spread: float = number_of(0, default=1.0)
    own_spread: float = number_of(0, default=0.0)
    seed: int = 0

    def __call__(self, key: Key, id: UInt32[Array, ""]) -> Float[Array, ""]:
        own = jax.random.normal(jax.random.fold_in(jax.random.key(self.seed), id))
        return self.median * jnp.exp(self.own_spread * own + self.spread * jax.random.normal(key))


@struct
class ParetoDelay:
    r"""Seconds with a heavy tail: :math:`P(\text{seconds} > t) = (m/t)^\alpha` for :math:`t \ge m`.

    Among B clients the slowest takes about :math:`m B^{1/\alpha}` seconds. With :math:`\alpha \le 1` the mean is
    infinite, so that now and then a synchronous round waits without end.

    >>> import jax
    >>> delay = ParetoDelay(least=2.0, tail=1.5)
    >>> keys = jax.random.split(jax.random.key(0), 4000)
    >>> seconds = jax.vmap(lambda key: delay(key, 0))(keys)
    >>> bool(seconds.min() >= 2), bool(abs((seconds > 8).mean() - 4**-1.5) < 0.02)
    (True, True)

    Arguments:
        least: m, in seconds.
        tail: :math:`\alpha`. The smaller, the heavier.
    """

    least: float = positive(default=1.0)
    tail: float = positive(default=1.5)

    def __call__(self, key: Key, id: UInt32[Array, ""]) -> Float[Array, ""]:
        return self.least * jnp.exp(jax.random.exponential(key) / self.tail)


@struct
class MeasuredDelay:
    """Seconds drawn from those that were measured: of all clients together, or of each client by itself.

    Build it with `MeasuredDelay.of` or `MeasuredDelay.read`.

    >>> import jax
    >>> delay = MeasuredDelay.of([[1.0, 2.0], [30.0]])    # client 1 is the slow one
    >>> float(delay(jax.random.key(0), 1))
    30.0
    """

    seconds: Float[Array, " measured"]
    offsets: Integer[Array, " clients_and_one"] | None = None  # where those of each client begin; None: all together

    @classmethod
    def of(cls, seconds: Sequence[float] | Sequence[Sequence[float]]) -> "MeasuredDelay":
        """From a list of seconds, or from one list per client."""
        nested = [np.asarray(part, float).reshape(-1) for part in seconds]
        alone = all(np.ndim(part) == 0 for part in seconds)
        with np.errstate(over="ignore"):
            values = np.concatenate([np.zeros(0), *nested]).astype(jnp.result_type(float))
        wrong = values[~(np.isfinite(values) & (values >= 0))]
        if wrong.size:
            raise ValueError(f"seconds = {wrong[0]} was measured; it must be finite and not negative: leave it out")
        empty = next((client for client, part in enumerate(nested) if not part.size), None)
        if not nested or empty is not None:
            raise ValueError(
                "there are no measured seconds"
                + (f" of client {empty}" if nested else "")
                + "; every client needs at least one, or give one list for all clients"
            )
        offsets = None if alone else jnp.asarray(np.cumsum([0, *map(len, nested)]), jnp.int32)
        return cls(jnp.asarray(values), offsets)

    @classmethod
    def read(cls, path: str | Path) -> "MeasuredDelay":
        """From a CSV file: a column ``seconds``, and where clients differ a column ``client`` with ids from 0."""
        path = Path(path)
        found: dict[int, list[float]] = {}
        with opened(path, "rt", KIND, most=MOST, encoding="utf-8-sig", newline="") as file:
            rows = csv_rows(lines(file, path), path)
            names = [name.strip() for name in next(rows, (1, [""]))[1]]
            if names.count("seconds") != 1 or names.count("client") > 1:
                raise ValueError(f"{path} has columns {listed(names)}; it needs a column 'seconds', and 'client' once")
            for line, cells in rows:
                if len(cells) != len(names):
                    raise ValueError(f"{path}, line {line} has {len(cells)} cells, the header {len(names)}; correct it")
                row = dict(zip(names, cells, strict=True))
                client = row.get("client", "0").strip()
                seconds = number(row["seconds"], path, line, "seconds", SECONDS)
                if not (client.isascii() and client.isdigit() and len(client) < 10):
                    raise ValueError(f"{path}, line {line}: client is {shown(row['client'])!r}; {CLIENT}")
                if not 0 <= seconds <= float(jnp.finfo(jnp.result_type(float)).max):
                    raise ValueError(f"{path}, line {line}: seconds is {shown(row['seconds'])!r}; {SECONDS}")
                found.setdefault(int(client), []).append(seconds)
        missing = next((client for client in range(len(found)) if client not in found), None)
        if missing is not None or not found:
            raise ValueError(f"{path} has nothing of client {missing or 0}; the ids must be 0, 1, 2 and so on")
        if "client" not in names:
            return cls.of(found[0])
        return cls.of([found[client] for client in range(len(found))])

    def __call__(self, key: Key, id: UInt32[Array, ""]) -> Float[Array, ""]:
        if self.offsets is None:
            return self.seconds[jax.random.randint(key, (), 0, self.seconds.shape[0])]
        begin, end = self.offsets[id], self.offsets[jnp.asarray(id) + 1]
        return self.seconds[jax.random.randint(key, (), begin, end)]

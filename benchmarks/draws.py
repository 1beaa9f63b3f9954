"""How uniform draws without replacement are: chi-square of who is drawn, at which place, with whom, and in which set.

    python benchmarks/draws.py                      # n = 3 to 40, ten million draws of each
    python benchmarks/draws.py 5 8 --draws 100000   # some sizes, fewer draws

A cohort of 4 of n clients, and a minibatch of 4 of the n rows of a client (n - 1 if n is at most 4). Each number is
(chi^2 - df) / sqrt(2 df): near 0 for uniform draws, and growing with the number of draws for others.

- drawn: how often each id is drawn at all;
- place: at which place of the cohort;
- pairs: the ordered pairs at the first two places;
- sets: the ids of the cohort without their order.

The exit code is 1 if a number is larger than uniform draws would show in one table of a million.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from fedspam import Ragged
from fedspam.clients import draw

SIZES = range(3, 41)
COHORT = 4
DRAWS = 10_000_000
CHUNK, BLOCK = 10_000, 50  # draws at once, which stay in the cache of a core; and chunks between two counts
UNLIKELY = 1e-6 / (8 * len(SIZES))

Draw = Callable[[jax.Array], jax.Array]


class ChiSquare(NamedTuple):
    """A chi-square statistic and its degrees of freedom."""

    value: float
    freedom: int

    @property
    def excess(self) -> float:
        return (self.value - self.freedom) / np.sqrt(2 * self.freedom)

    @property
    def is_unlikely(self) -> bool:
        return stats.chi2.sf(self.value, self.freedom) < UNLIKELY


def cohorts(n: int) -> Draw:
    """Draws some of n clients."""
    return lambda key: draw(key, min(COHORT, n - 1), n, False)


@functools.cache
def clients() -> Ragged:
    """Client i has i + 1 rows, with the numbers 0 to i."""
    rows = [np.arange(n, dtype=np.float32) for n in range(1, SIZES[-1] + 1)]
    return Ragged.of(rows, lambda x, rows: rows, batch=COHORT)


def minibatches(n: int) -> Draw:
    """Draws some rows of a client with n rows, among clients with fewer and more."""
    client = clients().client(jnp.uint32(n - 1))
    return lambda key: client.rows_and_shares(key)[0][: n - 1].astype(jnp.uint32)


KINDS = {"cohorts": cohorts, "minibatches": minibatches}


def counted(kind: str, n: int, draws: int) -> np.ndarray:
    """How often each ordered cohort was drawn: one axis per place. The kinds have keys of their own."""
    draw, size, first = KINDS[kind](n), min(COHORT, n - 1), jax.random.fold_in(jax.random.key(n), len(kind))
    digits = np.uint32(n) ** np.arange(size, dtype=np.uint32)[::-1]
    chunk = lambda key: jax.vmap(lambda one: draw(one) @ digits)(jax.random.split(key, CHUNK))
    block = jax.jit(lambda keys: jax.lax.map(chunk, keys))
    table = np.zeros(n**size, np.int64)
    for number in range(-(-draws // (CHUNK * BLOCK))):
        keys = jax.random.split(jax.random.fold_in(first, number), BLOCK)
        table += np.bincount(np.asarray(block(keys)).reshape(-1), minlength=table.size)
    return table.reshape((n,) * size)


def statistics(table: np.ndarray) -> dict[str, ChiSquare]:
    """Of counts of ordered cohorts. The covariance of counts at two places is that of draws without replacement."""
    n, size, draws = table.shape[0], table.ndim, table.sum()
    axes = set(range(size))
    places = np.stack([table.sum(tuple(axes - {kept})) for kept in range(size)])
    drawn, pairs = places.sum(0), table.sum(tuple(axes - {0, 1}))
    ids = np.sort(np.stack(np.unravel_index(np.arange(table.size), table.shape)), axis=0)
    is_cohort = np.all(ids[1:] > ids[:-1], axis=0)
    names = np.ravel_multi_index(tuple(ids[:, is_cohort]), table.shape)
    sets = np.bincount(np.unique(names, return_inverse=True)[1], weights=table.reshape(-1)[is_cohort])
    if sets.sum() != draws:
        raise ValueError(f"of {draws} cohorts of {size} of {n}, {draws - sets.sum():g} have an id twice")
    spread = draws * size * (n - size) / (n * (n - 1))
    return {
        "drawn": ChiSquare(np.sum((drawn - draws * size / n) ** 2) / spread, n - 1),
        "place": ChiSquare(np.sum((places - places.mean(0)) ** 2) * (n - 1) / draws, (size - 1) * (n - 1)),
        "pairs": _multinomial(pairs[~np.eye(n, dtype=bool)]),
        "sets": _multinomial(sets),
    }


def _multinomial(counts: np.ndarray) -> ChiSquare:
    return ChiSquare(np.sum((counts - counts.mean()) ** 2) / counts.mean(), counts.size - 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=list(SIZES), metavar="N", help="populations (3 to 40)")
    parser.add_argument("--draws", type=int, default=DRAWS, metavar="K", help="of each (10000000)")
    options = parser.parse_args()
    began, unlikely = time.perf_counter(), []
    names = ("drawn", "place", "pairs", "sets")
    print("|  n | " + " | ".join(f"{kind}: {name}" for kind in KINDS for name in names) + " |", flush=True)
    print("|--:|" + "--:|" * (len(KINDS) * len(names)))
    for n in options.sizes:
        found = {kind: statistics(counted(kind, n, options.draws)) for kind in KINDS}
        print(
            f"| {n:2} | " + " | ".join(f"{each[name].excess:.1f}" for each in found.values() for name in names) + " |",
            flush=True,
        )
        unlikely += [
            f"{kind} of {n}, {name}" for kind, each in found.items() for name in names if each[name].is_unlikely
        ]
    print(
        f"{options.draws} draws each, {time.perf_counter() - began:.0f} s; not uniform: {'; '.join(unlikely) or 'none'}"
    )
    return 1 if unlikely else 0


if __name__ == "__main__":
    sys.exit(main())

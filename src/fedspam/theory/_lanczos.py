r"""Lanczos on the server, for several symmetric matrices side by side, with full orthogonalization.

Only products with the matrices are needed. Each step takes the product of each matrix with its last basis vector.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, Key


class Krylov(NamedTuple):
    """The bases and the tridiagonal matrices of m matrices after k steps."""

    basis: Float[Array, "steps m d"]
    diagonal: Float[Array, "steps m"]
    off_diagonal: Float[Array, "steps m"]  # entry j couples vectors j and j + 1; the last is the residual's norm
    k: Integer[Array, ""]
    scale: Float[Array, ""]  # the norm of the largest product so far, for the size of rounding errors


class Ritz(NamedTuple):
    """The extreme Ritz values of one matrix, which lie inside its spectrum, and their vectors."""

    lowest: float
    highest: float
    lowest_vector: Float[np.ndarray, " d"]
    highest_vector: Float[np.ndarray, " d"]
    steps: int  # steps until the basis was exhausted, or all
    exhausted: bool  # whether the basis spans all that the start can reach


def begin(key: Key[Array, ""], count: int, like: Float[Array, " d"], steps: int) -> Krylov:
    """Start from m uniformly random directions."""
    first = jax.random.normal(key, (count, like.shape[0]), like.dtype)
    first /= jnp.linalg.norm(first, axis=1, keepdims=True)
    basis = jnp.zeros((steps, count, like.shape[0]), like.dtype).at[0].set(first)
    zeros = jnp.zeros((steps, count), like.dtype)
    return Krylov(basis, zeros, zeros, jnp.zeros((), jnp.int32), jnp.zeros((), like.dtype))


def step(krylov: Krylov, products: Float[Array, "m d"], scale: Any) -> Krylov:
    """One more step; where a basis is exhausted its next vectors are zero."""
    basis, diagonal, off_diagonal, k, largest = krylov
    here = basis[k]
    along = jnp.sum(here * products, axis=1)
    rest = products
    for _ in range(2):  # twice is enough (Parlett)
        rest = rest - jnp.einsum("tm,tmd->md", jnp.einsum("tmd,md->tm", basis, rest), basis)
    length = jnp.linalg.norm(rest, axis=1)
    largest = jnp.maximum(largest, jnp.asarray(scale, largest.dtype))
    dead = (length <= 32 * jnp.finfo(length.dtype).eps * largest) | (jnp.sum(here**2, axis=1) == 0)
    length = jnp.where(dead, 0, length)
    following = jnp.where(dead[:, None], 0, rest / jnp.where(dead, 1, length)[:, None])
    last = basis.shape[0] - 1
    basis = jnp.where(k < last, basis.at[jnp.minimum(k + 1, last)].set(following), basis)
    return Krylov(basis, diagonal.at[k].set(along), off_diagonal.at[k].set(length), k + 1, largest)


def ritz(krylov: Krylov, number: int = 0) -> Ritz:
    """The Ritz values of one of the matrices, in float64 outside compiled code."""
    basis, diagonal, off_diagonal = (
        np.asarray(part, np.float64)[:, number] for part in (krylov.basis, krylov.diagonal, krylov.off_diagonal)
    )
    done = int(krylov.k)
    if done == 0:
        raise ValueError("Lanczos made no step; run the method for as many rounds as it has steps")
    ends = np.flatnonzero(off_diagonal[:done] == 0)
    count = int(ends[0]) + 1 if len(ends) else done
    beside = off_diagonal[: count - 1]
    values, vectors = np.linalg.eigh(np.diag(diagonal[:count]) + np.diag(beside, 1) + np.diag(beside, -1))
    lowest, highest = (vector / np.linalg.norm(vector) for vector in (vectors[:, j] @ basis[:count] for j in (0, -1)))
    return Ritz(float(values[0]), float(values[-1]), lowest, highest, count, bool(len(ends)))

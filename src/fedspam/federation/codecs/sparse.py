"""Codecs that send fewer numbers: some of them, or the factors of a matrix of low rank."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedspam._internal.packing import Codes, Floats
from fedspam._internal.prng import mix
from fedspam._internal.trees import Key, count, number, struct
from fedspam.federation.codecs.payload import NotRandom, Parts, named, space, stored_dtype, vector_of, wide_dtype

GOLDEN = 0x9E3779B9  # 2^32 divided by the golden ratio: sets consecutive counters apart


@named("randk", float)
@struct
class RandK:
    r"""A random share of the numbers, :math:`k = \lceil qn\rceil` of n, each times n/k; :math:`\omega = n/k - 1`.

    One number is drawn from each of k parts of equal size, at a random rotation, so that all are equally likely. On the
    wire: a seed of 32 bits, from which the receiver finds the places, then the k numbers.

    Arguments:
        share: q, in (0, 1].
    """

    share: float = number(0, 1, open_low=True, fixed=True)
    unbiased: ClassVar[bool] = True

    def omega(self, like: Any) -> float:
        return like.size / _count(self.share, like) - 1

    def layout(self, like: Any) -> tuple[Floats | Codes, ...]:
        return Codes(1, 32, 2**32 - 1), Floats(_count(self.share, like), stored_dtype(like))

    def draw(self, key: Key, like: Any) -> Any:
        return jax.random.bits(key, (1,), jnp.uint32)

    def codes(self, x: Any, drawn: Any) -> Parts:
        _, flat = vector_of(x)
        places = self._places(drawn, x)
        return drawn, (flat[places] * (flat.size / len(places))).astype(stored_dtype(x))

    def values(self, parts: Parts, like: Any) -> Any:
        seed, numbers = parts
        return _placed(self._places(seed, like), numbers, like)

    def _places(self, seed: Any, like: Any) -> Any:
        xp, count = space(seed), _count(self.share, like)
        edges = np.arange(count + 1, dtype=np.int64) * like.size // count
        starts, widths = (xp.asarray(part, dtype=xp.uint32) for part in (edges[:-1], np.diff(edges)))
        hashed = mix(seed + xp.arange(count + 1, dtype=xp.uint32) * xp.uint32(GOLDEN))
        turned = hashed[:1] % xp.uint32(like.size)
        return (starts + hashed[1:] % widths + turned) % xp.uint32(like.size)


@named("topk", float)
@struct
class TopK(NotRandom):
    r"""The share of the numbers that is largest, :math:`k = \lceil qn\rceil` of n; biased, :math:`\alpha = k/n`.

    On the wire: the places in order, :math:`\lceil\log_2 n\rceil` bits each, then the k numbers.

    Arguments:
        share: q, in (0, 1].
    """

    share: float = number(0, 1, open_low=True, fixed=True)

    def alpha(self, like: Any) -> float:
        return _count(self.share, like) / like.size

    def layout(self, like: Any) -> tuple[Floats | Codes, ...]:
        count, bits = _count(self.share, like), max(1, (like.size - 1).bit_length())
        return Codes(count, bits, like.size - 1, increasing=True), Floats(count, stored_dtype(like))

    def codes(self, x: Any, drawn: Any) -> Parts:
        xp, flat = vector_of(x)
        count = _count(self.share, x)
        if xp is np:
            places = np.argsort(-np.abs(flat), kind="stable")[:count]
        else:
            places = jax.lax.top_k(jnp.abs(flat), count)[1]
        places = xp.sort(places)
        return places.astype(xp.uint32), flat[places].astype(stored_dtype(x))

    def values(self, parts: Parts, like: Any) -> Any:
        places, numbers = parts
        return _placed(places, numbers, like)


@named("lowrank", int)
@struct
class LowRank(NotRandom):
    r"""The nearest matrix of rank r, by a singular value decomposition; biased, :math:`\alpha = r/\min(m, n)`.

    All axes but the last are the rows. On the wire: the two factors. Vectors are not made smaller, so they travel as
    they are.

    Vogels, Karimireddy, Jaggi: PowerSGD, 2019, arXiv:1905.13727 (with one power iteration in place of the SVD).

    Arguments:
        rank: r.
    """

    rank: int = count()

    def alpha(self, like: Any) -> float:
        m, n, r = self._sizes(like)
        return r / min(m, n)

    def layout(self, like: Any) -> tuple[Floats | Codes, ...]:
        m, n, r = self._sizes(like)
        return Floats(m * r, stored_dtype(like)), Floats(r * n, stored_dtype(like))

    def codes(self, x: Any, drawn: Any) -> Parts:
        xp, flat = vector_of(x)
        m, n, r = self._sizes(x)
        left, middle, right = xp.linalg.svd(flat.reshape(m, n), full_matrices=False)
        factors = (left[:, :r] * middle[:r], right[:r])
        return tuple(factor.reshape(-1).astype(stored_dtype(x)) for factor in factors)

    def values(self, parts: Parts, like: Any) -> Any:
        m, n, r = self._sizes(like)
        left, right = (part.astype(wide_dtype(like)) for part in parts)
        left, right = left.reshape(m, r), right.reshape(r, n)
        product = left @ right if space(left) is np else jnp.matmul(left, right, precision="highest")
        return product.reshape(like.shape).astype(like.dtype)

    def _sizes(self, like: Any) -> tuple[int, int, int]:
        n = like.shape[-1] if like.ndim else 1
        m = like.size // n
        return m, n, min(self.rank, m, n)


def _count(share: float, like: Any) -> int:
    return max(1, math.ceil(share * like.size - 1e-9))


def _placed(places: Any, numbers: Any, like: Any) -> Any:
    if space(places) is np:
        flat = np.zeros(like.size, like.dtype)
        flat[places] = numbers.astype(like.dtype)
        return flat.reshape(like.shape)
    return jnp.zeros(like.size, like.dtype).at[places].set(numbers.astype(like.dtype)).reshape(like.shape)

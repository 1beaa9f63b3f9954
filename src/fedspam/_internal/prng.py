"""Random keys by name, and distinct ids at a cost that does not depend on the size of the population."""

import zlib
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Integer, Key, UInt32

from fedspam._internal import checks

SMALL = 16  # largest population that random words put in order: beyond it, the network shows no bias in 10^7 draws
_FEISTEL_ROUNDS = 8
_UNCHECKED_STEPS = 24  # each step leaves at most 3/4 of the walks unfinished, so about one in a thousand remains
_UNROLLED = 8  # of them in one kernel: all in one would take seconds to compile, one by one would take long to launch


def key_of(key: Key[Array, ""] | int) -> Key[Array, ""]:
    """A key from a key or from a seed."""
    if isinstance(key, jax.Array) and (_is_key(key) or (key.dtype == jnp.uint32 and key.shape in ((2,), (4,)))):
        return key  # also one of jax.random.PRNGKey
    if isinstance(key, jax.Array | np.ndarray) and key.ndim == 0 and jnp.issubdtype(key.dtype, jnp.integer):
        key = key if isinstance(key, Tracer) else key.item()
    if isinstance(key, Tracer):
        return jax.random.key(key)
    check_seed("key", key, "or a key made by jax.random.key")
    return jax.random.key(int(key))


def keys_of(keys: Key[Array, " seeds"] | Iterable[int]) -> Key[Array, " seeds"]:
    """Keys from keys or from seeds."""
    if isinstance(keys, jax.Array) and _is_key(keys) and keys.ndim == 1:
        return keys
    if not isinstance(keys, Iterable) or getattr(keys, "ndim", 1) == 0:
        raise ValueError(f"keys = {keys!r} must be several keys or seeds, such as keys=range(5)")
    made = [key_of(key) for key in keys]
    if not made:
        raise ValueError(f"keys = {keys!r} is empty; give at least one key or seed, such as keys=[0]")
    return jnp.stack(made)


def check_seed(name: str, seed: Any, otherwise: str = "") -> None:
    """Refuse a value that is not a seed."""
    checks.whole(name, seed, 0, f"give a seed from 0 to 4294967295{', ' if otherwise else ''}{otherwise}")
    if seed >= 2**32:
        raise ValueError(f"{name} = {seed} must be below 2^32 = {2**32}: JAX drops the bits above; give a smaller seed")


def _is_key(key: jax.Array) -> bool:
    return jnp.issubdtype(key.dtype, jax.dtypes.prng_key)


def numpy_generator(key: Key[Array, ""] | int) -> np.random.Generator:
    """NumPy's generator seeded with a key, for draws outside compiled code."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key_of(key))))


def fold_name(key: Key[Array, ""], name: str) -> Key[Array, ""]:
    """A key for a named purpose. The same name gives the same key in every process and version.

    The name's hash is added to the words of the key: threefry turns keys that differ at all into unrelated streams,
    and adding is free, while folding in would evaluate threefry once more, several times per round.
    """
    words = jax.random.key_data(key)
    low, high = zlib.crc32(name.encode()), zlib.adler32(name.encode())
    tweak = jnp.array([low, high] * (words.shape[-1] // 2), jnp.uint32)
    return jax.random.wrap_key_data(words + tweak, impl=jax.random.key_impl(key))


def index(key: Key[Array, ""], count: int | Integer[Array, ""]) -> UInt32[Array, ""]:
    """One uniform index below `count` (the bias of the remainder is below count / 2^32)."""
    return jax.random.bits(key, (), jnp.uint32) % jnp.uint32(count)


def permuted(
    key: Key[Array, ""], position: UInt32[Array, "*shape"], count: int | Integer[Array, ""], most: int | None = None
) -> UInt32[Array, "*shape"]:
    r"""Where a random permutation of :math:`\{0, \dots, n-1\}` sends each position, without storing it.

    So ``permuted(key, arange(B), n)`` draws B distinct ids from n at a cost of order B. A network of few bits is far
    from uniform, so up to `SMALL` positions are put in the order of random words instead.

    Arguments:
        key: of the permutation.
        position: below `count`.
        count: n.
        most: a bound of a traced `count`, if there is one: only what can be needed is compiled.

    >>> import jax, jax.numpy as jnp
    >>> ids = permuted(jax.random.key(0), jnp.arange(5, dtype=jnp.uint32), 1_000_000)
    >>> len(set(ids.tolist()))
    5
    """
    position = jnp.asarray(position, jnp.uint32)
    if not isinstance(count, jax.Array):
        words = jax.random.bits(key, (SMALL if count <= SMALL else _FEISTEL_ROUNDS,), jnp.uint32)
        return _ranked(words, position, count) if count <= SMALL else _walked(words, position, jnp.uint32(count))
    words, count = jax.random.bits(key, (SMALL,), jnp.uint32), count.astype(jnp.uint32)  # word i does not depend on 16
    ranked = _ranked(words, position, count)
    if most is not None and most <= SMALL:
        return ranked
    is_small = count <= SMALL
    return jnp.where(is_small, ranked, _walked(words, position, jnp.where(is_small, SMALL, count)))  # 16 needs no walk


def _ranked(
    words: UInt32[Array, " words"], position: UInt32[Array, "*shape"], count: int | UInt32[Array, ""]
) -> UInt32[Array, "*shape"]:
    """The rank of the word of each position among the first `count` words; of equal words the first is lower."""
    places = jnp.arange(SMALL, dtype=jnp.uint32)
    own, position = words[position][..., None], position[..., None]
    is_lower = (words < own) | ((words == own) & (places < position))
    return jnp.sum(is_lower & (places < count), axis=-1, dtype=jnp.uint32)


def _walked(
    words: UInt32[Array, " words"], position: UInt32[Array, "*shape"], count: UInt32[Array, ""]
) -> UInt32[Array, "*shape"]:
    """A Feistel network permutes the smallest square power of two that holds n; what is not below n walks on.

    It walks along its cycle until it is below n, at most four steps on average.
    """
    half = (33 - lax.clz(count - 1)) // 2  # bits of one half; both halves together hold count
    mask = (jnp.uint32(1) << half) - 1

    def network(value: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
        left, right = value >> half, value & mask
        for step in range(_FEISTEL_ROUNDS):
            left, right = right, left ^ (mix(right ^ words[step]) & mask)
        return (left << half) | right

    def walk(value: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
        return jnp.where(value >= count, network(value), value)

    value = network(position)
    if jax.default_backend() != "cpu":  # most walks end in this loop, which needs no check by the host after every step
        value = lax.fori_loop(0, _UNCHECKED_STEPS, lambda _, value: walk(value), value, unroll=_UNROLLED)
    return lax.while_loop(lambda value: jnp.any(value >= count), walk, value)


def draw(key: Key[Array, ""], count: int, size: int, replace: bool) -> UInt32[Array, " count"]:
    """`count` uniform ids below `size`: distinct unless `replace`, at a cost that grows with `count` alone."""
    checks.whole("cohort size", count, 1)
    if replace:
        return jax.random.bits(key, (count,), jnp.uint32) % jnp.uint32(size)
    if count > size:
        raise ValueError(
            f"cohort size = {count} is larger than the population of {size} clients; "
            f"draw at most {size}, or sample with replace=True"
        )
    if count == 1:
        return index(key, size)[None]
    return permuted(key, jnp.arange(count, dtype=jnp.uint32), size)


def mix(value: Any) -> Any:
    """The finalizer of MurmurHash3 on uint32, in JAX or NumPy: every input bit reaches every output bit."""
    value = (value ^ (value >> 16)) * np.uint32(0x85EBCA6B)
    value = (value ^ (value >> 13)) * np.uint32(0xC2B2AE35)
    return value ^ (value >> 16)

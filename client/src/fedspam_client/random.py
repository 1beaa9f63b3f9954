"""The random numbers of JAX in NumPy: threefry2x32 and what is made from it, bit for bit.

A key is one number of 64 bits: its first word is the high half. So an array of keys has the shape that it has in JAX.
"""

from typing import Any

import numpy as np

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
SMALL, FEISTEL_ROUNDS = 16, 8  # as in fedspam._internal.prng


def wrap(words: Any) -> np.ndarray:
    """Keys from their words, ``[..., 2]`` of uint32."""
    words = np.asarray(words).astype(np.uint64)
    return words[..., 0] << np.uint64(32) | words[..., 1]


def unwrap(keys: Any) -> np.ndarray:
    """The words of keys."""
    return np.stack(_halves(keys), axis=-1)


def threefry(keys: Any, high: Any, low: Any) -> tuple[np.ndarray, np.ndarray]:
    """The block cipher on counters of two words: 20 rounds, Salmon et al., SC 2011."""
    first, second = (np.atleast_1d(half) for half in _halves(keys))
    schedule = (first, second, first ^ second ^ np.uint32(0x1BD11BDA))
    a, b = np.asarray(high, np.uint32) + first, np.asarray(low, np.uint32) + second
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            a = a + b
            b = (b << np.uint32(rotation) | b >> np.uint32(32 - rotation)) ^ a
        a = a + schedule[(group + 1) % 3]
        b = b + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def fold_in(keys: Any, data: Any) -> np.ndarray:
    """``jax.random.fold_in``."""
    keys, low = np.broadcast_arrays(keys, np.asarray(data).astype(np.uint32))
    return _joined(*threefry(keys.reshape(-1), np.zeros(low.size, np.uint32), low.reshape(-1))).reshape(keys.shape)


def split(key: Any, shape: tuple[int, ...]) -> np.ndarray:
    """``jax.random.split`` of one key."""
    return _joined(*threefry(key, *_counters(shape))).reshape(shape)


def bits(key: Any, shape: tuple[int, ...], width: int) -> np.ndarray:
    """``jax.random.bits`` of one key: unsigned numbers of 8, 16, 32 or 64 bits."""
    high, low = threefry(key, *_counters(shape))
    found = _joined(high, low) if width == 64 else (high ^ low).astype(f"u{width // 8}")
    return found.reshape(shape)


def permuted(key: Any, position: Any, count: int) -> np.ndarray:
    """Where a random permutation of 0, ..., count - 1 sends each position: ``fedspam._internal.prng.permuted``."""
    if count <= SMALL:
        order = np.argsort(bits(key, (SMALL,), 32)[:count], kind="stable")
        return np.argsort(order).astype(np.uint32)[position]
    half = np.uint32((1 + int(count - 1).bit_length()) // 2)
    mask = (np.uint32(1) << half) - np.uint32(1)
    round_keys = bits(key, (FEISTEL_ROUNDS,), 32)

    def network(value: np.ndarray) -> np.ndarray:
        left, right = value >> half, value & mask
        for step in range(FEISTEL_ROUNDS):
            left, right = right, left ^ (_mix(right ^ round_keys[step]) & mask)
        return left << half | right

    value = network(np.asarray(position, np.uint32))
    while np.any(value >= count):
        value = np.where(value >= count, network(value), value)
    return value


def _mix(value: Any) -> Any:
    """The finalizer of MurmurHash3."""
    value = (value ^ (value >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    value = (value ^ (value >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return value ^ (value >> np.uint32(16))


def _counters(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    return _halves(np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64))


def _halves(numbers: Any) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.asarray(numbers, np.uint64)
    return (numbers >> np.uint64(32)).astype(np.uint32), (numbers & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _joined(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    return high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)

"""The sections of a payload: floats, and whole numbers packed into few bits each."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedspam._internal.strict import MalformedError


class Floats(NamedTuple):
    """A section of floats."""

    length: int
    dtype: Any
    least: float = -math.inf  # the smallest valid one

    @property
    def bytes(self) -> int:
        return self.length * np.dtype(self.dtype).itemsize

    def pack(self, part: Any) -> np.ndarray:
        return np.ascontiguousarray(part, self.dtype).reshape(-1).view(np.uint8)

    def unpack(self, data: np.ndarray) -> np.ndarray:
        found = data.view(self.dtype)
        if not np.all(np.isfinite(found)) or np.any(found < self.least):
            raise MalformedError("a number of the payload is NaN, infinite or negative where it must not be")
        return found


class Codes(NamedTuple):
    """A section of whole numbers of some bits each."""

    length: int
    bits: int
    largest: int
    increasing: bool = False  # whether each must be larger than the one before

    @property
    def bytes(self) -> int:
        return -(-self.length * self.bits // 8)

    def pack(self, part: Any) -> np.ndarray:
        codes = np.asarray(part).astype(np.uint32)
        if self.bits in (8, 16, 32):
            return codes.astype(f"<u{self.bits // 8}").view(np.uint8)
        table = (codes[:, None] >> np.arange(self.bits, dtype=np.uint32)) & 1
        return np.packbits(table.astype(np.uint8).reshape(-1), bitorder="little")

    def unpack(self, data: np.ndarray) -> np.ndarray:
        if self.bits in (8, 16, 32):
            codes = data.view(f"<u{self.bits // 8}").astype(np.uint32)
        else:
            table = np.unpackbits(data, count=self.length * self.bits, bitorder="little").reshape(-1, self.bits)
            codes = table @ (np.uint32(1) << np.arange(self.bits, dtype=np.uint32))
        if np.any(codes > self.largest) or (self.increasing and np.any(codes[1:] <= codes[:-1])):
            raise MalformedError(f"a code of the payload is above {self.largest}, or out of order")
        return codes


def space(x: Any) -> Any:
    return np if isinstance(x, np.ndarray | np.generic) else jnp


def vector_of(x: Any) -> tuple[Any, Any]:
    """The module that computes with x, and x as a vector in at least single precision."""
    return space(x), x.reshape(-1).astype(wide_dtype(x))


def wide_dtype(like: Any) -> Any:
    return jnp.promote_types(like.dtype, jnp.float32)


def stored_dtype(like: Any) -> Any:
    """The dtype of plain numbers in a payload: that of the array, or float32 for half precision."""
    return np.dtype(wide_dtype(like)).newbyteorder("<")

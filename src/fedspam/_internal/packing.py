"""Codes as bytes: sections of floats and of packed whole numbers, and the checksum of coded fields."""

import math
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .strict import MalformedError

CHECKSUM = "@crc32"  # the field with the checksum of a coded message or reply


def checksum(arrays: Mapping[str, Any]) -> np.uint32:
    """The CRC-32 of named arrays in the order of their names, so that no damage to codes goes unnoticed."""
    found = 0
    for _, array in sorted(arrays.items()):
        found = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, found)
    return np.uint32(found)


def verify(given: int, arrays: Mapping[str, Any]) -> None:
    """Raise an error if this is not the checksum of the arrays."""
    if given != int(checksum(arrays)):
        raise MalformedError("the checksum of the codes is wrong: they were damaged on their way")


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

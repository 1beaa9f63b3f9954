"""Codecs that round every number: to a grid, to a power of two, to three values, to half precision."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedspam._internal.packing import Codes, Floats
from fedspam._internal.trees import Key, choice, count, positive, struct
from fedspam.federation.codecs.payload import CODECS, NotRandom, Parts, named, space, vector_of, wide_dtype

BLOCK = 256  # numbers that share a scale in `Quantize`


class Dithered:
    """What codecs share that round each number up or down by chance."""

    unbiased: ClassVar[bool] = True

    def draw(self, key: Key, like: Any) -> Any:
        return jax.random.uniform(key, (like.size,), wide_dtype(like))


@named("quantize", int)
@struct
class Quantize(Dithered):
    r"""Stochastic rounding to b bits, in blocks of 256 numbers.

    With :math:`s = \max_j |x_j| / (2^{b-1} - 1)` over the block of x_j, each number becomes a neighbor on the grid
    :math:`s\mathbb{Z}`: up with the probability that makes it unbiased. For blocks of n numbers and L = 2^{b-1} - 1,

    .. math:: \omega = \tfrac12\bigl(\sqrt{1 + (n - 1)/L^2} - 1\bigr)

    which is 0.75 for 4 bits and 0.004 for 8. On the wire: s as float32 for each block, then b bits for each number.

    Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD, 2017, arXiv:1610.02132 (with the maximum as norm).

    Arguments:
        bits: b, from 2 to 16.
    """

    bits: int = count(2, at_most=16)

    @property
    def levels(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def omega(self, like: Any) -> float:
        return (math.sqrt(1 + (min(BLOCK, like.size) - 1) / self.levels**2) - 1) / 2

    def layout(self, like: Any) -> tuple[Floats | Codes, ...]:
        blocks = -(-like.size // BLOCK)
        return Floats(blocks, "<f4", least=0), Codes(like.size, self.bits, 2 * self.levels)

    def codes(self, x: Any, drawn: Any) -> Parts:
        xp, flat = vector_of(x)
        blocks = xp.pad(flat, (0, -flat.size % BLOCK)).reshape(-1, BLOCK)
        steps = _scale(xp.max(xp.abs(blocks), axis=1), self.levels)
        beside = _known_scale(steps)[:, None]
        scaled = xp.where(beside > 0, blocks / xp.where(beside > 0, beside, 1).astype(flat.dtype), 0)
        scaled = scaled.reshape(-1)[: flat.size]
        low = xp.floor(scaled)
        return steps, (low + (drawn < scaled - low) + self.levels).astype(xp.uint32)

    def values(self, parts: Parts, like: Any) -> Any:
        steps, codes = parts
        xp, wide = space(codes), wide_dtype(like)
        each = xp.repeat(steps.astype(wide), BLOCK)[: like.size]
        return ((codes.astype(wide) - self.levels) * each).reshape(like.shape).astype(like.dtype)


@struct
class Grid(Dithered):
    r"""Stochastic rounding to b bits on one grid for all clients, so that codes add; see `flower.privacy.words`.

    With :math:`s = c/(2^{b-1} - 1)`, each number becomes a neighbor on the grid :math:`s\mathbb{Z}`: up with the
    probability that makes it unbiased. Numbers beyond :math:`\pm c` become :math:`\pm c`, so that it is biased there.
    The error of a number within is at most s, whatever the size of the others: choose c as small as replies allow.
    On the wire: b bits for each number, and no scale.

    Arguments:
        bits: b, from 2 to 16.
        largest: c. As text ``grid-8-0.5`` for ``Grid(8, 0.5)``.
    """

    bits: int = count(2, at_most=16)
    largest: float = positive("give the largest number that replies hold", fixed=True)
    unbiased: ClassVar[bool] = False

    @property
    def levels(self) -> int:
        return 2 ** (self.bits - 1) - 1

    @property
    def step(self) -> float:
        return self.largest / self.levels

    def section(self, length: int) -> Codes:
        return Codes(length, self.bits, 2 * self.levels)

    def layout(self, like: Any) -> tuple[Floats | Codes, ...]:
        return (self.section(like.size),)

    def codes(self, x: Any, drawn: Any) -> Parts:
        xp, flat = vector_of(x)
        scaled = xp.clip(flat * flat.dtype.type(1 / self.step), -self.levels, self.levels)
        low = xp.floor(scaled)
        # what is not finite has no code: one above all others, which no receiver accepts
        codes = xp.where(xp.isfinite(flat), low + (drawn < scaled - low) + self.levels, 2 * self.levels + 1)
        return (codes.astype(xp.uint32),)

    def values(self, parts: Parts, like: Any) -> Any:
        xp, wide = space(parts[0]), wide_dtype(like)
        numbers = (parts[0].astype(wide) - self.levels) * wide.type(self.step)
        numbers = xp.where(parts[0] > 2 * self.levels, xp.nan, numbers)
        return numbers.reshape(like.shape).astype(like.dtype)


CODECS["grid"] = lambda text: Grid(int(text.partition("-")[0]), float(text.partition("-")[2]))


@named("terngrad")
@struct
class TernGrad(Dithered):
    r"""Each number becomes :math:`-s`, 0 or s, where :math:`s = \max_j|x_j|` over the array; unbiased.

    :math:`\omega = (\sqrt n - 1)/2` for n numbers. On the wire: s as float32, then five numbers in each byte.

    Wen, Xu, Yan, Wu, Wang, Chen, Li: TernGrad, 2017, arXiv:1705.07878.
    """

    def omega(self, like: Any) -> float:
        return (math.sqrt(like.size) - 1) / 2

    def layout(self, like: Any) -> tuple[Floats | Codes, ...]:
        return Floats(1, "<f4", least=0), Codes(-(-like.size // 5), 8, 3**5 - 1)

    def codes(self, x: Any, drawn: Any) -> Parts:
        xp, flat = vector_of(x)
        scale = _scale(xp.max(xp.abs(flat)), 1)[None]
        known = _known_scale(scale).astype(flat.dtype)
        taken = drawn * known < xp.abs(flat)
        digits = (1 + xp.sign(flat) * taken * (known > 0)).astype(xp.uint32)
        digits = xp.pad(xp.where(known > 0, digits, 1), (0, -flat.size % 5)).reshape(-1, 5)
        return scale, xp.sum(digits * xp.asarray(_THREES, dtype=xp.uint32), axis=1, dtype=xp.uint32)

    def values(self, parts: Parts, like: Any) -> Any:
        scale, codes = parts
        xp, wide = space(codes), wide_dtype(like)
        digits = codes[:, None] // xp.asarray(_THREES, dtype=xp.uint32) % xp.uint32(3)
        signs = digits.reshape(-1)[: like.size].astype(wide) - 1
        return (signs * scale.astype(wide)).reshape(like.shape).astype(like.dtype)


_THREES = tuple(3**j for j in range(5))


@named("natural")
@struct
class Natural:
    r"""Each number becomes a neighboring power of two, unbiased; :math:`\omega = 1/8`.

    On the wire: the exponents, one byte each, then the signs, one bit each. Numbers below :math:`2^{-126}` become zero;
    those from :math:`2^{127}` on cannot be sent.

    Horváth, Ho, Horváth, Sahu, Canini, Richtárik: Natural compression, 2019, arXiv:1905.10988.
    """

    unbiased: ClassVar[bool] = True

    def omega(self, like: Any) -> float:
        return 1 / 8

    def layout(self, like: Any) -> tuple[Floats | Codes, ...]:
        return Codes(like.size, 8, 254), Codes(like.size, 1, 1)

    def draw(self, key: Key, like: Any) -> Any:
        return jax.random.bits(key, (like.size,), jnp.uint32)

    def codes(self, x: Any, drawn: Any) -> Parts:
        xp, flat = vector_of(x)
        bits = flat.astype(xp.float32).view(xp.uint32)
        exponents, mantissas = bits >> 23 & 255, bits & 0x7FFFFF
        risen = xp.minimum(exponents + (drawn >> 9 < mantissas), 255)  # by chance: mantissa / 2^23
        return xp.where(exponents == 0, 0, risen).astype(xp.uint32), bits >> 31

    def values(self, parts: Parts, like: Any) -> Any:
        exponents, signs = parts
        xp = space(exponents)
        return (signs << 31 | exponents << 23).view(xp.float32).reshape(like.shape).astype(like.dtype)


@struct
class Cast(NotRandom):
    r"""Each number in another type, rounded to the nearest; biased, :math:`\alpha = 1 - u^2` with roundoff u.

    u is :math:`2^{-11}` for float16, among numbers from 6e-5 to 65504: larger ones cannot be sent. It is
    :math:`2^{-8}` for bfloat16, and 0 for float32, which leaves parameters in float32 as they are.

    Arguments:
        dtype: 'float16', 'bfloat16' or 'float32'.
    """

    dtype: str = choice("float16", "bfloat16", "float32")

    def alpha(self, like: Any) -> float:
        return 1 - {"float16": 2.0**-22, "bfloat16": 2.0**-16, "float32": 0.0}[self.dtype]

    def layout(self, like: Any) -> tuple[Floats | Codes, ...]:
        if self.dtype == "bfloat16":
            return (Codes(like.size, 16, 2**16 - 1),)  # the upper half of a float32
        return (Floats(like.size, {"float16": "<f2", "float32": "<f4"}[self.dtype]),)

    def codes(self, x: Any, drawn: Any) -> Parts:
        xp, flat = vector_of(x)
        flat = flat.astype(xp.float32)
        if self.dtype == "float32":
            return (flat,)
        if self.dtype == "bfloat16":
            return (xp.where(xp.isnan(flat), 0x7FC0, _upper(flat, 16) >> 16).astype(xp.uint32),)
        # rounded before the cast, which is then exact: a compiler may leave out a cast there and back
        fine = xp.round(flat * 2.0**24) * 2.0**-24  # the smallest step of float16
        coarse = _upper(flat, 13).view(xp.float32)
        near = xp.where(xp.abs(flat) < 2.0**-14, fine, coarse)
        return (xp.where(xp.abs(near) <= 65504, near, xp.nan).astype(xp.float16),)

    def values(self, parts: Parts, like: Any) -> Any:
        (found,) = parts
        if self.dtype == "bfloat16":
            found = (found << 16).view(space(found).float32)
        return found.astype(wide_dtype(like)).reshape(like.shape).astype(like.dtype)


for _dtype in ("float16", "bfloat16", "float32"):
    CODECS[_dtype] = lambda text, dtype=_dtype: Cast(dtype)


def _upper(x: Any, low: int) -> Any:
    """The bits of float32 numbers, rounded to the nearest (ties to even) so that the lowest ones are zero."""
    xp = space(x)
    bits = x.view(xp.uint32)
    rounded = bits + xp.uint32(2 ** (low - 1) - 1) + (bits >> low & 1)
    return xp.where(xp.isfinite(x), rounded, bits) & xp.uint32(2**32 - 2**low)


def _scale(largest: Any, levels: int) -> Any:
    """The largest number over the levels, as float32, increased by 2^-22, so that no number exceeds the last level.

    It is a product and not a quotient, because compilers divide by a constant in more than one way.
    """
    return (largest * largest.dtype.type((1 + 2.0**-22) / levels)).astype(np.float32)


def _known_scale(scale: Any) -> Any:
    """The scale, or zero where it is not finite: codes are then those of zero, and the scale tells."""
    xp = space(scale)
    return xp.where(xp.isfinite(scale), scale, 0)

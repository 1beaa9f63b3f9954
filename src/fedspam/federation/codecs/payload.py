r"""Codecs: vectors as fewer bytes.

A codec C makes codes of the numbers of one array, and numbers of the codes. It is *unbiased* if :math:`E\,C(x) = x`;
then it states :math:`\omega` with :math:`E\|C(x) - x\|^2 \le \omega\|x\|^2`. Otherwise it states the :math:`\alpha` of
its contraction, :math:`E\|C(x) - x\|^2 \le (1 - \alpha)\|x\|^2`. Both hold to the rounding of float32.

The payload of an array is one vector of bytes: the sections of the codec's layout, end to end, numbers little-endian,
codes packed without gaps, lowest bit first. `codes` and `values` are written once for JAX and NumPy. A simulation uses
the first; whoever reads a payload uses the second, and needs no JAX.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from fedspam._internal.nearest import did_you_mean
from fedspam._internal.packing import Codes, Floats
from fedspam._internal.strict import MalformedError
from fedspam._internal.trees import Key

Parts = tuple[Any, ...]  # one array per section of a layout


@runtime_checkable
class Codec(Protocol):
    """What a codec does with the numbers of one array; `like` has its shape and dtype."""

    unbiased: ClassVar[bool]

    def layout(self, like: Any) -> tuple[Floats | Codes, ...]: ...  # the sections of the payload

    def draw(self, key: Key, like: Any) -> Any: ...  # the randomness of one array; None if there is none

    def codes(self, x: Any, drawn: Any) -> Parts: ...  # one array per section

    def values(self, parts: Parts, like: Any) -> Any: ...  # the numbers that the sections stand for


class NotRandom:
    """What codecs share that draw nothing."""

    unbiased: ClassVar[bool] = False

    def draw(self, key: Key, like: Any) -> Any:
        return None


T = TypeVar("T", bound=type)
CODECS: dict[str, Callable[[str], Codec]] = {}  # by the first word of the text of a codec


def named(name: str, argument: Callable[[str], Any] | None = None) -> Callable[[T], T]:
    """Let a text stand for a codec: ``quantize-4`` for ``Quantize(4)``."""

    def mark(cls: T) -> T:
        CODECS[name] = lambda text: cls() if argument is None else cls(argument(text))
        return cls

    return mark


def parse(text: str) -> Codec:
    """The codec that a text stands for.

    >>> parse("quantize-4").bits
    4
    """
    name, _, argument = text.partition("-")
    if name not in CODECS:
        hint = did_you_mean(name, CODECS, f"the names are {', '.join(sorted(CODECS))}")
        raise ValueError(f"codec = {text!r} is unknown; {hint}")
    try:
        return CODECS[name](argument)
    except ValueError as error:
        raise ValueError(f"codec = {text!r} is not readable: {error}; write quantize-4, topk-0.1 or natural") from None


def size(codec: Codec, like: Any) -> int:
    """The bytes that an array takes on the wire.

    >>> from fedspam.federation.codecs import Quantize
    >>> size(Quantize(4), jax.ShapeDtypeStruct((1000,), jnp.float32))  # 500 of codes, 4 scales
    516
    """
    return sum(section.bytes for section in codec.layout(like))


def rounded(codec: Codec, key: Key, x: Any) -> Any:
    """What arrives when x is sent: the numbers after encoding and decoding. An x that is not finite arrives as NaN."""
    return codec.values(parts(codec, key, x), x)


def parts(codec: Codec, key: Key, x: Any) -> Parts:
    """The sections of x, before they are packed."""
    x = jnp.where(jnp.all(jnp.isfinite(x)), x, jnp.nan)  # no codec may lose sight of a number that is not finite
    return codec.codes(x, codec.draw(key, x))


_parts = jax.jit(parts)


def encode(codec: Codec, key: Key, x: Any) -> np.ndarray:
    """The payload of an array, with the randomness of a simulation."""
    return pack(codec, _parts(codec, key, x), x)


def encode_numpy(codec: Codec, generator: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """The payload of an array without JAX. Only its random draws differ from those of `encode`."""
    if not np.all(np.isfinite(x)):
        raise ValueError("an array with NaN or infinity cannot be encoded; check what was computed")
    with np.errstate(over="ignore", under="ignore"):
        return pack(codec, codec.codes(x, _numpy_draw(codec, generator, x)), x)


def pack(codec: Codec, parts: Parts, like: Any) -> np.ndarray:
    """The sections as one vector of bytes."""
    layout = codec.layout(like)
    return np.concatenate([section.pack(part) for section, part in zip(layout, parts, strict=True)])


def decode(codec: Codec, payload: np.ndarray, like: Any) -> np.ndarray:
    """The numbers of a payload, by NumPy alone. Whatever is damaged is a `MalformedError`, never a wrong number.

    >>> from fedspam.federation.codecs import Quantize
    >>> x = np.linspace(-1, 1, 100, dtype=np.float32)
    >>> payload = encode(Quantize(8), jax.random.key(0), x)
    >>> bool(np.abs(decode(Quantize(8), payload, x) - x).max() <= 1 / 127)
    True
    """
    payload, layout = np.asarray(payload), codec.layout(like)
    due = sum(section.bytes for section in layout)
    if payload.dtype != np.uint8 or payload.shape != (due,):
        raise MalformedError(f"a payload of {payload.dtype}{list(payload.shape)}, expected uint8[{due}]")
    found, start = [], 0
    with np.errstate(all="ignore"):  # damaged numbers are found by looking at them
        for section in layout:
            found.append(section.unpack(np.ascontiguousarray(payload[start : start + section.bytes])))
            start += section.bytes
        x = codec.values(tuple(found), like)
        is_finite = np.all(np.isfinite(x.astype(np.float64)))
    if not is_finite:
        raise MalformedError("the payload stands for a number that is infinite")
    return x


def _numpy_draw(codec: Codec, generator: np.random.Generator, x: np.ndarray) -> Any:
    """The draws of a codec from NumPy, with the shapes and dtypes of those from JAX."""
    due = jax.eval_shape(lambda: codec.draw(jax.random.key(0), x))
    if due is None:
        return None
    if due.dtype == np.uint32:
        return generator.integers(0, 2**32, due.shape, np.uint32)
    return generator.random(due.shape, due.dtype)


def space(x: Any) -> Any:
    """The module that computes with x."""
    return np if isinstance(x, np.ndarray | np.generic) else jnp


def vector_of(x: Any) -> tuple[Any, Any]:
    """The module that computes with x, and x as a vector in at least single precision."""
    return space(x), x.reshape(-1).astype(wide_dtype(x))


def wide_dtype(like: Any) -> Any:
    return jnp.promote_types(like.dtype, jnp.float32)


def stored_dtype(like: Any) -> Any:
    """The dtype of plain numbers in a payload: that of the array, or float32 for half precision."""
    return np.dtype(wide_dtype(like)).newbyteorder("<")

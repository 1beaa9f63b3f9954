"""Arithmetic, shapes and places, where PyTorch's arguments or derivatives differ from JAX's."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedspam.models.aten.batch import Batch, dtype_of


def axes_of(dims: Any) -> Any:
    return None if dims is None or dims == [] else tuple(dims) if isinstance(dims, list | tuple) else dims


def cast(inputs: Any, dtype: Any) -> Any:
    return inputs if dtype is None else inputs.astype(dtype_of(dtype))


def widened(inputs: Any) -> Any:
    return inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))


def divide(a: Any, b: Any, mode: str | None = None) -> Any:
    if mode == "floor":
        return jnp.floor_divide(a, b)
    return jnp.true_divide(a, b) if mode is None else jnp.trunc(jnp.true_divide(a, b)).astype(jnp.result_type(a, b))


def clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else jnp.where(x < low, low, x).astype(x.dtype)
    return x if high is None else jnp.where(x > high, high, x).astype(x.dtype)


def hardtanh(x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x)).astype(x.dtype)


def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    return jnp.where(x > 0, scale * x, scale * alpha * jnp.expm1(input_scale * jnp.where(x > 0, 0, x)))


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return jnp.where(x * beta > threshold, x, jax.nn.softplus(x * beta) / beta)


def addmm(base: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    product = jnp.matmul(a, b)
    return (base if beta == 1 else beta * base) + (product if alpha == 1 else alpha * product)


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    # a product of two matrices: that of the unreshaped inputs has slow derivatives on a CPU
    flat = x.reshape(-1, x.shape[-1]) @ weight.T
    flat = flat if bias is None else flat + bias
    return flat.reshape(*x.shape[:-1], *weight.shape[:-1])


def reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A sum, a mean or an extreme over some axes or all."""

    def over(x: Any, dims: Any = None, keep: bool = False, dtype: Any = None) -> Any:
        return function(cast(x, dtype), axes_of(dims), keepdims=keep)

    return over


def variance(x: Any, dims: Any = None, correction: Any = 1, keep: bool = False) -> Any:
    axes, wide = axes_of(dims), widened(x)
    count = x.size if axes is None else math.prod(x.shape[a] for a in (axes if isinstance(axes, tuple) else (axes,)))
    spread = jnp.sum((wide - jnp.mean(wide, axes, keepdims=True)) ** 2, axes, keepdims=keep)
    return (spread / max(count - (1 if correction is None else correction), 0)).astype(x.dtype)


def norm(x: Any, order: Any = 2, dims: Any = None, keep: bool = False, dtype: Any = None) -> Any:
    x, axes = cast(x, dtype), axes_of(dims)
    if order == 2:
        squares = jnp.sum(x**2, axes, keepdims=keep)
        return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)  # with a derivative of 0 at 0
    if math.isinf(order):
        return jnp.max(jnp.abs(x), axes, keepdims=keep)
    return jnp.sum(jnp.abs(x) ** order, axes, keepdims=keep) ** (1 / order)


def squeezed(x: Any, dims: Any = None) -> Any:
    wanted = range(x.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    return jnp.squeeze(x, tuple({a % x.ndim for a in wanted if x.shape[a] == 1})) if x.ndim else x


def expanded(x: Any, sizes: Sequence[int]) -> Any:
    shape = [1] * (len(sizes) - x.ndim) + list(x.shape)
    return jnp.broadcast_to(x, [have if size == -1 else size for size, have in zip(sizes, shape, strict=True)])


def sliced(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def placed(x: Any, part: Any, dim: int, index: Any) -> Any:
    return x.at[(slice(None),) * (dim % x.ndim) + (index,)].set(part)


def slice_placed(x: Any, part: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return placed(x, part, dim, slice(start, end, step))


def split_at(x: Any, sizes: Any, dim: int = 0) -> list[Any]:
    total = x.shape[dim]
    sizes = [min(sizes, total - at) for at in range(0, total, sizes)] if isinstance(sizes, int) else sizes
    return jnp.split(x, list(itertools.accumulate(sizes))[:-1], axis=dim)


def indexed(x: Any, indices: Sequence[Any]) -> Any:
    return x[tuple(slice(None) if index is None else index for index in indices)]


def index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    at = x.at[tuple(slice(None) if index is None else index for index in indices)]
    return at.add(values) if accumulate else at.set(values)


def places_along(x: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """The places that gather and scatter mean."""
    grid = jnp.meshgrid(*(jnp.arange(size) for size in index.shape), indexing="ij", sparse=True)
    return tuple(index if axis == dim % x.ndim else places for axis, places in enumerate(grid))


def padded(x: Any, sides: Sequence[int], mode: str, value: Any = 0) -> Any:
    """PyTorch counts the sides from the last axis."""
    pairs = [(sides[i], sides[i + 1]) for i in range(0, len(sides), 2)][::-1]
    if mode != "constant":
        return jnp.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, mode=mode)
    config = [(0, 0, 0)] * (x.ndim - len(pairs)) + [(low, high, 0) for low, high in pairs]
    return lax.pad(x, jnp.asarray(value, x.dtype), config)  # negative sides cut


def embedding(weight: Any, indices: Any, padding: int = -1, *_: Any) -> Any:
    vectors = jnp.take(weight, indices, axis=0)
    return vectors if padding < 0 else jnp.where((indices == padding)[..., None], lax.stop_gradient(vectors), vectors)


def largest(x: Any, count: int, dim: int = -1, largest: bool = True, *_: Any) -> tuple[Any, Any]:
    places = jnp.argsort(x, dim, descending=largest)
    places = lax.slice_in_dim(places, 0, count, axis=dim % x.ndim)
    return jnp.take_along_axis(x, places, dim), places


def ordered(x: Any, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
    return largest(x, x.shape[dim], dim, descending)


def extreme(find: Callable[..., Any]) -> Callable[..., Any]:
    def along(x: Any, dim: int, keep: bool = False) -> tuple[Any, Any]:
        places = find(x, dim, keepdims=True)
        values = jnp.take_along_axis(x, places, dim)
        return (values, places) if keep else (jnp.squeeze(values, dim), jnp.squeeze(places, dim))

    return along


def random_like(draw: Callable[..., Any]) -> Callable[..., Any]:
    def like(batch: Batch, x: Any, dtype: Any = None) -> Any:
        kind = dtype_of(dtype) if dtype is not None else getattr(x, "dtype", jnp.float32)
        return draw(batch.next_key(), getattr(x, "shape", x), kind)

    return like

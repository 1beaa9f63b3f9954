"""Convolutions, pools and normalization, channels first."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedspam.models.aten.arrays import widened
from fedspam.models.aten.batch import Batch
from fedspam.models.convolution import convolve
from fedspam.models.normalization import batch_norm as normalized, group_norm as normalized_in_groups


def channels_last(x: Any) -> Any:
    return jnp.moveaxis(x, 1, -1)


def convolution(
    x: Any, weight: Any, bias: Any, strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, extra: Sequence[int], groups: int,
) -> Any:  # fmt: skip
    axes = weight.ndim - 2
    strides, padding, dilation, extra = (
        list(each) * (axes if len(each) == 1 else 1) for each in (strides, padding, dilation, extra)
    )
    window = weight.shape[2:]
    x = channels_last(x)
    pads = [(size, size) for size in padding]
    if transposed:  # zeros between the inputs, and the flipped kernel with its sides swapped
        reach = [step * (size - 1) for step, size in zip(dilation, window, strict=True)]
        pads = [(far - p, far - p + more) for far, p, more in zip(reach, padding, extra, strict=True)]
        gaps = [(0, 0, 0), *((0, 0, step - 1) for step in strides), (0, 0, 0)]
        x, strides = lax.pad(x, jnp.zeros((), x.dtype), gaps), [1] * axes
        weight = jnp.flip(weight, range(2, axes + 2))
        weight = weight.reshape(groups, -1, *weight.shape[1:])  # groups, inputs, outputs of a group, window
        weight = jnp.moveaxis(weight, (1, 2), (-2, -1))
    else:
        weight = weight.reshape(groups, -1, *weight.shape[1:])
        weight = jnp.moveaxis(weight, (1, 2), (-1, -2))  # groups, window, inputs, outputs of a group
    if groups == 1:
        y = convolve(x, weight[0], strides=strides, padding=pads, dilation=dilation)
    elif weight.shape[-2] == 1:
        y = depthwise(x, weight, strides, pads, dilation)
    else:
        one = lambda part, own: convolve(part, own, strides=strides, padding=pads, dilation=dilation)
        parts = x.reshape(*x.shape[:-1], groups, -1)
        y = jax.vmap(one, (-2, 0), -2)(parts, weight)
        y = y.reshape(*y.shape[:-2], -1)
    return jnp.moveaxis(y if bias is None else y + bias, -1, 1)


def depthwise(x: Any, weight: Any, strides: Any, pads: Any, dilation: Any) -> Any:
    """Every channel by itself: a sum over the taps of the window, elementwise, also with one kernel per client."""
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((low, high, 0) for low, high in pads), (0, 0, 0)])
    window, outputs = weight.shape[1:-2], weight.shape[-1]
    total: Any = 0
    for at, part in taps(x, window, strides, dilation):
        total += part[..., None] * weight[(slice(None), *at, 0)]
    return total.reshape(*total.shape[:-2], total.shape[-2] * outputs)


def taps(x: Any, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Any:
    """For each place in the window: what it sees of the inputs, which have rows first and channels last."""
    counts = [
        (size - (far - 1) * gap - 1) // step + 1
        for size, far, step, gap in zip(x.shape[1:-1], window, strides, dilation, strict=True)
    ]
    for at in itertools.product(*map(range, window)):
        starts = [place * gap for place, gap in zip(at, dilation, strict=True)]
        ends = [start + (n - 1) * step + 1 for start, n, step in zip(starts, counts, strides, strict=True)]
        yield at, lax.slice(x, (0, *starts, 0), (x.shape[0], *ends, x.shape[-1]), (1, *strides, 1))


def pooled_taps(
    x: Any, window: Any, strides: Any, padding: Any, dilation: Any, ceil: bool, fill: Any
) -> tuple[Any, Any]:
    """The taps of a pool over the last axes, and its parameters filled in; incomplete blocks count with `ceil`."""
    axes = len(window)
    strides = strides or window
    strides, padding, dilation = (list(each) * (axes if len(each) == 1 else 1) for each in (strides, padding, dilation))
    flat = x.reshape(-1, *x.shape[-axes:], 1)
    pads = []
    for size, far, step, pad, gap in zip(flat.shape[1:-1], window, strides, padding, dilation, strict=True):
        room = size + 2 * pad - (gap * (far - 1) + 1)
        count = (-(-room // step) if ceil else room // step) + 1
        if ceil and (count - 1) * step >= size + pad:  # the last block must begin within the inputs
            count -= 1
        pads.append((pad, max(0, (count - 1) * step + gap * (far - 1) + 1 - size - pad)))
    flat = lax.pad(flat, jnp.asarray(fill, x.dtype), [(0, 0, 0), *((low, high, 0) for low, high in pads), (0, 0, 0)])
    return [part for _, part in taps(flat, window, strides, dilation)], (strides, pads)


def first_larger(a: Any, b: Any) -> Any:
    return jnp.where((b > a) | (b != b), b, a)  # the derivative goes to the first of equal numbers


def max_pool(
    x: Any, window: Any, strides: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil: bool = False
) -> Any:
    lowest = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    taps, _ = pooled_taps(x, window, strides, padding, dilation, ceil, lowest)
    found = functools.reduce(first_larger, taps)
    return (found.reshape(*x.shape[: -len(window)], *found.shape[1:-1]),)


def avg_pool(
    x: Any, window: Any, strides: Any = (), padding: Any = (0,), ceil: bool = False, with_padding: bool = True,
    divisor: Any = None,
) -> Any:  # fmt: skip
    def total(values: Any) -> Any:
        found = functools.reduce(jnp.add, pooled_taps(values, window, strides, padding, (1,), ceil, 0)[0])
        return found.reshape(*values.shape[: -len(window)], *found.shape[1:-1])

    if divisor is not None:
        return total(x) / divisor
    places = jnp.ones(x.shape[-len(window) :], x.dtype)
    if with_padding and not ceil:
        return total(x) / math.prod(window)
    if with_padding:
        pad = list(padding) * (len(window) if len(padding) == 1 else 1)
        sizes = [size + 2 * p for size, p in zip(places.shape, pad, strict=True)]
        counted = functools.reduce(
            jnp.add, pooled_taps(jnp.ones(sizes, x.dtype), window, strides, (0,), (1,), True, 0)[0]
        )
        return total(x) / counted.reshape(counted.shape[1:-1])
    return total(x) / total(places)


def adaptive(combine: Callable[..., Any]) -> Callable[..., Any]:
    def pool(x: Any, sizes: Sequence[int]) -> Any:
        for axis, count in zip(range(x.ndim - len(sizes), x.ndim), sizes, strict=True):
            size = x.shape[axis]
            if size % count == 0:
                blocks = x.reshape(*x.shape[:axis], count, size // count, *x.shape[axis + 1 :])
                x = combine(blocks, axis + 1)
                continue
            ends = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
            x = jnp.stack([combine(lax.slice_in_dim(x, a, b, axis=axis), axis) for a, b in ends], axis)
        return x

    return pool


def resized(x: Any, size: Any, factors: Any, method: str, corners: bool = False) -> Any:
    axes = x.ndim - 2
    sizes = list(size) if size else [math.floor(n * f) for n, f in zip(x.shape[2:], factors, strict=True)]
    for axis, count in zip(range(2, 2 + axes), sizes, strict=True):
        have = x.shape[axis]
        step = have / count if not factors else 1 / factors[axis - 2]
        if method == "nearest":
            places = jnp.minimum(jnp.floor(jnp.arange(count) * step).astype(jnp.int32), have - 1)
            x = jnp.take(x, places, axis)
            continue
        at = jnp.arange(count) * ((have - 1) / max(count - 1, 1)) if corners else (jnp.arange(count) + 0.5) * step - 0.5
        at = jnp.clip(at, 0, have - 1)
        low = jnp.floor(at).astype(jnp.int32)
        share = (at - low).astype(x.dtype).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        x = jnp.take(x, low, axis) * (1 - share) + jnp.take(x, jnp.minimum(low + 1, have - 1), axis) * share
    return x


def shuffled(x: Any, factor: int) -> Any:
    *lead, channels, height, width = x.shape
    split = x.reshape(*lead, channels // factor**2, factor, factor, height, width)
    n = len(lead)
    moved = jnp.transpose(split, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return moved.reshape(*lead, channels // factor**2, height * factor, width * factor)


def layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, epsilon: float) -> tuple[Any, ...]:
    axes, wide = tuple(range(-len(shape), 0)), widened(x)
    centered = wide - jnp.mean(wide, axes, keepdims=True)
    y = centered * lax.rsqrt(jnp.mean(centered**2, axes, keepdims=True) + epsilon)
    y = y if weight is None else y * weight
    return ((y if bias is None else y + bias).astype(x.dtype),)


def rms_norm(x: Any, shape: Sequence[int], weight: Any = None, epsilon: Any = None) -> Any:
    wide = widened(x)
    epsilon = jnp.finfo(x.dtype).eps if epsilon is None else epsilon
    y = wide * lax.rsqrt(jnp.mean(wide**2, tuple(range(-len(shape), 0)), keepdims=True) + epsilon)
    return (y if weight is None else y * weight).astype(x.dtype)


def group_norm(
    x: Any, weight: Any, bias: Any, rows: int, channels: int, places: int, groups: int, epsilon: float
) -> Any:
    return normalized_in_groups(x, weight, bias, groups, epsilon=epsilon, axis=1), None, None


def batch_norm(
    batch: Batch, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, epsilon: float
) -> tuple[Any, ...]:
    old = None if mean is None else {"mean": mean, "var": var}
    y, new = normalized(
        x, weight, bias, old, kept=batch.kept_of(x) if training else None, train=training, momentum=momentum,
        epsilon=epsilon, axis=1,
    )  # fmt: skip
    return y, None, None, new["mean"], new["var"]


def batch_norm_evaluated(
    batch: Batch, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, epsilon: float
) -> tuple[Any, ...]:
    return batch_norm(batch, x, weight, bias, mean, var, False, momentum, epsilon)


def batch_norm_alone(
    batch: Batch, x: Any, weight: Any, bias: Any, training: bool, momentum: float, epsilon: float
) -> Any:
    return batch_norm(batch, x, weight, bias, None, None, True, momentum, epsilon)


def instance_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, own: bool, momentum: float, epsilon: float, cudnn: bool
) -> Any:
    if not own:
        return normalized(x, weight, bias, {"mean": mean, "var": var}, epsilon=epsilon, axis=1)[0]
    return group_norm(x, weight, bias, x.shape[0], x.shape[1], 0, x.shape[1], epsilon)[0]

"""Convolutions that are fast if every client has its own kernel.

XLA turns a convolution under ``vmap`` over its kernel into a grouped one, which is slow on every device. Here it is
computed

- on a CPU, by Winograd's minimal filtering for windows of 3 x 3 (four products instead of nine), and by patches times a
  matrix for all others: both are matrix products under any ``vmap`` and ``scan``;
- on an accelerator, by XLA's convolution if all clients share the kernel; if each has its own, by patches times a
  matrix, which is one batched product. There it has no forward-mode derivative, but its gradient has one.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

Padding = str | Sequence[tuple[int, int]]
WINOGRAD_CHANNELS = 8  # with fewer, patches are faster


def conv2d(
    inputs: Float[Array, "*batch height width channels"],
    kernel: Float[Array, "rows columns channels features"],
    *,
    strides: tuple[int, int] = (1, 1),
    padding: Padding = "VALID",
) -> Float[Array, "*batch height_out width_out features"]:
    """Two-dimensional convolution, channels last, computed by matrix products.

    >>> import jax.numpy as jnp
    >>> conv2d(jnp.ones((4, 28, 28, 1)), jnp.ones((3, 3, 1, 8))).shape
    (4, 26, 26, 8)
    """
    return convolve(inputs, kernel, strides=strides, padding=padding)


def conv1d(
    inputs: Float[Array, "*batch length channels"],
    kernel: Float[Array, "width channels features"],
    *,
    stride: int = 1,
    padding: Padding = "VALID",
) -> Float[Array, "*batch length_out features"]:
    """One-dimensional convolution, channels last, computed by matrix products.

    >>> import jax.numpy as jnp
    >>> conv1d(jnp.ones((4, 128, 6)), jnp.ones((9, 6, 8)), stride=2).shape
    (4, 60, 8)
    """
    return convolve(inputs, kernel, strides=(stride,), padding=padding)


def convolve(
    inputs: Float[Array, "..."],
    kernel: Float[Array, "..."],
    *,
    strides: Sequence[int],
    padding: Padding = "VALID",
    dilation: Sequence[int] | None = None,
) -> Float[Array, "..."]:
    """Convolution over all axes of the kernel but its last two, channels and features; channels last.

    Arguments:
        inputs: any leading axes, the axes to convolve, channels.
        kernel: the window's axes, channels, features.
        strides: of the window, for each axis.
        padding: 'VALID', 'SAME' (as in TensorFlow, LEAF and Flax), or (before, after) for each axis.
        dilation: the distance between the taps of the window, for each axis; None for 1.
    """
    window, axes = kernel.shape[:-2], kernel.ndim - 2
    if inputs.ndim <= axes or inputs.shape[-1] != kernel.shape[-2]:
        raise ValueError(
            f"inputs of shape {inputs.shape} do not fit a kernel of shape {kernel.shape}; they must end in {axes} axes "
            f"and {kernel.shape[-2]} channels"
        )
    dilation = (1,) * axes if dilation is None else tuple(dilation)
    reach = tuple((size - 1) * step + 1 for size, step in zip(window, dilation, strict=True))
    lead = inputs.ndim - axes - 1
    pads = lax.padtype_to_pads(inputs.shape[lead:-1], reach, strides, padding) if isinstance(padding, str) else padding
    if any(side for pad in pads for side in pad):
        config = [(0, 0, 0)] * lead + [(low, high, 0) for low, high in pads] + [(0, 0, 0)]
        inputs = lax.pad(inputs, jnp.zeros((), inputs.dtype), config)
    if jax.default_backend() != "cpu":
        return _native(inputs, kernel, tuple(strides), dilation)
    # with few channels the transforms cost more than the products they save
    if window == (3, 3) and kernel.shape[-2] >= WINOGRAD_CHANNELS and {*strides, *dilation} == {1}:
        return _winograd(inputs, kernel)
    return _by_patches(inputs, kernel, tuple(strides), dilation)


def _by_patches(
    inputs: Float[Array, "..."], kernel: Float[Array, "..."], strides: tuple[int, ...], dilation: tuple[int, ...]
) -> Float[Array, "..."]:
    columns = patches(inputs, kernel.shape[:-2], strides, dilation)
    return _times(columns, kernel.reshape(-1, kernel.shape[-1]))


def _times(rows: Float[Array, "*batch i"], matrix: Float[Array, "i o"]) -> Float[Array, "*batch o"]:
    """``rows @ matrix`` as a product of two matrices, so that its derivatives are such too: on a CPU those of the
    unreshaped product take 1.5 times as long."""
    flat = rows.reshape(-1, rows.shape[-1]) @ matrix
    return flat.reshape(*rows.shape[:-1], matrix.shape[-1])


def _winograd(
    inputs: Float[Array, "*batch height width channels"], kernel: Float[Array, "3 3 channels features"]
) -> Float[Array, "*batch height_out width_out features"]:
    r"""A convolution with windows of 3 x 3 by blocks of 2 x 2 outputs, F(2 x 2, 3 x 3).

    .. math:: Y = A^\top\bigl[(G k G^\top) \odot (B^\top d B)\bigr]A

    for each 4 x 4 block d of the inputs; the sum over channels makes the 16 elementwise products matrix products.

    Lavin, Gray: Fast algorithms for convolutional neural networks, 2015, arXiv:1509.09308.
    """
    *batch, height, width, channels = inputs.shape
    high, wide = height - 2, width - 2
    inputs = inputs.reshape(-1, height, width, channels)
    if high % 2 or wide % 2:  # one more row or column of outputs, dropped at the end
        inputs = jnp.pad(inputs, ((0, 0), (0, high % 2), (0, wide % 2), (0, 0)))
    rows, columns = (high + 1) // 2, (wide + 1) // 2

    def blocks(parts: Sequence[Any]) -> tuple[Any, ...]:
        first, second, third, fourth = parts
        return first - third, second + third, third - second, second - fourth

    def weights(parts: Sequence[Any]) -> tuple[Any, ...]:
        first, second, third = parts
        ends = 0.5 * (first + third)
        return first, ends + 0.5 * second, ends - 0.5 * second, third

    def outputs(parts: Sequence[Any]) -> tuple[Any, ...]:
        first, second, third, fourth = parts
        return first + second + third, second - third - fourth

    down = blocks([inputs[:, a : a + 2 * rows - 1 : 2] for a in range(4)])
    data = [blocks([part[:, :, b : b + 2 * columns - 1 : 2] for b in range(4)]) for part in down]
    filters = [weights([part[b] for b in range(3)]) for part in weights([kernel[a] for a in range(3)])]
    products = [[_times(data[a][b], filters[a][b]) for b in range(4)] for a in range(4)]
    across = [outputs(part) for part in products]  # [4][2]: transformed along the columns of a block
    whole = [outputs([across[a][j] for a in range(4)]) for j in range(2)]  # [column][row]
    result = jnp.stack([jnp.stack([whole[0][i], whole[1][i]], axis=3) for i in range(2)], axis=2)
    result = result.reshape(-1, 2 * rows, 2 * columns, kernel.shape[-1])
    return result[:, :high, :wide].reshape(*batch, high, wide, kernel.shape[-1])


def _forward(inputs: Any, kernel: Any, strides: tuple[int, ...], dilation: tuple[int, ...]) -> Any:
    """XLA's convolution; under ``vmap`` over the kernel, patches."""

    @jax.custom_batching.custom_vmap
    def forward(inputs: Any, kernel: Any) -> Any:
        return _library(inputs, kernel, strides, dilation)

    @forward.def_vmap
    def _(size: int, batched: Sequence[bool], inputs: Any, kernel: Any) -> tuple[Any, bool]:
        if not batched[1]:  # clients share the kernel: convolve their rows together
            return _forward(inputs, kernel, strides, dilation), True
        inputs, kernel = _each(size, batched, inputs, kernel)
        return jax.vmap(lambda x, k: _by_patches(x, k, strides, dilation))(inputs, kernel), True

    return forward(inputs, kernel)


def _backward(strides: Any, dilation: Any, kept: Any, cotangent: Any) -> tuple[Any, Any]:
    def back(method: Any, inputs: Any, kernel: Any, cotangent: Any) -> tuple[Any, Any]:
        return jax.vjp(lambda x, k: method(x, k, strides, dilation), inputs, kernel)[1](cotangent)

    @jax.custom_batching.custom_vmap
    def backward(inputs: Any, kernel: Any, cotangent: Any) -> tuple[Any, Any]:
        return back(_library, inputs, kernel, cotangent)

    @backward.def_vmap
    def _(size: int, batched: Sequence[bool], *operands: Any) -> tuple[Any, Any]:
        # each client has its own gradient, even if they share the kernel
        inputs, kernel, cotangent = _each(size, batched, *operands)
        return jax.vmap(partial(back, _by_patches))(inputs, kernel, cotangent), (True, True)

    return backward(*kept, cotangent)


def _each(size: int, batched: Sequence[bool], *operands: Any) -> tuple[Any, ...]:
    """The operands with an axis of clients; shared ones are broadcast."""
    return tuple(
        operand if own else jnp.broadcast_to(operand, (size, *operand.shape))
        for operand, own in zip(operands, batched, strict=True)
    )


_native = jax.custom_vjp(_forward, nondiff_argnums=(2, 3))
_native.defvjp(lambda inputs, kernel, *rest: (_forward(inputs, kernel, *rest), (inputs, kernel)), _backward)


def _library(inputs: Any, kernel: Any, strides: tuple[int, ...], dilation: tuple[int, ...]) -> Any:
    axes = kernel.ndim - 2
    flat = inputs.reshape(-1, *inputs.shape[-axes - 1 :])
    letters = "HWDEF"[:axes]
    spec = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    result = lax.conv_general_dilated(flat, kernel, strides, "VALID", rhs_dilation=dilation, dimension_numbers=spec)
    return result.reshape(*inputs.shape[: -axes - 1], *result.shape[1:])


def patches(
    inputs: Float[Array, "..."], window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Float[Array, "..."]:
    """Every window of the inputs as one row, in the order of a kernel's leading axes: concatenated slices."""
    lead = inputs.ndim - len(window) - 1
    sizes = inputs.shape[lead:-1]
    reach = [(size - 1) * step + 1 for size, step in zip(window, dilation, strict=True)]
    counts = [(size - far) // step + 1 for size, far, step in zip(sizes, reach, strides, strict=True)]

    def tap(at: tuple[int, ...]) -> Float[Array, "..."]:
        starts = [index * gap for index, gap in zip(at, dilation, strict=True)]
        ends = [start + (count - 1) * step + 1 for start, count, step in zip(starts, counts, strides, strict=True)]
        return lax.slice(
            inputs,
            (0,) * lead + tuple(starts) + (0,),
            inputs.shape[:lead] + tuple(ends) + inputs.shape[-1:],
            (1,) * lead + tuple(strides) + (1,),
        )

    return jnp.concatenate([tap(at) for at in itertools.product(*map(range, window))], axis=-1)


def max_pool(inputs: Float[Array, "..."], window: Sequence[int]) -> Float[Array, "..."]:
    """The maximum of each block of the last axes before the channels; an incomplete last block is dropped.

    It reduces a reshaped axis: unlike ``reduce_window`` this batches well, and its gradient needs no scatter.
    """
    lead = inputs.ndim - len(window) - 1
    sizes = [size // block * block for size, block in zip(inputs.shape[lead:-1], window, strict=True)]
    inputs = lax.slice(inputs, (0,) * inputs.ndim, (*inputs.shape[:lead], *sizes, inputs.shape[-1]))
    blocks = [part for size, block in zip(sizes, window, strict=True) for part in (size // block, block)]
    split = inputs.reshape(*inputs.shape[:lead], *blocks, inputs.shape[-1])
    return jnp.max(split, axis=tuple(lead + 2 * axis + 1 for axis in range(len(window))))


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    **options: Any,
) -> Any:
    """A replacement of ``jax.lax.conv_general_dilated``, for ``flax.nnx.Conv(..., conv_general_dilated=...)``.

    Grouped, transposed and channels-first convolutions are passed on to ``jax.lax``.
    """
    spec = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    axes = rhs.ndim - 2
    last = (0, axes + 1, *range(1, axes + 1))
    plain = (
        feature_group_count == batch_group_count == 1
        and (lhs_dilation is None or all(step == 1 for step in lhs_dilation))
        and spec.lhs_spec == spec.out_spec == last
        and spec.rhs_spec == (axes + 1, axes, *range(axes))
    )
    if not plain:
        return lax.conv_general_dilated(
            lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count,
            batch_group_count, **options,
        )  # fmt: skip
    return convolve(lhs, rhs, strides=window_strides, padding=padding, dilation=rhs_dilation)

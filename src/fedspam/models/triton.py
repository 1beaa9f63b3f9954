"""Convolutions of many clients, each with a kernel of its own, as programs for a GPU that keep no patches in memory.

Patches repeat every input once for each tap of the window, nine times for 3 x 3: a batched product then waits for
memory. Here each program loads the rows that a tap needs from the inputs themselves, and adds the taps up in registers.
The three functions are the convolution and its two derivatives; each is linear in both its arguments.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as gpu
from jaxtyping import Array, Float

Inputs = Float[Array, "clients rows height width channels"]
Kernels = Float[Array, "clients high wide channels features"]
Outputs = Float[Array, "clients rows height_out width_out features"]

# what was fastest on an H200 among 18 choices for the FEMNIST CNN's second layer
BLOCK = 128  # rows of a product at a time
SPLITS, SUM_BLOCK = 8, 32  # programs that share the sum of a kernel's gradient, and rows of its products
WARPS, STAGES = 4, 3


class Shape(NamedTuple):
    """The sizes of a convolution; static."""

    clients: int
    rows: int
    height: int
    width: int
    channels: int
    high: int
    wide: int
    features: int
    interpret: bool = False

    @classmethod
    def of(cls, inputs: tuple[int, ...], kernels: tuple[int, ...], interpret: bool = False) -> "Shape":
        clients, rows, height, width, channels = inputs
        return cls(clients, rows, height, width, channels, kernels[1], kernels[2], kernels[4], interpret)

    @property
    def down(self) -> int:
        return self.height - self.high + 1

    @property
    def across(self) -> int:
        return self.width - self.wide + 1

    @property
    def places(self) -> int:
        """Outputs of a client, each a row of features."""
        return self.rows * self.down * self.across

    @property
    def pixels(self) -> int:
        """Inputs of a client, each a row of channels."""
        return self.rows * self.height * self.width


def suits(kernels: Any, strides: tuple[int, ...], dilation: tuple[int, ...]) -> bool:
    """Whether these programs can take it: tensor cores want channels and features in powers of two, 16 at least, and
    the sums of a row of taps must fit into registers."""
    if kernels.ndim != 5 or kernels.dtype != jnp.float32 or {*strides, *dilation} != {1}:
        return False
    _, _, wide, channels, features = kernels.shape
    powers = all(size in (16, 32, 64, 128) for size in (channels, features))
    return powers and wide * channels * features <= 2**14 and capable()


def capable() -> bool:
    """Whether there is a GPU that Triton compiles for: NVIDIA's from Ampere on."""
    device = getattr(jax.config, "jax_default_device", None) or jax.devices()[0]
    capability = str(getattr(device, "compute_capability", ""))
    return getattr(device, "platform", "") == "gpu" and capability.split(".")[0].isdigit() and float(capability) >= 8


def convolved(inputs: Inputs, kernels: Kernels, interpret: bool = False) -> Outputs:
    r""":math:`y[p] = \sum_t x[p + t]\,k[t]` over the taps t of the window."""
    shape = Shape.of(inputs.shape, kernels.shape, interpret)
    return _bilinear(_convolved, shape)(inputs, kernels)


def inputs_gradient(kernels: Kernels, cotangent: Outputs, interpret: bool = False) -> Inputs:
    r""":math:`\bar x[q] = \sum_t \bar y[q - t]\,k[t]^\top`."""
    down, across = (cotangent.shape[axis + 1] + kernels.shape[axis] - 1 for axis in (1, 2))
    inputs = (*cotangent.shape[:2], down, across, kernels.shape[3])
    return _bilinear(_inputs_gradient, Shape.of(inputs, kernels.shape, interpret))(kernels, cotangent)


def kernels_gradient(inputs: Inputs, cotangent: Outputs, interpret: bool = False) -> Kernels:
    r""":math:`\bar k[t] = \sum_p x[p + t]^\top\,\bar y[p]`."""
    high, wide = (inputs.shape[axis] - cotangent.shape[axis] + 1 for axis in (2, 3))
    kernels = (inputs.shape[0], high, wide, inputs.shape[4], cotangent.shape[4])
    return _bilinear(_kernels_gradient, Shape.of(inputs.shape, kernels, interpret))(inputs, cotangent)


def _bilinear(function: Callable[..., Any], shape: Shape) -> Callable[[Any, Any], Any]:
    """With its derivative by the product rule: what a program does is hidden from JAX."""
    call = jax.custom_jvp(partial(function, shape))
    call.defjvp(lambda at, along: (call(*at), call(along[0], at[1]) + call(at[0], along[1])))
    return call


def _convolved(shape: Shape, inputs: Inputs, kernels: Kernels) -> Outputs:
    def convolution(x: Any, k: Any, y: Any) -> None:
        client, place = pl.program_id(0), pl.program_id(1) * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        valid, pixel = place < shape.places, _pixel(shape, place)
        channel, feature = (jnp.arange(size, dtype=jnp.int32) for size in (shape.channels, shape.features))
        total = jnp.zeros((BLOCK, shape.features), jnp.float32)
        for tap in range(shape.high * shape.wide):
            at = pixel + tap // shape.wide * shape.width + tap % shape.wide
            rows = gpu.load(x.at[client, at[:, None], channel[None, :]], mask=valid[:, None], other=0.0)
            weights = gpu.load(k.at[client, tap, channel[:, None], feature[None, :]])
            total += jnp.dot(rows, weights)
        gpu.store(y.at[client, place[:, None], feature[None, :]], total, mask=valid[:, None])

    result = _run(convolution, shape, (pl.cdiv(shape.places, BLOCK),), (shape.clients, shape.places, shape.features))(
        _pixels(shape, inputs), _taps(shape, kernels)
    )
    return result.reshape(*inputs.shape[:2], shape.down, shape.across, shape.features)


def _inputs_gradient(shape: Shape, kernels: Kernels, cotangent: Outputs) -> Inputs:
    def back_to_inputs(k: Any, d: Any, x: Any) -> None:
        client, pixel = pl.program_id(0), pl.program_id(1) * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        row, rest = _split(pixel, shape.height * shape.width)
        i, j = _split(rest, shape.width)
        valid = pixel < shape.pixels
        channel, feature = (jnp.arange(size, dtype=jnp.int32) for size in (shape.channels, shape.features))
        total = jnp.zeros((BLOCK, shape.channels), jnp.float32)
        for tap in range(shape.high * shape.wide):
            up, left = i - tap // shape.wide, j - tap % shape.wide
            inside = valid & (up >= 0) & (up < shape.down) & (left >= 0) & (left < shape.across)
            place = (row * shape.down + up) * shape.across + left
            rows = gpu.load(d.at[client, place[:, None], feature[None, :]], mask=inside[:, None], other=0.0)
            weights = gpu.load(k.at[client, tap, channel[None, :], feature[:, None]])
            total += jnp.dot(rows, weights)
        gpu.store(x.at[client, pixel[:, None], channel[None, :]], total, mask=valid[:, None])

    result = _run(
        back_to_inputs, shape, (pl.cdiv(shape.pixels, BLOCK),), (shape.clients, shape.pixels, shape.channels)
    )(_taps(shape, kernels), cotangent.reshape(shape.clients, shape.places, shape.features))
    return result.reshape(shape.clients, shape.rows, shape.height, shape.width, shape.channels)


def _kernels_gradient(shape: Shape, inputs: Inputs, cotangent: Outputs) -> Kernels:
    """Each program sums a part of the places for one row of taps; the parts are added up after it."""
    blocks = pl.cdiv(pl.cdiv(shape.places, SPLITS), SUM_BLOCK)

    def back_to_kernels(x: Any, d: Any, k: Any) -> None:
        client, tap_row, split = (pl.program_id(axis) for axis in range(3))
        channel, feature = (jnp.arange(size, dtype=jnp.int32) for size in (shape.channels, shape.features))

        def add(block: Any, totals: tuple[Any, ...]) -> tuple[Any, ...]:
            place = (split * blocks + block) * SUM_BLOCK + jnp.arange(SUM_BLOCK, dtype=jnp.int32)
            valid, pixel = place < shape.places, _pixel(shape, place) + tap_row * shape.width
            slopes = gpu.load(d.at[client, place[:, None], feature[None, :]], mask=valid[:, None], other=0.0)
            columns = [
                gpu.load(x.at[client, (pixel + tap)[None, :], channel[:, None]], mask=valid[None, :], other=0.0)
                for tap in range(shape.wide)
            ]
            return tuple(total + jnp.dot(each, slopes) for total, each in zip(totals, columns, strict=True))

        zeros = tuple(jnp.zeros((shape.channels, shape.features), jnp.float32) for _ in range(shape.wide))
        totals = lax.fori_loop(0, blocks, add, zeros)
        for tap, total in enumerate(totals):
            gpu.store(k.at[split, client, tap_row * shape.wide + tap, channel[:, None], feature[None, :]], total)

    taps = shape.high * shape.wide
    parts = _run(
        back_to_kernels, shape, (shape.high, SPLITS), (SPLITS, shape.clients, taps, shape.channels, shape.features)
    )(_pixels(shape, inputs), cotangent.reshape(shape.clients, shape.places, shape.features))  # fmt: skip
    return jnp.sum(parts, axis=0).reshape(shape.clients, shape.high, shape.wide, shape.channels, shape.features)


def _run(program: Callable[..., None], shape: Shape, grid: tuple[int, ...], result: tuple[int, ...]) -> Any:
    return pl.pallas_call(
        program,
        grid=(shape.clients, *grid),
        out_shape=jax.ShapeDtypeStruct(result, jnp.float32),
        compiler_params=gpu.CompilerParams(num_warps=WARPS, num_stages=STAGES),
        interpret=shape.interpret,
    )


def _split(number: Any, size: int) -> tuple[Any, Any]:
    return lax.div(number, jnp.int32(size)), lax.rem(number, jnp.int32(size))


def _pixel(shape: Shape, place: Any) -> Any:
    """Where the window of an output begins among the inputs."""
    row, rest = _split(place, shape.down * shape.across)
    i, j = _split(rest, shape.across)
    return (row * shape.height + i) * shape.width + j


def _pixels(shape: Shape, inputs: Inputs) -> Any:
    return inputs.reshape(shape.clients, shape.pixels, shape.channels)


def _taps(shape: Shape, kernels: Kernels) -> Any:
    return kernels.reshape(shape.clients, shape.high * shape.wide, shape.channels, shape.features)

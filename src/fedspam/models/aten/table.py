"""PyTorch's operations in JAX: a table from the names of ATen operations to functions.

Each function takes the arguments of the operation in PyTorch's order, without those about memory and devices
(`IGNORED`). Where one name has overloads with other arguments, its key holds the overload: ``max.dim``. Functions in
`WITH_BATCH` also take the `Batch`: which rows are real, and the key of dropout. Derivatives at kinks are PyTorch's.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedspam.models.aten import arrays, layers, recurrent
from fedspam.models.aten.batch import dtype_of

IGNORED = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator", "implicit")

OPERATIONS: Mapping[str, Callable[..., Any]] = {
    # numbers, one by one
    **{name: getattr(jnp, name) for name in (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "atan2", "ceil", "cos", "cosh", "exp", "expm1",
        "exp2", "floor", "fmod", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "logical_and",
        "logical_not", "logical_or", "logical_xor", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor",
        "maximum", "minimum",
        "reciprocal", "remainder", "round", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "where",
    )},
    **{name: getattr(lax, name) for name in ("erf", "eq", "ne", "lt", "le", "gt", "ge", "neg", "rsqrt")},
    **{name: getattr(jnp, function) for name, function in (
        ("eq", "equal"), ("ne", "not_equal"), ("lt", "less"), ("le", "less_equal"), ("gt", "greater"),
        ("ge", "greater_equal"), ("mul", "multiply"), ("pow", "power"),
    )},
    "add": lambda a, b, alpha=1: a + (b if alpha == 1 else alpha * b),
    "sub": lambda a, b, alpha=1: a - (b if alpha == 1 else alpha * b),
    "rsub": lambda a, b, alpha=1: b - (a if alpha == 1 else alpha * a),
    "div": arrays.divide,
    "floor_divide": jnp.floor_divide,
    "pow.Tensor_Scalar": lambda x, power: x ** (int(power) if float(power).is_integer() else power),
    "clamp": arrays.clamp,
    "clamp_min": arrays.clamp,
    "clamp_max": lambda x, high: arrays.clamp(x, None, high),
    "addcmul": lambda x, a, b, value=1: x + value * a * b,
    "addcdiv": lambda x, a, b, value=1: x + value * a / b,
    "lerp": lambda a, b, share: a + share * (b - a),
    "masked_fill": lambda x, mask, value: jnp.where(mask, value, x).astype(x.dtype),
    # activations
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "gelu": lambda x, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
    "leaky_relu": lambda x, slope=0.01: jnp.where(x > 0, x, slope * x),
    "hardtanh": arrays.hardtanh,
    "hardswish": lambda x: x * arrays.hardtanh(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: arrays.hardtanh(x + 3, 0, 6) / 6,
    "elu": arrays.elu,
    "softplus": arrays.softplus,
    "mish": lambda x: x * jnp.tanh(arrays.softplus(x)),
    "log_sigmoid_forward": lambda x: (jax.nn.log_sigmoid(x), None),
    "_prelu_kernel": lambda x, weight: jnp.where(x > 0, x, weight * x),
    "threshold": lambda x, threshold, value: jnp.where(x > threshold, x, value).astype(x.dtype),
    "_softmax": lambda x, dim, half=False: jax.nn.softmax(x, dim),
    "_log_softmax": lambda x, dim, half=False: jax.nn.log_softmax(x, dim),
    # products
    "mm": jnp.matmul, "bmm": jnp.matmul, "matmul": jnp.matmul, "mv": jnp.matmul, "dot": jnp.matmul,
    "addmm": arrays.addmm, "baddbmm": arrays.addmm, "addmv": arrays.addmm,
    "linear": arrays.linear,
    "einsum": lambda equation, operands, path=None: jnp.einsum(equation, *operands),
    # sums and extremes
    **{name: arrays.reduced(function) for name, function in (
        ("sum", jnp.sum), ("mean", jnp.mean), ("prod", jnp.prod), ("amax", jnp.max), ("amin", jnp.min),
        ("any", jnp.any), ("all", jnp.all), ("logsumexp", jax.nn.logsumexp),
    )},
    **{f"{name}.default": lambda x, dtype=None, of=of: of(arrays.cast(x, dtype))
       for name, of in (("sum", jnp.sum), ("mean", jnp.mean), ("prod", jnp.prod))},
    "var": arrays.variance,
    "var.dim": lambda x, dims, unbiased=True, keep=False: arrays.variance(x, dims, int(unbiased), keep),
    "var_mean": lambda x, dims=None, correction=1, keep=False: (
        arrays.variance(x, dims, correction, keep), jnp.mean(x, arrays.axes_of(dims), keepdims=keep)),
    "linalg_vector_norm": arrays.norm,
    "max.default": jnp.max, "min.default": jnp.min, "max.other": jnp.maximum, "min.other": jnp.minimum,
    "max.dim": arrays.extreme(jnp.argmax), "min.dim": arrays.extreme(jnp.argmin),
    "argmax": lambda x, dim=None, keep=False: jnp.argmax(x, dim, keepdims=keep),
    "argmin": lambda x, dim=None, keep=False: jnp.argmin(x, dim, keepdims=keep),
    "cumsum": lambda x, dim, dtype=None: jnp.cumsum(arrays.cast(x, dtype), dim),
    "cumprod": lambda x, dim, dtype=None: jnp.cumprod(arrays.cast(x, dtype), dim),
    "topk": arrays.largest, "sort": arrays.ordered,
    # shapes and places
    "view": jnp.reshape, "_unsafe_view": jnp.reshape, "reshape": jnp.reshape,
    "permute": jnp.transpose,
    "transpose": jnp.swapaxes,
    "t": jnp.transpose,
    "expand": arrays.expanded,
    "squeeze": arrays.squeezed,
    "unsqueeze": jnp.expand_dims,
    "flip": jnp.flip,
    "roll": lambda x, shifts, dims=(): jnp.roll(x, tuple(shifts), arrays.axes_of(list(dims))),
    "repeat": jnp.tile,
    "select": lambda x, dim, index: lax.index_in_dim(x, index, dim, keepdims=False),
    "slice": arrays.sliced,
    "cat": lambda parts, dim=0: jnp.concatenate([part for part in parts if part.shape != (0,)], dim),
    "stack": jnp.stack,
    "split": arrays.split_at, "split_with_sizes": arrays.split_at,
    "chunk": lambda x, count, dim=0: arrays.split_at(x, -(-x.shape[dim] // count), dim),
    "unbind": lambda x, dim=0: [lax.index_in_dim(x, i, dim, keepdims=False) for i in range(x.shape[dim])],
    "select_scatter": arrays.placed,
    "slice_scatter": arrays.slice_placed,
    "gather": lambda x, dim, index, sparse=False: x[arrays.places_along(x, dim, index)],
    "scatter.src": lambda x, dim, index, source: x.at[arrays.places_along(x, dim, index)].set(source),
    "scatter.value": lambda x, dim, index, value: x.at[arrays.places_along(x, dim, index)].set(value),
    "scatter_add": lambda x, dim, index, source: x.at[arrays.places_along(x, dim, index)].add(source),
    "index": arrays.indexed, "index_put": arrays.index_put,
    "index_select": lambda x, dim, index: jnp.take(x, index, dim),
    "embedding": arrays.embedding,
    "tril": lambda x, diagonal=0: jnp.tril(x, diagonal),
    "triu": lambda x, diagonal=0: jnp.triu(x, diagonal),
    "diagonal": lambda x, offset=0, a=0, b=1: jnp.diagonal(x, offset, a, b),
    "constant_pad_nd": lambda x, sides, value=0: arrays.padded(x, sides, "constant", value),
    **{f"{name}arrays.padded{axes}d": functools.partial(arrays.padded, mode=mode)
       for name, mode in (("reflection", "reflect"), ("replication", "edge")) for axes in (1, 2, 3)},
    "pixel_shuffle": layers.shuffled,
    # new arrays
    "full": lambda shape, value, dtype=None: jnp.full(shape, value, None if dtype is None else dtype_of(dtype)),
    "full_like": lambda x, value, dtype=None: jnp.full_like(x, value, None if dtype is None else dtype_of(dtype)),
    "zeros": lambda shape, dtype=None: jnp.zeros(shape, None if dtype is None else dtype_of(dtype)),
    "ones": lambda shape, dtype=None: jnp.ones(shape, None if dtype is None else dtype_of(dtype)),
    "zeros_like": lambda x, dtype=None: jnp.zeros_like(x, None if dtype is None else dtype_of(dtype)),
    "ones_like": lambda x, dtype=None: jnp.ones_like(x, None if dtype is None else dtype_of(dtype)),
    "empty": lambda shape, dtype=None: jnp.zeros(shape, None if dtype is None else dtype_of(dtype)),
    "arange": lambda start, end, step=1, dtype=None: jnp.arange(
        start, end, step, None if dtype is None else dtype_of(dtype)),
    "scalar_tensor": lambda value, dtype=None: jnp.asarray(value, None if dtype is None else dtype_of(dtype)),
    # the same numbers
    **dict.fromkeys(("alias", "clone", "contiguous", "lift_fresh_copy", "lift_fresh"), lambda x: x),
    "detach": lax.stop_gradient, "fedspam.stopped": lax.stop_gradient,
    "_to_copy": arrays.cast,
    "copy": lambda x, source: jnp.broadcast_to(source, x.shape).astype(x.dtype),
    # layers
    "convolution": layers.convolution,
    "max_pool1d": lambda *given: layers.max_pool(*given)[0],
    "max_pool2d": lambda *given: layers.max_pool(*given)[0],
    "max_pool2d_with_indices": layers.max_pool, "max_pool3d_with_indices": layers.max_pool,
    "avg_pool1d": layers.avg_pool, "avg_pool2d": layers.avg_pool, "avg_pool3d": layers.avg_pool,
    **{f"{lead}adaptive_avg_pool{axes}d": layers.adaptive(jnp.mean) for lead in ("", "_") for axes in (1, 2, 3)},
    **{f"adaptive_max_pool{axes}d": lambda x, sizes: (layers.adaptive(jnp.max)(x, sizes), None) for axes in (1, 2, 3)},
    **{f"upsample_nearest{axes}d": functools.partial(layers.resized, method="nearest") for axes in (1, 2, 3)},
    "upsample_bilinear2d": lambda x, size, corners, factors=None: layers.resized(x, size, factors, "linear", corners),
    "native_layer_norm": layers.layer_norm,
    "rms_norm": layers.rms_norm,
    "native_group_norm": layers.group_norm,
    "instance_norm": layers.instance_norm,
}  # fmt: skip

WITH_BATCH: Mapping[str, Callable[..., Any]] = {
    "_native_batch_norm_legit_functional": layers.batch_norm,
    "_native_batch_norm_legit_no_training": layers.batch_norm_evaluated,
    "_native_batch_norm_legit": layers.batch_norm_alone,
    "native_dropout": recurrent.dropout,
    "bernoulli": recurrent.bernoulli,
    "rand_like": arrays.random_like(jax.random.uniform),
    "randn_like": arrays.random_like(jax.random.normal),
    "rand": arrays.random_like(jax.random.uniform),
    "randn": arrays.random_like(jax.random.normal),
    "scaled_dot_product_attention": recurrent.attention,
    "lstm": recurrent.stepped(recurrent.lstm_cell, 2),
    "gru": recurrent.stepped(recurrent.gru_cell, 1),
    "rnn_tanh": recurrent.stepped(lambda drive, recurrent, now: (jnp.tanh(drive + recurrent),), 1),
    "rnn_relu": recurrent.stepped(lambda drive, recurrent, now: (jax.nn.relu(drive + recurrent),), 1),
}
# not split into smaller operations by PyTorch, since JAX computes them whole
WHOLE = (
    "lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input", "scaled_dot_product_attention.default",
    "linear.default", "matmul.default", "einsum.default", "instance_norm.default", "gelu.default", "silu.default",
    "leaky_relu.default", "elu.default", "hardtanh.default", "hardswish.default", "hardsigmoid.default", "mish.default",
    "softplus.default", "rms_norm.default", "pixel_shuffle.default", "upsample_nearest2d.vec", "upsample_nearest1d.vec",
    "upsample_bilinear2d.vec", "adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "_prelu_kernel.default",
    "_adaptive_avg_pool2d.default", "max_pool1d.default", "avg_pool1d.default", "stack.default", "logsumexp.default",
    "linalg_vector_norm.default", "lerp.Tensor", "lerp.Scalar", "masked_fill.Scalar", "masked_fill.Tensor",
)  # fmt: skip

"""The operations that the works of clients are made of, in NumPy. Their names and settings are those of JAX's jaxprs.

An operation takes its settings and its arguments. The program casts results to the dtypes that the work has in JAX.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedspam_client import random

Settings = Mapping[str, Any]
Operation = Callable[..., Any]


def _dot_general(settings: Settings, a: Any, b: Any) -> Any:
    (sum_a, sum_b), (batch_a, batch_b) = settings["dimension_numbers"]
    if not batch_a:
        return np.tensordot(a, b, (sum_a, sum_b))
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left, right = [next(letters) for _ in range(np.ndim(a))], [next(letters) for _ in range(np.ndim(b))]
    for i, j in (*zip(batch_a, batch_b, strict=True), *zip(sum_a, sum_b, strict=True)):
        right[j] = left[i]
    out = [left[i] for i in batch_a]
    out += [left[i] for i in range(len(left)) if i not in (*batch_a, *sum_a)]
    out += [right[j] for j in range(len(right)) if j not in (*batch_b, *sum_b)]
    return np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", a, b)


def _broadcast_in_dim(settings: Settings, a: Any) -> Any:
    shape = [1] * len(settings["shape"])
    for axis, size in zip(settings["broadcast_dimensions"], np.shape(a), strict=True):
        shape[axis] = size
    return np.broadcast_to(np.reshape(a, shape), settings["shape"])


def _slice(settings: Settings, a: Any) -> Any:
    strides = settings["strides"] or [1] * np.ndim(a)
    return a[tuple(map(slice, settings["start_indices"], settings["limit_indices"], strides))]


def _starts(a: Any, sizes: Any, starts: Any) -> tuple[slice, ...]:
    """A slice of these sizes within the array: JAX moves one that would reach beyond it."""
    begins = [int(np.clip(start, 0, n - size)) for start, size, n in zip(starts, sizes, np.shape(a), strict=True)]
    return tuple(slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True))


def _dynamic_update_slice(settings: Settings, a: Any, b: Any, *starts: Any) -> Any:
    changed = np.array(a)
    changed[_starts(a, np.shape(b), starts)] = b
    return changed


def _gather(settings: Settings, a: Any, places: Any) -> Any:
    """Entries of a vector; JAX moves places that lie outside of it to its ends."""
    return a[np.clip(places[..., 0], 0, len(a) - 1)]


def _scatter(settings: Settings, a: Any, places: Any, values: Any) -> Any:
    """A vector with some entries replaced; JAX leaves out places that lie outside of it."""
    changed, inside = np.array(a), (places[..., 0] >= 0) & (places[..., 0] < len(a))
    changed[places[..., 0][inside]] = values[inside]
    return changed


def _pad(settings: Settings, a: Any, fill: Any) -> Any:
    config = settings["padding_config"]
    if any(between or low < 0 or high < 0 for low, high, between in config):
        raise ValueError(f"padding {config} is not known to this client; use a client with JAX")
    return np.pad(a, [(low, high) for low, high, _ in config], constant_values=fill)


def _iota(settings: Settings) -> Any:
    shape, axis = settings["shape"], settings["dimension"]
    line = np.arange(shape[axis]).reshape([-1 if place == axis else 1 for place in range(len(shape))])
    return np.broadcast_to(line, shape)


def _integer_pow(settings: Settings, a: Any) -> Any:
    """By repeated squaring, as JAX does it."""
    power, found = abs(settings["y"]), None
    while power:
        if power & 1:
            found = a if found is None else found * a
        power >>= 1
        a = a * a
    found = np.ones_like(a) if found is None else found
    return 1 / found if settings["y"] < 0 else found


def _div(settings: Settings, a: Any, b: Any) -> Any:
    if np.issubdtype(np.result_type(a), np.floating):
        return a / b
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))) if np.any(b) else np.full_like(a, -1)


def _convert(settings: Settings, a: Any) -> Any:
    """To whole numbers JAX rounds towards 0, and keeps within the range."""
    dtype = np.dtype(settings["new_dtype"])
    if np.issubdtype(dtype, np.integer) and np.issubdtype(np.result_type(a), np.floating):
        limits = np.iinfo(dtype)
        wide = np.nan_to_num(np.trunc(np.asarray(a, np.float64)), posinf=limits.max, neginf=limits.min)
        return np.where(wide >= limits.max, limits.max, np.clip(wide, limits.min, None).astype(dtype))
    return np.asarray(a).astype(dtype)


def _shifted(shift: Operation) -> Operation:
    """Shifts by all bits or more leave 0, which C and NumPy do not promise."""

    def operation(settings: Settings, a: Any, b: Any) -> Any:
        width = 8 * np.asarray(a).dtype.itemsize
        return np.where(b < width, shift(a, np.minimum(b, np.asarray(b).dtype.type(width - 1))), np.zeros_like(a))

    return operation


def _logical_right(a: Any, b: Any) -> Any:
    unsigned = np.dtype(f"u{np.asarray(a).dtype.itemsize}")
    return (np.asarray(a).view(unsigned) >> np.asarray(b).astype(unsigned)).view(np.asarray(a).dtype)


def _leading_zeros(settings: Settings, a: Any) -> Any:
    a = np.asarray(a)
    width = 8 * a.dtype.itemsize
    lengths = [width - int(value).bit_length() for value in a.reshape(-1)]
    return np.array(lengths, a.dtype).reshape(a.shape)


def _select(settings: Settings, which: Any, *cases: Any) -> Any:
    return np.where(which, cases[1], cases[0]) if len(cases) == 2 else np.choose(which, cases)


def _sort(settings: Settings, *arrays: Any) -> Any:
    keys, axis = settings["num_keys"], settings["dimension"]
    order = np.lexsort(tuple(reversed(arrays[:keys])), axis=axis)
    return [np.take_along_axis(array, order, axis) for array in arrays]


def _top_k(settings: Settings, a: Any) -> Any:
    order = np.argsort(-np.asarray(a, np.float64), axis=-1, kind="stable")[..., : settings["k"]]
    return [np.take_along_axis(a, order, -1), order]


def _svd(settings: Settings, a: Any) -> Any:
    left, middle, right = np.linalg.svd(a, full_matrices=settings["full_matrices"])
    return [middle, left, right]


def _plain(function: Operation) -> Operation:
    return lambda settings, *arguments: function(*arguments)


def _reduced(function: Operation) -> Operation:
    return lambda settings, a: function(a, axis=tuple(settings["axes"]))


def _is(kind: Any, a: Any) -> bool:
    return np.issubdtype(np.asarray(a).dtype, kind)


PLAIN = {
    "abs": np.abs, "add": np.add, "add_any": np.add, "and": np.bitwise_and, "ceil": np.ceil, "cos": np.cos,
    "eq": np.equal, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "floor": np.floor, "ge": np.greater_equal,
    "gt": np.greater, "is_finite": np.isfinite, "le": np.less_equal, "log": np.log, "log1p": np.log1p,
    "logistic": lambda a: 1 / (1 + np.exp(-a)), "lt": np.less, "max": np.maximum, "min": np.minimum,
    "mul": np.multiply, "ne": np.not_equal, "neg": np.negative, "or": np.bitwise_or, "pow": np.power,
    "rem": np.fmod, "rsqrt": lambda a: 1 / np.sqrt(a), "sign": np.sign, "sin": np.sin, "sqrt": np.sqrt,
    "square": np.square, "sub": np.subtract, "tanh": np.tanh, "xor": np.bitwise_xor,
    "not": lambda a: np.logical_not(a) if _is(np.bool_, a) else np.bitwise_not(a),
    "clamp": lambda low, a, high: np.clip(a, low, high),
    "copy": lambda a: a, "copy_p": lambda a: a, "optimization_barrier": lambda *arrays: list(arrays),
    "random_wrap": random.wrap, "random_unwrap": random.unwrap, "random_fold_in": random.fold_in,
}  # fmt: skip

OPERATIONS: dict[str, Operation] = {
    **{name: _plain(function) for name, function in PLAIN.items()},
    "argmax": lambda settings, a: np.argmax(a, axis=settings["axes"][0]),
    "argmin": lambda settings, a: np.argmin(a, axis=settings["axes"][0]),
    "bitcast_convert_type": lambda settings, a: np.asarray(a).view(settings["new_dtype"]),
    "broadcast_in_dim": _broadcast_in_dim,
    "clz": _leading_zeros,
    "concatenate": lambda settings, *arrays: np.concatenate(arrays, axis=settings["dimension"]),
    "convert_element_type": _convert,
    "cumsum": lambda settings, a: (
        np.flip(np.cumsum(np.flip(a, settings["axis"]), settings["axis"]), settings["axis"])
        if settings["reverse"]
        else np.cumsum(a, settings["axis"])
    ),
    "div": _div,
    "dot_general": _dot_general,
    "dynamic_slice": lambda settings, a, *starts: a[_starts(a, settings["slice_sizes"], starts)],
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "integer_pow": _integer_pow,
    "iota": _iota,
    "pad": _pad,
    "random_bits": lambda settings, key: random.bits(key, tuple(settings["shape"]), settings["bit_width"]),
    "random_split": lambda settings, key: random.split(key, tuple(settings["shape"])),
    "reduce_and": _reduced(np.all),
    "reduce_max": _reduced(np.max),
    "reduce_min": _reduced(np.min),
    "reduce_or": _reduced(np.any),
    "reduce_prod": _reduced(np.prod),
    "reduce_sum": _reduced(np.sum),
    "reshape": lambda settings, a: np.reshape(a, settings["new_sizes"]),
    "rev": lambda settings, a: np.flip(a, settings["dimensions"]),
    "round": lambda settings, a: np.round(a) if settings["to_even"] else np.trunc(a + np.copysign(0.5, a)),
    "scatter": _scatter,
    "select_n": _select,
    "shift_left": _shifted(np.left_shift),
    "shift_right_arithmetic": _plain(np.right_shift),
    "shift_right_logical": _shifted(_logical_right),
    "slice": _slice,
    "sort": _sort,
    "split": lambda settings, a: np.split(a, np.cumsum(settings["sizes"])[:-1], settings["axis"]),
    "squeeze": lambda settings, a: np.squeeze(a, tuple(settings["dimensions"])),
    "stack": lambda settings, *arrays: np.stack(arrays, axis=settings["axis"]),
    "svd": _svd,
    "top_k": _top_k,
    "transpose": lambda settings, a: np.transpose(a, settings["permutation"]),
}

"""The sections of a payload, and the precision in which codecs compute."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from fedspam._internal.packing import Codes as Codes, Floats as Floats


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

"""Trees of arrays as bytes and back, as safetensors: neither pickle nor code travels."""

from typing import Any

import jax
import numpy as np
import safetensors.numpy
from jaxtyping import PyTree

from fedspam._internal import strict, trees


def encode(fields: dict[str, PyTree]) -> bytes:
    """One message: each leaf under the name of its field and its path, ``x.layers.0``."""
    return safetensors.numpy.save(_flatten(fields))


def decode(data: bytes, like: dict[str, PyTree]) -> dict[str, PyTree]:
    """The fields of a message, which must have exactly the names, shapes and dtypes of `like`.

    Nothing larger than such a message can be is looked at.
    """
    arrays = strict.fields(data, _flatten(like, abstract=True))
    return jax.tree.unflatten(jax.tree.structure(like), list(arrays.values()))


def cast(tree: PyTree, like: PyTree) -> PyTree:
    """NumPy arrays in the dtypes of `like`."""
    return jax.tree.map(lambda leaf, shape: np.asarray(leaf, shape.dtype), tree, like)


def length(fields: dict[str, PyTree]) -> int:
    """The number of bytes `encode` would make of fields of these shapes."""
    return len(encode(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), fields)))


def _flatten(fields: dict[str, PyTree], abstract: bool = False) -> dict[str, Any]:
    names, leaves = trees.names(fields), jax.tree.leaves(fields)
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two arrays are called {twice!r}; rename one of them: names must differ on the wire")
    arrays = leaves if abstract else [np.asarray(leaf, order="C") for leaf in leaves]
    return dict(zip(names, arrays, strict=True))

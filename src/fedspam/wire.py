"""Trees of arrays as bytes and back: safetensors, so neither pickle nor code ever travels."""

from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import PyTree

from fedspam import _tree


def encode(fields: dict[str, PyTree]) -> bytes:
    """One message: each leaf under the name of its field and its path, ``x.layers.0``."""
    return safetensors.numpy.save(_flatten(fields))


def decode(data: bytes, like: dict[str, PyTree]) -> dict[str, PyTree]:
    """The fields of a message, which must have exactly the names, shapes and dtypes of `like`."""
    try:
        arrays = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"the message of {len(data)} bytes is not readable: {error}") from None
    expected = _flatten(like, abstract=True)
    missing, extra = sorted(expected.keys() - arrays.keys()), sorted(arrays.keys() - expected.keys())
    if missing or extra:
        raise ValueError(f"the message lacks {missing or 'nothing'} and has unknown {extra or 'nothing'}")
    for name, due in expected.items():
        came = arrays[name]
        if came.shape != due.shape or came.dtype != due.dtype:
            raise ValueError(f"{name} arrived as {came.dtype}{list(came.shape)}, expected {due.dtype}{list(due.shape)}")
    leaves, structure = jax.tree.flatten(like)
    flat = [arrays[name] for name in _tree.names(like)]
    assert len(flat) == len(leaves)
    return jax.tree.unflatten(structure, flat)


def length(fields: dict[str, PyTree]) -> int:
    """The number of bytes `encode` would make of fields of these shapes."""
    return len(encode(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), fields)))


def _flatten(fields: dict[str, PyTree], abstract: bool = False) -> dict[str, Any]:
    names, leaves = _tree.names(fields), jax.tree.leaves(fields)
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two arrays are called {twice!r}; rename one of them: names must differ on the wire")
    arrays = leaves if abstract else [np.asarray(leaf, order="C") for leaf in leaves]
    return dict(zip(names, arrays, strict=True))

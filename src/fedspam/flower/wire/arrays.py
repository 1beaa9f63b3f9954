"""Parameters as Flower's records, and our bytes inside of them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params

__all__ = ["to_arrays", "to_params"]

HEADER = "fedspam"  # the record that says what a message is
STYPE = "safetensors"  # how the one array of a message is serialised
LONE = "params"  # the name of parameters that are a single array


def to_arrays(params: Params) -> ArrayRecord:
    """Parameters as Flower keeps a model: one array a leaf, under its path, ``layers.0.kernel``.

    >>> import jax.numpy as jnp
    >>> list(to_arrays({"bias": jnp.zeros(2), "layers": [jnp.ones((2, 3))]}))
    ['bias', 'layers.0']
    """
    names = [name or LONE for name in trees.names(params)]
    return ArrayRecord({name: Array(_native(leaf)) for name, leaf in zip(names, jax.tree.leaves(params), strict=True)})


def to_params(arrays: ArrayRecord, like: Params | None = None) -> Params:
    """The way back: into the structure of `like`, or into a dictionary by name.

    >>> import jax.numpy as jnp
    >>> to_params(to_arrays(jnp.ones(2)), like=jnp.zeros(2)).tolist()
    [1.0, 1.0]
    """
    if like is None:
        return checks.params("arrays", {name: _array(array) for name, array in arrays.items()})
    names = [name or LONE for name in trees.names(like)]
    missing, extra = sorted(set(names) - set(arrays)), sorted(set(arrays) - set(names))
    if missing or extra:
        raise ValueError(
            f"the arrays lack {missing or 'nothing'} of the parameters and have unknown {extra or 'nothing'}; "
            "make them with fedspam.flower.to_arrays(params)"
        )
    params = jax.tree.unflatten(jax.tree.structure(like), [_array(arrays[name]) for name in names])
    checks.same_tree("arrays", params, "params", like)
    return checks.params("arrays", params)


def enclose(data: bytes) -> ArrayRecord:
    """Encoded fields as one array, which Flower cuts into chunks of its own."""
    return ArrayRecord({"fields": Array("uint8", (len(data),), STYPE, data)})


def enclosed(content: RecordDict) -> bytes:
    """The encoded fields of a message, of which there must be exactly one array."""
    found = [array for record in content.array_records.values() for array in record.values()]
    if len(found) != 1 or found[0].stype != STYPE:
        raise ValueError(f"the message has {len(found)} arrays; there must be one, of type {STYPE!r}")
    return found[0].data


def size(content: RecordDict) -> int:
    """The bytes of a message as Flower counts them: all records, whatever they hold."""
    return sum(record.count_bytes() for record in content.values())


def payload(content: RecordDict) -> int:
    """The bytes of the arrays alone."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def _native(leaf: Any) -> np.ndarray:
    return np.asarray(leaf, order="C")


def _array(array: Array) -> Any:
    """NumPy's format knows nothing of bfloat16 and gives raw bytes back; the record's own note tells what they are."""
    value = array.numpy()
    return jnp.asarray(value.view(jnp.dtype(array.dtype)) if value.dtype.kind == "V" else value)

"""Parameters as Flower's records."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params
from fedspam.flower.wire.envelope import LONE


def to_arrays(params: Params) -> ArrayRecord:
    """Parameters as Flower keeps a model: one array per leaf, named by its path, ``layers.0.kernel``.

    >>> import jax.numpy as jnp
    >>> list(to_arrays({"bias": jnp.zeros(2), "layers": [jnp.ones((2, 3))]}))
    ['bias', 'layers.0']
    """
    names = [name or LONE for name in trees.names(params)]
    return ArrayRecord(
        {name: Array(np.asarray(leaf, order="C")) for name, leaf in zip(names, jax.tree.leaves(params), strict=True)}
    )


def to_params(arrays: ArrayRecord, like: Params | None = None) -> Params:
    """The inverse of `to_arrays`: parameters with the structure of `like`, or a dictionary by name.

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


def _array(array: Array) -> Any:
    """NumPy's file format returns bfloat16 as raw bytes, so the dtype is taken from the record."""
    value = array.numpy()
    return jnp.asarray(value.view(jnp.dtype(array.dtype)) if value.dtype.kind == "V" else value)

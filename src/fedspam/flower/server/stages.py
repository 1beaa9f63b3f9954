"""Stages: a run that goes on from the model of another run, with another method or other settings.

A run folder holds one method from its first round to its last, so that it can be resumed to the same bits. A change is
a new folder, whose model file names the stages before it.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedspam._internal.files import RecordError
from fedspam._internal.model_file import FILE, plain_names, read_model
from fedspam._internal.trees import Params
from fedspam.flower.server.stop import FILE as STOP

KEPT = ("run", "method", "rounds", "status", "parameters")


def model_of(folder: str | Path, like: Params) -> tuple[Params, list[dict[str, Any]]]:
    """The parameters of a run folder in the structure of `like`, and its stages: those before it, and itself."""
    path = Path(folder) / FILE
    if not path.is_file():
        remedy = f"let that run end, or stop it: touch {Path(folder) / STOP}"
        raise RecordError(f"after = {str(folder)!r}: there is no {path}; {remedy}")
    arrays, facts = read_model(path)
    names, leaves = plain_names(like), jax.tree.leaves(like)
    kinds = {name: (np.shape(leaf), np.asarray(leaf).dtype) for name, leaf in zip(names, leaves, strict=True)}
    found = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    wrong = next((name for name in sorted(kinds.keys() | found.keys()) if kinds.get(name) != found.get(name)), None)
    if wrong is not None:
        raise ValueError(
            f"after = {str(folder)!r} holds {wrong} as {found.get(wrong)}, and this run has {kinds.get(wrong)}; only "
            "the method and its settings may change from stage to stage"
        )
    params = jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(arrays[name]) for name in names])
    before = facts.get("stages")
    itself = {name: facts.get(name) for name in KEPT}
    return params, [*(before if isinstance(before, list) else []), itself]

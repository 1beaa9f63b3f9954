"""A trained model as one file: parameters by plain names as safetensors, and a description as JSON in its header.

Any reader of safetensors opens it. The description is data: nothing in it is ever executed.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedspam import __version__
from fedspam._internal import files, strict, trees
from fedspam._internal.files import DamagedError
from fedspam._internal.trees import Params

FILE = "model.safetensors"
KIND = "model"
SIZE = 16 * strict.GIB  # the longest file that is read
DEPTH = 60  # levels of a description


def plain_names(params: Params) -> list[str]:
    """A unique name for each leaf; ``params`` for a single array.

    >>> plain_names({"dense0": {"kernel": 1.0, "bias": 0.0}}), plain_names(2.0)
    (['dense0.bias', 'dense0.kernel'], ['params'])
    """
    names = [name or "params" for name in trees.names(params)]
    seen: dict[str, int] = {}
    for number, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:  # {"a.b": ..., "a": {"b": ...}}
            names[number] = f"{name}#{seen[name]}"
    return names


def structure_of(params: Params) -> Any:
    """Dicts, lists and tuples around the names of the leaves, as plain JSON; None if there are other containers.

    >>> structure_of({"a": (1.0, [2.0])})
    {'dict': {'a': {'tuple': ['a.0', {'list': ['a.1.0']}]}}}
    """
    named = jax.tree.unflatten(jax.tree.structure(params), plain_names(params))

    def plain(part: Any) -> Any:
        if isinstance(part, str):
            return part
        if type(part) is dict and all(isinstance(name, str) for name in part):
            return {"dict": {name: plain(inner) for name, inner in part.items()}}
        if type(part) in (list, tuple):
            return {type(part).__name__: [plain(inner) for inner in part]}
        raise TypeError

    try:
        return plain(named)
    except TypeError:
        return None


def restored(structure: Any, arrays: Mapping[str, np.ndarray]) -> Params:
    """The parameters in the structure that `structure_of` describes; by name where it describes none."""

    def build(part: Any) -> Any:
        if isinstance(part, str):
            return arrays[part]
        ((kind, inner),) = part.items()
        if kind == "dict":
            return {name: build(each) for name, each in inner.items()}
        return {"tuple": tuple, "list": list}[kind](map(build, inner))

    return dict(arrays) if structure is None else build(structure)


def parameters_hash(params: Params) -> str:
    """SHA-256 over the names, types, shapes and bytes of all parameters: the version of a model, wherever it is kept.

    >>> parameters_hash({"a": np.zeros(2)}) == parameters_hash({"a": np.zeros(3)})
    False
    """
    found = hashlib.sha256()
    for name, leaf in sorted(_arrays(params).items()):
        found.update(f"{name} {leaf.dtype} {leaf.shape}\n".encode())
        found.update(np.ascontiguousarray(leaf).tobytes())
    return found.hexdigest()


def _arrays(params: Params) -> dict[str, np.ndarray]:
    return dict(zip(plain_names(params), map(np.asarray, jax.tree.leaves(params)), strict=True))


def write_model(path: Path, params: Params, description: Mapping[str, Any]) -> None:
    """Write parameters and a description of plain JSON, whole or not at all."""
    arrays, known = _arrays(params), {"structure": structure_of(params), "parameters": parameters_hash(params)}
    text = json.dumps({"fedspam": __version__, **known, **description}, allow_nan=False)
    files.write(path, files.pack(arrays, kind=KIND, description=text))


def read_model(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The parameters by name and the description; `DamagedError` if the file is something else."""
    arrays, facts = files.unpack(files.read(path, size=SIZE), path, size=SIZE)
    if facts.get("kind") != KIND:
        raise DamagedError(f"{path} holds a {facts.get('kind')}, not a trained model; give a folder of `fedspam run`")
    try:
        text = facts["description"].encode()
        return arrays, strict.json_object(text, size=files.HEADER, depth=DEPTH)
    except (KeyError, strict.MalformedError) as error:
        raise DamagedError(f"{path} is damaged: its description cannot be read ({error})") from None

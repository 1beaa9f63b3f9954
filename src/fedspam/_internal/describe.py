"""What something is and what it was made with, as plain JSON, so that a resumed run can say what changed.

A description follows from the value alone: the same in every process, and different whenever results could be.
Functions are described by their name, a hash of their compiled code, and all they reach: defaults, closures, globals.
Functions of installed packages are described by name, since the package's version tells the rest. An object of no known
kind is described by its type alone.
"""

import dataclasses
import functools
import hashlib
import json
import math
import platform
import subprocess
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import __version__

DEPTH = 24  # levels of a description
INSTALLED = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def describe(value: Any) -> Any:
    """A value as plain JSON: structs by type and field, functions by code, arrays by shape, dtype and hash.

    >>> describe({"step_size": 0.5, "sizes": (1, 2)})
    {'step_size': 0.5, 'sizes': [1, 2]}
    """
    return _describe(value, DEPTH, set())


def digest(description: Any) -> str:
    """A hash of a description."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def changes(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Where two descriptions differ, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from changes(old.get(name), new.get(name), f"{where}.{name}" if where else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from changes(one, other, f"{where}[{number}]")
    elif old != new:
        yield f"{where}: {_brief(old)} was, {_brief(new)} is"


def without_code(description: Any) -> Any:
    """The description less the hashes of compiled code, which every version of Python makes differently."""
    if isinstance(description, dict):
        return {name: without_code(part) for name, part in description.items() if name != "code"}
    return [without_code(part) for part in description] if isinstance(description, list) else description


def manifest(**facts: Any) -> dict[str, Any]:
    """Where and with what something was made."""
    return {
        "fedspam": __version__,
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "commit": _commit(),
        **facts,
    }


@functools.cache
def _commit() -> str | None:
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # before the first commit git fails and still prints "HEAD"
    return found.stdout.strip() or None if found.returncode == 0 else None


def _describe(value: Any, depth: int, seen: set[int]) -> Any:
    """`seen` holds the functions that were described already: a second time, their name is enough."""
    if depth == 0:
        return "..."
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        return _number(float(value))
    if isinstance(value, type | types.ModuleType):
        return f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else value.__name__
    each = lambda part: _describe(part, depth - 1, seen)
    if isinstance(value, jax.tree_util.Partial | functools.partial):
        return {"partial": each(value.func), "args": each(value.args), "keywords": each(value.keywords)}
    if dataclasses.is_dataclass(value):
        fields = {field.name: each(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__qualname__, **fields}
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"key": np.asarray(jax.random.key_data(value)).tolist()}
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _array(np.asarray(value))
    if isinstance(value, Mapping):
        return {str(name): each(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [each(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted((each(part) for part in value), key=repr)
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()[:16]}
    if callable(value):
        return _function(value, depth, seen)
    return {"type": type(value).__qualname__}


def _function(value: Any, depth: int, seen: set[int]) -> Any:
    if isinstance(value, types.MethodType):
        return {
            "method": _describe(value.__func__, depth - 1, seen),
            "of": _describe(value.__self__, depth - 1, seen),
        }
    while not isinstance(value, types.FunctionType) and callable(getattr(value, "__wrapped__", None)):
        value = value.__wrapped__  # jit, custom_vjp and the like
    name = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    if not isinstance(value, types.FunctionType) or _is_installed(value) or id(value) in seen:
        return name
    seen.add(id(value))
    described: dict[str, Any] = {"function": name, "code": _code(value.__code__)}
    reached = dict(zip(value.__code__.co_freevars, map(_content, value.__closure__ or ()), strict=True))
    reached |= {name: value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__}
    reached |= value.__kwdefaults__ or {}
    if value.__defaults__:
        reached["defaults"] = value.__defaults__
    # modules are told by the code that names them
    reached = {name: part for name, part in reached.items() if not isinstance(part, types.ModuleType)}
    if reached:
        described["reaches"] = {name: _describe(reached[name], depth - 1, seen) for name in sorted(reached)}
    return described


def _is_installed(function: types.FunctionType) -> bool:
    package = (function.__module__ or "").split(".")[0]
    file = getattr(sys.modules.get(function.__module__ or ""), "__file__", None) or function.__code__.co_filename
    return package in ("fedspam", "jax", "numpy") or file.startswith(INSTALLED)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _code(code: types.CodeType) -> str:
    """A hash of what the code does, wherever it stands in its file."""
    constants = [_code(part) if isinstance(part, types.CodeType) else _constant(part) for part in code.co_consts]
    signature = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    facts = (code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars, signature)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _constant(value: Any) -> str:
    # the order of a set of strings changes from process to process
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else f"{type(value).__name__} {value!r}"


def _names(code: types.CodeType) -> set[str]:
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _array(array: np.ndarray) -> Any:
    if array.ndim == 0:
        item = array.item()
        return _number(item) if isinstance(item, float) else item if isinstance(item, bool | int) else repr(item)
    if array.dtype == object:
        return {"shape": list(array.shape), "dtype": "object"}
    hashed = hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()[:16]
    return {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": hashed}


def _number(value: float) -> Any:
    """JSON has no word for what is not finite."""
    return value if math.isfinite(value) else str(value)


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."

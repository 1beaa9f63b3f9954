"""Descriptions of values as plain JSON, so that a resumed run can say what changed.

A description depends on the value alone: it is the same in every process, and it differs whenever results could. A
function is described by its name, a hash of its compiled code, and everything it reaches: defaults, closures, globals,
what it uses of modules, and its rules of differentiation. Classes and callable objects are described by their members.
Code of installed packages is described by name, since the version of the package determines the rest, and by the
settings that its closures hold.
"""

import collections
import dataclasses
import dis
import functools
import hashlib
import importlib.util
import inspect
import json
import math
import os
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
from fedspam._internal import hosts

DEPTH = 24  # levels of a description
KINDS = (int, float, complex, str, bytes, tuple, list, dict, set, frozenset)
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


def differences(old: Any, new: Any, where: str = "") -> Iterator[tuple[str, str, str]]:
    """Where two descriptions differ: the path, the old value and the new one, as text."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from differences(old.get(name), new.get(name), f"{where}.{name}" if where else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{where}[{number}]")
    elif old != new:
        yield where, _brief(old), _brief(new)


def changes(old: Any, new: Any) -> list[str]:
    """Where two descriptions differ, in words."""
    return [f"{where} changed from {one} to {other}" for where, one, other in differences(old, new)]


def without_code(description: Any) -> Any:
    """The description without the hashes of compiled code, which differ between versions of Python."""
    if isinstance(description, dict):
        return {name: without_code(part) for name, part in description.items() if name != "code"}
    return [without_code(part) for part in description] if isinstance(description, list) else description


def manifest(**facts: Any) -> dict[str, Any]:
    """The versions, platform, device and commit that something was made with."""
    return {
        "fedspam": __version__,
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "commit": _commit(),
        **facts,
    }


@functools.cache
def _commit() -> str | None:
    """The commit of fedspam itself, if it runs from its repository; never that of a repository around it."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists() or not (root / "src" / "fedspam").exists():
        return None
    # variables such as GIT_DIR, which a hook of another repository sets, would name that one
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, env=plain, capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # before the first commit git fails and still prints "HEAD"
    return found.stdout.strip() or None if found.returncode == 0 else None


def _describe(value: Any, depth: int, seen: set[int]) -> Any:
    """`seen` holds the functions and classes described so far: a second time, their name is enough."""
    if depth == 0:
        return "..."
    if _is_own_kind(value):
        return {**_object(value, depth, seen), "value": _describe(_as_built_in(value), depth - 1, seen)}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        return _number(float(value))
    if isinstance(value, types.ModuleType):
        return _module(value, depth, seen)
    if isinstance(value, type):
        return _class(value, depth, seen)
    each = lambda part: _describe(part, depth - 1, seen)
    if isinstance(value, jax.tree_util.Partial | functools.partial):
        return {"partial": each(value.func), "args": each(value.args), "keywords": each(value.keywords)}
    if dataclasses.is_dataclass(value):
        fields = {field.name: each(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__qualname__, **_members(type(value), depth, seen), **fields}
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"key": np.asarray(jax.random.key_data(value)).tolist()}
    if isinstance(value, jax.Array) and not value.sharding.is_fully_replicated:
        return _array_on_devices(value)
    if isinstance(value, np.ndarray) and value.dtype == object:
        return {"shape": list(value.shape), "dtype": "object", "values": [each(part) for part in value.flat]}
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _array(np.asarray(value))
    if issubclass(type(value), Mapping):  # isinstance would ask the object for its class
        return {str(name): each(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [each(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted((each(part) for part in value), key=repr)
    if isinstance(value, collections.deque):
        return {"deque": [each(part) for part in value]}
    if isinstance(value, types.SimpleNamespace):
        return {"namespace": each(vars(value))}
    if isinstance(value, complex):
        return {"complex": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()[:16]}
    if isinstance(value, staticmethod | classmethod):
        return each(value.__func__)
    if isinstance(value, property):
        return [each(part) for part in (value.fget, value.fset) if part is not None]
    if isinstance(value, types.FunctionType | types.MethodType) or _is_wrapper(value):
        return _function(value, depth, seen)
    if _is_installed(type(value)):  # a built-in function, a compiled one, an object of a library
        name = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
        return name if callable(value) else {"type": type(value).__qualname__}
    return _object(value, depth, seen)


def _object(value: Any, depth: int, seen: set[int]) -> Any:
    """An object of a class of the user's own: what the class defines, and what the object holds."""
    cls = type(value)
    slots = {
        name: slot.__get__(value, cls)
        for base in cls.__mro__
        for name, slot in vars(base).items()
        if isinstance(slot, types.MemberDescriptorType) and not _is_installed(base) and _is_filled(slot, value)
    }
    # not by getattr, which the class may have made its own
    own = inspect.getattr_static(value, "__dict__", None)
    state = object.__getattribute__(value, "__dict__") if own is not None else {}
    return {
        "type": cls.__qualname__,
        **_members(cls, depth, seen),
        "state": _describe({**slots, **state}, depth - 1, seen),
    }


def _is_own_kind(value: Any) -> bool:
    """Whether a value is of a class of the user's own that makes a built-in kind, such as tuple, callable."""
    return isinstance(value, KINDS) and callable(value) and not _is_installed(type(value))


def _as_built_in(value: Any) -> Any:
    kind: Any = next(kind for kind in KINDS if isinstance(value, kind))
    return kind(value)


def _is_filled(slot: Any, value: Any) -> bool:
    try:
        slot.__get__(value, type(value))
    except AttributeError:
        return False
    return True


def _is_wrapper(value: Any) -> bool:
    """Whether an object wraps a function, as those of jit do. Objects of the user's own may answer to any name."""
    if _is_installed(type(value)):
        return hasattr(value, "__wrapped__")
    return inspect.getattr_static(value, "__wrapped__", None) is not None


def _module(value: types.ModuleType, depth: int, seen: set[int]) -> Any:
    """A module that is itself a value, such as a default: anything in it may be used."""
    if _is_installed(value) or id(value) in seen:
        return value.__name__
    seen.add(id(value))
    parts = {name: part for name, part in vars(value).items() if not name.startswith("__")}
    members = {name: _describe(parts[name], depth - 1, seen) for name in sorted(parts)}
    return {"module": value.__name__, "members": members}


def _class(value: type, depth: int, seen: set[int]) -> Any:
    name = f"{value.__module__}.{value.__qualname__}"
    members = _members(value, depth, seen)
    return {"class": name, **members} if members else name


def _members(value: type, depth: int, seen: set[int]) -> dict[str, Any]:
    """What a class of the user's own defines: its functions and constants, also those of its bases."""
    if _is_installed(value) or id(value) in seen:
        return {}
    seen.add(id(value))
    found: dict[str, Any] = {}
    for base in reversed(value.__mro__):
        if not _is_installed(base):
            found |= {name: part for name, part in vars(base).items() if not _is_made_by_python(name, part)}
    described = {name: _describe(found[name], depth - 1, seen) for name in sorted(found)}
    return {"members": described} if described else {}


def _is_made_by_python(name: str, part: Any) -> bool:
    """Whether a member says nothing about behavior: documentation, annotations, slots, what dataclasses generate."""
    if name in ("__call__", "__post_init__", "__init__", "__getattr__", "__getattribute__"):
        code = getattr(part, "__code__", None)
        return code is None or code.co_filename == "<string>"
    return name.startswith("__") or isinstance(part, types.MemberDescriptorType | types.GetSetDescriptorType)


def _function(value: Any, depth: int, seen: set[int]) -> Any:
    if isinstance(value, types.MethodType):
        return {
            "method": _describe(value.__func__, depth - 1, seen),
            "of": _describe(value.__self__, depth - 1, seen),
        }
    rules: dict[str, Any] = {}
    while not isinstance(value, types.FunctionType) and callable(getattr(value, "__wrapped__", None)):
        if isinstance(value, jax.custom_vjp | jax.custom_jvp):
            rules |= {name: getattr(value, name, None) for name in ("fwd", "bwd", "jvp")}
        value = value.__wrapped__  # jit, custom_vjp and the like
    rules = {name: rule for name, rule in rules.items() if rule is not None}
    if rules and not _is_installed(value):
        each = {name: _describe(rules[name], depth - 1, seen) for name in sorted(rules)}
        return {"differentiated": _function(value, depth, seen), "rules": each}
    name = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    if not isinstance(value, types.FunctionType) or id(value) in seen:
        return name
    if _is_installed(value):
        held = dict(zip(value.__code__.co_freevars, map(_content, value.__closure__ or ()), strict=True))
        plain = {name: content for name, content in held.items() if _is_plain(content)}
        if not plain:
            return name
        seen.add(id(value))
        return {"function": name, "holds": {name: _describe(plain[name], depth - 1, seen) for name in sorted(plain)}}
    seen.add(id(value))
    described: dict[str, Any] = {"function": name, "code": _code(value.__code__)}
    reached = dict(zip(value.__code__.co_freevars, map(_content, value.__closure__ or ()), strict=True))
    reached |= {name: value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__}
    reached |= value.__kwdefaults__ or {}
    if value.__defaults__:
        reached["defaults"] = value.__defaults__
    modules = [(name, part) for name, part in reached.items() if isinstance(part, types.ModuleType)]
    modules += [(module.__name__, module) for module in _imported(value)]
    met: set[int] = set()
    for name, module in modules:
        reached.pop(name, None)
        if _is_installed(module) or id(module) in met:
            continue
        met.add(id(module))
        for part in sorted(_names(value.__code__)):  # what the code uses of it
            content = getattr(module, part, None)
            if isinstance(content, types.ModuleType) and not _is_installed(content):
                modules.append((f"{name}.{part}", content))
            elif hasattr(module, part):
                reached[f"{name}.{part}"] = content
    if reached:
        described["reaches"] = {name: _describe(reached[name], depth - 1, seen) for name in sorted(reached)}
    return described


def _imported(function: types.FunctionType) -> list[types.ModuleType]:
    """The modules that a function imports itself, if they are loaded: to trace a function loads them."""
    package = function.__globals__.get("__package__") or ""
    found: list[types.ModuleType] = []
    codes = [function.__code__]
    for code in codes:
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
        steps = list(dis.get_instructions(code))
        for level, _, step in zip(steps, steps[1:], steps[2:], strict=False):
            if step.opname != "IMPORT_NAME" or (level.argval and not package):
                continue
            name = importlib.util.resolve_name("." * level.argval + step.argval, package)
            found += [sys.modules[name]] if name in sys.modules else []
    return found


def _is_plain(content: Any) -> bool:
    """Whether what a library's function holds are settings, such as the rate of an Optax optimizer, and not a cache."""
    if isinstance(content, tuple | list):
        return all(part is None or _is_plain(part) for part in content)
    return isinstance(content, bool | int | float | str | np.ndarray | np.generic | jax.Array | types.FunctionType)


def _is_installed(value: Any) -> bool:
    """Whether a function, class or module belongs to Python or to an installed package."""
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None) or ""
    code = getattr(value, "__code__", None)
    file = getattr(sys.modules.get(module), "__file__", None) or getattr(code, "co_filename", "")
    return module.split(".")[0] in ("fedspam", "jax", "numpy", "builtins") or file.startswith(INSTALLED)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _code(code: types.CodeType) -> str:
    """A hash of what the code does, independent of its place in the file."""
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
    return {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": _hash(array)[:16]}


def _array_on_devices(array: jax.Array) -> Any:
    """An array that is split over devices: the hash of each piece, also of those that other hosts hold."""
    own = {str(piece.index): _hash(np.asarray(piece.data)) for piece in array.addressable_shards}
    pieces = {
        index: seal for told in hosts.all_bytes(json.dumps(own).encode()) for index, seal in json.loads(told).items()
    }
    return {"shape": list(array.shape), "dtype": str(array.dtype), "pieces": digest(pieces)}


def _hash(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _number(value: float) -> Any:
    """The number, or its name if it is not finite: JSON has no such numbers."""
    return value if math.isfinite(value) else str(value)


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."

"""Descriptions of values as plain JSON, so that a resumed run can say what changed.

A description depends on the value alone: it is the same in every process, and it differs whenever results could. A
function is described by its name, a hash of its compiled code, and everything it reaches: defaults, closures, globals,
what it uses of modules, and its rules of differentiation. Classes and callable objects are described by their members.
Code of installed packages is described by name, since the version of the package determines the rest, and by the
settings that its closures hold.
"""

import collections
import dataclasses
import functools
import hashlib
import inspect
import itertools
import json
import math
import os
import platform
import subprocess
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    return _Describer()(value)


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


class _Describer:
    """Describes values, `DEPTH` levels deep. Of a function or class that it has met before, the name is enough."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._levels = DEPTH

    def __call__(self, value: Any) -> Any:
        if self._levels == 0:
            return "..."
        self._levels -= 1
        try:
            return self._described(value)
        finally:
            self._levels += 1

    def _described(self, value: Any) -> Any:
        kind = type(value)  # isinstance would ask the object
        if (built_in := _own_kind(value)) is not None:
            return {**self._object(value), "value": self(built_in(value))}
        if issubclass(kind, types.ModuleType):
            return self._module(value)
        if issubclass(kind, type):
            name, members = f"{value.__module__}.{value.__qualname__}", self._members(value)
            return {"class": name, **members} if members else name
        if dataclasses.is_dataclass(kind):
            fields = {field.name: self(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return {"type": kind.__qualname__, **self._members(kind), **fields}
        for kinds, rule in RULES:
            if issubclass(kind, kinds):
                return rule(value, self)
        if issubclass(kind, types.FunctionType | types.MethodType) or _is_wrapper(value):
            return self._function(value)
        if _is_installed(kind):  # a built-in function, a compiled one, an object of a library
            return _name(value) if callable(value) else {"type": kind.__qualname__}
        return self._object(value)

    def _all(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self(parts[name]) for name in sorted(parts)}

    def _is_new(self, value: Any) -> bool:
        """Whether a function, class or module of the user's own is met for the first time. It is not from now on."""
        if _is_installed(value) or id(value) in self._seen:
            return False
        self._seen.add(id(value))
        return True

    def _object(self, value: Any) -> Any:
        """An object of a class of the user's own: what the class defines, and what the object holds."""
        cls = type(value)
        slots = {
            name: slot.__get__(value, cls)
            for base in cls.__mro__
            for name, slot in vars(base).items()
            if isinstance(slot, types.MemberDescriptorType) and not _is_installed(base) and _is_filled(slot, value)
        }
        # not by getattr, which the class may override
        own = inspect.getattr_static(value, "__dict__", None)
        state = object.__getattribute__(value, "__dict__") if own is not None else {}
        return {"type": cls.__qualname__, **self._members(cls), "state": self({**slots, **state})}

    def _module(self, value: types.ModuleType) -> Any:
        """A module that is itself a value, such as a default: anything in it may be used."""
        if not self._is_new(value):
            return value.__name__
        parts = {name: part for name, part in vars(value).items() if not name.startswith("__")}
        return {"module": value.__name__, "members": self._all(parts)}

    def _members(self, value: type) -> dict[str, Any]:
        """What a class of the user's own defines: its functions and constants, also those of its bases."""
        if not self._is_new(value):
            return {}
        found: dict[str, Any] = {}
        for base in reversed(value.__mro__):
            if not _is_installed(base):
                found |= {name: part for name, part in vars(base).items() if not _is_made_by_python(name, part)}
        return {"members": self._all(found)} if found else {}

    def _function(self, value: Any) -> Any:
        if isinstance(value, types.MethodType):
            return {"method": self(value.__func__), "of": self(value.__self__)}
        rules: dict[str, Any] = {}
        while not isinstance(value, types.FunctionType) and callable(getattr(value, "__wrapped__", None)):
            if isinstance(value, jax.custom_vjp | jax.custom_jvp):
                rules |= {name: getattr(value, name, None) for name in ("fwd", "bwd", "jvp")}
            value = value.__wrapped__  # jit, custom_vjp and the like
        rules = {name: rule for name, rule in rules.items() if rule is not None}
        if rules and not _is_installed(value):
            described = self._all(rules)
            return {"differentiated": self._function(value), "rules": described}
        if not isinstance(value, types.FunctionType) or id(value) in self._seen:
            return _name(value)
        held = dict(zip(value.__code__.co_freevars, map(_content, value.__closure__ or ()), strict=True))
        if _is_installed(value):
            plain = {name: content for name, content in held.items() if _is_plain(content)}
            if not plain:
                return _name(value)
            self._seen.add(id(value))
            return {"function": _name(value), "holds": self._all(plain)}
        self._seen.add(id(value))
        reached = _reached(value, held)
        found = {"function": _name(value), "code": _code(value.__code__)}
        return {**found, "reaches": self._all(reached)} if reached else found


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', type(value).__qualname__)}"


def _array(value: Any, each: Callable[[Any], Any]) -> Any:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"key": np.asarray(jax.random.key_data(value)).tolist()}
    if isinstance(value, jax.Array) and not value.sharding.is_fully_replicated:
        return _array_on_devices(value)
    array = np.asarray(value)
    if array.dtype == object:
        return {"shape": list(array.shape), "dtype": "object", "values": [each(part) for part in array.flat]}
    if array.ndim == 0:
        item = array.item()
        return _number(item) if isinstance(item, float) else item if isinstance(item, bool | int) else repr(item)
    return {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": _hash(array)[:16]}


def _array_on_devices(array: jax.Array) -> Any:
    """An array that is split over devices: the hash of each piece, also of those that other hosts hold."""
    own = {str(piece.index): _hash(np.asarray(piece.data)) for piece in array.addressable_shards}
    told = hosts.all_bytes(json.dumps(own).encode())
    pieces = {index: seal for each in told for index, seal in json.loads(each).items()}
    return {"shape": list(array.shape), "dtype": str(array.dtype), "pieces": digest(pieces)}


def _hash(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _number(value: float) -> Any:
    """The number, or its name if it is not finite: JSON has no such numbers."""
    return value if math.isfinite(value) else str(value)


# how values of library types are described: the first rule that fits
RULES: tuple[tuple[Any, Callable[[Any, Callable[[Any], Any]], Any]], ...] = (
    ((types.NoneType, bool, int, str), lambda value, each: value),
    ((float, np.floating), lambda value, each: _number(float(value))),
    (
        (jax.tree_util.Partial, functools.partial),
        lambda value, each: {"partial": each(value.func), "args": each(value.args), "keywords": each(value.keywords)},
    ),
    ((jax.Array, np.ndarray, np.generic), _array),
    (Mapping, lambda value, each: {str(name): each(part) for name, part in value.items()}),
    ((tuple, list), lambda value, each: [each(part) for part in value]),
    ((set, frozenset), lambda value, each: sorted((each(part) for part in value), key=repr)),
    (collections.deque, lambda value, each: {"deque": [each(part) for part in value]}),
    (types.SimpleNamespace, lambda value, each: {"namespace": each(vars(value))}),
    (complex, lambda value, each: {"complex": repr(value)}),
    (bytes, lambda value, each: {"bytes": hashlib.sha256(value).hexdigest()[:16]}),
    ((staticmethod, classmethod), lambda value, each: each(value.__func__)),
    (property, lambda value, each: [each(part) for part in (value.fget, value.fset) if part is not None]),
)


def _own_kind(value: Any) -> Any:
    """The built-in kind, such as tuple, of a value whose class is the user's own and makes it callable; else None."""
    own = callable(value) and not _is_installed(type(value))
    return next((kind for kind in KINDS if own and isinstance(value, kind)), None)


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


def _is_made_by_python(name: str, part: Any) -> bool:
    """Whether a member says nothing about behavior: documentation, annotations, slots, what dataclasses generate."""
    if name in ("__call__", "__post_init__", "__init__", "__getattr__", "__getattribute__"):
        code = getattr(part, "__code__", None)
        return code is None or code.co_filename == "<string>"
    return name.startswith("__") or isinstance(part, types.MemberDescriptorType | types.GetSetDescriptorType)


def _reached(function: types.FunctionType, held: dict[str, Any]) -> dict[str, Any]:
    """What a function uses beside its arguments: its closure, globals, defaults, and parts of modules."""
    used = sorted(_names(function.__code__))
    reached = held | {name: function.__globals__[name] for name in used if name in function.__globals__}
    reached |= function.__kwdefaults__ or {}
    if function.__defaults__:
        reached["defaults"] = function.__defaults__
    modules = [(name, part) for name, part in reached.items() if isinstance(part, types.ModuleType)]
    modules += [(module.__name__, module) for module in _imported(function, used)]
    met: set[int] = set()
    for name, module in modules:
        reached.pop(name, None)
        if _is_installed(module) or id(module) in met:
            continue
        met.add(id(module))
        for part in used:
            content = getattr(module, part, None)
            if isinstance(content, types.ModuleType) and not _is_installed(content):
                modules.append((f"{name}.{part}", content))
            elif hasattr(module, part):
                reached[f"{name}.{part}"] = content
    return reached


def _imported(function: types.FunctionType, used: Sequence[str]) -> list[types.ModuleType]:
    """The modules that a function imports itself, if they are loaded: to trace a function loads them."""
    package = function.__globals__.get("__package__") or ""
    around = ["", *itertools.accumulate(package.split("."), "{}.{}".format)] if package else [""]
    names = [".".join(filter(None, (base, name))) for base in around for name in used]
    return [sys.modules[name] for name in names if name in sys.modules]


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


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."

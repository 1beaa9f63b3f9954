"""Reading what others wrote, strictly and within limits: JSON, and named arrays in safetensors.

Whoever wrote the bytes may be broken or hostile: nothing is believed before it is checked, no size is allocated because
the bytes say so, and whatever is wrong is a `MalformedError`. The format of the arrays is that of safetensors: eight
bytes with the length of the header, the header (a JSON object of names with dtype, shape and place), and the arrays end
to end.
"""

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

KIB, MIB, GIB = 2**10, 2**20, 2**30
DIMENSIONS = 32  # axes of an array
ENTRY = 1024  # bytes of the header entry of one array, at most, besides its name (6 times if escaped)
NESTING = 3  # how deep the header of safetensors goes: names, their facts, a shape

DTYPES = {
    "BOOL": np.dtype(bool),
    "U8": np.dtype("<u1"),
    "I8": np.dtype("<i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
}
try:  # comes with JAX; a client without JAX has it only if somebody installed it
    import ml_dtypes
except ModuleNotFoundError:
    pass
else:
    DTYPES["BF16"] = np.dtype(ml_dtypes.bfloat16)


class MalformedError(ValueError):
    """Bytes that are not what they should be; says in what."""


def one_line(text: str) -> str:
    r"""The text for a log or a terminal: line breaks, escapes and invisible characters are written out.

    >>> one_line("done\n\x1b[2Jnext")
    'done\\n\\x1b[2Jnext'
    """
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def json_object(data: bytes, *, size: int, depth: int) -> dict[str, Any]:
    """A JSON object of at most `size` bytes and `depth` levels: no name twice, no NaN, no infinity.

    >>> json_object(b'{"a": [1, 2]}', size=100, depth=2)
    {'a': [1, 2]}
    """
    if len(data) > size:
        raise MalformedError(f"{len(data)} bytes of JSON, at most {size} are read")
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_without_repeats, parse_constant=_refused, parse_float=_finite
        )
    except RecursionError:
        raise MalformedError(f"JSON is nested deeper than the {depth} levels that are read") from None
    except MalformedError:
        raise
    except ValueError as error:
        raise MalformedError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise MalformedError(f"JSON holds {type(value).__name__}, an object is expected")
    level: list[Any] = [value]
    for _ in range(depth):
        level = [part for whole in level for part in _parts(whole)]
    if any(isinstance(part, dict | list) for part in level):
        raise MalformedError(f"JSON is nested deeper than the {depth} levels that are read")
    return value


def fields(data: bytes, expected: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a message, in the order of `expected`, whose names, shapes and dtypes they must have exactly.

    Nothing larger than such a message can be is looked at.
    """
    header = ENTRY + sum(ENTRY + 6 * len(name.encode()) for name in expected)
    size = 8 + header + sum(due.size * due.dtype.itemsize for due in expected.values())
    try:
        found, _ = arrays(data, size=size, header=header)
    except MalformedError as error:
        raise ValueError(f"the message of {len(data)} bytes is not readable: {error}") from None
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or extra:
        raise ValueError(f"the message lacks {missing or 'nothing'} and has unknown {extra or 'nothing'}")
    for name, due in expected.items():
        came = found[name]
        if came.shape != due.shape or came.dtype != due.dtype:
            raise ValueError(f"{name} arrived as {came.dtype}{list(came.shape)}, expected {due.dtype}{list(due.shape)}")
    return {name: found[name] for name in expected}


def arrays(data: bytes, *, size: int, header: int) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Named arrays (read-only views of `data`) and what their header says beside them.

    Arguments:
        size: bytes accepted in all.
        header: bytes accepted as header.
    """
    if len(data) > size:
        raise MalformedError(f"{len(data)} bytes, at most {size} are read")
    if len(data) < 8:
        raise MalformedError(f"{len(data)} bytes are too few for the length of a header")
    length = int.from_bytes(data[:8], "little")
    if length > header:
        raise MalformedError(f"a header of {length} bytes, at most {header} are read")
    if length > len(data) - 8:
        raise MalformedError(f"a header of {length} bytes in {len(data)} bytes")
    table = json_object(data[8 : 8 + length], size=header, depth=NESTING)
    facts = table.pop("__metadata__", {})
    if not isinstance(facts, dict) or not all(isinstance(value, str) for value in facts.values()):
        raise MalformedError("__metadata__ is not an object of strings")
    body = memoryview(data)[8 + length :]
    found, reached = {}, 0
    places = {name: _place(name, entry) for name, entry in table.items()}
    for name, (dtype, shape, begin, end) in sorted(places.items(), key=lambda item: item[1][2:]):
        # one after another without gap or overlap, so that every byte has one meaning
        if begin != reached or end > len(body):
            raise MalformedError(f"{name!r} lies at {begin} to {end}, after {reached} of {len(body)} bytes")
        if math.prod(shape) * dtype.itemsize != end - begin:
            raise MalformedError(f"{name!r} of shape {shape} does not fill {end - begin} bytes of {dtype}")
        part = body[begin:end]
        if dtype.kind == "b" and np.any(np.frombuffer(part, np.uint8) > 1):
            raise MalformedError(f"{name!r} holds booleans that are neither 0 nor 1")
        try:
            found[name] = np.frombuffer(part, dtype).reshape(shape)
        except ValueError as error:  # an empty array with an absurd axis
            raise MalformedError(f"{name!r}: {error}") from None
        reached = end
    if reached != len(body):
        raise MalformedError(f"{len(body) - reached} bytes after the last array")
    return found, facts


def open_regular(path: Path) -> BinaryIO:
    """A regular file, open for reading. Raises OSError, or MalformedError for a pipe, a device or a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not block
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise MalformedError("not a regular file")
    return open(descriptor, "rb")


def read(path: Path, size: int) -> bytes:
    """A regular file of at most `size` bytes. Raises OSError, or MalformedError for anything else."""
    with open_regular(path) as file:
        there = os.fstat(file.fileno()).st_size
        if there > size:
            raise MalformedError(f"{there} bytes, at most {size} are read")
        data = file.read(there + 1)  # not size + 1, which would allocate the limit for the smallest file
    if len(data) > there:
        raise MalformedError("it grew while it was read; wait until it is written")
    return data


def array_of(dtype: Any, shape: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype and the shape that a description claims, if an array that is read here can have them."""
    if not is_sizes(shape) or len(shape) > DIMENSIONS:
        raise MalformedError(f"the shape {shape!r:.40} is not a list of at most {DIMENSIONS} sizes")
    return dtype_of(dtype), tuple(shape)


def dtype_of(name: Any) -> np.dtype[Any]:
    """The dtype with a name of NumPy, if an array that is read here can have it: no Python objects."""
    if not isinstance(name, str) or np.dtype(name) not in DTYPES.values():
        raise MalformedError(f"the dtype {name!r:.40} is unknown")
    return np.dtype(name)


def is_sizes(value: Any) -> bool:
    """Sizes fit into 63 bits: their products stay small enough to multiply, and NumPy takes them."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _place(name: str, entry: Any) -> tuple[np.dtype[Any], list[int], int, int]:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise MalformedError(f"{name!r} does not have exactly dtype, shape and data_offsets")
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
        raise MalformedError(f"{name!r} has the unknown dtype {entry['dtype']!r}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not is_sizes(shape) or len(shape) > DIMENSIONS:
        raise MalformedError(f"{name!r} has a shape that is not a list of at most {DIMENSIONS} sizes")
    if not is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise MalformedError(f"{name!r} has data_offsets {offsets!r:.40}; they must be [begin, end] with begin <= end")
    return DTYPES[entry["dtype"]], shape, offsets[0], offsets[1]


def _parts(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise MalformedError("JSON has a name twice in one object")
    return table


def _refused(constant: str) -> Any:
    raise MalformedError(f"JSON holds {constant}, which is not a number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedError(f"JSON holds the number {text[:20]}, which is too large")
    return value

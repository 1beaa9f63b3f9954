"""A script that reads an HDF5 file for `fedspam.datasets.tff`, in a process of its own with little memory and time.

libhdf5 trusts the lengths in a file. A wrong one can make it crash, hang or take all memory, and so must not happen in
the process of the user. This script imports NumPy and h5py only. Its one argument is a JSON object: path, features,
clients, and how many bytes of arrays may be read. It answers with messages, each with its length in 8 bytes before it:

    {"client": ..., "columns": [[name, dtype, shape, texts or null], ...]}    then the bytes of each array of numbers
    {"error": ...}                                                            at most once, and the last
    {"end": true}
"""

import contextlib
import itertools
import json
import math
import os
import resource
import sys
from collections.abc import Iterator
from typing import Any

import h5py
import h5py.h5l
import numpy as np

LIBRARY = 2**29  # bytes that libhdf5 may take beside the arrays
SECONDS, RATE = 4, 2**25  # of a processor for one array, and bytes per further second
SMALL, BRIEF = 10**7, 2  # a file of fewer bytes may take so many seconds in all
DAMAGE = (OSError, KeyError, RuntimeError, TypeError, OverflowError, MemoryError, ValueError)


def main() -> None:
    asked = json.loads(sys.argv[1])
    most = LIBRARY + 3 * asked["most"]  # an array, its text, and the copy that is sent
    with open("/proc/self/statm") if sys.platform == "linux" else open("/dev/null") as file:
        taken = int((file.read() or "0").split()[0]) * resource.getpagesize()
    limit(resource.RLIMIT_AS, taken + most)
    out = sys.stdout.buffer
    try:
        for message, arrays in clients(**asked):
            send(out, message)
            for array in arrays:
                out.write(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        send(out, {"end": True})
    except DAMAGE as error:
        send(out, {"error": str(error) or type(error).__name__})
    out.flush()


def send(out: Any, message: Any) -> None:
    data = json.dumps(message).encode()
    out.write(len(data).to_bytes(8, "little") + data)


def clients(
    path: str, features: list[str] | None, clients: list[str] | int | None, most: int
) -> Iterator[tuple[Any, list[np.ndarray]]]:
    """One client after another, as a message and its arrays of numbers."""
    left, is_small = most, os.path.getsize(path) < SMALL
    allow(BRIEF if is_small else SECONDS)
    try:
        file = h5py.File(path, "r")
    except DAMAGE as error:
        raise ValueError(f"{path} is not an HDF5 file, or cut short ({error}); fetch it again") from None
    try:
        with file:
            found = group(file, "examples", path)
            for name in itertools.islice(found, clients) if clients is None or isinstance(clients, int) else clients:
                if isinstance(clients, list) and name not in found:
                    raise ValueError(f"{path} has no client {name!r}; its first is {next(iter(found), None)!r}")
                client = group(found, name, f"{path}: examples")
                features = list(client) if features is None else features
                columns, arrays = [], []
                for feature in features:
                    array = column(client, feature, f"{path}: examples/{name}", left, is_small)
                    left -= array.nbytes
                    texts = array.ravel().tolist() if array.dtype.kind == "O" else None
                    columns.append([feature, array.dtype.str, array.shape, texts])
                    arrays += [array] if texts is None else []
                yield {"client": name, "columns": columns}, arrays
    except (OSError, KeyError, RuntimeError, TypeError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from None


def group(parent: Any, name: str, where: str) -> Any:
    try:
        found = parent[name] if is_plain(parent, name) else None
    except DAMAGE as error:
        found = None
        if name in parent:
            raise ValueError(f"{where}/{name} cannot be read ({error}); fetch the file again") from None
    if not isinstance(found, h5py.Group):
        raise ValueError(f"{where} has no group {name!r}; give a file of TensorFlow Federated: examples/client/feature")
    return found


def is_plain(parent: Any, name: str) -> bool:
    """Whether a name stands for something in this file: a soft or external link can lead to other files."""
    link = parent.id.links.get_info(name.encode("utf-8", "surrogateescape"))
    return link.type == h5py.h5l.TYPE_HARD


def column(client: Any, feature: str, where: str, left: int, is_small: bool) -> np.ndarray:
    try:
        stored: Any = client[feature] if is_plain(client, feature) else None
        if not isinstance(stored, h5py.Dataset) or stored.external or stored.is_virtual:
            raise ValueError("it is not an array stored in this file")
        shape = stored.shape
        size = None if shape is None else math.prod(shape) * stored.dtype.itemsize
        # the header may be wrong, and compressed chunks may be far larger than the file
        if not shape or size is None or size > left:
            raise ValueError(
                f"shape {shape}: at least one axis and at most {max(left, 0)} more bytes are read of a file of "
                "this size: write it without compression"
            )
        if not is_small:
            allow(SECONDS + size // RATE)
        return plain_array(np.asarray(stored[()]))
    except DAMAGE as error:
        if feature not in client:
            there = ", ".join(client) or "nothing"
            raise ValueError(f"{where} has no {feature!r}, it has {there}; name others: features=") from None
        raise ValueError(f"{where}/{feature} cannot be read ({error}); fetch the file again") from None


def plain_array(array: np.ndarray) -> np.ndarray:
    """Finite numbers as they are; texts as an array of objects."""
    if array.dtype.kind in "OS":
        texts = [item.decode("utf-8") if isinstance(item, bytes) else item for item in array.ravel().tolist()]
        if not all(isinstance(item, str) for item in texts):
            raise ValueError("it holds neither numbers nor text")
        return np.array([*texts, None], object)[:-1].reshape(array.shape)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"it holds {array.dtype}, neither numbers nor text")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("it holds NaN or infinite values")
    return array


def allow(seconds: int) -> None:
    """So many more seconds of a processor; then the system ends this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    until = int(usage.ru_utime + usage.ru_stime) + 1 + seconds
    limit(resource.RLIMIT_CPU, until)


def limit(kind: int, value: int) -> None:
    """Lower a limit of this process; the limits that the user has, which may be lower, stay."""
    _, hard = resource.getrlimit(kind)
    with contextlib.nullcontext() if sys.platform == "linux" else contextlib.suppress(ValueError, OSError):  # macOS
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    allow(SECONDS)
    main()

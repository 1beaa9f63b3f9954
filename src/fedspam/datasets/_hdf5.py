"""A script that reads an HDF5 file for `fedspam.datasets.tff`, in a process of its own with little memory and time.

libhdf5 trusts the lengths in a file. A wrong one can make it crash, hang or take all memory, and so must not happen in
the process of the user. This script imports NumPy and h5py only. Its one argument is a JSON object: path, features,
clients, and how many bytes of arrays may be read. It answers with messages, each with its length in 8 bytes before it:

    {"client": ..., "columns": [[name, dtype, shape, texts or null], ...]}    then the bytes of each array of numbers
    {"error": ...}                                                            at most once, and the last
    {"end": true}
"""

import itertools
import json
import resource
import sys
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

LIBRARY = 2**29  # bytes that libhdf5 may take beside the arrays
SECONDS, RATE = 4, 2**25  # of a processor for one array, and bytes per further second
DAMAGE = (OSError, KeyError, RuntimeError, TypeError, OverflowError, MemoryError, ValueError)


def main() -> None:
    asked = json.loads(sys.argv[1])
    most = LIBRARY + 3 * asked["most"]  # an array, its text, and the copy that is sent
    with open("/proc/self/statm") if sys.platform == "linux" else open("/dev/null") as file:
        taken = int((file.read() or "0").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + most, resource.RLIM_INFINITY))
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
    left = most
    try:
        file = h5py.File(path, "r")
    except DAMAGE as error:
        raise ValueError(f"{path} is no HDF5 file, or cut short ({error}); fetch it again") from None
    try:
        with file:
            found = group(file, "examples", path)
            for name in itertools.islice(found, clients) if clients is None or isinstance(clients, int) else clients:
                if name not in found:
                    raise ValueError(f"{path} has no client {name!r}; its first is {next(iter(found), None)!r}")
                client = group(found, name, f"{path}: examples")
                features = list(client) if features is None else features
                columns, arrays = [], []
                for feature in features:
                    array = column(client, feature, f"{path}: examples/{name}", left)
                    left -= array.nbytes
                    texts = array.ravel().tolist() if array.dtype.kind == "O" else None
                    columns.append([feature, array.dtype.str, array.shape, texts])
                    arrays += [array] if texts is None else []
                yield {"client": name, "columns": columns}, arrays
    except (OSError, KeyError, RuntimeError, TypeError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from None


def group(parent: Any, name: str, where: str) -> Any:
    try:
        # a soft or external link can lead to other files
        plain = isinstance(parent.get(name, getlink=True), h5py.HardLink)
        found = parent[name] if plain else None
    except DAMAGE as error:
        raise ValueError(f"{where}/{name} cannot be read ({error}); fetch the file again") from None
    if not isinstance(found, h5py.Group):
        raise ValueError(f"{where} has no group {name!r}; give a file of TensorFlow Federated: examples/client/feature")
    return found


def column(client: Any, feature: str, where: str, left: int) -> np.ndarray:
    if feature not in client:
        raise ValueError(f"{where} has no {feature!r}, it has {', '.join(client) or 'nothing'}; name others: features=")
    try:
        plain = isinstance(client.get(feature, getlink=True), h5py.HardLink)
        stored: Any = client[feature] if plain else None
        if not isinstance(stored, h5py.Dataset) or stored.external or stored.is_virtual:
            raise ValueError("it is no array stored in this file")
        # the header may be wrong, and compressed chunks may be far larger than the file
        if stored.size is None or stored.ndim < 1 or stored.size * stored.dtype.itemsize > left:
            raise ValueError(
                f"shape {stored.shape}: at least one axis and at most {max(left, 0)} more bytes are read of a file of "
                "this size: write it without compression"
            )
        allow(SECONDS + stored.size * stored.dtype.itemsize // RATE)
        return plain_array(np.asarray(stored[()]))
    except DAMAGE as error:
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
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


if __name__ == "__main__":
    allow(SECONDS)
    main()

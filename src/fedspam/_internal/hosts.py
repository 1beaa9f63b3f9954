"""Several processes that run the same program, usually one per host: what they tell each other.

Every process must make the same calls in the same order. With one process these functions do nothing of their own.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

T = TypeVar("T")


class HostError(RuntimeError):
    """Something failed in another process."""


def all_bytes(data: bytes) -> list[bytes]:
    """What every process gives, in the order of the processes.

    >>> all_bytes(b"mine")
    [b'mine']
    """
    if jax.process_count() == 1:
        return [data]
    lengths = np.asarray(multihost_utils.process_allgather(np.int32(len(data)))).reshape(-1)
    room = 1 << int(lengths.max()).bit_length()  # few different lengths: each compiles a small program
    padded = np.frombuffer(data.ljust(room, b"\0"), np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(lengths), room)
    return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]


def together(make: Callable[[], T]) -> T:
    """Call `make` in every process. If it raises in one of them, all raise, so that none waits for another.

    >>> together(lambda: 3)
    3
    """
    if jax.process_count() == 1:
        return make()
    error, result = None, None
    try:
        result = make()
    except Exception as caught:  # whatever it is, the others must hear of it
        error = caught
    told = all_bytes(b"" if error is None else (str(error) or repr(error)).encode())
    if error is not None:
        raise error
    for number, text in enumerate(told):
        if text:
            raise HostError(f"process {number} failed: {text.decode()}")
    return result  # pyright: ignore[reportReturnType]


def first(act: Callable[[], T]) -> T | None:
    """Call `act` in the first process only, and return what it returns; None in the others.

    >>> first(lambda: 3)
    3
    """
    return together(lambda: act() if jax.process_index() == 0 else None)


def on_first(make: Callable[[], bytes | bytearray]) -> bytes:
    """What `make` returns in the first process, in all of them. The others do not call it.

    >>> on_first(lambda: b"read once")
    b'read once'
    """
    made = first(lambda: bytes(make())) or b""
    if jax.process_count() == 1:
        return made
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(made))))
    padded = np.frombuffer(made.ljust(1 << length.bit_length(), b"\0"), np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes()[:length]

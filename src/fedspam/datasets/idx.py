"""IDX, the format of MNIST: a magic number, the sizes of the axes, and the numbers, all big-endian."""

import math
from pathlib import Path

import numpy as np

from fedspam._internal.reading import MOST_BYTES, opened, whole_numbers

DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
PIECE = 2**24
MOST_CLASSES = 2**31


def read_idx(path: str | Path) -> np.ndarray:
    """The array of an IDX file, plain or compressed (``.gz``, ``.bz2``, ``.xz``).

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels-idx1-ubyte"
    >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    >>> read_idx(path).tolist()
    [7, 8, 9]

    LeCun, Cortes, Burges: The MNIST database of handwritten digits, 1998.
    """
    path = Path(path)
    with opened(path, "rb", "an IDX file") as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in DTYPES or not 1 <= magic[3] <= 8:
            raise ValueError(
                f"{path}, byte 0: {magic.hex() or 'nothing'} is not an IDX magic number, such as 00000803; give IDX"
            )
        header = file.read(4 * magic[3])
        if len(header) < 4 * magic[3]:
            raise ValueError(f"{path}, byte {4 + len(header)}: it ends within its header; fetch it again")
        shape = np.frombuffer(header, ">u4").tolist()
        dtype = np.dtype(DTYPES[magic[2]])
        expected = math.prod(shape) * dtype.itemsize
        if expected > MOST_BYTES:
            raise ValueError(f"{path}: the header says {expected} bytes; at most {MOST_BYTES} are read")
        body = bytearray()
        # one byte more than the header says, to notice a surplus; in pieces, since the header may be wrong
        while len(body) <= expected and (piece := file.read(min(PIECE, expected + 1 - len(body)))):
            body += piece
        if len(body) != expected:
            more = "more" if len(body) > expected else len(body)
            raise ValueError(
                f"{path}, byte {4 + len(header) + min(len(body), expected)}: shape {tuple(shape)} needs {expected} "
                f"bytes after the header, there are {more}; fetch it again"
            )
        array = np.frombuffer(body, dtype).reshape(shape)
        if dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{path} holds NaN or infinite values; every number must be finite")
        return array.astype(dtype.newbyteorder("="), copy=False)


def read_images(path: str | Path, *, scaled: bool = True) -> np.ndarray:
    """The array of an IDX file; `scaled` says whether bytes become numbers from 0 to 1."""
    images = read_idx(path)
    return images / np.float32(255) if scaled and images.dtype == np.uint8 else images


def read_labeled(images: str | Path, labels: str | Path, *, scaled: bool = True) -> dict[str, np.ndarray]:
    """Images and their labels, from two IDX files: ``{"features": [n, rows, columns], "label": [n]}``.

    Arguments:
        images, labels: the two files.
        scaled: whether bytes become numbers from 0 to 1. The models of this package scale bytes by themselves, so that
            a quarter of the memory is enough for them.
    """
    image, label = read_images(images, scaled=scaled), whole_numbers(read_idx(labels), Path(labels), "it", MOST_CLASSES)
    if image.shape[:1] != label.shape:
        raise ValueError(
            f"{images} has shape {image.shape} and {labels} {label.shape}; give the images and labels of one set"
        )
    return {"features": image, "label": label.astype(np.int32)}

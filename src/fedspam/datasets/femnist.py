"""LEAF's FEMNIST: handwritten digits and letters of 184 writers."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedspam.datasets.arrays import read_arrays
from fedspam.datasets.federated import FederatedData
from fedspam.datasets.folder import data_path

CLASSES = 62  # 0-9, A-Z, a-z


class Femnist(NamedTuple):
    """Images as bytes, ink 255 and paper 0, and their classes, of 105 writers; and of 79 others that never train."""

    train: FederatedData
    test: FederatedData  # other images of the same writers
    unseen: FederatedData  # images of other writers


def read_femnist(folder: str | Path | None = None) -> Femnist:
    """The 18,796 images of ``femnist/femnist_184writers.npz`` by writer: ``features`` (28 x 28 bytes) and ``label``.

    Caldas et al.: LEAF: a benchmark for federated settings, 2018, arXiv:1812.01097; Cohen, Afshar, Tapson, van Schaik:
    EMNIST, 2017, arXiv:1702.05373.
    """
    path = data_path("femnist/femnist_184writers.npz", folder)
    parts = ("train", "test", "unseen")
    names = [f"{column}_{part}" for part in parts for column in ("x", "y", "writer")]
    arrays = read_arrays(path, [*names, "writers"])
    writers = arrays["writers"]
    made = []
    for part in parts:
        image, label, writer = (arrays[f"{column}_{part}"] for column in ("x", "y", "writer"))
        if image.shape[1:] != (28, 28) or image.dtype != np.uint8 or label.shape != image.shape[:1]:
            raise ValueError(f"{path}: x_{part} has shape {image.shape} and dtype {image.dtype}; fetch it again")
        if writer.shape != label.shape or writer.min() < 0 or writer.max() >= len(writers):
            raise ValueError(f"{path}: writer_{part} has numbers outside the {len(writers)} writers; fetch it again")
        if label.min() < 0 or label.max() >= CLASSES:
            raise ValueError(f"{path}: y_{part} holds {label.max()}; classes are 0 to {CLASSES - 1}: fetch it again")
        examples = {"features": 255 - image, "label": label.astype(np.int32)}
        present = np.unique(writer)
        made.append(FederatedData.by(examples, np.searchsorted(present, writer), [str(writers[i]) for i in present]))
    return Femnist(*made)

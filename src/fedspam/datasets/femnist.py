"""LEAF's FEMNIST: handwritten digits and letters of 184 writers."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedspam._internal.reading import guarded, whole_numbers
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
    with guarded(path, "the archive of FEMNIST"):
        return Femnist(*(_part(path, part, arrays) for part in parts))


def _part(path: Path, part: str, arrays: Mapping[str, np.ndarray]) -> FederatedData:
    writers, image = arrays["writers"], arrays[f"x_{part}"]
    label = whole_numbers(arrays[f"y_{part}"], path, f"y_{part}", CLASSES)
    writer = whole_numbers(arrays[f"writer_{part}"], path, f"writer_{part}", len(writers))
    if image.shape != (len(label), 28, 28) or image.dtype != np.uint8 or writer.shape != label.shape:
        raise ValueError(f"{path}: x_{part} has shape {image.shape} and dtype {image.dtype}; fetch it again")
    examples = {"features": 255 - image, "label": label.astype(np.int32)}
    present = np.unique(writer)
    return FederatedData.by(examples, np.searchsorted(present, writer), [str(writers[i]) for i in present])

"""Human activities from a phone's sensors: windows of 30 persons, as features and as signals."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer

from fedspam.datasets.arrays import read_arrays
from fedspam.datasets.federated import FederatedData
from fedspam.datasets.folder import data_path
from fedspam.datasets.partition import by_key

ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")


class Activity(NamedTuple):
    """Windows of 2.56 seconds: their features, the activity (an index of `ACTIVITIES`), and the person."""

    features: Float[np.ndarray, "rows features"]
    labels: Integer[np.ndarray, " rows"]
    person: Integer[np.ndarray, " rows"]  # 1 to 30
    names: tuple[str, ...]  # of the features


def read_har(folder: str | Path | None = None) -> Activity:
    """The 10,411 windows of ``har/har_features.npz``, 123 features each. Features are not scaled.

    Reyes-Ortiz, Oneto, Samà, Parra, Anguita: Transition-aware human activity recognition using smartphones, 2016.
    """
    path = data_path("har/har_features.npz", folder)
    features, labels, person, names = read_arrays(path, ("x", "y", "subject", "feature_names")).values()
    if features.ndim != 2 or features.shape[1:] != names.shape:
        raise ValueError(f"{path}: x has shape {features.shape} and {names.size} feature names; fetch it again")
    _check_rows(path, len(features), labels, person)
    return Activity(features.astype(np.float64), labels.astype(int), person.astype(int), tuple(map(str, names)))


def read_har_windows(folder: str | Path | None = None) -> FederatedData:
    """The same windows as raw signals, by person: ``features`` (128 x 6) and ``label``.

    Each has 2.56 seconds at 50 Hz of acceleration along three axes in g and rotation about them in rad/s.
    """
    path = data_path("har/har_windows.npz", folder)
    windows, labels, person, scale = read_arrays(path, ("x", "y", "subject", "scale")).values()
    if windows.ndim != 3 or windows.shape[1:] != (128, 6) or scale.shape != (6,):
        raise ValueError(f"{path}: x has shape {windows.shape} and scale {scale.shape}; fetch it again")
    _check_rows(path, len(windows), labels, person)
    owners, persons = by_key(person)
    features = (windows * scale).astype(np.float32)
    return FederatedData.by({"features": features, "label": labels.astype(np.int32)}, owners, persons)


def _check_rows(path: Path, rows: int, labels: np.ndarray, person: np.ndarray) -> None:
    for name, array in (("y", labels), ("subject", person)):
        if array.shape != (rows,) or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"{path}: {name} must be one whole number per row of x; fetch it again")
    if labels.min() < 0 or labels.max() >= len(ACTIVITIES):
        raise ValueError(f"{path}: y holds {labels.max()}; activities are 0 to {len(ACTIVITIES) - 1}: fetch it again")

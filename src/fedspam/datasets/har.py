"""Human activities from a phone's sensors: windows of 30 persons, as features and as signals."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer

from fedspam._internal.reading import guarded, whole_numbers
from fedspam.datasets.arrays import read_arrays
from fedspam.datasets.federated import FederatedData
from fedspam.datasets.folder import data_path
from fedspam.datasets.partition import by_key

MOST_PERSONS = 1000  # there are 30
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
    if features.ndim != 2 or features.shape[1:] != names.shape or len(set(names.tolist())) != names.size:
        raise ValueError(f"{path}: x has shape {features.shape} and {names.size} feature names; fetch it again")
    with guarded(path, "the features of HAR"):
        _check_rows(path, features, labels, person)
    return Activity(features.astype(np.float64), labels.astype(int), person.astype(int), tuple(map(str, names)))


def read_har_windows(folder: str | Path | None = None) -> FederatedData:
    """The same windows as raw signals, by person: ``features`` (128 x 6) and ``label``.

    Each has 2.56 seconds at 50 Hz of acceleration along three axes in g and rotation about them in rad/s.
    """
    path = data_path("har/har_windows.npz", folder)
    windows, labels, person, scale = read_arrays(path, ("x", "y", "subject", "scale")).values()
    if windows.ndim != 3 or windows.shape[1:] != (128, 6) or scale.shape != (6,):
        raise ValueError(f"{path}: x has shape {windows.shape} and scale {scale.shape}; fetch it again")
    with guarded(path, "the windows of HAR"):
        _check_rows(path, windows, labels, person)
        with np.errstate(over="ignore"):
            features = (windows * scale).astype(np.float32)
        if not np.isfinite(features).all():
            raise ValueError(f"{path}: x times scale is infinite, the largest scale is {scale.max():g}; fetch it again")
    owners, persons = by_key(person)
    return FederatedData.by({"features": features, "label": labels.astype(np.int32)}, owners, persons)


def _check_rows(path: Path, features: np.ndarray, labels: np.ndarray, person: np.ndarray) -> None:
    if features.dtype.kind not in "biuf":
        raise ValueError(f"{path}: x holds {features.dtype}; it must hold numbers: fetch the file again")
    for name, array, below in (("y", labels, len(ACTIVITIES)), ("subject", person, MOST_PERSONS)):
        if whole_numbers(array, path, name, below).shape != features.shape[:1]:
            raise ValueError(f"{path}: {name} has {len(array)} rows and x {len(features)}; fetch it again")

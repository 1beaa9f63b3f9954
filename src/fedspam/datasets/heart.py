"""UCI heart disease: the patients of four hospitals, prepared as in FLamby."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer

from fedspam._internal.reading import csv_rows, lines, number, opened
from fedspam.datasets.folder import data_path

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "num",
)  # fmt: skip
DROPPED = ("slope", "ca", "thal")  # missing in most rows of three of the hospitals
FILE = "the 'processed' file of UCI"
MOST_BYTES = 2**20  # the largest has 20 kB
CATEGORIES = {"cp": (1.0, 2.0, 3.0, 4.0), "restecg": (0.0, 1.0, 2.0), "num": (0.0, 1.0, 2.0, 3.0, 4.0)}


class Heart(NamedTuple):
    """Patients without missing entries: their features, whether each is ill, and the number of their hospital."""

    features: Float[np.ndarray, "rows 13"]
    labels: Integer[np.ndarray, " rows"]
    hospital: Integer[np.ndarray, " rows"]
    names: tuple[str, ...]  # of the features


def read_heart(folder: str | Path | None = None) -> Heart:
    """The four hospitals' patients: 303, 261, 46 and 130 of them, 13 features each.

    As in FLamby: slope, ca and thal are left out, then every row with a missing entry; cp and restecg become
    indicators without the first level; a patient is ill if num > 0. Features are not scaled.

    Janosi, Steinbrunn, Pfisterer, Detrano: Heart Disease, UCI, 1988; Ogier du Terrail et al.: FLamby, 2022,
    arXiv:2210.04620.
    """
    kept = [name for name in COLUMNS if name not in DROPPED]
    tables = []
    for hospital in HOSPITALS:
        rows = _read_hospital(data_path(f"heart_disease/processed.{hospital}.data", folder))
        tables.append(np.array([row for row in rows if not np.isnan(row).any()]).reshape(-1, len(kept)))
    table = np.concatenate(tables)
    columns, names = [], []
    for name in kept[:-1]:
        column = table[:, kept.index(name)]
        if name in CATEGORIES:
            for level in CATEGORIES[name][1:]:
                columns.append((column == level).astype(float))
                names.append(f"{name}={level:g}")
        else:
            columns.append(column)
            names.append(name)
    hospital = np.repeat(np.arange(len(tables)), [len(part) for part in tables])
    return Heart(np.stack(columns, axis=1), (table[:, -1] > 0).astype(int), hospital, tuple(names))


def _read_hospital(path: Path) -> list[list[float]]:
    rows = []
    with opened(path, "rt", FILE, most=MOST_BYTES, encoding="ascii", newline="") as file:
        for line, cells in csv_rows(lines(file, path), path):
            if len(cells) != len(COLUMNS):
                raise ValueError(
                    f"{path}, line {line} has {len(cells)} columns instead of {len(COLUMNS)} ({', '.join(COLUMNS)}); "
                    "give the 'processed' file of UCI, without a header"
                )
            named = dict(zip(COLUMNS, cells, strict=True))
            rows.append([_cell(name, text, path, line) for name, text in named.items() if name not in DROPPED])
        if not rows:
            raise ValueError(f"{path} holds no patients; give {FILE}")
    return rows


def _cell(name: str, text: str, path: Path, line: int) -> float:
    if text.strip() == "?":
        return np.nan
    value = number(text, path, line, name, "it must be a number, or ? where it is missing")
    if name in CATEGORIES and value not in CATEGORIES[name]:
        allowed = ", ".join(f"{level:g}" for level in CATEGORIES[name])
        raise ValueError(f"{path}, line {line}: {name} is {text!r}; it must be one of {allowed}, or ?")
    return value

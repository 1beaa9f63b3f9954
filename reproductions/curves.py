"""Accuracies after every round as CSV files, so that a table can be run in parts and on several machines."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from fedspam._internal.trees import Params
from fedspam.app.folders import csv_text
from fedspam.simulation import records

HEADER = ("table", "method", "column", "seed", "round", "accuracy")


class Cell(NamedTuple):
    """One run of a table."""

    table: str
    method: str
    column: str
    seed: int


class Curves:
    """The accuracies of each cell, one file for those that run together; without a folder they stay in memory."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.files: dict[str, str] = {}
        for path in () if folder is None else sorted(folder.glob("*.csv")):
            text = path.read_text(encoding="utf-8")
            if text.startswith(",".join(HEADER)):
                self.files[path.stem] = text

    def write(self, name: str, cells: Sequence[Cell], accuracy: Float[np.ndarray, "rounds cells"]) -> None:
        rows = [
            [*cell, number, f"{value:.4f}"]
            for place, cell in enumerate(cells)
            for number, value in enumerate(accuracy[:, place])
        ]
        self.files[name] = csv_text(HEADER, rows)
        if self.folder is not None:
            records.write(self.folder / f"{name}.csv", self.files[name].encode())

    def read(self) -> dict[Cell, list[float]]:
        """The accuracies before the first round and after each; of several files with a cell, the longest."""
        found: dict[Cell, list[float]] = {}
        for text in self.files.values():
            own: dict[Cell, list[float]] = {}
            for row in csv.DictReader(io.StringIO(text)):
                cell = Cell(row["table"], row["method"], row["column"], int(row["seed"]))
                own.setdefault(cell, []).append(float(row["accuracy"]))
            for cell, accuracy in own.items():
                if len(accuracy) > len(found.get(cell, ())):
                    found[cell] = accuracy
        return found

    def whole(self, table: str, rounds: Mapping[str, int]) -> dict[tuple[str, str], list[list[float]]]:
        """The curves of a table by method and column, one per seed: those with all rounds of their method."""
        found: dict[tuple[str, str], list[list[float]]] = {}
        for cell, accuracy in sorted(self.read().items()):
            if cell.table == table and cell.method in rounds and len(accuracy) == rounds[cell.method] + 1:
                found.setdefault((cell.method, cell.column), []).append(accuracy)
        return found


def file_name(*words: str | int) -> str:
    """Words as the name of a file: small letters, digits and hyphens."""
    text = "-".join(map(str, words)).lower()
    return "-".join("".join(letter if letter.isalnum() or letter == "." else "-" for letter in text).split("-"))


def as_torch(params: Params, key: Key[Array, ""]) -> Params:
    """Layers that begin as in PyTorch: uniform, up to one over the root of their number of inputs."""
    layers: dict[str, Any] = {}
    for number, (name, layer) in enumerate(sorted(params.items())):
        kernel = layer["kernel"]
        reach = 1 / np.sqrt(np.prod(kernel.shape[:-1]))
        keys = jax.random.split(jax.random.fold_in(key, number))
        layers[name] = {
            "bias": jax.random.uniform(keys[0], layer["bias"].shape, kernel.dtype, -reach, reach),
            "kernel": jax.random.uniform(keys[1], kernel.shape, kernel.dtype, -reach, reach),
        }
    return layers

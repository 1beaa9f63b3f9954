"""A model file says what it holds: its claims are compared with its arrays before anything is traced."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import fedspam
from fedspam import models
from fedspam._internal import files
from fedspam._internal.files import RecordError
from fedspam.app.cli import main

LARGE = 10**400
KERNEL = {"kernel": np.zeros((2, 2), np.float32)}
PERCEPTRON = {"type": "Perceptron", "inputs": 2, "classes": 2, "hidden": [2]}
RECURRENT = {"type": "Recurrent", "alphabet": 2, "embedding": 2, "hidden": 2, "layers": 1, "every": True}
TRANSFORMER = {"type": "Transformer", "alphabet": 2, "length": 2, "width": 2, "heads": 1, "layers": 1, "every": True}
IMAGES = {
    "type": "Convolutional", "shape": [8, 8, 1], "classes": 2, "features": [2], "window": [3, 3], "pools": [1],
    "hidden": [2],
}  # fmt: skip
ENCODER = {"columns": None, "mean": [1.0], "deviation": [1.0], "intercept": False, "label": "y", "classes": []}
NUMBER = {"kind": "number", "name": "age", "fill": 1.0, "indicator": False}


def write(folder: Path, description: dict, arrays: dict = KERNEL) -> Path:
    path = folder / "model.safetensors"
    files.write(path, files.pack(arrays, kind="model", description=json.dumps(description)))
    return path


def network(**sizes: object) -> dict:
    model = {"dtype": "float32", "regularization": 0.0, "network": sizes}
    return {"loss": {"type": "RowLoss", "model": model}}


def refused(folder: Path, description: dict, arrays: dict = KERNEL) -> str:
    path = write(folder, description, arrays)
    with pytest.raises(RecordError) as told:
        fedspam.load(path)
    said = str(told.value)
    assert said.startswith(str(path)), said
    assert "\n" not in said
    assert "; write it again" in said
    assert len(said) < len(str(path)) + 500, said[:200]
    return said


@pytest.mark.parametrize(
    "sizes",
    [
        {**RECURRENT, "layers": 10**7},
        {**TRANSFORMER, "layers": 10**7},
        {**PERCEPTRON, "hidden": [1] * 10**6},
        {**IMAGES, "features": [1] * 10**6, "pools": [1] * 10**6, "window": [1, 1]},
    ],
    ids=lambda sizes: sizes["type"],
)
def test_more_layers_than_arrays_are_not_traced(sizes, tmp_path, monkeypatch):
    """A file of a few hundred bytes that claims ten million layers is refused before JAX sees the first."""
    monkeypatch.setattr(jax, "eval_shape", lambda *_, **__: pytest.fail("the claims were traced"))
    assert "layers, and the file has 1 array" in refused(tmp_path, network(**sizes))


@pytest.mark.parametrize(
    ("whole", "name", "value"),
    [
        *((PERCEPTRON, name, value) for name in ("inputs", "classes") for value in (-1, 0, "2", True, 2.5, None, [2])),
        *((PERCEPTRON, "hidden", value) for value in (2, None, [-1], [[1]], ["1"], {"a": 1})),
        (PERCEPTRON, "inputs", LARGE),
        (RECURRENT, "hidden", LARGE),
        (TRANSFORMER, "width", LARGE),
        (PERCEPTRON, "inputs", 2**62),
        (RECURRENT, "layers", "1"),
        (RECURRENT, "every", 1),
        (TRANSFORMER, "heads", 0),
        *((IMAGES, "pools", value) for value in ([0], [-1], [], ["1"], [10**9])),
        *((IMAGES, "features", value) for value in ([0], [-2], [1, 1], [LARGE])),
        *((IMAGES, "window", value) for value in ([0, 3], [-3, 3], [3], [], [99, 99])),
        *((IMAGES, "shape", value) for value in (["a", 8, 1], [8, 8, 0], [-8, 8, 1], [1], [LARGE, 8, 1])),
        (IMAGES, "padding", ["VALID"]),
        (PERCEPTRON, "unknown", 1),
        (PERCEPTRON, "type", ["Perceptron"]),
    ],
)  # fmt: skip
def test_wrong_sizes_are_refused(whole, name, value, tmp_path):
    refused(tmp_path, network(**{**whole, name: value}))


@pytest.mark.parametrize(
    "description",
    [
        {"classes": 5},
        {"classes": [None, [1]]},
        {"classes": {"a": 1}},
        {"loss": {"type": "RowLoss"}},
        {"loss": {"type": "RowLoss", "model": [1]}},
        {"loss": {"type": "RowLoss", "model": None}},
        *({"loss": {"type": "SquaredLoss", "regularization": value}} for value in (LARGE, "nan", None)),
        *({"structure": part} for part in (5, "none", {"list": 5}, {"list": [], "dict": {}}, {"set": ["kernel"]})),
        *({"encoder": part} for part in (5, [], {})),
        *({"encoder": ENCODER | part} for part in (
            {"mean": [LARGE]}, {"mean": ["nan"]}, {"mean": [[1.0], [1.0, 2.0]]}, {"mean": [1.0, 2.0]},
            {"deviation": [0]}, {"deviation": [-1]}, {"classes": 5}, {"label": 5}, {"columns": 5},
            {"columns": [NUMBER | {"name": [1]}]}, {"columns": [NUMBER | {"fill": "nan"}]},
            {"columns": [NUMBER | {"kind": "date"}]}, {"columns": [NUMBER, NUMBER | {"name": "size"}]},
        )),
    ],
)  # fmt: skip
def test_wrong_descriptions_are_refused(description, tmp_path):
    refused(tmp_path, description)


def test_a_file_that_lacks_arrays_is_refused(tmp_path):
    model = models.mlp(2, 2, hidden=(3,))
    models.save(tmp_path, model.init(0), model=model)
    arrays, facts = files.unpack(files.read(tmp_path / "model.safetensors", size=10**6), tmp_path, size=10**6)
    description = json.loads(facts["description"])
    without = {name: array for name, array in arrays.items() if name != "dense1.bias"}
    assert "dense1.bias" in refused(tmp_path, description, without)
    other = arrays | {"dense1.bias": np.zeros(7, np.float32)}
    assert "'dense1.bias' has shape (7,)" in refused(tmp_path, description, other)
    assert fedspam.load(write(tmp_path, description, arrays)).model == model


@pytest.mark.parametrize(
    "config", [5, {"data": 5}, {"data": {"label": [1]}}, {"data": {"separator": 7}}, {"model": [1]}]
)
def test_a_wrong_configuration_in_a_model_is_one_line(config, tmp_path, capsys):
    write(tmp_path, {"config": config, "encoder": {**ENCODER, "columns": [NUMBER]}, "classes": ["a", "b"]})
    (tmp_path / "rows.csv").write_text("age\n1\n")
    assert main(["predict", str(tmp_path), str(tmp_path / "rows.csv")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(tmp_path / "model.safetensors") in said

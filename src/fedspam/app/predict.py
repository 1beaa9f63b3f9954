"""`fedspam predict` and `fedspam export`: a trained model on new rows, and for other frameworks."""

import argparse
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy

from fedspam import datasets, models
from fedspam.app import UsageError, refusing
from fedspam.app.experiment import model as own
from fedspam.app.experiment.scores import classification, regression
from fedspam.app.folders import csv_text, make_folder
from fedspam.datasets.idx import read_images
from fedspam.datasets.table import Table, cells_by_row
from fedspam.models.export import flax_tree, torch_state
from fedspam.models.trained import TrainedModel
from fedspam.simulation import records
from fedspam.simulation.metrics import METRICS
from fedspam.simulation.status import Status


class _DataFacts(msgspec.Struct):
    """What a prediction needs of the section [data] that the model was trained with."""

    kind: str = ""
    label: str = "label"
    delimiter: str | None = None
    features: str | list[str] | int | None = None  # an array, columns, or their number


class _ModelFacts(msgspec.Struct):
    function: str | None = None


class _Configuration(msgspec.Struct):
    data: _DataFacts = msgspec.field(default_factory=_DataFacts)
    model: _ModelFacts | None = None


def show(options: argparse.Namespace) -> int:
    """Predict the rows of a file, write them as CSV with their predictions, and return the exit code 0."""
    rows = options.rows
    trained = _load(options.folder, options.model)
    status = Status.from_json(trained.facts.get("status"))
    if not status.ok:
        _say(f"the run did not end well ({status}); these are its last parameters")
    data = _configuration(trained).data
    if not rows.is_file():
        raise UsageError(f"there is no file {rows}; name the new rows")
    header: list[str] = []
    copied: list[list[Any]]
    if trained.features:
        table = datasets.open_table(rows, delimiter=options.delimiter or data.delimiter)
        for note in trained.notes(table):
            _say(note)
        scores = trained.raw_scores(trained.encode(table))
        header, copied = table.names, list(cells_by_row(table))
    else:
        table = None
        scores = trained.raw_scores(trained.encode(_array(rows, data)))
        header, copied = ["row"], [[number] for number in range(1, len(scores) + 1)]
    if trained.threshold is not None:
        name, least = trained.classes[trained.threshold.number], trained.threshold.probability
        _say(f"{name!r} is predicted from a probability of {least:.4g} on, as in training")
    found = trained.named(scores)
    label = data.label
    header = [*header, f"predicted_{label}"]
    texts = (f"{value:.9g}" if isinstance(value, float) else value for value in found.tolist())
    written = [[*cells, text] for cells, text in zip(copied, texts, strict=True)]
    if options.probabilities:
        with refusing("--probabilities"):
            shares = trained.shares(scores)
        header += [f"probability_{name}" for name in trained.classes or range(shares.shape[1])]
        written = [[*cells, *(f"{share:.6g}" for share in row)] for cells, row in zip(written, shares, strict=True)]
    text = csv_text(header, written)
    if options.out is None:
        sys.stdout.write(text)
    else:
        records.write(options.out, text.encode())
        _say(f"{len(written)} rows in {options.out}")
    if table is not None and label in table.cells:
        for line in _told(trained, table, label, scores):
            _say(line)
    return 0


def export(options: argparse.Namespace) -> int:
    """Write the parameters for another framework and a description beside them, and return the exit code 0."""
    trained, more = _opened(options.folder), ""
    if options.to == "torch":
        state, code = torch_state(trained)
        name, data = "model.pt", _torch_bytes(state)
        told = "a state dict, load it with torch.load(path, weights_only=True); it belongs to"
        more = f"  {code}\n"
    elif options.to == "flax":
        name, data = "model.msgpack", _flax_bytes(trained)
        told = "nested parameters, read them with flax.serialization.msgpack_restore"
    else:
        arrays = {name: np.array(array, order="C") for name, array in trained.arrays.items()}
        name, data, told = "model.safetensors", safetensors.numpy.save(arrays), ", ".join(arrays)
    folder = make_folder(options.out)
    records.write(folder / name, data)
    facts = {name: value for name, value in trained.facts.items() if name not in ("structure", "loss")}
    facts["features"] = trained.encoder.names if trained.encoder is not None else []
    records.write(folder / "model.json", json.dumps(facts, indent=1, ensure_ascii=False).encode())
    sys.stdout.write(f"{folder / name}: {told}\n{more}")
    sys.stdout.write(f"{folder / 'model.json'}: features and their scales, classes, configuration\n")
    return 0


def _opened(folder: Path) -> TrainedModel:
    if not folder.exists():
        raise UsageError(f"there is no {folder}; name a run folder, or its model.safetensors")
    return models.load(folder)


def _load(folder: Path, function: str | None) -> TrainedModel:
    trained = _opened(folder)
    about = _configuration(trained).model
    place = about.function if about else None
    if function is None:
        if place is not None:
            raise UsageError(
                f"the model is a loss of your own; name its file, which is then run: --model {Path(place).name}"
            )
        return trained
    if place is None:
        raise UsageError(f"--model {function}: the model of {folder} is known; leave the flag out")
    path = function.rpartition(":")[0] or function
    predict = getattr(own.load(path), "predict", None)
    if not callable(predict):
        raise UsageError(f"--model {function}: the file has no function predict(params, rows) -> one class per row")
    return models.load(folder, predict=predict)


def _configuration(trained: TrainedModel) -> "_Configuration":
    try:
        return msgspec.convert(trained.facts.get("config") or {}, _Configuration)
    except msgspec.ValidationError as error:
        raise records.RecordError(
            f"{trained.source} has a configuration that cannot be used ({error}); write it again"
        ) from None


def _array(path: Path, data: "_DataFacts") -> np.ndarray:
    """The features of a file, for a model that was trained on arrays."""
    if path.suffix == ".npz":
        name = data.features if isinstance(data.features, str) else "x"
        return datasets.read_arrays(path, [name])[name]
    if data.kind == "libsvm":
        return datasets.read_libsvm(path, features=data.features if isinstance(data.features, int) else None).features
    if data.kind == "idx":
        return read_images(path)
    raise UsageError(f"the model was trained on arrays of numbers, without names of columns; give {path.stem}.npz")


def _told(trained: TrainedModel, table: Table, label: str, scores: np.ndarray) -> Iterator[str]:
    """How well the predictions agree with the labels of the table, as far as it has them."""
    if trained.numeric:
        truth = table.numbers(label)
        known = ~np.isnan(truth)
        if known.any():
            error = regression(truth[known], scores[known])["rmse"]
            yield f"root mean square error of {int(known.sum())} rows with {label}: {error:.4g}"
        return
    truth, found = table.texts(label), trained.named(scores)
    known = truth != ""
    right = int(np.sum(truth[known] == found[known]))
    yield f"{right} of {int(known.sum())} rows with {label} are predicted as they are"
    known = np.isin(truth, trained.classes)
    if not known.any():
        return
    numbers = np.asarray([trained.classes.index(name) for name in truth[known]])
    facts = classification(numbers, trained.decided(scores[known]), None, trained.classes)
    yield f"balanced accuracy {facts['balanced_accuracy']:.4g}, {METRICS['f1'].label} {facts['f1']:.4g}"
    for name, values in facts["per_class"].items():
        shown = (f"{key} {'–' if value is None else f'{value:.4g}'}" for key, value in values.items() if key != "rows")
        yield f"{label} = {name}: {', '.join(shown)}"


def _torch_bytes(state: dict[str, np.ndarray]) -> bytes:
    try:
        import torch
    except ImportError:
        raise ImportError("--to torch needs PyTorch, which is not installed; pip install torch") from None
    file = io.BytesIO()
    torch.save({name: torch.from_numpy(array) for name, array in state.items()}, file)
    return file.getvalue()


def _flax_bytes(trained: TrainedModel) -> bytes:
    try:
        from flax import serialization
    except ImportError:
        raise ImportError("--to flax needs Flax, which is not installed; pip install flax") from None
    return serialization.msgpack_serialize(flax_tree(trained))


def _say(text: str) -> None:
    sys.stderr.write(f"fedspam predict: {text}\n")

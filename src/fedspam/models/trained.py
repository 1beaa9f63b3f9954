"""A trained model in a file: what it needs to predict new rows, without the data that it was trained on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from fedspam._internal import describe, strict
from fedspam._internal.brief import Brief
from fedspam._internal.files import RecordError
from fedspam._internal.model_file import FILE, plain_names, read_model, restored, write_model
from fedspam._internal.trees import Params
from fedspam.datasets import Encoder, open_table
from fedspam.datasets.table import Table
from fedspam.models.model import Model, SquaredLoss
from fedspam.models.networks import Convolutional, Linear, Perceptron
from fedspam.models.sequences import Recurrent, Transformer

# what a description that is wrong raises: msgspec on types, the classes on values, JAX on shapes
WRONG = (msgspec.ValidationError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
LARGEST = 2**31 - 1  # size that a description may claim
BLOCK = 256  # rows computed together; as many as in `Evaluation`, so that scores have its bits
NETWORKS: Mapping[str, type[Any]] = {
    network.__name__: network for network in (Linear, Perceptron, Convolutional, Recurrent, Transformer)
}
Scores = Callable[[Params, Any], Any]


@dataclass(frozen=True)
class Threshold:
    """From which probability on one of two classes is predicted."""

    number: Annotated[int, msgspec.Meta(ge=0, le=1)]  # of the class
    probability: Annotated[float, msgspec.Meta(ge=0, le=1)]


@dataclass(frozen=True, repr=False)
class TrainedModel(Brief):
    """Parameters and everything that new rows need before them. Read it with `fedspam.load`.

    Arguments:
        source: the file.
        params: the parameters, in the structure that the model was trained with.
        arrays: the same by plain names, as the file holds them.
        scores: (params, features) -> scores; None where the file does not describe the model.
        encoder: the preprocessing; None where features are taken as they are.
        classes: the names of the classes; () where they are not known, or labels are numbers.
        facts: the rest of the file's description: configuration, method, status, and where the model comes from:
            ``run`` (the hash of its settings), ``rounds``, ``parameters`` (the hash of the parameters), and over Flower
            the ``stages`` before it.
    """

    source: str
    params: Params
    arrays: Mapping[str, np.ndarray]
    scores: Scores | None
    encoder: Encoder | None
    classes: tuple[str, ...]
    facts: Mapping[str, Any]
    model: Model | None = None  # where the file describes one of this package, or one was given
    threshold: Threshold | None = None  # None for the more probable class

    @property
    def numeric(self) -> bool:
        """Whether the model predicts numbers instead of classes."""
        return self.facts.get("task") == "numbers" or _type(self.facts.get("loss")) == "SquaredLoss"

    @property
    def features(self) -> list[str]:
        """The columns that a table of new rows needs; empty where features are arrays."""
        columns = self.encoder.columns if self.encoder is not None else None
        return [column.name for column in columns or ()]

    def predict(self, rows: Any) -> np.ndarray:
        """The class of each row by name (by number where names are not known), or the predicted numbers.

        Arguments:
            rows: a path, a data frame or a dict of columns if the model was trained on a table; else an array.
        """
        return self.named(self.raw_scores(self.encode(rows)))

    def probabilities(self, rows: Any) -> np.ndarray:
        """For each row one probability per class, in the order of `classes`."""
        return self.shares(self.raw_scores(self.encode(rows)))

    def notes(self, rows: Any) -> list[str]:
        """How new rows differ from those in training, in words."""
        if self.encoder is None or self.encoder.columns is None:
            return []
        return self.encoder.notes(self.encoder.read(_table(rows)))

    def encode(self, rows: Any) -> np.ndarray:
        """The features that the model takes."""
        if self.encoder is None:
            return np.asarray(rows)
        if self.encoder.columns is not None:
            return self.encoder(self.encoder.read(_table(rows)))
        features = np.asarray(rows)
        width, due = int(np.prod(features.shape[1:])), self.encoder.scale.mean.shape
        if features.ndim < 2 or (due and width != due[0]):
            wanted = f"{due[0]} features per row" if due else "one vector per row"
            raise ValueError(f"features have shape {features.shape}, the model was trained with {wanted}; give as many")
        return self.encoder(features)

    def raw_scores(self, features: np.ndarray) -> np.ndarray:
        """The scores of encoded features, with the bits that the evaluation of the training had."""
        if self.scores is None:
            raise ValueError(
                f"{self.source} does not describe its model ({_about(self.facts.get('loss'))}); give it: "
                "fedspam.load(..., model=from_torch(module)) or load(..., predict=function)"
            )
        if not len(features):
            raise ValueError("there are no rows to predict; give at least one")
        double = any(leaf.dtype == np.float64 for leaf in self.arrays.values())
        with jax.enable_x64(double):
            scores, params = jax.jit(self.scores), jax.tree.map(jnp.asarray, self.params)
            block = min(BLOCK, len(features))
            padded = np.concatenate([features, np.repeat(features[-1:], -len(features) % block, axis=0)])
            blocks = padded.reshape(-1, block, *features.shape[1:])
            try:
                found = [np.asarray(scores(params, jnp.asarray(block))) for block in blocks]
            except (TypeError, LookupError, AttributeError) as error:
                why = str(error).splitlines()[0]
                raise ValueError(
                    f"the model cannot take rows of shape {features.shape[1:]} ({why}); give rows as in training"
                ) from None
        return np.concatenate(found)[: len(features)]

    def named(self, scores: np.ndarray) -> np.ndarray:
        """The predictions that belong to scores: names of classes, numbers of classes, or numbers."""
        if self.numeric:
            return scores
        numbers = self.decided(scores)
        if not self.classes:
            return numbers
        return np.asarray(self.classes, object)[numbers]

    def decided(self, scores: np.ndarray) -> np.ndarray:
        """The numbers of the classes that belong to scores, by the threshold if there is one."""
        if self.threshold is not None:
            number = self.threshold.number
            return np.where(shares_of(scores)[:, number] >= self.threshold.probability, number, 1 - number)
        return np.argmax(scores, axis=-1) if scores.ndim > 1 else (scores > 0).astype(int)

    def shares(self, scores: np.ndarray) -> np.ndarray:
        """The probabilities that belong to scores."""
        if self.numeric:
            raise ValueError("the model predicts numbers, which have no probabilities; use predict")
        if self.facts.get("predicts") == "classes":
            raise ValueError("a function that predicts classes has no probabilities; use predict")
        return shares_of(scores)


def shares_of(scores: np.ndarray) -> np.ndarray:
    """The probability of each class, from one score per class, or from one of class 1 against class 0."""
    wide = np.asarray(scores, np.float64)
    if wide.ndim == 1:
        wide = np.stack([np.zeros_like(wide), wide], axis=1)
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def save(
    path: str | Path,
    params: Params,
    *,
    model: Any = None,
    encoder: Encoder | None = None,
    classes: Sequence[str] = (),
    **facts: Any,
) -> Path:
    """Write a trained model to a file, or as ``model.safetensors`` into a folder. `fedspam.load` reads it.

    Arguments:
        path: the file or the folder; a file that exists is replaced.
        params: the trained parameters, such as ``run.params``.
        model: the `Model`, or its loss; None if whoever loads the file has it.
        encoder: the preprocessing, as `Encoder.of_table` learned it.
        classes: the names of the classes, if the encoder does not have them.
        facts: whatever else should be kept, as plain JSON.

    >>> import tempfile
    >>> from fedspam.models import softmax_regression
    >>> model = softmax_regression(2, 3)
    >>> params = {"kernel": np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), "bias": np.zeros(3)}
    >>> path = save(tempfile.mkdtemp(), params, model=model, classes=["ant", "bee", "cat"])
    >>> load(path).predict([[2.0, 1.0], [0.0, 1.0]]).tolist()
    ['ant', 'cat']
    """
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    loss = model.loss if isinstance(model, Model) else model
    description = {
        "loss": None if loss is None else describe.describe(loss),
        "encoder": None if encoder is None else encoder.described(),
        "classes": list(classes or (encoder.classes if encoder is not None else ())),
        **facts,
    }
    write_model(path, params, description)
    return path


def load(
    path: str | Path, *, model: Model | None = None, predict: Callable[[Params, Mapping[str, Any]], Any] | None = None
) -> TrainedModel:
    """The trained model of a run folder or of a file. The training data is not needed, and no code is executed.

    Arguments:
        path: a folder of `fedspam run`, of ``simulate(folder=...)`` or of a Flower run, or a file that `save` wrote.
        model: the model, where the file does not describe it: one of Flax, Equinox or PyTorch through its adapter.
        predict: (params, rows) -> the class of each row, where the loss is a function of your own.
    """
    path = Path(path)
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        why = (
            "it is no run, or the run has not ended: continue it with resume" if path.is_dir() else "name a run folder"
        )
        raise RecordError(f"there is no {file}; {why}")
    arrays, facts = read_model(file)
    described = None
    try:
        encoder = None if facts.get("encoder") is None else Encoder.of_description(facts["encoder"])
        params = restored(facts.get("structure"), arrays)
        classes = tuple(map(str, msgspec.convert(facts.get("classes") or (), tuple[str | int | float, ...])))
        threshold = msgspec.convert(facts.get("threshold"), Threshold | None)
        if threshold is not None and len(classes) != 2:
            raise ValueError(f"a threshold is for two classes, not {len(classes)}")
        if model is None:
            described = _described(facts.get("loss"), arrays)
            model = described if isinstance(described, Model) else None
        if model is not None:
            params = _in_structure(model, arrays)
    except _OtherModelError as error:
        if described is None:
            raise ValueError(f"{file} is of another model: {error}; give the model that was trained") from None
        raise RecordError(f"{file} does not hold the model that it describes: {error}; write it again") from None
    except WRONG as error:
        why = repr(error)[:300]
        raise RecordError(f"{file} has a description that cannot be used ({why}); write it again") from None
    scores = described.scores if isinstance(described, SquaredLoss) else None
    if model is not None:
        scores = model.logits
    elif _type(facts.get("loss")) in ("LogisticLoss", "SoftmaxLoss"):
        scores = lambda params, features: features @ params
    if predict is not None:
        facts = {**facts, "predicts": "classes"}
        scores = lambda params, features: _one_hot(predict(params, {"features": features}), len(classes))
        threshold = None  # the function decides
    return TrainedModel(str(file), params, arrays, scores, encoder, classes, facts, model, threshold)


def _described(loss: Any, arrays: Mapping[str, np.ndarray]) -> Model | SquaredLoss | None:
    """The model whose loss this describes; None if it is none of this package."""
    if _type(loss) == "SquaredLoss":
        return msgspec.convert(loss, SquaredLoss)
    if _type(loss) != "RowLoss" or _type(loss["model"]["network"]) not in NETWORKS:
        return None
    facts = loss["model"]
    sizes = dict(facts["network"])
    kind = NETWORKS[sizes.pop("type")]
    _check_claims(sizes, len(arrays))
    unknown = sorted(sizes.keys() - {field.name for field in fields(kind)})
    if unknown:
        raise ValueError(f"{kind.__name__} has no {unknown[0]!r}")
    return Model(msgspec.convert(sizes, kind), facts["dtype"], msgspec.convert(facts["regularization"], float))


def _check_claims(sizes: Mapping[str, Any], arrays: int) -> None:
    """Refuse more layers than the file has arrays, and sizes that no array has, before any of them is traced."""
    for name, claim in sizes.items():
        claims = claim if isinstance(claim, list) else [claim]
        layers = claim if name == "layers" and isinstance(claim, int) else len(claims)
        if layers > max(arrays, strict.DIMENSIONS):
            raise ValueError(f"{name} claims {layers} layers, and the file has {arrays} array{'s' * (arrays != 1)}")
        if any(isinstance(size, int) and size > LARGEST for size in claims):
            raise ValueError(f"{name} claims a size above {LARGEST}")


class _OtherModelError(Exception):
    """The arrays of a file are those of another model; says which differ."""


def _in_structure(model: Model, arrays: Mapping[str, np.ndarray]) -> Params:
    """The parameters as the model has them; refused if they are those of another model."""
    with jax.enable_x64(any(leaf.dtype == np.float64 for leaf in arrays.values())):
        like = jax.eval_shape(lambda: model.init(0))
    names = plain_names(like)
    due = {name: tuple(leaf.shape) for name, leaf in zip(names, jax.tree.leaves(like), strict=True)}
    there = {name: array.shape for name, array in arrays.items()}
    if due != there:
        differing = sorted(name for name in due.keys() | there.keys() if due.get(name) != there.get(name))
        name = differing[0]
        raise _OtherModelError(
            f"{name!r} has shape {there.get(name, 'none')} in it and {due.get(name, 'none')} in the model "
            f"({len(differing)} differ)"
        )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in names])


def _one_hot(classes: Any, count: int) -> Any:
    """Scores whose largest is that of the predicted class."""
    return jax.nn.one_hot(jnp.asarray(classes).astype(int), max(count, 2))


def _table(rows: Any) -> Table:
    return rows if isinstance(rows, Table) else open_table(rows)


def _type(loss: Any) -> str | None:
    return loss.get("type") if isinstance(loss, Mapping) else None


def _about(loss: Any) -> str:
    network = loss.get("model", {}).get("network") if _type(loss) in ("RowLoss", "NetworkLoss") else None
    if network is not None:
        return "it is a module of Flax, Equinox or PyTorch"
    return "its loss is a function of your own" if loss is not None else "only parameters were saved"

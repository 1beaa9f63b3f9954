"""`[model]`: a loss a row, parameters to start from, and which rows are guessed right."""

import importlib.util
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from fedspam import models
from fedspam._internal import trees
from fedspam._internal.trees import Params
from fedspam.app.config import schema
from fedspam.app.config.parse import ConfigError
from fedspam.app.config.type_text import nearest
from fedspam.app.experiment.data import LoadedExamples
from fedspam.clients import Loss


@dataclass(frozen=True)
class Learner:
    """What is learnt.

    Arguments:
        loss: (params, rows) -> one loss a row.
        start: the first parameters.
        correct: (params, rows) -> of each row whether its class is guessed; None where that is not known.
    """

    loss: Loss
    start: Params
    correct: Loss | None


@dataclass(frozen=True)
class SquaredLoss:
    """Least squares with a penalty, one loss a row. Equal settings are equal functions."""

    regularization: float

    def __call__(self, params: Any, rows: Mapping[str, Any]) -> Any:
        guess = rows["features"] @ params["weights"] + params.get("bias", 0.0)
        return 0.5 * (guess - rows["label"]) ** 2 + 0.5 * self.regularization * trees.squared_norm(params)


def learner(model: Any, data: LoadedExamples, *, seed: int, precision: str) -> Learner:
    """What `[model]` asks for, on this data."""
    if isinstance(model, schema.Function):
        return _own(model.function, data, seed)
    name, inputs = str(model.__struct_config__.tag), int(jnp.prod(jnp.asarray(data.shape)))
    if isinstance(model, schema.LinearSection):
        if data.classes:
            raise ConfigError("model.name = 'linear' needs labels that are numbers; say so: data.task = 'numbers'")
        start = {"weights": jnp.zeros(inputs)} | ({"bias": jnp.zeros(())} if model.bias else {})
        return Learner(SquaredLoss(model.regularization), start, None)
    if not data.classes:
        raise ConfigError(f"model.name = {name!r} guesses classes, and data.task is 'numbers'; take 'linear'")
    options: dict[str, Any] = {"dtype": precision}
    if isinstance(model, schema.Logistic):
        if data.classes != 2:
            raise ConfigError(
                f"model.name = 'logistic' tells two classes apart, there are {data.classes}; take 'softmax'"
            )
        made = models.logistic_regression(inputs, bias=model.bias, regularization=model.regularization, **options)
    elif isinstance(model, schema.Softmax):
        regularization = model.regularization
        made = models.softmax_regression(
            inputs, data.classes, bias=model.bias, regularization=regularization, **options
        )
    elif isinstance(model, schema.Mlp):
        made = models.mlp(inputs, data.classes, hidden=tuple(model.hidden), **options)
    elif inputs != 28 * 28:
        raise ConfigError(f"model.name = {name!r} sees images of 28 x 28, the data has {data.shape}; take 'mlp'")
    elif isinstance(model, schema.LeafCnn):
        made = models.leaf_cnn(data.classes, hidden=model.hidden, **options)
    else:
        made = models.femnist_cnn(data.classes, **options)
    return Learner(made.loss, made.init(seed), made.correct)


@dataclass(frozen=True)
class OwnCorrect:
    """Whether a user's `predict` names the class of each row."""

    predict: Callable[..., Any]

    def __call__(self, params: Any, rows: Mapping[str, Any]) -> Any:
        return (self.predict(params, rows) == rows["label"]).astype(jnp.float32)


def _own(place: str, data: LoadedExamples, seed: int) -> Learner:
    """A loss of the user's own: the named function of a file, and beside it `start` and `predict`, if there are any."""
    path, _, name = place.rpartition(":")
    module = load(path)
    loss = getattr(module, name, None)
    if not callable(loss):
        there = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        near = nearest(name, there)
        hint = f"did you mean {near!r}?" if near else f"it has {', '.join(there) or 'none'}"
        raise ConfigError(f"model.function = {place!r}: the file has no function {name!r}; {hint}")
    rows = {key: jnp.asarray(column[:2]) for key, column in data.train.examples.items()}
    begin, predict = getattr(module, "start", None), getattr(module, "predict", None)
    with _telling(place, "start"):
        start = jnp.zeros(data.shape) if begin is None else begin(rows, jax.random.key(seed))
    with _telling(place, name):
        shape = jax.eval_shape(loss, start, rows)
    count = len(rows["label"])
    if getattr(shape, "shape", None) != (count,):
        told = getattr(shape, "shape", type(shape).__name__)
        raise ConfigError(
            f"model.function = {place!r}: {name}(params, rows) gave {told} for {count} rows; it must give one loss a "
            "row: leave the mean over rows out"
        )
    if predict is not None and data.classes:
        with _telling(place, "predict"):
            guessed = jax.eval_shape(predict, start, rows)
        if getattr(guessed, "shape", None) != (count,):
            raise ConfigError(f"model.function = {place!r}: predict(params, rows) must give one class a row")
    return Learner(loss, start, OwnCorrect(predict) if predict is not None and data.classes else None)


def load(path: str | Path) -> Any:
    """A user's own Python file as a module. It is run: only for files that the user names for it."""
    path = Path(path)
    if not path.is_file():
        there = [other.name for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
        near = nearest(path.name, there)
        hint = (
            f"did you mean {near!r}?" if near else "paths in a file are seen from its folder, those of flags from here"
        )
        raise ConfigError(f"model.function: {path} is no file; {hint}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _telling(str(path), "the code"):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _telling(place: str, what: str) -> Iterator[None]:
    """Whatever a user's code raises, told with the line that did."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        file = Path(place.rpartition(":")[0] or place)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename) == file]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        at = "" if line is None else f" in line {line}"
        text = str(error).strip().split("\n")[0]
        raise ConfigError(f"model.function: {what} of {file} failed{at}: {type(error).__name__}: {text}") from error

"""`[model]`: a loss per row, parameters to start from, and whether a row is classified correctly."""

import dataclasses
import importlib.util
import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import models
from fedspam._internal import checks
from fedspam._internal.nearest import did_you_mean
from fedspam._internal.trees import Params
from fedspam.app.config import ConfigError, naming, schema
from fedspam.app.config.schema import name_of
from fedspam.app.experiment.data import LoadedExamples, existing
from fedspam.clients import Loss
from fedspam.methods import METHODS
from fedspam.simulation.metrics import METRICS

PIXELS = 28 * 28  # of the images that the CNNs take


@dataclass(frozen=True)
class Learner:
    """A model on some data."""

    loss: Loss  # (params, rows) -> one loss per row
    start: Params
    correct: Loss | None  # (params, rows) -> whether each row is classified correctly; None where that is not known
    predict: Callable[..., Any] | None = None  # (params, rows) -> the class of each row, of a file of the user's
    scores: Callable[..., Any] | None = None  # (params, features) -> the scores of each row

    def metrics(self, data: LoadedExamples) -> list[str]:
        """The metrics that follow from the scores of all test rows."""
        if data.test is None or self.scores is None:
            return []
        known = (name for name, metric in METRICS.items() if name != "accuracy")  # a mean over rows
        if not data.classes:
            return [name for name in known if METRICS[name].numeric]
        ranked = self.predict is None  # a function that predicts classes has no scores to rank
        return [name for name in known if METRICS[name].decided or (ranked and METRICS[name].scored)]


def learner(model: Any, data: LoadedExamples, *, seed: int, precision: str) -> Learner:
    """The model that `[model]` describes, on this data."""
    if isinstance(model, schema.Function):
        return _own(model.function, data, seed)
    name, inputs = name_of(model), math.prod(data.shape)
    if isinstance(model, schema.LinearSection):
        if data.classes:
            raise ConfigError("model.name = 'linear' needs labels that are numbers; set data.task = 'numbers'")
        start = {"weights": jnp.zeros(inputs)} | ({"bias": jnp.zeros(())} if model.bias else {})
        loss = models.SquaredLoss(model.regularization)
        return Learner(loss, start, None, scores=loss.scores)
    if not data.classes:
        raise ConfigError(f"model.name = {name!r} predicts classes, but data.task is 'numbers'; use 'linear'")
    if name == "logistic" and data.classes != 2:
        raise ConfigError(f"model.name = 'logistic' separates two classes, the data has {data.classes}; use 'softmax'")
    if name.endswith("_cnn") and inputs != PIXELS:
        raise ConfigError(f"model.name = {name!r} needs images of 28 x 28, the data has {inputs} features; use 'mlp'")
    made = CLASSIFIERS[name](model, inputs, data.classes, precision)
    made = dataclasses.replace(made, class_weights=_class_weights(model.class_weights, data))
    shapes = jax.tree.leaves(jax.eval_shape(lambda: made.init(seed)))
    with naming("model"):
        checks.memory("the parameters", sum(leaf.size * leaf.dtype.itemsize for leaf in shapes), "shrink it")
    return Learner(made.loss, made.init(seed), made.correct, scores=made.logits)


CLASSIFIERS: Mapping[str, Callable[[Any, int, int, str], Any]] = {
    "logistic": lambda model, inputs, classes, dtype: models.logistic_regression(
        inputs, bias=model.bias, regularization=model.regularization, dtype=dtype
    ),
    "softmax": lambda model, inputs, classes, dtype: models.softmax_regression(
        inputs, classes, bias=model.bias, regularization=model.regularization, dtype=dtype
    ),
    "mlp": lambda model, inputs, classes, dtype: models.mlp(inputs, classes, hidden=tuple(model.hidden), dtype=dtype),
    "femnist_cnn": lambda model, inputs, classes, dtype: models.femnist_cnn(classes, dtype=dtype),
    "leaf_cnn": lambda model, inputs, classes, dtype: models.leaf_cnn(classes, hidden=model.hidden, dtype=dtype),
}


def _class_weights(given: Any, data: LoadedExamples) -> tuple[float, ...]:
    """The weights of the classes, in their order; () where all are 1."""
    if given is None:
        return ()
    if given == "balanced":
        with naming("model.class_weights"):
            return models.balanced_weights(np.bincount(data.train.examples["label"], minlength=data.classes).tolist())
    for name in given:
        if name not in data.names:
            hint = did_you_mean(name, data.names, f"there are {', '.join(data.names[:10])}")
            raise ConfigError(f"model.class_weights: {name!r} is not a class of the data; {hint}")
    return tuple(float(given.get(name, 1.0)) for name in data.names)


# --- a loss of the user's own ---


def _own(place: str, data: LoadedExamples, seed: int) -> Learner:
    """The named function of a file, and the file's functions `start` and `predict`, if it has them."""
    path, _, name = place.rpartition(":")
    module = load(path)
    loss = getattr(module, name, None)
    if not callable(loss):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        hint = did_you_mean(name, functions, f"it has {', '.join(functions) or 'none'}")
        raise ConfigError(f"model.function = {place!r}: the file has no function {name!r}; {hint}")
    rows = {key: jnp.asarray(column[:2]) for key, column in data.train.examples.items()}
    begin, predict = getattr(module, "start", None), getattr(module, "predict", None)
    with _reporting(place, "start"):
        start = jnp.zeros(data.shape) if begin is None else begin(rows, jax.random.key(seed))
    with _reporting(place, name):
        losses = jax.eval_shape(loss, start, rows)
    count = len(rows["label"])
    if getattr(losses, "shape", None) != (count,):
        found = getattr(losses, "shape", type(losses).__name__)
        raise ConfigError(
            f"model.function = {place!r}: {name}(params, rows) returned {found} for {count} rows; it must return one "
            "loss per row: remove the mean over rows"
        )
    if predict is None or not data.classes:
        return Learner(loss, start, None)
    with _reporting(place, "predict"):
        classes = jax.eval_shape(predict, start, {"features": rows["features"]})  # new rows have no label
    if getattr(classes, "shape", None) != (count,):
        raise ConfigError(f"model.function = {place!r}: predict(params, rows) must return one class per row")
    right = lambda params, rows: (predict(params, rows) == rows["label"]).astype(jnp.float32)
    chosen = lambda params, features: jax.nn.one_hot(predict(params, {"features": features}), data.classes)
    return Learner(loss, start, right, predict, chosen)


def load_methods(path: str | Path) -> list[str]:
    """Run a user's Python file that registers methods, and return their keys."""
    before = set(METHODS)
    load(path, "--method-file")
    found = [key for key in METHODS if key not in before]
    if not found:
        raise ConfigError(f"--method-file {path} registers no method; end it with register(key, Entry(...))")
    return found


def load(path: str | Path, what: str = "model.function") -> Any:
    """A user's Python file as a module. It is run: only for files that the user names for it."""
    path = existing(f"{what}: {path}", str(path))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _reporting(str(path), "the code"):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _reporting(place: str, what: str) -> Iterator[None]:
    """Report what a user's code raises, with the line of their file that raised it."""
    try:
        yield
    except (Exception, SystemExit) as error:  # sys.exit(0) would end the command as if all were well
        file = Path(place.rpartition(":")[0] or place)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename) == file]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        at = "" if line is None else f" in line {line}"
        text = str(error).strip().split("\n")[0]
        raise ConfigError(f"model.function: {what} of {file} failed{at}: {type(error).__name__}: {text}") from error

"""How good a trained model is on the test rows: in all, for each class, and for every client."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from fedspam.app.experiment.data import LoadedExamples
from fedspam.datasets import FederatedData
from fedspam.models.trained import Threshold, TrainedModel, shares_of
from fedspam.simulation import metrics
from fedspam.simulation.metrics import METRICS

# the scores of a run, which summary.json has, and what readers call them
LABELS: Mapping[str, str] = {
    **{name: METRICS[name].label for name in ("balanced_accuracy", "f1", "rare_f1", "auc")},
    "calibration_error": "calibration error",
    "rmse": "test RMSE",
    "mae": "test MAE",
    "r2": "R²",
}
BINS = 10  # of the calibration error
MEAN = 3  # the column of the accuracy, or of the error, in the table of clients


def scores_on_test(trained: TrainedModel, rows: LoadedExamples) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The metrics of the test rows, and a table with one row per client; both empty without test rows.

    The model is the one that was read back from its file, so the numbers are those of the file.
    """
    if rows.test is None or trained.scores is None:
        return {}, []
    scores = trained.raw_scores(rows.test.examples["features"])
    labels = np.asarray(rows.test.examples["label"])
    if trained.numeric:
        return regression(labels, scores), _by_client(rows, "mean_square", (labels - scores) ** 2)
    predicted = trained.decided(scores)
    ranked = None if trained.facts.get("predicts") == "classes" else scores
    found = classification(labels, predicted, ranked, rows.names)
    if trained.threshold is not None:
        least = trained.threshold
        found["threshold"] = {"class": rows.names[least.number], "probability": least.probability}
    clients = _by_client(rows, "accuracy", predicted == labels)
    for client, part in zip(clients, _parts(rows, np.arange(len(labels))), strict=True):
        own = classification(labels[part], predicted[part], None, rows.names) if len(part) else {}
        client["mean_f1"] = own.get("f1")
    return found, clients


def chosen_threshold(trained: TrainedModel, rows: FederatedData, asked: float | str) -> Threshold:
    """A given probability of the rarer of two classes, or the one with the best metric of these rows.

    Arguments:
        trained: the model.
        rows: of the training. Test rows must have no part in the choice.
        asked: the probability, or the name of a metric that follows from the predicted classes.
    """
    labels = np.asarray(rows.examples["label"])
    counts = np.bincount(labels, minlength=2)
    number = int(counts[1] <= counts[0])
    if not isinstance(asked, str):
        return Threshold(number, asked)
    shares = shares_of(trained.raw_scores(rows.examples["features"]))[:, number]
    values, codes = np.unique(shares, return_inverse=True)
    # how many rows of the class, and of the other, are predicted as the class at each value and above
    hits, false = (
        np.cumsum(np.bincount(codes[kind], minlength=len(values))[::-1])[::-1]
        for kind in (labels == number, labels != number)
    )
    own, other = counts[number], counts[1 - number]
    table = np.stack([np.stack([hits, own - hits], -1), np.stack([false, other - false], -1)], -2)
    table = table if number == 0 else table[:, ::-1, ::-1]
    decided = METRICS[asked].decided
    assert decided is not None
    with jax.enable_x64(True):
        best = int(np.nanargmax(decided(jnp.asarray(table))))
    return Threshold(number, float((values[best] + (values[best - 1] if best else 0.0)) / 2))


def regression(labels: Float[np.ndarray, " rows"], predicted: Float[np.ndarray, " rows"]) -> dict[str, Any]:
    """The root mean square error, the mean absolute error and R².

    >>> regression(np.array([1.0, 3.0]), np.array([1.0, 2.0]))
    {'rmse': 0.7071067811865476, 'mae': 0.5, 'r2': 0.5}
    """
    errors = np.asarray(labels, np.float64) - predicted
    spread = float(np.sum((labels - np.mean(labels)) ** 2))
    r2 = 1 - float(np.sum(errors**2)) / spread if spread > 0 else None
    with jax.enable_x64(True):
        rmse = float(METRICS["rmse"](np.asarray(labels, np.float64), np.asarray(predicted, np.float64)))
    return {"rmse": rmse, "mae": float(np.mean(np.abs(errors))), "r2": r2}


def classification(
    labels: Integer[np.ndarray, " rows"],
    predicted: Integer[np.ndarray, " rows"],
    scores: Float[np.ndarray, "rows ..."] | None,
    names: Sequence[str],
) -> dict[str, Any]:
    """The metrics of classes over all rows together, the same for each class, calibration error and confusion matrix.

    Arguments:
        labels: the classes as numbers.
        predicted: the predicted ones.
        scores: of the model; None where it gives none.
        names: of the classes. A class without rows has no part in means over classes.

    >>> scores = np.log([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7], [0.2, 0.8]])
    >>> found = classification(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), scores, ["no", "yes"])
    >>> found["confusion"], round(found["f1"], 3), found["auc"], round(found["calibration_error"], 3)
    ([[1, 1], [0, 2]], 0.733, 1.0, 0.3)
    >>> {name: round(value, 3) for name, value in found["per_class"]["yes"].items()}
    {'rows': 2, 'share': 0.5, 'precision': 0.667, 'recall': 1.0, 'f1': 0.8}
    """
    with jax.enable_x64(True):
        counts = metrics.confusion(labels, predicted, len(names))
        found = {name: _known(metric.decided(counts)) for name, metric in METRICS.items() if metric.decided}
        if scores is not None:
            wide = np.asarray(scores, np.float64)
            found |= {name: _known(metric.scored(labels, wide)) for name, metric in METRICS.items() if metric.scored}
            found["calibration_error"] = calibration_error(shares_of(wide), labels)
        rows = np.asarray(counts.sum(1))
        each = zip(metrics.precisions(counts), metrics.recalls(counts), metrics.f1_scores(counts), strict=True)
    per_class = {
        name: {"rows": int(number), "share": float(number / len(labels))}
        | dict(zip(("precision", "recall", "f1"), map(_known, values), strict=True))
        for name, number, values in zip(names, rows, each, strict=True)
    }
    return found | {"classes": list(names), "per_class": per_class, "confusion": np.asarray(counts).tolist()}


def _known(value: Any) -> float | None:
    """A number; None where it is not defined, as the precision of a class that is never predicted."""
    return None if np.isnan(value) else float(value)


def calibration_error(shares: Float[np.ndarray, "rows classes"], labels: Integer[np.ndarray, " rows"]) -> float:
    """The mean distance between the probability of the predicted class and how often it is right, over ten bins."""
    sure, right = shares.max(axis=1), shares.argmax(axis=1) == labels
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    gaps = [abs(np.sum(sure[bins == number]) - np.sum(right[bins == number])) for number in range(BINS)]
    return float(np.sum(gaps) / len(labels))


def _by_client(rows: LoadedExamples, name: str, values: np.ndarray) -> list[dict[str, Any]]:
    """For every client its numbers of rows and the mean of a value over its test rows."""
    mean = lambda part: float(part.mean()) if len(part) else None
    own = zip(rows.train.clients, rows.train.sizes, _parts(rows, np.asarray(values, np.float64)), strict=True)
    return [
        {"client": client, "train_rows": int(train), "test_rows": len(part), name: mean(part)}
        for client, train, part in own
    ]


def _parts(rows: LoadedExamples, values: np.ndarray) -> list[np.ndarray]:
    """The values of the test rows of each client."""
    assert rows.test is not None
    return np.split(values, np.cumsum(rows.test.sizes)[:-1])


def worst_clients(clients: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The clients with the lowest accuracy, or the largest error."""
    name = list(clients[0])[MEAN] if clients else ""
    known = [row for row in clients if row[name] is not None]
    return sorted(known, key=lambda row: row[name], reverse=name != "accuracy")[:count]

"""How good a trained model is on the test rows: accuracy, F1, AUC, calibration, confusion, and every client's share."""

from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from fedspam.app.experiment.data import LoadedExamples
from fedspam.models.trained import TrainedModel

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
    predicted = np.argmax(scores, axis=-1) if scores.ndim > 1 else (scores > 0).astype(int)
    shares = None if trained.facts.get("predicts") == "classes" else trained.shares(scores)
    found = classification(labels, predicted, shares, rows.classes) | {"classes": list(rows.names)}
    clients = _by_client(rows, "accuracy", predicted == labels)
    for client, part in zip(clients, _parts(rows, np.arange(len(labels))), strict=True):
        client["f1"] = classification(labels[part], predicted[part], None, rows.classes)["f1"] if len(part) else None
    return found, clients


def regression(labels: Float[np.ndarray, " rows"], predicted: Float[np.ndarray, " rows"]) -> dict[str, Any]:
    """The root mean square error, the mean absolute error and R².

    >>> regression(np.array([1.0, 3.0]), np.array([1.0, 2.0]))
    {'rmse': 0.7071067811865476, 'mae': 0.5, 'r2': 0.5}
    """
    errors = np.asarray(labels, np.float64) - predicted
    spread = float(np.sum((labels - np.mean(labels)) ** 2))
    r2 = 1 - float(np.sum(errors**2)) / spread if spread > 0 else None
    return {"rmse": float(np.sqrt(np.mean(errors**2))), "mae": float(np.mean(np.abs(errors))), "r2": r2}


def classification(
    labels: Integer[np.ndarray, " rows"],
    predicted: Integer[np.ndarray, " rows"],
    shares: Float[np.ndarray, "rows classes"] | None,
    classes: int,
) -> dict[str, Any]:
    """F1 (mean over classes), AUC (of each class against the others, mean), calibration error, confusion matrix.

    Arguments:
        labels: the classes as numbers.
        predicted: the predicted ones.
        shares: probabilities; None where the model gives none.
        classes: how many there are. A class without test rows has no part in the means.

    >>> shares = np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7], [0.2, 0.8]])
    >>> found = classification(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), shares, 2)
    >>> found["confusion"], round(found["f1"], 3), found["auc"], round(found["calibration_error"], 3)
    ([[1, 1], [0, 2]], 0.733, 1.0, 0.3)
    """
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (labels, predicted), 1)
    right = np.diag(confusion)
    rows, columns = confusion.sum(1), confusion.sum(0)
    there = rows > 0
    f1 = 2 * right[there] / (rows + columns)[there]
    found: dict[str, Any] = {"f1": float(f1.mean())}
    if shares is not None:
        curves = [area_under_curve(shares[:, number], labels == number) for number in np.flatnonzero(there)]
        known = [area for area in curves if area is not None]
        found["auc"] = float(np.mean(known)) if known else None
        found["calibration_error"] = calibration_error(shares, labels)
    return found | {"confusion": confusion.tolist()}


def area_under_curve(scores: Float[np.ndarray, " rows"], positive: np.ndarray) -> float | None:
    """The chance that a positive row scores higher than another; ties count half. None if all rows are alike.

    >>> area_under_curve(np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True]))
    0.875
    """
    count = int(positive.sum())
    if count in (0, len(positive)):
        return None
    _, place, ties = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]  # from 1 on, ties share their mean
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(positive) - count)))


def calibration_error(shares: Float[np.ndarray, "rows classes"], labels: Integer[np.ndarray, " rows"]) -> float:
    """The mean distance between the probability of the predicted class and how often it is right, over ten bins."""
    sure, right = shares.max(axis=1), shares.argmax(axis=1) == labels
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    gaps = [abs(np.sum(sure[bins == number]) - np.sum(right[bins == number])) for number in range(BINS)]
    return float(np.sum(gaps) / len(labels))


def _by_client(rows: LoadedExamples, name: str, values: np.ndarray) -> list[dict[str, Any]]:
    """For every client its numbers of rows and the mean of a value over its test rows."""
    parts = _parts(rows, np.asarray(values, np.float64))
    return [
        {
            "client": client,
            "train_rows": int(train),
            "test_rows": len(part),
            name: float(part.mean()) if len(part) else None,
        }
        for client, train, part in zip(rows.train.clients, rows.train.sizes, parts, strict=True)
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

"""Metrics of a model on labeled rows: their names, their range, and how they follow from scores of all rows.

An accuracy is a mean over rows, so that clients can send sums. An F1 and a balanced accuracy follow from the confusion
matrix, which is a sum over clients, too. An AUC compares rows of different clients: it needs the scores of all of them.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Integer

Confusion = Integer[Array, "*cuts classes classes"]  # how many rows of each class are predicted as which
Labels = Integer[Array, " rows"] | Float[Array, " rows"]
Scores = Float[Array, "rows ..."]  # one per class; or one alone: a prediction, or that of class 1 against class 0


class Metric(NamedTuple):
    """What a metric is called and needs."""

    label: str
    rising: bool = False  # whether more is better
    least: float = -math.inf  # that it can be
    most: float = math.inf
    decided: Callable[[Confusion], Any] | None = None  # from the predicted classes
    scored: Callable[[Any, Any], Any] | None = None  # from labels and the scores of classes
    numeric: Callable[[Any, Any], Any] | None = None  # from labels and predicted numbers

    def check(self, name: str, value: float) -> None:
        """Refuse a target that the metric cannot have."""
        if not self.least <= value <= self.most:
            range_of = "between 0 and 1" if self.most == 1 else f"at least {self.least:g}"
            hint = f"; for {value:g} percent give {value / 100:g}" if 1 < value <= 100 else ""
            raise ValueError(f"{name} is never {value:g}, since it is {range_of}{hint}")

    def __call__(self, labels: Any, scores: Any) -> Any:
        """The metric of scores."""
        of = self.scored or self.numeric
        if of is not None:
            return of(labels, scores)
        assert self.decided is not None, "the clients measure it"
        classes = scores.shape[1] if scores.ndim > 1 else 2
        return self.decided(confusion(labels, decided(scores), classes))


def decided(scores: Any) -> Integer[Array, " rows"]:
    """The class with the highest score; class 1 where a single score is positive."""
    return jnp.argmax(scores, axis=-1) if scores.ndim > 1 else (jnp.asarray(scores) > 0).astype(jnp.int32)


def confusion(labels: Any, predicted: Any, classes: int) -> Confusion:
    """How many rows of each class (first axis) are predicted as which (second axis)."""
    return jnp.zeros((classes, classes), jnp.int32).at[jnp.asarray(labels), jnp.asarray(predicted)].add(1)


def accuracy(counts: Confusion) -> Float[Array, "*cuts"]:
    """The share of rows that are predicted right."""
    return _right(counts).sum(-1) / counts.sum((-2, -1))


def recalls(counts: Confusion) -> Float[Array, "*cuts classes"]:
    """For each class the share of its rows that are predicted right; NaN for one without rows."""
    return _right(counts) / counts.sum(-1)


def precisions(counts: Confusion) -> Float[Array, "*cuts classes"]:
    """For each class how often it is right where it is predicted; NaN for one that never is."""
    return _right(counts) / counts.sum(-2)


def f1_scores(counts: Confusion) -> Float[Array, "*cuts classes"]:
    """For each class the harmonic mean of its precision and recall; NaN for one without rows."""
    return jnp.where(counts.sum(-1) > 0, 2 * _right(counts) / (counts.sum(-1) + counts.sum(-2)), jnp.nan)


def rare_f1(counts: Confusion) -> Float[Array, "*cuts"]:
    """The F1 of the class with the fewest rows; of equals, the last."""
    rows = counts.sum(-1)
    rows = jnp.where(rows > 0, rows, jnp.iinfo(rows.dtype).max)
    last = rows.shape[-1] - 1 - jnp.argmin(rows[..., ::-1], axis=-1)
    return jnp.take_along_axis(f1_scores(counts), last[..., None], axis=-1)[..., 0]


def auc(labels: Labels, scores: Scores) -> Float[Array, ""]:
    """The chance that a row of a class scores higher than one of another, ties count half; the mean over classes.

    A class without rows has no part in it. The score of a class is compared as its probability, of which the log odds
    have the order without the rounding near 1.

    >>> float(auc(jnp.array([0, 0, 1, 1]), jnp.array([0.1, 0.4, 0.4, 0.9])))
    0.875
    """
    labels, scores = jnp.asarray(labels), jnp.asarray(scores)
    if scores.ndim == 1:
        return _area(scores, labels == 1)
    if scores.shape[1] == 2:
        return _area(scores[:, 1] - scores[:, 0], labels == 1)

    def one(number: Any) -> Any:
        others = jnp.where(jnp.arange(scores.shape[1]) == number, -jnp.inf, scores)
        return _area(scores[:, number] - jax.nn.logsumexp(others, axis=1), labels == number)

    return jnp.nanmean(lax.map(one, jnp.arange(scores.shape[1])))


def rmse(labels: Labels, predicted: Scores) -> Float[Array, ""]:
    """The root of the mean square error."""
    return jnp.sqrt(jnp.mean((jnp.asarray(labels) - predicted) ** 2))


def _mean(classes: Any) -> Any:
    """The mean over the classes that have rows."""
    return jnp.nanmean(classes, axis=-1)


def _right(counts: Confusion) -> Any:
    return jnp.diagonal(counts, axis1=-2, axis2=-1)


def _area(scores: Any, positive: Any) -> Any:
    """The area under the curve of one class against the others; NaN if all rows are alike."""
    order = jnp.sort(scores)
    negatives = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(~positive[jnp.argsort(scores)], dtype=jnp.int32)])
    below, upto = (negatives[jnp.searchsorted(order, scores, side=side)] for side in ("left", "right"))
    total = jnp.result_type(float)
    beaten = jnp.where(positive, (below + upto) / 2, 0).astype(total) / (~positive).sum()
    return beaten.sum() / positive.sum()


METRICS: Mapping[str, Metric] = {
    "loss": Metric("loss"),
    "gradient": Metric("relative gradient norm", least=0),
    "accuracy": Metric("accuracy", True, 0, 1, decided=accuracy),
    "balanced_accuracy": Metric("balanced accuracy", True, 0, 1, decided=lambda counts: _mean(recalls(counts))),
    "f1": Metric("F1, mean of classes", True, 0, 1, decided=lambda counts: _mean(f1_scores(counts))),
    "rare_f1": Metric("F1 of the rarest class", True, 0, 1, decided=rare_f1),
    "auc": Metric("AUC", True, 0, 1, scored=auc),
    "rmse": Metric("RMSE", least=0, numeric=rmse),
}

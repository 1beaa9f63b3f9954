"""Scores of parameters on held-out data, over all examples and over clients.

An `Evaluation` is a probe for `simulate`: it runs inside the compiled rounds, and a `Target` can stop a run at it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Integer, PyTree

from fedspam._internal import checks
from fedspam._internal.trees import Params, static, struct
from fedspam.simulation.metrics import METRICS

Score = Callable[[Params, Any], Any]
POOLED = tuple(name for name, metric in METRICS.items() if metric.decided or metric.scored or metric.numeric)


class Examples(Protocol):
    """The examples of all clients, concatenated, and how many each client has; zero is allowed."""

    @property
    def examples(self) -> Any: ...

    @property
    def sizes(self) -> Any: ...


@struct
class Evaluation:
    r"""A score over examples and over clients, and its quantiles over clients. Build it with `Evaluation.of`.

    For the score ``accuracy`` it answers

    - ``accuracy``: the mean over all examples,
    - ``accuracy.clients``: the mean over clients of each client's mean,
    - ``accuracy.q10``, ...: the quantiles over clients of each client's mean; a tenth of them do worse than q10.

    Clients without examples do not count. Examples are worked through in blocks, so that memory does not grow with
    their number, and no client is padded.

    >>> import jax.numpy as jnp
    >>> from fedspam.datasets import FederatedData
    >>> data = FederatedData.of([("a", {"x": [1.0, 3.0]}), ("b", {"x": [-1.0]}), ("c", {"x": [2.0]})])
    >>> right = lambda params, rows: {"accuracy": params * rows["x"] > 0}
    >>> evaluation = Evaluation.of(data, right, quantiles=(0.5,))
    >>> {name: round(float(value), 3) for name, value in evaluation(jnp.array(1.0)).items()}
    {'accuracy': 0.75, 'accuracy.clients': 0.667, 'accuracy.q50': 1.0}

    With `scores` and `metrics` it also answers what is not a mean over examples, such as ``auc``.
    """

    blocks: PyTree[Array]  # examples in blocks of equal size, the last one padded
    owner: Integer[Array, "blocks rows"]  # the client of each example; padding belongs to no client
    score: Score = static()
    clients: int = static()
    rows: int = static()
    quantiles: tuple[float, ...] = static()
    scores: Score | None = static(default=None)
    metrics: tuple[str, ...] = static(default=())

    @classmethod
    def of(
        cls, data: Examples, score: Score, *, quantiles: tuple[float, ...] = (0.1, 0.5, 0.9), block: int = 256,
        scores: Score | None = None, metrics: tuple[str, ...] = (),
    ) -> "Evaluation":  # fmt: skip
        """From held-out data, such as that of `FederatedData.hold_out_clients` and its `hold_out_examples`.

        Arguments:
            data: its examples and sizes.
            score: (params, rows) -> a number for each row, or a dict of such; ``model.correct`` gives the accuracy of a
                model. A row with many labels counts as often as it has labels that are not negative.
            quantiles: which ones, from 0 to 1.
            block: examples that are looked at together.
            scores: (params, features) -> the scores of each row, such as ``model.logits``, for the metrics.
            metrics: names in `fedspam.simulation.metrics.METRICS` that need the scores of all rows together: 'auc',
                'f1', 'rare_f1', 'balanced_accuracy', 'rmse'.
        """
        checks.whole("block", block, 1)
        for metric in metrics:
            checks.one_of("metric", metric, POOLED)
        if metrics and scores is None:
            raise ValueError(f"metrics = {metrics!r} need the scores of all rows; give scores=model.logits")
        for quantile in quantiles:
            checks.between("quantile", quantile, 0, 1)
        sizes = np.asarray(data.sizes)
        rows = int(sizes.sum())
        if rows == 0:
            raise ValueError("there is nothing to evaluate on: no client has examples; hold out a larger share")
        block = min(block, rows)
        filling = -rows % block

        def fill(column: Any) -> Array:
            column = np.asarray(column)
            whole = np.concatenate([column, np.repeat(column[-1:], filling, axis=0)])
            return jnp.asarray(whole.reshape(-1, block, *column.shape[1:]))

        owner = np.concatenate([np.repeat(np.arange(len(sizes)), sizes), np.full(filling, len(sizes))])
        blocks = jax.tree.map(fill, dict(data.examples) if isinstance(data.examples, Mapping) else data.examples)
        owner = jnp.asarray(owner.reshape(-1, block), jnp.int32)
        return cls(blocks, owner, score, len(sizes), rows, tuple(quantiles), scores, metrics)

    def __call__(self, params: Params) -> dict[str, Float[Array, ""]]:
        totals, counts = self._sums(params)
        means = {name: value for score, total in totals.items() for name, value in self._facts(score, total, counts)}
        if self.scores is None or not self.metrics:
            return means
        found = lax.map(lambda rows: self.scores(params, rows["features"]), self.blocks)  # type: ignore[misc]
        whole = lambda array: array.reshape(-1, *array.shape[2:])[: self.rows]
        labels, scores = whole(self.blocks["label"]), whole(found)
        return {**means, **{name: METRICS[name](labels, scores) for name in self.metrics}}

    def per_client(self, params: Params) -> dict[str, Float[Array, " clients"]]:
        """Each client's mean of each score; NaN for a client without examples."""
        return self._means(params, own=False)

    def personal(self, models: Params) -> dict[str, Float[Array, " clients"]]:
        """As `per_client`, each client with its own parameters, as `ditto` and `personal_models` have them.

        Arguments:
            models: the parameters of all clients, stacked: the first axis of every array is that of the clients.
        """
        wrong = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(models)} - {(self.clients,)}
        if wrong:
            raise ValueError(
                f"the evaluation has {self.clients} clients, but the models have a first axis of {sorted(wrong)}; "
                "stack one set of parameters per client, as run.memory of ditto"
            )
        return self._means(models, own=True)

    def _means(self, params: Params, own: bool) -> dict[str, Float[Array, " clients"]]:
        """Each client's mean of each score, where `own` says whether each has its own parameters."""
        totals, counts = jax.jit(partial(Evaluation._sums, own=own))(self, params)
        return {score: jnp.where(counts > 0, total / counts, jnp.nan) for score, total in totals.items()}

    def _scores(self, params: Params, rows: Any, owner: Integer[Array, " rows"], own: bool) -> Any:
        if not own:
            return self.score(params, rows)

        def one(row: Any, owner: Integer[Array, ""]) -> Any:
            its = jax.tree.map(lambda leaf: leaf[jnp.minimum(owner, self.clients - 1)], params)
            return jax.tree.map(lambda score: score[0], self.score(its, jax.tree.map(lambda leaf: leaf[None], row)))

        return jax.vmap(one)(rows, owner)

    def _sums(self, params: Params, own: bool = False) -> tuple[dict[str, Any], Any]:
        """The sums of the scores of each client, and its number of examples."""

        def one(part: Any) -> tuple[dict[str, Any], Any]:
            rows, owner = part
            scores = self._scores(params, rows, owner, own)
            scores = dict(scores) if isinstance(scores, Mapping) else {"accuracy": scores}
            weight = _labels(rows, owner.shape[0])
            total = lambda values: jax.ops.segment_sum(values * weight, owner, self.clients + 1)
            return {name: total(values) for name, values in scores.items()}, total(jnp.ones_like(weight))

        def add(sums: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, one(part)), None

        parts = (self.blocks, self.owner)
        shapes = jax.eval_shape(one, jax.tree.map(lambda leaf: leaf[0], parts))
        start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        sums, _ = lax.scan(add, start, parts)
        return jax.tree.map(lambda leaf: leaf[: self.clients], sums)

    def _facts(self, score: str, totals: Any, counts: Any) -> Any:
        there = counts > 0
        means = totals / jnp.maximum(counts, 1)
        yield score, jnp.sum(totals) / jnp.sum(counts)
        yield f"{score}.clients", jnp.sum(jnp.where(there, means, 0)) / jnp.sum(there)
        known = jnp.where(there, means, jnp.nan)
        for quantile in self.quantiles:
            yield f"{score}.q{100 * quantile:g}", jnp.nanquantile(known, quantile)


@struct
class Named:
    """Several probes as one: ``Named({"seen": a, "unseen": b})`` answers ``seen.accuracy``, ``unseen.accuracy``, ..."""

    probes: Mapping[str, Any]

    def __call__(self, params: Params) -> dict[str, Any]:
        return {f"{name}.{fact}": value for name, probe in self.probes.items() for fact, value in probe(params).items()}


def _labels(rows: Any, count: int) -> Any:
    """The weight of each row: 1, or its number of labels that are not padding."""
    label = rows.get("label") if isinstance(rows, Mapping) else None
    if label is None or label.ndim == 1:
        return jnp.ones(count)
    return jnp.sum(label >= 0, axis=tuple(range(1, label.ndim))).astype(jnp.result_type(float))

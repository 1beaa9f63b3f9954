"""A model: parameters from a key, scores from parameters and inputs, and one loss per row."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, PyTree

from fedspam._internal import checks, prng, trees
from fedspam._internal.trees import Key, Params
from fedspam.clients import joined, parted
from fedspam.models.images import Images
from fedspam.models.policies import Normalization, check_policy, is_variance, mean_of, of_moments
from fedspam.problems import cross_entropy


@runtime_checkable
class Network(Protocol):
    """An architecture: a frozen dataclass of its sizes, so that equal settings compile once."""

    def init(self, key: Key) -> Params: ...

    def __call__(self, params: Params, inputs: Any) -> Float[Array, "..."]: ...


@runtime_checkable
class StatefulNetwork(Protocol):
    """A network that has running statistics, or that draws in training: batch normalization, dropout, augmentation.

    Statistics are a pytree whose leaves come in pairs: their paths differ only in ``mean`` and ``var`` in the last
    name, such as ``norm.mean`` and ``norm.var`` or ``bn.running_mean`` and ``bn.running_var``. Other leaves, such as
    counters, are allowed.
    """

    def init(self, key: Key) -> Params: ...

    def statistics(self) -> PyTree[Array]:
        """The running statistics before training; {} if there are none."""
        ...

    def apply(
        self,
        params: Params,
        statistics: PyTree[Array] | None,
        inputs: Any,
        *,
        key: Key | None = None,
        kept: Bool[Array, " rows"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "rows ..."], PyTree[Array]]:
        """The scores, and the running statistics after this batch.

        Arguments:
            params: the parameters, in the precision of the model.
            statistics: the running statistics, never below float32. With ``train=True`` they may be None: then the new
                statistics are those of this batch alone, with the variance divided by n, not by n - 1.
            inputs: the rows.
            key: of dropout and augmentation; equal keys draw equally. None switches both off.
            kept: which rows are real. The others are padding, and must not count in the statistics of the batch. None
                if all are real.
            train: whether layers normalize by the statistics of the batch. Otherwise they use the running ones, which
                are returned as they were.
        """
        ...

    def norm_params(self) -> tuple[str, ...]:
        """The names of the affine parameters of normalization layers, as `fedspam` names leaves: ``norm.scale``."""
        ...


@runtime_checkable
class GroupNormNetwork(Protocol):
    """A network whose batch normalization can be replaced by group normalization, which needs no statistics."""

    def with_group_norm(self) -> Network | StatefulNetwork:
        """The same network with group normalization in place of batch normalization: ``statistics()`` is empty."""
        ...


@dataclass(frozen=True)
class Model:
    r"""A network, the precision it computes in, and its loss: one number per row, for `Ragged.of`.

    Rows are dicts: ``features`` (whatever the network takes; bytes are divided by 255) and ``label``, whole numbers
    from 0 on. If a row has many labels (every next character of a text), its loss is their mean, and negative labels
    are padding.

    Arguments:
        network: the architecture.
        dtype: of the computation: 'float32', 'bfloat16' or 'float64'. With bfloat16 the parameters, their gradients and
            the loss stay float32, because variance reduction takes differences that bfloat16 cannot resolve.
        regularization: :math:`\lambda` of :math:`\tfrac\lambda2\|x\|^2`, added to every row's loss.
        class_weights: by which the loss of a row is multiplied, one for each class; () for 1. See `balanced_weights`.
        normalization: what happens to running statistics, where the network has them.
        images: what a client does to its images before the network sees them.

    >>> import jax, jax.numpy as jnp
    >>> from fedspam import Ragged
    >>> from fedspam.models import mlp
    >>> model = mlp(4, 3, hidden=(8,))
    >>> rows = {"features": jnp.ones((5, 4)), "label": jnp.zeros(5, jnp.int32)}
    >>> clients = Ragged.of([rows, rows], model.loss, batch=2)
    >>> clients.client(jnp.uint32(0))(model.init(jax.random.key(0))).shape
    ()
    """

    network: Network
    dtype: str = "float32"
    regularization: float = 0.0
    class_weights: tuple[float, ...] = ()
    normalization: Normalization | None = None
    images: Images | None = None

    def __post_init__(self) -> None:
        check_policy(self.normalization, self._statistics)
        for weight in self.class_weights:
            checks.positive("class_weights", weight)
        checks.one_of("dtype", self.dtype, ("float32", "bfloat16", "float64"))
        checks.between("regularization", self.regularization, 0, float("inf"))

    def init(self, key: Key | int) -> Params:
        """Initial parameters: float64 if the model computes in it, else float32; statistics beside them if they travel.

        With a policy that sends running statistics the tree is ``{"params": ..., "statistics": ...}``.
        """
        dtype = jnp.float64 if self.dtype == "float64" else jnp.float32
        params = jax.tree.map(lambda leaf: leaf.astype(dtype), self.network.init(prng.key_of(key)))
        if self.normalization is None or not self.normalization.travels:
            return params
        return joined(params, self._statistics)

    @property
    def _statistics(self) -> dict[str, Array]:
        """The running statistics before training that are averages; counters are not."""
        if not isinstance(self.network, StatefulNetwork):
            return {}
        found = self.network.statistics()
        return {name: leaf for name, leaf in found.items() if jnp.issubdtype(leaf.dtype, jnp.floating)}

    def logits(self, params: Params, inputs: Any) -> Float[Array, "rows ... classes"]:
        """The score of every class, at least in float32; running statistics are used as they are in `params`."""
        own, statistics = parted(params)
        if self._statistics and statistics is None:
            raise ValueError(
                "these parameters have no running statistics beside them, which a prediction needs; give run.params "
                "under 'averaged' or 'recalibrated', or those of fedspam.models.own_statistics under 'local'"
            )
        return self._predicted(own, statistics or {}, inputs)

    def _predicted(self, params: Params, statistics: Mapping[str, Array], inputs: Any) -> Any:
        if not isinstance(self.network, StatefulNetwork):
            return self._wide(self.network(*self._cast(params, inputs)))
        every = {**self.network.statistics(), **statistics}
        return self._wide(self.network.apply(*self._cast(params, inputs, every))[0])

    def _cast(self, params: Params, inputs: Any, *between: Any, key: Key | None = None) -> tuple[Any, ...]:
        """Parameters and inputs in the precision of the model, the inputs as the network takes them."""
        dtype = jnp.dtype(self.dtype)
        inputs = _as_floats(inputs, dtype)
        inputs = inputs if self.images is None else self.images(inputs, key)
        return jax.tree.map(lambda leaf: leaf.astype(dtype), params), *between, inputs

    def _wide(self, scores: Any) -> Any:
        return scores.astype(jnp.promote_types(scores.dtype, jnp.float32))

    @property
    def loss(self) -> "RowLoss":
        """(params, rows) -> one loss per row."""
        return NetworkLoss(self) if self.images or isinstance(self.network, StatefulNetwork) else RowLoss(self)

    def correct(self, params: Params, rows: Mapping[str, Any]) -> Float[Array, " rows"]:
        """For each row 1 if its class is predicted, else 0; if it has many labels, the share of those predicted."""
        scores, labels = self.logits(params, rows["features"]), rows["label"]
        one = scores.ndim == labels.ndim  # one score: the classes are 0 and 1
        right = (scores > 0) == (labels > 0) if one else jnp.argmax(scores, axis=-1) == labels
        return _over_labels(right.astype(jnp.float32), labels)

    def accuracy(self, params: Params, rows: Mapping[str, Any]) -> Float[Array, ""]:
        """The share of rows whose class is predicted."""
        return jnp.mean(self.correct(params, rows))


@dataclass(frozen=True)
class RowLoss:
    """The cross entropy of a model, one number per row. Equal models have equal losses, so nothing compiles twice."""

    model: Model

    def check(self, examples: Any) -> None:
        """Refuse rows of another width than the model takes, and labels that its outputs cannot tell apart."""
        if not isinstance(examples, Mapping) or not {"features", "label"} <= examples.keys():
            return
        features, labels = examples["features"], np.asarray(examples["label"])
        if not isinstance(features, np.ndarray | jax.Array) or not labels.size:
            return
        outputs = _outputs(self.model, tuple(features.shape[1:]), str(features.dtype))
        if len(outputs) == labels.ndim - 1:  # one score per label
            count, least = 2, -1
        else:
            count, least = outputs[-1], -1 if labels.ndim > 1 else 0  # negative labels are padding of many
        if count == 1:
            raise ValueError(
                "the model has one output of shape (rows, 1), so every row has the same class; give it one output per "
                "class, or return scores of shape (rows,) for two classes: outputs.squeeze(-1)"
            )
        if labels.max() >= count or labels.min() < least:
            raise ValueError(
                f"labels reach from {labels.min()} to {labels.max()}, but the model has {count} classes; number the "
                f"classes from 0 on, and give the model {max(int(labels.max()) + 1, 2)} outputs"
            )

    def __call__(self, params: Params, rows: Mapping[str, Any]) -> Float[Array, " rows"]:
        return self._of_scores(self.model.logits(params, rows["features"]), params, rows["label"])

    def _of_scores(self, scores: Any, params: Params, labels: Any) -> Float[Array, " rows"]:
        each = cross_entropy(scores, labels)
        if self.model.class_weights:
            classes = labels > 0 if scores.ndim == labels.ndim else jnp.maximum(labels, 0)
            each *= jnp.asarray(self.model.class_weights, each.dtype)[classes.astype(jnp.int32)]
        losses = _over_labels(each, labels)
        if self.model.regularization:
            squares = jax.tree.reduce(jnp.add, jax.tree.map(lambda leaf: jnp.sum(leaf**2), parted(params)[0]))
            losses += 0.5 * self.model.regularization * squares.astype(losses.dtype)
        return losses


@dataclass(frozen=True)
class NetworkLoss(RowLoss):
    """The loss of a network with batch normalization, dropout or crops: it trains on a batch, with a key and a mask.

    Called as (params, rows), it is the loss of a prediction: dropout off, and running statistics as they are.
    """

    @property
    def moves(self) -> bool:
        policy = self.model.normalization
        return policy is not None and policy.moves and bool(self.model._statistics)

    def of_batch(
        self, params: Params, rows: Mapping[str, Any], *, key: Key | None, kept: Bool[Array, " rows"] | None
    ) -> tuple[Float[Array, " rows"], Params]:
        """One loss per row, and the parameters with the running statistics after this batch."""
        own, statistics = parted(params)
        if not self.moves:
            statistics = None
        scores, new = self._trained(own, statistics, rows["features"], key, kept)
        after = params if statistics is None else joined(own, {name: new[name] for name in statistics})
        return self._of_scores(self.model._wide(scores), own, rows["label"]), after

    def moments(self, params: Params, rows: Mapping[str, Any], *, kept: Bool[Array, " rows"] | None) -> Any:
        """The sums over real rows of means and of squares, in the place of ``mean`` and ``var``."""
        found = self._trained(parted(params)[0], None, rows["features"], None, kept)[1]
        count = rows["label"].shape[0] if kept is None else jnp.sum(kept)
        return {name: count * (leaf + found[mean_of(name)] ** 2 * is_variance(name)) for name, leaf in found.items()}

    def own(self, params: Params, rows: Mapping[str, Any], *, kept: Bool[Array, " rows"] | None) -> Params:
        """The parameters, under 'local' with the statistics of these rows."""
        policy = self.model.normalization
        if policy is None or policy.policy != "local" or not self.model._statistics:
            return params
        count = rows["label"].shape[0] if kept is None else jnp.sum(kept)
        return joined(parted(params)[0], of_moments(count, self.moments(params, rows, kept=kept)))

    def around(self, method: Any) -> Any:
        """The method that keeps statistics where the policy wants them."""
        policy, statistics = self.model.normalization, self.model._statistics
        return policy.around(method, joined((), statistics)) if policy is not None and statistics else method

    def _trained(self, params: Params, statistics: Any, inputs: Any, key: Any, kept: Any) -> tuple[Any, Any]:
        network, own_key = self.model.network, None if key is None else prng.fold_name(key, "images")
        if not isinstance(network, StatefulNetwork):
            return network(*self.model._cast(params, inputs, key=own_key)), {}
        if statistics is not None:
            statistics = {**network.statistics(), **statistics}
        args = self.model._cast(params, inputs, statistics, key=own_key)
        return network.apply(*args, key=key, kept=kept, train=True)


def balanced_weights(counts: Sequence[int]) -> tuple[float, ...]:
    """Class weights with which every class has the same part in the loss, and the rows have a mean of 1.

    Arguments:
        counts: the training rows of each class, summed over clients.

    >>> balanced_weights([90, 10])
    (0.5555555555555556, 5.0)
    """
    if not len(counts) or min(counts) < 1:
        raise ValueError(f"counts = {list(counts)} must have a training row of every class; give weights by hand")
    return tuple(float(sum(counts)) / (len(counts) * int(count)) for count in counts)


@functools.lru_cache(maxsize=64)
def _outputs(model: Model, shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    """The shape of the scores of one row."""
    try:
        params = parted(jax.eval_shape(lambda: model.init(0)))[0]
        found = jax.eval_shape(model._predicted, params, {}, jax.ShapeDtypeStruct((2, *shape), jnp.dtype(dtype)))
    except (TypeError, ValueError, RuntimeError) as error:
        why = str(error).strip().splitlines()[0]
        raise ValueError(
            f"the model cannot take rows of shape {shape} ({why}); make it for as many inputs as the rows have features"
        ) from None
    return tuple(found.shape[1:])


@dataclass(frozen=True)
class SquaredLoss:
    """Least squares with a penalty, one loss per row. Equal settings are equal functions."""

    regularization: float

    def __call__(self, params: Any, rows: Mapping[str, Any]) -> Any:
        prediction = self.scores(params, rows["features"])
        return 0.5 * (prediction - rows["label"]) ** 2 + 0.5 * self.regularization * trees.squared_norm(params)

    def scores(self, params: Any, features: Any) -> Any:
        """The predicted numbers."""
        return features @ params["weights"] + params.get("bias", 0.0)


def _over_labels(values: Float[Array, "rows ..."], labels: Integer[Array, "rows ..."]) -> Float[Array, " rows"]:
    if labels.ndim == 1:
        return values
    axes = tuple(range(1, labels.ndim))
    kept = labels >= 0
    return jnp.sum(jnp.where(kept, values, 0), axes) / jnp.maximum(jnp.sum(kept, axes), 1)


def _as_floats(inputs: Any, dtype: Any) -> Any:
    """Bytes divided by 255, floats in the precision of the model, other whole numbers (tokens) unchanged."""

    def convert(leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        if leaf.dtype == jnp.uint8:
            return leaf.astype(dtype) / 255
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(convert, inputs)

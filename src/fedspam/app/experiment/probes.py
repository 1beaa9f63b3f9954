"""What is measured while an experiment runs: the loss and its gradient over all clients, and the test rows."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from fedspam._internal import trees
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.app.config.schema import Evaluate
from fedspam.app.experiment.data import LoadedExamples
from fedspam.app.experiment.model import Learner
from fedspam.clients import Loss, Ragged
from fedspam.problems import row_weights
from fedspam.simulation.evaluation import Evaluation

LOPSIDED = 0.8  # the share of one class above which an accuracy says little
BLOCK = 1024  # rows per step, so that memory does not grow with their number


@struct
class RowsProbe:
    r"""f and :math:`\|\nabla f(x)\|/\|\nabla f(x_0)\|` over all rows of all clients, and the metrics of a test set."""

    blocks: PyTree[Array]
    weights: Float[Array, "blocks rows"]  # zero for the padding of the last block
    unit: Scalar
    test: Evaluation | None
    loss: Loss = static()

    def __call__(self, params: Params) -> dict[str, Scalar]:
        both = jax.value_and_grad(lambda params, rows, weights: jnp.vdot(weights, self.loss(params, rows)))

        def add(sums: Any, block: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, both(params, *block)), None

        blocks = (self.blocks, self.weights)
        shapes = jax.eval_shape(both, params, *jax.tree.map(lambda leaf: leaf[0], blocks))
        start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        value, gradient = lax.scan(add, start, blocks)[0]
        metrics = {"loss": value, "gradient": trees.norm(gradient) / self.unit}
        return metrics if self.test is None else {**metrics, **self.test(params)}


@struct
class ProblemProbe:
    """The metrics of the rows, and those of a problem of `fedspam compare`, such as an accuracy."""

    rows: RowsProbe
    problem: Any

    def __call__(self, params: Params) -> dict[str, Scalar]:
        return {**self.problem(params), **self.rows(params)}


@dataclass(frozen=True)
class Score:
    """The metrics of a test row. Equal settings are equal functions."""

    correct: Loss | None
    loss: Loss

    def __call__(self, params: Params, rows: Any) -> dict[str, Any]:
        metrics = {"test_loss": self.loss(params, rows)}
        return metrics if self.correct is None else {"accuracy": self.correct(params, rows), **metrics}


def evaluation(data: LoadedExamples, model: Learner, options: Evaluate) -> Evaluation | None:
    """What is measured on the test rows: means over rows, and the metric of the target, which may need all of them."""
    if data.test is None:
        return None
    asked = options.target is not None or options.patience is not None
    wanted = options.metric or (usual_metric(data) if asked else None)
    metrics = tuple(name for name in model.metrics(data) if name == wanted)
    return Evaluation.of(data.test, Score(model.correct, model.loss), scores=model.scores, metrics=metrics)


def usual_metric(data: LoadedExamples) -> str:
    """Balanced accuracy where one class has nearly all rows: always predicting it has a high accuracy."""
    return "balanced_accuracy" if data.largest > LOPSIDED else "accuracy"


def rows_probe(clients: Ragged, start: Params, test: Evaluation | None) -> RowsProbe:
    """The probe of a population of rows."""
    weights = row_weights(clients)
    block = min(BLOCK, len(weights))
    padding = -len(weights) % block

    def pad(column: Any) -> Array:
        column = jnp.asarray(column)
        whole = jnp.concatenate([column, jnp.repeat(column[-1:], padding, axis=0)])
        return whole.reshape(-1, block, *column.shape[1:])

    padded_weights = jnp.asarray(
        np.concatenate([weights, np.zeros(padding)]).reshape(-1, block), jnp.result_type(float)
    )
    blocks = jax.tree.map(pad, clients.examples)
    dtype = jnp.result_type(*jax.tree.leaves(start))
    blank = RowsProbe(blocks, padded_weights, jnp.ones((), dtype), None, loss=clients.loss)
    unit = jax.jit(RowsProbe.__call__)(blank, start)["gradient"]
    # where the gradient vanishes at the start, the unit is 1
    return RowsProbe(blocks, padded_weights, jnp.where(unit > 0, unit, 1), test, loss=clients.loss)

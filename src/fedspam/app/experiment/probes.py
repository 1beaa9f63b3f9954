"""What is measured while an experiment runs: the loss and its gradient over all clients, and the test rows."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
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


def loss_and_gradient(loss: Loss, rows: Any, weights: Array, params: Params) -> tuple[Scalar, Params]:
    """The weighted sum of the losses of all rows, and its gradient, block by block."""
    count, block = weights.shape[0], min(BLOCK, weights.shape[0])

    def of_block(number: Any) -> tuple[Scalar, Params]:
        start = jnp.minimum(number * block, count - block)  # the last block overlaps the one before it
        part, shares = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, block), (rows, weights))
        shares = jnp.where(start + jnp.arange(block) >= number * block, shares, 0)
        return jax.value_and_grad(lambda params: jnp.vdot(shares, loss(params, part)))(params)

    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(of_block, 0))
    add = lambda number, sums: jax.tree.map(jnp.add, sums, of_block(number))
    return lax.fori_loop(0, -(-count // block), add, zero)


@struct
class RowsProbe:
    r"""f and :math:`\|\nabla f(x)\|/\|\nabla f(x_0)\|` over all rows of all clients, and the metrics of a test set."""

    rows: PyTree[Array]
    weights: Float[Array, " rows"]
    unit: Scalar
    test: Evaluation | None
    loss: Loss = static()

    def __call__(self, params: Params) -> dict[str, Scalar]:
        value, gradient = loss_and_gradient(self.loss, self.rows, self.weights, params)
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
    weights = jnp.asarray(row_weights(clients), jnp.result_type(float))
    one = jnp.ones((), jnp.result_type(*jax.tree.leaves(start)))
    blank = RowsProbe(clients.examples, weights, one, None, loss=clients.loss)
    unit = jax.jit(RowsProbe.__call__)(blank, start)["gradient"]
    # where the gradient vanishes at the start, the unit is 1
    return replace(blank, unit=jnp.where(unit > 0, unit, 1), test=test)

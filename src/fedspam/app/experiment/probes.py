"""What is looked at while an experiment runs: the loss and its gradient over all clients, and the test rows."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from fedspam._internal import trees
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.app.experiment.data import LoadedExamples
from fedspam.app.experiment.model import Learner
from fedspam.clients import Loss, Ragged
from fedspam.problems import row_weights
from fedspam.simulation.evaluation import Evaluation

BLOCK = 1024  # rows looked at together, so that memory does not grow with their number


@struct
class RowsLook:
    r"""f and :math:`\|\nabla f(x)\|/\|\nabla f(x_0)\|` over all rows of all clients, and what a test set tells."""

    blocks: PyTree[Array]
    weights: Float[Array, "blocks rows"]  # zero for the rows that fill up the last block
    unit: Scalar
    test: Evaluation | None
    loss: Loss = static()

    def __call__(self, params: Params) -> dict[str, Scalar]:
        value, slope = self._both(params)
        seen = {"loss": value, "gradient": trees.norm(slope) / self.unit}
        return seen if self.test is None else {**seen, **self.test(params)}

    def _both(self, params: Params) -> tuple[Scalar, Params]:
        part = lambda params, rows, weights: jnp.vdot(weights, self.loss(params, rows))
        both = jax.value_and_grad(part)

        def add(sums: Any, block: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, both(params, *block)), None

        blocks = (self.blocks, self.weights)
        shapes = jax.eval_shape(both, params, *jax.tree.map(lambda leaf: leaf[0], blocks))
        start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return lax.scan(add, start, blocks)[0]


@struct
class ProblemLook:
    """Rows as always, and the accuracy that a problem of `fedspam compare` knows to take."""

    rows: RowsLook
    problem: Any

    def __call__(self, params: Params) -> dict[str, Scalar]:
        return {**self.problem(params), **self.rows(params)}


@dataclass(frozen=True)
class Score:
    """What a test row is judged by. Equal settings are equal functions."""

    correct: Loss | None
    loss: Loss

    def __call__(self, params: Params, rows: Any) -> dict[str, Any]:
        seen = {"test_loss": self.loss(params, rows)}
        return seen if self.correct is None else {"accuracy": self.correct(params, rows), **seen}


def look_at(clients: Ragged, start: Params, test: Evaluation | None) -> RowsLook:
    """The probe of a population of rows."""
    weights = row_weights(clients)
    block = min(BLOCK, len(weights))
    filling = -len(weights) % block

    def fill(column: Any) -> Array:
        column = jnp.asarray(column)
        whole = jnp.concatenate([column, jnp.repeat(column[-1:], filling, axis=0)])
        return whole.reshape(-1, block, *column.shape[1:])

    weighed = jnp.asarray(np.concatenate([weights, np.zeros(filling)]).reshape(-1, block), jnp.result_type(float))
    blocks = jax.tree.map(fill, clients.examples)
    dtype = jnp.result_type(*jax.tree.leaves(start))
    blank = RowsLook(blocks, weighed, jnp.ones((), dtype), None, loss=clients.loss)
    unit = jax.jit(RowsLook.__call__)(blank, start)["gradient"]
    # a start where the gradient vanishes is its own unit
    return RowsLook(blocks, weighed, jnp.where(unit > 0, unit, 1), test, loss=clients.loss)


def evaluation(learner: Learner, data: LoadedExamples) -> Evaluation | None:
    """The held-out rows of every client, if there are any."""
    if data.test is None:
        return None
    return Evaluation.of(data.test, Score(learner.correct, learner.loss))

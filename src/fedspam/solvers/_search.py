"""Descent with a line search: the loop that backtracking, L-BFGS and Newton share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Integer

from fedspam._internal import trees
from fedspam._internal.trees import Params, Scalar
from fedspam.solvers._certificate import Answer, Point, Stop, Surrogate

SUFFICIENT = 1e-4
MOST_REFUSALS = 30


class Search(NamedTuple):
    """The state of a search."""

    old: Point  # where the last step began; at first the same as `point`
    point: Point
    direction: Params
    length: Float[Array, ""]  # of the last step, or of the next trial if that step was refused, in directions
    fresh: Bool[Array, ""]  # whether a new direction is due
    refused: Integer[Array, ""]  # trials refused along this direction
    steps: Integer[Array, ""]
    trials: Integer[Array, ""]
    memory: Any


def search(
    phi: Surrogate, stop: Stop, steps: int, memory: Any, turn: Callable[[Search], tuple[Any, Params]]
) -> tuple[Answer, Any]:
    """Steps along directions of descent, each shortened until phi falls by Armijo's rule. Also returns the last memory.

    Every trial is one loss and one gradient. The trials of all steps form one loop, so the compiled program evaluates
    the client in one place, and vectorized clients wait for each other only once, at the end.

    Arguments:
        steps: largest number of accepted steps.
        memory: the memory of `turn` before the first step.
        turn: search -> (memory, direction). It is called before every trial; unless the search is `fresh` it must
            return the memory as it is, and its direction is ignored.
    """

    def unfinished(now: Search) -> Any:
        return (now.steps < steps) & (now.refused < MOST_REFUSALS) & ~phi.settled(now.point, stop)

    def step(now: Search) -> Search:
        memory, turned = turn(now)
        direction = trees.where(now.fresh, turned, now.direction)
        length = jnp.where(now.fresh, 1, now.length)
        refused = jnp.where(now.fresh, 0, now.refused)

        trial = phi.at(trees.axpy(length, direction, now.point.y))
        change = phi.change(now.point, trial)
        before, after = trees.dot(now.point.slope, direction), trees.dot(trial.slope, direction)
        accepted = (change <= SUFFICIENT * length * before) & (before < 0) & jnp.isfinite(after)
        # the minimizer of the parabola with both slopes, within limits that tighten with each refusal: where slopes
        # saturate, as those of logistic losses do, the parabola is too flat, and where they explode it is too steep
        count = refused.astype(length.dtype)
        most, least = 0.5 ** (count + 1), jnp.maximum(0.01 * 0.1**count, 1e-8)
        ratio = jnp.where(after > before, before / (before - after), most)
        shorter = length * jnp.where(jnp.isfinite(change), jnp.clip(ratio, least, jnp.maximum(most, least)), least)
        # a step that does not leave its point cannot be shortened
        stuck = trees.squared_norm(trees.subtract(trial.y, now.point.y)) == 0
        return Search(
            old=trees.where(accepted, now.point, now.old),
            point=trees.where(accepted, trial, now.point),
            direction=direction,
            length=jnp.where(accepted, length, shorter).astype(length.dtype),
            fresh=accepted,
            refused=jnp.where(accepted, refused, jnp.where(stuck, MOST_REFUSALS, refused + 1)),
            steps=now.steps + accepted,
            trials=now.trials + 1,
            memory=memory,
        )

    zero, one = jnp.zeros((), jnp.int32), jnp.ones((), phi.value_at_x.dtype)
    begin = Search(phi.start, phi.start, trees.zeros_like(phi.x), one, jnp.array(True), zero, zero, zero, memory)
    end = lax.while_loop(unfinished, step, begin)
    return Answer(end.point, end.steps, end.trials), end.memory


def all_steps(phi: Surrogate, steps: int, move: Callable[..., Any], memory: Any, *, minibatch: bool) -> Answer:
    """A fixed number of steps ``move(y, slope, memory) -> (y, memory)``, each on one minibatch or on the whole loss."""

    def sampled(i: Any, now: Any) -> Any:
        y, memory = now
        return move(y, phi.minibatch_gradient(y, jax.random.fold_in(phi.key, i)), memory)

    def whole(_: Any, now: Any) -> Any:
        point, memory = now
        y, memory = move(point.y, point.slope, memory)
        return phi.at(y), memory

    if minibatch:
        # at x every minibatch gives g, so the first step needs none
        y, _ = lax.fori_loop(1, steps, sampled, move(phi.x, phi.g, memory))
        return Answer(phi.at(y), steps, 2 * steps - 1)
    point, _ = lax.fori_loop(0, steps, whole, (phi.start, memory))
    return Answer(point, steps, steps)


def first_length(phi: Surrogate) -> Scalar:
    """How far to go along -g at first: gamma, the whole way of a client without curvature."""
    # without a prox term, as far as x is from 0
    size = (1 + trees.norm(phi.x)) / jnp.maximum(trees.norm(phi.g), jnp.finfo(phi.value_at_x.dtype).tiny)
    return jnp.where(jnp.isinf(phi.step_size), size, phi.step_size)

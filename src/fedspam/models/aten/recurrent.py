"""Dropout, attention and recurrent layers."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedspam.models.aten.arrays import linear, widened
from fedspam.models.aten.batch import Batch


def dropout(batch: Batch, x: Any, rate: float, train: bool | None = True) -> tuple[Any, Any]:
    batch_draws = train and rate > 0 and batch.key is not None
    if not batch_draws:
        return x, None
    if rate == 1:
        return jnp.zeros_like(x), None
    kept = jax.random.bernoulli(batch.next_key(), 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), 0).astype(x.dtype), kept


def bernoulli(batch: Batch, x: Any, *probability: Any) -> Any:
    chance = probability[0] if probability and probability[0] is not None else x
    return jax.random.bernoulli(batch.next_key(), chance, x.shape).astype(x.dtype)


def attention(
    batch: Batch, q: Any, k: Any, v: Any, mask: Any = None, rate: float = 0.0, causal: bool = False, scale: Any = None,
    grouped: bool = False,
) -> Any:  # fmt: skip
    if grouped:
        k, v = (jnp.repeat(each, q.shape[-3] // each.shape[-3], axis=-3) for each in (k, v))
    scores = widened(q @ jnp.swapaxes(k, -1, -2)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask
    return dropout(batch, jax.nn.softmax(scores).astype(v.dtype), rate)[0] @ v


def stepped(cell: Callable[..., Any], states: int) -> Callable[..., Any]:
    """A stack of recurrent layers: each direction is one ``lax.scan`` over the places of the text."""

    def run(
        batch: Batch, x: Any, first: Any, weights: Sequence[Any], biased: bool, layers: int, rate: float, train: bool,
        both_ways: bool, rows_first: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        first = first if isinstance(first, list | tuple) else [first]
        x = jnp.swapaxes(x, 0, 1) if rows_first else x
        ways = 2 if both_ways else 1
        each = len(weights) // (layers * ways)
        ends: list[Any] = []
        for layer in range(layers):
            found = []
            for way in range(ways):
                number = layer * ways + way
                into, back, *rest = weights[each * number : each * (number + 1)]
                biases, project = (rest[:2], rest[2:]) if biased else ((0, 0), rest)
                driven = linear(x, into) + biases[0]  # all places at once

                def step(now: Any, drive: Any, back: Any = back, bias: Any = biases[1], project: Any = project) -> Any:
                    new = cell(drive, now[0] @ back.T + bias, now)
                    if project:
                        new = (new[0] @ project[0].T, *new[1:])
                    return new, new[0]

                begin = tuple(state[number] for state in first)
                end, out = lax.scan(step, begin, driven, reverse=bool(way))
                ends.append(end)
                found.append(out)
            x = jnp.concatenate(found, -1) if both_ways else found[0]
            if layer < layers - 1:
                x = dropout(batch, x, rate, train)[0]
        last = [jnp.stack([end[state] for end in ends]) for state in range(states)]
        return (jnp.swapaxes(x, 0, 1) if rows_first else x, *last)

    return run


def lstm_cell(drive: Any, recurrent: Any, now: Any) -> tuple[Any, Any]:
    into, forget, new, out = jnp.split(drive + recurrent, 4, -1)
    cell = jax.nn.sigmoid(forget) * now[1] + jax.nn.sigmoid(into) * jnp.tanh(new)
    return jax.nn.sigmoid(out) * jnp.tanh(cell), cell


def gru_cell(drive: Any, recurrent: Any, now: Any) -> tuple[Any]:
    (reset, update, new), (reset2, update2, new2) = jnp.split(drive, 3, -1), jnp.split(recurrent, 3, -1)
    candidate = jnp.tanh(new + jax.nn.sigmoid(reset + reset2) * new2)
    share = jax.nn.sigmoid(update + update2)
    return ((1 - share) * candidate + share * now[0],)

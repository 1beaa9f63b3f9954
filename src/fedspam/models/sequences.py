"""Networks for text: a character LSTM and a small transformer."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Integer, Key

from fedspam._internal import checks
from fedspam._internal.trees import Params
from fedspam.models.networks import dense, dense_init


@dataclass(frozen=True)
class Recurrent:
    r"""Stacked LSTMs over embedded characters.

    .. math:: (i, f, g, o) = x_t W + h_{t-1} U + b, \quad
        c_t = \sigma(f)\,c_{t-1} + \sigma(i)\tanh g, \quad h_t = \sigma(o)\tanh c_t
    """

    alphabet: int  # the number of characters, of the inputs and of the scores
    embedding: int  # width of a character's vector
    hidden: int  # width of each LSTM
    layers: int  # how many of them
    every: bool  # whether to predict the next character at every place, or only at the last, as LEAF does

    def __post_init__(self) -> None:
        for name in ("alphabet", "embedding", "hidden", "layers"):
            checks.whole(name, getattr(self, name), 1)

    def init(self, key: Key[Array, ""]) -> Params:
        keys = jax.random.split(key, 2 * self.layers + 2)
        params = {"embedding": 0.1 * jax.random.normal(keys[0], (self.alphabet, self.embedding), jnp.float32)}
        for layer in range(self.layers):
            inputs = self.hidden if layer else self.embedding
            gates = dense_init(keys[2 * layer + 1], inputs, 4 * self.hidden)
            # a forget gate that starts open (Jozefowicz, Zaremba, Sutskever 2015)
            gates["bias"] = gates["bias"].at[self.hidden : 2 * self.hidden].set(1.0)
            gates["recurrent"] = dense_init(keys[2 * layer + 2], self.hidden, 4 * self.hidden)["kernel"]
            params[f"lstm{layer}"] = gates
        return {**params, "out": dense_init(keys[-1], self.hidden, self.alphabet)}

    def __call__(self, params: Params, inputs: Integer[Array, "rows length"]) -> Float[Array, "rows ... alphabet"]:
        hidden = params["embedding"][inputs]
        for layer in range(self.layers):
            hidden = self._lstm(params[f"lstm{layer}"], hidden)
        return dense(params["out"], hidden if self.every else hidden[:, -1])

    def _lstm(self, weights: Params, inputs: Float[Array, "rows length width"]) -> Float[Array, "rows length hidden"]:
        # the inputs' share of all gates at once: only what depends on the state is left to the loop
        driven = jnp.moveaxis(dense(weights, inputs), 1, 0)

        def step(now: tuple[Any, Any], drive: Any) -> tuple[tuple[Any, Any], Any]:
            state, cell = now
            into, forget, new, out = jnp.split(drive + state @ weights["recurrent"], 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(into) * jnp.tanh(new)
            state = jax.nn.sigmoid(out) * jnp.tanh(cell)
            return (state, cell), state

        zeros = jnp.zeros((inputs.shape[0], self.hidden), driven.dtype)
        _, states = lax.scan(step, (zeros, zeros), driven)
        return jnp.moveaxis(states, 0, 1)


@dataclass(frozen=True)
class Transformer:
    """A causal transformer over characters with layer norm before each part and learned positions."""

    alphabet: int  # the number of characters, of the inputs and of the scores
    length: int  # the longest text
    width: int  # of the residual stream
    heads: int  # of attention; they divide the width
    layers: int  # how many blocks
    every: bool  # whether to predict the next character at every place, or only at the last

    def __post_init__(self) -> None:
        for name in ("alphabet", "length", "width", "heads", "layers"):
            checks.whole(name, getattr(self, name), 1)
        if self.width % self.heads:
            raise ValueError(f"heads = {self.heads} must divide width = {self.width}")

    def init(self, key: Key[Array, ""]) -> Params:
        keys = jax.random.split(key, 3)
        width = self.width
        params: dict[str, Any] = {
            "characters": 0.02 * jax.random.normal(keys[0], (self.alphabet, width), jnp.float32),
            "places": 0.02 * jax.random.normal(keys[1], (self.length, width), jnp.float32),
            "norm": _norm_init(width),
        }
        for layer, key in enumerate(jax.random.split(keys[2], self.layers)):
            first, second, third, fourth = jax.random.split(key, 4)
            params[f"block{layer}"] = {
                "attend": dense_init(first, width, 3 * width),
                "join": dense_init(second, width, width),
                "widen": dense_init(third, width, 4 * width),
                "narrow": dense_init(fourth, 4 * width, width),
                "norm0": _norm_init(width),
                "norm1": _norm_init(width),
            }
        return params

    def __call__(self, params: Params, inputs: Integer[Array, "rows length"]) -> Float[Array, "rows ... alphabet"]:
        if inputs.shape[1] > self.length:
            raise ValueError(f"texts of {inputs.shape[1]} characters are longer than length = {self.length}; cut them")
        stream = params["characters"][inputs] + params["places"][: inputs.shape[1]]
        for layer in range(self.layers):
            block = params[f"block{layer}"]
            stream = stream + dense(block["join"], self._attend(block["attend"], layer_norm(block["norm0"], stream)))
            widened = jax.nn.gelu(dense(block["widen"], layer_norm(block["norm1"], stream)))
            stream = stream + dense(block["narrow"], widened)
        stream = layer_norm(params["norm"], stream if self.every else stream[:, -1])
        return stream @ params["characters"].T

    def _attend(self, weights: Params, stream: Float[Array, "rows length width"]) -> Float[Array, "rows length width"]:
        rows, length, width = stream.shape
        split = dense(weights, stream).reshape(rows, length, 3, self.heads, width // self.heads)
        query, key, value = (split[:, :, part] for part in range(3))
        scores = jnp.einsum("rqhd,rkhd->rhqk", query, key) / math.sqrt(width // self.heads)
        past = jnp.tril(jnp.ones((length, length), bool))
        # the softmax is at least in float32
        shares = jax.nn.softmax(jnp.where(past, scores, -jnp.inf).astype(jnp.promote_types(scores.dtype, jnp.float32)))
        return jnp.einsum("rhqk,rkhd->rqhd", shares.astype(value.dtype), value).reshape(rows, length, width)


def layer_norm(params: Params, inputs: Float[Array, "... width"]) -> Float[Array, "... width"]:
    """Each row to mean 0 and variance 1, then scaled and shifted."""
    wide = inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))
    centered = wide - jnp.mean(wide, axis=-1, keepdims=True)
    scaled = centered * jax.lax.rsqrt(jnp.mean(centered**2, axis=-1, keepdims=True) + 1e-5)
    return scaled.astype(inputs.dtype) * params["scale"] + params["shift"]


def _norm_init(width: int) -> Params:
    return {"scale": jnp.ones(width, jnp.float32), "shift": jnp.zeros(width, jnp.float32)}

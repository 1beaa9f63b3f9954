"""Networks for rows and images: plain functions over pytrees, their sizes in a frozen dataclass."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fedspam._internal import checks
from fedspam._internal.trees import Params
from fedspam.models.convolution import convolve, max_pool


def dense_init(key: Key[Array, ""], inputs: int, outputs: int, *, window: tuple[int, ...] = ()) -> Params:
    """Glorot's uniform weights, for each tap of the window of a convolution, and a bias of zero."""
    reach = math.sqrt(6 / (math.prod(window) * (inputs + outputs)))
    kernel = jax.random.uniform(key, (*window, inputs, outputs), jnp.float32, -reach, reach)
    return {"bias": jnp.zeros(outputs, jnp.float32), "kernel": kernel}


def dense(params: Params, inputs: Float[Array, "... i"]) -> Float[Array, "... o"]:
    return inputs @ params["kernel"] + params["bias"]


def dense_layers_init(keys: Key[Array, " layers"], sizes: tuple[int, ...]) -> dict[str, Params]:
    return {f"dense{i}": dense_init(keys[i], *sizes[i : i + 2]) for i in range(len(sizes) - 1)}


def dense_layers(params: Params, inputs: Float[Array, "rows i"], layers: int) -> Float[Array, "rows o"]:
    """Dense layers with ReLU between them, the last after `layers` others."""
    for layer in range(layers):
        inputs = jax.nn.relu(dense(params[f"dense{layer}"], inputs))
    return dense(params[f"dense{layers}"], inputs)


@dataclass(frozen=True)
class Linear:
    """Scores that are linear in the inputs, initially zero. One class means one score: logistic regression."""

    inputs: int
    classes: int
    bias: bool = True

    def __post_init__(self) -> None:
        checks.whole("inputs", self.inputs, 1)
        checks.whole("classes", self.classes, 1)

    def init(self, key: Key[Array, ""]) -> Params:
        kernel = jnp.zeros((self.inputs, self.classes), jnp.float32)
        return {"bias": jnp.zeros(self.classes, jnp.float32), "kernel": kernel} if self.bias else {"kernel": kernel}

    def __call__(self, params: Params, inputs: Any) -> Float[Array, "rows ..."]:
        flat = inputs.reshape(inputs.shape[0], -1)
        scores = dense(params, flat) if self.bias else flat @ params["kernel"]
        return scores[:, 0] if self.classes == 1 else scores


@dataclass(frozen=True)
class Perceptron:
    """Dense layers with ReLU between them."""

    inputs: int
    classes: int
    hidden: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, value in (("inputs", self.inputs), ("classes", self.classes), *(("hidden", n) for n in self.hidden)):
            checks.whole(name, value, 1)

    def init(self, key: Key[Array, ""]) -> Params:
        sizes = (self.inputs, *self.hidden, self.classes)
        return dense_layers_init(jax.random.split(key, len(sizes) - 1), sizes)

    def __call__(self, params: Params, inputs: Any) -> Float[Array, "rows classes"]:
        return dense_layers(params, inputs.reshape(inputs.shape[0], -1), len(self.hidden))


@dataclass(frozen=True)
class Convolutional:
    """Convolutions with ReLU, some followed by a max pool, then dense layers."""

    shape: tuple[int, ...]  # of one input: its axes, then its channels; inputs of one channel may lack that axis
    classes: int  # how many
    features: tuple[int, ...]  # of each convolution
    window: tuple[int, ...]  # of the convolutions, for each axis
    pools: tuple[int, ...]  # the block of the pool after each convolution; 1 for none
    hidden: tuple[int, ...]  # widths of the dense layers
    padding: str = "VALID"  # 'VALID' or 'SAME'

    def __post_init__(self) -> None:
        checks.one_of("padding", self.padding, ("VALID", "SAME"))
        for name in ("shape", "features", "window", "pools", "hidden"):
            for size in getattr(self, name):
                checks.whole(name, size, 1)
        checks.whole("classes", self.classes, 1)
        if len(self.features) != len(self.pools):
            raise ValueError(f"{len(self.features)} convolutions and {len(self.pools)} pools; give one pool for each")
        if len(self.shape) != len(self.window) + 1 or not self.window:
            raise ValueError(f"shape = {self.shape} must have the window's {len(self.window)} axes and the channels")
        if min(self.inner) < 1:
            raise ValueError(f"shape = {self.shape} is too small for these convolutions and pools; take fewer pools")

    @property
    def inner(self) -> tuple[int, ...]:
        """The sizes of the axes after all convolutions and pools."""
        sizes = self.shape[:-1]
        for pool in self.pools:
            if self.padding == "VALID":
                sizes = tuple(size - far + 1 for size, far in zip(sizes, self.window, strict=True))
            sizes = tuple(size // pool for size in sizes)
        return sizes

    def init(self, key: Key[Array, ""]) -> Params:
        count, channels = len(self.features), (self.shape[-1], *self.features)
        flat = math.prod(self.inner) * channels[-1]
        sizes = (flat, *self.hidden, self.classes)
        keys = jax.random.split(key, count + len(sizes) - 1)
        convolutions = {f"conv{i}": dense_init(keys[i], *channels[i : i + 2], window=self.window) for i in range(count)}
        return convolutions | dense_layers_init(keys[count:], sizes)

    def __call__(self, params: Params, inputs: Any) -> Float[Array, "rows classes"]:
        hidden = inputs.reshape(inputs.shape[0], *self.shape)
        for layer, pool in enumerate(self.pools):
            weights = params[f"conv{layer}"]
            hidden = convolve(hidden, weights["kernel"], strides=(1,) * len(self.window), padding=self.padding)
            hidden = hidden + weights["bias"]
            if pool > 1:
                hidden = max_pool(hidden, (pool,) * len(self.window))
            hidden = jax.nn.relu(hidden)  # it commutes with the pool, after which there are fewer numbers
        return dense_layers(params, hidden.reshape(inputs.shape[0], -1), len(self.hidden))

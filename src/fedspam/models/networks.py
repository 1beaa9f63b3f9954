"""Networks for rows and images: plain functions over pytrees, their sizes in a frozen dataclass."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fedspam._internal import checks, prng
from fedspam._internal.trees import Params
from fedspam.models.convolution import convolve, max_pool
from fedspam.models.normalization import batch_norm, group_norm, groups_of


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
        return self._scores(params, inputs, lambda hidden, layer: hidden)

    def _scores(self, params: Params, inputs: Any, between: Callable[[Any, str], Any]) -> Float[Array, "rows classes"]:
        """The scores, where `between` may change what a convolution gives to the next layer, or a dense layer gets."""
        hidden = inputs.reshape(inputs.shape[0], *self.shape)
        for layer, pool in enumerate(self.pools):
            weights = params[f"conv{layer}"]
            hidden = convolve(hidden, weights["kernel"], strides=(1,) * len(self.window), padding=self.padding)
            hidden = hidden + weights["bias"]
            if pool > 1:
                hidden = max_pool(hidden, (pool,) * len(self.window))
            # ReLU commutes with the pool, after which there are fewer numbers
            hidden = between(jax.nn.relu(hidden), f"conv{layer}")
        hidden = hidden.reshape(inputs.shape[0], -1)
        for layer in range(len(self.hidden)):
            hidden = jax.nn.relu(dense(params[f"dense{layer}"], between(hidden, f"dense{layer}")))
        return dense(params[f"dense{len(self.hidden)}"], between(hidden, f"dense{len(self.hidden)}"))


@dataclass(frozen=True)
class Dropped(Convolutional):
    """The same with dropout in training: rates by the names of layers, such as ``(("conv3", 0.05), ("dense0", 0.1))``.

    After a convolution and its pool whole channels are dropped, before a dense layer single numbers.
    """

    dropout: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = [f"conv{i}" for i in range(len(self.features))] + [f"dense{i}" for i in range(len(self.hidden) + 1)]
        for layer, rate in self.dropout:
            checks.one_of("dropout", layer, layers)
            checks.between(f"dropout of {layer}", rate, 0, 1)

    def statistics(self) -> dict[str, Array]:
        return {}

    def norm_params(self) -> tuple[str, ...]:
        return ()

    def apply(
        self,
        params: Params,
        statistics: Any,
        inputs: Any,
        *,
        key: Key[Array, ""] | None = None,
        kept: Any = None,
        train: bool = False,
    ) -> tuple[Float[Array, "rows classes"], Any]:
        """As `fedspam.models.StatefulNetwork.apply`."""
        if key is None or not train:
            return self(params, inputs), {}
        rates, own_key = dict(self.dropout), key

        def drop(hidden: Any, layer: str) -> Any:
            if not rates.get(layer):
                return hidden
            if rates[layer] == 1:
                return jnp.zeros_like(hidden)
            channels = (1,) * (hidden.ndim - 2) if layer.startswith("conv") else hidden.shape[1:-1]
            stays = 1 - rates[layer]
            coins = jax.random.bernoulli(
                prng.fold_name(own_key, layer), stays, (hidden.shape[0], *channels, hidden.shape[-1])
            )
            return jnp.where(coins, hidden / stays, 0)

        return self._scores(params, inputs, drop), {}


@dataclass(frozen=True)
class Residual:
    """A residual network for small images: a convolution, stages of basic blocks, a mean over pixels, a dense layer.

    Each block has two convolutions of 3 x 3, each with a normalization. The first block of all stages but the first
    halves the image, and its shortcut is a convolution of 1 x 1 with a normalization.

    He, Zhang, Ren, Sun: Deep residual learning for image recognition, 2015, arXiv:1512.03385.
    """

    shape: tuple[int, ...]  # height, width, channels
    classes: int
    widths: tuple[int, ...]  # of each stage
    blocks: tuple[int, ...]  # in each stage
    norm: str = "batch"  # 'batch' or 'group'

    def __post_init__(self) -> None:
        checks.one_of("norm", self.norm, ("batch", "group"))
        for name in ("shape", "widths", "blocks"):
            for size in getattr(self, name):
                checks.whole(name, size, 1)
        checks.whole("classes", self.classes, 1)
        if len(self.widths) != len(self.blocks) or len(self.shape) != 3:
            raise ValueError(
                f"widths = {self.widths}, blocks = {self.blocks} and shape = {self.shape}: give as many widths as "
                "numbers of blocks, and height, width and channels"
            )

    def _convolutions(self) -> dict[str, tuple[int, int, int, int]]:
        """Window, inputs, outputs and stride of every convolution, in the order of the network."""
        found = {"conv": (3, self.shape[-1], self.widths[0], 1)}
        inputs = self.widths[0]
        for stage, (width, count) in enumerate(zip(self.widths, self.blocks, strict=True)):
            for block in range(count):
                stride, name = 2 if stage and not block else 1, f"stage{stage}_{block}"
                found[f"{name}_a"] = (3, inputs, width, stride)
                found[f"{name}_b"] = (3, width, width, 1)
                if stride > 1 or inputs != width:
                    found[f"{name}_short"] = (1, inputs, width, stride)
                inputs = width
        return found

    def init(self, key: Key[Array, ""]) -> Params:
        layers = self._convolutions()
        *keys, last = jax.random.split(key, len(layers) + 1)
        params: dict[str, Any] = {"dense": dense_init(last, self.widths[-1], self.classes)}
        for own, (name, (window, inputs, outputs, _)) in zip(keys, layers.items(), strict=True):
            deviation = math.sqrt(2 / (window**2 * outputs))
            kernel = deviation * jax.random.normal(own, (window, window, inputs, outputs), jnp.float32)
            params[name] = {"kernel": kernel}
            params[f"{name}_norm"] = {"scale": jnp.ones(outputs, jnp.float32), "bias": jnp.zeros(outputs, jnp.float32)}
        return params

    def statistics(self) -> dict[str, Array]:
        """The running statistics before training; {} with group normalization."""
        if self.norm == "group":
            return {}
        make = {"mean": jnp.zeros, "var": jnp.ones}
        return {
            f"{name}_norm.{kind}": make[kind](outputs, jnp.float32)
            for name, (_, _, outputs, _) in self._convolutions().items()
            for kind in ("mean", "var")
        }

    def norm_params(self) -> tuple[str, ...]:
        """The affine parameters of batch normalization."""
        names = self._convolutions() if self.norm == "batch" else ()
        return tuple(f"{name}_norm.{kind}" for name in names for kind in ("scale", "bias"))

    def with_group_norm(self) -> "Residual":
        """The same network with group normalization."""
        return replace(self, norm="group")

    def __call__(self, params: Params, inputs: Any) -> Float[Array, "rows classes"]:
        return self.apply(params, self.statistics(), inputs)[0]

    def apply(
        self,
        params: Params,
        statistics: Any,
        inputs: Any,
        *,
        key: Key[Array, ""] | None = None,
        kept: Any = None,
        train: bool = False,
    ) -> tuple[Float[Array, "rows classes"], Any]:
        """As `fedspam.models.StatefulNetwork.apply`."""
        new, layers = {}, self._convolutions()

        def layer(name: str, hidden: Any) -> Any:
            window, _, _, stride = layers[name]
            pad = ((window // 2, window // 2),) * 2
            hidden = convolve(hidden, params[name]["kernel"], strides=(stride, stride), padding=pad)
            affine = params[f"{name}_norm"]
            if self.norm == "group":
                return group_norm(hidden, affine["scale"], affine["bias"], groups_of(hidden.shape[-1]))
            kinds = ("mean", "var")
            old = None if statistics is None else {kind: statistics[f"{name}_norm.{kind}"] for kind in kinds}
            hidden, moved = batch_norm(hidden, affine["scale"], affine["bias"], old, kept=kept, train=train)
            new.update({f"{name}_norm.{kind}": moved[kind] for kind in kinds})
            return hidden

        hidden = jax.nn.relu(layer("conv", inputs.reshape(inputs.shape[0], *self.shape)))
        for stage, count in enumerate(self.blocks):
            for block in range(count):
                name = f"stage{stage}_{block}"
                inner = layer(f"{name}_b", jax.nn.relu(layer(f"{name}_a", hidden)))
                short = layer(f"{name}_short", hidden) if f"{name}_short" in layers else hidden
                hidden = jax.nn.relu(inner + short)
        return dense(params["dense"], jnp.mean(hidden, axis=(1, 2))), new

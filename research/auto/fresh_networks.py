"""A second set of networks with minibatch clients, written down before `auto` ran on any of them and without a look at
its code. `held_out.py --networks` runs them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import datasets
from fedspam.datasets import FederatedData
from fedspam.datasets.folder import data_path
from fedspam.datasets.text import SYMBOLS, encode
from fedspam.models import Model
from fedspam.models.networks import Convolutional, dense, dense_init, dense_layers_init
from fedspam.models.sequences import layer_norm
from held_out_networks import NetworkTask, made


@dataclass(frozen=True)
class Layers:
    """Dense layers with one of JAX's activations between them. One output means one score: the classes are 0 and 1."""

    sizes: tuple[int, ...]
    activation: str
    scale: float  # of the first weights, 1 for Glorot's

    def init(self, key):
        params = dense_layers_init(jax.random.split(key, len(self.sizes) - 1), self.sizes)
        return jax.tree.map(lambda leaf: self.scale * leaf, params)

    def __call__(self, params, inputs):
        last = len(self.sizes) - 2
        for layer in range(last):
            inputs = getattr(jax.nn, self.activation)(dense(params[f"dense{layer}"], inputs))
        scores = dense(params[f"dense{last}"], inputs)
        return scores[:, 0] if self.sizes[-1] == 1 else scores


@dataclass(frozen=True)
class Residual:
    """Blocks that add to a stream, with layer normalization before each; they start by adding nothing."""

    inputs: int
    width: int
    blocks: int
    classes: int

    def init(self, key):
        keys = jax.random.split(key, self.blocks + 2)
        norm = {"scale": jnp.ones(self.width, jnp.float32), "shift": jnp.zeros(self.width, jnp.float32)}
        nothing = {"kernel": jnp.zeros((2 * self.width, self.width)), "bias": jnp.zeros(self.width)}
        return {
            "in": dense_init(keys[0], self.inputs, self.width),
            "blocks": [
                {"norm": norm, "widen": dense_init(k, self.width, 2 * self.width), "narrow": nothing} for k in keys[2:]
            ],
            "norm": norm,
            "out": dense_init(keys[1], self.width, self.classes),
        }

    def __call__(self, params, inputs):
        stream = dense(params["in"], inputs.reshape(inputs.shape[0], -1))
        for block in params["blocks"]:
            wide = jax.nn.relu(dense(block["widen"], layer_norm(block["norm"], stream)))
            stream = stream + dense(block["narrow"], wide)
        return dense(params["out"], layer_norm(params["norm"], stream))


@dataclass(frozen=True)
class Causal:
    """Convolutions over characters that look 1, 2, 4, ... places back; the next one is predicted at every place."""

    alphabet: int
    width: int
    layers: int

    def init(self, key):
        keys = jax.random.split(key, self.layers + 2)
        return {
            "embedding": 0.5 * jax.random.normal(keys[0], (self.alphabet, self.width), jnp.float32),
            "layers": [dense_init(k, 3 * self.width, self.width) for k in keys[2:]],
            "out": dense_init(keys[1], self.width, self.alphabet),
        }

    def __call__(self, params, inputs):
        stream = params["embedding"][inputs]
        for layer, weights in enumerate(params["layers"]):
            back = lambda steps, stream=stream: jnp.pad(stream, ((0, 0), (steps, 0), (0, 0)))[:, : stream.shape[1]]
            seen = jnp.concatenate([stream, back(2**layer), back(2 * 2**layer)], -1)
            stream = stream + jax.nn.relu(dense(weights, seen))
        return dense(params["out"], stream)


@dataclass(frozen=True)
class LongMemory:
    """An LSTM over a signal; the class is predicted from the mean of its states."""

    channels: int
    hidden: int
    classes: int

    def init(self, key):
        first, second = jax.random.split(key)
        gates = dense_init(first, self.channels + self.hidden, 4 * self.hidden)
        return {"gates": gates, "out": dense_init(second, self.hidden, self.classes)}

    def __call__(self, params, inputs):
        def step(now, heard):
            state, cell = now
            gates = dense(params["gates"], jnp.concatenate([heard, state], -1))
            into, forget, new, out = jnp.split(gates, 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(into) * jnp.tanh(new)
            state = jax.nn.sigmoid(out) * jnp.tanh(cell)
            return (state, cell), state

        zeros = jnp.zeros((inputs.shape[0], self.hidden), inputs.dtype)
        _, states = jax.lax.scan(step, (zeros, zeros), jnp.moveaxis(inputs, 1, 0))
        return dense(params["out"], states.mean(0))


@dataclass(frozen=True)
class Attentive:
    """A bag of words: their vectors, averaged with weights that the words themselves ask for, then a linear layer."""

    words: int
    width: int
    classes: int

    def init(self, key):
        keys = jax.random.split(key, 3)
        return {
            "embedding": jax.random.normal(keys[0], (self.words, self.width), jnp.float32),
            "asked": 0.1 * jax.random.normal(keys[1], (self.width,), jnp.float32),
            "out": dense_init(keys[2], self.width, self.classes),
        }

    def __call__(self, params, inputs):
        vectors = params["embedding"][inputs]
        shares = jax.nn.softmax(vectors @ params["asked"], axis=-1)
        return dense(params["out"], jnp.sqrt(inputs.shape[1]) * jnp.einsum("rw,rwd->rd", shares, vectors))


def small_garments(data):
    """Fashion-MNIST at half its resolution, clients unlike in classes and size (Dirichlet 0.1); a convolution."""
    path = lambda part, kind: data_path(f"fashion_mnist/{part}-{kind}-ubyte", data, endings=(".gz", ""))

    def halved(part, count):
        rows = datasets.read_labeled(path(part, "images-idx3"), path(part, "labels-idx1"), scaled=False)
        images = rows["features"][-count:].reshape(count, 14, 2, 14, 2).mean((2, 4))
        return {"features": images.astype(np.uint8), "label": rows["label"][-count:]}

    train = halved("train", 20_000)
    clients = FederatedData.by(train, datasets.dirichlet(train["label"], 60, 0.1, least=8, seed=31))
    model = Model(Convolutional((14, 14, 1), 10, (8, 16), (3, 3), (2, 2), (32,), "SAME"))
    return made(clients, halved("t10k", 3000), model, 6, 32)


def strangers(data):
    """FEMNIST's letters without their case, tested on writers that never train; a residual network."""
    read = datasets.read_femnist(data)

    def letters(rows):
        kept = rows["label"] >= 10
        return {"features": rows["features"][kept], "label": (rows["label"][kept] - 10) % 26}

    parts = [(writer, letters(rows)) for writer, rows in read.train]
    train = FederatedData.of((writer, rows) for writer, rows in parts if len(rows["label"]) >= 5)
    return made(train, letters(read.unseen.examples), Model(Residual(784, 64, 2, 26)), 10, 8)


def half_motion(data):
    """HAR's features, two clients per person with three activities each, tested on six other persons; tanh."""
    read, random = datasets.read_har(data), np.random.default_rng(37)
    unseen = read.person % 5 == 0
    scaled = datasets.Standardizer.of(read.features[~unseen])(read.features).astype(np.float32)
    rows = lambda kept: {"features": scaled[kept], "label": read.labels[kept].astype(np.int32)}
    parts = []
    for person in np.unique(read.person[~unseen]):
        for half, activities in enumerate(random.permutation(6).reshape(2, 3)):
            parts.append((f"{person}-{half}", rows((read.person == person) & np.isin(read.labels, activities))))
    model = Model(Layers((scaled.shape[1], 48, 24, 6), "tanh", 2.0))
    return made(FederatedData.of(parts), rows(unseen), model, 5, 16)


def incomes(data):
    """a9a by occupation and age, a quarter of the rows positive, tested on as many of both; GELU from small weights."""
    read = {name: datasets.read_libsvm(data_path(f"libsvm/{name}", data), features=123) for name in ("a9a", "a9a.t")}
    rows = lambda part, kept: {
        "features": read[part].features[kept].astype(np.float32),
        "label": (read[part].labels[kept] > 0).astype(np.int32),
    }
    columns = read["a9a"].features
    occupation, age = columns[:, 46:60] @ np.arange(1, 15), columns[:, :5] @ np.arange(5)  # 0 where it is not known
    owners, _ = datasets.by_key((5 * occupation + age).astype(int))
    rich, poor = (np.flatnonzero(read["a9a.t"].labels * sign > 0)[:2000] for sign in (1, -1))
    train, test = rows("a9a", slice(None)), rows("a9a.t", np.concatenate([rich, poor]))
    return made(FederatedData.by(train, owners), test, Model(Layers((123, 32, 16, 1), "gelu", 0.3)), 12, 64)


def plays(data):
    """Every next character of twenty, one client per play of Shakespeare; causal convolutions."""
    texts = {}
    for role, text in sorted(datasets.read_roles(data).items()):
        texts.setdefault(role.split("/")[0], []).append(text)
    length, parts = 20, []
    for play, spoken in texts.items():
        windows = np.lib.stride_tricks.sliding_window_view(encode("\n".join(spoken)), length + 1)[::53]
        parts.append((play, {"features": windows[:, :-1].astype(np.int16), "label": windows[:, 1:].astype(np.int32)}))
    train, test = FederatedData.of(parts).hold_out_examples(0.05, seed=None)
    return made(train, dict(test.examples), Model(Causal(SYMBOLS, 32, 3)), 8, 16)


def plants(data):
    """A drawn table of raw columns. Fourteen plants with 10 to 800 rows, some with other units; leaky ReLU."""
    del data
    random = np.random.default_rng(41)
    columns, classes = 10, 6
    scales, offsets = np.exp(random.uniform(np.log(0.1), np.log(4), columns)), random.uniform(-1, 3, columns)
    inner, outer = random.normal(size=(columns, 8)) / 2, 3 * random.normal(size=(8, classes))
    centers = np.maximum(random.normal(size=(4000, columns)) @ inner + 0.5, 0).mean(0)  # so that no class is the rule

    def rows(count, units, level):
        numbers = level + random.normal(size=(count, columns))
        scores = (np.maximum(numbers @ inner + 0.5, 0) - centers) @ outer + random.gumbel(size=(count, classes))
        raw = scales * (numbers + offsets) * units
        return {"features": raw.astype(np.float32), "label": np.argmax(scores, axis=1).astype(np.int32)}

    train, test = [], []
    for plant, count in enumerate(np.geomspace(10, 800, 14).astype(int)):
        units = np.where(random.random(columns) < 0.15, 2.54, 1.0)
        level = 0.5 * random.normal(size=columns)
        train.append((str(plant), rows(count, units, level)))
        test.append((str(plant), rows(250, units, level)))
    model = Model(Layers((columns, 48, 48, classes), "leaky_relu", 1.0))
    return made(FederatedData.of(train), dict(FederatedData.of(test).examples), model, 3, 24)


def pulses(data):
    """Drawn waves of eight kinds, heard by devices of unlike gain, pitch and noise, each with few kinds; an LSTM."""
    del data
    random = np.random.default_rng(43)
    kinds, length = 8, 24
    time = np.linspace(0, 1, length)

    def heard(count, shares):
        label = random.choice(kinds, size=count, p=shares)
        pitch = random.uniform(2, 4) + 0.3 * random.normal(size=(count, 1))
        phase = random.random((count, 1))
        turn = pitch * time + phase
        middle = random.uniform(0.3, 0.7, size=(count, 1))
        sine = np.sin(2 * np.pi * turn)
        waves = np.stack(
            [
                sine,
                np.sign(sine),
                2 * (turn % 1) - 1,
                1 - 2 * (turn % 1),
                np.sin(2 * np.pi * (turn + 3 * time**2)),
                sine * np.exp(-30 * (time - middle) ** 2),
                np.abs(sine),
                (turn % 1 < 0.2).astype(float),
            ]
        )
        signal = np.exp(0.3 * random.normal()) * waves[label, np.arange(count)]
        signal += random.uniform(0.05, 0.4) * random.normal(size=signal.shape) + 0.2 * random.normal()
        return {"features": signal[..., None].astype(np.float32), "label": label.astype(np.int32)}

    devices = ((str(i), heard(random.integers(8, 60), random.dirichlet(np.full(kinds, 0.4)))) for i in range(200))
    train = FederatedData.of(devices)
    test = FederatedData.of((str(i), heard(40, np.full(kinds, 1 / kinds))) for i in range(60))
    return made(train, dict(test.examples), Model(LongMemory(1, 24, kinds)), 16, 10)


def topics(data):
    """Drawn texts of sixteen words on a hundred topics, readers with few texts and topics, some labels wrong; a bag."""
    del data
    random = np.random.default_rng(47)
    classes, words, length = 100, 600, 16
    common = 1 / np.arange(1, words + 1)
    common /= common.sum()
    ends = np.cumsum(0.5 * random.dirichlet(np.full(words, 0.03), size=classes) + 0.5 * common, axis=1)

    def texts(count, shares, wrong):
        label = random.choice(classes, size=count, p=shares)
        drawn = np.stack([np.searchsorted(ends[k], random.random(length) * ends[k, -1]) for k in label])
        label = np.where(random.random(count) < wrong, random.integers(classes, size=count), label)
        return {"features": drawn.astype(np.int16), "label": label.astype(np.int32)}

    readers = (
        (str(i), texts(random.integers(10, 50), random.dirichlet(np.full(classes, 0.1)), 0.1)) for i in range(400)
    )
    train = FederatedData.of(readers)
    return made(train, texts(3000, np.full(classes, 1 / classes), 0), Model(Attentive(words, 48, classes)), 40, 8)


def tasks(data: Path | None) -> dict[str, Callable[[], NetworkTask]]:
    """All of them, by name."""
    return {
        "garments, unlike and unequal": lambda: small_garments(data),
        "letters of strangers": lambda: strangers(data),
        "motion, three activities each": lambda: half_motion(data),
        "incomes": lambda: incomes(data),
        "plays": lambda: plays(data),
        "plants": lambda: plants(data),
        "pulses": lambda: pulses(data),
        "topics": lambda: topics(data),
    }

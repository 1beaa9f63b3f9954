"""Networks with minibatch clients on which nothing in this library was tuned. `held_out.py --networks` runs them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import datasets
from fedspam.datasets import FederatedData
from fedspam.datasets.folder import data_path
from fedspam.datasets.text import SYMBOLS, encode
from fedspam.models import Model, mlp
from fedspam.models.networks import Convolutional, Perceptron, dense, dense_init


class NetworkTask(NamedTuple):
    """Clients, a model, what it is tested on, the cohort size and the rows in a minibatch."""

    train: FederatedData
    test: dict
    model: Model
    cohort: int
    batch: int


def made(train, test, model, cohort, batch):
    return NetworkTask(train, {name: jnp.asarray(column) for name, column in test.items()}, model, cohort, batch)


@dataclass(frozen=True)
class Gated:
    """A gated recurrent unit over embedded characters; the next one is predicted from its last state."""

    alphabet: int
    embedding: int
    hidden: int

    def init(self, key):
        keys = jax.random.split(key, 4)
        return {
            "embedding": 0.3 * jax.random.normal(keys[0], (self.alphabet, self.embedding), jnp.float32),
            "gates": dense_init(keys[1], self.embedding + self.hidden, 2 * self.hidden),
            "new": dense_init(keys[2], self.embedding + self.hidden, self.hidden),
            "out": dense_init(keys[3], self.hidden, self.alphabet),
        }

    def __call__(self, params, inputs):
        def step(state, character):
            gates = jax.nn.sigmoid(dense(params["gates"], jnp.concatenate([character, state], -1)))
            keep, reset = jnp.split(gates, 2, axis=-1)
            new = jnp.tanh(dense(params["new"], jnp.concatenate([character, reset * state], -1)))
            return keep * state + (1 - keep) * new, None

        embedded = jnp.moveaxis(params["embedding"][inputs], 1, 0)
        state, _ = jax.lax.scan(step, jnp.zeros((inputs.shape[0], self.hidden), embedded.dtype), embedded)
        return dense(params["out"], state)


@dataclass(frozen=True)
class Categories:
    """Embedded categories beside numbers, then dense layers. The last columns of the inputs are the categories."""

    numbers: int
    levels: tuple[int, ...]
    width: int
    hidden: int
    classes: int

    @property
    def _dense(self):
        return Perceptron(self.numbers + self.width * len(self.levels), self.classes, (self.hidden,))

    def init(self, key):
        keys = jax.random.split(key, len(self.levels) + 1)
        tables = [
            jax.random.normal(k, (n, self.width), jnp.float32) for k, n in zip(keys[1:], self.levels, strict=True)
        ]
        return {"tables": tables, "dense": self._dense.init(keys[0])}

    def __call__(self, params, inputs):
        numbers, codes = inputs[:, : self.numbers], inputs[:, self.numbers :].astype(jnp.int32)
        found = [table[codes[:, i]] for i, table in enumerate(params["tables"])]
        return self._dense(params["dense"], jnp.concatenate([numbers, *found], -1))


def garments(data):
    """Fashion-MNIST, two classes per client, a network of one hidden layer."""
    path = lambda part, kind: data_path(f"fashion_mnist/{part}-{kind}-ubyte", data, endings=(".gz", ""))
    train, test = (
        datasets.read_labeled(path(part, "images-idx3"), path(part, "labels-idx1"), scaled=False)
        for part in ("train", "t10k")
    )
    few = {name: column[:24_000] for name, column in train.items()}
    clients = FederatedData.by(few, datasets.shards(few["label"], 120, 2, seed=7))
    return made(clients, {name: column[:4000] for name, column in test.items()}, mlp(784, 10, hidden=(64,)), 12, 20)


def short_letters(data):
    """FEMNIST, every writer cut into clients of at most 16 rows, a network of two hidden layers."""
    read = datasets.read_femnist(data)
    cut = lambda rows, begin: {name: column[begin : begin + 16] for name, column in rows.items()}
    parts = [
        (f"{writer}-{begin}", cut(rows, begin))
        for writer, rows in read.train
        for begin in range(0, len(rows["label"]), 16)
    ]
    return made(FederatedData.of(parts), dict(read.test.examples), mlp(784, 62, hidden=(128, 64)), 40, 8)


def pooled_motion(data):
    """HAR's signals, three persons per client, tested on the last windows of everyone; a small convolution."""
    persons = datasets.read_har_windows(data)
    train, test = persons.hold_out_examples(0.25, seed=None)
    pooled = FederatedData.of((f"ward {number // 3}", rows) for number, (_, rows) in enumerate(train))
    scale = train.examples["features"].std((0, 1)) + 1e-6
    standard = lambda rows: {**rows, "features": (rows["features"] / scale).astype(np.float32)}
    model = Model(Convolutional((128, 6), 6, (16, 32), (7,), (4, 4), (32,), "SAME"))
    return made(pooled.map(standard), standard(dict(test.examples)), model, 4, 32)


def next_character(data):
    """The character after twelve of a role's text; a small gated recurrent unit."""
    length, train, test = 12, [], []
    for role, text in sorted(datasets.read_roles(data).items()):
        if not 3000 <= len(text) <= 20_000:
            continue
        codes = encode(text)
        windows = np.lib.stride_tricks.sliding_window_view(codes, length + 1)[::7]
        rows = {"features": windows[:, :-1].astype(np.int16), "label": windows[:, -1].astype(np.int32)}
        cut = int(0.85 * len(windows))
        train.append((role, {name: column[:cut] for name, column in rows.items()}))
        test.append((role, {name: column[cut:] for name, column in rows.items()}))
    held = {name: column[::5] for name, column in FederatedData.of(test).examples.items()}
    return made(FederatedData.of(train), held, Model(Gated(SYMBOLS, 16, 64)), 16, 32)


def glyphs(data):
    """Forty drawn shapes, shifted, inverted and noisy, with unlike pens and classes per client; a small convolution."""
    del data
    random = np.random.default_rng(17)
    classes, side = 40, 14
    smooth = np.ones((3, 3)) / 9
    shapes = (random.random((classes, 8, 8)) < 0.4).astype(float)

    def drawn(labels, pen, contrast):
        pages = np.zeros((len(labels), side, side))
        for page, label in zip(pages, labels, strict=True):
            top, left = random.integers(1, 6, size=2)
            page[top : top + 8, left : left + 8] = contrast * shapes[label]
        blurred = sum(smooth[i, j] * np.roll(pages, (i - 1, j - 1), axis=(1, 2)) for i in range(3) for j in range(3))
        return (pen * blurred + (1 - pen) * pages + 0.15 * random.normal(size=pages.shape)).astype(np.float32)

    parts = []
    for client in range(100):
        labels = random.choice(classes, size=random.integers(20, 120), p=random.dirichlet(np.full(classes, 0.15)))
        pages = drawn(labels, random.random(), random.choice([-1.0, 1.0, 1.0]))
        parts.append((str(client), {"features": pages, "label": labels.astype(np.int32)}))
    labels = random.integers(0, classes, size=3000)
    pages = np.concatenate(
        [drawn(part, random.random(), random.choice([-1.0, 1.0, 1.0])) for part in labels.reshape(60, -1)]
    )
    model = Model(Convolutional((side, side, 1), classes, (12, 24), (3, 3), (2, 2), (64,), "SAME"))
    return made(FederatedData.of(parts), {"features": pages, "label": labels.astype(np.int32)}, model, 15, 16)


def claims(data):
    """A drawn table of numbers and categories, three rare outcomes, and offices that differ in size and in clients."""
    del data
    random = np.random.default_rng(23)
    levels = (30, 12, 7, 4)
    effects = [random.normal(size=(n, 4)) for n in levels]
    slopes, cross = random.normal(size=(6, 4)), random.normal(size=(levels[0], 6, 4))

    def rows(count, tastes, shift):
        numbers = shift + random.normal(size=(count, 6))
        codes = np.stack([random.choice(n, size=count, p=taste) for n, taste in zip(levels, tastes, strict=True)], 1)
        scores = numbers @ slopes + sum(effect[codes[:, i]] for i, effect in enumerate(effects))
        scores += np.einsum("rd,rdc->rc", numbers, cross[codes[:, 0]]) + np.array([2.5, 0.0, -0.5, -1.0])
        label = np.argmax(scores + random.gumbel(size=scores.shape), axis=1)
        return {"features": np.hstack([numbers, codes]).astype(np.float32), "label": label.astype(np.int32)}

    parts = []
    for office in range(80):
        tastes = [random.dirichlet(np.full(n, 0.5)) for n in levels]
        count = int(np.clip(np.exp(random.normal(4, 1)), 10, 500))
        parts.append((str(office), rows(count, tastes, 0.5 * random.normal(size=6))))
    test = rows(4000, [np.full(n, 1 / n) for n in levels], np.zeros(6))
    return made(FederatedData.of(parts), test, Model(Categories(6, levels, 4, 48, 4)), 8, 20)


def tasks(data: Path | None) -> dict[str, Callable[[], NetworkTask]]:
    """All of them, by name."""
    return {
        "garments, two classes each": lambda: garments(data),
        "letters, 16 rows each": lambda: short_letters(data),
        "motion, three persons each": lambda: pooled_motion(data),
        "next character": lambda: next_character(data),
        "glyphs": lambda: glyphs(data),
        "claims": lambda: claims(data),
    }

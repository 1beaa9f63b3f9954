"""Whole-gradient problems on which nothing in this library was tuned. `held_out.py` runs them.

Each is made once, with a seed of its own, and was not changed after a method had run on it.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from fedspam import Ragged, datasets
from fedspam.datasets.folder import data_path
from fedspam.problems import row_weights
from fedspam.solvers import LBFGS

ROUNDS = 400


class HeldOut:
    """Clients, where to start, the cohort size, and how long to run."""

    def __init__(self, parts, loss, start, cohort, *, rounds=ROUNDS, weighted=False):
        self.population = Ragged.of(parts, loss, weighted=weighted)
        self.start = np.asarray(start, np.float64)
        self.cohort, self.rounds, self.solver = cohort, rounds, LBFGS()

    def objective(self, x):
        """f: the mean over clients, or over rows where clients are weighted."""
        weights = jnp.asarray(row_weights(self.population))
        return jnp.sum(weights * self.population.loss(x, self.population.examples))

    def error(self, x):
        """The relative gradient norm; infinite where f is above its start: a run in a flat tail has not arrived."""
        value, gradient = jax.value_and_grad(self.objective)(x)
        first, unit = jax.value_and_grad(self.objective)(jnp.asarray(self.start))
        within = value <= first + 1e-9 * jnp.abs(first)
        return jnp.where(within, jnp.linalg.norm(gradient) / jnp.linalg.norm(unit), jnp.inf)

    @cached_property
    def delta(self) -> float:
        """How much Hessians differ: the geometric mean of the start and of a minimizer. It centers the grid only."""
        function = jax.jit(jax.value_and_grad(self.objective))
        found = minimize(lambda x: tuple(map(np.asarray, function(x))), self.start, jac=True, method="L-BFGS-B")
        ends = [self.delta_at(jnp.asarray(x)) for x in (self.start, found.x)]
        return float(np.sqrt(max(ends[0], 1e-9) * max(ends[1], 1e-9)))

    def delta_at(self, x) -> float:
        ids = jnp.arange(self.population.size, dtype=jnp.uint32)
        hessians = jax.jit(lambda x: jax.lax.map(lambda i: jax.hessian(self.population.client(i))(x), ids))(x)
        return float(jnp.linalg.norm(hessians - hessians.mean(0), 2, axis=(1, 2)).max())


class Draw(NamedTuple):
    """The inputs of the clients and the true score of every row."""

    inputs: list[np.ndarray]
    scores: list[np.ndarray]
    truth: np.ndarray


def draw(random, clients, rows, dimension, *, spread, size=2.0, intercept=0.0) -> Draw:
    """Rows around a center of each client, with a model of each client near a shared one; the last column is 1."""
    truth = size * random.normal(size=dimension) / np.sqrt(dimension)
    inputs, scores = [], []
    for count in np.broadcast_to(rows, clients):
        own = np.append(truth + spread * random.normal(size=dimension) / np.sqrt(dimension), intercept)
        center = spread * random.normal(size=dimension)
        made = np.hstack([center + random.normal(size=(count, dimension)), np.ones((count, 1))])
        inputs.append(made)
        scores.append(made @ own)
    return Draw(inputs, scores, np.append(truth, intercept))


def glm(loss: Callable[[Any, Any], Any], regularization: float = 1e-3):
    """A linear model: a loss of the score and the output, and half a squared norm."""
    return lambda x, rows: loss(rows["input"] @ x, rows["output"]) + 0.5 * regularization * jnp.sum(x**2)


def parts_of(inputs, outputs):
    return [{"input": i, "output": np.asarray(o, float)} for i, o in zip(inputs, outputs, strict=True)]


def grouped(inputs, outputs, owners, most=None):
    """One part per value of `owners`, of at most so many rows."""
    return [
        {"input": inputs[owners == who][:most], "output": np.asarray(outputs)[owners == who][:most]}
        for who in np.unique(owners)
    ]


def coin(random, scores):
    """Labels -1 and 1 with the logistic probability of these scores."""
    return [np.where(random.random(len(s)) < 1 / (1 + np.exp(-s)), 1.0, -1.0) for s in scores]


LOGISTIC = lambda score, label: jnp.logaddexp(0.0, -label * score)
HUBER = lambda score, y: jnp.where(jnp.abs(score - y) < 1, 0.5 * (score - y) ** 2, jnp.abs(score - y) - 0.5)
POISSON = lambda score, count: jnp.exp(score) - count * score
GAMMA = lambda score, y: y * jnp.exp(-score) + score
SQUARED_HINGE = lambda score, label: 0.5 * jnp.maximum(0.0, 1 - label * score) ** 2
LOG_COSH = lambda score, y: jnp.logaddexp(score - y, y - score)
CAUCHY = lambda score, y: 0.5 * jnp.log1p((score - y) ** 2)
SIGMOID = lambda score, label: jax.nn.sigmoid(-label * score)
PROBIT = lambda score, label: -jax.scipy.stats.norm.logcdf(label * score)
SQUARE = lambda score, y: 0.5 * (score - y) ** 2
QUANTILE = lambda score, y: 0.85 * (y - score) + 0.3 * jax.nn.softplus((score - y) / 0.3)  # of 0.85, smoothed


def softmax_loss(classes, regularization=1e-3):
    def loss(x, rows):
        scores = rows["input"] @ x.reshape(-1, classes)
        own = jnp.take_along_axis(scores, rows["output"].astype(int)[:, None], axis=1)[:, 0]
        return jax.nn.logsumexp(scores, axis=1) - own + 0.5 * regularization * jnp.sum(x**2)

    return loss


def tanh_network(inputs, hidden, loss, regularization=1e-3):
    """One hidden layer, as a loss of a flat vector, and its number of parameters."""
    cut = inputs * hidden

    def network(x, rows):
        layer = jnp.tanh(rows["input"] @ x[:cut].reshape(inputs, hidden))
        return loss(layer @ x[cut : cut + hidden] + x[-1], rows["output"]) + 0.5 * regularization * jnp.sum(x**2)

    return network, cut + hidden + 1


def regression(
    seed, loss, noise, clients, rows, dimension, cohort, *, start=0.0, spread=0.2, weighted=False, rounds=ROUNDS, **more
):
    """A linear model with noise of a given kind; started `start` standard deviations away from 0."""
    random = np.random.default_rng(seed)
    made = draw(random, clients, rows, dimension, spread=spread, **more)
    outputs = [noise(random, s) for s in made.scores]
    begin = start * random.normal(size=dimension + 1)
    return HeldOut(parts_of(made.inputs, outputs), glm(loss), begin, cohort, rounds=rounds, weighted=weighted)


signs = lambda random, s: coin(random, [s])[0]
normal = lambda random, s: s + 0.5 * random.normal(size=s.shape)
heavy = lambda random, s: s + random.standard_t(1.5, size=s.shape)
counts = lambda random, s: random.poisson(np.exp(np.minimum(s, 6)))
waits = lambda random, s: random.gamma(2.0, np.exp(s) / 2)


def camps(seed):
    """Two camps of clients with opposite opinions on half of the columns."""
    random = np.random.default_rng(seed)
    inputs = [random.normal(size=(20, 10)) for _ in range(60)]
    truth = random.normal(size=10)
    flip = np.where(np.arange(10) < 5, -1.0, 1.0)
    scores = [2 * made @ (truth * (flip if who % 2 else 1.0)) for who, made in enumerate(inputs)]
    return HeldOut(parts_of(inputs, coin(random, scores)), glm(LOGISTIC), np.zeros(10), 10)


def tournament(seed):
    """Bradley-Terry: the strengths of 24 players from matches; a client sees six of the players."""
    random = np.random.default_rng(seed)
    strength = 1.5 * random.normal(size=24)
    parts = []
    for _ in range(50):
        local = random.choice(24, 6, replace=False)
        pairs = np.array([random.choice(local, 2, replace=False) for _ in range(25)])
        games = np.eye(24)[pairs[:, 0]] - np.eye(24)[pairs[:, 1]]
        parts.append({"input": games, "output": coin(random, [games @ strength])[0]})
    return HeldOut(parts, glm(LOGISTIC, 1e-2), np.zeros(24), 10)


def phases(seed):
    """Squares of scores are observed: two minimizers and a saddle between them."""
    random = np.random.default_rng(seed)
    made = draw(random, 60, 30, 8, spread=0.1, size=2.0)
    outputs = [(s + 0.1 * random.normal(size=s.shape)) ** 2 for s in made.scores]
    loss = glm(lambda score, y: 0.25 * (score**2 - y) ** 2, 1e-4)
    return HeldOut(parts_of(made.inputs, outputs), loss, made.truth + 0.5 * random.normal(size=9), 10)


def factors(seed):
    """A matrix of rank two from some of its entries; a client sees most of a few rows."""
    random = np.random.default_rng(seed)
    high, wide = 24, 16
    left, right = random.normal(size=(high, 2)), random.normal(size=(wide, 2))
    parts = []
    for client in range(36):
        near = random.random(40) < 0.6
        row = np.where(near, (client % 12) * 2 + random.integers(0, 2, 40), random.integers(0, high, 40))
        column = random.integers(0, wide, 40)
        value = np.sum(left[row] * right[column], 1) + 0.1 * random.normal(size=40)
        parts.append({"row": row, "column": column, "value": value})

    def loss(x, rows):
        a, b = x[: 2 * high].reshape(high, 2), x[2 * high :].reshape(wide, 2)
        told = jnp.sum(a[rows["row"]] * b[rows["column"]], axis=1)
        return 0.5 * (told - rows["value"]) ** 2 + 0.005 * jnp.sum(x**2)

    return HeldOut(parts, loss, 0.5 * random.normal(size=2 * (high + wide)), 9)


def student(seed, cohort, clients, spread):
    """A tanh network taught by another."""
    random = np.random.default_rng(seed)
    loss, size = tanh_network(6, 4, SQUARE)
    teacher = random.normal(size=(6, 4)), random.normal(size=4)
    parts = []
    for _ in range(clients):
        inputs = spread * random.normal(size=6) + random.normal(size=(25, 6))
        told = np.tanh(inputs @ (teacher[0] + 0.5 * spread * random.normal(size=(6, 4)))) @ teacher[1]
        parts.append({"input": inputs, "output": told + 0.1 * random.normal(size=25)})
    return HeldOut(parts, loss, 0.5 * random.normal(size=size), cohort)


def words(seed, classes):
    """Counts of words with Zipf's frequencies: most columns are nearly empty, a few are large."""
    random = np.random.default_rng(seed)
    vocabulary = 40
    frequency = 1 / np.arange(1, vocabulary + 1)
    tilt = random.normal(size=(classes, vocabulary))
    parts = []
    for _ in range(60):
        label = random.choice(classes, size=20, p=random.dirichlet(np.ones(classes)))
        own = frequency * np.exp(0.5 * random.normal(size=vocabulary))
        chances = own * np.exp(0.7 * tilt[label])
        chances /= chances.sum(1, keepdims=True)
        lengths = random.integers(10, 60, size=20)
        texts = np.stack([random.multinomial(length, p) for length, p in zip(lengths, chances, strict=True)])
        output = label if classes > 2 else 2.0 * label - 1
        parts.append({"input": texts.astype(float), "output": output})
    if classes == 2:
        return HeldOut(parts, glm(LOGISTIC, 1e-2), np.zeros(vocabulary), 10)
    return HeldOut(parts, softmax_loss(classes, 1e-2), np.zeros(vocabulary * classes), 6)


def raw_columns(seed):
    """Least squares whose columns are in units that differ by factors up to a thousand."""
    random = np.random.default_rng(seed)
    units = 10.0 ** random.uniform(-1.5, 1.5, size=12)
    made = draw(random, 50, 30, 11, spread=0.3)
    outputs = [s + 0.3 * random.normal(size=s.shape) for s in made.scores]
    return HeldOut(parts_of([i * units for i in made.inputs], outputs), glm(SQUARE, 1e-4), np.zeros(12), 10)


def one_row_each(seed, loss, noise, clients, cohort):
    random = np.random.default_rng(seed)
    inputs = np.hstack([random.normal(size=(clients, 7)), np.ones((clients, 1))])
    outputs = noise(random, inputs @ random.normal(size=8))
    return HeldOut(parts_of(inputs[:, None], outputs[:, None]), glm(loss, 1e-2), np.zeros(8), cohort)


def blobs(seed, classes, clients, cohort, own):
    """Gaussian blobs; a client has rows of `own` of the classes."""
    random = np.random.default_rng(seed)
    centers = 1.5 * random.normal(size=(classes, 6))
    parts = []
    for client in range(clients):
        label = random.choice((client + np.arange(own)) % classes, size=25)
        rows = np.hstack([centers[label] + random.normal(size=(25, 6)), np.ones((25, 1))])
        parts.append({"input": rows, "output": label})
    return HeldOut(parts, softmax_loss(classes, 1e-2), np.zeros(7 * classes), cohort)


def components(features, count):
    """The first principal components, each with variance 1, and a column of ones."""
    centered = features - features.mean(0)
    _, _, directions = np.linalg.svd(centered, full_matrices=False)
    kept = centered @ directions[:count].T
    return np.hstack([kept / kept.std(0), np.ones((len(kept), 1))])


def heart_by_age(data):
    """A small tanh network on heart disease; hospitals and decades of age make the clients."""
    heart = datasets.read_heart(data)
    owners = 10 * heart.hospital + np.clip(heart.features[:, 0] // 10, 3, 6).astype(int)
    features = (heart.features - heart.features.mean(0)) / heart.features.std(0)
    loss, size = tanh_network(features.shape[1], 3, LOGISTIC, 1e-2)
    start = 0.3 * np.random.default_rng(71).normal(size=size)
    return HeldOut(grouped(features, 2.0 * heart.labels - 1, owners), loss, start, 5)


def heart_raw(data):
    """Heart disease in the units of the file, by hospital and sex, each patient counted once."""
    heart = datasets.read_heart(data)
    owners = 2 * heart.hospital + heart.features[:, heart.names.index("sex")].astype(int)
    rows = np.hstack([heart.features, np.ones((len(heart.labels), 1))])
    parts = grouped(rows, 2.0 * heart.labels - 1, owners)
    return HeldOut(parts, glm(LOGISTIC, 1e-3), np.zeros(rows.shape[1]), 3, weighted=True)


def libsvm_by_column(data, name, columns, loss, cohort, seed):
    """1,500 rows of a table of indicators; the level of one category makes the clients, however few rows it has."""
    table = datasets.read_libsvm(data_path(f"libsvm/{name}", data))
    chosen = np.random.default_rng(seed).permutation(len(table.labels))[:1500]
    features, labels = table.features[chosen], table.labels[chosen]
    labels = np.where(labels == labels.max(), 1.0, -1.0)
    owners = np.where(features[:, columns].any(1), features[:, columns].argmax(1), len(columns))
    other = np.setdiff1d(np.arange(features.shape[1]), columns)
    used = other[features[:, other].std(0) > 0]
    return HeldOut(grouped(features[:, used], labels, owners), glm(loss, 1e-3), np.zeros(used.size), cohort)


def garments(data):
    """Ten components of Fashion-MNIST; a client has one class."""
    path = lambda kind: data_path(f"fashion_mnist/t10k-{kind}-ubyte", data, endings=(".gz", ""))
    read = datasets.read_labeled(path("images-idx3"), path("labels-idx1"), scaled=False)
    rows = components(read["features"][:1500].reshape(1500, -1) / 255.0, 10)
    label = read["label"][:1500]
    owners = 10 * label + np.random.default_rng(81).integers(0, 5, size=1500)
    return HeldOut(grouped(rows, label, owners), softmax_loss(10, 1e-2), np.zeros(110), 10)


def activities(data):
    """Eight components of HAR; a client is one person in one activity."""
    har = datasets.read_har(data)
    scaled = (har.features - har.features.mean(0)) / har.features.std(0)
    parts = grouped(components(scaled, 8), har.labels, 10 * har.person + har.labels, most=12)
    return HeldOut(parts, softmax_loss(6, 1e-2), np.zeros(54), 15)


def digits(data):
    """Whether a writer's character is a digit, from twelve components; a writer counts as often as it has rows."""
    train = datasets.read_femnist(data).train
    rows = components(train.examples["features"].reshape(train.rows, -1) / 255.0, 12)
    label = np.where(train.examples["label"] < 10, 1.0, -1.0)
    owners = np.repeat(np.arange(len(train)), train.sizes)
    return HeldOut(grouped(rows, label, owners, most=40), glm(LOGISTIC, 1e-3), np.zeros(13), 5, weighted=True)


def sizes(seed, clients, spread):
    """Numbers of rows with a lognormal law."""
    return np.clip(np.exp(np.random.default_rng(seed).normal(2.5, spread, size=clients)), 1, 300).astype(int)


def problems(data: Path | None) -> dict[str, Callable[[], HeldOut]]:
    """All of them, by name; those on real data need its folder."""
    giant = [300] + [6] * 29
    return {
        "gamma regression": lambda: regression(101, GAMMA, waits, 70, 25, 10, 8, size=1.0),
        "Poisson, rates near 1": lambda: regression(102, POISSON, counts, 60, 25, 12, 10, size=1.0),
        "Poisson, rates near 30": lambda: regression(103, POISSON, counts, 60, 25, 6, 6, size=0.7, intercept=3.4),
        "smoothed quantile": lambda: regression(104, QUANTILE, heavy, 90, 20, 8, 9),
        "Huber, heavy tails": lambda: regression(105, HUBER, heavy, 100, 20, 12, 10),
        "squared hinge": lambda: regression(106, SQUARED_HINGE, signs, 50, 25, 15, 7, size=3.0),
        "probit": lambda: regression(107, PROBIT, signs, 80, 15, 9, 8, rounds=200),
        "log-cosh, far start": lambda: regression(108, LOG_COSH, normal, 60, 25, 10, 8, start=50.0),
        "logistic, far start": lambda: regression(109, LOGISTIC, signs, 60, 25, 10, 10, start=10.0),
        "Cauchy, start in the tail": lambda: regression(110, CAUCHY, normal, 60, 25, 8, 10, start=4.0, spread=0.15),
        "sigmoid loss": lambda: regression(111, SIGMOID, signs, 80, 25, 8, 8, size=4.0),
        "one row each, logistic": lambda: one_row_each(112, LOGISTIC, signs, 400, 40),
        "one row each, squares": lambda: one_row_each(113, SQUARE, normal, 300, 15),
        "lognormal sizes, by rows": lambda: regression(
            114, LOGISTIC, signs, 60, sizes(114, 60, 1.3), 10, 8, weighted=True
        ),
        "one giant, by rows": lambda: regression(115, HUBER, normal, 30, giant, 8, 6, weighted=True),
        "lognormal sizes, by client": lambda: regression(116, GAMMA, waits, 60, sizes(116, 60, 1.0), 8, 10, size=1.0),
        "all of six": lambda: regression(117, LOGISTIC, signs, 6, 40, 12, 6, spread=0.8),
        "all of twelve": lambda: student(118, 12, 12, 0.5),
        "nine of ten": lambda: regression(119, SQUARE, normal, 10, 25, 15, 9, spread=1.0),
        "two of forty": lambda: blobs(120, 4, 40, 2, 2),
        "one class each": lambda: blobs(121, 5, 60, 10, 1),
        "two camps": lambda: camps(122),
        "tournament": lambda: tournament(123),
        "squares of scores": lambda: phases(124),
        "matrix of rank two": lambda: factors(125),
        "tanh network": lambda: student(126, 10, 60, 0.3),
        "words, two classes": lambda: words(127, 2),
        "words, four classes": lambda: words(128, 4),
        "raw columns": lambda: raw_columns(129),
        "heart by age, tanh network": lambda: heart_by_age(data),
        "heart, raw units": lambda: heart_raw(data),
        "a9a by level": lambda: libsvm_by_column(data, "a9a", np.arange(34, 50), LOGISTIC, 4, 130),
        "mushrooms by level": lambda: libsvm_by_column(data, "mushrooms", np.arange(19, 28), SQUARED_HINGE, 3, 131),
        "garments, one class each": lambda: garments(data),
        "one activity each": lambda: activities(data),
        "digit or letter": lambda: digits(data),
    }

"""A second set of whole-gradient problems that was kept apart. `held_out.py --set second` runs them.

They were written down after the memory of `auto`'s spreads had been chosen on the problems of `held_out_problems.py`,
and before `auto` had run on any of them. None of their kinds is in the first set.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import datasets
from fedspam.datasets.folder import data_path
from held_out_problems import (
    LOG_COSH,
    LOGISTIC,
    SQUARE,
    HeldOut,
    coin,
    components,
    draw,
    glm,
    grouped,
    parts_of,
    softmax_loss,
)

ROUNDS = 400

NEGATIVE_BINOMIAL = lambda score, count: (count + 2.0) * jnp.logaddexp(score, jnp.log(2.0)) - count * score
CENSORED = lambda score, told: jnp.exp(score) * told[..., 0] - told[..., 1] * score
LOG_LOG = lambda score, label: (
    jnp.where(label > 0, -jnp.log(-jnp.expm1(-jnp.exp(jnp.minimum(score, 3.0)))), 0.0)
    + (jnp.where(label > 0, 0.0, jnp.exp(jnp.minimum(score, 3.0))))
)


def linear(seed, loss, outputs, clients, rows, dimension, cohort, *, spread=0.3, regularization=1e-3, **more):
    """A linear model whose outputs are drawn from the scores."""
    random = np.random.default_rng(seed)
    made = draw(random, clients, rows, dimension, spread=spread, **more)
    told = [outputs(random, s) for s in made.scores]
    return HeldOut(
        parts_of(made.inputs, told), glm(loss, regularization), np.zeros(dimension + 1), cohort, rounds=ROUNDS
    )


def overdispersed(random, scores):
    return random.poisson(random.gamma(2.0, np.exp(np.minimum(scores, 5)) / 2))


def survival(random, scores):
    """Times until an event, and whether it was seen before the study ended."""
    times, end = random.exponential(np.exp(-scores)), random.exponential(2.0, size=scores.shape)
    return np.stack([np.minimum(times, end), times <= end], axis=-1)


def ordinal(seed):
    """Five ordered levels: a score and four thresholds, whose logarithmic gaps are parameters."""
    random = np.random.default_rng(seed)
    made = draw(random, 50, 25, 8, spread=0.3)
    edges = np.array([-np.inf, -2.0, -0.5, 0.5, 2.0])
    levels = [np.searchsorted(edges, s + random.logistic(size=s.shape)) - 1 for s in made.scores]

    def loss(x, rows):
        cuts = x[8] + jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.exp(x[9:12]))])
        below = jax.nn.sigmoid(cuts - (rows["input"][:, :8] @ x[:8])[:, None])
        padded = jnp.concatenate([jnp.zeros_like(below[:, :1]), below, jnp.ones_like(below[:, :1])], axis=1)
        at = rows["output"].astype(int)[:, None]
        chance = jnp.take_along_axis(padded, at + 1, 1) - jnp.take_along_axis(padded, at, 1)
        return -jnp.log(chance[:, 0] + 1e-9) + 0.5e-3 * jnp.sum(x**2)

    return HeldOut(parts_of(made.inputs, levels), loss, np.r_[np.zeros(8), -1.0, np.zeros(3)], 10, rounds=ROUNDS)


def skewed_classes(seed, concentration, clients, cohort):
    """Softmax regression; the shares of six classes on a client follow Dirichlet's law."""
    random = np.random.default_rng(seed)
    centers = 1.2 * random.normal(size=(6, 8))
    parts = []
    for _ in range(clients):
        label = random.choice(6, size=30, p=random.dirichlet(concentration * np.ones(6)))
        rows = np.hstack([centers[label] + random.normal(size=(30, 8)), np.ones((30, 1))])
        parts.append({"input": rows, "output": label})
    return HeldOut(parts, softmax_loss(6, 3e-3), np.zeros(54), cohort, rounds=ROUNDS)


def autoregressive(seed, cohort):
    """Each client is a sensor: the next value of a slow series from its last six, which nearly agree."""
    random = np.random.default_rng(seed)
    parts = []
    for _ in range(60):
        series, roots = [0.0, 0.0], 0.9 + 0.05 * random.normal(size=2)
        for _ in range(46):
            series.append(roots.sum() * series[-1] - roots.prod() * series[-2] + random.normal())
        series = np.array(series) / 5
        parts.append({"input": np.stack([series[k : k + 40] for k in range(6)], 1), "output": series[6:46]})
    return HeldOut(parts, glm(SQUARE, 1e-4), np.zeros(6), cohort, rounds=ROUNDS)


def powers(seed):
    """Least squares on the powers of one input: columns that are nearly the same."""
    random = np.random.default_rng(seed)
    parts = []
    for _ in range(40):
        at = random.uniform(-1, 1, size=30) + 0.3 * random.normal()
        bent = np.sin(3 * at + 0.3 * random.normal()) + 0.1 * random.normal(size=30)
        parts.append({"input": at[:, None] ** np.arange(7), "output": bent})
    return HeldOut(parts, glm(SQUARE, 1e-3), np.zeros(7), 8, rounds=ROUNDS)


def mixture(seed):
    """The two centers of a mixture of normal laws; clients have different shares of the two."""
    random = np.random.default_rng(seed)
    centers = 1.5 * random.normal(size=(2, 4))
    parts = []
    for _ in range(50):
        which = (random.random(30) < random.beta(0.7, 0.7)).astype(int)
        parts.append({"input": centers[which] + random.normal(size=(30, 4))})

    def loss(x, rows):
        away = jnp.sum((rows["input"][:, None] - x.reshape(2, 4)) ** 2, axis=-1)
        return -jax.nn.logsumexp(-0.5 * away, axis=1)

    return HeldOut(parts, loss, 0.5 * random.normal(size=8), 10, rounds=ROUNDS)


def axis_of_spread(seed):
    """The leading direction of scattered rows, as the best matrix of rank one: a loss of degree four."""
    random = np.random.default_rng(seed)
    scales = np.linspace(2.0, 0.5, 10)
    parts = [{"input": random.normal(size=(25, 10)) * scales * np.exp(0.2 * random.normal(size=10))} for _ in range(50)]

    def loss(x, rows):
        along = rows["input"] @ x
        return 0.25 * jnp.sum(x**2) ** 2 - 0.5 * along**2

    return HeldOut(parts, loss, 0.3 * random.normal(size=10), 10, rounds=ROUNDS)


def moons(seed, clients, cohort):
    """A softplus network on two interlocked half circles, turned a little differently on each client."""
    random = np.random.default_rng(seed)
    parts = []
    for _ in range(clients):
        label = random.integers(0, 2, size=30)
        turn, along = 0.4 * random.normal(), np.pi * random.random(30)
        at = np.stack([np.cos(along) + label - 0.5, np.where(label, -1.0, 1.0) * np.sin(along)], 1)
        turned = at @ np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        parts.append({"input": turned + 0.15 * random.normal(size=(30, 2)), "output": 2.0 * label - 1})

    def loss(x, rows):
        layer = jax.nn.softplus(rows["input"] @ x[:12].reshape(2, 6) + x[12:18])
        return LOGISTIC(layer @ x[18:24] + x[24], rows["output"]) + 0.5e-3 * jnp.sum(x**2)

    return HeldOut(parts, loss, 0.7 * random.normal(size=25), cohort, rounds=ROUNDS)


def turned_inputs(seed):
    """Each client measures in its own axes: its inputs are turned at random by a small angle and scaled."""
    random = np.random.default_rng(seed)
    truth = random.normal(size=10)
    inputs, scores = [], []
    for _ in range(50):
        made = random.normal(size=(25, 10))
        turn, _ = np.linalg.qr(np.eye(10) + 0.3 * random.normal(size=(10, 10)))
        inputs.append(made @ turn * np.exp(0.4 * random.normal()))
        scores.append(made @ truth)
    return HeldOut(parts_of(inputs, coin(random, scores)), glm(LOGISTIC), np.zeros(10), 8, rounds=ROUNDS)


def drifting(seed):
    """The truth moves along a line from the first client to the last."""
    random = np.random.default_rng(seed)
    first, last = random.normal(size=12), random.normal(size=12)
    inputs = [random.normal(size=(20, 12)) for _ in range(80)]
    told = [
        made @ (first + (last - first) * who / 79) + 0.3 * random.standard_t(4, size=20)
        for who, made in enumerate(inputs)
    ]
    return HeldOut(parts_of(inputs, told), glm(LOG_COSH), np.zeros(12), 8, rounds=ROUNDS)


def missing_columns(seed):
    """Each client lacks half of the columns: no client alone could find the model."""
    random = np.random.default_rng(seed)
    truth = random.normal(size=16)
    inputs = [random.normal(size=(25, 16)) * (random.random(16) < 0.5) for _ in range(60)]
    told = [made @ truth + 0.5 * random.normal(size=25) for made in inputs]
    return HeldOut(parts_of(inputs, told), glm(SQUARE, 1e-3), np.zeros(16), 6, rounds=ROUNDS)


def twins(seed):
    """Half of the clients are copies of one client."""
    random = np.random.default_rng(seed)
    made = draw(random, 31, 25, 10, spread=0.6)
    labels = coin(random, made.scores)
    parts = parts_of(made.inputs, labels)
    return HeldOut(parts + [parts[0]] * 29, glm(LOGISTIC), np.zeros(11), 8, rounds=ROUNDS)


def strangers(seed):
    """Three clients of sixty have another truth and ten times as large inputs."""
    random = np.random.default_rng(seed)
    truth = random.normal(size=8)
    inputs, told = [], []
    for who in range(60):
        strange = who < 3
        made = random.normal(size=(25, 8)) * (10.0 if strange else 1.0)
        inputs.append(made)
        told.append(made @ (-truth if strange else truth) + 0.5 * random.normal(size=25))
    return HeldOut(parts_of(inputs, told), glm(LOG_COSH), np.zeros(8), 8, rounds=ROUNDS)


def interpolated(seed, cohort):
    """More columns than any client has rows, and one model that fits all rows: no noise at the minimum."""
    random = np.random.default_rng(seed)
    truth = random.normal(size=30)
    inputs = [random.normal(size=(6, 30)) * np.exp(0.3 * random.normal(size=30)) for _ in range(60)]
    return HeldOut(
        parts_of(inputs, [made @ truth for made in inputs]), glm(SQUARE, 0.0), np.zeros(30), cohort, rounds=ROUNDS
    )


def separable(seed):
    """Classes that a plane separates, with hardly any regularization: the minimum is far away."""
    random = np.random.default_rng(seed)
    truth = random.normal(size=10)
    inputs = [random.normal(size=(20, 10)) + 0.3 * random.normal(size=10) for _ in range(50)]
    return HeldOut(
        parts_of(inputs, [np.sign(made @ truth) for made in inputs]), glm(LOGISTIC, 1e-4), np.zeros(10), 8,
        rounds=ROUNDS,
    )  # fmt: skip


def tilted(seed):
    """Residuals count exponentially in their squares: the worst rows of a client rule."""
    random = np.random.default_rng(seed)
    made = draw(random, 50, 25, 8, spread=0.3)
    told = [s + 0.4 * random.normal(size=s.shape) for s in made.scores]
    loss = glm(lambda score, y: jnp.expm1(jnp.minimum(0.25 * (score - y) ** 2, 8.0)), 1e-3)
    start = made.truth + 0.5 * random.normal(size=9)
    return HeldOut(parts_of(made.inputs, told), loss, start, 10, rounds=ROUNDS)


def sparse(seed):
    """Least squares with a penalty that is not convex and prefers few columns."""
    random = np.random.default_rng(seed)
    truth = np.where(np.arange(20) < 5, 2 * random.normal(size=20), 0.0)
    inputs = [random.normal(size=(20, 20)) + 0.5 * random.normal(size=20) for _ in range(50)]
    told = [made @ truth + 0.5 * random.normal(size=20) for made in inputs]
    square = glm(SQUARE, 0.0)
    loss = lambda x, rows: square(x, rows) + 0.1 * jnp.sum(jnp.log1p(x**2 / 0.1))
    return HeldOut(parts_of(inputs, told), loss, np.zeros(20), 8, rounds=ROUNDS)


def writers(data):
    """The ten digits of FEMNIST from 15 components, by writer."""
    train = datasets.read_femnist(data).train
    owners = np.repeat(np.arange(len(train)), train.sizes)
    chosen = train.examples["label"] < 10
    rows = components(train.examples["features"][chosen].reshape(chosen.sum(), -1) / 255.0, 15)
    parts = grouped(rows, train.examples["label"][chosen], owners[chosen], most=30)
    return HeldOut(parts, softmax_loss(10, 1e-2), np.zeros(160), 8, rounds=ROUNDS)


def clothes(data):
    """Fashion-MNIST from 12 components; Dirichlet's law with 0.1 shares the classes among 40 clients."""
    random = np.random.default_rng(931)
    path = lambda kind: data_path(f"fashion_mnist/t10k-{kind}-ubyte", data, endings=(".gz", ""))
    read = datasets.read_labeled(path("images-idx3"), path("labels-idx1"), scaled=False)
    rows, label = components(read["features"][2000:4000].reshape(2000, -1) / 255.0, 12), read["label"][2000:4000]
    shares = random.dirichlet(0.1 * np.ones(40), size=10)
    owners = np.array([random.choice(40, p=shares[each]) for each in label])
    return HeldOut(grouped(rows, label, owners), softmax_loss(10, 1e-2), np.zeros(130), 6, rounds=ROUNDS, weighted=True)


def signals(data):
    """One signal of HAR from ten components of the others, by person."""
    har = datasets.read_har(data)
    scaled = (har.features - har.features.mean(0)) / har.features.std(0)
    parts = grouped(components(scaled[:, 1:], 10), scaled[:, 0], har.person, most=60)
    return HeldOut(parts, glm(LOG_COSH, 1e-3), np.zeros(11), 5, rounds=ROUNDS)


def patients(data):
    """Heart disease with the complementary log-log link, by hospital and decade of age."""
    heart = datasets.read_heart(data)
    features = (heart.features - heart.features.mean(0)) / heart.features.std(0)
    rows = np.hstack([features, np.ones((len(heart.labels), 1))])
    owners = 10 * heart.hospital + np.clip(heart.features[:, 0] // 10, 3, 6).astype(int)
    return HeldOut(grouped(rows, heart.labels, owners), glm(LOG_LOG, 1e-2), np.zeros(rows.shape[1]), 6, rounds=ROUNDS)


def problems(data: Path | None) -> dict[str, Callable[[], HeldOut]]:
    """All of them, by name; those on real data need its folder."""
    bernoulli = lambda random, s: (random.random(s.shape) < -np.expm1(-np.exp(np.minimum(s, 3)))).astype(float)
    return {
        "negative binomial": lambda: linear(901, NEGATIVE_BINOMIAL, overdispersed, 50, 25, 10, 8, size=1.0),
        "survival, censored": lambda: linear(902, CENSORED, survival, 60, 25, 9, 8, size=1.0),
        "log-log link": lambda: linear(903, LOG_LOG, bernoulli, 50, 25, 8, 10, size=1.0, regularization=1e-2),
        "five levels in order": lambda: ordinal(904),
        "six classes, skewed": lambda: skewed_classes(905, 0.2, 50, 5),
        "six classes, half of all": lambda: skewed_classes(906, 0.5, 40, 20),
        "series of sensors": lambda: autoregressive(907, 8),
        "powers of one input": lambda: powers(908),
        "mixture of two": lambda: mixture(909),
        "axis of spread": lambda: axis_of_spread(910),
        "half moons": lambda: moons(911, 40, 10),
        "half moons, all of eight": lambda: moons(912, 8, 8),
        "turned inputs": lambda: turned_inputs(913),
        "drifting truth": lambda: drifting(914),
        "missing columns": lambda: missing_columns(915),
        "twins": lambda: twins(916),
        "three strangers": lambda: strangers(917),
        "interpolated": lambda: interpolated(918, 8),
        "interpolated, three per round": lambda: interpolated(919, 3),
        "separable": lambda: separable(920),
        "tilted squares": lambda: tilted(921),
        "sparse": lambda: sparse(922),
        "digits by writer": lambda: writers(data),
        "clothes, Dirichlet 0.1": lambda: clothes(data),
        "signals by person": lambda: signals(data),
        "patients by age": lambda: patients(data),
    }

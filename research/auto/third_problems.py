"""A third set of whole-gradient problems that was kept apart. `held_out.py --set third` runs them.

They were written down without a look at the code of `auto` and before it had run on any of them; only settings of
SPAM-PPA were tried, to see that each can arrive at a tenth of its first gradient. None of their kinds is in the others.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import datasets
from fedspam.datasets.folder import data_path
from fedspam.datasets.shakespeare import read_roles
from held_out_problems import (
    LOGISTIC,
    SQUARE,
    HeldOut,
    coin,
    components,
    draw,
    glm,
    grouped,
    parts_of,
    sizes,
    softmax_loss,
)

LETTERS = " abcdefghijklmnopqrstuvwxyz"  # a space stands for every other character

EXPECTILE = lambda score, y: jnp.where(y > score, 0.9, 0.1) * (score - y) ** 2
TWEEDIE = lambda score, y: 2 * (y * jnp.exp(-score / 2) + jnp.exp(score / 2))  # of power 1.5
PSEUDO_HUBER = lambda score, y: jnp.sqrt(1 + (score - y) ** 2) - 1
TRIALS = lambda score, told: (told[:, 0] * jax.nn.softplus(score) - told[:, 1] * score) / 50
ANGLE = lambda score, y: 1 - jnp.cos(score - y)
FOCAL = lambda score, label: jax.nn.sigmoid(-label * score) ** 2 * jax.nn.softplus(-label * score)
MODIFIED_HUBER = lambda score, label: jnp.where(
    label * score < -1, -4 * label * score, jnp.maximum(0.0, 1 - label * score) ** 2
)


def norm(x, smoothing):
    """The Euclidean norms of the last axis, smoothed at 0."""
    return jnp.sqrt(jnp.sum(x**2, axis=-1) + smoothing)


def blocks(seed):
    """Columns in six blocks that nearly agree; a high expectile under noise that is skewed."""
    random = np.random.default_rng(seed)
    truth = random.normal(size=24)
    inputs = []
    for _ in range(40):
        shared = np.repeat(random.normal(size=(25, 6)) + 0.3 * random.normal(size=6), 4, axis=1)
        inputs.append(np.hstack([0.95 * shared + 0.3 * random.normal(size=(25, 24)), np.ones((25, 1))]))
    told = [made[:, :24] @ truth + random.exponential(1.5, size=25) for made in inputs]
    return HeldOut(parts_of(inputs, told), glm(EXPECTILE, 1e-3), np.zeros(25), 4)


def claims(seed):
    """Sums of claims with Tweedie's law: many zeros, a heavy tail; each contract counts once."""
    random = np.random.default_rng(seed)
    made = draw(random, 80, sizes(seed, 80, 1.0), 9, spread=0.25, size=1.0, intercept=0.5)
    mean = [np.exp(np.minimum(s, 4)) for s in made.scores]
    told = [random.gamma(random.poisson(2 * np.sqrt(m)), np.sqrt(m) / 2) for m in mean]
    return HeldOut(parts_of(made.inputs, told), glm(TWEEDIE), np.r_[np.zeros(9), -3.0], 12, weighted=True)


def proportional_hazards(seed):
    """Cox's partial likelihood: a row is an event with all 16 patients of its clinic, and who was still at risk."""
    random = np.random.default_rng(seed)
    truth = 0.7 * random.normal(size=10)
    parts = []
    for _ in range(45):
        patients = random.normal(size=(16, 10)) + 0.5 * random.normal(size=10)
        times = random.exponential(np.exp(-patients @ truth))
        end = random.exponential(2.0 * np.median(times), size=16)
        events = np.flatnonzero(times <= end) if (times <= end).any() else np.array([times.argmin()])
        risk = np.minimum(times, end) >= times[events, None]
        parts.append({"event": patients[events], "all": np.stack([patients] * len(events)), "risk": risk})

    def loss(x, rows):
        scores = jnp.where(rows["risk"], rows["all"] @ x, -1e9)
        return jax.nn.logsumexp(scores, axis=1) - rows["event"] @ x + 0.5e-2 * jnp.sum(x**2)

    return HeldOut(parts, loss, np.zeros(10), 9)


def groups_of_columns(seed):
    """Least squares with a smoothed group lasso: two of eight groups of columns matter."""
    random = np.random.default_rng(seed)
    truth = np.where(np.arange(40) < 10, random.normal(size=40), 0.0)
    inputs = [random.normal(size=(15, 40)) + 0.4 * random.normal(size=40) for _ in range(30)]
    told = [made @ truth + 0.5 * random.normal(size=15) for made in inputs]
    square = glm(SQUARE, 1e-3)
    loss = lambda x, rows: square(x, rows) + 0.1 * jnp.sum(norm(x.reshape(8, 5), 1e-2))
    return HeldOut(parts_of(inputs, told), loss, np.zeros(40), 5)


def steps_of_a_signal(seed):
    """A fused lasso, smoothed: a client sees a quarter of a signal that is constant in pieces."""
    random = np.random.default_rng(seed)
    signal = np.repeat(2 * random.normal(size=8), 8)
    parts = []
    for client in range(40):
        at = (16 * client // 10 + random.integers(0, 16, size=30)) % 64
        parts.append({"at": at, "value": signal[at] + 0.5 * random.normal(size=30)})

    def loss(x, rows):
        return 0.5 * (x[rows["at"]] - rows["value"]) ** 2 + 0.01 * jnp.sum(norm(jnp.diff(x)[:, None], 1e-2))

    return HeldOut(parts, loss, np.zeros(64), 8)


def categories(seed):
    """Indicators of three categories with 40, 15 and 6 levels; clients prefer different levels and differ in size."""
    random = np.random.default_rng(seed)
    levels = (40, 15, 6)
    truth = random.normal(size=sum(levels))
    inputs = []
    for rows in sizes(seed, 120, 0.8):
        likes = [random.dirichlet(count / np.arange(1, count + 1)) for count in levels]
        inputs.append(np.hstack([np.eye(len(like))[random.choice(len(like), size=rows, p=like)] for like in likes]))
    labels = coin(random, [made @ truth for made in inputs])
    return HeldOut(parts_of(inputs, labels), glm(LOGISTIC, 1e-3), np.zeros(sum(levels)), 15, weighted=True)


def rankings(seed):
    """Plackett-Luce: people rank five things by their features, and tastes differ."""
    random = np.random.default_rng(seed)
    truth = random.normal(size=12)
    parts = []
    for _ in range(50):
        things = random.normal(size=(10, 5, 12))
        score = things @ (truth + 0.6 * random.normal(size=12)) + random.gumbel(size=(10, 5))
        parts.append({"ranked": np.take_along_axis(things, np.argsort(-score, axis=1)[:, :, None], axis=1)})

    def loss(x, rows):
        scores = rows["ranked"] @ x
        picks = [jax.nn.logsumexp(scores[:, k:], axis=1) - scores[:, k] for k in range(4)]
        return sum(picks) + 0.5e-2 * jnp.sum(x**2)

    return HeldOut(parts, loss, np.zeros(12), 7)


def patches(seed):
    """Least squares on 150 random Fourier features of the plane; a client sees one patch of it."""
    random = np.random.default_rng(seed)
    waves, phase = 1.5 * random.normal(size=(2, 150)), 2 * np.pi * random.random(150)
    parts = []
    for _ in range(25):
        at = random.uniform(-2, 2, size=2) + 0.5 * random.normal(size=(20, 2))
        value = np.sin(2 * at[:, 0]) * np.cos(at[:, 1]) + 0.1 * random.normal(size=20)
        parts.append({"input": np.cos(at @ waves + phase) / np.sqrt(15), "output": value})
    return HeldOut(parts, glm(SQUARE, 1e-3), np.zeros(150), 5)


def withheld(seed):
    """Large entries are missing more often, at a rate of each client: zeros stand for them, and indicators."""
    random = np.random.default_rng(seed)
    truth = random.normal(size=9)
    inputs, told = [], []
    for _ in range(70):
        full = random.normal(size=(20, 9))
        missing = random.random(size=(20, 9)) < 1 / (1 + np.exp(1.5 - 2 * full - random.normal()))
        inputs.append(np.hstack([np.where(missing, 0.0, full), missing, np.ones((20, 1))]))
        told.append(full @ truth + random.standard_t(3, size=20))
    return HeldOut(parts_of(inputs, told), glm(PSEUDO_HUBER), np.zeros(19), 7)


def trials(seed):
    """Successes among 1 to 1,000 trials: rows of very different curvature; all clients in each round."""
    random = np.random.default_rng(seed)
    made = draw(random, 15, 12, 6, spread=0.4, size=1.0, intercept=-1.0)
    told = []
    for scores in made.scores:
        count = np.clip(np.exp(random.normal(3.0, 1.5, size=12)), 1, 1000).astype(int)
        told.append(np.stack([count, random.binomial(count, 1 / (1 + np.exp(-scores)))], axis=1))
    return HeldOut(parts_of(made.inputs, told), glm(TRIALS), np.zeros(7), 15)


def spins(seed):
    """Pseudo-likelihood of an Ising model of twelve spins in a ring; each client has a field of its own."""
    random = np.random.default_rng(seed)
    pairs = np.triu_indices(12, 1)
    coupling = 0.5 * (np.roll(np.eye(12), 1, 0) + np.roll(np.eye(12), -1, 0))
    field = np.repeat(0.4 * random.normal(size=(35, 12)), 20, axis=0)
    spin = random.choice([-1.0, 1.0], size=(700, 12))
    for sweep in range(30 * 12):
        at = sweep % 12
        chance = 1 / (1 + np.exp(-2 * (field[:, at] + spin @ coupling[at])))
        spin[:, at] = np.where(random.random(700) < chance, 1.0, -1.0)

    def loss(x, rows):
        upper = jnp.zeros((12, 12)).at[pairs].set(x[:66])
        pull = rows["spin"] @ (upper + upper.T) + x[66:]
        return jnp.sum(jax.nn.softplus(-2 * rows["spin"] * pull), axis=1) + 0.5e-2 * jnp.sum(x**2)

    return HeldOut([{"spin": own} for own in spin.reshape(35, 20, 12)], loss, np.zeros(78), 7)


def seasons(seed):
    """Monthly sales of shops: indicators of months, a trend in months, a price in cents; shops opened at any time."""
    random = np.random.default_rng(seed)
    season, inputs, told = random.normal(size=12), [], []
    for _ in range(48):
        month = np.arange(random.integers(0, 30), 36)
        price = 100 + 30 * random.normal() + 10 * random.normal(size=month.size)
        inputs.append(np.column_stack([np.eye(12)[month % 12], month, price]))
        noise = 0.4 * random.normal() + 0.3 * random.normal(size=month.size)
        told.append(season[month % 12] + 0.05 * month - 0.02 * price + 5 + noise)
    return HeldOut(parts_of(inputs, told), glm(SQUARE, 1e-3), np.zeros(14), 6)


def geometric_median(seed):
    """The point with the least mean distance to others, from far away; two of 300 clients per round."""
    random = np.random.default_rng(seed)
    parts = []
    for _ in range(300):
        center = random.standard_t(2, size=3)
        parts.append({"at": center + 0.5 * random.normal(size=(random.integers(1, 9), 3))})
    return HeldOut(parts, lambda x, rows: norm(x - rows["at"], 0.01), [60.0, -30.0, 20.0], 2)


def doses(seed):
    """Hill's curve from four laboratories, each with its own range of doses: logarithms of top, half dose and slope."""
    random = np.random.default_rng(seed)
    parts = []
    for center in (-2.0, -0.5, 1.0, 2.5):
        dose = center + random.normal(size=20)
        effect = 3 / (1 + np.exp(-1.6 * (dose - 0.5))) * np.exp(0.05 * random.normal())
        parts.append({"dose": dose, "effect": effect + 0.1 * random.normal(size=20)})

    def loss(x, rows):
        top, half, slope = jnp.exp(x[0]), x[1], jnp.exp(x[2])
        return 0.5 * (top * jax.nn.sigmoid(slope * (rows["dose"] - half)) - rows["effect"]) ** 2

    return HeldOut(parts, loss, np.zeros(3), 4)


def angles(seed):
    """Regression of an angle, which has a period: a client's loss has many minima."""
    random = np.random.default_rng(seed)
    made = draw(random, 100, 12, 5, spread=0.15, size=1.2, intercept=0.4)
    told = [random.vonmises(s, 4.0) for s in made.scores]
    return HeldOut(parts_of(made.inputs, told), glm(ANGLE, 1e-4), np.zeros(6), 10)


def unknown_scale(seed):
    """Student's t with three degrees of freedom; its scale is sought too, and begins 20 times too large."""
    random = np.random.default_rng(seed)
    made = draw(random, 60, sizes(seed, 60, 0.8), 8, spread=0.2)
    told = [s + np.exp(0.5 * random.normal()) * random.standard_t(3, size=s.shape) for s in made.scores]

    def loss(x, rows):
        residual = rows["output"] - rows["input"] @ x[:9]
        return x[9] + 2 * jnp.log1p(residual**2 * jnp.exp(-2 * x[9]) / 3)

    return HeldOut(parts_of(made.inputs, told), loss, np.r_[np.zeros(9), 3.0], 12, weighted=True)


def autoencoder(seed):
    """Twelve columns through three tanh units and back; the clients' rows lie near surfaces that differ a little."""
    random = np.random.default_rng(seed)
    mixing = random.normal(size=(3, 12))
    parts = []
    for _ in range(30):
        made = random.normal(size=(20, 3)) @ (mixing + 0.3 * random.normal(size=(3, 12)))
        parts.append({"input": np.tanh(made) + 0.1 * random.normal(size=(20, 12))})

    def loss(x, rows):
        code = jnp.tanh(rows["input"] @ x[:36].reshape(12, 3) + x[36:39])
        away = code @ x[39:75].reshape(3, 12) + x[75:] - rows["input"]
        return 0.5 * jnp.sum(away**2, axis=1) + 0.5e-3 * jnp.sum(x**2)

    return HeldOut(parts, loss, 0.4 * random.normal(size=87), 6)


def ratings(seed):
    """Two hidden traits of 30 films; a row is a viewer's ratings, and the viewer's own traits are solved for."""
    random = np.random.default_rng(seed)
    films = random.normal(size=(30, 2))
    parts = []
    for _ in range(60):
        viewers = random.integers(1, 7)
        seen = random.random(size=(viewers, 30)) < 0.4
        seen[:, random.integers(0, 30)] = True
        tastes = random.normal(size=2) + random.normal(size=(viewers, 2))
        parts.append({"seen": seen, "rating": tastes @ films.T + 0.3 * random.normal(size=(viewers, 30))})

    def loss(x, rows):
        traits = x.reshape(30, 2)
        known = rows["seen"][:, :, None] * traits
        target = rows["seen"] * rows["rating"]
        system = jnp.einsum("nfi,nfj->nij", known, known) + 0.3 * jnp.eye(2)
        (a, b), (_, d), right = system[:, 0].T, system[:, 1].T, target @ traits
        flipped = jnp.stack([d * right[:, 0] - b * right[:, 1], a * right[:, 1] - b * right[:, 0]], axis=1)
        own = flipped / (a * d - b * b)[:, None]
        away = target - jnp.einsum("nfi,ni->nf", known, own)
        return 0.05 * (jnp.sum(away**2, axis=1) + 0.3 * jnp.sum(own**2, axis=1)) + 0.5e-3 * jnp.sum(x**2)

    return HeldOut(parts, loss, 0.5 * random.normal(size=60), 6)


def wide_network(seed):
    """A GELU network that can fit all rows exactly: 240 parameters for 160 rows, and no noise."""
    random = np.random.default_rng(seed)
    first, second = random.normal(size=(5, 3)), random.normal(size=3)
    parts = []
    for _ in range(20):
        rows = random.normal(size=(8, 5)) + 0.5 * random.normal(size=5)
        parts.append({"input": rows, "output": np.asarray(np.tanh(rows @ first) @ second)})

    def loss(x, rows):
        layer = jax.nn.gelu(rows["input"] @ x[:200].reshape(5, 40))
        return 0.5 * (layer @ x[200:] / np.sqrt(40) - rows["output"]) ** 2

    return HeldOut(parts, loss, random.normal(size=240), 4)


def letters(text):
    """The places of the characters in `LETTERS`."""
    return np.array([max(LETTERS.find(sign), 0) for sign in text.lower()])


def pairs_of_letters(data):
    """Shakespeare: which letter follows which, by the first 3,000 characters of twelve long roles."""
    longest = {}
    for role, text in read_roles(data).items():
        longest[role.split("/")[0]] = max(longest.get(role.split("/")[0], ""), text, key=len)
    parts = []
    for play in sorted(longest)[:12]:
        read = letters(longest[play][:3000])
        counts = np.zeros((27, 27))
        np.add.at(counts, (read[:-1], read[1:]), 1.0)
        parts.append({"from": np.arange(27), "share": 27 * counts / counts.sum()})

    def loss(x, rows):
        scores, share = x.reshape(27, 27)[rows["from"]], rows["share"]
        told = share.sum(1) * jax.nn.logsumexp(scores, axis=1) - jnp.sum(share * scores, axis=1)
        return told + 0.5e-3 * jnp.sum(x**2)

    return HeldOut(parts, loss, np.zeros(729), 3)


def vowels(data):
    """Shakespeare: whether a vowel is next, from the last three letters; the roles speak little or much."""
    told = [letters(text[:4000]) for text in read_roles(data).values() if len(text) < 4000][:600:10]
    parts = []
    for read, most in zip(told, sizes(1031, len(told), 1.0), strict=True):
        rows = min(max(most, 2), len(read) - 3)
        before = np.hstack([np.eye(27)[read[k : k + rows]] for k in range(3)] + [np.ones((rows, 1))])
        parts.append({"input": before, "output": np.where(np.isin(read[3 : 3 + rows], letters("aeiou")), 1.0, -1.0)})
    return HeldOut(parts, glm(LOGISTIC, 1e-3), np.zeros(82), 12, weighted=True)


def read_garments(data, classes, count):
    """Images of some classes of Fashion-MNIST, as rows from 0 to 1, and their labels."""
    path = lambda kind: data_path(f"fashion_mnist/t10k-{kind}-ubyte", data, endings=(".gz", ""))
    read = datasets.read_labeled(path("images-idx3"), path("labels-idx1"), scaled=False)
    chosen = np.flatnonzero(np.isin(read["label"], classes))[:count]
    return read["features"][chosen].reshape(count, -1) / 255.0, read["label"][chosen]


def pixels(data):
    """T-shirt or shirt from 784 pixels; the four clients have images of different brightness, two of them per round."""
    images, label = read_garments(data, (0, 6), 160)
    owners = np.argsort(np.argsort(images.mean(1))) // 40
    rows = np.hstack([images, np.ones((160, 1))])
    return HeldOut(grouped(rows, np.where(label == 6, 1.0, -1.0), owners), glm(LOGISTIC, 1e-2), np.zeros(785), 2)


def shoes(data):
    """A GELU network tells three kinds of shoes apart; a client has two of the kinds."""
    images, label = read_garments(data, (5, 7, 9), 600)
    rows, kind = components(images, 8), (label - 5) // 2
    random = np.random.default_rng(1033)
    owners = (kind + random.integers(0, 2, size=600)) % 3 + 3 * random.integers(0, 8, size=600)
    softmax = softmax_loss(3, 1e-3)

    def loss(x, rows):
        layer = jax.nn.gelu(rows["input"] @ x[:54].reshape(9, 6))
        return softmax(x[54:], {"input": layer, "output": rows["output"]}) + 0.5e-3 * jnp.sum(x[:54] ** 2)

    return HeldOut(grouped(rows, kind, owners), loss, 0.5 * random.normal(size=72), 6)


def case_of_letters(data):
    """Capital or small letter from 30 components, by the writers that were left out of FEMNIST's training part."""
    unseen = datasets.read_femnist(data).unseen
    owners = np.repeat(np.arange(len(unseen)), unseen.sizes)
    chosen = unseen.examples["label"] >= 10
    rows = components(unseen.examples["features"][chosen].reshape(chosen.sum(), -1) / 255.0, 30)
    label = np.where(unseen.examples["label"][chosen] < 36, 1.0, -1.0)
    return HeldOut(grouped(rows, label, owners[chosen], most=20), glm(MODIFIED_HUBER), np.zeros(31), 20)


def rest_in_raw_units(data):
    """Sitting, standing or laying from eleven features of HAR in their own units, by person, three per round."""
    har = datasets.read_har(data)
    still = har.labels >= 3
    rows = np.hstack([har.features[still][:, ::12], np.ones((still.sum(), 1))])
    shuffled = np.random.default_rng(1035).permutation(len(rows))
    parts = grouped(rows[shuffled], har.labels[still][shuffled] - 3, har.person[still][shuffled], most=20)
    return HeldOut(parts, softmax_loss(3, 1e-2), np.zeros(36), 3)


def pairs_of_patients(data):
    """A score that ranks the ill above the healthy of the same hospital: all four hospitals in each round."""
    heart = datasets.read_heart(data)
    features = (heart.features - heart.features.mean(0)) / heart.features.std(0)
    random = np.random.default_rng(1036)
    parts = []
    for hospital in range(4):
        ill, healthy = (features[(heart.hospital == hospital) & (heart.labels == which)] for which in (1, 0))
        pairs = random.choice(len(ill), size=60), random.choice(len(healthy), size=60)
        parts.append({"input": ill[pairs[0]] - healthy[pairs[1]], "output": np.ones(60)})
    return HeldOut(parts, glm(LOGISTIC, 1e-2), np.zeros(13), 4)


def focal(data):
    """a9a with the focal loss; 300 clients have five rows each at random, and a tenth of them take part."""
    table = datasets.read_libsvm(data_path("libsvm/a9a", data))
    chosen = np.random.default_rng(1037).permutation(len(table.labels))[:1500]
    features = table.features[chosen]
    used = features.std(0) > 0
    return HeldOut(
        grouped(features[:, used], np.sign(table.labels[chosen]), np.arange(1500) // 5), glm(FOCAL, 1e-3),
        np.zeros(used.sum()), 30,
    )  # fmt: skip


def crossed_categories(data):
    """A factorization machine of rank two on mushrooms; the rows' first component orders them into 30 clients."""
    table = datasets.read_libsvm(data_path("libsvm/mushrooms", data))
    random = np.random.default_rng(1038)
    chosen = random.permutation(len(table.labels))[:600]
    features, labels = table.features[chosen], table.labels[chosen]
    features = features[:, features.std(0) > 0]
    order = np.argsort(components(features, 1)[:, 0])
    cuts = np.sort(random.choice(np.arange(1, 600), size=29, replace=False))
    owners = np.searchsorted(cuts, np.arange(600), side="right")
    columns = features.shape[1]

    def loss(x, rows):
        each = x[columns : 3 * columns].reshape(columns, 2)
        crossed = jnp.sum((rows["input"] @ each) ** 2 - rows["input"] ** 2 @ each**2, axis=1)
        score = rows["input"] @ x[:columns] + 0.5 * crossed + x[-1]
        return LOGISTIC(score, rows["output"]) + 0.5e-2 * jnp.sum(x**2)

    label = np.where(labels == labels.max(), 1.0, -1.0)
    start = np.r_[np.zeros(columns), 0.1 * random.normal(size=2 * columns), 0.0]
    return HeldOut(grouped(features[order], label[order], owners, most=25), loss, start, 3, weighted=True)


def problems(data: Path | None) -> dict[str, Callable[[], HeldOut]]:
    """All of them, by name; those on real data need its folder."""
    return {
        "expectile, blocks of columns": lambda: blocks(1001),
        "Tweedie, by rows": lambda: claims(1002),
        "proportional hazards": lambda: proportional_hazards(1003),
        "groups of columns": lambda: groups_of_columns(1004),
        "steps of a signal": lambda: steps_of_a_signal(1005),
        "categories of many levels": lambda: categories(1006),
        "rankings of five": lambda: rankings(1007),
        "patches of the plane": lambda: patches(1008),
        "withheld entries": lambda: withheld(1009),
        "trials, all of fifteen": lambda: trials(1010),
        "spins": lambda: spins(1011),
        "seasons, raw columns": lambda: seasons(1012),
        "geometric median, far start": lambda: geometric_median(1013),
        "doses, all of four": lambda: doses(1014),
        "angles": lambda: angles(1015),
        "unknown scale": lambda: unknown_scale(1016),
        "autoencoder": lambda: autoencoder(1017),
        "ratings, viewers solved for": lambda: ratings(1018),
        "wide network, interpolated": lambda: wide_network(1019),
        "pairs of letters": lambda: pairs_of_letters(data),
        "vowels by role": lambda: vowels(data),
        "pixels, two of four": lambda: pixels(data),
        "shoes, GELU network": lambda: shoes(data),
        "case of letters": lambda: case_of_letters(data),
        "rest in raw units": lambda: rest_in_raw_units(data),
        "pairs of patients, all of four": lambda: pairs_of_patients(data),
        "a9a, focal loss": lambda: focal(data),
        "mushrooms, crossed": lambda: crossed_categories(data),
    }

"""The problems that methods are compared on, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from fedspam import datasets
from fedspam._internal import checks
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import Loss, Population, Ragged
from fedspam.methods import Scales
from fedspam.problems import Quadratics, SoftmaxLoss, logistic, quadratics, ridge, row_weights, softmax, solve

REGULARIZATION = 1e-3


@dataclass(frozen=True)
class Problem:
    """Clients, a start, what is known of them, and how the distance to the goal is looked at.

    Arguments:
        what: one line for the reader.
        look: params -> {'gradient': relative gradient norm} and, where there is a test set, 'accuracy'.
        client_smoothness: the largest smoothness constant of a client.
        optimum: the least value of f, where it is known.
        exact: whether clients can answer a prox in closed form.
    """

    name: str
    what: str
    population: Population
    start: Params
    look: Any
    delta: float
    smoothness: float
    client_smoothness: float
    clients: int
    optimum: float | None = None
    exact: bool = False

    def scales(self, cohort: int) -> Scales:
        return Scales(self.delta, self.smoothness, self.clients, cohort)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(self.look(self.start))


@struct
class QuadraticCurve:
    """The relative gradient norm of a quadratic f."""

    hessian: Float[Array, "d d"]
    linear: Float[Array, " d"]
    unit: Scalar

    def __call__(self, x: Float[Array, " d"]) -> dict[str, Scalar]:
        return {"gradient": jnp.linalg.norm(self.hessian @ x - self.linear) / self.unit}


@struct
class RegressionLook:
    """The relative gradient norm of a regression, in one pass over all rows; and the accuracy on a test set."""

    examples: dict[str, Array]
    weights: Float[Array, " rows"]
    unit: Scalar
    test_features: Float[Array, "tests d"] | None
    test_labels: Integer[Array, " tests"] | None
    loss: Loss = static()

    def __call__(self, x: Params) -> dict[str, Scalar]:
        slope = jax.grad(lambda x: jnp.vdot(self.weights, self.loss(x, self.examples)))(x)
        seen = {"gradient": jnp.linalg.norm(slope) / self.unit}
        if self.test_features is not None:
            scores = self.test_features @ x
            guess = jnp.argmax(scores, axis=1) if isinstance(self.loss, SoftmaxLoss) else (scores > 0)
            seen["accuracy"] = jnp.mean(guess == self.test_labels, dtype=self.unit.dtype)
        return seen


def of_quadratics(name: str, what: str, people: Quadratics, start: Any) -> Problem:
    """A problem of quadratic clients, all of whose constants are known."""
    start = jnp.asarray(start, people.hessians.dtype)
    hessian, linear = people.hessians.mean(0), people.linears.mean(0)
    look = QuadraticCurve(hessian, linear, jnp.linalg.norm(hessian @ start - linear))
    return Problem(
        name, what, people, start, look, people.delta, people.smoothness, float(people.client_smoothness.max()),
        people.size, people.optimum, exact=True,
    )  # fmt: skip


def of_regression(name: str, what: str, people: Ragged, start: Any, test: tuple[Any, Any] | None = None) -> Problem:
    """A problem of a regression made by `logistic` or `softmax`; solving it for its constants takes a while."""
    start = jnp.asarray(start)
    found = solve(people, start)
    weights, dtype = jnp.asarray(row_weights(people), start.dtype), start.dtype
    features, labels = (None, None) if test is None else (jnp.asarray(test[0], dtype), jnp.asarray(test[1], jnp.int32))
    look = RegressionLook(people.examples, weights, jnp.ones((), dtype), features, labels, loss=people.loss)
    look = RegressionLook(
        people.examples, weights, look(start)["gradient"], features, labels, loss=people.loss
    )  # relative to the start
    return Problem(
        name, what, people, start, look, found.delta, found.smoothness, found.smoothness + found.delta, people.size,
        float(found.value) if found.convex else None,
    )  # fmt: skip


# --- by name ---------------------------------------------------------------------------------------------------------


def similar_quadratics(
    ratio: float, noise: float, *, clients: int = 200, dimension: int = 20, seed: int = 0
) -> tuple[Quadratics, Float[np.ndarray, " d"]]:
    r"""Quadratics with L = 1, condition 200 and the given :math:`\delta/L`.

    Clients deviate from f equally in all directions, so that they are not convex, though f is: clients that deviate
    less where f curves less would be much easier than :math:`\delta` says.

    Arguments:
        ratio: :math:`\delta/L`, above 0.005.
        noise: the spread :math:`\sigma` of the clients' gradients at the minimiser, over :math:`\|\nabla f(0)\|`.
    """
    make = lambda noise: quadratics(
        seed, clients, dimension, delta=ratio, condition=200.0, curvature=0.005, noise=noise, nonconvex=True
    )
    start = np.zeros(dimension)
    # the noise changes neither the mean Hessian nor the minimiser, so neither the gradient at 0
    unit = float(jnp.linalg.norm(make(0.0).gradient(jnp.asarray(start))))
    return make(noise * unit), start


def _ridge(folder: Path | None) -> Problem:
    people, start = ridge(0)
    return of_quadratics("ridge", "the paper's ridge regression: 10 clients, d = 100", people, start)


def _ridge_similar(folder: Path | None) -> Problem:
    people, start = ridge(0, clients=200, dimension=20, scale=0.01)
    return of_quadratics("ridge-similar", "the paper's ridge, alike: scale 0.01, 200 clients, d = 20", people, start)


def _quadratics(folder: Path | None) -> Problem:
    people, start = similar_quadratics(0.03, 0.01)
    what = "quadratics: 200 clients, d = 20, condition 200, delta/L = 0.03, noise 0.01 |grad f(0)|"
    return of_quadratics("quadratics", what, people, start)


def _libsvm(name: str, clients: int, nonconvex: bool) -> Callable[[Path | None], Problem]:
    def build(folder: Path | None) -> Problem:
        endings = ("", ".gz", ".bz2")
        width = {"a9a": 123, "mushrooms": 112}[name]
        train = datasets.read_libsvm(datasets.data_path(f"libsvm/{name}", folder, endings=endings), features=width)
        labels = (train.labels == train.labels.max()).astype(int)  # a9a has -1 and 1, mushrooms 1 and 2
        owners = datasets.dirichlet(labels, clients, alpha=1.0, least=20)
        people = logistic(train.features, labels, owners, regularization=REGULARIZATION, nonconvex=nonconvex)
        test = None
        if name == "a9a":
            held = datasets.read_libsvm(datasets.data_path("libsvm/a9a.t", folder, endings=endings), features=width)
            test = held.features, held.labels == held.labels.max()
        kind = "non-convex logistic" if nonconvex else "logistic"
        what = f"{kind} regression on {name}, {clients} clients by Dirichlet(1), lambda = {REGULARIZATION}"
        key = f"{name}-nonconvex" if nonconvex else name
        return of_regression(key, what, people, np.zeros(width), test)

    return build


def _har(folder: Path | None) -> Problem:
    data = datasets.read_har(folder)
    owners, _ = datasets.by_key(data.person)
    held = _held_out(owners, 0.2)
    features = _standardised(data.features, ~held)
    train = softmax(features[~held], data.labels[~held], owners[~held], regularization=REGULARIZATION)
    what = f"softmax regression on HAR, 30 persons, a fifth of each held out, lambda = {REGULARIZATION}"
    start = np.zeros((features.shape[1], len(datasets.ACTIVITIES)))
    return of_regression("har", what, train, start, (features[held], data.labels[held]))


def _heart(folder: Path | None) -> Problem:
    data = datasets.read_heart(folder)
    held = _held_out(data.hospital, 0.34)
    features = _standardised(data.features, ~held)
    people = logistic(features[~held], data.labels[~held], data.hospital[~held], regularization=0.01)
    what = "logistic regression on heart disease, 4 hospitals, a third of each held out, lambda = 0.01"
    return of_regression("heart", what, people, np.zeros(features.shape[1]), (features[held], data.labels[held]))


def _held_out(owners: np.ndarray, share: float) -> np.ndarray:
    """A share of every client's rows, drawn without regard to anything else."""
    held = np.zeros(len(owners), bool)
    random = np.random.default_rng(0)
    for owner in np.unique(owners):
        rows = np.flatnonzero(owners == owner)
        held[random.permutation(rows)[: round(share * len(rows))]] = True
    return held


def _standardised(features: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Mean 0 and deviation 1 over the training rows, and a column of ones."""
    deviation = features[train].std(0)
    scaled = (features - features[train].mean(0)) / np.where(deviation > 0, deviation, 1)
    return np.concatenate([scaled, np.ones((len(features), 1))], axis=1)


@dataclass(frozen=True)
class NamedProblem:
    """A problem that can be asked for, and how it is compared on unless one says otherwise."""

    build: Callable[[Path | None], Problem]
    clients: int
    cohort: int
    rounds: int
    targets: tuple[float, ...]
    accuracies: tuple[float, ...] = ()  # levels to reach on its test set, where it has one


PROBLEMS: Mapping[str, NamedProblem] = {
    "ridge": NamedProblem(_ridge, 10, 2, 400, (0.1, 0.01, 0.003)),
    "ridge-similar": NamedProblem(_ridge_similar, 200, 10, 300, (0.1, 0.01, 0.002)),
    "quadratics": NamedProblem(_quadratics, 200, 10, 300, (0.1, 0.01, 0.002)),
    "a9a": NamedProblem(_libsvm("a9a", 100, False), 100, 10, 150, (0.1, 0.03, 0.01), (0.83, 0.84, 0.845)),
    "a9a-nonconvex": NamedProblem(_libsvm("a9a", 100, True), 100, 10, 150, (0.1, 0.03, 0.01), (0.83, 0.84, 0.845)),
    "mushrooms": NamedProblem(_libsvm("mushrooms", 50, False), 50, 10, 150, (0.1, 0.03, 0.01)),
    "mushrooms-nonconvex": NamedProblem(_libsvm("mushrooms", 50, True), 50, 10, 150, (0.1, 0.03, 0.01)),
    "har": NamedProblem(_har, 30, 6, 100, (0.1, 0.03, 0.01), (0.9, 0.95, 0.97)),
    "heart": NamedProblem(_heart, 4, 2, 300, (0.1, 0.03, 0.01), (0.75, 0.78)),
}


def load(name: str, folder: str | Path | None = None) -> Problem:
    """The problem of that name.

    >>> problem = load("ridge")
    >>> problem.clients, bool(problem.delta < problem.smoothness)
    (10, True)
    """
    checks.one_of("problem", name, PROBLEMS)
    return PROBLEMS[name].build(None if folder is None else Path(folder))

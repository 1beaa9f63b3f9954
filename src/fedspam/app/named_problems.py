"""The problems that methods are compared on, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
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
from fedspam.datasets import FederatedData
from fedspam.methods import Scales
from fedspam.problems import Quadratics, SoftmaxLoss, logistic, quadratics, ridge, row_weights, softmax, solve
from fedspam.problems.quadratic import quadratic

REGULARIZATION = 1e-3


@dataclass(frozen=True)
class Problem:
    """Clients, a start, their constants, and the probe that measures the error."""

    name: str
    what: str  # one line that describes it
    population: Population
    start: Params
    probe: Any  # params -> {'gradient': relative gradient norm} and, where there is a test set, 'accuracy'
    delta: float
    smoothness: float
    client_smoothness: float  # the largest smoothness constant of a client
    clients: int
    optimum: float | None = None  # the minimum of f, if it is known
    exact: bool = False  # whether clients can compute a prox in closed form
    solver: Any = None  # the local solver of every prox; None for the one of each method

    def scales(self, cohort: int) -> Scales:
        return Scales(self.delta, self.smoothness, self.clients, cohort)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(self.probe(self.start))


@struct
class QuadraticProbe:
    """f and its relative gradient norm, for quadratic clients."""

    hessian: Float[Array, "d d"]
    linear: Float[Array, " d"]
    constant: Scalar
    unit: Scalar

    @classmethod
    def of(cls, clients: Quadratics, start: Float[Array, " d"]) -> "QuadraticProbe":
        """The probe whose gradient norm is 1 at the start."""
        hessian, linear = clients.hessians.mean(0), clients.linears.mean(0)
        return cls(hessian, linear, clients.constants.mean(), jnp.linalg.norm(hessian @ start - linear))

    def __call__(self, x: Float[Array, " d"]) -> dict[str, Scalar]:
        gradient = jnp.linalg.norm(self.hessian @ x - self.linear) / self.unit
        return {"loss": quadratic(x, self.hessian, self.linear, self.constant), "gradient": gradient}


@struct
class RegressionProbe:
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


def of_quadratics(name: str, what: str, clients: Quadratics, start: Any) -> Problem:
    """A problem with quadratic clients; all constants are known."""
    start = jnp.asarray(start, clients.hessians.dtype)
    probe = QuadraticProbe.of(clients, start)
    return Problem(
        name, what, clients, start, probe, clients.delta, clients.smoothness, float(clients.client_smoothness.max()),
        clients.size, clients.optimum, exact=True,
    )  # fmt: skip


def of_regression(name: str, what: str, clients: Ragged, start: Any, test: tuple[Any, Any] | None = None) -> Problem:
    """A regression made by `logistic` or `softmax`. Measuring its constants takes a few seconds."""
    start = jnp.asarray(start)
    found = solve(clients, start)
    weights, dtype = jnp.asarray(row_weights(clients), start.dtype), start.dtype
    features, labels = (None, None) if test is None else (jnp.asarray(test[0], dtype), jnp.asarray(test[1], jnp.int32))
    probe = RegressionProbe(clients.examples, weights, jnp.ones((), dtype), features, labels, loss=clients.loss)
    probe = replace(probe, unit=probe(start)["gradient"])  # relative to the start
    return Problem(
        name, what, clients, start, probe, found.delta, found.smoothness, found.smoothness + found.delta, clients.size,
        float(found.value) if found.convex else None,
    )  # fmt: skip


# --- by name ---------------------------------------------------------------------------------------------------------


def similar_quadratics(
    ratio: float, noise: float, *, clients: int = 200, dimension: int = 20, seed: int = 0
) -> tuple[Quadratics, Float[np.ndarray, " d"]]:
    r"""Quadratics with L = 1, condition 200 and the given :math:`\delta/L`.

    Clients deviate from f equally in all directions, so they are not convex, although f is. Clients that deviate
    less where f has less curvature would be much easier than :math:`\delta` suggests.

    Arguments:
        ratio: :math:`\delta/L`, above 0.005.
        noise: the spread :math:`\sigma` of the clients' gradients at the minimizer, over :math:`\|\nabla f(0)\|`.
    """
    fixed = {"delta": ratio, "condition": 200.0, "curvature": 0.005, "nonconvex": True}
    make = lambda noise: quadratics(seed, clients, dimension, noise=noise, **fixed)
    start = np.zeros(dimension)
    # the noise changes neither the mean Hessian nor the minimizer, so neither the gradient at 0
    unit = float(jnp.linalg.norm(make(0.0).gradient(jnp.asarray(start))))
    return make(noise * unit), start


def _ridge(folder: Path | None) -> Problem:
    return of_quadratics("ridge", "the paper's ridge regression: 10 clients, d = 100", *ridge(0))


def _ridge_similar(folder: Path | None) -> Problem:
    what = "the paper's ridge, similar clients: scale 0.01, 200 clients, d = 20"
    return of_quadratics("ridge-similar", what, *ridge(0, clients=200, dimension=20, scale=0.01))


def _quadratics(folder: Path | None) -> Problem:
    what = "quadratics: 200 clients, d = 20, condition 200, δ/L = 0.03, noise 0.01 ‖∇f(0)‖"
    return of_quadratics("quadratics", what, *similar_quadratics(0.03, 0.01))


def _libsvm(name: str, clients: int, nonconvex: bool, folder: Path | None) -> Problem:
    endings = ("", ".gz", ".bz2")
    width = {"a9a": 123, "mushrooms": 112}[name]
    train = datasets.read_libsvm(datasets.data_path(f"libsvm/{name}", folder, endings=endings), features=width)
    labels = (train.labels == train.labels.max()).astype(int)  # a9a has -1 and 1, mushrooms 1 and 2
    owners = datasets.dirichlet(labels, clients, alpha=1.0, least=20)
    population = logistic(train.features, labels, owners, regularization=REGULARIZATION, nonconvex=nonconvex)
    test = None
    if name == "a9a":
        held = datasets.read_libsvm(datasets.data_path("libsvm/a9a.t", folder, endings=endings), features=width)
        test = held.features, held.labels == held.labels.max()
    kind = "non-convex logistic" if nonconvex else "logistic"
    what = f"{kind} regression on {name}, {clients} clients by Dirichlet(1), λ = {REGULARIZATION}"
    key = f"{name}-nonconvex" if nonconvex else name
    return of_regression(key, what, population, np.zeros(width), test)


def _har(folder: Path | None) -> Problem:
    data = datasets.read_har(folder)
    train, test = _prepared(data.features, data.labels, datasets.by_key(data.person)[0], 0.2)
    what = f"softmax regression on HAR, 30 persons, a fifth of each held out, λ = {REGULARIZATION}"
    start = np.zeros((train[0].shape[1], len(datasets.ACTIVITIES)))
    return of_regression("har", what, softmax(*train, regularization=REGULARIZATION), start, test[:2])


def _heart(folder: Path | None) -> Problem:
    train, test = _prepared(*datasets.read_heart(folder)[:3], 0.34)
    what = "logistic regression on heart disease, 4 hospitals, a third of each held out, λ = 0.01"
    return of_regression("heart", what, logistic(*train, regularization=0.01), np.zeros(train[0].shape[1]), test[:2])


def _prepared(features: Any, labels: Any, owners: Any, share: float) -> Any:
    """Training and test rows of every client: features, standardized and with a column of ones, labels and owners."""
    rows = FederatedData.by({"features": features, "label": labels, "owner": owners}, owners)
    parts = [part.examples for part in rows.hold_out_examples(share)]
    scale = datasets.Standardizer.of(parts[0]["features"])
    return [(scale(part["features"], intercept=True), part["label"], part["owner"]) for part in parts]


@dataclass(frozen=True)
class NamedProblem:
    """A problem that `load` knows by name, and the defaults for comparisons on it."""

    build: Callable[[Path | None], Problem]
    clients: int
    cohort: int
    rounds: int
    targets: tuple[float, ...]
    accuracies: tuple[float, ...] = ()  # targets on its test set, if it has one


NORMS, FAR, A9A = (0.1, 0.03, 0.01), (0.1, 0.01, 0.002), (0.83, 0.84, 0.845)  # targets
PROBLEMS: Mapping[str, NamedProblem] = {
    "ridge": NamedProblem(_ridge, 10, 2, 400, (0.1, 0.01, 0.003)),
    "ridge-similar": NamedProblem(_ridge_similar, 200, 10, 300, FAR),
    "quadratics": NamedProblem(_quadratics, 200, 10, 300, FAR),
    "a9a": NamedProblem(partial(_libsvm, "a9a", 100, False), 100, 10, 150, NORMS, A9A),
    "a9a-nonconvex": NamedProblem(partial(_libsvm, "a9a", 100, True), 100, 10, 150, NORMS, A9A),
    "mushrooms": NamedProblem(partial(_libsvm, "mushrooms", 50, False), 50, 10, 150, NORMS),
    "mushrooms-nonconvex": NamedProblem(partial(_libsvm, "mushrooms", 50, True), 50, 10, 150, NORMS),
    "har": NamedProblem(_har, 30, 6, 100, NORMS, (0.9, 0.95, 0.97)),
    "heart": NamedProblem(_heart, 4, 2, 300, NORMS, (0.75, 0.78)),
}


def load(name: str, folder: str | Path | None = None) -> Problem:
    """The problem of that name.

    >>> problem = load("ridge")
    >>> problem.clients, bool(problem.delta < problem.smoothness)
    (10, True)
    """
    checks.one_of("problem", name, PROBLEMS)
    return PROBLEMS[name].build(None if folder is None else Path(folder))

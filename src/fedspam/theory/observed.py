r"""Record in every round of a method the quantities of the theorems: :math:`V_k`, :math:`e_k`, :math:`\sigma`."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, Scalar, static, struct
from fedspam.clients import Oracle, Population
from fedspam.federation import Federation
from fedspam.methods._template import Factored, FactoredState
from fedspam.methods.estimators import MVR
from fedspam.methods.spam import Spam
from fedspam.methods.spam_pp import SpamPP
from fedspam.solvers import Certificate, LocalSolver
from fedspam.theory.constants import APPENDIX
from fedspam.theory.lemmas import lyapunov


class WatchedCertificate(NamedTuple):
    """A certificate, and the squared gradient of f at the answer."""

    report = True

    certificate: Certificate
    slope: Scalar

    @property
    def gradients(self) -> Scalar:
        return self.certificate.gradients


@struct
class Watched:
    """A local solver whose certificates also have the squared gradient of f."""

    solver: LocalSolver
    observed: "Observed"

    def __call__(self, oracle: Oracle, key: Key, **around: Any) -> tuple[Params, Any]:
        y, certificate = self.solver(oracle, key, **around)
        return y, WatchedCertificate(certificate, trees.squared_norm(self.observed.everywhere(y)[1]))


@struct
class Observed:
    r"""SPAM, SPAM-PP or SPAM-PPA with records that need all clients; for simulations of finite populations.

    Rows gain `lyapunov` (:math:`V_k`), `error` (:math:`e_k = \|g_k - \nabla f(x_k)\|^2`), `gap`
    (:math:`f(x_k) - f_{\inf}`), `slope` (:math:`\|\nabla f(x_{k+1})\|^2`, for SPAM-PPA the mean over the points
    :math:`x_{k+1}^i` of the clients that moved, of which Theorem D.1 speaks), `spread` (:math:`\sigma^2(x_{k+1})`, the
    spread of all clients' gradients) and `step` (:math:`\|x_{k+1} - x_k\|^2`). None of it is sent.

    >>> import jax.numpy as jnp
    >>> from fedspam import simulate, spam
    >>> from fedspam.problems import quadratics
    >>> from fedspam.solvers import Exact
    >>> clients = quadratics(0, clients=10, dimension=5)
    >>> method = Observed(spam(step_size=1.0, fresh_weight=0.5, solver=Exact()), clients, infimum=clients.optimum)
    >>> run = simulate(method, clients, jnp.ones(5), rounds=50, key=0)
    >>> bool(run.rows["lyapunov"][-1] < 0.1 * run.rows["lyapunov"][0])
    True

    Arguments:
        method: made by `spam`, `spam_pp` or `spam_ppa`.
        population: all clients, whose mean is f.
        infimum: :math:`f_{\inf}`, or anything below it.
        factor: c of the Lyapunov function.
    """

    method: Spam | Factored
    population: Population
    infimum: float | Scalar = 0.0
    factor: float = static(default=APPENDIX)

    def __post_init__(self) -> None:
        if isinstance(self.method, Factored) and not isinstance(self.method.estimator, MVR):
            raise ValueError("Observed records methods of the SPAM family; this one has another estimator than MVR")
        if not isinstance(self.method, Spam | SpamPP | Factored):
            return  # a placeholder, while JAX flattens or unflattens this struct
        if getattr(self.population, "size", 1) is None:
            raise ValueError("Observed needs all clients, and the population is endless; use a finite one")

    def init(self, params: Params, key: Key, fed: Federation) -> Any:
        return self.method.init(params, key, fed)

    def round(self, state: Any, key: Key, fed: Federation) -> tuple[Any, dict[str, Any]]:
        factors: Any = self.method.estimator if isinstance(self.method, Factored) else self.method
        gamma, p = self.method.step_size(state.k), factors.fresh_weight(state.k)
        method, averaged = self.method, False
        if isinstance(method, SpamPP | Factored) and method.movers == "average" and method.solver is not None:
            averaged, method = True, dataclasses.replace(method, solver=Watched(method.solver, self))
        after, info = method.round(state, key, fed)

        value, gradient, _ = self.everywhere(after.x_prev)
        _, slope, spread = self.everywhere(after.x)
        estimate = after.estimate.g if isinstance(after, FactoredState) else after.g
        error = trees.squared_norm(trees.subtract(estimate, gradient))
        gap = value - self.infimum
        length = trees.squared_norm(slope)
        if averaged and info.certificate is not None:
            certificate, length = info.certificate  # the means over the clients that moved
            info = info._replace(certificate=certificate)
        return after, {
            **info._asdict(),
            "lyapunov": lyapunov(gap, error, gamma, p, self.factor),
            "gap": gap,
            "error": error,
            "slope": length,
            "spread": spread,
            "step": trees.squared_norm(trees.subtract(after.x, after.x_prev)),
        }

    def everywhere(self, x: Params) -> tuple[Scalar, Params, Scalar]:
        """f, its gradient, and the mean squared deviation of the clients' gradients from it."""
        ids = jnp.arange(self.population.size, dtype=jnp.uint32)  # type: ignore[arg-type]
        values, gradients = jax.vmap(lambda id: jax.value_and_grad(self.population.client(id))(x))(ids)
        mean = jax.tree.map(lambda leaf: leaf.mean(0), gradients)
        deviations = jax.tree.map(lambda leaf, mean: leaf - mean, gradients, mean)
        return values.mean(), mean, trees.squared_norm(deviations) / len(ids)

    def params(self, state: Any) -> Params:
        return self.method.params(state)

    def client_state(self, params: Params) -> PyTree:
        return self.method.client_state(params)

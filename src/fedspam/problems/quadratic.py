r"""Quadratic clients, :math:`f_i(x) = \tfrac12 x^\top H_i x - b_i^\top x + c_i`, all of whose constants are known."""

import dataclasses
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, UInt32
from numpy.typing import ArrayLike

from fedspam._internal import checks, prng
from fedspam._internal.trees import Key, Scalar, static, struct
from fedspam.clients import Ids, draw
from fedspam.methods import Method
from fedspam.simulation import simulate


@jax.custom_jvp
def quadratic(
    x: Float[Array, " d"], hessian: Float[Array, "d d"], linear: Float[Array, " d"], constant: Scalar
) -> Scalar:
    """Half x'Hx - b'x + c for symmetric H, whose gradient costs one product with H instead of two."""
    return 0.5 * x @ (hessian @ x) - linear @ x + constant


@quadratic.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x, hessian, linear, constant), (along, *_) = primals, tangents
    product = hessian @ x
    return 0.5 * x @ product - linear @ x + constant, (product - linear) @ along


@struct
class QuadraticOracle:
    """One quadratic client. It reads its rows of the population's arrays only when they are needed."""

    population: "Quadratics"
    id: UInt32[Array, ""]

    @property
    def weight(self) -> float:
        return 1.0

    @property
    def smoothness(self) -> Scalar:
        return jnp.max(jnp.abs(self.population.eigenvalues[self.id]))

    @property
    def lowest_curvature(self) -> Scalar:
        return self.population.eigenvalues[self.id, 0]

    def __call__(self, params: Float[Array, " d"], key: Key | None = None) -> Scalar:
        clients, id = self.population, self.id
        return quadratic(params, clients.hessians[id], clients.linears[id], clients.constants[id])

    def shifted_solve(self, g: Float[Array, " d"], step_size: Any) -> Float[Array, " d"]:
        """(H + I / step_size)^-1 g: one product if the population is `factorized` for this step size, else two."""
        clients, id = self.population, self.id

        def spectral() -> Float[Array, " d"]:
            vectors = clients.eigenvectors[id]
            return vectors @ ((g @ vectors) / (clients.eigenvalues[id] + 1 / step_size))

        inverses = clients.inverses
        if inverses is None:
            return spectral()
        return lax.cond(step_size == clients.inverted_at, lambda: inverses[id] @ g, spectral)


@struct
class Quadratics:
    """A finite population of quadratic clients."""

    hessians: Float[Array, "n d d"]
    linears: Float[Array, "n d"]
    constants: Float[Array, " n"]
    eigenvalues: Float[Array, "n d"]
    eigenvectors: Float[Array, "n d d"]
    inverses: Float[Array, "n d d"] | None = None
    inverted_at: Scalar | float | None = None
    replace: bool = static(default=False)

    @classmethod
    def of(
        cls, hessians: ArrayLike, linears: ArrayLike, constants: ArrayLike | None = None, *, replace: bool = False
    ) -> "Quadratics":
        """From arrays with one row per client. They are factorized in float64 and kept in JAX's default float type."""
        hessians, linears = np.asarray(hessians, np.float64), np.asarray(linears, np.float64)
        constants = np.zeros(len(hessians)) if constants is None else np.asarray(constants, np.float64)
        _check_arrays(hessians, linears, constants)
        eigenvalues, eigenvectors = np.linalg.eigh(hessians)
        dtype = jnp.result_type(float)
        arrays = (jnp.asarray(part, dtype) for part in (hessians, linears, constants, eigenvalues, eigenvectors))
        return cls(*arrays, replace=replace)

    @property
    def size(self) -> int:
        return self.hessians.shape[0]

    @property
    def dimension(self) -> int:
        return self.hessians.shape[1]

    def sample(self, key: Key, count: int) -> Ids:
        return draw(key, count, self.size, self.replace)

    def client(self, id: UInt32[Array, ""]) -> QuadraticOracle:
        return QuadraticOracle(self, id)

    def factorized(self, step_size: float) -> "Quadratics":
        """The same clients with the inverses of their prox stored for one step size, which halves its cost.

        Other step sizes still work, through the eigenvectors.
        """
        checks.positive("step_size", step_size)
        inverse = _float64(self.eigenvectors) / (_float64(self.eigenvalues)[:, None] + 1 / step_size)
        inverses = inverse @ _float64(self.eigenvectors).transpose(0, 2, 1)
        dtype = self.hessians.dtype
        return dataclasses.replace(
            self, inverses=jnp.asarray(inverses, dtype), inverted_at=jnp.asarray(step_size, dtype)
        )

    # --- f, traceable ---

    def loss(self, x: Float[Array, " d"]) -> Scalar:
        """f(x), the mean over all clients."""
        return quadratic(x, self.hessians.mean(0), self.linears.mean(0), self.constants.mean())

    def gradient(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """The gradient of f at x."""
        return self.hessians.mean(0) @ x - self.linears.mean(0)

    def sigma(self, x: Float[Array, " d"]) -> Scalar:
        r"""The spread of the clients' gradients at x: :math:`\sqrt{\frac1n\sum_i\|\nabla f_i(x) - \nabla f(x)\|^2}`."""
        gradients = self.hessians @ x - self.linears
        return jnp.sqrt(jnp.mean(jnp.sum((gradients - gradients.mean(0)) ** 2, axis=1)))

    # --- constants, in float64 outside compiled code ---

    @cached_property
    def minimizer(self) -> Float[np.ndarray, " d"]:
        """The x at which f is least."""
        if self.lowest_curvature <= 0:
            raise ValueError(
                f"f has curvature {self.lowest_curvature:.3g} in some direction, so it has no single minimizer; "
                "it needs a positive definite mean Hessian: add a multiple of the identity"
            )
        return np.linalg.solve(self._hessian, _float64(self.linears).mean(0))

    @cached_property
    def optimum(self) -> float:
        """The least value of f."""
        return float(_float64(self.constants).mean() - 0.5 * _float64(self.linears).mean(0) @ self.minimizer)

    @cached_property
    def delta(self) -> float:
        r"""The similarity of the paper's Assumption 2: :math:`\delta = \max_i \|H_i - H\|`, H the mean Hessian."""
        return float(np.abs(np.linalg.eigvalsh(_float64(self.hessians) - self._hessian)).max())

    @cached_property
    def delta_rms(self) -> float:
        r"""Similarity in mean square: :math:`\|\frac1n\sum_i (H_i - H)^2\|^{1/2}`, at most `delta`."""
        deviations = _float64(self.hessians) - self._hessian
        return float(np.sqrt(np.linalg.eigvalsh((deviations @ deviations).mean(0))[-1]))

    @cached_property
    def smoothness(self) -> float:
        """The Lipschitz constant L of the gradient of f."""
        return float(np.abs(np.linalg.eigvalsh(self._hessian)).max())

    @cached_property
    def client_smoothness(self) -> Float[np.ndarray, " n"]:
        """The Lipschitz constant of each client's gradient."""
        return np.abs(np.linalg.eigvalsh(_float64(self.hessians))).max(axis=1)

    @cached_property
    def lowest_curvature(self) -> float:
        """The least eigenvalue of the mean Hessian: the strong convexity of f where it is positive."""
        return float(np.linalg.eigvalsh(self._hessian)[0])

    @cached_property
    def _hessian(self) -> Float[np.ndarray, "d d"]:
        return _float64(self.hessians).mean(0)


def check_size(clients: int, dimension: int) -> None:
    """Refuse random clients whose Hessians are too large."""
    what = f"the Hessians of clients = {clients} with dimension = {dimension}"
    checks.memory(what, 8 * clients * dimension**2, "give fewer clients or a lower dimension")


def quadratics(
    key: Key | int, clients: int = 10, dimension: int = 10,
    *, delta: float = 0.1, condition: float = 10.0, curvature: float = 1.0, noise: float = 0.1,
    nonconvex: bool = False, diagonal: bool = False, replace: bool = False,
) -> Quadratics:  # fmt: skip
    r"""Random quadratic clients with exactly the given similarity, condition and noise.

    The mean Hessian H has eigenvalues from `curvature` to ``curvature * condition``, spaced evenly on a log scale.
    Clients deviate from it by :math:`H_i - H \propto H^{1/2}E_iH^{1/2}` with random :math:`E_i` that sum to zero, which
    keeps them convex even where `delta` exceeds the least curvature. The minimizer is standard normal.

    Arguments:
        delta: :math:`\max_i \|H_i - H\|`.
        condition: largest over least eigenvalue of H.
        curvature: least eigenvalue of H.
        noise: :math:`\sigma` at the minimizer. With `delta` > 0 it is larger elsewhere.
        nonconvex: whether one client has curvature ``curvature - delta`` < 0 in one direction; f stays convex.
        diagonal: whether all Hessians are diagonal.

    >>> clients = quadratics(0, clients=8, dimension=6, delta=0.5, condition=20.0)
    >>> round(clients.delta, 5), round(clients.lowest_curvature, 5), round(clients.smoothness, 4)
    (0.5, 1.0, 20.0)
    """
    checks.whole("clients", clients, 1)
    checks.whole("dimension", dimension, 1)
    check_size(clients, dimension)
    for name, value in (("delta", delta), ("noise", noise)):
        if not 0 <= value < np.inf:
            raise ValueError(f"{name} = {value} must be finite and not negative")
    checks.between("condition", condition, 1, np.inf)
    checks.positive("curvature", curvature)
    if clients == 1 and (delta > 0 or noise > 0):
        raise ValueError("a single client is the mean client; give delta=0 and noise=0, or more clients")
    if nonconvex and delta <= curvature:
        raise ValueError(
            f"delta = {delta} keeps every client convex, as f has curvature {curvature} everywhere; "
            "give a delta above it, or nonconvex=False"
        )
    random = prng.numpy_generator(key)

    spectrum = curvature * np.geomspace(1, condition, dimension) if dimension > 1 else np.array([curvature])
    basis = np.eye(dimension) if diagonal else np.linalg.qr(random.standard_normal((dimension, dimension)))[0]
    # random symmetric matrices that sum to zero
    deviations = random.standard_normal((clients, dimension, dimension))
    deviations = deviations * np.eye(dimension) if diagonal else deviations + deviations.transpose(0, 2, 1)
    deviations -= deviations.mean(0)
    if nonconvex:
        deviations = _nonconvex(deviations, delta)
    elif delta > 0:
        root = np.sqrt(spectrum)
        relative = np.abs(np.linalg.eigvalsh(deviations)).max()
        deviations = root[:, None] * deviations * root
        factor = delta / np.abs(np.linalg.eigvalsh(deviations)).max()
        if delta > curvature and factor * relative > 1:
            raise ValueError(
                f"delta = {delta} would make a client non-convex; with these draws it may be at most "
                f"{delta / factor / relative:.3g}: lower it, raise curvature or condition, or allow nonconvex=True"
            )
        deviations = factor * deviations
    else:
        deviations = np.zeros_like(deviations)
    hessians = basis @ (np.diag(spectrum) + deviations) @ basis.T
    hessians = (hessians + hessians.transpose(0, 2, 1)) / 2

    minimizer = random.standard_normal(dimension)
    pulls = random.standard_normal((clients, dimension))
    pulls -= pulls.mean(0)
    pulls *= noise / max(np.sqrt((pulls**2).sum(1).mean()), np.finfo(float).tiny)
    return Quadratics.of(hessians, hessians @ minimizer - pulls, replace=replace)


def progress(method: Method[Any], rounds: int = 50, clients: int = 20) -> float:
    """The gradient norm after a run of a method on small `quadratics`, relative to the one at the start.

    >>> from fedspam import fedavg
    >>> progress(fedavg(10, 5, 0.05)) < 0.1
    True
    """
    population, start = quadratics(0, clients, dimension=5), jnp.ones(5)
    end = simulate(method, population, start, rounds=rounds, key=1).params
    return float(jnp.linalg.norm(population.gradient(end)) / jnp.linalg.norm(population.gradient(start)))


def _nonconvex(deviations: Float[np.ndarray, "n d d"], delta: float) -> Float[np.ndarray, "n d d"]:
    """Deviations of norm delta; the first client's is -delta along the direction in which f curves least.

    That direction is decoupled from the others, so the norm is the larger of the two parts' norms.
    """
    clients = len(deviations)
    rest = deviations.copy()
    rest[:, 0, :] = rest[:, :, 0] = 0
    largest = np.abs(np.linalg.eigvalsh(rest)).max()
    rest *= delta / largest if largest > 0 else 0
    signs = np.resize([-1.0, 1.0], clients)
    signs[clients - clients % 2 :] = 0  # with an odd number of clients the last does not deviate
    rest[:, 0, 0] = delta * signs
    return rest


def _float64(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)


def _check_arrays(hessians: np.ndarray, linears: np.ndarray, constants: np.ndarray) -> None:
    clients, dimension = (*hessians.shape, 0, 0)[:2]
    if hessians.ndim != 3 or hessians.shape[1] != hessians.shape[2] or 0 in hessians.shape:
        raise ValueError(f"hessians has shape {hessians.shape}; give one square matrix per client: (clients, d, d)")
    for name, array, shape in (("linears", linears, (clients, dimension)), ("constants", constants, (clients,))):
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}; with these hessians it must be {shape}")
    for name, array in (("hessians", hessians), ("linears", linears), ("constants", constants)):
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds NaN or infinite values; every number must be finite")
    skew = np.abs(hessians - hessians.transpose(0, 2, 1)).max()
    # a product such as A'A in float32 is symmetric up to a relative 1e-6; a larger difference is not rounding
    if skew > 1e-5 * np.abs(hessians).max():
        raise ValueError(
            f"hessians differ from their transposes by {skew:.3g}; they must be symmetric: give (H + H.T) / 2"
        )

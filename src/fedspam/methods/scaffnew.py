"""ScaffNew (ProxSkip) and FedRed: local steps whose number a coin decides, corrected on each client."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Integer, Key

from fedspam._internal import checks, prng, trees
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._algorithm import current_x, no_memory
from fedspam.methods._grids import settings, with_fixed
from fedspam.methods._local import PointState, StepsInfo, descend, gradient, until_heads
from fedspam.methods._registry import Cost, Method, Scales, register


class ScaffNewMemory(NamedTuple):
    """What a client remembers: where its last local steps ended, and its dual vector."""

    y: Params
    h: Params


@struct
class ScaffNew:
    r"""ScaffNew, and with a regularization :math:`\lambda` FedRed with remembered controls. Use `scaffnew` or `fedred`
    to build it.

    A round is one communication and the local steps before it. The update of :math:`h_i` needs the average, which the
    client receives with its next task; so that task begins with the update.
    """

    local_rate: float | Scalar
    probability: float | Scalar
    regularization: float | Scalar = 0.0
    name: str = static(default="scaffnew")

    def __post_init__(self) -> None:
        checks.positive("local_rate", self.local_rate, "try 1 / L")
        checks.between("probability", self.probability, 0, 1, open_low=True, remedy="1 communicates after every step")
        checks.between("regularization", self.regularization, 0, float("inf"))

    def init(self, params: Params, key: Key[Array, ""], fed: Federation) -> PointState:
        return PointState(x=params, k=jnp.zeros((), jnp.int32))

    def round(self, state: PointState, key: Key[Array, ""], fed: Federation) -> tuple[PointState, StepsInfo]:
        steps = until_heads(prng.fold_name(key, "coin"), self.probability)
        everyone = fed.everyone(key)
        x = fed.mean(everyone, self.train, x=state.x, steps=steps)
        return PointState(x, state.k + 1), StepsInfo(steps, everyone.size * steps)

    @on_client(stateful=True)
    def train(
        self, oracle: Oracle, key: Key[Array, ""], memory: ScaffNewMemory, *, x: Params, steps: Integer[Array, ""]
    ) -> tuple[Params, ScaffNewMemory]:
        eta, pull = self.local_rate, self.regularization
        h = trees.axpy(self.probability / eta, trees.subtract(x, memory.y), memory.h)
        shift = trees.scale(-1, h)
        y = descend(oracle, key, x, steps=steps, local_rate=eta / (1 + eta * pull), shift=shift, pull=pull)
        return y, ScaffNewMemory(y, h)

    params = current_x

    def client_state(self, params: Params) -> ScaffNewMemory:
        return ScaffNewMemory(y=params, h=trees.zeros_like(params))


def scaffnew(local_rate: float, probability: float) -> ScaffNew:
    r"""ScaffNew, which is ProxSkip for federated learning: a coin after each local step decides whether to average.

    .. math::
        \hat y_i &= y_i - \eta\,(\nabla f_i(y_i) - h_i) \\
        y_i &= \frac1n\sum_j \hat y_j, \quad h_i \leftarrow h_i + \frac{p}{\eta}(y_i - \hat y_i)
        \quad\text{with probability p}, \qquad y_i = \hat y_i \quad\text{else}

    A round here is one communication: the number of steps before it is drawn at once, geometric with mean 1/p, and
    sent to all clients. One exchange, d floats down and d up for each of all n clients, which remember 2d numbers. With
    :math:`\eta = 1/L` and :math:`p = 1/\sqrt\kappa` it takes :math:`O(\sqrt\kappa\log 1/\epsilon)` communications for
    strongly convex f. No theory without strong convexity, and none for a sample of the clients. Its fixed point is the
    optimum, with :math:`h_i = \nabla f_i(x^*)`; always :math:`\sum_i h_i = 0`, unless replies are lost.

    Arguments:
        local_rate: :math:`\eta`.
        probability: p in (0, 1]; 1 is gradient descent.

    Mishchenko, Malinovsky, Stich, Richtárik: ProxSkip, 2022, arXiv:2202.09357, Algorithm 2.

    >>> from fedspam.problems import progress
    >>> progress(scaffnew(0.1, 0.3)) < 0.01
    True
    """
    return ScaffNew(local_rate=local_rate, probability=probability)


@struct
class FedRed:
    """FedRed with the gradients at the server's point as controls. Use `fedred` to build it."""

    local_rate: float | Scalar
    regularization: float | Scalar
    probability: float | Scalar
    model: str = static(default="average")
    name: str = static(default="fedred")

    def __post_init__(self) -> None:
        checks.positive("local_rate", self.local_rate, "try 1 / L")
        checks.between("regularization", self.regularization, 0, float("inf"), remedy="try delta")
        checks.between("probability", self.probability, 0, 1, open_low=True, remedy="try delta / L")
        checks.one_of("model", self.model, ("average", "one"))

    def init(self, params: Params, key: Key[Array, ""], fed: Federation) -> PointState:
        return PointState(x=params, k=jnp.zeros((), jnp.int32))

    def round(self, state: PointState, key: Key[Array, ""], fed: Federation) -> tuple[PointState, StepsInfo]:
        steps = until_heads(prng.fold_name(key, "coin"), self.probability)
        everyone = fed.everyone(key)
        g = fed.mean(everyone, self.gradient, x=state.x)
        movers = everyone if self.model == "average" else everyone.one(key)
        x = fed.mean(movers, self.train, x=state.x, g=g, steps=steps)
        return PointState(x, state.k + 1), StepsInfo(steps, everyone.size + movers.size * (1 + steps))

    gradient = gradient

    @on_client
    def train(self, oracle: Oracle, key: Key[Array, ""], *, x: Params, g: Params, steps: Integer[Array, ""]) -> Params:
        eta, pull = self.local_rate, self.regularization
        shift = trees.subtract(g, jax.grad(oracle)(x, None))
        return descend(oracle, key, x, steps=steps, local_rate=eta / (1 + eta * pull), shift=shift, pull=pull)

    params, client_state = current_x, no_memory


def fedred(
    local_rate: float, regularization: float, probability: float, *, control: str = "gradient", model: str = "average"
) -> FedRed | ScaffNew:
    r"""FedRed: gradient steps regularized both to the last local point and to the server's point.

    .. math::
        y_i &\leftarrow \frac{y_i/\eta + \lambda x_k + h_i - \nabla f_i(y_i)}{1/\eta + \lambda}
        \quad\text{(from } x_k\text{, until a coin of probability p shows heads)} \\
        h_i &= \nabla f_i(x_k) - \nabla f(x_k), \qquad x_{k+1} = \frac1n\sum_i y_i

    These are gradient steps on SPAM's surrogate with :math:`1/\gamma = \lambda` and the exact gradient. Two exchanges
    with all n clients, 2d floats down and 2d up for each, no state on clients. With :math:`\lambda \approx \delta`,
    :math:`\eta \approx 1/L` and :math:`p \approx \delta/L` it takes :math:`O(\delta F/\epsilon)` communications and
    :math:`O(LF/\epsilon)` local gradients. As in the authors' code, all clients take the same number of steps and
    begin them at :math:`x_k`.

    Arguments:
        local_rate: :math:`\eta`.
        regularization: :math:`\lambda`.
        probability: p in (0, 1].
        control: 'gradient' is the above; 'memory' is the paper's second control, :math:`h_i \leftarrow h_i +
            (p/\eta)(x_{k+1} - y_i)`, first 0: one exchange, d floats down and d up, and 2d numbers on each client. With
            :math:`\lambda = 0` that is ScaffNew.
        model: 'average', or the model of 'one' random client, which the theory needs where f is not convex; then only
            that client moves. It needs control='gradient'.

    Jiang, Rodomanov, Stich: Federated optimization with doubly regularized drift correction, 2024, arXiv:2404.08447.

    >>> from fedspam.problems import progress
    >>> progress(fedred(0.1, 0.1, 0.1), rounds=20) < 0.01
    True
    """
    checks.one_of("control", control, ("gradient", "memory"))
    if control == "gradient":
        return FedRed(local_rate, regularization, probability, model=model)
    if model != "average":
        raise ValueError(f"model = {model!r} needs control='gradient': remembered controls need every client's steps")
    return ScaffNew(local_rate, probability, regularization, name="fedred_memory")


def _grid(scales: Scales) -> list[Mapping[str, Any]]:
    return settings(local_rate=[c / scales.smoothness for c in (0.3, 0.6, 0.9)], probability=(0.03, 0.1, 0.3, 1.0))


register("scaffnew", Method(
    name="ScaffNew", build=scaffnew, example={"local_rate": 0.7, "probability": 0.4}, partial="no", stateless="no",
    nonconvex="no", estimator="dual", oracle="random m steps", grid=_grid,
    reference="Mishchenko, Malinovsky, Stich, Richtárik 2022, arXiv:2202.09357",
))  # fmt: skip


def _fedred_grid(scales: Scales) -> list[Mapping[str, Any]]:
    ratio = scales.delta / scales.smoothness
    return settings(
        local_rate=[c / scales.smoothness for c in (0.5, 0.9)],
        regularization=[a * scales.delta for a in (0.3, 1.0, 3.0)],
        probability=[min(1.0, b * ratio) for b in (1.0, 3.0)],
    )


_EXAMPLE = {"local_rate": 0.7, "regularization": 0.1, "probability": 0.3}
_REFERENCE = "Jiang, Rodomanov, Stich 2024, arXiv:2404.08447"

register("fedred", Method(
    name="FedRed", build=fedred, example=_EXAMPLE, similarity="yes", partial="no", estimator="exact",
    oracle="random m steps", phases=2, up=Cost(2), down=Cost(2), grid=_fedred_grid, reference=_REFERENCE,
))  # fmt: skip

register("fedred_memory", Method(
    name="FedRed, remembered controls", build=fedred, example={**_EXAMPLE, "control": "memory"}, similarity="yes",
    partial="no", stateless="no", estimator="dual", oracle="random m steps", reference=_REFERENCE,
    grid=with_fixed(_fedred_grid, control="memory"),
))  # fmt: skip

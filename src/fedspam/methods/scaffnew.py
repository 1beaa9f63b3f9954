"""ScaffNew (ProxSkip): local steps whose number a coin decides."""

from typing import NamedTuple

import jax
from jaxtyping import Array, Integer

from fedspam._internal import prng, trees
from fedspam._internal.trees import Key, Params, Scalar, number, positive, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import grid, over_smoothness
from fedspam.methods._local import descend, until_heads
from fedspam.methods._method import PointState, RoundInfo, Stateless
from fedspam.methods._registry import Entry, register


class ScaffNewMemory(NamedTuple):
    """What a client remembers: where its last local steps ended, and its dual vector."""

    y: Params
    h: Params


@struct
class ScaffNew(Stateless):
    r"""ScaffNew, and FedRed with remembered controls, which has a regularization :math:`\lambda` and begins with
    gradients for controls. Use `scaffnew` or `fedred` to build it.

    A round is one communication and the local steps before it. The update of :math:`h_i` needs the average, which the
    client receives with its next task; so that task begins with the update.
    """

    local_rate: float | Scalar = positive("try 1 / L")
    probability: float | Scalar = number(0, 1, open_low=True, remedy="1 communicates after every step")
    regularization: float | Scalar = number(0, default=0.0)
    gradients_first: bool = static(default=False)
    name: str = static(default="scaffnew")

    def init(self, params: Params, key: Key, fed: Federation) -> PointState:
        if self.gradients_first:  # h_i = grad f_i(x_0) - grad f(x_0)
            everyone = fed.everyone(key)
            g = fed.mean(everyone, self.first_gradient, x=params)
            fed.mean(everyone, self.first_control, g=g)
        return super().init(params, key, fed)

    def round(self, state: PointState, key: Key, fed: Federation) -> tuple[PointState, RoundInfo]:
        steps = until_heads(prng.fold_name(key, "coin"), self.probability)
        everyone = fed.everyone(key)
        x = fed.mean(everyone, self.train, x=state.x, steps=steps)
        return PointState(x, state.k + 1), RoundInfo(steps=steps, gradients=everyone.size * steps)

    @on_client(stateful=True)
    def first_gradient(
        self, oracle: Oracle, key: Key, memory: ScaffNewMemory, *, x: Params
    ) -> tuple[Params, ScaffNewMemory]:
        gradient = jax.grad(oracle)(x, None)
        return gradient, memory._replace(h=gradient)

    @on_client(stateful=True)
    def first_control(
        self, oracle: Oracle, key: Key, memory: ScaffNewMemory, *, g: Params
    ) -> tuple[tuple[()], ScaffNewMemory]:
        return (), memory._replace(h=trees.subtract(memory.h, g))

    @on_client(stateful=True)
    def train(
        self, oracle: Oracle, key: Key, memory: ScaffNewMemory, *, x: Params, steps: Integer[Array, ""]
    ) -> tuple[Params, ScaffNewMemory]:
        eta, pull = self.local_rate, self.regularization
        h = trees.axpy(self.probability / eta, trees.subtract(x, memory.y), memory.h)
        shift = trees.scale(-1, h)
        y = descend(oracle, key, x, steps=steps, local_rate=eta / (1 + eta * pull), shift=shift, pull=pull)
        return y, ScaffNewMemory(y, h)

    def client_state(self, params: Params) -> ScaffNewMemory:
        return ScaffNewMemory(y=params, h=trees.zeros_like(params))


def scaffnew(local_rate: float, probability: float) -> ScaffNew:
    r"""ScaffNew, which is ProxSkip for federated learning: a coin after each local step decides whether to average.

    .. math::
        \hat y_i &= y_i - \eta\,(\nabla f_i(y_i) - h_i) \\
        y_i &= \frac1n\sum_j \hat y_j, \quad h_i \leftarrow h_i + \frac{p}{\eta}(y_i - \hat y_i)
        \quad\text{with probability p}, \qquad y_i = \hat y_i \quad\text{else}

    A round here is one communication: the number of steps before it is drawn at once, geometric with mean 1/p, and sent
    to all clients. With :math:`\eta = 1/L` and :math:`p = 1/\sqrt\kappa` it takes :math:`O(\sqrt\kappa\log 1/\epsilon)`
    communications for strongly convex f. No theory without strong convexity, and none for a sample of the clients. Its
    fixed point is the optimum, with :math:`h_i = \nabla f_i(x^*)`; always :math:`\sum_i h_i = 0`, unless replies are
    lost.

    Arguments:
        probability: p in (0, 1]; 1 is gradient descent.

    Mishchenko, Malinovsky, Stich, Richtárik: ProxSkip, 2022, arXiv:2202.09357, Algorithm 2.

    >>> from fedspam.problems import progress
    >>> progress(scaffnew(0.1, 0.3)) < 0.01
    True
    """
    return ScaffNew(local_rate, probability)


coin_steps_grid = grid(local_rate=over_smoothness(0.3, 0.6, 0.9), probability=(0.03, 0.1, 0.3, 1.0))


register("scaffnew", Entry(
    name="ScaffNew", build=scaffnew, example={"local_rate": 0.7, "probability": 0.4}, partial="no", stateless="no",
    nonconvex="no", estimator="dual", oracle="random m steps", grid=coin_steps_grid,
    reference="Mishchenko, Malinovsky, Stich, Richtárik 2022, arXiv:2202.09357",
))  # fmt: skip

"""FedRed: local steps with doubly regularized drift correction; a coin decides when to communicate."""

import jax
from jaxtyping import Array, Integer

from fedspam._internal import prng, trees
from fedspam._internal.trees import Key, Params, Scalar, choice, number, positive, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import grid, over_smoothness
from fedspam.methods._local import descend, gradient, until_heads
from fedspam.methods._method import PointState, RoundInfo, Stateless
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.scaffnew import ScaffNew


@struct
class FedRed(Stateless):
    """FedRed with the gradients at the server's point as controls. Use `fedred` to build it."""

    local_rate: float | Scalar = positive("try 1 / L")
    regularization: float | Scalar = number(0, remedy="try delta")
    probability: float | Scalar = number(0, 1, open_low=True, remedy="try delta / L")
    model: str = choice("average", "one", default="average")
    name: str = static(default="fedred")

    def round(self, state: PointState, key: Key, fed: Federation) -> tuple[PointState, RoundInfo]:
        steps = until_heads(prng.fold_name(key, "coin"), self.probability)
        everyone = fed.everyone(key)
        g = fed.mean(everyone, self.gradient, x=state.x)
        movers = everyone if self.model == "average" else everyone.one(key)
        x = fed.mean(movers, self.train, x=state.x, g=g, steps=steps)
        gradients = everyone.size + movers.size * (1 + steps)
        return PointState(x, state.k + 1), RoundInfo(steps=steps, gradients=gradients)

    gradient = gradient

    @on_client
    def train(self, oracle: Oracle, key: Key, *, x: Params, g: Params, steps: Integer[Array, ""]) -> Params:
        eta, pull = self.local_rate, self.regularization
        shift = trees.subtract(g, jax.grad(oracle)(x, None))
        return descend(oracle, key, x, steps=steps, local_rate=eta / (1 + eta * pull), shift=shift, pull=pull)


def fedred(local_rate: float, regularization: float, probability: float, *, model: str = "average") -> FedRed:
    r"""FedRed: gradient steps regularized both to the last local point and to the server's point.

    .. math::
        y_i &\leftarrow \frac{y_i/\eta + \lambda x_k + h_i - \nabla f_i(y_i)}{1/\eta + \lambda}
        \quad\text{(from } x_k\text{, until a coin of probability p shows heads)} \\
        h_i &= \nabla f_i(x_k) - \nabla f(x_k), \qquad x_{k+1} = \frac1n\sum_i y_i

    These are gradient steps on SPAM's surrogate with :math:`1/\gamma = \lambda` and the exact gradient. With
    :math:`\lambda \approx \delta`, :math:`\eta \approx 1/L` and :math:`p \approx \delta/L` it takes :math:`O(\delta
    F/\epsilon)` communications and :math:`O(LF/\epsilon)` local gradients. As in the authors' code, all clients take
    the same number of steps and begin them at :math:`x_k`.

    Arguments:
        regularization: :math:`\lambda`.
        model: 'average', or the model of 'one' random client, which the theory needs where f is not convex; then only
            that client moves.

    Jiang, Rodomanov, Stich: Federated optimization with doubly regularized drift correction, 2024, arXiv:2404.08447.

    >>> from fedspam.problems import progress
    >>> progress(fedred(0.1, 0.1, 0.1), rounds=20) < 0.01
    True
    """
    return FedRed(local_rate, regularization, probability, model)


def fedred_memory(local_rate: float, regularization: float, probability: float) -> ScaffNew:
    r"""FedRed with the paper's second control, which clients remember: as `fedred`, but

    .. math:: h_i \leftarrow h_i + \frac{p}{\eta}(x_{k+1} - y_i), \qquad h_i = \nabla f_i(x_0) - \nabla f(x_0)
        \text{ at first, as in the authors' code}

    With :math:`\lambda = 0` and controls that are first 0 it would be `scaffnew`.

    >>> from fedspam.problems import progress
    >>> progress(fedred_memory(0.1, 0.1, 0.1), rounds=40) < 0.01
    True
    """
    return ScaffNew(local_rate, probability, regularization, gradients_first=True, name="fedred_memory")


_fedred_grid = grid(
    local_rate=over_smoothness(0.5, 0.9),
    regularization=lambda scales: [a * scales.delta for a in (0.3, 1.0, 3.0)],
    probability=lambda scales: [min(1.0, b * (scales.delta / scales.smoothness)) for b in (1.0, 3.0)],
)

for _key, _name, _build, _facts in (
    ("fedred", "FedRed", fedred, {"estimator": "exact", "phases": 2, "up": Cost(2), "down": Cost(2)}),
    ("fedred_memory", "FedRed, remembered controls", fedred_memory, {"estimator": "dual", "stateless": "no"}),
):
    register(_key, Entry(**{
        "name": _name, "build": _build, "verified": "code", "similarity": "yes", "partial": "no", "grid": _fedred_grid,
        "oracle": "random m steps", "example": {"local_rate": 0.7, "regularization": 0.1, "probability": 0.3},
        "reference": "Jiang, Rodomanov, Stich 2024, arXiv:2404.08447", **_facts,
    }))  # fmt: skip

"""Local steps that need no parameters: clients find their rate, the server finds how much of it to use."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Key

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._algorithm import no_memory
from fedspam.methods._registry import Method, register

HALVINGS = 20  # of the first rate, at most; if it is still too long, steps that fail halve it further


class AutoStepsState(NamedTuple):
    """What the server keeps between rounds: three vectors and three numbers."""

    x: Params
    velocity: Params
    average: Params  # of the latest x
    k: Any
    rate: Scalar  # geometric mean of the cohort's rates; 0 before the first round
    damping: Scalar  # the share of a rate that clients use


class Walked(NamedTuple):
    """A client's reply. The weight is 1, or the client's share of the examples if they count equally."""

    move: Params  # weight * (y - x)
    weight: Scalar
    rate: Scalar  # the mean logarithm of the rates that made its loss fall


class AutoStepsInfo(NamedTuple):
    """What a round records."""

    local_rate: Any
    damping: Any
    alignment: Any  # cosine of the move and the velocity
    gradients: Any  # client gradients evaluated in this round


@struct
class AutoSteps:
    r"""FedAvg with Nesterov's momentum whose rates choose themselves. Use `auto_steps` to build it.

    .. math::
        \Delta_k &= \frac1B\sum_{i\in S_k} (y_i - z_k), \qquad z_k = x_k + \beta v_{k-1} \\
        v_k &= \beta v_{k-1} + \Delta_k, \qquad x_{k+1} = x_k + v_k \\
        a_{k+1} &= a_k\, e^{(\cos(\Delta_k, v_{k-1}) - c)/2}, \quad\text{held between } 1/\sqrt{k+2} \text{ and } 1

    **Rate.** A client takes `trials` steps :math:`y \leftarrow y - a_k\eta\nabla f_i(y;\zeta)` from :math:`z_k`. A step
    is taken where the minibatch's loss would fall by :math:`\eta\|\nabla f_i(y;\zeta)\|^2/10` over the whole
    :math:`\eta` (Armijo's rule). Then :math:`\eta` grows by a fifth, otherwise it halves. A fall that rounding hides
    tells nothing and leaves :math:`\eta` as it is. A client replies with the mean of :math:`\log\eta` over its steps,
    each weighted by its fall: in flat regions any :math:`\eta` passes. The next cohort starts from the clients' mean.

    **Damping.** While the model still moves, each move points along the last ones. Once moves are mostly noise and
    the clients' drift, they point back. So :math:`a_k` falls while the cosine is below c, and rises again above it. It
    never falls faster than :math:`1/\sqrt k`: otherwise the model would freeze.

    The result is the average of the latest x. Its window grows like k/9.

    Armijo's rule on minibatches: Vaswani et al. 2019, arXiv:1905.09997. The sign of products of successive steps as a
    sign of stationarity: Pflug 1990. The average: Shamir, Zhang 2013, arXiv:1212.1824.
    """

    cohort_size: int = static()
    trials: int = static(default=60)
    momentum: float | Scalar = 0.7  # beta
    alignment: float | Scalar = 0.1  # c
    window: float | Scalar = 8.0
    name: str = static(default="auto_steps")

    def init(self, params: Params, key: Key[Array, ""], fed: Federation) -> AutoStepsState:
        zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(params)))
        return AutoStepsState(
            params, trees.zeros_like(params), params, jnp.zeros((), jnp.int32), rate=zero, damping=zero + 1
        )

    def round(self, state: AutoStepsState, key: Key[Array, ""], fed: Federation) -> tuple[AutoStepsState, Any]:
        ahead = trees.axpy(self.momentum, state.velocity, state.x)
        cohort = fed.sample(key, self.cohort_size)
        reply = fed.mean(cohort, self.walk, x=ahead, rate=state.rate, damping=state.damping)

        move = trees.divide(reply.move, reply.weight)
        alignment = jnp.where(state.k == 0, self.alignment, _cosine(move, state.velocity))
        least = 1 / jnp.sqrt((state.k + 2).astype(state.damping.dtype))
        damping = jnp.clip(state.damping * jnp.exp((alignment - self.alignment) / 2), least, 1)
        velocity = trees.axpy(self.momentum, state.velocity, move)
        x = trees.add(state.x, velocity)
        fresh = (self.window + 1) / (state.k + 1 + self.window)
        new = AutoStepsState(
            x, velocity, average=trees.axpy(fresh, trees.subtract(x, state.average), state.average), k=state.k + 1,
            rate=jnp.exp(reply.rate), damping=damping.astype(state.damping.dtype),
        )  # fmt: skip
        return new, AutoStepsInfo(
            new.rate, state.damping, alignment, self.cohort_size * (self.trials + _search(state.rate))
        )

    def params(self, state: AutoStepsState) -> Params:
        return state.average

    client_state = no_memory

    @on_client
    def walk(self, oracle: Oracle, key: Key[Array, ""], *, x: Params, rate: Scalar, damping: Scalar) -> Walked:
        search = _search(rate)

        def step(i: Any, now: tuple[Params, Scalar, Scalar, Scalar]) -> tuple[Params, Scalar, Scalar, Scalar]:
            y, rate, logarithms, falls = now
            moves = i >= search  # before, only the rate is sought, on the first minibatch
            sample = jax.random.fold_in(key, jnp.maximum(i - search, 0))
            value, slope = jax.value_and_grad(oracle)(y, sample)
            rate = jnp.where(rate == 0, _longest(x, slope), rate)
            wanted = 0.1 * rate * trees.squared_norm(slope)
            hidden = wanted <= 8 * jnp.finfo(value.dtype).eps * jnp.abs(value)
            fall = value - oracle(trees.axpy(-rate, slope, y), sample)
            enough = fall >= jnp.where(hidden, 0, wanted)
            y = trees.where(enough & moves, trees.axpy(-damping * rate, slope, y), y)
            weight = jnp.where(enough & moves & ~hidden, fall, 0).astype(rate.dtype)
            factor = jnp.where(enough, jnp.where(hidden | ~moves, 1, 1.2), 0.5).astype(rate.dtype)
            return y, rate * factor, logarithms + weight * jnp.log(jnp.where(weight > 0, rate, 1)), falls + weight

        zero = jnp.zeros_like(rate)
        y, last, logarithms, falls = lax.fori_loop(0, search + self.trials, step, (x, rate, zero, zero))
        progress = jnp.where(falls > 0, logarithms / jnp.where(falls > 0, falls, 1), jnp.log(last))
        weight = jnp.asarray(getattr(oracle, "factor", 1.0), last.dtype)
        return Walked(trees.scale(weight, trees.subtract(y, x)), weight, progress)


def _search(rate: Scalar) -> Any:
    """How often a rate is halved at most before the first step: not at all if one is given."""
    return jnp.where(rate == 0, HALVINGS, 0)


def _longest(x: Params, slope: Params) -> Scalar:
    """The rate of a step of the length 1 + |x|: so a search that starts there does not depend on the units of f.

    A gradient that is not finite tells nothing: the rate stays 0, and the next minibatch begins the search.
    """
    norm = trees.norm(slope)
    length = jnp.where(norm > 0, (1 + trees.norm(x)) / jnp.where(norm > 0, norm, 1), 1)
    return jnp.where(jnp.isfinite(norm), length, 0)


def _cosine(a: Params, b: Params) -> Scalar:
    lengths = trees.norm(a) * trees.norm(b)
    return jnp.where(lengths > 0, trees.dot(a, b) / jnp.where(lengths > 0, lengths, 1), 0)


def auto_steps(cohort_size: int, *, trials: int = 60) -> AutoSteps:
    """Local steps on minibatches that need no parameters. `auto` is this method where clients draw minibatches.

    One exchange per round, d floats down and d up per client, as FedAvg.

    Arguments:
        cohort_size: clients asked per round.
        trials: minibatches per client and round; each costs a gradient and a loss.

    >>> from fedspam.problems import progress
    >>> progress(auto_steps(10), rounds=20, clients=50) < 0.1
    True
    """
    checks.whole("cohort_size", cohort_size, 1)
    checks.whole("trials", trials, 1)
    return AutoSteps(cohort_size=cohort_size, trials=trials)


register("auto_steps", Method(
    name="auto_steps", build=auto_steps, example={"cohort_size": 4, "trials": 8}, oracle="m steps", exact=False,
    reference="this library",
))  # fmt: skip

"""Local steps that need no parameters: clients find their rate, the server finds how much of it to use."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

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
    rate: Scalar  # of the clients' steps; 0 before the first round
    damping: Scalar  # the share of a rate that clients use


class Walked(NamedTuple):
    """A client's reply. The weight is 1, or the client's share of the examples if they count equally."""

    move: Params  # weight * (y - x)
    weight: Scalar
    rate: Scalar  # the logarithm of the rate it was given or, in the first round, has found
    quality: Scalar  # how far its loss fell, as a share of what a linear loss would have fallen
    refused: Scalar  # the share of its steps that were refused


class AutoStepsInfo(NamedTuple):
    """What a round records."""

    local_rate: Any
    damping: Any
    alignment: Any  # cosine of the move and the velocity
    quality: Any
    refused: Any
    gradients: Any  # client gradients evaluated in this round


class Walk(NamedTuple):
    """What a client carries from step to step."""

    y: Params
    mean: Params  # of the last quarter of the steps
    rate: Scalar
    most: Scalar  # the rate never exceeds it
    losses: Float[Array, " 2"]  # sums of the losses and of their squares, over the steps that count
    logarithms: Scalar  # sum of fall * log(rate)
    falls: Scalar
    slopes: Scalar  # sum of rate * |gradient|^2, which is the fall of a linear loss
    refused: Scalar


@struct
class AutoSteps:
    r"""FedAvg with Nesterov's momentum whose rates choose themselves. Use `auto_steps` to build it.

    .. math::
        \Delta_k &= \frac1B\sum_{i\in S_k} (\bar y_i - z_k), \qquad z_k = x_k + \beta v_{k-1} \\
        v_k &= \beta v_{k-1} + \Delta_k, \qquad x_{k+1} = x_k + v_k \\
        a_{k+1} &= a_k\, e^{(\cos(\Delta_k, v_{k-1}) - c)/2}, \quad\text{held between } 1/\sqrt{k+2} \text{ and } 1

    A client takes `trials` steps :math:`y \leftarrow y - a_k\eta\nabla f_i(y;\zeta)` from :math:`z_k`, and replies with
    the mean :math:`\bar y_i` of the last quarter of them.

    **Rate.** The clients of the first round search for it: they first walk with a rate that grows by a fifth where the
    minibatch's loss falls by at least :math:`\eta\|\nabla f_i(y;\zeta)\|^2/10` (Armijo's rule), and halves elsewhere.
    The mean of :math:`\log\eta` over that walk, each step weighted by its fall, is the rate they have found. Then they
    start again from :math:`z_0` with it. All later clients use the mean of what the first ones have found. To follow
    Armijo's rule on would be worse: on a network, small steps lead to where the loss curves more, which calls for still
    smaller ones.

    Two rules keep the rate from being very wrong. A step is refused if it would raise its minibatch's loss beyond what
    is usual, which is one standard deviation above the mean of the losses that the client has met in this round. Then
    the client halves the rate, and lets it grow back by a fifth per step. If half of a cohort's steps are refused, the
    rate halves for all. If none is, and the losses fall by the share :math:`q > 0.9` of what linear ones would, it is
    far too small, and grows by :math:`0.1/(1-q)`, at most fourfold.

    **Damping.** While the model still moves, each move points along the last ones. Once moves are mostly noise and
    the clients' drift, they point back. So :math:`a_k` falls while the cosine is below c, and rises again above it. It
    never falls faster than :math:`1/\sqrt k`: otherwise the model would freeze.

    The result is the average of the latest x. Its window grows like k/9.

    Armijo's rule on minibatches: Vaswani et al. 2019, arXiv:1905.09997. Why rates that follow the curvature shrink:
    Roulet et al. 2024, arXiv:2407.06183. The sign of products of successive steps as a sign of stationarity: Pflug
    1990. The averages: Shamir, Zhang 2013, arXiv:1212.1824.
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
            rate=self._rate(state, reply), damping=damping.astype(state.damping.dtype),
        )  # fmt: skip
        steps = self.trials + jnp.where(state.rate == 0, HALVINGS + self.trials, 0)
        return new, AutoStepsInfo(
            new.rate, state.damping, alignment, reply.quality, reply.refused, self.cohort_size * steps
        )

    def _rate(self, state: AutoStepsState, reply: Walked) -> Scalar:
        """What the first clients have found; later only changed where it is far too small or too large."""
        rest = jnp.maximum(1 - reply.quality, jnp.finfo(state.rate.dtype).tiny)
        growth = jnp.where(reply.refused > 0, 1, jnp.clip(0.1 / rest, 1, 4))
        change = jnp.where(reply.refused > 0.5, 0.5, growth)
        return jnp.where(state.rate == 0, jnp.exp(reply.rate), state.rate * change).astype(state.rate.dtype)

    def params(self, state: AutoStepsState) -> Params:
        return state.average

    client_state = no_memory

    @on_client
    def walk(self, oracle: Oracle, key: Key[Array, ""], *, x: Params, rate: Scalar, damping: Scalar) -> Walked:
        first = rate == 0
        search = jnp.where(first, HALVINGS, 0)  # steps on one minibatch that only halve the rate ...
        begin = search + jnp.where(first, self.trials, 0)  # ... and steps by Armijo's rule, before those that count
        last = max(1, self.trials // 4)

        def step(i: Any, now: Walk) -> Walk:
            moves, counts, again = i >= search, i >= begin, first & (i == begin)
            now = trees.where(again, _again(now, x), now)
            sample = jax.random.fold_in(key, jnp.maximum(i - search, 0))
            value, slope = jax.value_and_grad(oracle)(now.y, sample)
            rate = jnp.where(now.rate == 0, _longest(x, slope), now.rate)
            linear = rate * trees.squared_norm(slope)
            fall = value - oracle(trees.axpy(-rate, slope, now.y), sample)
            rounding = 8 * jnp.finfo(value.dtype).eps * jnp.abs(value)
            hidden = 0.1 * linear <= rounding  # a fall that rounding hides tells nothing about the rate
            losses = trees.axpy(jnp.where(counts, 1, 0), jnp.stack([value, value**2]).astype(rate.dtype), now.losses)
            armijo = fall >= jnp.where(hidden, 0, 0.1 * linear)
            usual = jnp.maximum(value, _upper(losses / jnp.maximum(i - begin + 1, 1)))
            enough = jnp.where(counts, value - fall <= usual + rounding, armijo)
            y = trees.where(enough & moves, trees.axpy(-damping * rate, slope, now.y), now.y)
            share = jnp.where(i >= begin + self.trials - last, 1 / last, 0).astype(rate.dtype)
            grown = jnp.where(moves & (counts | ~hidden), 1.2, 1)
            heard = enough & moves & ~hidden
            seen = lambda number: jnp.where(heard, number, 0).astype(rate.dtype)
            return Walk(
                y,
                mean=trees.axpy(share, y, now.mean),
                rate=jnp.minimum(rate * jnp.where(enough, grown, 0.5), now.most).astype(rate.dtype),
                most=now.most,
                losses=losses,
                logarithms=now.logarithms + seen(fall * jnp.log(jnp.where(heard, rate, 1))),
                falls=now.falls + seen(fall),
                slopes=now.slopes + seen(linear),
                refused=now.refused + jnp.where(counts & ~enough, 1 / self.trials, 0).astype(rate.dtype),
            )

        zero = jnp.zeros_like(rate)
        most = jnp.where(first, jnp.inf, rate)
        start = Walk(x, trees.zeros_like(x), rate, most, jnp.stack([zero, zero]), zero, zero, zero, zero)
        now = lax.fori_loop(0, begin + self.trials, step, start)
        quality = jnp.where(now.slopes > 0, now.falls / jnp.where(now.slopes > 0, now.slopes, 1), 0)
        weight = jnp.asarray(getattr(oracle, "factor", 1.0), rate.dtype)
        move = trees.scale(weight, trees.subtract(now.mean, x))
        return Walked(move, weight, jnp.log(now.most), quality, now.refused)


def _again(now: Walk, x: Params) -> Walk:
    """The walk from x once more, with the rate that was found: the mean over all steps by which the loss fell."""
    zero = jnp.zeros_like(now.falls)
    mean = jnp.exp(now.logarithms / jnp.where(now.falls > 0, now.falls, 1))
    found = jnp.where(now.falls > 0, mean, now.rate)
    return Walk(x, now.mean, found, found, jnp.zeros_like(now.losses), zero, zero, zero, zero)


def _upper(moments: Float[Array, " 2"]) -> Scalar:
    """The mean and one standard deviation, of numbers whose mean and mean square are given."""
    return moments[0] + jnp.sqrt(jnp.maximum(moments[1] - moments[0] ** 2, 0))


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
        trials: minibatches per client and round; each costs a gradient and a loss. In the first round, clients find the
            rate with as many again, and 20 more.

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

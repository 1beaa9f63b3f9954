"""Local steps that need no parameters: clients find their rate, the server finds how much of it to use."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, Scalar, count, static, struct
from fedspam.clients import Oracle, ScaledOracle
from fedspam.federation import Federation, on_client
from fedspam.methods._local import OwnTraining, self_trained
from fedspam.methods._method import RoundInfo, Stateless
from fedspam.methods._registry import Cost, Entry, register

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
    """A client's reply."""

    move: Params  # weight * (mean of the last y - x)
    numbers: Float[Array, " 5"]  # as `Numbers`, in one array: the name of each field is sent, too


class Numbers(NamedTuple):
    """What a client says besides its move."""

    weight: Any  # 1, or the client's share of the examples if they count equally
    heard: Any  # whether it saw its loss fall; if not, the next two are 0
    log_rate: Any  # of the rate it was given or, in the first round, has found
    quality: Any  # how far its losses fell, as a share of what linear ones would have fallen
    refused: Any  # the share of its steps that it refused


class Walk(NamedTuple):
    """What a client carries from step to step. `met`, `mean` and `spread` are those of the steps that count."""

    y: Params
    move: Params  # mean of y - x over the last quarter of the steps
    rate: Scalar
    most: Scalar  # the rate never exceeds it
    met: Scalar  # finite losses
    mean: Scalar  # of these losses
    spread: Scalar  # sum of squares of their differences from the mean
    logarithms: Scalar  # sum of fall * log(rate)
    falls: Scalar
    slopes: Scalar  # sum of rate * |gradient|^2, which is the fall of a linear loss
    refused: Scalar


class Phase(NamedTuple):
    """What a step of a walk is for; see `_phase`."""

    restarts: Any  # whether the walk begins again before it
    moves: Any  # whether it may move, and not only tell of the rate
    counts: Any  # whether it is one of those that make the move
    minibatch: Any
    share: Any  # the weight of its point in the move, a mean over the last quarter


@struct
class AutoSteps(Stateless):
    r"""FedAvg with Nesterov's momentum whose rates choose themselves. Use `auto_steps` to build it.

    .. math::
        \Delta_k &= \frac1B\sum_{i\in S_k} (\bar y_i - z_k), \qquad z_k = x_k + \beta v_{k-1} \\
        v_k &= \beta v_{k-1} + \Delta_k, \qquad x_{k+1} = x_k + v_k \\
        a_{k+1} &= a_k\, e^{(\cos(\Delta_k, v_{k-1}) - c)/2}, \quad\text{held between } 1/\sqrt{k+2} \text{ and } 1

    A client takes `trials` steps :math:`y \leftarrow y - a_k\eta\nabla f_i(y;\zeta)` from :math:`z_k`, and replies with
    the mean of :math:`y - z_k` over the last quarter of them.

    **Rate.** The clients of the first round search for it. They walk with a rate that grows by a fifth where the
    minibatch's loss would fall by at least :math:`\eta\|\nabla f_i(y;\zeta)\|^2/10` over the whole :math:`\eta`
    (Armijo's rule), and halves elsewhere. A fall that rounding hides leaves the rate as it is. A client's rate is the
    geometric mean of :math:`\eta` over its walk, each step weighted by its fall; with it the client starts again from
    :math:`z_0`. All later clients use the geometric mean of what the first ones have found. To go on with Armijo's rule
    would be worse: on a network, small steps lead to where the loss curves more, which calls for still smaller ones.

    Two rules correct a rate that is very wrong. A step is refused if it would, over the whole :math:`\eta`, raise its
    minibatch's loss above the usual: one standard deviation above the mean of the losses that the client has met in
    this round. The client then halves its rate, and lets it grow back by a fifth per step. If more than half of a
    cohort's steps are refused, the rate halves for all. If none is, and the losses fall by the share :math:`q > 0.9` of
    what linear ones would, the rate is multiplied by :math:`0.1/(1-q)`, at most by 4.

    **Damping.** While the model still moves, each move points along the last ones. Once moves are mostly noise and
    the clients' drift, they point back. So :math:`a_k` falls while the cosine is below c, and rises again above it. It
    never falls faster than :math:`1/\sqrt k`: otherwise the model would freeze.

    The result is the average of the latest x. Its window grows like k/9.

    Armijo's rule on minibatches: Vaswani et al. 2019, arXiv:1905.09997. Why rates that follow the curvature shrink:
    Roulet et al. 2024, arXiv:2407.06183. The sign of products of successive steps as a sign of stationarity: Pflug
    1990. The averages: Shamir, Zhang 2013, arXiv:1212.1824.
    """

    cohort_size: int = count()
    trials: int = count(default=60)
    momentum: float | Scalar = 0.7  # beta
    alignment: float | Scalar = 0.1  # c
    window: float | Scalar = 8.0
    own: OwnTraining | None = static(default=None)  # clients train by code of their own, and this damps their moves
    name: str = static(default="auto_steps")

    def init(self, params: Params, key: Key, fed: Federation) -> AutoStepsState:
        zero = jnp.zeros((), jnp.promote_types(jnp.result_type(*jax.tree.leaves(params)), jnp.float32))
        return AutoStepsState(
            params, trees.zeros_like(params), params, jnp.zeros((), jnp.int32), rate=zero, damping=zero + 1
        )

    def round(self, state: AutoStepsState, key: Key, fed: Federation) -> tuple[AutoStepsState, Any]:
        ahead = trees.axpy(self.momentum, state.velocity, state.x)
        cohort = fed.sample(key, self.cohort_size)
        reply = fed.mean(cohort, self.walk, x=ahead, rate=state.rate, damping=state.damping)

        said = Numbers(*reply.numbers)
        move = trees.divide(reply.move, said.weight)
        alignment = jnp.where(state.k == 0, self.alignment, _cosine(move, state.velocity))
        least = 1 / jnp.sqrt((state.k + 2).astype(state.damping.dtype))
        damping = jnp.clip(state.damping * jnp.exp((alignment - self.alignment) / 2), least, 1)
        velocity = trees.axpy(self.momentum, state.velocity, move)
        x = trees.add(state.x, velocity)
        fresh = (self.window + 1) / (state.k + 1 + self.window)
        new = AutoStepsState(
            x, velocity, average=trees.axpy(fresh, trees.subtract(x, state.average), state.average), k=state.k + 1,
            rate=self._rate(state, said), damping=damping.astype(state.damping.dtype),
        )  # fmt: skip
        steps = self._steps(state.rate == 0) if self.own is None else jnp.nan  # unknown
        return new, RoundInfo(
            local_rate=new.rate, damping=state.damping, alignment=alignment, quality=_mean_heard(said.quality, said),
            refused=said.refused, gradients=self.cohort_size * steps,
        )  # fmt: skip

    def _steps(self, first: Any) -> Any:
        return self.trials + jnp.where(first, HALVINGS + self.trials, 0)

    def _rate(self, state: AutoStepsState, said: Numbers) -> Scalar:
        """What the first clients have found; later only changed where it is far too small or too large."""
        rest = jnp.maximum(1 - _mean_heard(said.quality, said), jnp.finfo(state.rate.dtype).tiny)
        growth = jnp.where(said.refused > 0, 1, jnp.clip(0.1 / rest, 1, 4))
        change = jnp.where(said.refused > 0.5, 0.5, growth)
        # if no client has found a rate, the next cohort searches, too
        found = jnp.where(said.heard > 0, jnp.exp(_mean_heard(said.log_rate, said)), 0)
        return jnp.where(state.rate == 0, found, state.rate * change).astype(state.rate.dtype)

    def params(self, state: AutoStepsState) -> Params:
        return state.average

    @on_client
    def walk(self, oracle: Oracle, key: Key, *, x: Params, rate: Scalar, damping: Scalar) -> Walked:
        if self.own is not None:
            move = trees.scale(damping, trees.subtract(self_trained(oracle).trained(x), x))
            ones, zeros = jnp.ones((2,), rate.dtype), jnp.zeros((3,), rate.dtype)
            return Walked(move, jnp.concatenate([ones, zeros]))  # it counts, and every rate is 1
        first, zero = rate == 0, jnp.zeros_like(rate)

        def step(i: Any, now: Walk) -> Walk:
            phase = _phase(i, first, self.trials)
            now = trees.where(phase.restarts, _again(now, x), now)
            return self._step(oracle, jax.random.fold_in(key, phase.minibatch), x, damping, phase, now)

        start = Walk(x, trees.zeros_like(x), rate, jnp.where(first, jnp.inf, rate), *7 * [zero])
        now = lax.fori_loop(0, self._steps(first), step, start)
        weight = jnp.asarray(oracle.factor if isinstance(oracle, ScaledOracle) else 1.0, rate.dtype)
        numbers = jnp.stack(_numbers(now, weight))
        # a client without a finite loss must not count as one that stays where it is: such a reply is left out
        numbers = jnp.where(now.met > 0, numbers, jnp.nan)
        return Walked(trees.scale(weight, now.move), numbers)

    def _step(self, oracle: Oracle, sample: Key, x: Params, damping: Scalar, phase: Phase, now: Walk) -> Walk:
        """One trial on one minibatch: what it says of the rate, and whether its step is taken."""
        value, slope = jax.value_and_grad(oracle)(now.y, sample)
        rate = jnp.where(now.rate == 0, _longest(x, slope), now.rate)
        linear = rate * trees.squared_norm(_wide(slope))
        fall = (value - oracle(trees.axpy(-rate, slope, now.y), sample)).astype(rate.dtype)
        rounding = (8 * jnp.finfo(value.dtype).eps * jnp.abs(value)).astype(rate.dtype)
        hidden = 0.1 * linear <= rounding  # a fall that rounding hides says nothing about the rate

        moves, counts = phase.moves, phase.counts
        now, usual = _met(now, value.astype(rate.dtype), counts)
        armijo = fall >= jnp.where(hidden, -rounding, 0.1 * linear)
        enough = jnp.where(counts, value - fall <= usual + rounding, armijo)
        y = trees.where(enough & moves, trees.axpy(-damping * rate, slope, now.y), now.y)

        grown = jnp.where(moves & (counts | ~hidden), 1.2, 1)
        halved = jnp.where(jnp.isfinite(value), 0.5, 1)  # a damaged minibatch says nothing about the rate
        heard = enough & moves & ~hidden
        seen = lambda number: jnp.where(heard, number, 0).astype(rate.dtype)
        return now._replace(
            y=y,
            move=trees.axpy(phase.share, trees.subtract(y, x), now.move),
            rate=jnp.minimum(rate * jnp.where(enough, grown, halved), now.most).astype(rate.dtype),
            logarithms=now.logarithms + seen(fall * jnp.log(jnp.where(heard, rate, 1))),
            falls=now.falls + seen(fall),
            slopes=now.slopes + seen(linear),
            refused=now.refused + jnp.where(counts & ~enough & (halved < 1), 1 / self.trials, 0).astype(rate.dtype),
        )


def _phase(i: Any, first: Any, trials: int) -> Phase:
    """The phases of a walk, by the number of a step. Later rounds, which are given a rate, have the last one alone.

    1. *Search*: at x, on one minibatch, the rate is halved until Armijo's rule holds.
    2. *Armijo*: steps on new minibatches let the rate grow and shrink by that rule.
    3. *Counted*: from x again, with the mean rate of the second phase, the steps that make the move.
    """
    armijo = jnp.where(first, HALVINGS, 0)
    counted, last = armijo + jnp.where(first, trials, 0), max(1, trials // 4)
    return Phase(
        restarts=first & (i == counted), moves=i >= armijo, counts=i >= counted, minibatch=jnp.maximum(i - armijo, 0),
        share=jnp.where(i >= counted + trials - last, 1 / last, 0),
    )  # fmt: skip


def _numbers(now: Walk, weight: Scalar) -> Numbers:
    heard = (now.slopes > 0) & (now.most > 0)
    quality = jnp.where(heard, now.falls / jnp.where(heard, now.slopes, 1), 0)
    log_rate = jnp.where(heard, jnp.log(jnp.where(heard, now.most, 1)), 0)
    return Numbers(weight, heard.astype(weight.dtype), log_rate, quality, now.refused)


def _again(now: Walk, x: Params) -> Walk:
    """The walk from x once more, with the rate that was found: the mean over all steps by which the loss fell."""
    mean = jnp.exp(now.logarithms / jnp.where(now.falls > 0, now.falls, 1))
    found = jnp.where(now.falls > 0, mean, now.rate)
    return Walk(x, now.move, found, found, *7 * [jnp.zeros_like(found)])


def _met(now: Walk, loss: Scalar, counts: Any) -> tuple[Walk, Scalar]:
    """The walk with one more loss, if it counts, and the highest loss that is usual: a deviation above the mean."""
    new = counts & jnp.isfinite(loss)
    met = now.met + new
    away = jnp.where(new, loss - now.mean, 0)
    mean = now.mean + away / jnp.maximum(met, 1)
    spread = now.spread + away * jnp.where(new, loss - mean, 0)
    usual = mean + jnp.sqrt(spread / jnp.maximum(met, 1))
    return now._replace(met=met, mean=mean, spread=spread), jnp.maximum(loss, usual)


def _mean_heard(sum: Any, said: Numbers) -> Any:
    """The mean over those clients of a cohort that saw their loss fall."""
    return sum / jnp.where(said.heard > 0, said.heard, 1)


def _wide(vector: Params) -> Params:
    """In single precision at least: in half precision, squares soon overflow."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), vector)


def _longest(x: Params, slope: Params) -> Scalar:
    """The rate of a step of the length 1 + |x|: so a search that starts there does not depend on the units of f.

    A gradient that is not finite says nothing: the rate stays 0, and the next minibatch begins the search.
    """
    norm = trees.norm(_wide(slope))
    length = jnp.where(norm > 0, (1 + trees.norm(_wide(x))) / jnp.where(norm > 0, norm, 1), 1)
    return jnp.where(jnp.isfinite(norm), length, 0)


def _cosine(a: Params, b: Params) -> Scalar:
    a, b = _wide(a), _wide(b)
    lengths = trees.norm(a) * trees.norm(b)
    return jnp.where(lengths > 0, trees.dot(a, b) / jnp.where(lengths > 0, lengths, 1), 0)


def auto_steps(cohort_size: int, *, trials: int = 60) -> AutoSteps:
    """Local steps on minibatches that need no parameters. `auto` is this method where clients draw minibatches.

    Arguments:
        trials: minibatches per client and round; each costs a gradient and a loss. In the first round, clients find the
            rate with as many again, and 20 more.

    >>> from fedspam.problems import progress
    >>> progress(auto_steps(10), rounds=20, clients=50) < 0.1
    True
    """
    return AutoSteps(cohort_size, trials)


register("auto_steps", Entry(
    name="auto_steps", build=auto_steps, example={"cohort_size": 4, "trials": 8}, oracle="m steps", exact=False,
    up=Cost(1, extra=len(Numbers._fields)), verified="own", reference="this library",
))  # fmt: skip

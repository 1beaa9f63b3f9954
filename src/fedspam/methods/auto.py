"""SPAM-PPA and SPAM-PP that choose their own step size and fresh weight."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

from fedspam._internal import checks, trees
from fedspam._internal.trees import Key, Params, Scalar, choice, static, struct
from fedspam.clients import BatchOracle, MinibatchOracle, Oracle, Population
from fedspam.federation import Federation, on_client
from fedspam.methods._method import RoundInfo, Stateless
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods._sketch import SKETCH, SketchMoments, moments, sketch, spread
from fedspam.methods.auto_steps import AutoSteps, auto_steps
from fedspam.solvers import LBFGS, Answer, Certificate, Exact, LocalSolver, Never, SampledSteps, certify

ROUNDING = 32  # units of the last place by which gradients and points may be wrong


class AutoState(NamedTuple):
    """What the server keeps between rounds: three vectors and a few numbers."""

    x: Params
    x_prev: Params
    g: Params
    k: Any
    left: Scalar  # of the variance of a cohort's mean: less than 1 if the cohort is much of the population
    error: Scalar  # estimate of |g - grad f(x)|^2
    noise: Scalar  # sigma^2, the spread of the clients' gradients
    trend: Scalar  # expected ratio of the next noise to this one, at most 1
    similarity: Scalar  # delta^2 in mean square along the steps taken
    step_size: Scalar
    growth: Scalar  # factor of the step size after a good step
    slope: Scalar  # <g, step> of the last step
    promise: Scalar  # change of f over it that the movers expected
    rate: Scalar  # of the movers' minibatch steps


class AutoStart(NamedTuple):
    """A client's reply before the first round."""

    g: Params
    fresh: SketchMoments
    sampled: Scalar  # 1 if the client works with minibatches


class Difference(NamedTuple):
    """A client's reply to the exchange of gradients."""

    c: Params
    fresh: SketchMoments  # of grad f_i(x)
    change: SketchMoments  # of grad f_i(x) - grad f_i(x_prev)
    sent: SketchMoments  # of c_i
    slope: Scalar  # <grad f_i(x_prev), x - x_prev>
    bend: Scalar  # f_i(x) - f_i(x_prev) - slope


class AutoMove(NamedTuple):
    """The point a client proposes, the change of f it expects there, and the logarithm of its last rate."""

    x: Params
    promise: Scalar
    rate: Scalar
    certificate: Certificate


@struct
class Auto(Stateless):
    r"""SPAM that needs no parameters but the size of its cohort. Use `auto` to build it.

    **Fresh weight.** The server's estimate is a filter: its prediction :math:`g_{k-1} + \bar u` has the variance
    :math:`\hat e + \hat\delta^2\|x_k - x_{k-1}\|^2/B`, the fresh gradient of the cohort the variance
    :math:`\hat\sigma^2/B`; :math:`p_k` is the Kalman gain of the two. The spreads come from `SKETCH` random
    projections that each client sends along with their squares. The error follows its own recursion.

    **Step size.** After a step :math:`\Delta`, the next cohort measures how f curved over it, :math:`D_f = f(x_{k+1}) -
    f(x_k) - \langle\nabla f(x_k), \Delta\rangle`; the movers have sent the same for their own losses. The ratio of
    :math:`\langle g, \Delta\rangle + D_f` to what they promised, :math:`\langle g, \Delta\rangle + D_\xi`, is that of a
    trust region: above `good` the step size grows, below `bad` it shrinks to the minimum of the parabola through the
    step. Below `refuse`, if the cohort's own losses have risen too, the step is taken back: clients move from
    :math:`x_{k-1}` again. The first step size is `speed` :math:`/\hat\delta`, measured over a tiny step along
    :math:`-g_0`. Where more than half of :math:`\|g\|^2` is error, only the share :math:`2(1 - \hat e/\|g\|^2)` of the
    step is taken, at least `least`, and the step size does not grow beyond :math:`1/\hat\delta`.

    **Minibatch clients** take the local steps of `AutoSteps` instead, unless one client moves alone: that one takes
    `SampledSteps` on its prox.

    The rules do not change if f is scaled. The exchanges are the two of SPAM-PP.
    """

    solver: LocalSolver
    sampler: SampledSteps
    steps: AutoSteps  # for clients that draw minibatches
    cohort_size: int = static()
    movers: str = choice("average", "one", default="average")
    memory: float = 0.2  # of the measured spreads, per round, at least, once the first rounds are over
    window: float = 20.0  # of all rounds so far, the share 1 / window is remembered
    good: float = 0.7
    great: float = 0.9
    bad: float = 0.4
    refuse: float = -0.5
    speed: float = 4.0  # the first step size times delta, and the growth until the first bad step ...
    grow: float = 1.15  # ... and after it
    hurry: float = 1.25  # power of the growth after each great step, up to the speed
    shrink: float = 1.5  # after a bad step, at least
    least: float = 0.3  # of a step, however much of g is error
    name: str = static(default="auto")

    def for_clients(self, population: Population) -> "Auto | AutoSteps":
        """Local steps where clients draw minibatches, and this method elsewhere."""
        return self.steps if self.movers == "average" and _samples(population) else self

    def init(self, params: Params, key: Key, fed: Federation) -> AutoState:
        cohort = fed.sample(key, self.cohort_size, role="start")
        reply = fed.mean(cohort, self.begin, x=params, seed=jax.random.key_data(key))
        noise = spread(reply.fresh, self.cohort_size)
        left = jnp.where(reply.sampled > 0.5, 1.0, self._left(fed)).astype(noise.dtype)
        zero, tiny = jnp.zeros_like(noise), jnp.finfo(noise.dtype).tiny
        # a tiny step along -g_0, so that the first round sees how the clients' gradients change
        reach = 1e-3 * (1 + trees.norm(params)) / jnp.maximum(trees.norm(reply.g), tiny)
        return AutoState(
            x=trees.axpy(-reach, reply.g, params), x_prev=params, g=reply.g, k=jnp.zeros((), jnp.int32),
            left=left, error=left * noise / self.cohort_size, noise=noise, trend=zero + 1, similarity=zero,
            step_size=zero, growth=zero + self.speed, slope=zero, promise=zero, rate=zero + 1,
        )  # fmt: skip

    def round(self, state: AutoState, key: Key, fed: Federation) -> tuple[AutoState, RoundInfo]:
        count = self.cohort_size
        length = trees.squared_norm(trees.subtract(state.x, state.x_prev))
        p = self._fresh_weight(state, length)  # before the cohort is drawn: otherwise g would be biased

        cohort = fed.sample(key, count)
        reply = fed.mean(
            cohort, self.difference, x=state.x, x_prev=state.x_prev, fresh_weight=p, seed=jax.random.key_data(key)
        )
        g = trees.axpy(1 - p, state.g, reply.c)

        spreads = self._spreads(state, reply, p, length)
        gamma, growth, share, ratio, back = self._pace(state, reply, p, g, spreads)
        # where f has risen the step is taken back: what was measured there says little about x_prev
        g, base = trees.where(back, (state.g, state.x_prev), (g, state.x))
        error, noise, similarity = trees.where(back, (state.error, state.noise, state.similarity), spreads)
        rate = self._rate(state, reply, g, length)

        movers = cohort if self.movers == "average" else cohort.one(key)
        move = fed.mean(movers, self.prox, x=state.x, x_prev=state.x_prev, back=back, g=g, step_size=gamma, rate=rate)
        used = move.certificate.step_size
        step = trees.subtract(move.x, base)
        x = trees.where(share < 1, trees.axpy(share, step, base), move.x)
        slope = trees.dot(g, step)
        fall = jnp.clip(noise / _above(state.noise), 0.1, 1) ** min(1, (count - 1) / 3)
        new = AutoState(
            x=x, x_prev=base, g=g, k=state.k + 1, left=state.left, error=error, noise=noise,
            trend=jnp.where(back, state.trend, fall),
            similarity=similarity, step_size=used, growth=growth, slope=share * slope,
            promise=share * slope + share**2 * (move.promise - slope), rate=jnp.exp(move.rate),
        )  # fmt: skip
        gradients = 2 * count + movers.size * move.certificate.gradients
        return new, RoundInfo(
            step_size=used, fresh_weight=p, error=error, noise=noise, similarity=similarity, ratio=ratio,
            certificate=move.certificate, gradients=gradients,
        )  # fmt: skip

    def _left(self, fed: Federation) -> float:
        """The share of the variance that is left where no client is drawn twice: none if the cohort is everyone."""
        size = fed.population_size
        return 1.0 if size is None else (size - self.cohort_size) / max(1, size - 1)

    def _fresh_weight(self, state: AutoState, length: Scalar) -> Scalar:
        """The Kalman gain; where the noise falls from round to round, it is expected to go on falling.

        Of two or three clients the spread also falls by chance: less of the last fall is expected again.
        """
        predicted = state.error + state.left * state.similarity * length / self.cohort_size
        fresh = state.left * state.trend * state.noise / self.cohort_size
        tiny = jnp.finfo(fresh.dtype).tiny
        return jnp.clip((predicted + tiny) / (predicted + fresh + tiny), 1e-3, 1.0)

    def _spreads(self, state: AutoState, reply: Difference, p: Scalar, length: Scalar) -> tuple[Scalar, ...]:
        """Estimates of the squares of the error of g, of sigma and of delta."""
        count, first = self.cohort_size, state.k == 0
        # the first rounds change fast; later about k / window of them are remembered, so that a spread which only few
        # cohorts show is not forgotten between them
        memory = jnp.minimum(self.memory, 0.2 + 0.05 * state.k)
        memory = jnp.maximum(memory, state.k / (state.k + self.window)).astype(length.dtype)
        keep = jnp.where(first, 0.0, memory)
        noise = jnp.where(first, 0.5, memory) * state.noise
        noise += jnp.where(first, 0.5, 1 - memory) * spread(reply.fresh, count)
        similarity = keep * state.similarity + (1 - keep) * spread(reply.change, count) / _above(length)
        error = (1 - p) ** 2 * state.error + state.left * spread(reply.sent, count) / count
        return error, noise, similarity

    def _pace(
        self, state: AutoState, reply: Difference, p: Scalar, g: Params, spreads: tuple[Scalar, ...]
    ) -> tuple[Scalar, ...]:
        """The step size and its growth, the share of the step that is taken, the ratio, and whether to go back."""
        error, _, similarity = spreads
        first = state.k == 0
        # the slope of f along the last step: the filter's, corrected by the cohort's as far as it corrects g
        slope = state.slope + p * (reply.slope - state.slope)
        change = slope + reply.bend  # of f over the last step
        tiny = jnp.finfo(change.dtype).tiny
        ratio = jnp.where(first, 1.0, change / jnp.where(state.promise < 0, state.promise, -tiny))
        # rounding decides where no more is promised than the errors of points and of clients' gradients amount to
        apart, size = trees.norm(trees.subtract(state.x, state.x_prev)), trees.norm(state.g)
        points, unit = trees.norm(state.x), ROUNDING * jnp.finfo(change.dtype).eps
        told = jnp.abs(state.promise) > unit * (apart * jnp.sqrt(state.noise + size**2) + points * size)
        told |= ~jnp.isfinite(change)
        bad = ~(ratio >= self.bad) & told  # also where no decrease was promised, or the ratio is not a number
        faster = jnp.where(ratio >= self.great, jnp.minimum(state.growth**self.hurry, self.speed), state.growth)
        growth = jnp.where(bad, self.grow, faster)
        # up to half of g may be error, since errors are overestimated; where it is more, take less of the step
        worth = jnp.clip(2 - 2 * error / _above(trees.squared_norm(g)), self.least, 1.0)
        # the parabola through the step has its minimum at this share of it
        valley = jnp.where(reply.bend > 0, -slope / _above(2 * reply.bend), 1.0)
        shorter = jnp.clip(valley, 1 / 64, 1 / self.shrink)
        # a step size too small for any step that the points could show is larger next time
        longer = jnp.where(told, ratio >= self.good, state.step_size * size <= unit * points)
        gamma = state.step_size * jnp.where(bad, shorter, jnp.where(longer, growth, 1.0))
        # if g is mostly error, the ratio says nothing about step sizes above 1 / delta
        safe = 1 / jnp.sqrt(_above(similarity))
        gamma = jnp.where(worth < 1, jnp.minimum(gamma, jnp.maximum(state.step_size, safe)), gamma)
        gamma = jnp.where(first, self.speed * safe, gamma)
        # good steps in a row must not end in infinity, and bad ones not in zero
        gamma = jnp.clip(gamma, jnp.finfo(gamma.dtype).tiny ** 0.5, jnp.finfo(gamma.dtype).max ** 0.5)
        # f must have risen by the filter's slope and by the cohort's: one client may be steep by chance
        back = ~first & told & ~(ratio >= self.refuse) & ~(reply.slope + reply.bend <= 0)
        return gamma, growth, worth, ratio, back

    def _rate(self, state: AutoState, reply: Difference, g: Params, length: Scalar) -> Scalar:
        """The rate of the movers' minibatch steps: the last one, at first from the curvature along the tiny step."""
        longest = (1 + trees.norm(state.x)) / _above(trees.norm(g))
        return jnp.where(state.k == 0, jnp.minimum(length / _above(2 * jnp.abs(reply.bend)), longest), state.rate)

    @on_client
    def begin(self, oracle: Oracle, key: Key, *, x: Params, seed: UInt32[Array, " 2"]) -> AutoStart:
        if _samples(oracle) and self.movers == "average":
            raise ValueError(
                f"these clients draw minibatches, and the server does not see it; give it "
                f"auto_steps({self.cohort_size})"
            )
        g = jax.grad(_whole(oracle))(x, key)
        fresh = moments(sketch(g, seed))
        return AutoStart(g, fresh, jnp.asarray(_samples(oracle), fresh.first.dtype))

    @on_client
    def difference(
        self, oracle: Oracle, key: Key, *, x: Params, x_prev: Params, fresh_weight: Any, seed: UInt32[Array, " 2"]
    ) -> Difference:
        both = jax.value_and_grad(_whole(oracle))
        (value, a), (value_prev, b) = both(x, key), both(x_prev, key)
        sketch_a, sketch_b = sketch(a, seed), sketch(b, seed)
        step = trees.subtract(x, x_prev)
        slope = trees.dot(b, step)
        bend = value - value_prev - slope
        # where rounding of the losses could hide the difference, take it from the gradients
        doubt = jnp.finfo(bend.dtype).eps ** (2 / 3) * (jnp.abs(value) + jnp.abs(value_prev))
        bend = jnp.where(jnp.abs(bend) < doubt, 0.5 * trees.dot(trees.subtract(a, b), step), bend)
        # a client without a finite loss or gradient at x says so by an enormous bend: the step is then taken back
        lost = ~(jnp.isfinite(bend) & jnp.isfinite(trees.squared_norm(a)))
        bend = jnp.where(lost, jnp.finfo(bend.dtype).max ** 0.4, bend)
        a, sketch_a = trees.where(lost, (b, sketch_b), (a, sketch_a))
        return Difference(
            c=trees.axpy(fresh_weight - 1, b, a),
            fresh=moments(sketch_a),
            change=moments(sketch_a - sketch_b),
            sent=moments(sketch_a + (fresh_weight - 1) * sketch_b),
            slope=slope,
            bend=bend,
        )

    @on_client
    def prox(
        self, oracle: Oracle, key: Key, *, x: Params, x_prev: Params, back: Any, g: Params, step_size: Any, rate: Any
    ) -> AutoMove:
        x = trees.where(back, x_prev, x)
        if not _samples(oracle):
            y, certificate = self.solver(oracle, key, x=x, g=g, step_size=step_size)
            return AutoMove(
                y, _expected(certificate), jnp.log(jnp.asarray(rate, certificate.decrease.dtype)), certificate
            )
        sampler = dataclasses.replace(self.sampler, rate=rate)
        y, last = sampler.walk(oracle, key, x=x, g=g, step_size=step_size)
        answer = lambda phi: Answer(phi.at(y), self.sampler.steps, 2 * self.sampler.steps + 1)
        whole = _whole(oracle)
        _, certificate = certify(
            answer, whole, key, x=x, g=g, step_size=step_size, stop=Never(), safeguard=False, vectorize=False
        )
        return AutoMove(y, _expected(certificate), jnp.log(last), certificate)


def _above(number: Any) -> Scalar:
    """At least the smallest normal number, so that one can divide by it."""
    return jnp.maximum(number, jnp.finfo(jnp.result_type(number)).tiny)


def _expected(certificate: Certificate) -> Scalar:
    """The change of f that a mover expects: the decrease of its subproblem without the prox term."""
    return certificate.decrease - certificate.distance**2 / (2 * certificate.step_size)


def _samples(clients: Oracle | Population) -> bool:
    """Whether a client draws minibatches: one with a key, and all of its data without."""
    return isinstance(clients, MinibatchOracle) and clients.batch is not None and clients.batch < clients.capacity


def _whole(oracle: Oracle) -> Any:
    """The client's loss on all of its data, even with the key of a minibatch, which draws its dropout and crops."""
    if not _samples(oracle):
        return oracle
    return oracle.whole if isinstance(oracle, BatchOracle) else lambda params, key=None: oracle(params)


def auto(cohort_size: int, *, solver: LocalSolver = LBFGS(), movers: str = "average") -> Auto:
    """SPAM-PPA (or SPAM-PP) that chooses its step size and fresh weight as it goes.

    Clients that draw minibatches (``Ragged.of(..., batch=20)``) take the local steps of `auto_steps`; the server of a
    real federation, which does not see its clients, needs that method itself. All others answer a prox. The page on
    choosing parameters derives the rules, and shows where they work and fail.

    Arguments:
        cohort_size: clients asked per round, at least 2.
        movers: 'average' moves the whole cohort (5d floats per client), 'one' a single client of it.

    >>> from fedspam.problems import progress
    >>> progress(auto(10), rounds=20, clients=50) < 0.1
    True
    """
    checks.whole("cohort_size", cohort_size, 2, "a spread needs two clients; with one, give spam() its parameters")
    memory = max(0.2, 0.6 / (cohort_size - 1))  # fewer clients give noisier spreads
    return Auto(solver, SampledSteps(), auto_steps(cohort_size), cohort_size, movers, memory)


register("auto", Entry(
    name="auto", build=auto, example={"cohort_size": 4, "solver": Exact()}, similarity="yes", nonsmooth="yes",
    nonconvex="no", estimator="MVR", oracle="a-prox, all", phases=2, up=Cost(2, extra=6 * SKETCH), down=Cost(3),
    verified="own", reference="this library",
))  # fmt: skip

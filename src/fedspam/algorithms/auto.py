"""SPAM-PPA and SPAM-PP whose step size and momentum choose themselves."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt32

from fedspam import _check, _tree
from fedspam._tree import Params, Scalar, static, struct
from fedspam.algorithms._registry import Cost, Method, register
from fedspam.federation import Federation, on_client
from fedspam.population import Oracle
from fedspam.prox import LBFGS, Certificate, Exact, LocalSolver

SKETCH = 16  # random projections of a gradient that a client sends along


class AutoState(NamedTuple):
    """What the server keeps between rounds: three vectors and a few numbers."""

    x: Params
    x_prev: Params
    g: Params
    k: Any
    error: Scalar  # estimate of |g - grad f(x)|^2
    noise: Scalar  # sigma^2, the spread of the clients' gradients
    trend: Scalar  # by what the noise is expected to change until the next round, at most 1
    similarity: Scalar  # delta^2 in mean square along the steps taken
    step_size: Scalar
    growth: Scalar  # by what the step size grows while all is well
    slope: Scalar  # <g, step> of the last step
    bend: Scalar  # by how much the movers' own losses curved upwards over it


class Moments(NamedTuple):
    """Mean and mean square over clients of their sketches: sums alone, so a secure aggregation can make them."""

    first: Float[Array, " sketch"]
    second: Float[Array, " sketch"]


class Start(NamedTuple):
    """A client's answer before the first round."""

    g: Params
    fresh: Moments


class Difference(NamedTuple):
    """A client's answer to the exchange of gradients."""

    c: Params
    fresh: Moments  # of grad f_i(x)
    change: Moments  # of grad f_i(x) - grad f_i(x_prev)
    sent: Moments  # of c_i
    bend: Scalar


class Move(NamedTuple):
    """Where a client wants to go, and by how much its loss curved upwards on the way."""

    x: Params
    bend: Scalar
    certificate: Certificate


class AutoInfo(NamedTuple):
    """What a round records."""

    step_size: Any
    momentum: Any
    error: Any
    noise: Any
    similarity: Any
    ratio: Any
    certificate: Certificate
    gradients: Any


@struct
class Auto:
    r"""SPAM that needs no parameters but the size of its cohort. Use `auto` to build it.

    **Momentum.** The server's estimate is a filter: its prediction :math:`g_{k-1} + \bar u` has the variance
    :math:`\hat e + \hat\delta^2\|x_k - x_{k-1}\|^2/B`, the fresh gradient of the cohort the variance
    :math:`\hat\sigma^2/B`; :math:`p_k` is the Kalman gain of the two. The spreads come from `SKETCH` random
    projections that each client sends along with their squares, the error from its own recursion.

    **Step size.** After a step, the next cohort tells how f curved over it: :math:`D_f = f(x_{k+1}) - f(x_k) -
    \langle\nabla f(x_k), x_{k+1} - x_k\rangle`; the movers have told the same of their own losses. The ratio of
    :math:`\langle g, \Delta\rangle + D_f` to what they promised, :math:`\langle g, \Delta\rangle + D_\xi`, is that of
    a trust region, free of the noise of g: above `good` the step size grows, below `bad` it shrinks. The first one is
    :math:`1/\hat\delta` over a tiny step along :math:`-g_0`.

    Both rules are unchanged if f is scaled. Nothing is asked of clients beyond the two exchanges of SPAM-PP.
    """

    solver: LocalSolver
    cohort_size: int = static()
    who: str = static(default="average")
    memory: float = 0.2  # of the measured spreads, per round
    good: float = 0.7
    bad: float = 0.4
    speed: float = 4.0  # growth until the first bad step ...
    grow: float = 1.15  # ... and after it
    shrink: float = 1.5

    def init(self, params: Params, key: Key[Array, ""], fed: Federation) -> AutoState:
        cohort = fed.sample(key, self.cohort_size, role="start")
        reply = fed.mean(cohort, self.begin, x=params, seed=jax.random.key_data(key))
        noise = _spread(reply.fresh, self.cohort_size)
        zero, tiny = jnp.zeros_like(noise), jnp.finfo(noise.dtype).tiny
        # a tiny step along -g_0, so that the first round sees how the clients' gradients change
        reach = 1e-3 * (1 + _tree.norm(params)) / jnp.maximum(_tree.norm(reply.g), tiny)
        return AutoState(
            x=_tree.axpy(-reach, reply.g, params), x_prev=params, g=reply.g, k=jnp.zeros((), jnp.int32),
            error=noise / self.cohort_size, noise=noise, trend=zero + 1, similarity=zero, step_size=zero,
            growth=zero + self.speed, slope=zero, bend=zero,
        )  # fmt: skip

    def round(self, state: AutoState, key: Key[Array, ""], fed: Federation) -> tuple[AutoState, AutoInfo]:
        count, first = self.cohort_size, state.k == 0
        length = _tree.squared_norm(_tree.subtract(state.x, state.x_prev))
        tiny = jnp.finfo(length.dtype).tiny
        p = self._momentum(state, length)  # before the cohort is drawn: otherwise g would be biased

        cohort = fed.sample(key, count)
        reply = fed.mean(
            cohort, self.difference, x=state.x, x_prev=state.x_prev, momentum=p, seed=jax.random.key_data(key)
        )
        g = _tree.axpy(1 - p, state.g, reply.c)

        keep = jnp.where(first, 0.0, self.memory)
        noise = jnp.where(first, 0.5, self.memory) * state.noise
        noise += jnp.where(first, 0.5, 1 - self.memory) * _spread(reply.fresh, count)
        similarity = keep * state.similarity + (1 - keep) * _spread(reply.change, count) / jnp.maximum(length, tiny)
        error = (1 - p) ** 2 * state.error + _spread(reply.sent, count) / count

        promised = state.slope + state.bend
        ratio = jnp.where(first, 1.0, (state.slope + reply.bend) / jnp.where(promised < 0, promised, -tiny))
        bad = ~(ratio >= self.bad)  # also where nothing was promised, or nothing can be said
        growth = jnp.where(bad, jnp.minimum(state.growth, self.grow), state.growth)
        gamma = state.step_size * jnp.where(bad, 1 / self.shrink, jnp.where(ratio >= self.good, growth, 1.0))
        gamma = jnp.where(first, 1 / jnp.sqrt(jnp.maximum(similarity, tiny)), gamma)

        movers = cohort if self.who == "average" else cohort.one(key)
        move = fed.mean(movers, self.prox, x=state.x, g=g, step_size=gamma)
        used = move.certificate.step_size
        new = AutoState(
            x=move.x, x_prev=state.x, g=g, k=state.k + 1, error=error, noise=noise,
            trend=jnp.clip(noise / jnp.maximum(state.noise, tiny), 0.1, 1), similarity=similarity, step_size=used,
            growth=growth, slope=_tree.dot(g, _tree.subtract(move.x, state.x)), bend=move.bend,
        )  # fmt: skip
        gradients = 2 * count + movers.size * move.certificate.gradients
        return new, AutoInfo(used, p, error, noise, similarity, ratio, move.certificate, gradients)

    def _momentum(self, state: AutoState, length: Scalar) -> Scalar:
        """The Kalman gain; where the noise falls from round to round, it is expected to go on falling."""
        predicted = state.error + state.similarity * length / self.cohort_size
        fresh = state.trend * state.noise / self.cohort_size
        tiny = jnp.finfo(fresh.dtype).tiny
        return jnp.clip((predicted + tiny) / (predicted + fresh + tiny), 1e-3, 1.0)

    @on_client
    def begin(self, oracle: Oracle, key: Key[Array, ""], *, x: Params, seed: UInt32[Array, " 2"]) -> Start:
        g = jax.grad(oracle)(x, key)
        return Start(g, _moments(_sketch(g, seed)))

    @on_client
    def difference(
        self,
        oracle: Oracle,
        key: Key[Array, ""],
        *,
        x: Params,
        x_prev: Params,
        momentum: Any,
        seed: UInt32[Array, " 2"],
    ) -> Difference:
        both = jax.value_and_grad(oracle)
        (value, a), (value_prev, b) = both(x, key), both(x_prev, key)
        sketch_a, sketch_b = _sketch(a, seed), _sketch(b, seed)
        step = _tree.subtract(x, x_prev)
        bend = value - value_prev - _tree.dot(b, step)
        # where the rounding of the losses could hide the difference, the gradients tell it
        doubt = jnp.finfo(bend.dtype).eps ** (2 / 3) * (jnp.abs(value) + jnp.abs(value_prev))
        bend = jnp.where(jnp.abs(bend) < doubt, 0.5 * _tree.dot(_tree.subtract(a, b), step), bend)
        return Difference(
            c=_tree.axpy(momentum - 1, b, a),
            fresh=_moments(sketch_a),
            change=_moments(sketch_a - sketch_b),
            sent=_moments(sketch_a + (momentum - 1) * sketch_b),
            bend=bend,
        )

    @on_client
    def prox(self, oracle: Oracle, key: Key[Array, ""], *, x: Params, g: Params, step_size: Any) -> Move:
        y, certificate = self.solver(oracle, key, x=x, g=g, step_size=step_size)
        step = _tree.subtract(y, x)
        bend = certificate.decrease - _tree.dot(g, step) - _tree.squared_norm(step) / (2 * certificate.step_size)
        return Move(y, bend, certificate)

    def params(self, state: AutoState) -> Params:
        return state.x

    def client_state(self, params: Params) -> tuple[()]:
        return ()


def _sketch(vector: Params, seed: UInt32[Array, " 2"]) -> Float[Array, " sketch"]:
    """Random projections with E|sketch|^2 = |vector|^2: random signs, summed into buckets."""
    flat, _ = _tree.vectorize(vector)
    bits = jax.random.bits(jax.random.wrap_key_data(seed), flat.shape, jnp.uint8)
    signed = jnp.where(bits & 1, flat, -flat)
    return jnp.pad(signed, (0, -flat.size % SKETCH)).reshape(-1, SKETCH).sum(0)


def _moments(sketch: Float[Array, " sketch"]) -> Moments:
    return Moments(sketch, sketch**2)


def _spread(moments: Moments, count: int) -> Scalar:
    """The unbiased spread over clients that the moments of their sketches tell."""
    return jnp.maximum(jnp.sum(moments.second - moments.first**2), 0) * (count / (count - 1))


def auto(cohort_size: int, *, solver: LocalSolver | None = None, who: str = "average") -> Auto:
    """SPAM-PPA (or SPAM-PP) that chooses its step size and momentum as it goes.

    The rule comes from quadratic and logistic problems, where it keeps up with step sizes tuned in hindsight. On
    convolutional networks it is still behind a tuned FedAvg: see the page on choosing parameters.

    Arguments:
        cohort_size: clients asked a round, at least 2.
        solver: how a client answers the prox; L-BFGS until the relative certificate holds unless given.
        who: 'average' moves the whole cohort (5d floats a client), 'one' a single client of it.

    >>> import jax, jax.numpy as jnp
    >>> from fedspam import simulate
    >>> from fedspam.algorithms import auto
    >>> from fedspam.problems import quadratics
    >>> people = quadratics(jax.random.key(0), clients=50, dimension=5, delta=0.1)
    >>> run = simulate(auto(10), people, jnp.ones(5), rounds=20, key=jax.random.key(1))
    >>> bool(jnp.linalg.norm(people.gradient(run.params)) < 0.1 * jnp.linalg.norm(people.gradient(jnp.ones(5))))
    True
    """
    _check.whole("cohort_size", cohort_size, 2, "a spread needs two clients; with one, give spam() its parameters")
    _check.one_of("who", who, ("average", "one"))
    return Auto(solver=LBFGS() if solver is None else solver, cohort_size=cohort_size, who=who)


register("auto", Method(
    name="SPAM-PPA, auto", build=auto, example={"cohort_size": 4, "solver": Exact()}, similarity="yes", partial="yes",
    stateless="yes", nonsmooth="yes", nonconvex="no", estimator="MVR", oracle="a-prox, all", phases=2,
    up=Cost(2, extra=6 * SKETCH), down=Cost(3), reference="this library",
))  # fmt: skip

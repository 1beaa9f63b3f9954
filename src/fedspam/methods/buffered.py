"""Buffered asynchronous rounds (FedBuff): the server updates after some replies, whichever messages they answer."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedspam._internal import checks, trees
from fedspam._internal.trees import Key, Params, static, struct
from fedspam.federation import Cohort, Federation, NetworkFederation, Work
from fedspam.federation.aggregation import Mean
from fedspam.methods._method import Stateless
from fedspam.methods._template import Factored
from fedspam.methods.estimators import MVR, CohortGradient
from fedspam.methods.fedopt import FedOpt


class Flight(NamedTuple):
    """Clients that are busy, one row each."""

    ids: Any
    replies: Any  # what each will send: it is computed when the message is sent, from that message
    accepted: Any
    seconds: Any  # until it arrives, from the last update on
    sent: Any  # updates before the message


class BufferedState(NamedTuple):
    """What the server keeps between updates."""

    inner: Any  # the state of the method
    flight: Any  # the clients that are still busy; () if none ever is
    k: Any  # updates so far


@struct
class Buffered(Stateless):
    """A method whose round is one update from a buffer of replies. Use `buffered` to build it."""

    inner: Any
    concurrency: int = static()
    normalized: bool = static()  # whether weights add up to 1, because what clients send is an estimate
    name: str = static(default="buffered")

    def init(self, params: Params, key: Key, fed: Federation) -> BufferedState:
        inner, k = self.inner.init(params, key, fed), jnp.zeros((), jnp.int32)
        first = Opening(fed, self.concurrency - self.inner.cohort_size, k)
        if first.count:
            self.inner.round(inner, key, first)
        return BufferedState(inner, first.flight, k)

    def round(self, state: BufferedState, key: Key, fed: Federation) -> tuple[BufferedState, dict[str, Any]]:
        flush = Flush(fed, state, self.concurrency, self.normalized)
        inner, info = self.inner.round(state.inner, key, flush)
        waited = {"seconds": flush.seconds, "staleness": flush.staleness}
        return BufferedState(inner, flush.flight, state.k + 1), {**info._asdict(), **waited}

    def params(self, state: BufferedState) -> Params:
        return self.inner.params(state.inner)


class Opening:
    """The handle of a round that only sends: afterwards as many clients are busy as between two updates."""

    def __init__(self, fed: Federation, count: int, k: Any) -> None:
        self._fed, self.count, self._k = fed, count, k
        self.flight: Any = ()

    def sample(self, key: Key, count: int) -> Cohort:
        return self._fed.sample(key, self.count, "busy")

    def mean(self, cohort: Cohort, work: Work, /, **message: Any) -> Any:
        if isinstance(self._fed, NetworkFederation):  # they get the message together with those of the first round
            blank, nothing = self._fed.blank_replies(work, cohort.size), jnp.zeros(cohort.size)
            self.flight = Flight(cohort.ids, blank, nothing > 0, nothing, nothing.astype(jnp.int32))
        else:
            self.flight = departed(self._fed, cohort, work, message, self._k)
        return jax.tree.map(lambda leaf: leaf[0], self.flight.replies)  # the round that uses it is discarded


class Flush:
    """The handle of one update: it sends to a new cohort, and averages the first replies of all that are busy."""

    def __init__(self, fed: Any, state: BufferedState, concurrency: int, normalized: bool) -> None:
        self._fed, self._concurrency, self._normalized, self._k = fed, concurrency, normalized, state.k
        self.flight = state.flight
        self.seconds: Any = None
        self.staleness: Any = None

    def sample(self, key: Key, count: int) -> Cohort:
        """Clients that are not busy. Among as many as may be busy at once there are enough of them."""
        drawn = self._fed.sample(key, self._concurrency)
        busy = jnp.isin(drawn.ids, self.flight.ids) if self.flight else jnp.zeros(drawn.size, bool)
        free = jnp.argsort(busy, stable=True)[:count]
        return replace(drawn, ids=drawn.ids[free], seconds=None if drawn.seconds is None else drawn.seconds[free])

    def mean(self, cohort: Cohort, work: Work, /, **message: Any) -> Any:
        arrived = (self._really if isinstance(self._fed, NetworkFederation) else self._simulated)(cohort, work, message)
        stale = (self._k - arrived.sent).astype(self.seconds.dtype)
        self.staleness = jnp.mean(stale)
        weights = jnp.where(arrived.accepted, 1 / jnp.sqrt(1 + stale), 0)
        if self._normalized:
            weights = weights * jnp.sum(arrived.accepted) / jnp.maximum(jnp.sum(weights), 1e-12)
        rule = getattr(self._fed, "aggregate", None) or Mean()
        return rule(scaled(weights, arrived.replies), arrived.accepted)

    def _really(self, cohort: Cohort, work: Work, message: dict[str, Any]) -> Flight:
        """Over a network the handle knows what is under way; the state has only the ids of the busy clients."""
        busy = self.flight.ids if self.flight else jnp.zeros(0, jnp.uint32)
        replies, sent, ids = self._fed.flush(cohort, work, busy, int(self._k), **message)
        if self.flight:
            self.flight = self.flight._replace(ids=ids)
        self.seconds = jnp.zeros(())  # the row has those of the exchange
        return Flight(cohort.ids, replies, jnp.ones(cohort.size, bool), jnp.zeros(cohort.size), sent)

    def _simulated(self, cohort: Cohort, work: Work, message: dict[str, Any]) -> Flight:
        fresh = departed(self._fed, cohort, work, message, self._k)
        stack = lambda *parts: jnp.concatenate(parts)
        busy = jax.tree.map(stack, self.flight, fresh) if self.flight else fresh
        order = jnp.argsort(busy.seconds, stable=True)
        first = jnp.sort(order[: cohort.size])  # in the order of their messages: sums do not depend on luck
        arrived, rest = (jax.tree.map(lambda leaf: leaf[rows], busy) for rows in (first, order[cohort.size :]))

        self.seconds = jnp.max(arrived.seconds)
        if self.flight:
            self.flight = rest._replace(seconds=rest.seconds - self.seconds)
        return arrived


def departed(fed: Federation, cohort: Cohort, work: Work, message: dict[str, Any], k: Any) -> Flight:
    """Clients that have just been sent a message. Where clients take no time, each takes one second."""
    replies, accepted = fed.collect(cohort, work, **message)
    seconds = jnp.ones(cohort.size) if cohort.seconds is None else cohort.seconds
    return Flight(cohort.ids, replies, accepted, seconds, jnp.full(cohort.size, k))


def scaled(weights: Any, replies: Any) -> Any:
    """Every reply times its weight, except for reports such as certificates."""

    def part(leaf: Any) -> Any:
        if trees.is_report(leaf):
            return leaf
        return jnp.asarray(weights, leaf.dtype).reshape(-1, *(1,) * (leaf.ndim - 1)) * leaf

    return jax.tree.map(part, replies, is_leaf=trees.is_report)


def buffered(method: FedOpt | Factored, concurrency: int) -> Buffered:
    r"""FedBuff: the server does not wait for slow clients, and discounts the replies that come late.

    .. math::
        x_{k+1} = \mathrm{server}\Big(x_k,\ \frac1K\sum_{i=1}^{K}\frac{\Delta_i}{\sqrt{1+s_i}}\Big)

    M clients are busy at once. An update takes the first K replies :math:`\Delta_i` that arrive: what the method has
    clients compute, such as m local steps, from the iterate :math:`x_{k-s_i}` that the client was sent. Its staleness
    :math:`s_i` is the number of updates since then. Then K further clients that are not busy are sent :math:`x_{k+1}`.

    A round of the run is one update, and its rows have the ``seconds`` since the last update and the mean
    ``staleness``. Delays are those of the population (`fedspam.clients.OverSelected` with ``more=0``); if it has none,
    every reply takes one second. With M = K nothing is ever stale, and the method is the synchronous one.

    Two departures from the paper: it replaces a client as soon as it has replied; here the K clients of an update are
    replaced together, so that between M - K and M are busy (the paper's K is 10 and M hundreds). And it weights clients
    equally; with ``weighted=True`` they count by their examples times :math:`1/\sqrt{1+s}`.

    **Estimates.** With `mvr` clients send parts of SPAM's estimate g. A stale client evaluates both gradients at the
    two iterates that it was sent. The weights are then divided by their sum, and g follows the mean of the gradients at
    the stale iterates. What that costs, and why the prox of SPAM cannot be stale, is in docs/flower.md.

    Arguments:
        method: `fedavg`, `fedprox`, `fedavgm`, `fedadam` and others of their kind; or `mvr` with ``first="update"``.
            Its cohort size is K.
        concurrency: M, at least K.

    Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated learning with buffered asynchronous aggregation,
    2022, arXiv:2106.06639.

    >>> import jax.numpy as jnp
    >>> from fedspam import fedavg, simulate
    >>> from fedspam.clients import OverSelected, ParetoDelay
    >>> from fedspam.problems import quadratics
    >>> clients = OverSelected(quadratics(0, clients=100, dimension=5), ParetoDelay(tail=1.2), more=0)
    >>> waiting = simulate(fedavg(10, 5, 0.05), clients, jnp.ones(5), rounds=50, key=1)
    >>> hurried = simulate(buffered(fedavg(10, 5, 0.05), 30), clients, jnp.ones(5), rounds=50, key=1)
    >>> bool(hurried.rows["seconds"].sum() < 0.3 * waiting.rows["seconds"].sum())
    True
    >>> gradient = lambda run: jnp.linalg.norm(clients.population.gradient(run.params))
    >>> bool(gradient(hurried) < 0.1 * jnp.linalg.norm(clients.population.gradient(jnp.ones(5))))
    True
    """
    estimates = isinstance(method, Factored)
    fits = isinstance(method, FedOpt) or (
        estimates
        and method.movers == "server"
        and method.cohort_size is not None
        and isinstance(method.estimator, MVR | CohortGradient)
    )
    if not fits:
        raise ValueError(
            f"method = {getattr(method, 'name', type(method).__name__)} cannot be buffered: its clients must send a "
            "move or a gradient, in one exchange per round; give fedavg, fedprox, fedadam or one of their kind, or mvr"
        )
    if estimates and isinstance(method.estimator, MVR) and method.estimator.first != "update":
        raise ValueError(
            "first = 'given' leaves the replies of the first round empty, and buffered would use them later on; give "
            "first='update'"
        )
    size = method.cohort_size
    assert size is not None
    checks.whole("concurrency", concurrency, size, f"the buffer is the method's cohort_size = {size}")
    return Buffered(method, concurrency, estimates)

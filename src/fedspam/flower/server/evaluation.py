"""Evaluation on clients: which of them are asked, which replies are accepted, and the means of their metrics."""

import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from flwr.app import Message, MetricRecord

from fedspam._internal import prng
from fedspam.flower.server.exchange import RejectedError
from fedspam.flower.wire.schema import NodePopulation

MOST = 100  # metrics of one client


def evaluators(seed: int, round: int, clients: int, held_out: int, share: float, least: int) -> list[int]:
    """The clients that evaluate the model after a round: a share of all, or of those that are held out.

    >>> evaluators(0, 1, clients=10, held_out=3, share=0.0, least=1)    # all that are held out
    [7, 8, 9]
    """
    size, first = (held_out, clients - held_out) if held_out else (clients, 0)
    if held_out and not share:
        return list(range(first, clients))
    count = min(size, max(math.floor(size * share), least))
    key = prng.fold_name(jax.random.fold_in(jax.random.key(seed), round), "evaluate")
    return [first + id for id in np.asarray(NodePopulation(size).sample(key, count)).tolist()]


def accepted(slot: Any, reply: Message) -> Message:
    """The reply, if it holds finite metrics and the number of examples."""
    found = list(reply.content.metric_records.values())
    if len(found) != 1 or "num-examples" not in found[0]:
        raise RejectedError("the reply to an evaluation must hold one MetricRecord with 'num-examples'")
    if len(found[0]) > MOST:
        raise RejectedError(f"it sends {len(found[0])} metrics, at most {MOST} are taken")
    if any(not isinstance(value, int | float) or not math.isfinite(value) for value in found[0].values()):
        raise RejectedError("its metrics are not finite numbers")
    if float(str(found[0]["num-examples"])) < 0:
        raise RejectedError(f"num-examples = {found[0]['num-examples']} must be at least 0")
    return reply


def weighted_means(replies: Iterable[Message]) -> MetricRecord | None:
    """The means of the clients' metrics, weighted by their numbers of examples; None if nobody has any."""
    found = [dict(next(iter(reply.content.metric_records.values()))) for reply in replies]
    weights = np.array([float(str(metrics.pop("num-examples"))) for metrics in found])
    if not weights.any():
        return None
    names = set.intersection(*(set(metrics) for metrics in found))
    means = {name: np.average([float(str(metrics[name])) for metrics in found], weights=weights) for name in names}
    return MetricRecord({name: float(means[name]) for name in sorted(means)})

"""Evaluation on clients: which of them are asked, which replies are accepted, and the means of their metrics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flwr.app import Message, MetricRecord

from fedspam._internal import prng
from fedspam.flower.server.exchange import RejectedError
from fedspam.flower.wire.schema import NodePopulation

MOST = 100  # metrics of one client
LARGEST = 2**32  # number of examples that a client may report


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
    if not all(np.isfinite(value).all() for value in found[0].values()):
        raise RejectedError("its metrics are not finite numbers")
    examples = found[0]["num-examples"]
    if isinstance(examples, list) or not 0 <= examples <= LARGEST:
        raise RejectedError(f"num-examples = {examples} must be a number from 0 to {LARGEST}")
    return reply


def metrics_of(replies: Iterable[Message]) -> list[Mapping[str, Any]]:
    """The one MetricRecord of each reply."""
    return [next(iter(reply.content.metric_records.values())) for reply in replies]


def shares(metrics: Mapping[int, Mapping[str, Any]]) -> str:
    """Which share of the examples of an evaluation each client has, the largest five first.

    >>> shares({0: {"num-examples": 100}, 3: {"num-examples": 300}})
    'client 3 75.0%, client 0 25.0%'
    """
    examples = {id: float(found["num-examples"]) for id, found in metrics.items()}
    total = sum(examples.values()) or 1.0
    parts = [f"client {id} {examples[id] / total:.1%}" for id in sorted(examples, key=lambda id: (-examples[id], id))]
    return ", ".join([*parts[:5], *["..."] * (len(parts) > 5)])


def weighted_means(found: Sequence[Mapping[str, Any]], examples_key: str = "num-examples") -> MetricRecord | None:
    """The means of the clients' metrics, weighted by their numbers of examples; None if nobody has any.

    A metric counts that all of them report, as a number or as a list of one length.
    """
    weights = np.array([metrics[examples_key] for metrics in found], float)
    if not weights.any():
        return None
    names = sorted(set.intersection(*(set(metrics) for metrics in found)) - {examples_key})
    same = [name for name in names if len({np.shape(metrics[name]) for metrics in found}) == 1]
    return MetricRecord(
        {name: np.average([metrics[name] for metrics in found], axis=0, weights=weights).tolist() for name in same}
    )

"""Exchanges of buffered rounds: clients stay busy over several rounds, and a round takes the first replies."""

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fedspam.flower.server.journal import JournalEntry, Tally
from fedspam.flower.server.request import Request, VoidError, listed

if TYPE_CHECKING:
    from fedspam.flower.server.handle import Flower

LOG = logging.getLogger("flwr")
Slot = tuple[int, int]  # updates before the message, and the client


@dataclass
class Airborne:
    """What is under way: messages without a reply, the requests that they belong to, and replies that nobody took."""

    waiting: dict[str, Slot] = field(default_factory=dict)  # by the id of the message
    requests: dict[Slot, Request] = field(default_factory=dict)
    early: dict[Slot, Any] = field(default_factory=dict)

    @property
    def clients(self) -> list[int]:
        return [id for _, id in (*self.early, *self.waiting.values())]


def flushed(fed: "Flower", flight: Airborne, request: Request, busy: list[int], k: int) -> JournalEntry:
    """Send to the cohort, and to busy clients of whom no message is known; take the first replies of all.

    Others replace clients that fail. The replies are sorted by message and client, so that sums do not depend on the
    order of arrival.
    """
    label, size = request.exchange.label, request.cohort.size
    places = [id for id in dict.fromkeys([*busy, *listed(request.cohort.ids)]) if id not in flight.clients]
    tried = {*places, *flight.clients}
    tally, failures, failed = Tally(), {}, []
    for number in range(fed.replies.retries + 1):
        if number:
            places = fed.others(request, f"{label} again {number}", len(failures), tried)
        slots = {(k, id): id for id in places}
        flight.requests |= dict.fromkeys(slots, request)
        trip = fed.send(request, slots, enough=size - len(flight.early), flight=flight)
        flight.early |= trip.values
        tally = tally.plus(trip.tally)
        failures = {id: failure for (_, id), failure in trip.failures.items()}
        fed.settle(request, (), failures)
        failed += failures.items()
        LOG.info("%s: Received %d results and %d failures", label, len(trip.values), len(failures))
        if len(flight.early) >= size:
            break
    tally = fed.tallies[label] = tally._replace(accepted=min(len(flight.early), size))
    if len(flight.early) < size:
        fed.events.exchange(request.round, label, tally, failed, (), False)
        raise VoidError(f"{label}: {len(flight.early)} replies came, {size} are needed; the others stay under way")
    taken = sorted(list(flight.early)[:size])
    replies = [flight.early.pop(slot) for slot in taken]
    still = flight.clients[: len(busy)]
    still += fed.others(request, f"{label} next", len(busy) - len(still), {*still, *(id for _, id in taken)})
    if len(still) < len(busy):
        raise VoidError(f"{label}: {len(busy)} clients must stay busy, and only {len(still)} can be asked")
    under_way = {*flight.waiting.values(), *flight.early}
    flight.requests = {slot: each for slot, each in flight.requests.items() if slot in under_way}
    answered = tuple(id for _, id in taken)
    fed.events.exchange(request.round, label, tally, failed, answered, True)
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *replies)
    sent = jnp.array([before for before, _ in taken], jnp.int32)
    return JournalEntry((stack, sent, jnp.array(still, jnp.uint32)), tally, answered)

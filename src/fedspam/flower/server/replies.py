"""Whom the server asks in an exchange, how long it waits for replies, and which of them it takes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time

from fedspam._internal import checks
from fedspam.federation import least_accepted

PATIENCE = 3  # void rounds in a row, each after retries with other clients


@dataclass(frozen=True, kw_only=True)
class Replies:
    """Whom the server asks, how long it waits, and which replies it takes. For ``FedspamStrategy(replies=...)``.

    Arguments:
        quorum: the share of a cohort whose replies must be accepted; at least one always must.
        retries: how often other clients replace those that failed. If the quorum is still not reached, the round is
            void: it is charged and has no effect.
        patience: the number of void rounds in a row after which the run ends with an error.
        available: (client id) -> whether the client may be asked now, such as `Windows`.
            Others take the place of those that may not.
        deadlines: seconds by client id, for clients whose deadline is shorter than that of the exchange.
        over_selection: further clients to ask for every cohort, as a share of it. The first to reply are the cohort;
            the others are not waited for. This favors fast clients; see `fedspam.clients.OverSelected`.
        largest: a reply with a larger number in it, in absolute value, is rejected. Replies must be finite in any case.

    >>> Replies(quorum=0.8, retries=1).quorum
    0.8
    """

    quorum: float = 1.0
    retries: int = 2
    patience: int = PATIENCE
    available: Callable[[int], bool] | None = None
    deadlines: Mapping[int, float] = field(default_factory=dict)
    over_selection: float = 0.0
    largest: float = math.inf

    def __post_init__(self) -> None:
        checks.between("quorum", self.quorum, 0, 1)
        checks.whole("retries", self.retries, 0)
        checks.whole("patience", self.patience, 1)
        checks.between("over_selection", self.over_selection, 0, math.inf)
        checks.between("largest", self.largest, 0, math.inf, open_low=True)
        for client, seconds in self.deadlines.items():
            checks.positive(f"deadlines[{client}]", seconds)

    def needed(self, count: int) -> int:
        """How many of `count` replies must be accepted."""
        return least_accepted(self.quorum, count)

    def may_ask(self, client: int) -> bool:
        return self.available is None or self.available(client)


@dataclass(frozen=True)
class Windows:
    """Hours of the day, in UTC, in which clients may be asked; clients without hours always may.

    For ``Replies(available=...)``. Whether a client may be asked depends on the clock, so a second run with the
    same seed is another run. A resumed one is not, because complete exchanges are on disk.

    >>> from datetime import datetime
    >>> night = Windows({3: ("22:00", "06:00")}, clock=lambda: datetime(2026, 1, 1, 23, 30))
    >>> night(3), night(4)
    (True, True)
    >>> Windows({3: ("08:00", "18:00")}, clock=night.clock)(3)
    False

    Arguments:
        hours: by client id, from and until; over midnight if the first is later.
        clock: returns the time of day, as a datetime in UTC.
    """

    hours: Mapping[int, tuple[str, str]]
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        for client in self.hours:
            self._window(client)

    def __call__(self, client: int) -> bool:
        if client not in self.hours:
            return True
        begin, end = self._window(client)
        now = self.clock().time()
        return begin <= now < end if begin < end else now >= begin or now < end

    def _window(self, client: int) -> tuple[time, time]:
        try:
            begin, end = map(time.fromisoformat, self.hours[client])
        except (TypeError, ValueError):
            raise ValueError(
                f"hours[{client}] = {self.hours[client]!r} must be two times, such as ('22:00', '06:00')"
            ) from None
        return begin, end

"""Availability windows: the hours of the day in which a client may be asked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time


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

"""How a run ended: a kind that programs test, and a reason that people read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedspam._internal.strict import one_line

KINDS = {  # and whether a run of this kind is well so far
    "running": True,  # it has not ended, or its process died
    "completed": True,  # all rounds are done
    "reached": True,  # its target is reached, or its probe no longer improves
    "interrupted": False,  # it was asked to stop
    "stopped": False,  # too many rounds, or attempts at a start, had no effect
    "diverged": False,  # its parameters or its loss grew too far
    "failed": False,  # an error ended it
    "unknown": True,  # a file does not say
}


@dataclass(frozen=True)
class Status:
    """How a run ended.

    Arguments:
        kind: one of `KINDS`.
        reason: why, in words; empty where there is nothing to say.

    >>> print(Status("reached", "loss = 0.1 is at most 0.1"))
    reached: loss = 0.1 is at most 0.1
    >>> Status("completed").ok, Status("diverged", "the loss is NaN").ok
    (True, False)
    """

    kind: str
    reason: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind = {self.kind!r} is not a kind of status; those are {', '.join(KINDS)}")

    @property
    def ok(self) -> bool:
        """Whether nothing went wrong. A run that reached its target ended well."""
        return KINDS[self.kind]

    def __str__(self) -> str:
        return f"{self.kind}: {one_line(self.reason)}" if self.reason else self.kind

    def as_json(self) -> dict[str, str]:
        """The status as files hold it; `from_json` reads it."""
        return {"kind": self.kind, "reason": self.reason}

    @classmethod
    def from_json(cls, value: Any) -> "Status":
        """The status that a file holds; unknown where it holds none.

        >>> Status.from_json(Status("completed").as_json())
        Status(kind='completed', reason='')
        """
        kind, reason = (value.get("kind"), value.get("reason")) if isinstance(value, Mapping) else (None, None)
        known = isinstance(kind, str) and kind in KINDS and isinstance(reason, str)
        return cls(kind, reason) if known else cls("unknown")  # pyright: ignore[reportArgumentType]


RUNNING, COMPLETED = Status("running"), Status("completed")

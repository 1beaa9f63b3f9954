"""What a site takes part in: a policy file that the site owns, and a log that it keeps; also without JAX.

The file is named by ``--node-config 'policy="/etc/fedspam/policy.toml"'``, and is read for every message:

.. code-block:: toml

    methods = ["fedavg", "scaffold"]    # others are refused; so it is with works, schemas and versions
    works = ["train", "evaluate"]       # what the site computes
    messages_per_hour = 60
    secure_sum = true

It is code of this package that obeys. A server whose app has other code is stopped by what Flower checks, not by this.
"""

import json
import logging
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from ..._internal import files, strict
from ..._internal.version import __version__
from ..wire import envelope
from ..wire.node import RefusedError, refusal

if TYPE_CHECKING:
    from ..privacy.differential import Privacy
    from ..privacy.secure_client import SecureSum

LOG = logging.getLogger("flwr")
ENTRY = "policy"  # of the node-config
LARGEST = 2**16  # bytes of a policy file
TAIL = 2**22  # bytes at the end of the log that are read, some 20,000 messages
HOUR, DAY = 3600.0, 86400.0
Names = tuple[str, ...]


class UnusableError(ValueError):
    """Why a policy cannot be obeyed."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a site accepts; None accepts everything.

    Arguments:
        methods: names of methods, as in the table of methods.
        works: names of works, the ends of message types such as ``train.difference``; and ``evaluate``.
        schemas: digests of a method with its settings, as the server logs them.
        versions: releases of this package that may run at the site.
        messages_per_hour: answered, in any hour.
        bytes_per_day: received and sent, in any 24 hours.
        largest_message, largest_reply: bytes.
        secure_sum: whether replies to works leave the site only under the masks of a secure sum.
        noise_multiplier: the least noise of `Privacy` in replies to works.
        bound: the largest norm that `Privacy` may clip them to.
        log: the file that gets a line for every message; beside the policy file, with the suffix ``.jsonl``, if None.
    """

    methods: Names | None = None
    works: Names | None = None
    schemas: Names | None = None
    versions: Names | None = None
    messages_per_hour: int | None = None
    bytes_per_day: int | None = None
    largest_message: int | None = None
    largest_reply: int | None = None
    secure_sum: bool = False
    noise_multiplier: float | None = None
    bound: float | None = None
    log: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if field.name in ("methods", "works", "schemas", "versions"):
                good, due = isinstance(value, tuple) and all(isinstance(each, str) for each in value), "a list of names"
            elif field.name == "secure_sum":
                good, due = isinstance(value, bool), "true or false"
            elif field.name == "log":
                good, due = isinstance(value, str), "a path"
            else:
                number = isinstance(value, int | float) and not isinstance(value, bool)
                good, due = number and value >= 0, "a number from 0 on"
            if not good and not (value is None and field.name != "secure_sum"):
                raise ValueError(f"{field.name} = {value!r} must be {due}; leave it out to accept everything")

    @classmethod
    def read(cls, path: Path) -> "Policy":
        """The policy in a file. An entry that is not known is an error, because it would not be obeyed."""
        try:
            found = tomllib.loads(files.read(path, size=LARGEST).decode())
        except (files.RecordError, OSError, ValueError) as error:
            raise UnusableError(f"{path} cannot be read as TOML: {error}") from None
        if not found:
            raise UnusableError(f"{path} has no entry; to accept everything, leave {ENTRY!r} out of the node-config")
        known = [field.name for field in fields(cls)]
        unknown = sorted(found.keys() - set(known))
        if unknown:
            raise UnusableError(f"{path} has the entry {unknown[0]!r}; known are {', '.join(known)}")
        entries: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
        try:
            return cls(**entries)
        except ValueError as error:
            raise UnusableError(f"{path}: {error}") from None

    def objection(self, kind: str, size: int, method: str | None, schema: str | None) -> str | None:
        """What this policy has against a message, before its work is done."""
        work = kind.removeprefix("train.")
        asks = not kind.startswith("query")
        for name, value in (
            ("methods", method), ("schemas", schema), ("versions", __version__), ("works", work if asks else None),
        ):  # fmt: skip
            allowed = getattr(self, name)
            if allowed is not None and value is not None and value not in allowed:
                return f"{name} of its policy are {list(allowed)}, the message is of {value!r}"
        if self.largest_message is not None and size > self.largest_message:
            return f"the message has {size} bytes, largest_message = {self.largest_message}"
        return None

    def unprotected(self, kind: str, secure: "SecureSum | None", privacy: "Privacy | None") -> str | None:
        """Which protection the reply to a work lacks."""
        work = kind.removeprefix("train.")
        if work == kind:  # no work
            return None
        if self.secure_sum and (secure is None or work not in secure.works):
            return f"secure_sum = true, and replies to {work!r} are not summed securely"
        noised = privacy if privacy is not None and work in privacy.works else None
        least, most = self.noise_multiplier, self.bound
        if least is not None and (noised is None or noised.noise_multiplier < least):
            return f"noise_multiplier = {least:g} is the least, and replies to {work!r} have less noise"
        if most is not None and (noised is None or noised.bound > most):
            return f"bound = {most:g} is the largest, and replies to {work!r} are not clipped to it"
        return None

    def exhausted(self, past: list[dict[str, Any]], now: float, size: int) -> str | None:
        """Which rate another message would exceed."""
        last = sum(now - line["time"] < HOUR for line in past)
        if self.messages_per_hour is not None and last >= self.messages_per_hour:
            return f"it has answered {last} messages in an hour, messages_per_hour = {self.messages_per_hour}"
        spent = size + sum(line["received"] + line["sent"] for line in past if now - line["time"] < DAY)
        if self.bytes_per_day is not None and spent > self.bytes_per_day:
            return f"with this message it has exchanged {spent} bytes in a day, bytes_per_day = {self.bytes_per_day}"
        return None


def guard(
    described: Callable[[Message, Context], tuple[str | None, str | None]],
    secure: "SecureSum | None",
    privacy: "Privacy | None",
    clock: Callable[[], float] = time.time,
) -> Mod:
    """The mod that obeys the policy of a site, if it has one.

    Arguments:
        described: (message, context) -> the name of the method and the digest of the schema, as far as it has them.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        place = context.node_config.get(ENTRY)
        if place is None:
            return call_next(message, context)
        kind, size, now = message.metadata.message_type, envelope.size(message.content), clock()
        reply, sent = None, 0
        try:
            method, schema = described(message, context)
            policy = Policy.read(Path(str(place)))
            log = Path(str(place)).with_suffix(".jsonl") if policy.log is None else Path(policy.log)
            reason = policy.objection(kind, size, method, schema) or policy.unprotected(kind, secure, privacy)
            if reason is None and not kind.startswith("query"):
                reason = policy.exhausted(list(answered(log)), now, size)
            line = {"time": now, "run": str(context.run_id), "type": kind, "method": method, "schema": schema}
            if reason is None:
                reply = call_next(message, context)
                sent = envelope.size(reply.content) if reply.has_content() else 0
                if policy.largest_reply is not None and sent > policy.largest_reply:
                    reason, sent = f"the reply has {sent} bytes, largest_reply = {policy.largest_reply}", 0
            files.append_line(log, json.dumps({**line, "received": size, "sent": sent, "refused": reason}))
        except RefusedError as error:  # what it is asked for is not what it has
            return refusal(error, message)
        except (UnusableError, files.RecordError, OSError) as error:
            LOG.error("everything is refused: %s", error)
            return refusal(RefusedError("its policy, or the log of it, is not usable; its own log says why"), message)
        if reason is None and reply is not None:
            return reply
        LOG.warning("refused %s by the policy of this site: %s", kind, reason)
        return refusal(RefusedError(str(reason)), message)

    return mod


def answered(log: Path) -> Iterator[dict[str, Any]]:
    """The lines of the log about messages that were answered, but for questions."""
    if not log.exists():
        return
    with strict.open_regular(log) as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        lines = file.read(TAIL).decode(errors="replace").splitlines()
    for text in lines:
        try:
            line = json.loads(text)
        except ValueError:
            continue  # the rest of a line that was cut off
        numbers = [line.get(name) for name in ("time", "received", "sent")] if isinstance(line, dict) else [None]
        good = all(isinstance(number, int | float) for number in numbers) and line.get("refused") is None
        if good and not str(line.get("type")).startswith("query"):
            yield line

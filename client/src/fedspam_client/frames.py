"""A program of any language as a client: one message in, one reply out, as frames on its input and output.

A frame is a length of eight bytes, little-endian, and so many bytes. Both directions have three: the header as JSON,
the encoded fields (empty if there are none), and the state that the program keeps between messages (empty at first).
"""

import json
import logging
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedspam_client._shared._internal import strict
from fedspam_client._shared._internal.strict import MIB

LOG = logging.getLogger("flwr")
PARTS = 3


class ProgramReply(NamedTuple):
    """What a program answered: header, encoded fields, and its state after it."""

    head: dict[str, Any]
    fields: bytes
    state: bytes


class ProgramError(ValueError):
    """A program that did not answer, and why."""


def ask(command: Sequence[str], head: Mapping[str, Any], fields: bytes, state: bytes, seconds: float) -> ProgramReply:
    """Start the program, give it a message and its state, and read its reply.

    >>> echo = ["python3", "-c", "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"]
    >>> ask(echo, {"type": "query.whoami"}, b"", b"before", seconds=60)
    ProgramReply(head={'type': 'query.whoami'}, fields=b'', state=b'before')
    """
    parts = (json.dumps(dict(head), allow_nan=False).encode(), fields, state)
    message = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    try:
        done = subprocess.run(list(command), input=message, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise ProgramError(f"{command[0]} did not answer within {seconds:g} s and was ended") from None
    except OSError as error:
        raise ProgramError(f"{command[0]} cannot be started: {error}") from None
    if done.returncode:
        # what it says may hold data: it stays in the log of the site
        LOG.error("%s ended with %d: %s", command[0], done.returncode, done.stderr.decode(errors="replace").strip())
        raise ProgramError(f"{command[0]} ended with {done.returncode}; the log of the site has what it says")
    found = _frames(done.stdout, command[0])
    try:
        answer = strict.json_object(found[0], size=MIB, depth=1)
    except strict.MalformedError as error:
        raise ProgramError(f"{command[0]} answered with a header that is not readable: {error}") from None
    for value in answer.values():
        if not isinstance(value, str | int | float):
            raise ProgramError(
                f"{command[0]} answered with a header of type {type(value).__name__}; headers hold texts, numbers and "
                "booleans"
            )
    return ProgramReply(answer, found[1], found[2])


def _frames(data: bytes, program: str) -> list[bytes]:
    found, place = [], 0
    for _ in range(PARTS):
        end = place + 8 + int.from_bytes(data[place : place + 8], "little")
        if place + 8 > len(data) or end > len(data):
            raise ProgramError(f"{program} answered {len(data)} bytes, which are no {PARTS} frames")
        found.append(data[place + 8 : end])
        place = end
    if place != len(data):
        raise ProgramError(f"{program} answered {len(data) - place} bytes more than its {PARTS} frames")
    return found

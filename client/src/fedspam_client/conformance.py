"""The conformance kit: golden messages and replies, for clients in other frameworks and languages.

A client whose replies to all messages of the kit equal the golden replies can take part in a federation. The kit is a
folder:

- ``problem.safetensors``: the rows of three clients, ``client-<id>.features`` and ``client-<id>.label``;
- ``kit.json``: the problem and the methods in words, and the cases in the order of the messages;
- ``<case>/message.json`` and ``<case>/message.safetensors``: the header and the encoded fields of one message;
- ``<case>/reply.json`` and ``<case>/reply.safetensors``: the reply that the client under test writes.

Write the messages with ``python -m fedspam_client.conformance make FOLDER``, let the client write its replies,
and check them with ``python -m fedspam_client.conformance check FOLDER``. The files hold the
content of Flower's messages. ``run FOLDER COMMAND...`` does all three with a program that speaks the frames of
`fedspam_client.frames`; in its arguments, {folder}, {method} and {schema} stand for those of each case.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedspam_client._shared._internal import files, strict
from fedspam_client._shared._internal.strict import MIB
from fedspam_client.frames import ask

GOLDEN = Path(__file__).parent / "golden"
SIZE = 16 * MIB  # of the largest file that is read
TOLERANCE = 1e-9  # relative, and absolute


class Finding(NamedTuple):
    """The result of one case; without a complaint the reply is right."""

    case: str
    complaint: str | None


def check(folder: str | Path) -> list[Finding]:
    """Compare every reply in a folder with the golden one; a finding holds the first difference."""
    return [Finding(case, _complaint(Path(folder) / case, GOLDEN / case)) for case in cases()]


def make(folder: str | Path) -> None:
    """Copy the problem and the messages, without the replies, into a folder."""
    shutil.copytree(GOLDEN, folder, ignore=shutil.ignore_patterns("reply.*"), dirs_exist_ok=True)


def run(folder: str | Path, command: Sequence[str], seconds: float = 60.0) -> None:
    """Write the messages into a folder, and the replies of a program beside them."""
    make(folder)
    kit, states = _json(GOLDEN / "kit.json"), {}
    schemas = {
        case["method"]: _json(GOLDEN / case["name"] / "message.json")["schema"] for case in reversed(kit["cases"])
    }
    for case in kit["cases"]:
        place, method = Path(folder) / case["name"], case["method"]
        words = [word.format(folder=folder, method=method, schema=schemas[method]) for word in command]
        head = {**_json(place / "message.json"), "partition-id": kit["client"], "num-partitions": 3}
        path = place / "message.safetensors"
        fields = files.read(path, size=SIZE) if path.exists() else b""
        reply = ask(words, head, fields, states.get(method, b""), seconds)
        states[method] = reply.state
        files.write(place / "reply.json", json.dumps(reply.head).encode())
        if reply.fields:
            files.write(place / "reply.safetensors", reply.fields)


def cases() -> list[str]:
    """The names of the cases in order."""
    return [str(case["name"]) for case in _json(GOLDEN / "kit.json")["cases"]]


def _complaint(folder: Path, golden: Path) -> str | None:
    try:
        head, due = _json(folder / "reply.json"), _json(golden / "reply.json")
        if "refused" in due:
            return None if head.get("refused") else f"the client must refuse: {due['refused']}"
        if head.get("refused"):
            return f"refused: {head['refused']}"
        for name, value in due.items():
            if name == "fedspam" and isinstance(head.get(name), str):
                continue  # the version of the client's own software
            if name == "wire" and name not in head:
                continue  # version 1, which has no need to say so
            if head.get(name) != value:
                return f"reply.json has {name} = {head.get(name)!r}, expected {value!r}"
        if not (golden / "reply.safetensors").exists():
            return None
        fields, expected = _arrays(folder / "reply.safetensors"), _arrays(golden / "reply.safetensors")
    except (strict.MalformedError, files.DamagedError) as error:
        return str(error)
    if fields.keys() != expected.keys():
        return f"lacks {sorted(expected.keys() - fields.keys())}, has unknown {sorted(fields.keys() - expected.keys())}"
    for name, value in expected.items():
        found = fields[name]
        if found.shape != value.shape or found.dtype != value.dtype:
            return f"{name} is {found.dtype}{list(found.shape)}, expected {value.dtype}{list(value.shape)}"
        if not np.allclose(found, value, rtol=TOLERANCE, atol=TOLERANCE):
            worst = np.max(np.abs(np.asarray(found, np.float64) - np.asarray(value, np.float64)))
            return f"{name} is off by up to {worst:.3g}"
    return None


def _json(path: Path) -> dict[str, Any]:
    return _read(path, lambda data: strict.json_object(data, size=SIZE, depth=20))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    return _read(path, lambda data: strict.arrays(data, size=SIZE, header=MIB)[0])


def _read(path: Path, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(files.read(path, size=SIZE))
    except strict.MalformedError as error:
        raise strict.MalformedError(f"{path}: {error}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code is 1 if a reply is wrong."""
    parser = argparse.ArgumentParser(prog="python -m fedspam_client.conformance", description=__doc__)
    parser.add_argument("command", choices=("make", "check", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("program", nargs=argparse.REMAINDER, help="for run: the client and its arguments")
    options = parser.parse_args(arguments)
    if options.command == "make":
        make(options.folder)
        sys.stdout.write(f"{len(cases())} messages in {options.folder}; reply to them in the order of kit.json\n")
        return 0
    if options.command == "run":
        run(options.folder, options.program)
    findings = check(options.folder)
    for finding in findings:
        sys.stdout.write(f"{finding.case}: {finding.complaint or 'ok'}\n")
    bad = sum(finding.complaint is not None for finding in findings)
    sys.stdout.write(f"{len(findings) - bad} of {len(findings)} replies are right\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

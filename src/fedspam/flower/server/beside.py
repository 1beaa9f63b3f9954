"""The runs of a server: those whose folders lie beside that of this run, as their logs tell."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedspam._internal import strict

LOG_FILE = "events.jsonl"
MOST = 50  # runs, those with the latest news first
TAIL = 2**16  # bytes at the end of a log that are read; a line with the rounds of a large cohort is shorter
GONE = "its process is gone; resume it"


class RunBeside(NamedTuple):
    """A run as the status page of another one shows it."""

    run: str  # the name of its folder
    method: str
    status: str
    round: Any
    loss: Any
    news: str  # the time of its last line


def runs_beside(folder: Path) -> list[RunBeside]:
    """The runs whose folders have the same parent, this one among them, if there is more than this one."""
    logs = [path for path in folder.resolve().parent.glob(f"*/{LOG_FILE}") if path.is_file()]
    newest = sorted(logs, key=lambda path: -path.stat().st_mtime)[:MOST]
    found = [run for path in newest if (run := _run(path)) is not None]
    return sorted(found) if len(found) > 1 else []


def _run(path: Path) -> RunBeside | None:
    """What the first and the last lines of a log say; None if they are not those of a run."""
    try:
        lines = list(_lines(path))
    except OSError:
        return None  # it is being removed
    begin = next((line for line in reversed(lines) if line.get("event") == "begin"), {})
    last = lines[-1] if lines else {}
    if not last:
        return None
    rounds = [line for line in lines if line.get("event") == "round"]
    ended = last.get("status") if last.get("event") == "end" else None
    status = ended.get("kind") if isinstance(ended, dict) else "running" if _lives(begin.get("process")) else GONE
    method = begin.get("method", last.get("method", ""))
    done = rounds[-1] if rounds else {}
    return RunBeside(
        path.parent.name, str(method), str(status), done.get("round", ""), done.get("loss") or "",
        str(last.get("time", "")),
    )  # fmt: skip


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects among the first and the last lines of a log."""
    with strict.open_regular(path) as file:
        data = file.read(TAIL)
        size = os.fstat(file.fileno()).st_size
        if size > 2 * TAIL:
            file.seek(size - TAIL)
            data += b"\n"
        data += file.read(TAIL)
    for text in data.splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # a line that was cut, or is being written
        if isinstance(line, dict):
            yield line


def _lives(process: Any) -> bool:
    """Whether a process of this machine is there."""
    if not isinstance(process, int) or isinstance(process, bool) or process <= 0:
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # of another user
    return True

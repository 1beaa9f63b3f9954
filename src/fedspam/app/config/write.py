"""A configuration as TOML, from which it can be read again."""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from fedspam.app.config.parse import SECTIONS
from fedspam.app.config.schema import Config

BARE = re.compile(r"[A-Za-z0-9_-]+")


def tables(config: Config) -> dict[str, dict[str, Any]]:
    """The configuration as plain tables; what is None is left out."""
    found = {section: getattr(config, section) for section in SECTIONS}
    return {name: tables_of(part) for name, part in found.items() if part is not None}


def to_toml(config: Config | Mapping[str, Mapping[str, Any]], head: str = "") -> str:
    """The configuration as a TOML file, every setting with its value; `head` becomes a comment on top.

    >>> print(to_toml({"run": {"rounds": 3, "record": ["void"]}}))
    [run]
    rounds = 3
    record = ["void"]
    <BLANKLINE>
    """
    sections = tables(config) if isinstance(config, Config) else config
    lines = [f"# {line}".rstrip() for line in head.splitlines()]
    for name, table in sections.items():
        lines += ["", f"[{_key(name)}]"] if lines else [f"[{_key(name)}]"]
        lines += [f"{_key(key)} = {toml_value(value)}" for key, value in table.items() if value is not None]
    return "\n".join(lines) + "\n"


def differences(old: Config, new: Config, but: frozenset[str] = frozenset()) -> list[str]:
    """Where two configurations differ, in words; `but` names settings (``run.rounds``) and sections that may."""
    one, other = tables(old), tables(new)
    found = []
    for section in SECTIONS:
        a, b = one.get(section, {}), other.get(section, {})
        for key in dict.fromkeys([*a, *b]):
            name = f"{section}.{key}"
            if a.get(key) != b.get(key) and not {section, name} & but:
                found.append(f"{name}: {toml_value(a.get(key, 'nothing'))} was, {toml_value(b.get(key, 'nothing'))} is")
    return found


def tables_of(part: Any) -> Any:
    """A section, or a part of one, as plain tables and values."""
    if isinstance(part, Struct):
        own = type(part).__struct_config__
        tag = {own.tag_field: own.tag} if own.tag_field else {}
        values = {name: tables_of(value) for name, value in msgspec.structs.asdict(part).items()}
        return tag | {name: value for name, value in values.items() if value is not None}
    return [tables_of(item) for item in part] if isinstance(part, list | tuple) else part


def _key(name: str) -> str:
    return name if BARE.fullmatch(name) else _text(name)


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {toml_value(part)}" for name, part in value.items()) + " }"
    return "[" + ", ".join(map(toml_value, value)) + "]"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

"""A configuration as TOML, from which the same configuration is read again."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import tomli_w
from msgspec import Struct

from fedspam.app.config.parse import SECTIONS
from fedspam.app.config.schema import Config


def tables(config: Config) -> dict[str, dict[str, Any]]:
    """The configuration as plain tables, without the settings that are None."""
    sections = {section: getattr(config, section) for section in SECTIONS}
    return {name: tables_of(section) for name, section in sections.items() if section is not None}


def tables_of(section: Struct) -> dict[str, Any]:
    """A section as a plain table, without the settings that are None."""
    return {name: value for name, value in msgspec.to_builtins(section).items() if value is not None}


def to_toml(config: Config | Mapping[str, Mapping[str, Any]], head: str = "") -> str:
    """The configuration as a TOML file with the value of every setting. `head` becomes a comment at its top.

    >>> print(to_toml({"run": {"rounds": 3, "chunk": None}}, "An experiment."))
    # An experiment.
    <BLANKLINE>
    [run]
    rounds = 3
    <BLANKLINE>
    """
    sections = tables(config) if isinstance(config, Config) else config
    given = {
        name: {key: value for key, value in table.items() if value is not None} for name, table in sections.items()
    }
    comment = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    return (comment + "\n" if comment else "") + tomli_w.dumps(given)


def differences(old: Config, new: Config, but: frozenset[str] = frozenset()) -> list[str]:
    """The settings that differ, in words. `but` names settings (``run.rounds``) and sections that may differ."""
    before, after = tables(old), tables(new)
    found = []
    for section in SECTIONS:
        a, b = before.get(section, {}), after.get(section, {})
        for key in dict.fromkeys([*a, *b]):
            name = f"{section}.{key}"
            if a.get(key) != b.get(key) and not {section, name} & but:
                found.append(f"{name} changed from {value_text(a.get(key))} to {value_text(b.get(key))}")
    return found


def value_text(value: Any) -> str:
    """A value on one line, as a reader of the configuration knows it."""
    return "none" if value is None else json.dumps(value, ensure_ascii=False)

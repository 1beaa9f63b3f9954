"""An example of a configuration, and the list of all settings."""

from collections.abc import Iterator
from importlib import resources
from typing import Any

import msgspec
from msgspec import Struct

from fedspam.app.config import schema
from fedspam.app.config.methods import METHODS, PROX, method_section
from fedspam.app.config.parse import PLAIN
from fedspam.app.config.type_text import about, choices, rule
from fedspam.app.config.write import value_text

EXAMPLE = (resources.files("fedspam.app.config") / "example.toml").read_text(encoding="utf-8")


def sections() -> Iterator[tuple[str, str, type[Struct]]]:
    """Every section except `[method]`: its heading, its name, and the struct with its settings."""
    yield from ((f"[data] kind = {name}", "data", kind) for name, kind in schema.DATA.items())
    yield "[clients]", "clients", schema.Clients
    yield "[model]", "model", schema.Function
    yield from ((f"[model] name = {name}", "model", kind) for name, kind in schema.MODELS.items())
    yield from ((f"[prox] name = {name}", "prox", kind) for name, kind in PROX.items())
    yield from ((f"[{name}]", name, kind) for name, kind in PLAIN.items() if name != "clients")


def settings_table() -> str:
    """Every setting, section by section, as text."""
    lines = []
    for heading, _, kind in sections():
        lines.append(heading)
        for field in msgspec.structs.fields(kind):
            setting = f"  {field.name} = {_default(field) or '...'}".ljust(34)
            lines.append(f"{setting}  # {about(field.type)} ({rule(field.type)})")
        lines.append("")
    lines.append("[method] name = one of `fedspam methods`, and its arguments:")
    for name in METHODS:
        fields = msgspec.structs.fields(method_section(name))
        settings = ", ".join(each.name if each.required else f"{each.name} = {_default(each)}" for each in fields)
        lines.append(f"  {name}: {settings}")
    return "\n".join(lines) + "\n"


def setting_choices() -> dict[str, list[str]]:
    """Every setting by its dotted name, with the words that it accepts, if it accepts any."""
    found: dict[str, list[str]] = {}
    structs = [(name, kind) for _, name, kind in sections()]
    structs += [("method", method_section(name)) for name in METHODS]
    for name, kind in structs:
        for field in msgspec.structs.fields(kind):
            words = found.setdefault(f"{name}.{field.name}", [])
            words += [word for word in choices(field.type) if word not in words]
    return found


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    value: Any = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return str(value.__struct_config__.tag) if isinstance(value, Struct) else value_text(value)

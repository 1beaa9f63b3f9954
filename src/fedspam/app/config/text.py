"""A configuration as text: TOML that is read back, the list of all settings, and types in words, for errors."""

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import msgspec
import tomli_w
from msgspec import Struct, inspect

from fedspam.app.config import schema
from fedspam.app.config.methods import METHODS, PROX, method_section
from fedspam.app.config.schema import PLAIN, SECTIONS, Config

EXAMPLE = (resources.files("fedspam.app.config") / "example.toml").read_text(encoding="utf-8")
LIMITS = (("ge", "of at least {:g}"), ("gt", "greater than {:g}"), ("le", "of at most {:g}"), ("lt", "less than {:g}"))


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
    known = lambda table: {key: value for key, value in table.items() if value is not None}
    given = {name: known(table) for name, table in sections.items()}
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


# --- every setting ---


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


# --- types in words ---


def rule(kind: Any) -> str:
    """What a value of this type must be.

    >>> from typing import Annotated, Literal
    >>> import msgspec
    >>> rule(Annotated[int, msgspec.Meta(ge=1)] | None)
    'a whole number of at least 1'
    >>> rule(list[Literal["a", "b"]])
    "a list, each item 'a' or 'b'"
    """
    return _described(inspect.type_info(kind))


def about(kind: Any) -> str:
    """The description of a setting in the schema."""
    info = inspect.type_info(kind)
    return (info.extra_json_schema or {}).get("description", "") if isinstance(info, inspect.Metadata) else ""


def choices(kind: Any) -> list[str]:
    """The words that a setting accepts."""
    parts = [inner for part in _parts(inspect.type_info(kind)) for inner in _parts(getattr(part, "item_type", part))]
    return [str(value) for part in parts if isinstance(part, inspect.LiteralType) for value in part.values]


def _parts(info: Any) -> list[Any]:
    if isinstance(info, inspect.Metadata):
        return _parts(info.type)
    return [part for each in info.types for part in _parts(each)] if isinstance(info, inspect.UnionType) else [info]


def _described(info: Any) -> str:
    parts = [part for part in _parts(info) if not isinstance(part, inspect.NoneType)]
    return _either([_one(part) for part in parts])


def _one(info: Any) -> str:
    if isinstance(info, inspect.LiteralType):
        return _either([repr(value) for value in info.values])
    if isinstance(info, inspect.ListType):
        return f"a list, each item {_described(info.item_type)}"
    if isinstance(info, inspect.DictType):
        return f"a table of names, each {_described(info.value_type)}"
    if isinstance(info, inspect.StructType):
        default = lambda each: "..." if each.required else json.dumps(each.default)
        named = ", ".join(f"{each.encode_name} = {default(each)}" for each in info.fields)
        tag = f"{info.tag_field} = {info.tag!r}, " if info.tag_field else ""
        return f"a table {{{tag}{named}}}"
    if isinstance(info, inspect.BoolType):
        return "true or false"
    if isinstance(info, inspect.StrType):
        example = " such as 'my_model.py:loss'" if info.pattern else ""
        return "one character" if info.max_length == 1 else f"text{example}"
    words = "a whole number" if isinstance(info, inspect.IntType) else "a number"
    limits = [text.format(value) for name, text in LIMITS if (value := getattr(info, name, None)) is not None]
    return " ".join([words, " and ".join(limits)]).strip()


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))

"""The type of a setting in words, for errors and for the list of settings."""

import json
from typing import Any

from msgspec import inspect

LIMITS = (("ge", "of at least {:g}"), ("gt", "greater than {:g}"), ("le", "of at most {:g}"), ("lt", "less than {:g}"))


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
        named = ", ".join(
            f"{each.encode_name} = {'...' if each.required else json.dumps(each.default)}" for each in info.fields
        )
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

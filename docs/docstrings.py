"""Docstrings as Markdown: formulas in reST become $...$ and $$...$$, examples become blocks of code."""

import ast
import re
from pathlib import Path
from typing import Any

import griffe

BLOCK = re.compile(
    r"^(?P<indent> *)\.\. math::(?P<first>.*)(?P<rest>(?:\n(?:(?P=indent) +\S.*| *(?=\n)))*)", re.MULTILINE
)
INLINE = re.compile(r":math:`(.*?)`", re.DOTALL)
EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n *\S.*)*", re.MULTILINE)
INNER = re.compile(r"\\begin\{(\w+)\}.*?\\end\{\1\}", re.DOTALL)


def formula(text: str) -> str:
    """What Sphinx makes of it: several lines, or signs to align, are an environment that aligns."""
    text = text.strip()
    rest = INNER.sub("", text)
    return rf"\begin{{aligned}}{text}\end{{aligned}}" if "&" in rest or r"\\" in rest else text


def to_markdown(text: str) -> str:
    r"""A docstring without reST.

    >>> print(to_markdown("With :math:`p\nq`\n\n.. math:: a &= b \\\\\n    c").strip())
    With $p q$
    <BLANKLINE>
    $$
    \begin{aligned}a &= b \\
    c\end{aligned}
    $$
    """

    def block(found: re.Match[str]) -> str:
        text = formula(found["first"] + found["rest"])
        lines = ["$$", *(line.strip() for line in text.splitlines() if line.strip()), "$$"]  # Markdown ends it at a gap
        return "\n".join(found["indent"] + line for line in lines) + "\n"

    def example(found: re.Match[str]) -> str:
        return f"{found['indent']}```pycon\n{found[0]}\n{found['indent']}```"

    text = BLOCK.sub(block, text)
    text = INLINE.sub(lambda found: "$" + " ".join(found[1].split()) + "$", text)
    return EXAMPLE.sub(example, text)


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_module_members(self, *, node: Any, mod: griffe.Module, **kwargs: Any) -> None:
        """A name imported as itself (``from a import B as B``) is public, as type checkers read it."""
        for statement in node.body if isinstance(node, ast.Module) else ():
            if isinstance(statement, ast.ImportFrom):
                for name in statement.names:
                    if name.name == name.asname:
                        mod.members[name.name].public = True

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Fields have comments rather than docstrings, so their source lines are shown."""
        if cls.docstring is None or not isinstance(cls.filepath, Path):
            return
        source = cls.lines_collection[cls.filepath]
        fields = [member for name, member in cls.members.items() if is_field(name, member)]
        lines = [line[4:] for field in fields for line in source[(field.lineno or 1) - 1 : field.endlineno]]
        if lines:
            cls.docstring.value += "\n\nFields:\n\n```python\n" + "\n".join(lines) + "\n```"


def is_field(name: str, member: Any) -> bool:
    """Whether it is a field of a dataclass or a named tuple, that is documented nowhere else."""
    if member.is_alias or not member.is_attribute or name.startswith("_"):
        return False
    return member.annotation is not None and not member.has_docstring and "instance-attribute" in member.labels

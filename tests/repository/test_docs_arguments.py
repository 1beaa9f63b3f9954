"""Arguments that the documentation names in code font exist."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import fedspam

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
MODULES = ("", "methods", "clients", "federation", "federation.aggregation", "simulation", "solvers", "problems")
MODULES += ("datasets", "models", "theory", "federation.codecs", "simulation.stopping", "methods.schedules")
CALL = re.compile(r"`+([A-Za-z_][\w.]*\(.*?\))`+", re.DOTALL)


def functions():
    """Every public function and class of the package, by name; those of one name may be several."""
    found: dict[str, list] = {}
    for name in MODULES:
        module = importlib.import_module(f"fedspam.{name}".rstrip("."))
        for key, value in vars(module).items():
            if callable(value) and not key.startswith("_") and value.__module__.startswith("fedspam"):
                found.setdefault(key, []).append(value)
    return found


def keywords(text):
    """The name of a call and its keywords, if the text is Python; dots stand for what is left out."""
    try:
        call = ast.parse(re.sub(r"\s+", " ", text), mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name | ast.Attribute):
        return None
    name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
    return name, [keyword.arg for keyword in call.keywords if keyword.arg]


def wrong(text, known):
    """The keywords in a text that none of the functions of that name has."""
    for match in CALL.finditer(text):
        found = keywords(match[1])
        if found is None or found[0] not in known:
            continue
        signatures = [inspect.signature(each).parameters for each in known[found[0]]]
        for keyword in found[1]:
            takes_any = any(p.kind == p.VAR_KEYWORD for each in signatures for p in each.values())
            if not takes_any and not any(keyword in each for each in signatures):
                yield f"{match[1]}: there is no argument {keyword}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_arguments_in_code_font_exist(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert not list(wrong(prose, functions()))


def test_the_check_finds_what_is_wrong():
    known = functions()
    assert known["simulate"] == [fedspam.simulate]
    assert list(wrong("`simulate(..., segment=5)` and `simulate(every=2)`", known)) == [
        "simulate(..., segment=5): there is no argument segment"
    ]

"""What the package takes from Flower: public modules, and one file for the rest, which names what has moved."""

import ast
import re
import sys

import pytest

from loading import load
from rooms import ROOT

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from fedspam.flower import _flwr

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.clientapp.typing", "flwr.serverapp", "flwr.serverapp.strategy"}
FILE = ROOT / "src" / "fedspam" / "flower" / "_flwr.py"


def imported(path):
    """The modules of Flower that a file imports from, with the names, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
            yield node.module, [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names if alias.name.split(".")[0] == "flwr")


def test_one_file_imports_what_is_not_public():
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "client" / "src").rglob("*.py")]):
        modules = {module for module, _ in imported(path)}
        assert path.resolve() == FILE or modules <= PUBLIC, path


PRIVATE = [(module, name) for module, names in imported(FILE) for name in names]


@pytest.mark.parametrize(("module", "name"), PRIVATE, ids=[name for _, name in PRIVATE])
def test_it_names_what_has_moved(module, name, monkeypatch):
    """A release of Flower without this name: the error names it, the release and those that are tested."""
    monkeypatch.delattr(sys.modules[module], name)
    with pytest.raises(ImportError) as raised:
        load(FILE)
    said = str(raised.value)
    assert re.match(rf"Flower [\d.]+ has moved .*'{name}' from '{re.escape(module)}'", said)
    assert f"tested with flwr{_flwr.TESTED}" in said


def test_the_releases_are_those_that_the_package_asks_for():
    for file in ("pyproject.toml", "client/pyproject.toml"):
        assert re.search(rf'"flwr(\[simulation\])?{re.escape(_flwr.TESTED)}"', (ROOT / file).read_text()), file

"""The shape of the code base: who may import whom, and what may not be used."""

import ast
import importlib.util
import inspect
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import rooms
from fedspam.methods import METHODS
from rooms import ROOMS, ROOT

SOURCE = ROOT / "src" / "fedspam"
FILES = sorted(SOURCE.rglob("*.py"))
# the files that fedspam-client shares: only they import relatively, so that they run under both names
SHARED = {path.resolve() for path in (ROOT / "client/src/fedspam_client/_shared").rglob("*.py") if path.is_symlink()}

# What only the last room may import: the library needs neither plots nor a terminal.
ONLY_IN_APP = {"matplotlib", "rich"}

FORBIDDEN_MODULES = {
    "pickle", "_pickle", "pickletools", "copyreg", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml",
    "code", "codeop", "runpy", "imp", "ctypes", "cffi", "xmlrpc",
}  # fmt: skip
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "__builtins__", "builtins"}
# whatever they are looked up on; importing by name is for the package itself, which has its names from its own table
FORBIDDEN_ATTRIBUTES = {
    "read_pickle", "to_pickle", "system", "popen", "execv", "execve", "spawnv", "mktemp", "import_module",
    "exec_module", "load_module", "__reduce__", "__reduce_ex__",
}  # fmt: skip
# words that make a harmless call dangerous, and the only value that they may have
FORBIDDEN_KEYWORDS = {"allow_pickle": False, "shell": False, "weights_only": True}
# Imports that point backwards inside a room, which should become none.
BOTH_WAYS = {"_internal": {("trees", "checks")}}
IMPORTERS = {
    "__init__.py": ["import_module"] * 3,
    "flower/__init__.py": ["import_module"],
    "app/experiment/model.py": ["exec_module"],  # the Python file that a user names for it: model.function
}


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def room_of(path: Path) -> str:
    """The room of a file; `__init__` for the package itself."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def package_of(path: Path) -> str:
    """What the relative imports of a file are relative to."""
    return ".".join(path.parent.relative_to(SOURCE.parent).parts)


def modules_imported(text: str, package: str = "") -> set[str]:
    """Every module of this package that a source text imports, at its top or inside a function, and every name from it.

    Arguments:
        package: that of the file; empty if the text must not import relatively.
    """
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert package or node.level == 0, f"line {node.lineno}: imports are absolute here"
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            modules = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {module for module in modules if module.split(".")[0] == "fedspam"}
    return found


def rooms_imported(text: str, package: str = "") -> set[str]:
    """Every room that a source text imports from."""
    return {[*module.split("."), "__init__"][1] for module in modules_imported(text, package)}


def parts_of(room: str) -> dict[str, set[str]]:
    """The folders and files of a room, and the others of them that each imports."""
    home = SOURCE / room
    parts = {path.stem: set[str]() for path in home.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))}
    for path in home.rglob("*.py"):
        part = path.relative_to(home).parts[0].removesuffix(".py")
        modules = [module.split(".") for module in modules_imported(path.read_text(), package_of(path))]
        parts[part] |= {names[2] for names in modules if names[1:2] == [room] and names[2] in parts} - {part}
    return parts


def wrong_imports(room: str, imported: set[str]) -> list[str]:
    """The imports that point the wrong way: to a room that is not above."""
    order = list(ROOMS)
    above = set(order[: order.index(room)]) if room in ROOMS else set(order)  # the package itself shows every room
    # the version is stated at the top of the package, before it imports anything
    return [f"{room} imports {other}" for other in sorted(imported - above - {room, "__version__"})]


def outside_imports(text: str) -> set[str]:
    """The packages of others that a source text imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).split(".")[0])
    return found


def forbidden(text: str) -> list[str]:
    """Uses of pickle, eval and the like, by line."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN_MODULES
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").split(".")[0]} & FORBIDDEN_MODULES
            names |= {alias.name for alias in node.names} & (FORBIDDEN_CALLS | FORBIDDEN_ATTRIBUTES)
        elif isinstance(node, ast.Name):
            names = {node.id} & FORBIDDEN_CALLS
        elif isinstance(node, ast.Attribute):
            names = {node.attr} & FORBIDDEN_ATTRIBUTES
        elif isinstance(node, ast.keyword):
            names = {node.arg} & FORBIDDEN_KEYWORDS.keys() if not _is_harmless(node) else set()
        else:
            continue
        found += [f"line {getattr(node, 'lineno', '?')}: {name}" for name in names]
    return found


def _is_harmless(node: ast.keyword) -> bool:
    return isinstance(node.value, ast.Constant) and node.value.value is FORBIDDEN_KEYWORDS.get(str(node.arg))


def test_the_rooms_are_those_of_the_list() -> None:
    entries = {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"}
    assert entries == {*ROOMS, "__init__.py", "py.typed"}


def test_every_link_of_the_client_leads_to_a_file() -> None:
    assert SHARED
    assert [path for path in SHARED if path not in FILES] == []


def test_the_map_of_the_readme_is_printed_from_the_list() -> None:
    assert rooms.printed() in (ROOT / "README.md").read_text(), "print it anew: python tests/rooms.py"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_room_imports_only_from_those_above_it(path: Path) -> None:
    text = path.read_text()
    assert wrong_imports(room_of(path), rooms_imported(text, package_of(path) if path in SHARED else "")) == []
    if room_of(path) != "app":
        assert not outside_imports(text) & ONLY_IN_APP


@pytest.mark.parametrize("room", ROOMS)
def test_the_parts_of_a_room_import_each_other_one_way(room: str) -> None:
    parts, allowed = parts_of(room), BOTH_WAYS.get(room, set())
    assert allowed <= {(one, other) for one, others in parts.items() for other in others}, "the table names too much"
    one_way = {one: {other for other in others if (one, other) not in allowed} for one, others in parts.items()}
    TopologicalSorter({name: others for name, others in one_way.items() if name != "__init__"}).prepare()


def test_no_public_class_name_stands_for_two_things() -> None:
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name_of(path))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


@pytest.mark.parametrize("name", METHODS)
def test_the_constructor_of_a_method_has_types(name: str) -> None:
    arguments = inspect.signature(METHODS[name].build).parameters
    assert [argument for argument, kind in arguments.items() if kind.annotation in (Any, inspect.Parameter.empty)] == []
    if "cohort_size" in arguments:
        assert next(iter(arguments)) == "cohort_size"
        assert arguments["cohort_size"].kind == inspect.Parameter.POSITIONAL_OR_KEYWORD


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_code_from_data(path: Path) -> None:
    assert [found.split(": ")[1] for found in forbidden(path.read_text())] == IMPORTERS.get(name_of(path), [])


@pytest.mark.parametrize(
    ("room", "text", "wrong"),
    [
        ("solvers", "from fedspam.clients import Oracle", []),
        ("solvers", "from fedspam.solvers.exact import Exact", []),
        ("simulation", "from fedspam import __version__", []),
        ("clients", "from fedspam.federation import Cohort", ["clients imports federation"]),
        ("clients", "def f():\n    from fedspam import simulation", ["clients imports simulation"]),
        ("federation", "import fedspam.methods.spam", ["federation imports methods"]),
        ("simulation", "import fedspam", ["simulation imports __init__"]),
        ("simulation", "from fedspam import spam", ["simulation imports spam"]),
        ("theory", "from fedspam.problems import ridge", ["theory imports problems"]),
        ("problems", "from fedspam.theory import bounds", []),
        ("flower", "from fedspam.app.cli import main", ["flower imports app"]),
        ("app", "from fedspam.datasets import read_table", []),
    ],
)
def test_the_import_rule_itself(room: str, text: str, wrong: list[str]) -> None:
    assert wrong_imports(room, rooms_imported(text)) == wrong


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import yaml.constructor",
        "eval('1')",
        "run = exec",
        "builtins.eval",
        "__builtins__['eval']",
        "numpy.load(f, allow_pickle=True)",
        "numpy.load(f, allow_pickle=trusted)",
        "torch.load(f, weights_only=False)",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
        "pandas.read_pickle(f)",
        "importlib.import_module(text)",
        "from importlib import import_module as harmless",
        "from builtins import eval as harmless",
    ],
)
def test_the_rule_against_code_from_data_itself(text: str) -> None:
    assert len(forbidden(text)) == 1
    assert forbidden("jax.eval_shape(f)\nnumpy.load(f, allow_pickle=False)\nplatform.platform()") == []


def test_import_is_light_and_changes_no_setting() -> None:
    """`import fedspam` loads no plotting and no other framework, and leaves JAX at 32 bits."""
    heavy = ("matplotlib", "torch", "flwr", "flax", "equinox", "optimistix")
    script = (
        "import sys, jax, fedspam\n"
        f"print([name for name in {heavy} if name in sys.modules], jax.config.read('jax_enable_x64'))"
    )
    # without the environment's own opinion on precision
    environment = {"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "error", "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "[] False"

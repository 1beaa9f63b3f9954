"""The shape of the code base: who may import whom, what may not be used, how long a file may grow."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedspam"
FILES = sorted(SOURCE.rglob("*.py"))

# A room may import from the rooms before it, and from itself.
ROOMS = (
    "_tree",
    "_check",
    "_random",
    "_strict",
    "_describe",
    "_files",
    "wire",
    "population",
    "evaluation",
    "faults",
    "federation",
    "aggregation",
    "traced",
    "prox",
    "schedules",
    "estimators",
    "algorithms",
    "catalogue",
    "ledger",
    "compiled",
    "fitting",
    "stored",
    "watch",
    "diagnosis",
    "records",
    "simulation",
    "loopback",
    "theory",
    "problems",
    "datasets",
    "models",
    "flower",
    "figures",
    "report",
    "compare",
    "reproduce",
    "tracking",
    "config",
    "experiment",
    "lab",
    "commands",
    "cli",
    "__main__",
)

# Rooms at the edge, and the only ones that may import them.
DOORS = {
    "flower": {"commands"},
    "figures": {"report", "compare", "reproduce", "lab", "commands"},
    "report": {"reproduce", "compare", "experiment", "lab", "commands"},
    "compare": {"experiment", "lab", "commands"},
    "reproduce": {"commands"},
    "tracking": {"experiment", "commands"},
    "config": {"experiment", "lab", "commands"},
    "experiment": {"lab", "commands"},
    "lab": {"commands"},
    "commands": {"cli"},
    "cli": {"__main__"},
    "__main__": set(),
}

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
IMPORTERS = {
    "__init__.py": ["import_module", "import_module"],
    "experiment/model.py": ["exec_module"],  # the Python file that a user names for it: model.function
}


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def room_of(path: Path) -> str:
    """The room of a file; `__init__` for the package itself."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def line_count(path: Path) -> int:
    return len(path.read_text().splitlines())


def rooms_imported(text: str) -> set[str]:
    """Every room that a source text imports from, at its top or inside a function."""
    rooms = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            assert node.module is not None
            modules = [node.module]
            if node.module == "fedspam":
                modules = [f"fedspam.{alias.name}" for alias in node.names]
        else:
            continue
        rooms |= {module.split(".")[1] for module in modules if module.startswith("fedspam.")}
        if "fedspam" in modules:
            rooms.add("__init__")
    return rooms


def wrong_imports(room: str, imported: set[str]) -> list[str]:
    """The imports that point the wrong way."""
    wrong = []
    for other in sorted(imported - {room}):
        if room == "__init__":
            allowed = other not in DOORS
        elif other == "__version__":  # stated once, at the top of the package, before it imports anything
            allowed = True
        else:
            allowed = other in ROOMS and ROOMS.index(other) < ROOMS.index(room) and room in DOORS.get(other, {room})
        if not allowed:
            wrong.append(f"{room} imports {other}")
    return wrong


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


def test_there_is_something_to_check() -> None:
    assert len(FILES) > 20
    assert {room_of(path) for path in FILES} >= {
        "_tree",
        "population",
        "federation",
        "prox",
        "algorithms",
        "simulation",
    }


def test_every_room_has_its_place_in_the_order() -> None:
    unknown = {room_of(path) for path in FILES} - {*ROOMS, "__init__"}
    assert not unknown, f"give {sorted(unknown)} a place in ROOMS: after all that it imports"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_upwards(path: Path) -> None:
    assert wrong_imports(room_of(path), rooms_imported(path.read_text())) == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_code_from_data(path: Path) -> None:
    assert [found.split(": ")[1] for found in forbidden(path.read_text())] == IMPORTERS.get(name_of(path), [])


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_are_short(path: Path) -> None:
    assert line_count(path) < 400


def test_spam_reads_like_its_pseudocode() -> None:
    """The method itself fits on one screen; its documented constructor and its registry rows on another two."""
    path = SOURCE / "algorithms" / "spam.py"
    (spam,) = (
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) and node.name == "Spam"
    )
    assert spam.end_lineno is not None
    assert spam.end_lineno - spam.lineno < 60
    assert line_count(path) < 150


@pytest.mark.parametrize(
    ("room", "text", "wrong"),
    [
        ("prox", "from fedspam.population import Oracle", []),
        ("prox", "from fedspam.prox.exact import Exact", []),
        ("records", "from fedspam import __version__", []),
        ("population", "from fedspam.federation import Cohort", ["population imports federation"]),
        ("population", "def f():\n    from fedspam import simulation", ["population imports simulation"]),
        ("estimators", "import fedspam.algorithms.spam", ["estimators imports algorithms"]),
        ("simulation", "import fedspam", ["simulation imports __init__"]),
        ("simulation", "from fedspam import spam", ["simulation imports spam"]),
        ("__init__", "from fedspam.figures import ridge", ["__init__ imports figures"]),
        ("figures", "import fedspam.flower", ["figures imports flower"]),
        ("reproduce", "from fedspam import figures", []),
        ("reproduce", "from fedspam.cli import main", ["reproduce imports cli"]),
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

"""Every function that reads bytes from outside is tried with hostile ones: it has a row in the table of readers.

The code is searched for calls that open a file or parse bytes. Then every row of `readers.py` and every fuzz target is
run once with good bytes, and what they reach is noted. A function that nothing reaches has no row: give it one, or name
it below with the reason why it needs none.
"""

import ast
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fedspam
from loading import ROOT, load
from readers import READERS

SOURCE = Path(fedspam.__file__).parent
CLIENT = ROOT / "client" / "src"  # its links to files of the package are searched there
FILES = {path: path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
FILES |= {path: path.relative_to(CLIENT).as_posix() for path in CLIENT.rglob("*.py") if not path.is_symlink()}
# names of functions and methods that open a file or parse bytes, whoever's they are
READ = frozenset((
    "open", "open_regular", "opened", "regular", "read_bytes", "read_text", "urlopen", "load_file", "exec_module",
    "json_object", "arrays", "unpack", "frames", "b64decode", "frombuffer", "fromfile", "memmap", "open_memmap",
    "open_stream", "read_table", "read_array", "ParquetFile", "File", "ZipFile", "DictReader",
))  # fmt: skip
OF_MODULES = {
    "json": ("load", "loads"),
    "tomllib": ("load", "loads"),
    "csv": ("reader",),
    "np": ("load", "loadtxt", "genfromtxt"),
    "pickle": ("load", "loads"),
    "strict": ("read", "fields"),
    "files": ("read",),
    "feather": ("read_table",),
    "parquet": ("read_table",),
    "os": ("open", "read"),
}

SHIPPED = "reads a file that comes with the package"
WRITES = "writes"
OWN = "takes bytes that this run, or another process of it, has just made"
MESSAGE = "decodes a message, not a file"
SEALED = "reads a file of a server or client, which a hash guards; no hostile one with a hash that fits is tried"
GOLDEN = "answers with a finding instead of an error"
WITHOUT_ROW = {
    "_internal/describe.py:_array_on_devices": OWN,
    "_internal/files.py:_sync_folder": WRITES,
    "_internal/files.py:append": WRITES,
    "_internal/hosts.py:all_bytes": OWN,
    "_internal/hosts.py:on_first": OWN,
    "app/cite/__init__.py:_papers": SHIPPED,
    "app/commands/lab.py:run": "opens a browser",
    "app/compare/sweep.py:from_csv": "parses a text that the docs and the tests read, no command",
    "app/config/parse.py:_value": "parses an argument of the command line; app/test_hostile_commands.py",
    "app/data.py:_download": "fetches a file whose hash is then compared",
    "app/experiment/model.py:load": "runs a file of Python that the user named for it",
    "app/experiment/parts.py:_classes": OWN,
    "app/interrupt.py:ending_soon": "reads signals",
    "app/lab/server.py:Handler._post": "reads requests; app/test_lab.py sends hostile ones",
    "app/commands/new.py:create": SHIPPED,
    "app/commands/docs.py:run": SHIPPED,
    "app/registry.py:Registry._use": "copies a file that `read_model`, which has a row, has just read",
    "app/registry.py:Registry.add": "copies a file that `read_model`, which has a row, has just read",
    "app/registry.py:_lines": "reads the file that it writes, and a log; app/test_registry.py tries damaged ones",
    "app/report/page.py:asset": SHIPPED,
    "app/theory/proofs.py:stored": SHIPPED,
    "clients/sharded.py:_sizes_everywhere": OWN,
    "datasets/_hdf5.py:clients": "runs in a process of its own, which the row tff starts",
    "datasets/_hdf5.py:main": "runs in a process of its own, which the row tff starts",
    "datasets/catalog.py:fits": "compares a hash: it answers whatever the bytes are",
    "federation/codecs/payload.py:decode": MESSAGE,
    "fedspam_client/app.py:_agreed": MESSAGE,
    "fedspam_client/app.py:_answer": MESSAGE,
    "fedspam_client/app.py:_fields": MESSAGE,
    "fedspam_client/conformance.py:_arrays": GOLDEN,
    "fedspam_client/conformance.py:_json": GOLDEN,
    "fedspam_client/conformance.py:_read": GOLDEN,
    "fedspam_client/conformance.py:run": GOLDEN,
    "fedspam_client/frames.py:ask": MESSAGE,
    "fedspam_client/relay.py:_described": MESSAGE,
    "fedspam_client/works.py:WireMessage.read": MESSAGE,
    "fedspam_client/works.py:WorkField.unpacked": MESSAGE,
    "flower/client/policy.py:answered": "reads the log that it writes; flower/test_policy.py tries damaged lines",
    "flower/client/state.py:Memory._stored": SEALED,
    "flower/client/state.py:Memory.keep": WRITES,
    "flower/privacy/differential.py:Privacy._spend_for_life": "counts a damaged note as all of the budget",
    "flower/privacy/mods.py:treated": MESSAGE,
    "flower/server/nodes.py:AssignedNodes.saved": SEALED,
    "flower/server/status.py:_lines": "reads the ends of logs; flower/test_beside.py tries damaged lines",
    "flower/server/journal.py:Journal.load": SEALED,
    "flower/server/sites.py:_read": "reads the file that it writes; flower/test_sites.py tries damaged ones",
    "flower/server/sites.py:fingerprint": "decodes a key of Flower's registry that cryptography has just encoded",
    "simulation/records.py:Store._is_ours": "looks whether a folder is its own; load, which follows, has a target",
    "simulation/records.py:_loosely": "looks whether a folder holds a run, before it is refused or written",
    "simulation/records.py:_unpacked": OWN,
    "simulation/sweep_folder.py:kept": "opens the folder of a sweep; load, which reads it, has a target",
}


def called(node: ast.Call) -> bool:
    """Whether a call opens a file for reading or parses bytes."""
    match node.func:
        case ast.Name(id="open") | ast.Attribute(attr="open"):
            modes = [
                each.value
                for each in (*node.args, *(key.value for key in node.keywords))
                if isinstance(each, ast.Constant)
            ]
            return not any(
                isinstance(mode, str) and set(mode) <= set("wax+bt") and set(mode) & set("wax") for mode in modes
            )
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in OF_MODULES:
            return name in OF_MODULES[module] or name in READ
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in READ
    return False


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Functions and methods with their names; what is inside of one belongs to it."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{part.name}", part) for part in node.body if isinstance(part, ast.FunctionDef))


def reading() -> set[str]:
    found = set()
    for path, place in FILES.items():
        for name, node in functions(ast.parse(path.read_text(encoding="utf-8"))):
            if any(isinstance(each, ast.Call) and called(each) for each in ast.walk(node)):
                found.add(f"{place}:{name}")
    return found


def reached(run: Callable[[], object]) -> set[str]:
    """The functions of the package that a call goes through."""
    found: set[str] = set()
    places = {str(path): place for path, place in FILES.items()}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename in places:
            found.add(f"{places[code.co_filename]}:{code.co_qualname.partition('.<locals>')[0]}")

    before = sys.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return found


def test_every_reader_has_a_row(tmp_path):
    tried: set[str] = set()
    for name, reader in READERS.items():
        folder = tmp_path / name
        folder.mkdir()
        reader.write(folder) if reader.is_possible else pytest.skip(f"{reader.needs} is not installed")
        tried |= reached(lambda reader=reader, folder=folder: reader.read(folder))
    targets = load(ROOT / "fuzz" / "targets.py").TARGETS
    for target in targets.values():
        seed = next(target.seeds())
        tried |= reached(lambda target=target, seed=seed: target(seed))
    without = reading() - tried
    assert sorted(without - WITHOUT_ROW.keys()) == [], "give them a row in readers.py, or a reason here"
    assert sorted(WITHOUT_ROW.keys() - without) == [], "these have a row, or are gone: remove them here"

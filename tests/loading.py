"""Python files outside the package as modules: benchmarks, examples, and the code of a page."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def load(path: Path) -> ModuleType:
    """Run a file and return it as a module; what it defines can be looked up by its module's name."""
    name = f"loaded_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_code(text: str, folder: Path) -> ModuleType:
    """A block of code as a module, which is written into this folder."""
    path = folder / "block.py"
    path.write_text(text)
    return load(path)


def benchmark(name: str) -> ModuleType:
    return load(ROOT / "benchmarks" / f"{name}.py")

"""What the documents say is run: their Python works, their numbers are those it prints, and no method is left out."""

import contextlib
import doctest
import importlib.util
import io
import re
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import fedspam.algorithms
from fedspam import ledger
from fedspam.algorithms import METHODS
from fedspam.cli import main
from fedspam.compare import sweep

ROOT = Path(__file__).parents[1]


def blocks(document: str, language: str) -> list[str]:
    """The fenced code of one language in a document."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


def load(text: str, folder: Path) -> types.ModuleType:
    """A block of code as a module."""
    path = folder / "block.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("block", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_prints_what_it_says(tmp_path: Path) -> None:
    (code,) = blocks("README.md", "python")
    shown = blocks("README.md", "text")[0]
    printed = io.StringIO()
    with jax.enable_x64(False), contextlib.redirect_stdout(printed):  # as a reader runs it
        load(code, tmp_path)
    number = r"\d+(?:\.\d+)?"
    assert re.split(number, printed.getvalue()) == re.split(number, shown)
    # a local solver may stop a step earlier on another processor, which the third digit shows
    found, told = (list(map(float, re.findall(number, text))) for text in (printed.getvalue(), shown))
    assert found == pytest.approx(told, rel=0.15)


def has_code(path: Path) -> bool:
    return bool(path.read_text().strip())


def test_readme_maps_every_room() -> None:
    source = ROOT / "src" / "fedspam"
    rooms = {f"{path.name}/" for path in source.iterdir() if path.is_dir() and any(map(has_code, path.glob("*.py")))}
    rooms |= {path.name for path in source.glob("*.py") if not path.name.startswith("__")}
    tree = blocks("README.md", "text")[1]
    mapped = set(re.findall(r"^  ([\w./]+) ", tree, re.MULTILINE))
    assert mapped == rooms


def test_skeleton_of_a_method_works(tmp_path: Path) -> None:
    (code,) = blocks("CONTRIBUTING.md", "python")
    try:
        failed, tried = doctest.testmod(load(code, tmp_path))
        row = METHODS["sgd"]
    finally:
        METHODS.pop("sgd", None)
    assert failed == 0
    assert tried == code.count(">>> ") > 0
    (exchange,) = ledger.plan(row.make(), jnp.zeros(7)).round
    assert (exchange.floats_down, exchange.floats_up) == (7 * row.down.cohort, 7 * row.up.cohort)


def test_every_method_is_exported() -> None:
    for row in METHODS.values():
        name = row.build.__name__
        assert name in fedspam.algorithms.__all__
        assert getattr(fedspam.algorithms, name) is row.build


def test_the_page_of_methods_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--markdown"]) == 0
    remedy = "make it anew: fedspam methods --markdown > docs/methods.md"
    assert (ROOT / "docs" / "methods.md").read_text() == capsys.readouterr().out, remedy


def test_the_page_of_methods_tells_every_fact() -> None:
    """The table against the registry, cell by cell."""
    lines = re.findall(r"^\| `.*$", (ROOT / "docs" / "methods.md").read_text(), re.MULTILINE)
    rows = {
        cells[1].strip(" `"): [cell.strip() for cell in cells[2:-1]] for cells in (line.split("|") for line in lines)
    }
    assert rows.keys() == METHODS.keys()
    signs = {"yes": "✓", "partly": "(✓)", "no": "–"}
    for key, row in METHODS.items():
        name, constructor, *facts, estimator, client, phases, down, up, reference = rows[key]
        assert (name, constructor, estimator, client) == (
            row.name,
            f"`{row.build.__name__}`",
            row.estimator,
            row.oracle,
        )
        told = (row.similarity, row.partial, row.stateless, row.nonsmooth, row.nonconvex)
        assert facts == [signs[answer] for answer in told]
        coin = " ¢" if row.coin else ""
        assert (phases, down, up) == (str(row.phases), f"{row.down}{coin}", f"{row.up}{coin}")
        assert re.sub(r"\[(.*?)\]\(https://arxiv.org/abs/\S+\)", r"\1", reference) == row.reference


def test_the_comparison_tells_what_the_sweep_found() -> None:
    rows = sweep.from_csv((ROOT / "docs" / "comparison.csv").read_text())
    page = (ROOT / "docs" / "comparison.md").read_text()
    assert sweep.markdown(rows) in page
    assert {row.method for row in rows} == {sweep.HERO, *sweep.RIVALS}
    assert "![" in page
    assert (ROOT / "docs" / "images" / "comparison.png").exists()

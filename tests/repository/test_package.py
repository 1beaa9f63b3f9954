"""The package: what its metadata claims, and that it installs and runs where there is nothing else."""

import itertools
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import fedspam
from fedspam.app.cli import command, main

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_command_is_installed() -> None:
    (point,) = entry_points(group="console_scripts", name="fedspam")
    assert point.load() is command


def test_versions_of_python_are_claimed_once() -> None:
    """The classifiers, the bounds and the Makefile's question are about the same versions."""
    named = [line.split("::")[-1].strip() for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()  # type: ignore[union-attr]
    assert named == [f"3.{minor}" for minor in range(int(low), int(high))]
    bounds = re.search(r"\(3, (\d+)\) <= sys.version_info\[:2\] <= \(3, (\d+)\)", (ROOT / "Makefile").read_text())
    assert bounds is not None
    assert [f"3.{minor}" for minor in range(int(bounds[1]), int(bounds[2]) + 1)] == named


def test_the_source_distribution_has_what_its_tests_read() -> None:
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    shipped = {*hatch["sdist"]["include"], "README.md"}
    assert {path.name for path in ROOT.glob("*.md")} <= shipped
    assert all((ROOT / name).exists() for name in shipped)


def test_the_version_is_stated_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.strip() == f"fedspam {fedspam.__version__}"
    assert PROJECT["dynamic"] == ["version"]


def test_help_imports_nothing_heavy() -> None:
    """So that `fedspam --help` answers at once; benchmarks/startup.py prints the seconds."""
    heavy = ("jax", "numpy", "matplotlib", "rich", "msgspec", "optax")
    script = (
        "import sys\n"
        "from fedspam.app.cli import main\n"
        "try:\n    main(['run', '--help'])\nexcept SystemExit:\n    pass\n"
        f"sys.stderr.write(str([name for name in {heavy} if name in sys.modules]))"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")}
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert found.stderr == "[]"
    assert "examples:" in found.stdout


def test_what_an_error_advises_to_install_can_be_installed() -> None:
    """fedspam is on no index yet: advice names other packages, and extras only of a clone."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    texts = [path.read_text() for path in files]
    assert not [path for path, text in zip(files, texts, strict=True) if re.search(r"pip install '?fedspam", text)]
    clone = {extra for text in texts for extra in re.findall(r"pip install '\.\[(\w+)\]'", text)}
    assert clone
    assert clone <= PROJECT["optional-dependencies"].keys()
    advised = {name for text in texts for name in re.findall(r"pip install '?([a-z][\w-]+)", text)}
    known = " ".join([*PROJECT["dependencies"], *itertools.chain(*PROJECT["optional-dependencies"].values())])
    assert advised
    assert not [name for name in advised if name not in known]


@pytest.mark.thorough
def test_wheel_and_sdist_in_an_empty_environment() -> None:
    """Takes minutes and a network, or a mirror, to install from; for every version of Python: .ci/package --claimed."""
    pytest.importorskip("build")
    script = [sys.executable, str(ROOT / ".ci" / "package")]
    found = subprocess.run(script, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("reproduce and run work") == 2

"""A method in a file of the user's own: compared, run, and refused with a reason."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedspam.app.cli import main
from fedspam.methods import METHODS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def skeleton(tmp_path: Path) -> Iterator[Path]:
    """The skeleton of CONTRIBUTING.md as a file."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "mine.py"
    path.write_text(code, encoding="utf-8")
    yield path
    METHODS.pop("sgd", None)


@pytest.mark.slow
def test_it_is_compared_with_others(skeleton: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "compare --problem quadratics --methods sgd,mvr --rounds 20 --budget 3 --seeds 1 --quiet"
    assert main([*words.split(), "--method-file", str(skeleton), "--out", str(tmp_path / "found")]) == 0
    assert "\nsgd,0.1,rounds," in (tmp_path / "found" / "table.csv").read_text(encoding="utf-8")


@pytest.mark.slow
def test_it_runs(skeleton: Path, tmp_path: Path) -> None:
    words = "run --data ridge --method sgd --method.step_size 1e-6 --method.cohort_size 3 --rounds 2 --quiet"
    assert main([*words.split(), "--method-file", str(skeleton), "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = 1", "registers no method; end it with register"),
        ("1 / 0", "division by zero"),
        (None, "is not a file"),
    ],
)
def test_a_file_without_a_method_is_refused(
    code: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    if code is not None:
        path.write_text(code, encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "--method-file", str(path)])
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err

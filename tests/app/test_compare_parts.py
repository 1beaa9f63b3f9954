"""A comparison in parts: joined, they are what one comparison finds; what is missing, doubled or changed is refused."""

import json
import re
import shutil
from pathlib import Path

import pytest

from fedspam.app import named_problems
from fedspam.app.cli import main
from fedspam.app.compare import compare, sweep
from fedspam.app.compare.parts import INDEX, NUMBERS, ComparisonPart, read_parts
from fedspam.app.compare.tuning import ComparisonPlan

METHODS = ["mvr", "fedavg"]
PLAN = ComparisonPlan(rounds=8, cohort=3, targets=(0.5, 1e-9), seeds=2, budget=2, exact=True)
SAME = ("tuning.csv", "curves.csv", "table.csv", "figure.svg")


@pytest.fixture(scope="module")
def problem() -> named_problems.Problem:
    return named_problems.of_quadratics(
        "tiny", "tiny", *named_problems.similar_quadratics(0.1, 0.1, clients=8, dimension=3)
    )


@pytest.fixture(scope="module")
def made(problem: named_problems.Problem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a whole comparison, and the same in two parts."""
    folder = tmp_path_factory.mktemp("parts")
    compare(problem, METHODS, PLAN, folder / "whole", command="fedspam compare")
    for number in (1, 2):
        compare(problem, METHODS, PLAN, folder / str(number), command="fedspam compare", part=ComparisonPart(number, 2))
    return folder


def without_date(path: Path) -> str:
    return re.sub(r"<dc:date>.*?</dc:date>", "", path.read_text())


@pytest.mark.slow
def test_merged_parts_are_one_comparison(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--merge", str(made / "2"), str(made / "1"), "--out", str(made / "merged")]) == 0
    assert "to relative gradient norm 0.5: median of 2 seeds" in capsys.readouterr().out
    for name in SAME:
        assert without_date(made / "merged" / name) == without_date(made / "whole" / name), name
    facts, others = (json.loads((made / name / "manifest.json").read_text()) for name in ("whole", "merged"))
    for name in ("problem", "plan", "seeds", "methods", "tried", "diverged"):
        assert facts[name] == others[name]
    assert main(["report", str(made / "merged"), "--out", str(made / "page"), "--quiet"]) == 0


@pytest.mark.slow
def test_merged_parts_of_a_sweep_are_one_sweep(problem: named_problems.Problem, tmp_path: Path) -> None:
    chosen = [sweep.Case("tiny", label, lambda: problem) for label in ("one", "two")]
    rows = sweep.sweep(tmp_path / "whole", ["mvr"], PLAN, chosen=chosen)
    for number in (1, 2, 3):
        sweep.sweep(tmp_path / str(number), ["mvr"], PLAN, chosen=chosen, part=ComparisonPart(number, 3))
    saved = read_parts([tmp_path / str(number) for number in (3, 1, 2)])
    assert sweep.merge_parts(saved, tmp_path / "merged") == rows
    for name in ("tuning.csv", "table.csv", "table.md", "figure.svg"):
        assert without_date(tmp_path / "merged" / name) == without_date(tmp_path / "whole" / name), name


def refused(words: str, capsys: pytest.CaptureFixture[str], *arguments: object) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["compare", *map(str, arguments)])
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_missing_and_doubled_parts_are_refused(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    merge = lambda words, *folders: refused(words, capsys, "--merge", *folders, "--out", tmp_path / "out")
    merge("of 2 parts 1 is missing: 1; run it with --part 1/2", made / "2")
    copy = shutil.copytree(made / "1", tmp_path / "copy")
    merge(f"part 1 is in {made / '1'} and in {copy}; leave one of them out", made / "1", made / "2", copy)
    merge("holds no part of a comparison, or one that has not ended", made / "1", made / "whole")
    (copy / INDEX).write_bytes((copy / INDEX).read_bytes().replace(b"mvr", b"MVR"))
    merge("is damaged (its hash does not fit its content); run this part again", copy, made / "2")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_curves_of_another_comparison_are_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The curves stand in a file beside the index; those of other data have the same names and shapes."""
    copy = shutil.copytree(made / "1", tmp_path / "copy")
    other = named_problems.of_quadratics(
        "tiny", "tiny", *named_problems.similar_quadratics(0.2, 0.1, clients=8, dimension=3)
    )
    compare(other, METHODS, PLAN, tmp_path / "other", part=ComparisonPart(1, 2))
    shutil.copy(tmp_path / "other" / NUMBERS, copy / NUMBERS)
    words = f"{copy / NUMBERS} does not fit {INDEX}"
    refused(words, capsys, "--merge", copy, made / "2", "--out", tmp_path / "out")


@pytest.mark.slow
def test_parts_of_different_comparisons_are_refused(
    problem: named_problems.Problem, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = ComparisonPlan(rounds=9, cohort=3, targets=(0.5,), seeds=2, budget=1, exact=True)
    compare(problem, ["mvr", "fedavg"], other, tmp_path / "2", part=ComparisonPart(2, 2))
    refused("is of another comparison than", capsys, "--merge", made / "1", tmp_path / "2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--part", "3"], "'3' must be I/N, such as 3/16"),
        (["--part", "0/4"], "parts are numbered from 1 to N"),
        (["--part", "5/4"], "parts are numbered from 1 to N"),
        (["--methods", "mvr,fedavg", "--part", "3/16"], "there are 2 units of work"),
        (["--merge", "a", "--rounds", "3"], "--merge takes its settings from the parts; leave out rounds"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(words, capsys, *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()

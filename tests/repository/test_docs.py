"""The documents are true: their Python runs, it prints the numbers that they show, and every method is listed."""

import contextlib
import csv
import doctest
import io
import re
import statistics
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import fedspam.methods
from fedspam.app.cli import main
from fedspam.app.compare import sweep
from fedspam.federation import ledger
from fedspam.methods import METHODS, when
from loading import ROOT, load_code


def blocks(document: str, language: str) -> list[str]:
    """The fenced code of one language in a document."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.users
@pytest.mark.slow
def test_first_example_prints_what_it_says(tmp_path: Path) -> None:
    (code,) = blocks("README.md", "python")
    shown = blocks("README.md", "text")[0]
    printed = io.StringIO()
    with jax.enable_x64(False), contextlib.redirect_stdout(printed):  # as a reader runs it
        load_code(code, tmp_path)
    number = r"\d+(?:\.\d+)?"
    assert re.split(number, printed.getvalue()) == re.split(number, shown)
    # a local solver may stop a step earlier on another processor: a few of the 222 patients change sides
    found, stated = (list(map(float, re.findall(number, text))) for text in (printed.getvalue(), shown))
    assert found == pytest.approx(stated, abs=0.02)


@pytest.mark.parametrize("document", ["docs/index.md", "docs/tutorial.md"])
@pytest.mark.parametrize("language", ["python", "text"])
def test_the_first_example_is_the_same_everywhere(document: str, language: str) -> None:
    assert blocks(document, language)[0] == blocks("README.md", language)[0]


def has_code(path: Path) -> bool:
    return bool(path.read_text().strip())


def test_readme_maps_every_room() -> None:
    source = ROOT / "src" / "fedspam"
    rooms = {f"{path.name}/" for path in source.iterdir() if path.is_dir() and any(map(has_code, path.glob("*.py")))}
    rooms |= {path.name for path in source.glob("*.py") if not path.name.startswith("__")}
    tree = blocks("README.md", "text")[1]
    mapped = set(re.findall(r"^  ([\w./]+) ", tree, re.MULTILINE))
    assert mapped == rooms


@pytest.mark.users
def test_skeleton_of_a_method_works(tmp_path: Path) -> None:
    (code,) = blocks("CONTRIBUTING.md", "python")
    try:
        failed, tried = doctest.testmod(load_code(code, tmp_path))
        row = METHODS["sgd"]
    finally:
        METHODS.pop("sgd", None)
    assert failed == 0
    assert tried == code.count(">>> ") > 0
    (exchange,) = ledger.plan(row.make(), jnp.zeros(7)).round
    assert (exchange.floats_down, exchange.floats_up) == (7 * row.down.cohort, 7 * row.up.cohort)


def test_every_method_is_exported() -> None:
    for row in METHODS.values():
        assert getattr(fedspam.methods, row.build.__name__) is row.build


def test_every_constructor_is_found_at_the_top() -> None:
    from fedspam import fedavg, fedprox, scaffold  # type: ignore[attr-defined]

    assert (fedavg, fedprox, scaffold) == tuple(
        getattr(fedspam.methods, name) for name in ("fedavg", "fedprox", "scaffold")
    )
    with pytest.raises(AttributeError, match="no attribute 'fedavgg'"):
        _ = fedspam.fedavgg  # type: ignore[attr-defined]


def test_the_page_of_methods_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--markdown"]) == 0
    remedy = "print it again: fedspam methods --markdown > docs/methods.md"
    assert (ROOT / "docs" / "methods.md").read_text() == capsys.readouterr().out, remedy


def test_every_method_has_a_family_and_a_word_on_when_to_use_it() -> None:
    assert when.WHEN.keys() == METHODS.keys()
    named = {name for text in when.WHEN.values() for name in re.findall(r"`(\w+)`", text)}
    assert named <= {*METHODS, "local_rate", "local_steps"}
    listed = [key for _, keys in when.FAMILIES.values() for key in keys]
    assert sorted(listed) == sorted(METHODS), "src/fedspam/methods/when.py: a method belongs to exactly one family"
    assert len(set(when.FIRST)) == 10
    assert set(when.FIRST) <= METHODS.keys()


def test_the_comparison_shows_what_the_sweep_found() -> None:
    rows = sweep.from_csv((ROOT / "docs" / "comparison.csv").read_text())
    page = (ROOT / "docs" / "comparison.md").read_text()
    assert sweep.markdown(rows) in page
    assert {row.method for row in rows} == {sweep.HERO, *sweep.RIVALS}
    assert "![" in page
    assert (ROOT / "docs" / "images" / "comparison.png").exists()


def test_the_first_figure_has_the_megabytes_that_the_pages_state() -> None:
    """The median over the seeds of what each method paid until 0.73, and who is ahead in the end."""
    with (ROOT / "docs" / "megabytes.csv").open() as file:
        rows = list(csv.DictReader(file))
    paid: dict[str, dict[str, float]] = {}
    for row in rows:
        if float(row["accuracy"]) >= 0.73:
            paid.setdefault(row["method"], {}).setdefault(row["seed"], float(row["megabytes"]))
    cost = {name: round(statistics.median(seeds.values())) for name, seeds in paid.items() if len(seeds) == 5}
    claim = "`auto` takes {auto} MB, FedAvg {FedAvg} and SCAFFOLD {SCAFFOLD}.".format(**cost)
    for document in ("README.md", "docs/index.md"):
        assert claim in " ".join((ROOT / document).read_text().split()), document
    last = {row["method"]: float(row["accuracy"]) for row in rows if row["round"] == "60" and row["seed"] == "0"}
    assert max(last, key=last.__getitem__) == "SCAFFOLD"


# Pages whose Python runs in another test, which checks more.
ELSEWHERE = {
    "README.md": "repository/test_docs.py",
    "CONTRIBUTING.md": "repository/test_docs.py",
    "docs/index.md": "repository/test_docs.py",
    "docs/run.md": "app/test_run_command.py",
    "docs/flower.md": "flower/test_strategy.py",
    "docs/slow.md": "clients/test_over_selection.py",
    "docs/secure.md": "flower/test_differential.py",
    "docs/light.md": "client/test_app.py",
    "docs/wire.md": "client/test_app.py",
}
PAGES = sorted(
    name
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if blocks(name := path.relative_to(ROOT).as_posix(), "python")
)


# Pages whose first block of text is what their Python prints, to the character: counts and sizes.
PRINTED = (
    "docs/adapters.md",
    "docs/data.md",
    "docs/draws.md",
    "docs/networks.md",
    "docs/robustness.md",
    "docs/scale.md",
)
# The same up to the numbers, which rounding moves: accuracies, and losses of a few rounds.
NEARLY = ("docs/evaluation.md", "docs/migrate.md", "docs/personal.md")


@pytest.mark.users
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PAGES if name not in ELSEWHERE])
def test_python_on_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page run in order. A block that is not run says why in its first line."""
    monkeypatch.chdir(tmp_path)
    runs = [code for code in blocks(name, "python") if not re.match(r"# not run here: \w+", code)]
    assert runs, f"{name} has Python, and none of it is run"
    with jax.enable_x64(False), contextlib.redirect_stdout(io.StringIO()) as printed:
        load_code("\n".join(runs), tmp_path)
    if name in PRINTED:
        assert printed.getvalue() == blocks(name, "text")[0]
    if name in NEARLY:
        number = r"\d+(?:\.\d+)?"
        found, stated = printed.getvalue(), blocks(name, "text")[0]
        assert re.split(number, found) == re.split(number, stated)
        # a row of 20 changes sides: the smallest client of these pages has as many
        near = pytest.approx([float(one) for one in re.findall(number, stated)], abs=0.05)
        assert [float(one) for one in re.findall(number, found)] == near


def test_python_elsewhere_is_run_there() -> None:
    assert set(PAGES) >= ELSEWHERE.keys()
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / "tests" / test).read_text()


def test_what_waits_for_make_full_is_listed_with_its_reason() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("leaves to `make full`\n")[2].partition("\n### ")[0]
    listed = set(re.findall(r"`((?:\w+/)?\w+\.py)`", table))
    tests = [path for path in (ROOT / "tests").rglob("*.py") if re.search(r"mark\.thorough", path.read_text())]
    waiting = {path.relative_to(ROOT / "tests").as_posix() for path in tests}
    assert waiting == listed, "the table of CONTRIBUTING.md says why a file has such tests"


def test_other_spellings_of_python_do_not_hide_code() -> None:
    """A block marked `py`, `python` with options, or nothing would never run."""
    for name in ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))):
        fences = re.findall(r"^ *```+ *(.*)$", (ROOT / name).read_text(), re.MULTILINE)[::2]
        wrong = [fence for fence in fences if re.fullmatch(r"|py|pycon|python.+|\{.*", fence)]
        assert wrong == [], name


SECTIONS: dict[str, list[str]] = {
    title: re.findall(r"([\w-]+)\.md$", pages, re.MULTILINE)
    for title, pages in re.findall(
        r"^  - ([\w ]+):\n((?:      .*\n)+)", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE
    )
}
# guides tell what to do; pages of results and of the reference are looked up, and may be longer
GUIDES = [name for title in ("Start", "Simulate", "Command line", "Deploy") for name in SECTIONS[title]]
LISTS = {"glossary", "run-settings"}  # of words and of settings: nothing to show
NOTEBOOKS = {path.stem for path in (ROOT / "docs" / "notebooks").glob("*.py")} | {"index"}


@pytest.mark.parametrize("name", [*(name for name in GUIDES if name not in NOTEBOOKS), "auto"])
def test_a_guide_can_be_read_at_once_and_shows_something(name: str) -> None:
    """At most 1,200 words, with a picture or with what a command or a program prints."""
    text = (ROOT / "docs" / f"{name}.md").read_text()
    words = len(text.split())
    assert words <= 1200, f"{name}.md has {words} words: split it by purpose"
    assert name in LISTS or "![" in text or "```text\n" in text, f"{name}.md shows nothing"


def test_every_page_has_a_place_and_no_other_page_is_long() -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages <= {name for names in SECTIONS.values() for name in names}
    for name in pages - {name for title in ("Results", "Reference", "Methods") for name in SECTIONS[title]}:
        assert len((ROOT / "docs" / f"{name}.md").read_text().split()) <= 1500, name


def test_the_first_page_claims_what_its_pages_say() -> None:
    """Every number on the first page is on the page of its measurement."""
    first = " ".join((ROOT / "docs" / "index.md").read_text().split())
    for claim, page, found in (
        ("44 of 44 cells", "tables", "44 accuracies | **44 of 44**"),
        ("all 54 targets", "../research/auto/README", "all 54 targets that hindsight reaches"),
        (
            "of 1.00 times its rounds",
            "../research/auto/README",
            "with a median of 1.00 and at worst 2.09 times its rounds",
        ),
        ("the best of 63 settings", "../research/auto/README", "the best of 63 settings of SPAM-PPA"),
        ("0.62 times the rounds of tuned FedAvg", "../research/auto/README", "The median of the ratios is 0.62"),
        ("at worst 1.33", "../research/auto/README", "the worst 1.33"),
        ("Disturbed 200 times", "robustness-results", "Disturbed 200 times"),
    ):
        assert claim in first
        text = " ".join((ROOT / "docs" / f"{page}.md").read_text().split())
        assert found in text, f"{page}.md no longer says {found!r}: correct docs/index.md and docs/choosing.md"


def test_the_citation_has_the_version_of_the_package() -> None:
    found = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert found == [fedspam.__version__]

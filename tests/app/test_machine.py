"""What programs read: every command takes --json, and prints one object of a schema."""

import argparse
import json
from pathlib import Path

import msgspec
import pytest

import fedspam
from fedspam.app import machine
from fedspam.app.cli import COMMANDS, main, parser
from loading import ROOT

OWN = {"run", "measure", "methods", "lab"}  # commands whose JSON has facts of its own


def of_schema(text: str) -> machine.Report:
    """The report; its schema is that of the class, with no field missing or unknown."""
    assert text.count("\n") == 1
    assert set(json.loads(text)) == set(machine.Report.__dataclass_fields__)
    return msgspec.json.decode(text, type=machine.Report, strict=True)


def test_the_page_has_the_schema() -> None:
    page = (ROOT / "docs" / "json.md").read_text()
    for name in machine.Report.__dataclass_fields__:
        assert f"\n| `{name}` | " in page
    for name in (*OWN, *machine.TABLES):
        assert f"`{name}`" in page


def test_every_command_takes_json() -> None:
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert len(commands.choices) == len(COMMANDS)
    for name, command in commands.choices.items():
        assert "--json" in command._option_string_actions, name
        assert machine.add_json(command) is False, name


@pytest.mark.parametrize(
    "line", ["cite scaffold", "completions bash", "data", "data heart", "docs", "docs run", "new project"]
)
def test_json_holds_what_the_command_prints(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = main(line.split())
    printed = capsys.readouterr().out
    if line.startswith("new"):
        line += "-too"
    code = main([*line.split(), "--json"])
    report = of_schema(capsys.readouterr().out)
    assert (report.code, report.version, report.command) == (code, fedspam.__version__, line.split()[0])
    assert code == plain
    if not line.startswith("new"):
        assert report.output == printed.splitlines()
    assert report.folder is None


def test_json_of_a_command_with_a_folder_has_its_files_and_tables(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(options: argparse.Namespace) -> int:
        assert options.quiet
        (tmp_path / "table.csv").write_text("method,rounds\nspam_pp,7\n")
        (tmp_path / "figure.png").write_bytes(b"")
        print(tmp_path)  # noqa: T201
        return 1

    options = argparse.Namespace(json=True, quiet=False, line="fedspam compare --json")
    assert machine.reporting(run)(options) == 1
    report = of_schema(capsys.readouterr().out)
    assert (report.command, report.code, report.folder) == ("compare", 1, str(tmp_path))
    assert report.files == ["figure.png", "table.csv"]
    assert report.tables == {"table.csv": [{"method": "spam_pp", "rounds": "7"}]}


def test_wrong_use_is_as_without_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["data", "herat", "--json"])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "did you mean 'heart'?" in told.err


def test_docs_prints_every_page_and_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "choosing"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "choosing.md").read_text()
    assert main(["docs"]) == 0
    listed = capsys.readouterr().out
    assert all(path.stem in listed for path in (ROOT / "docs").glob("*.md"))
    with pytest.raises(SystemExit):
        main(["docs", "chosing"])
    assert "did you mean 'choosing'?" in capsys.readouterr().err

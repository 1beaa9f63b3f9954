"""The exit codes: what the help and the guide say is what the table in the code says."""

from pathlib import Path

import pytest

from fedspam.app import exit_codes
from fedspam.app.cli import main
from fedspam.simulation.status import KINDS

GUIDE = (Path(__file__).parents[2] / "docs" / "json.md").read_text()


def test_the_guide_has_every_code_and_every_reason():
    rows = [line.split(" | ") for line in GUIDE.splitlines() if line.startswith("| ")]
    codes = {row[0].strip("| ") for row in rows}
    known = (exit_codes.DONE, exit_codes.FAILED, exit_codes.WRONG_USE, exit_codes.INTERRUPTED)
    assert set(map(str, known)) <= codes
    for command, reason in exit_codes.FAILURES.items():
        assert f"| {exit_codes.FAILED} | `fedspam {command}`: {reason}" in GUIDE


@pytest.mark.parametrize("command", ["run", "reproduce", "theory", "data", "cite", "lab"])
def test_help_names_the_codes_of_the_command(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == exit_codes.DONE
    assert exit_codes.described(command) in capsys.readouterr().out


def test_a_run_that_reached_its_target_is_done():
    codes = {kind: exit_codes.verdict(well) for kind, well in KINDS.items()}
    assert (codes["completed"], codes["reached"]) == (exit_codes.DONE, exit_codes.DONE)
    assert {codes[kind] for kind in ("diverged", "stopped", "failed")} == {exit_codes.FAILED}

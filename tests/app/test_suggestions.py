"""A mistyped flag is compared with the flags of its own command."""

import pytest

from fedspam.app.cli import main


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("report --titel x", "--title"),
        ("lab --prot 80", "--port"),
        ("compare --round 3", "--rounds"),
        ("run --metod spam", "--method"),
        ("report --cohort 3", None),  # a flag of `compare`
        ("lab --problem ridge", None),
        ("run --bogus", None),
    ],
)
def test_a_suggestion_is_a_flag_of_the_command(words, near, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words.split())
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert stopped.value.code == 2
    assert told.startswith(f"fedspam {words.split()[0]}: error: unrecognized arguments: {words.split()[1]}")
    assert told.endswith(f"; did you mean {near}?") == (near is not None)
    assert near is not None or "did you mean" not in told

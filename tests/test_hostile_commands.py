"""Command lines that nobody should type: each is answered by one clear line and exit code 2, before anything runs."""

import gzip
import os

import numpy as np
import pytest

from fedspam._internal import files
from fedspam.app.cli import main
from fedspam.simulation import records

CONFIG = """data = "ridge"
[algorithm]
name = "spam"
step_size = 0.5
fresh_weight = 0.2
[run]
rounds = 2
"""
CSV = CONFIG.replace('data = "ridge"', '[data]\nkind = "csv"\npath = "bad.csv.gz"\nclient = "who"\nlabel = "y"')
LARGE = "100000000000000000000"

WRONG = [
    *(["run", "q.toml", *more] for more in (
        ["--seed", LARGE], ["--run.seed", LARGE], ["--seed", "-1"], ["--seed", "1.5"], ["--rounds", LARGE],
        ["--rounds", "-1"], ["--rounds", "1e3"], ["--rounds", "nan"], ["--rounds", "9" * 5000], ["--out", ""],
        ["--out", "a\0b"], ["--out", "n" * 300], ["--algorithm.step_size", "nan"], ["--algorithm.step_size", "inf"],
        ["--algorithm.step_size", "-1"], ["--algorithm.step_size", "1e999"], ["--algorithm.name", "sapm"],
        ["--algorithm", "spam"], ["--algorithm."], ["--.x", "1"], ["--a.b.c.d", "1"], ["--run.rounds.x", "1"],
        ["--data.clients", LARGE], ["--data.clients", "0"], ["--algorithm.cohort_size", "99999999"],
        ["--data.dimension", "1000000"], ["--data.kind", "\ud800"], ["--run.record", ""],
    )),
    ["run", "csv.toml"], ["run", "nul.toml"], ["run", "bin.toml"], ["run", "empty.toml"], ["run", "pipe.toml"],
    ["run", "."], ["run", "missing.toml"], ["run", ""], ["run"], ["run", "--"],
    ["theory", "--delta", "nan"], ["theory", "--rounds", LARGE], ["theory", "--cohort", "0"], ["theory", "[/x]"],
    ["compare", "--seeds", LARGE], ["compare", "--methods", "x,,y"], ["compare", "--rounds", "0"], ["compare", "[/]"],
    ["methods", "[/nothing]"], ["cite", "[/x]"], ["cite", ""], ["measure", "missing"], ["report", ""],
    ["lab", "--port", "99999999"], ["lab", "--port", "-1"], ["lab", "--port", "x"], ["new", ""], ["new", "a/b\0"],
    ["completions", "[/x]"], ["reproduce", "--seeds", LARGE], ["reproduce", "--rounds", "0"], [""], ["[/x]"], ["--"],
]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "q.toml": CONFIG.encode(),
        "csv.toml": CSV.encode(),
        "nul.toml": b"\0\0\0",
        "bin.toml": bytes(range(256)),
        "empty.toml": b"",
        "bad.csv.gz": gzip.compress(b"who,x,y\na,1,0\nb,2,1\n" * 300)[:-20],
    }.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe.toml")
    return tmp_path


def test_hostile_command_lines_are_answered_by_one_line_and_code_2(here, capsys):
    before = sorted(here.iterdir())
    for words in WRONG:
        with pytest.raises(SystemExit) as ended:
            main(words)
        said = capsys.readouterr()
        assert ended.value.code == 2, words
        errors = [line for line in said.err.splitlines() if "error:" in line]
        assert len(errors) == 1, (words, said.err)
        assert len(errors[0]) < 1500, words
        # a configuration with several faults has one line for each behind that
        assert all(line == errors[0] or line.startswith("  ") for line in said.err.splitlines() if "usage:" not in line)
        assert not said.out, words
    assert sorted(here.iterdir()) == before  # and nothing was written


@pytest.mark.slow
def test_a_run_folder_is_its_own(here, capsys):
    """A name that looks like markup, an unknown column, a second writer, a flipped bit, rows of other lengths."""
    folder = here / "x[" / "y]"
    assert main(["run", "q.toml", "--out", "x[/y]", "--run.record", "certificate.decrease"]) == 0
    assert "x[/y]: model.safetensors" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["run", "q.toml", "--out", "other", "--run.record", "nothing"])
    assert ended.value.code == 2
    assert "run.record: 'nothing' is nothing that spam_inexact reports" in capsys.readouterr().err
    assert not (here / "other").exists()
    config = (folder / "config.toml").read_bytes()
    with records.Store(folder):  # another writer
        assert main(["run", "--resume", "--out", "x[/y]", "--rounds", "5"]) == 1
    assert "is being written by process" in capsys.readouterr().err
    assert (folder / "config.toml").read_bytes() == config
    flipped = config.replace(b"rounds = 2", b"rounds = 3")
    assert flipped != config
    (folder / "config.toml").write_bytes(flipped)
    assert main(["run", "--resume", "--out", "x[/y]"]) == 1
    assert "is not as it was written" in capsys.readouterr().err
    command = ["run", "q.toml", "--resume", "--out", "x[/y]", "--run.record", "certificate.decrease"]
    with pytest.warns(UserWarning, match="is not as it was written"):
        assert main(command) == 0
    assert (folder / "config.toml").read_bytes() == config

    [first, *rest], _ = files.frames(folder / "rows.bin")
    longer = {name: np.append(column, column[-1:]) for name, column in first.arrays.items()}
    facts = {name: value for name, value in first.facts.items() if name not in ("format", "sha256")}
    mixed = {**first.arrays, next(iter(longer)): longer[next(iter(longer))]}
    (folder / "rows.bin").unlink()
    files.append(folder / "rows.bin", files.pack(mixed, **facts), 0)
    with pytest.raises(records.RecordError, match=r"columns of lengths .* one entry per round"):
        records.read(folder)
    assert not rest or rest[0].arrays

"""Command lines that nobody should type: each is answered by one clear line and exit code 2, before anything runs."""

import gzip
import os

import numpy as np
import pytest

from fedspam import models
from fedspam._internal import files
from fedspam.app.cli import main
from fedspam.simulation import records

CONFIG = """data = "ridge"
[method]
name = "spam"
step_size = 0.5
fresh_weight = 0.2
[run]
rounds = 2
"""
ROWS = CONFIG.replace('data = "ridge"', '[model]\nname = "softmax"\n[data]\nkind = "KIND"')
CSV = ROWS.replace("KIND", 'csv"\npath = "bad.csv.gz"\nclient = "who"\nlabel = "y')
LARGE = "100000000000000000000"

PATH = "must be a path: not empty, without NUL, and no part longer than 255 bytes"
WRONG = [
    *((["run", "q.toml", *more], told) for more, told in (
        (["--seed", LARGE], f"run.seed = {LARGE} must be below 2^31"),
        (["--run.seed", LARGE], f"run.seed = {LARGE} must be below 2^31"),
        (["--seed", "-1"], "run.seed = -1 must be a whole number of at least 0"),
        (["--seed", "1.5"], "run.seed = 1.5 must be a whole number of at least 0"),
        (["--seed", "٨"], "run.seed = '٨' must be a whole number of at least 0"),
        (["--rounds", LARGE], f"run.rounds = {LARGE} must be below 2^31"),
        (["--rounds", "-1"], "run.rounds = -1 must be a whole number of at least 1"),
        (["--rounds", "1e3"], "run.rounds = 1000.0 must be a whole number of at least 1"),
        (["--rounds", "nan"], "run.rounds = nan must be a whole number of at least 1"),
        (["--rounds", "9" * 5000], "... must be a whole number of at least 1"),
        (["--out", ""], f"--out: '' {PATH}"),
        (["--out", "a\0b"], PATH),
        (["--out", "n" * 300], PATH),
        (["--method.step_size", "nan"], "method.step_size = nan must be a number"),
        (["--method.step_size", "inf"], "method.step_size = inf must be a number"),
        (["--method.step_size", "-1"], "step_size = -1.0 must be greater than 0"),
        (["--method.step_size", "1e999"], "method.step_size = inf must be a number"),
        (["--method.name", "sapm"], "method.name = 'sapm' is unknown; did you mean 'sppm'?"),
        (["--method", "spam"], "method.step_size is missing"),
        (["--method."], "unrecognized arguments: --method.; did you mean --method?"),
        (["--.x", "1"], "unrecognized arguments: --.x 1"),
        (["--a.b.c.d", "1"], "there is no section [a]"),
        (["--run.rounds.x", "1"], "--run.rounds.x 1: the file has a value here, not a table"),
        (["--method.name", "spam_pp", "--method.cohort_size", "99999999"],
         "method.cohort_size = 99999999 is more than the 10 clients of the data"),
        (["--method", "proxy_prox", "--method.step_size", "1", "--method.proxy", "10"],
         "method.proxy = 10 is not a client of the data; give 0 to 9"),
        (["--data.kind", "\ud800"], r"data.kind = '\ud800' is unknown"),
        (["--run.record", ""], "run.record = '' must be a list"),
    )),
    *((["run", "drawn.toml", *more], told) for more, told in (
        (["--data.clients", LARGE], f"data.clients = {LARGE} must be below 2^31"),
        (["--data.clients", "0"], "data.clients = 0 must be a whole number of at least 1"),
        (["--data.clients", "1000000000"], "50000000000 rows would take 2.24e+04 GiB; at most 4 GiB are drawn"),
        (["--data.dimension", "1000000"], "classes = 10 with at least 1500 rows would take 11.3 GiB"),
        (["--data.dimension", "100000"], "rows would take "),  # more than the fewest rows, whose number is drawn
        (["--data.classes", "1000000000"], "classes = 1000000000 with at least 1500 rows would take 827 GiB"),
    )),
    (["run", "drawn.toml", "--clients.batch", "1000000000"], "clients.batch: minibatches of 1000000000 rows would "),
    (["run", "drawn.toml", "--model.name", "mlp", "--model.hidden", "[1000000000]"],
     "model: the parameters would take "),
    (["run", "quadratics.toml", "--data.dimension", "1000000"], "data: the Hessians of clients = 100 with "),
    (["run", "random_ridge.toml", "--data.clients", "1000000"], "data: the Hessians of clients = 1000000 with "),
    (["run", "csv.toml"], "bad.csv.gz is damaged or not compressed as its name says"),
    (["run", "nul.toml"], "nul.toml is not TOML"),
    (["run", "bin.toml"], "bin.toml is not TOML"),
    (["run", "empty.toml"], "the section [data] is missing"),
    (["run", "pipe.toml"], "pipe.toml cannot be read (not a regular file)"),
    (["run", "."], ". cannot be read (not a regular file)"),
    (["run", "csv.toml", "--data.path", "/dev/zero"], "= '/dev/zero' is a pipe or a device; give a regular file"),
    (["run", "csv.toml", "--data.path", "."], "is a folder; give a regular file"),
    (["run", "missing.toml"], "there is no file missing.toml"),
    (["run", ""], f"FILE: '' {PATH}"),
    (["run"], "name a configuration"),
    (["run", "--"], "name a configuration"),
    (["theory", "--delta", "nan"], "--delta: 'nan' must be a number greater than 0"),
    (["theory", "--delta", "1_0"], "--delta: '1_0' must be a number greater than 0"),
    (["theory", "--rounds", LARGE], f"--rounds: '{LARGE}' must be a whole number from 10 to 10000000"),
    (["theory", "--cohort", "0"], "--cohort: '0' must be a whole number from 1"),
    (["theory", "--clients", "1000000", "--dimension", "10000"], "the Hessians of clients = 1000000 with "),
    (["theory", "--rounds", "10000000", "--seeds", "10000"], "give fewer rounds or seeds"),
    (["theory", "[/x]"], "unrecognized arguments: [/x]"),
    (["compare", "--seeds", LARGE], f"--seeds: '{LARGE}' must be a whole number from 1 to 10000"),
    (["compare", "--methods", "x,,y"], "there is no method 'x'"),
    (["compare", "--rounds", "0"], "--rounds: '0' must be a whole number from 1"),
    (["compare", "--targets", "nan"], "--targets: 'nan' must be a number"),
    (["compare", "[/]"], "there is no file [/]"),
    (["compare", ""], f"FILE: '' {PATH}"),
    (["compare", "q.toml", "--run.seed", LARGE], f"run.seed = {LARGE} must be below 2^31"),
    (["compare", "q.toml", "--run.seed", f"0,{LARGE}"], "must be different whole numbers below 10^9"),
    (["compare", "q.toml", "--run.seed", "0,٨"], "must be different whole numbers below 10^9"),
    (["compare", "drawn.toml", "--data.dimension", "1000000"], "rows would take 11.3 GiB"),
    (["methods", "[/nothing]"], "method '[/nothing]' is unknown; see fedspam methods"),
    (["cite", "[/x]"], "method = '[/x]' is unknown"),
    (["cite", ""], "method = '' is unknown"),
    (["measure", "--steps", "2000000000"], "--steps: '2000000000' must be a whole number from 2 to 10000"),
    (["measure", "--candidates", "2000000000"], "must be a whole number from 1 to 1000000"),
    (["measure", "missing"], "there is no file missing"),
    (["measure", "a\0b"], PATH),
    (["measure", "q.toml", "--run.seed", LARGE], f"run.seed = {LARGE} must be below 2^31"),
    (["measure", "drawn.toml", "--data.clients", "1000000000"], "rows would take 2.24e+04 GiB"),
    (["report", ""], f"RUN_FOLDER: '' {PATH}"),
    (["report", ".", "--targets", "nan"], "--targets: 'nan' must be a number"),
    (["report", ".", "--targets", "1,inf"], "--targets: 'inf' must be a number"),
    (["report", ".", "--targets", "٨"], "--targets: '٨' must be a number"),
    (["predict", "", "x.csv"], f"RUN: '' {PATH}"),
    (["predict", ".", "a\0b"], PATH),
    (["predict", ".", "x.csv", "--out", ""], f"--out: '' {PATH}"),
    (["predict", ".", "x.csv", "--out", "a\0b"], PATH),
    (["export", ""], f"RUN: '' {PATH}"),
    (["export", ".", "--out", ""], f"--out: '' {PATH}"),
    (["export", ".", "--out", "a\0b"], PATH),
    *((["lab", "--port", port], f"--port: '{port}' must be a whole number from 0 to 65535")
      for port in ("99999999", "-1", "x", "٨٠", "8_0", " 80")),
    (["new", ""], f"FOLDER: '' {PATH}"),
    (["new", "a/b\0"], PATH),
    (["completions", "[/x]"], "invalid choice: '[/x]'"),
    (["reproduce", "--seeds", LARGE], f"--seeds: '{LARGE}' must be a whole number from 1 to 10000"),
    (["reproduce", "--rounds", "0"], "--rounds: '0' must be a whole number from 8"),
    ([""], "invalid choice: ''"),
    (["[/x]"], "invalid choice: '[/x]'"),
    (["--"], "the following arguments are required: COMMAND"),
]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "q.toml": CONFIG.encode(),
        "csv.toml": CSV.encode(),
        "drawn.toml": ROWS.replace("KIND", "synthetic").encode(),
        "quadratics.toml": CONFIG.replace('"ridge"', '{kind = "quadratics"}').encode(),
        "random_ridge.toml": CONFIG.replace('"ridge"', '{kind = "random_ridge"}').encode(),
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
    for words, told in WRONG:
        with pytest.raises(SystemExit) as ended:
            main(words)
        said = capsys.readouterr()
        assert ended.value.code == 2, words
        errors = [line for line in said.err.splitlines() if "error:" in line]
        assert len(errors) == 1, (words, said.err)
        assert len(errors[0]) < 1500, words
        assert told in said.err, (words, said.err)
        # a configuration with several faults has one line for each behind that
        assert all(line == errors[0] or line.startswith("  ") for line in said.err.splitlines() if "usage:" not in line)
        assert not said.out, words
    assert sorted(here.iterdir()) == before  # and nothing was written


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError("Unable to allocate 455. GiB"), "out of memory: Unable to allocate 455. GiB; "),
        (MemoryError(), "out of memory; use less data"),
        (OverflowError("int too large to convert to C long"), "int too large to convert to C long"),
    ],
)
def test_what_no_check_foresaw_is_one_line_too(here, capsys, monkeypatch, error, told):
    def fail(*_):
        raise error

    monkeypatch.setattr("fedspam.app.commands.cite.run", fail)
    assert main(["cite"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"fedspam: error: {told}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "when", ["", "    if isinstance(params, jax.core.Tracer) and len(seen) > 3:\n        sys.exit(0)\n"]
)
def test_a_loss_that_exits_is_an_error(here, capsys, when):
    """`sys.exit(0)` in the user's loss, at once or later, must not look like a run that went well."""
    lines = "import sys\nimport jax\nimport jax.numpy as jnp\nseen = []\ndef loss(params, rows):\n    seen.append(1)\n"
    body = when or "    sys.exit(0)\n"
    (here / "mine.py").write_text(f"{lines}{body}    return (rows['features'] @ params - rows['label']) ** 2\n")
    (here / "rows.csv").write_text("who,x,y\n" + "a,1,0\nb,2,1\na,2,1\nb,1,0\n" * 3)
    text = CSV.replace("bad.csv.gz", "rows.csv").replace('name = "softmax"', 'function = "mine.py:loss"')
    (here / "mine.toml").write_text(text)
    try:
        code = main(["run", "mine.toml", "--out", "out"])
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    assert code in (1, 2)
    assert said.err.count("\n") == 1
    assert ("your code called sys.exit(0)" if when else "mine.py failed in line 7: SystemExit: 0") in said.err


def test_an_export_that_fails_leaves_no_folder(here, capsys):
    path = models.save(here, np.zeros(3))
    assert main(["export", str(path), "--to", "flax", "--out", "out"]) == 1
    assert "the parameters are no dicts of layers" in capsys.readouterr().err
    assert not (here / "out").exists()


@pytest.mark.slow
def test_a_run_folder_is_its_own(here, capsys):
    """A name that looks like markup, an unknown column, a second writer, a flipped bit, rows of other lengths."""
    folder = here / "x[" / "y]"
    assert main(["run", "q.toml", "--out", "x[/y]", "--run.record", "certificate.decrease"]) == 0
    assert "x[/y]: model.safetensors" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["run", "q.toml", "--out", "other", "--run.record", "nothing"])
    assert ended.value.code == 2
    assert "run.record: spam_inexact reports " in capsys.readouterr().err
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
    with pytest.raises(
        records.RecordError, match=r"y\]/rows\.bin: the rows .* columns of lengths .* one entry per round"
    ):
        records.read(folder)
    assert not rest or rest[0].arrays

"""Wrong uses of every command: each gets an answer of one screen that names what is wrong and tells the remedy."""

import shlex
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from fedspam.app.cli import COMMANDS, main

SCREEN = 24, 80  # lines and columns of a small terminal

GOOD = """
[data]
kind = "csv"
path = "visits.csv"
client = "hospital"
label = "ill"

[model]
name = "logistic"

[method]
name = "fedavg"
cohort_size = 2
local_steps = 1
local_rate = 0.1

[run]
rounds = 3
"""
TABLE = "hospital,age,ill\n" + "".join(f"h{i % 3},{40 + i},{i % 2}\n" for i in range(12))
MODEL = "def loss(params, rows):\n    return (rows['features'] @ params - rows['label']) ** 2\n"
RIDGE = "--data ridge --method spam --method.step_size 0.1 --method.fresh_weight 0.2 --prox exact"


class Case(NamedTuple):
    """A command line, its exit code, and words that its answer must have: what is wrong, and what to do."""

    line: str
    code: int
    told: tuple[str, ...]
    edit: tuple[str, str] = ("", "")  # in good.toml, before the command


CASES = {
    # the configuration
    "misspelt key": Case(
        "run good.toml", 2, ("method.cohrt_size = 2", "did you mean 'cohort_size'?"), ("cohort", "cohrt")
    ),
    "misspelt flag of a setting": Case("run good.toml --method.localrate 1", 2, ("did you mean 'local_rate'?",)),
    "unknown section": Case(
        "run good.toml", 2, ("no section [metod]", "did you mean [method]?"), ("[method]", "[metod]")
    ),
    "unknown section in a flag": Case("run good.toml --modle.name softmax", 2, ("did you mean [model]?",)),
    "a setting outside its section": Case(
        "run good.toml", 2, ("rounds belongs into [run]",), ("\n[data]", "rounds = 3\n[data]")
    ),
    "wrong type": Case("run good.toml --rounds many", 2, ("run.rounds = 'many'", "a whole number of at least 1")),
    "text for a number": Case("run good.toml", 2, ("method.local_rate = '0.1'", "must be a number"), ("0.1", '"0.1"')),
    "impossible rounds": Case("run good.toml --rounds 0", 2, ("run.rounds = 0", "of at least 1")),
    "a fraction of a client": Case(
        "run good.toml --method.cohort_size 2.5", 2, ("cohort_size = 2.5", "a whole number")
    ),
    "impossible share": Case("run good.toml --data.test 1.5", 2, ("data.test = 1.5", "less than 1")),
    "unknown choice": Case("run good.toml --run.precision double", 2, ("'float32' or 'float64'",)),
    "malformed TOML": Case("run good.toml", 2, ("is not TOML", "line", "quotes"), ('"csv"', "csv")),
    "a key twice": Case("run good.toml", 2, ("is not TOML", "overwrite"), ("rounds = 3", "rounds = 3\nrounds = 4")),
    "several at once": Case("run good.toml --rounds 0 --data.test 2", 2, ("run.rounds = 0", "data.test = 2")),
    "missing file": Case("run god.toml", 2, ("there is no file god.toml", "did you mean good.toml?")),
    "a folder for a file": Case("run .", 2, ("cannot be read", "fedspam run --example")),
    "no configuration": Case("run", 2, ("fedspam run --example > experiment.toml",)),
    "a section for a setting": Case("run good.toml --set run=3", 2, ("SECTION.KEY=VALUE", "run.rounds=200")),
    # methods
    "unknown method": Case(
        "run good.toml --method.name fedavgg", 2, ("'fedavgg' is unknown", "did you mean 'fedavg'?")
    ),
    "missing argument of a method": Case(
        "run good.toml --method spam", 2, ("method.step_size is missing", "'spam' needs it")
    ),
    "argument of another method": Case(
        "run good.toml --method.fresh_weight 0.5", 2, ("fresh_weight = 0.5 is not a setting", "'fedavg'")
    ),
    "impossible cohort": Case(
        "run good.toml --method.cohort_size 20", 2, ("cohort_size = 20", "3 clients", "at most 3")
    ),
    "negative step size": Case("run good.toml --method.local_rate -1", 2, ("local_rate = -1", "greater than 0")),
    "fresh_weight above 1": Case(
        f"run {RIDGE} --method.fresh_weight 2",
        2,
        ("fresh_weight = 2", "must lie in (0, 1]", "1 is SGD without memory"),
    ),
    "unknown option of a method": Case(
        "run --data ridge --method scaffold --method.cohort_size 2 --method.local_steps 1 "
        "--method.local_rate 1 --method.option stepps",
        2,
        ("option = 'stepps'", "did you mean 'steps'?"),
    ),
    "a prox for a method without one": Case("run good.toml --prox lbfgs", 2, ("fedavg solves no prox", "remove")),
    "unknown solver": Case(f"run {RIDGE} --prox lbgfs", 2, ("prox.name = 'lbgfs'", "did you mean 'lbfgs'?")),
    "exact prox of what is not quadratic": Case(
        "run good.toml --method sppm --method.step_size 1 --prox exact", 2, ("needs quadratic clients", "'lbfgs'")
    ),
    # data
    "unknown problem": Case(
        "run --data rigde --method sppm --method.step_size 1", 2, ("'rigde'", "did you mean 'ridge'?")
    ),
    "missing data file": Case(
        "run good.toml --data.path visit.csv",
        2,
        ("data.path = '", "visit.csv' is not a file", "did you mean 'visits.csv'?"),
    ),
    "bad column": Case(
        "run good.toml --data.label il", 2, ("data.label = 'il' is not a column", "did you mean 'ill'?")
    ),
    "bad client column": Case(
        "run good.toml --data.client hopsital", 2, ("is not a column", "did you mean 'hospital'?")
    ),
    "no client column": Case(
        "run good.toml", 2, ("data.client is missing", "split = 'iid'"), ('client = "hospital"\n', "")
    ),
    "two ways to tell clients": Case("run good.toml --clients.split iid", 2, ("remove one of the two",)),
    "more clients than rows": Case(
        """run good.toml --clients.split iid --clients.count 99 --data.features '["age"]'""",
        2,
        ("clients = 99 exceeds the 12 rows",),
        ('client = "hospital"\n', ""),
    ),
    "text among the features": Case("run good.toml --data.path words.csv", 2, ("words.csv, line 3", "age is 'old'")),
    "nothing left to train with": Case(
        "run good.toml --data.test 0.999", 2, ("data.test = 0.999 leaves too little to train with", "0.2")
    ),
    "a list shorter than the run": Case(
        "run good.toml --method.local_rate [0.1,0.2]",
        2,
        ("local_rate has 2 values for run.rounds = 3", "one per round"),
    ),
    "an empty table": Case("run good.toml --data.path empty.csv", 2, ("empty.csv", "label")),
    "three classes for two": Case(
        "run good.toml --data.path three.csv", 2, ("two classes", "the data has 3", "'softmax'")
    ),
    "no clients in digits": Case("run good.toml --data digits", 2, ("clients.split is missing", "'dirichlet'")),
    # models
    "unknown model": Case("run good.toml --model logistik", 2, ("'logistik' is unknown", "did you mean 'logistic'?")),
    "missing model file": Case(
        "run good.toml --model my_modle.py:loss", 2, ("my_modle.py is not a file", "did you mean 'my_model.py'?")
    ),
    "missing function": Case("run good.toml --model my_model.py:los", 2, ("no function 'los'", "did you mean 'loss'?")),
    "a model for a problem": Case(f"run {RIDGE} --model softmax", 2, ("has its own loss", "remove")),
    "accuracy that nobody takes": Case(
        f"run {RIDGE} --evaluate.metric accuracy --evaluate.target 0.9",
        2,
        ("'accuracy' is not measured here", "choose one of loss, gradient"),
    ),
    # folders
    "out folder exists": Case(
        f"run {RIDGE} --rounds 2 --out done", 1, ("done already holds a run", "--resume", "--out")
    ),
    "out is a file": Case(f"run {RIDGE} --rounds 2 --out visits.csv", 1, ("visits.csv", "choose another")),
    "resume of another run": Case(
        "run --resume --out done --method.fresh_weight 0.9",
        2,
        ("method.fresh_weight changed from 0.2 to 0.9", "choose another"),
    ),
    "resume of nothing": Case("run --resume --out nowhere", 2, ("holds no run to continue", "another --out")),
    "resume of nowhere": Case("run good.toml --resume", 2, ("--resume needs", "--out FOLDER")),
    "fewer rounds than there are": Case("run --resume --out done --rounds 1", 1, ("holds 2 rounds", "at least")),
    # other commands
    "predict: no model": Case("predict nowhere visits.csv", 2, ("no nowhere", "run folder")),
    "predict: no rows": Case("predict done nowhere.csv", 2, ("no file nowhere.csv",)),
    "export: no model": Case("export nowhere", 2, ("no nowhere", "run folder")),
    "export: unknown format": Case("export done --to tourch", 2, ("'tourch'", "did you mean torch?")),
    "no command": Case("", 2, ("required", "COMMAND")),
    "unknown command": Case("rum", 2, ("'rum'", "did you mean run?")),
    "unknown flag": Case("run good.toml --quite", 2, ("--quite", "did you mean --quiet?")),
    "a flag that needs a value": Case("run good.toml --out", 2, ("--out", "expected one argument")),
    "registry: unknown version": Case(
        "registry models promote 3f1c", 2, ("version = '3f1c'", "there are none", "fedspam registry FOLDER add RUN")
    ),
    "cite: unknown method": Case("cite fedavgg", 2, ("'fedavgg'", "did you mean 'fedavg'?")),
    "data: unknown set": Case("data mushroms", 2, ("'mushroms'", "did you mean 'mushrooms'?")),
    "docs: unknown page": Case("docs chosing", 2, ("'chosing'", "did you mean")),
    "unknown shell": Case("completions bahs", 2, ("'bahs'", "did you mean bash?")),
    "new: a name that is none": Case("new My.Project", 2, ("'My.Project'", "such as my-project")),
    "compare: unknown problem": Case("compare --problem rigde", 2, ("'rigde'", "did you mean 'ridge'?")),
    "compare: unknown method": Case("compare --methods spam_p", 2, ("spam_p", "did you mean")),
    "compare: your own data, unknown method": Case(
        "compare good.toml --methods fedavgg", 2, ("did you mean 'fedavg'",)
    ),
    "compare: your own data, no targets": Case(
        "compare good.toml --metric loss", 2, ("--metric loss needs --targets",)
    ),
    "compare: your own data, impossible cohort": Case(
        "compare good.toml --cohort 9", 2, ("the 3 clients", "at most 3")
    ),
    "compare: your own data, compressed": Case("compare good.toml --codecs.up natural", 2, ("codecs", "remove it")),
    "compare: your own data, a quorum": Case("compare good.toml --run.quorum 0.5", 2, ("run.quorum", "remove it")),
    "compare: your own data, patience": Case(
        "compare good.toml --evaluate.patience 3", 2, ("evaluate.patience", "remove it")
    ),
    "compare: your own data, no evaluation": Case(
        "compare good.toml --rounds 3 --evaluate.every 5", 2, ("every = 5", "3 rounds", "more often")
    ),
    "compare: a file and a problem": Case("compare good.toml --problem ridge", 2, ("--problem", "leave it out")),
    "compare: seeds that are none": Case("compare good.toml --run.seed 0,x", 2, ("run.seed = '0,x'", "whole numbers")),
    "compare: seeds twice": Case("compare good.toml --run.seed 0,1 --seeds 2", 2, ("already lists the seeds",)),
    "compare: settings of no file": Case("compare --run.rounds 3", 2, ("name it: fedspam compare FILE",)),
    "measure: your own data, bad column": Case(
        "measure good.toml --data.label il", 2, ("is not a column", "did you mean 'ill'?")
    ),
    "measure: settings of no file": Case("measure --data.label il", 2, ("name it: fedspam measure FILE",)),
    "compare: impossible cohort": Case("compare --problem ridge --cohort 11", 2, ("11", "10")),
    "compare: accuracy without a test set": Case(
        "compare --problem ridge --metric accuracy", 2, ("no test set", "har")
    ),
    "compare: targets that are no numbers": Case("compare --targets a,b", 2, ("--targets: 'a'", "must be a number")),
    "reproduce: impossible seeds": Case("reproduce --seeds 0", 2, ("'0'", "from 1 to 10000")),
    "reproduce: out is a file": Case("reproduce --out visits.csv --quiet", 1, ("visits.csv", "choose another")),
    "methods: two forms": Case("methods --json --markdown", 2, ("not allowed with",)),
    "report: no folder": Case("report nowhere", 2, ("nowhere",)),
    "measure: unknown problem": Case("measure --problem rigde", 2, ("'rigde'", "did you mean 'ridge'?")),
    "measure: too few clients": Case("measure --clients 1", 2, ("'1'", "from 4 to")),
    "theory: negative similarity": Case("theory --delta -1", 2, ("--delta", "-1")),
    "lab: impossible port": Case("lab --port -1", 2, ("--port", "from 0 to 65535")),
    "report: a folder of something else": Case("report .", 1, ("manifest.json",)),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a good configuration, its table and model, bad tables, and a run that is done."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "good.toml").write_text(GOOD)
    (folder / "visits.csv").write_text(TABLE)
    (folder / "words.csv").write_text(TABLE.replace("41", "old"))
    (folder / "three.csv").write_text(TABLE.replace("45,1", "45,2"))
    (folder / "empty.csv").write_text("")
    (folder / "my_model.py").write_text(MODEL)
    assert main(["run", *RIDGE.split(), "--rounds", "2", "--out", str(folder / "done"), "--quiet"]) == 0
    return folder


def answer(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    try:
        code = main(shlex.split(line))
    except SystemExit as stop:  # as argparse leaves
        code = int(stop.code or 0)
    printed = capsys.readouterr()
    assert printed.out == "", "an error goes to the other stream"
    return code, printed.err


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_wrong_use_is_answered_on_one_screen(
    case: Case, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(world)
    monkeypatch.setenv("COLUMNS", str(SCREEN[1]))
    old, new = case.edit
    assert not old or old in GOOD
    Path("good.toml").write_text(GOOD.replace(old, new) if old else GOOD)
    capsys.readouterr()
    code, told = answer(case.line, capsys)
    assert code == case.code, told
    for words in case.told:
        assert words in told, told
    assert "Traceback" not in told
    screen = [part for line in told.splitlines() for part in textwrap.wrap(line, SCREEN[1]) or [""]]
    assert len(screen) <= SCREEN[0], told
    assert not Path("runs").exists(), "a wrong use leaves nothing behind"


def test_there_are_enough_of_them() -> None:
    """At least 25, and every command has one."""
    assert len(CASES) >= 25
    first = {case.line.split()[0] for case in CASES.values() if case.line}
    names = {command.__name__.rpartition(".")[2] for command in COMMANDS}
    assert names <= first, "a command without a wrong use of it"

"""`fedspam run`: the folder it leaves, runs that are continued, kinds of data and model, and the docs' own story."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from rich.console import Console

import fedspam
from fedspam.app import config, devices, experiment
from fedspam.app.cli import main, parser
from fedspam.app.commands._arguments import dotted
from fedspam.app.config import ConfigError, decode
from fedspam.app.experiment import execute, terminal
from fedspam.simulation import records
from fedspam.simulation.metrics import METRICS

ROOT = Path(__file__).parents[2]
TINY = {
    "data": {"kind": "quadratics", "clients": 6, "dimension": 3},
    "method": {"name": "spam_pp", "cohort_size": 2, "step_size": 1.0, "fresh_weight": 0.3},
    "prox": "exact",
    "run": {"rounds": 10},
    "keep": {"every": 4},
    "evaluate": {"every": 2},
}
FLAGS = "--data quadratics --data.clients 6 --data.dimension 3 --method spam_pp --method.cohort_size 2 " + (
    "--method.step_size 1.0 --method.fresh_weight 0.3 --prox exact --keep.every 4 --evaluate.every 2"
)


def rows_of(folder: Path) -> dict[str, np.ndarray]:
    _, rows, probes = records.read(folder)
    return {**rows, **{f"probe {name}": column for name, column in probes.items()}}


def same(one: Path, other: Path) -> bool:
    a, b = rows_of(one), rows_of(other)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> experiment.ExperimentOutcome:
    return experiment.run(decode(TINY), tmp_path_factory.mktemp("runs") / "tiny")


@pytest.mark.users
@pytest.mark.slow
def test_the_folder_tells_everything(finished: experiment.ExperimentOutcome) -> None:
    folder, facts = finished.folder, finished.facts
    assert json.loads((folder / "summary.json").read_text()) == facts
    assert config.read(folder / "config.toml") == decode(TINY)
    assert (facts["status"]["kind"], facts["rounds"], facts["method"]) == ("completed", 10, "spam_pp")
    rows = rows_of(folder)
    assert facts["bytes_up"] == rows["bytes_up"].sum() > 0
    assert facts["loss"] == rows["probe loss"][-1] < rows["probe loss"][0]
    assert rows["probe gradient"][0] == pytest.approx(1)
    assert len(rows["probe loss"]) == 6  # the start, and every second round
    population = experiment.make(decode(TINY)).population
    assert facts["loss"] == pytest.approx(float(population.loss(finished.run.params)))  # type: ignore[attr-defined]


@pytest.mark.users
def test_the_same_run_from_flags_and_from_its_own_folder(
    finished: experiment.ExperimentOutcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *FLAGS.split(), "--rounds", "10", "--out", str(tmp_path / "flags"), "--quiet"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "flags")
    assert same(tmp_path / "flags", finished.folder)
    again = ["run", str(finished.folder / "config.toml"), "--out", str(tmp_path / "again"), "--json"]
    assert main(again) == 0
    printed = json.loads(capsys.readouterr().out)
    unlike = {"folder", "compile_seconds", "run_seconds"}
    assert {key: value for key, value in printed.items() if key not in unlike} == {
        key: value for key, value in finished.facts.items() if key not in unlike
    }
    assert same(tmp_path / "again", finished.folder)


@pytest.mark.users
def test_a_run_is_continued(
    finished: experiment.ExperimentOutcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "part")
    assert main(["run", *FLAGS.split(), "--rounds", "5", "--out", out]) == 0
    shown = capsys.readouterr().out
    assert "spam_pp, 5 rounds" in shown
    assert "completed" in shown
    assert main(["run", "--resume", "--out", out, "--rounds", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 10
    assert same(tmp_path / "part", finished.folder)
    assert config.read(tmp_path / "part" / "config.toml").run.rounds == 10
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--resume", "--out", out, "--method.fresh_weight", "0.5"])
    assert "method.fresh_weight changed from 0.3 to 0.5 since this run began" in capsys.readouterr().err
    assert main(["run", *FLAGS.split(), "--out", out]) == 1
    assert "continue it with --resume" in capsys.readouterr().err


def test_the_bar_tells_rounds_loss_bytes_and_time(tmp_path: Path) -> None:
    seen, printed = io.StringIO(), io.StringIO()
    bar = Console(file=seen, force_terminal=True, width=120)
    assert terminal.show(decode(TINY), tmp_path / "run", console=Console(file=printed), errors=bar) == 0
    assert re.search(r"rounds .*10/10.*loss -?[\d.]+.*\d+(\.\d+)? (bytes|kB).*\d:\d\d:\d\d", seen.getvalue())
    assert "completed" in printed.getvalue()
    rows = records.read(tmp_path / "run")[1]
    told = []
    longer = decode(TINY | {"run": {"rounds": 12}})
    execute.run(longer, tmp_path / "run", resume=True, observe=lambda done, sent, probes: told.append((done, sent)))
    once = rows["bytes_up"].sum() + rows["bytes_down"].sum()
    assert told == [(12, pytest.approx(1.2 * once))]  # with the bytes before the resume


def test_a_target_is_told_and_stops(finished: experiment.ExperimentOutcome, tmp_path: Path) -> None:
    looks = rows_of(finished.folder)["probe gradient"]
    level = float(looks[2])
    asked = TINY | {"evaluate": {"every": 2, "metric": "gradient", "target": level}}
    found = experiment.run(decode(asked), tmp_path / "told").facts
    first = 2 * int(np.argmax(looks <= level))
    assert found["target"]["round"] == first
    assert found["target"]["bytes_up"] == rows_of(finished.folder)["bytes_up"][:first].sum()
    asked["evaluate"]["stop"] = True  # type: ignore[index]
    stopped = experiment.run(decode(asked), tmp_path / "stopped")
    assert stopped.run.status.ok
    assert stopped.facts["status"]["kind"] == "reached"
    assert stopped.facts["rounds"] == first
    # a run that ended because it did not improve has not reached its target
    patient = {"evaluate": {"every": 2, "metric": "gradient", "target": 1e-30, "patience": 1}}
    long = TINY | patient | {"keep": {"every": 50}, "run": {"rounds": 300, "precision": "float64"}}  # down to its noise
    ended = experiment.run(decode(long), tmp_path / "patient").facts
    assert (ended["status"]["kind"], ended["target"]["round"]) == ("reached", None)


@pytest.mark.users
@pytest.mark.slow
def test_a_run_that_diverges_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "--data quadratics --data.clients 6 --data.dimension 3 --method fedavg --method.cohort_size 2 " + (
        "--method.local_steps 5 --method.local_rate 50 --watch.growth 100"
    )
    assert main(["run", *line.split(), "--out", str(tmp_path / "run"), "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["status"]["reason"].startswith("after round")
    assert facts["status"]["kind"] == "diverged"
    # the setting says what is watched
    (growth,) = (field for field in msgspec.structs.fields(config.schema.WatchSection) if field.name == "growth")
    assert "gradient norm" in config.text.about(growth.type)
    assert "gradient" in facts["status"]["reason"]


def test_a_loss_that_exploded_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "run --data quadratics --data.clients 4 --data.dimension 3 --method fedavg --method.cohort_size 2 "
    line += f"--method.local_steps 1 --method.local_rate 0.9 --watch.growth 0 --rounds 12 --out {tmp_path / 'run'}"
    assert main(line.split()) == 1
    shown = capsys.readouterr().out
    assert "diverged: the loss went from" in " ".join(shown.split())
    assert "lower the step size" in " ".join(shown.split())
    assert records.read(tmp_path / "run")[0]["status"]["reason"].startswith("the loss went from")


# --- data and models ---


def csv_table(folder: Path, labels: str = "classes") -> Path:
    random = np.random.default_rng(0)
    lines = ["site,a,b,c,y"]
    for _ in range(60):
        a, b = random.normal(size=2)
        y = {"classes": "yes" if a > b else "no", "numbers": f"{a - b:.3f}", "three": str(int(3 * random.random()))}[
            labels
        ]
        lines.append(f"s{random.integers(4)},{a:.3f},{b:.3f},{random.normal():.3f},{y}")
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def made(data: Any, model: Any = None, **sections: Any) -> experiment.Experiment:
    rest = {"method": {"name": "fedavg", "cohort_size": 2, "local_steps": 1, "local_rate": 0.1}, **sections}
    return experiment.make(decode({"data": data, **({} if model is None else {"model": model}), **rest}))


def seen(one: experiment.Experiment) -> dict[str, float]:
    return {name: float(value) for name, value in jax.jit(lambda probe, x: probe(x))(one.probe, one.start).items()}


@pytest.mark.slow
def test_csv_by_client(tmp_path: Path) -> None:
    data = {"kind": "csv", "path": str(csv_table(tmp_path)), "client": "site", "label": "y", "features": ["a", "b"]}
    one = made(data, "logistic")
    assert one.population.size == 4
    facts = seen(one)
    assert facts["loss"] == pytest.approx(np.log(2))
    assert facts["gradient"] == pytest.approx(1)
    assert 0 <= facts["accuracy"] <= 1
    train = one.population.examples["features"]  # type: ignore[attr-defined]
    assert train.shape[1] == 2
    assert np.allclose([train.mean(0), train.std(0)], [[0, 0], [1, 1]], atol=1e-6)
    # the loss is the mean over clients, and with weights the mean over rows
    x = jax.tree.map(lambda leaf: leaf + 0.3, one.start)
    clients = [float(one.population.client(jnp.uint32(i))(x)) for i in range(4)]
    assert float(one.probe(x)["loss"]) == pytest.approx(np.mean(clients), rel=1e-5)
    heavy = made(data, "logistic", clients={"weighted": True})
    sizes = np.diff(np.asarray(heavy.population.offsets))  # type: ignore[attr-defined]
    assert float(heavy.probe(x)["loss"]) == pytest.approx(np.average(clients, weights=sizes), rel=1e-5)


def test_csv_with_numbers_to_predict(tmp_path: Path) -> None:
    path = str(csv_table(tmp_path, "numbers"))
    one = made({"kind": "csv", "path": path, "client": "site", "label": "y", "task": "numbers", "test": 0}, "linear")
    assert one.metrics == ("loss", "gradient")
    labels = np.asarray(one.population.examples["label"])  # type: ignore[attr-defined]
    told = sorted(float(line.split(",")[-1]) for line in Path(path).read_text().splitlines()[1:])
    assert np.allclose(sorted(labels.tolist()), told)


def test_csv_dealt_out(tmp_path: Path) -> None:
    path = str(csv_table(tmp_path, "three"))
    data = {"kind": "csv", "path": path, "label": "y", "features": ["a", "b", "c"]}
    one = made(data, "softmax", clients={"split": "dirichlet", "count": 5, "least": 2})
    assert one.population.size == 5
    assert seen(one)["loss"] == pytest.approx(np.log(3), rel=1e-6)


@pytest.mark.slow
def test_npz_and_libsvm(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, y, who = random.normal(size=(40, 5)), random.integers(0, 3, 40), np.arange(40) % 4
    np.savez(tmp_path / "a.npz", x=x, y=y, who=who)
    one = made({"kind": "npz", "path": str(tmp_path / "a.npz"), "client": "who"}, {"name": "mlp", "hidden": [4]})
    assert one.population.size == 4
    assert seen(one)["accuracy"] >= 0
    text = "\n".join(f"{2 * (i % 2) - 1} 1:{i} 3:{i * i % 7}" for i in range(30))
    (tmp_path / "svm").write_text(text)
    two = made({"kind": "libsvm", "path": str(tmp_path / "svm")}, "logistic", clients={"split": "iid", "count": 3})
    assert two.population.size == 3
    assert seen(two)["loss"] == pytest.approx(np.log(2))


def idx(path: Path, array: np.ndarray) -> None:
    path.write_bytes(
        bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype("u1").tobytes()
    )


IMAGES = """
model = "softmax"
data = {kind = "idx", images = "images", labels = "labels", test = 0}
clients = {split = "iid", count = 3}
method = {name = "fedavg", cohort_size = 2, local_steps = 1, local_rate = 0.1}
"""


def test_images_in_idx_files_and_predictions_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Paths are relative to the file, bytes are scaled, and `predict` takes images too."""
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (30, 4, 4)), np.arange(30) % 3
    idx(tmp_path / "images", images)
    idx(tmp_path / "labels", labels)
    file = tmp_path / "experiment.toml"
    file.write_text(IMAGES)
    assert main(["run", str(file), "--rounds", "3", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    trained = fedspam.load(tmp_path / "run")
    expected = trained.predict(images / np.float32(255))
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "images")]) == 0
    told = [line.split(",")[1] for line in capsys.readouterr().out.splitlines()[1:]]
    assert told[:30] == [str(each) for each in expected]


def test_an_idx_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    idx(tmp_path / "images", np.zeros((6, 2, 2)))
    idx(tmp_path / "labels", np.arange(6) % 2)
    data = {"kind": "idx", "images": str(tmp_path / "images"), "labels": str(tmp_path / "label")}
    with pytest.raises(ConfigError, match=r"data.labels = .* is not a file; did you mean 'labels'"):
        made(data, "softmax", clients={"split": "iid", "count": 2})


@pytest.mark.slow
def test_fashion_mnist(data: Path) -> None:
    folder = data / "fashion_mnist"
    files = {"images": str(folder / "t10k-images-idx3-ubyte.gz"), "labels": str(folder / "t10k-labels-idx1-ubyte.gz")}
    one = made({"kind": "idx", **files}, "softmax", clients={"split": "dirichlet", "count": 20, "alpha": 0.3})
    assert one.population.size == 20
    assert seen(one)["loss"] == pytest.approx(np.log(10), rel=1e-5)


@pytest.mark.slow
def test_leaf_and_synthetic_and_digits(tmp_path: Path) -> None:
    users = {f"u{i}": {"x": [[i, j, 1.0] for j in range(6)], "y": [j % 2 for j in range(6)]} for i in range(3)}
    text = json.dumps({"users": list(users), "num_samples": [6, 6, 6], "user_data": users})
    (tmp_path / "shard.json").write_text(text)
    assert made({"kind": "leaf", "path": str(tmp_path)}, "logistic").population.size == 3
    assert made({"kind": "synthetic", "clients": 4, "dimension": 5, "classes": 3}, "softmax").population.size == 4
    pytest.importorskip("sklearn")
    assert made("digits", "softmax", clients={"split": "shards", "count": 10}).population.size == 10


def test_problems_bring_their_own_loss() -> None:
    one = made("ridge")
    assert one.population.size == 10
    assert seen(one)["gradient"] == pytest.approx(1)


def own(folder: Path, text: str) -> str:
    (folder / "my.py").write_text("import jax\nimport jax.numpy as jnp\n" + text)
    return f"{folder / 'my.py'}:loss"


LOSS = "def loss(params, rows):\n    return (rows['features'] @ params - rows['label']) ** 2\n"


def test_a_loss_of_ones_own(tmp_path: Path) -> None:
    data = {"kind": "csv", "path": str(csv_table(tmp_path)), "client": "site", "label": "y", "intercept": True}
    one = made(data, own(tmp_path, LOSS))
    assert one.start.shape == (4,)
    assert "accuracy" not in one.metrics
    guess = "def predict(params, rows):\n    return rows['features'] @ params > 0.5\n"
    assert "accuracy" in made(data, own(tmp_path, LOSS + guess)).metrics
    begin = "def start(rows, key):\n    return jax.random.normal(key, rows['features'].shape[1:])\n"
    assert float(jnp.abs(made(data, own(tmp_path, LOSS + begin)).start).min()) > 0


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def losss(params, rows): ...", "no function 'loss'; did you mean 'losss'?"),
        ("def loss(params, rows):\n    return jnp.mean(rows['label'] * params[0])", "must return one loss per row"),
        ("def loss(params, rows):\n    return rows['lable'] * params[0]", r"failed in line 4: KeyError: 'lable'"),
        ("def loss(params, rows):\n    return params @ rows['features']", r"failed in line 4: TypeError"),
        ("def loss(params, rows)\n", r"the code of .* failed in line 3: SyntaxError"),
        ("import nothing_of_this_name\n", "ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_with_a_loss(tmp_path: Path, code: str, told: str) -> None:
    data = {"kind": "csv", "path": str(csv_table(tmp_path)), "client": "site", "label": "y"}
    with pytest.raises(ConfigError, match=told):
        made(data, own(tmp_path, code))


# --- the docs' own story ---


def blocks(language: str, page: str = "run") -> list[str]:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.mark.users
@pytest.mark.slow
def test_the_story_of_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The very files of docs/run.md, and its very commands, one after another."""
    monkeypatch.chdir(tmp_path)
    for text in [*blocks("python"), blocks("toml")[0]]:
        name = text.splitlines()[0].removeprefix("# ")
        Path(name).write_text(text)
    subprocess.run([sys.executable, "make_visits.py"], check=True)
    head = blocks("csv")[0].splitlines()
    table = Path("visits.csv").read_text().splitlines()
    assert table[: len(head)] == head
    model = blocks("python")[1].partition("def predict")[0].splitlines()[1:]  # without the name of the file
    assert len([line for line in model if line]) <= 5, "a loss of your own is five lines, as the page says"
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("fedspam run")]
    assert len(lines) >= 7
    printed = {}
    for line in lines:
        command = line.partition(" > ")[0]
        if "tensorboard" in line or command == "fedspam run experiment.toml":
            continue  # the example, which is tested below, and tracking, in app/test_tracking.py
        assert main(shlex.split(command)[1:]) == 0, line
        printed[line] = capsys.readouterr().out
    (as_json,) = (text for line, text in printed.items() if line.endswith("--json"))
    assert json.loads(as_json)["status"]["kind"] == "completed"
    shown = printed["fedspam run experiment.toml --out runs/first"]
    keys = [line[:20].strip() for line in blocks("text")[0].splitlines()[:-1]]
    assert [line[:20].strip() for line in shown.splitlines()[: len(keys)]] == keys
    found = float(re.search(r"test accuracy +([\d.]+)", shown)[1])  # type: ignore[index]
    told = float(re.search(r"test accuracy +([\d.]+)", blocks("text")[0])[1])  # type: ignore[index]
    assert found == pytest.approx(told, abs=0.02)
    reached = [int(re.search(r"after (\d+) rounds", text)[1]) for text in (shown, blocks("text")[0])]  # type: ignore[index]
    assert abs(reached[0] - reached[1]) <= 3  # the last bits differ from processor to processor
    assert records.read("runs/first")[0]["status"]["kind"] == "completed"
    assert len(rows_of(Path("runs/first"))["void"]) == 100


def test_the_docs_name_every_section_and_kind() -> None:
    text = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in ("run", "run-settings"))
    for name in (*config.parse.SECTIONS, *config.schema.DATA, *config.schema.MODELS):
        assert f"`{name}`" in text or f"`[{name}]`" in text, name
    schedules = tomllib.loads(blocks("toml")[1])
    decode({"data": "ridge", **schedules})


@pytest.mark.users
@pytest.mark.slow
def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--example"]) == 0
    path = tmp_path / "experiment.toml"
    path.write_text(capsys.readouterr().out)
    assert main(["run", str(path), "--out", str(tmp_path / "run"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["accuracy"] > 0.7
    assert facts["target"]["round"] is not None


# --- the shell ---


def test_an_interrupted_run_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment.execute, "simulate", stop)
    assert main(["run", *FLAGS.split(), "--out", str(tmp_path / "run")]) == 130
    assert f"fedspam run --resume --out {tmp_path / 'run'}" in capsys.readouterr().err


def test_dotted_flags() -> None:
    words = ["run", "--a.b", "-1", "--c.d=x y", "--e.f", "--out", "o", "--g.h"]
    assert dotted(words) == ["run", "--set=a.b=-1", "--set=c.d=x y", "--set=e.f=true", "--out", "o", "--set=g.h=true"]


def test_settings_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--settings"]) == 0
    assert "[evaluate]" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_name_every_command_and_flag(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completions", shell]) == 0
    script = capsys.readouterr().out
    (commands,) = (action for action in parser()._actions if action.choices and not action.option_strings)
    for name, command in commands.choices.items():  # type: ignore[union-attr]
        assert name in script
        for action in command._actions:
            for option in action.option_strings:
                assert (option if shell != "fish" else option.lstrip("-")) in script


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completions", "bash"]) == 0
    (tmp_path / "fedspam.bash").write_text(capsys.readouterr().out)

    def complete(*words: str) -> set[str]:
        line = " ".join(shlex.quote(word) for word in words)
        asked = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}"
        program = f'source ./fedspam.bash; {asked}; _shtab_fedspam; echo "${{COMPREPLY[@]}}"'
        found = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
        return set(found.stdout.split())

    assert complete("fedspam", "rep") >= {"reproduce"}
    assert complete("fedspam", "run", "--res") == {"--resume"}
    assert complete("fedspam", "completions", "z") == {"zsh"}
    assert complete("fedspam", "run", "fed") == {"fedspam.bash"}
    assert complete("fedspam", "compare", "--metric", "") == set(METRICS)
    assert complete("fedspam", "cite", "scaffold_") == {"scaffold_gradient", "scaffold_m", "scaffold_m_vr"}
    assert complete("fedspam", "run", "--method.fr") == {"--method.fresh_weight"}
    assert complete("fedspam", "run", "--run.precision", "") == {"float32", "float64"}


def test_a_device_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--data", "ridge", "--method", "sppm", "--device", "tpu"])
    assert "--device tpu: JAX finds only cpu here" in capsys.readouterr().err
    devices.choose("cpu", None)


def test_a_run_that_is_refused_leaves_the_configuration_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands that look at an empty folder at once: the slower one finds it in use, or finished."""
    mine, theirs = (decode({**TINY, "run": {**TINY["run"], "seed": seed}}) for seed in (1, 2))
    make, write = execute.make, execute._write_config
    folder = tmp_path / "both"

    def made_after_the_other(config: Any) -> Any:
        monkeypatch.setattr(execute, "make", make)
        experiment.run(theirs, folder)
        return make(config)

    def written_under_a_lock(*arguments: Any) -> None:
        write(*arguments)
        with pytest.raises(records.RecordError, match="is being written by"), records.Store(folder):
            pass

    monkeypatch.setattr(execute, "_write_config", written_under_a_lock)
    monkeypatch.setattr(execute, "make", made_after_the_other)
    with pytest.raises(records.RecordError, match="already holds a run"):
        experiment.run(mine, folder)
    assert config.read(folder / "config.toml").run.seed == 2


@pytest.mark.parametrize("put", [Path.symlink_to, Path.hardlink_to, lambda path, _: os.mkfifo(path)])
def test_what_others_put_in_the_way_is_neither_followed_nor_waited_for(put: Any, tmp_path: Path) -> None:
    treasure, folder = tmp_path / "treasure", tmp_path / "run"
    treasure.write_text("precious")
    folder.mkdir()
    for name in ("config.toml", "summary.json", "model.safetensors", "manifest.json"):
        put(folder / f".{name}.partial", treasure)
    assert experiment.run(decode(TINY), folder).run.status.ok
    assert treasure.read_text() == "precious"
    (folder / "config.toml").unlink()
    os.mkfifo(folder / "config.toml")
    with pytest.warns(UserWarning, match=r"config\.toml is damaged: not a regular file; it is written again"):
        assert experiment.run(decode(TINY), folder, resume=True).run.status.ok
    assert config.read(folder / "config.toml") == decode(TINY)

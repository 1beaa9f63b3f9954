"""From a messy table to a model in use: the file that a run leaves, predictions, exports, and what is refused."""

import csv
import dataclasses
import io
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import fedspam
from fedspam import datasets, fedavg, models, simulate
from fedspam._internal.files import RecordError
from fedspam.app.cli import main
from fedspam.datasets import Encoder, open_table, read_table
from fedspam.methods import Scales

CONFIG = """
[data]
kind = "csv"
path = "visits.csv"
client = "hospital"
label = "state"
drop = ["patient"]

[model]
name = "softmax"

[method]
name = "fedavg"
cohort_size = 3
local_steps = 4
local_rate = 0.3

[run]
rounds = 12
"""


def messy(rows: int, seed: int, unseen: bool = False) -> str:
    """A table with text, missing cells, spaces and quotes; of three classes by name."""
    random = np.random.default_rng(seed)
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(["hospital", "patient", "age", "city", "pressure", "state"])
    for row in range(rows):
        age, city = random.normal(50, 12), random.choice(["Bonn", "New York", "Rome, Italy"])
        risk = (age - 50) / 12 + (city == "Bonn") + random.normal(0, 0.2)
        state = "ill" if risk > 0.8 else "well" if risk < -0.2 else "unclear"
        cells = [f"h{random.integers(5)}", f"p{row}", f"{age:.1f}", f" {city} ", f"{random.normal(120, 9):.0f}", state]
        if random.random() < 0.2:
            cells[4] = random.choice(["", "NA", "?"])
        if random.random() < 0.1:
            cells[3] = ""
        table.writerow(cells)
    if unseen:
        table.writerow(["h9", "p999", "", "Paris", "120", "well"])
    return out.getvalue()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a messy table, new rows, and a finished run."""
    folder = tmp_path_factory.mktemp("visits")
    (folder / "visits.csv").write_text(messy(160, 0))
    (folder / "new.csv").write_text(messy(30, 1, unseen=True))
    (folder / "experiment.toml").write_text(CONFIG)
    assert main(["run", str(folder / "experiment.toml"), "--out", str(folder / "run"), "--quiet"]) == 0
    return folder


def predicted(folder: Path, *words: str) -> list[dict[str, str]]:
    assert main(["predict", str(folder / "run"), *words]) == 0
    return list(csv.DictReader(io.StringIO((folder / "out.csv").read_text())))


@pytest.mark.slow
def test_new_rows_are_predicted_by_name(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    found = predicted(world, str(world / "new.csv"), "--probabilities", "--out", str(world / "out.csv"))
    said = capsys.readouterr().err
    assert "city has a category that training has not seen in 1 row: 'Paris' (1)" in said
    assert "age is missing in 1 row, and never was in training" in said
    assert len(found) == 31
    right = sum(row["predicted_state"] == row["state"] for row in found)
    assert right >= 22
    assert f"{right} of 31 rows with state are predicted as they are" in said
    names = ["ill", "unclear", "well"]
    for row in found:
        shares = [float(row[f"probability_{name}"]) for name in names]
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert row["predicted_state"] == names[int(np.argmax(shares))]
    # without --out, the table goes to the terminal
    assert main(["predict", str(world / "run"), str(world / "new.csv")]) == 0
    printed = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["predicted_state"] for row in printed] == [row["predicted_state"] for row in found]


def test_predictions_are_those_of_the_evaluation_in_training(world: Path) -> None:
    from fedspam.app import config, experiment

    made = experiment.make(config.read(world / "experiment.toml"))
    trained = fedspam.load(world / "run")
    probe = made.probe.test
    scores = np.concatenate([trained.raw_scores(np.asarray(block)) for block in probe.blocks["features"]])
    labels = np.concatenate(np.asarray(probe.blocks["label"]))
    kept = np.concatenate(np.asarray(probe.owner)) < probe.clients
    accuracy = np.mean((np.argmax(scores, axis=1) == labels)[kept])
    facts = json.loads((world / "run" / "summary.json").read_text())
    assert np.float32(accuracy) == np.float32(facts["accuracy"])
    # and the rows of the file, encoded anew, have the features of the training
    rows = read_table(world / "visits.csv", client="hospital", label="state", features=trained.features)
    train, test = rows.hold_out_examples(0.2)
    np.testing.assert_array_equal(
        trained.encode(dict(test.examples)).astype(np.float32),
        np.concatenate(np.asarray(probe.blocks["features"]))[kept].astype(np.float32),
    )
    assert trained.encoder is not None
    learned = Encoder.of_table(train, label="state")
    assert learned.described() == trained.encoder.described()


@pytest.mark.slow
def test_the_file_says_what_it_is(world: Path) -> None:
    trained = fedspam.load(world / "run")
    assert trained.classes == ("ill", "unclear", "well")
    assert trained.features == ["age", "city", "pressure"]
    assert trained.encoder is not None
    assert trained.encoder.names == [
        "age", "city=Bonn", "city=New York", "city=Rome, Italy", "city is missing", "pressure", "pressure is missing",
    ]  # fmt: skip
    assert trained.facts["config"]["method"]["name"] == trained.facts["method"] == "fedavg"
    assert trained.facts["status"]["kind"] == "completed"
    plain = safetensors.numpy.load_file(world / "run" / "model.safetensors")
    assert {name: array.shape for name, array in plain.items()} == {"bias": (3,), "kernel": (7, 3)}
    frame = {"age": [60.0, None], "city": ["Bonn", None], "pressure": [120, 130], "more": [1, 2]}
    assert set(trained.predict(frame)) <= set(trained.classes)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty; give a header"),
        ("age,city,pressure\n", "has no rows"),
        ("age,city\n1,Bonn\n", "lacks the column pressure, which the model was trained with"),
        ("Age,city,pressure\n1,Bonn,2\n", "is 'Age' 'age'? Rename it"),
        ("age,city,pressure\n1,Bonn,2\nold,Bonn,2\n", "line 3: age is 'old'; it must be a finite number"),
        ("age,city,pressure\n1,Bonn\n", "line 2 has 2 cells, the header 3"),
        ("age,age,city,pressure\n1,1,Bonn,3\n", "more than one column 'age'"),
    ],
)
def test_wrong_rows_are_answered(world: Path, tmp_path: Path, text: str, told: str, capsys) -> None:
    (tmp_path / "bad.csv").write_text(text)
    capsys.readouterr()
    assert main(["predict", str(world / "run"), str(tmp_path / "bad.csv")]) == 1
    printed = capsys.readouterr()
    assert told in printed.err
    assert printed.out == ""


def test_wrong_runs_are_answered(world: Path, tmp_path: Path, capsys) -> None:
    assert main(["predict", str(tmp_path), str(world / "new.csv")]) == 1
    assert "the run has not ended" in capsys.readouterr().err
    bytes = (world / "run" / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(bytes[:-1] + b"x")
    assert main(["predict", str(tmp_path), str(world / "new.csv")]) == 1
    assert "damaged" in capsys.readouterr().err
    checkpoint = next((world / "run").glob("checkpoint-*.safetensors"))
    with pytest.raises(RecordError, match="not a trained model"):
        fedspam.load(checkpoint)
    with pytest.raises(SystemExit, match="2"):
        main(["predict", str(world / "run"), str(tmp_path / "nowhere.csv")])
    assert "there is no file" in capsys.readouterr().err


# --- exports ---


@pytest.mark.parametrize(
    "model",
    [
        models.softmax_regression(4, 3),
        models.logistic_regression(4, bias=False),
        models.mlp(4, 3, hidden=(5, 6)),
        models.Model(models.networks.Convolutional((12, 12, 2), 3, (4, 5), (3, 3), (2, 1), (6,), "SAME")),
        models.Model(models.networks.Convolutional((30, 2), 3, (4, 5), (5,), (2, 2), (6,))),
    ],
    ids=["softmax", "logistic", "mlp", "cnn", "cnn1d"],
)
@pytest.mark.slow
def test_pytorch_has_the_same_scores(model: models.Model, tmp_path: Path, capsys) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape), jnp.float32), model.init(0))
    models.save(tmp_path, params, model=model)
    assert main(["export", str(tmp_path), "--to", "torch", "--out", str(tmp_path / "out")]) == 0
    code = capsys.readouterr().out.splitlines()[1].strip()
    module = eval(code, {"torch": torch})  # noqa: S307 what the command printed
    module.load_state_dict(torch.load(tmp_path / "out" / "model.pt", weights_only=True))
    shape = getattr(model.network, "shape", (4,))
    rows = random.normal(size=(6, *shape)).astype(np.float32)
    first = np.moveaxis(rows, -1, 1) if len(shape) > 1 else rows
    expected = np.asarray(model.logits(params, jnp.asarray(rows)))
    found = module(torch.from_numpy(np.ascontiguousarray(first))).detach().numpy().reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_exports_for_others(world: Path, tmp_path: Path) -> None:
    serialization = pytest.importorskip("flax").serialization
    assert main(["export", str(world / "run"), "--out", str(tmp_path)]) == 0
    assert main(["export", str(world / "run"), "--to", "flax", "--out", str(tmp_path)]) == 0
    trained = fedspam.load(world / "run")
    plain = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    nested = serialization.msgpack_restore((tmp_path / "model.msgpack").read_bytes())
    for name, array in trained.arrays.items():
        np.testing.assert_array_equal(plain[name], array)
        np.testing.assert_array_equal(nested[name], array)
    facts = json.loads((tmp_path / "model.json").read_text())
    assert facts["classes"] == ["ill", "unclear", "well"]
    assert facts["features"][0] == "age"
    assert Encoder.of_description(facts["encoder"]).names == facts["features"]


# --- in Python ---


@pytest.mark.slow
def test_a_pytorch_module_comes_back_as_a_state_dict(world: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    load_file = pytest.importorskip("safetensors.torch").load_file
    rows = read_table(world / "visits.csv", client="hospital", label="state", features=["age", "city", "pressure"])
    train, _ = rows.hold_out_examples(0.2)
    encoder = Encoder.of_table(train, label="state")
    module = torch.nn.Sequential(torch.nn.Linear(encoder.width, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    model = models.from_torch(module)
    clients = encoder.examples(train).population(model.loss)
    run = simulate(
        fedavg(3, local_steps=2, local_rate=0.3), clients, model.init(0), rounds=3, key=0, folder=tmp_path / "run"
    )
    # the run leaves the parameters, which plain PyTorch loads
    module.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    for name, tensor in module.named_parameters():
        np.testing.assert_array_equal(tensor.detach().numpy(), run.params[name])
    with pytest.raises(ValueError, match=r"does not describe its model .*module of Flax, Equinox or PyTorch"):
        fedspam.load(tmp_path / "run").predict(np.zeros((1, encoder.width)))
    # with its preprocessing, the file predicts tables
    models.save(tmp_path / "run", run.params, model=model, encoder=encoder)
    trained = fedspam.load(tmp_path / "run", model=model)
    found = trained.predict(world / "new.csv")
    table = open_table(world / "new.csv")
    inputs = torch.tensor(encoder(encoder.read(table)), dtype=torch.float32)
    expected = np.asarray(encoder.classes, object)[module(inputs).argmax(1).numpy()]
    assert found.tolist() == expected.tolist()
    other = models.from_torch(torch.nn.Linear(encoder.width, 3))
    with pytest.raises(ValueError, match="is of another model"):
        fedspam.load(tmp_path / "run", model=other)


@pytest.mark.slow
def test_a_run_in_python_leaves_its_model(tmp_path: Path) -> None:
    model = models.mlp(2, 2, hidden=(3,))
    random = np.random.default_rng(0)
    rows = [{"features": random.normal(size=(6, 2)), "label": random.integers(0, 2, 6)} for _ in range(3)]
    run = simulate(
        fedavg(2, local_steps=1, local_rate=0.1), fedspam.Ragged.of(rows, model.loss), model.init(0), rounds=2, key=0,
        folder=tmp_path,
    )  # fmt: skip
    trained = fedspam.load(tmp_path)
    assert trained.model == model
    x = random.normal(size=(5, 2))
    expected = np.argmax(np.asarray(model.logits(run.params, jnp.asarray(x))), axis=1)
    assert trained.predict(x).tolist() == expected.tolist()


@pytest.mark.slow
def test_a_loss_of_ones_own_predicts_with_its_own_file(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("visits.csv").write_text(messy(60, 0))
    Path("mine.py").write_text(
        "import jax.numpy as jnp\n"
        "def start(rows, key):\n    return {'w': (jnp.zeros(rows['features'].shape[1:]), [jnp.zeros(())])}\n"
        "def score(params, rows):\n    return rows['features'] @ params['w'][0] + params['w'][1][0]\n"
        "def loss(params, rows):\n    s = score(params, rows)\n"
        "    return jnp.logaddexp(0.0, s) - (rows['label'] > 1) * s\n"
        "def predict(params, rows):\n    return 2 * (score(params, rows) > 0)\n"
    )
    Path("experiment.toml").write_text(CONFIG.replace('name = "softmax"', 'function = "mine.py:loss"'))
    assert main(["run", "experiment.toml", "--rounds", "3", "--out", "run", "--quiet"]) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["predict", "run", "visits.csv"])
    assert "--model mine.py:loss" in capsys.readouterr().err
    assert main(["predict", "run", "visits.csv", "--model", "mine.py:loss", "--out", "out.csv"]) == 0
    found = {row["predicted_state"] for row in csv.DictReader(io.StringIO(Path("out.csv").read_text()))}
    assert found == {"ill", "well"}
    with pytest.raises(SystemExit, match="2"):
        main(["predict", "run", "visits.csv", "--model", "mine.py:loss", "--probabilities"])
    assert "predicts classes has no probabilities" in capsys.readouterr().err


# --- messy tables ---


def test_text_and_missing_values_are_learned_on_the_training_rows_alone() -> None:
    table = {
        "who": list("aaaabbbb"),
        "x": [1.0, 3.0, None, 5.0, 2.0, float("nan"), 4.0, 3.0],
        "city": ["Rome", "Bonn", "", "Rome", "Oslo", "Bonn", "Rome", "Bonn"],
        "y": [0, 1, 0, 1, 0, 1, 0, 1],
    }
    data = read_table(table, client="who", label="y")
    train, _ = data.take(["a"]), data.take(["b"])
    encoder = Encoder.of_table(train)
    assert encoder.names == ["x", "x is missing", "city=Bonn", "city=Rome", "city is missing"]
    assert encoder.columns is not None
    assert encoder.columns[0].fill == 3.0  # type: ignore[union-attr]
    assert encoder.notes(data["b"]) == [
        "city has a category that training has not seen in 1 row: 'Oslo' (1); its features are 0 there"
    ]
    raw = Encoder.of_table(train, standardize=False)
    assert raw(data["b"])[:2].tolist() == [[2.0, 0.0, 0.0, 0.0, 0.0], [3.0, 1.0, 1.0, 0.0, 0.0]]
    again = Encoder.of_description(json.loads(json.dumps(encoder.described())))
    np.testing.assert_array_equal(again(data["b"]), encoder(data["b"]))


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ([None, "", "?", "NA"] * 10, "'c' has no value in the training rows; leave the column out"),
        ([f"name {i}" for i in range(40)], "40 different texts in 40 rows, such as 'name 0': it looks like a name"),
        (["1", "2", "3", "x"] * 10, "row 4: c is 'x'; it must be a finite number: correct it"),
        ([1.0, 2.0, 3.0, float("inf")] * 10, "row 4: c is inf"),
        ([np.datetime64("2020-01-01"), np.datetime64("2020-01-02")] * 20, "c holds datetime64"),
    ],
)
def test_columns_that_cannot_be_features_are_refused(column: list, told: str) -> None:
    table = {"who": ["a", "b"] * 20, "c": column, "y": [0, 1] * 20}
    with pytest.raises(ValueError, match=told.replace("?", r"\?")):
        Encoder.of_table(read_table(table, client="who", label="y"))


def test_codes_may_be_categories() -> None:
    table = {"who": ["a", "b", "a"], "code": [1.0, 2.0, None], "y": [0, 1, 1]}
    encoder = Encoder.of_table(read_table(table, client="who", label="y", categories=["code"]))
    assert encoder.names == ["code=1", "code=2", "code is missing"]


class _Frame:
    """The interface of a data frame of pandas or polars."""

    def __init__(self, **columns: list) -> None:
        self.columns = list(columns)
        self._columns = columns

    def __getitem__(self, name: str) -> np.ndarray:
        return np.asarray(self._columns[name], object)  # has tolist, as pandas' columns


def test_frames_parquet_and_arrow_are_tables(tmp_path: Path) -> None:
    columns = {"who": ["a", "b", "b"], "x": [1.5, None, 2.0], "ok": [True, False, True], "y": [1, 0, 1]}
    expected = open_table(columns)
    sources = [_Frame(**columns)]
    pa = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    table = pa.table(columns)
    parquet.write_table(table, tmp_path / "t.parquet")
    feather.write_feather(table, tmp_path / "t.arrow")
    sources += [table, tmp_path / "t.parquet", str(tmp_path / "t.arrow")]
    for source in sources:
        found = open_table(source)
        assert found.names == expected.names
        for name in found.names:
            np.testing.assert_array_equal(found.column(name), expected.column(name))
    assert expected.column("ok").tolist() == ["True", "False", "True"]
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"damaged or no \.parquet file"):
        open_table(tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match="is not a table; give a path"):
        open_table(3)
    with pytest.raises(ValueError, match="has no column 'z', it has who"):
        datasets.read_table(table, client="who", label="z")


# --- how good it is ---


def test_the_scores_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    from fedspam.app.experiment.scores import classification, regression

    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 200)
    # ties are tested with two classes: here rounding would decide which probabilities are equal
    scores = np.eye(3)[labels] + random.normal(size=(200, 3))
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    predicted = shares.argmax(1)
    found = classification(labels, predicted, scores, "abc")
    assert found["f1"] == pytest.approx(metrics.f1_score(labels, predicted, average="macro"))
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(labels, shares, multi_class="ovr"))
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(labels, predicted))
    assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(labels, predicted))
    assert found["confusion"] == metrics.confusion_matrix(labels, predicted).tolist()
    parts = metrics.precision_recall_fscore_support(labels, predicted)
    told = np.array(
        [[row[key] for key in ("precision", "recall", "f1", "rows")] for row in found["per_class"].values()]
    )
    np.testing.assert_allclose(told.T, parts)
    # a class without test rows has no part in the means
    wide = np.concatenate([scores, np.full((200, 1), -50.0)], axis=1)
    more = classification(labels, predicted, wide, "abcd")
    assert more["f1"] == found["f1"]
    assert more["auc"] == pytest.approx(found["auc"])
    assert more["per_class"]["d"] == {"rows": 0, "share": 0.0, "precision": None, "recall": None, "f1": None}
    numbers = random.normal(size=50)
    guess = numbers + 0.3 * random.normal(size=50)
    told = regression(numbers, guess)
    assert told["r2"] == pytest.approx(metrics.r2_score(numbers, guess))
    assert told["rmse"] ** 2 == pytest.approx(metrics.mean_squared_error(numbers, guess))


def test_the_run_tells_how_good_it_is_for_every_client(world: Path) -> None:
    facts = json.loads((world / "run" / "summary.json").read_text())
    confusion = np.asarray(facts["confusion"])
    assert np.diag(confusion).sum() / confusion.sum() == pytest.approx(facts["accuracy"])
    assert 0 < facts["f1"] <= 1
    assert 0 < facts["auc"] <= 1
    with (world / "run" / "clients.csv").open() as file:
        clients = list(csv.DictReader(file))
    assert [row["client"] for row in clients] == [f"h{number}" for number in range(5)]
    assert sum(int(row["train_rows"]) + int(row["test_rows"]) for row in clients) == 160
    right = sum(float(row["accuracy"]) * int(row["test_rows"]) for row in clients)
    assert right / confusion.sum() == pytest.approx(facts["accuracy"])


def test_every_client_before_and_after_fine_tuning(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(world / "run", folder)
    tune = ["--evaluate.fine_tune.local_steps", "30", "--evaluate.fine_tune.local_rate", "0.5"]
    assert main(["run", "--resume", "--out", str(folder), *tune]) == 0
    assert "fine tuned" in " ".join(capsys.readouterr().out.split())
    tables = []
    for path in (world / "run" / "clients.csv", folder / "clients.csv"):
        with path.open() as file:
            tables.append(list(csv.DictReader(file)))
    after = [row.pop("fine_tuned_accuracy") for row in tables[1]]
    assert tables[0] == tables[1]  # the common model is as before
    right = np.array([float(value) * int(row["test_rows"]) for value, row in zip(after, tables[0], strict=True)])
    np.testing.assert_allclose(right, np.round(right), atol=1e-4)
    assert after != [row["accuracy"] for row in tables[0]]
    endless = ["--data", "quadratics", "--method", "sppm", "--method.step_size", "1", "--prox", "exact"]
    with pytest.raises(SystemExit):
        main(["run", *endless, "--out", str(tmp_path / "y"), *tune])
    assert "the clients have no test rows of their own" in capsys.readouterr().err


# --- the whole way, as a person types it ---


@pytest.mark.slow
def test_from_a_messy_table_to_predictions(world: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    """run -> report -> compare on the same file -> predict on unseen rows, labels by name."""
    monkeypatch.chdir(world)
    out = str(tmp_path)
    assert main(["report", "run", "--out", f"{out}/report.html", "--quiet"]) == 0
    assert "accuracy" in (tmp_path / "report.html").read_text()
    line = "compare experiment.toml --methods mvr --metric accuracy --targets 0.5 --budget 2 --rounds 3"
    assert main([*line.split(), "--run.seed", "0,3", "--out", f"{out}/compared"]) == 0
    shown = capsys.readouterr().out
    assert "median of 2 seeds, each number tuned over 2 settings" in " ".join(shown.split())
    assert "MVR" in shown
    with (tmp_path / "compared" / "tuning.csv").open() as file:
        tried = [row["method"] for row in csv.DictReader(file)]
    assert tried == ["mvr", "mvr"]
    with (tmp_path / "compared" / "curves.csv").open() as file:
        assert {row["seed"] for row in csv.DictReader(file)} == {"0", "3"}
    found = predicted(world, "new.csv", "--out", "out.csv")
    assert {row["predicted_state"] for row in found} <= {"ill", "unclear", "well"}


def test_a_method_with_nothing_to_tune_is_marked() -> None:
    """One setting never stands under the heading of a budget without a word."""
    from fedspam.app.compare import ComparisonPlan, ComparisonResult, terminal
    from fedspam.app.compare.measures import MEASURES, MethodResult, TunedCost

    plan = ComparisonPlan(rounds=3, cohort=2, targets=(0.5,), seeds=2, budget=2, metric="accuracy")
    costs = lambda key: [TunedCost(key, 0.5, measure, 1.0, 1.0, 1.0, 2, 2, 1) for measure in MEASURES]
    tried = {"auto": [[]], "fedavg": [[], []]}
    methods = {key: MethodResult(costs(key), rows, {}, 0) for key, rows in tried.items()}
    found = ComparisonResult(None, plan, methods)  # type: ignore[arg-type]
    assert found.untuned == ["auto"]
    names = list(terminal.table(found, 0.5).columns[0].cells)
    assert sorted(names) == ["FedAvg", "auto (nothing to tune)"]


def test_a_method_without_a_grid_is_no_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedspam.app.compare import tuning
    from fedspam.methods import METHODS

    ungridded = dataclasses.replace(METHODS["fedavg"], grid=lambda scales: [{}])
    monkeypatch.setitem(METHODS, "ungridded", ungridded)
    with pytest.raises(ValueError, match="ungridded has no settings to try for local_steps, local_rate"):
        tuning.check_grid("ungridded", ungridded.grid(None))  # type: ignore[arg-type]
    for key in METHODS.keys() - {"ungridded"}:
        tuning.check_grid(key, METHODS[key].grid(Scales(0.1, 1.0, 20, 4)))

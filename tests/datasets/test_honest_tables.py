"""Tables as they come from a spreadsheet, and what must not flatter a model that was trained on them."""

import csv
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Evaluation, datasets, load, models
from fedspam.app.cli import main
from fedspam.app.config import ConfigError, decode, read
from fedspam.app.experiment import make
from fedspam.app.experiment.scores import chosen_threshold
from fedspam.models.trained import Threshold, shares_of
from fedspam.simulation import Patience, Target, records
from fedspam.simulation.metrics import METRICS, confusion

AUTO = {"name": "fedavg", "cohort_size": 2, "local_steps": 2, "local_rate": 0.3}


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# --- what a spreadsheet writes ---


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_found_in_the_header(separator: str, tmp_path: Path) -> None:
    lines = [["site", '"a, b; c"', "ill"], ["x", "1", "0"], ["y", "2", "1"]]
    path = written(tmp_path / "rows.csv", "\n" + "\n".join(separator.join(cells) for cells in lines))
    assert datasets.open_table(path).names == ["site", "a, b; c", "ill"]
    assert datasets.read_table(path, client="site", label="ill").examples["a, b; c"].tolist() == [1.0, 2.0]
    assert datasets.open_table(path, delimiter="~").names != ["site", "a, b; c", "ill"]


def test_a_decimal_comma_is_a_number_where_commas_do_not_separate(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "site;price;rate;note\nx;3,5;1;a,b\ny;-,25;2,5e1;1,5\nz;;7;c\n")
    table = datasets.open_table(path)
    np.testing.assert_array_equal(table.column("price"), [3.5, -0.25, np.nan])
    np.testing.assert_array_equal(table.column("rate"), [1, 25, 7])
    assert table.column("note").tolist() == ["a,b", "1,5", "c"]
    quoted = written(tmp_path / "b.csv", 'site,price\nx,"3,5"\ny,"4,5"\n')
    assert datasets.open_table(quoted).column("price").tolist() == ["3,5", "4,5"]
    mixed = written(tmp_path / "c.csv", "site;price\nx;3,5\ny;1.234\n")
    with pytest.raises(ValueError, match=r"line 3: price is '1.234'; it must be a finite number with a decimal comma"):
        datasets.open_table(mixed).column("price")


@pytest.mark.parametrize(
    "dates", ["2024-03-{:02}", "{}.3.2024", "{:02}/03/24", "2024-03-{:02}T12:30:00Z", "2024/3/{} 7:15"]
)
def test_dates_are_refused_unless_they_are_named_as_categories(dates: str) -> None:
    table = {"site": "ab" * 300, "visit": [dates.format(1 + row % 28) for row in range(600)], "ill": "0110" * 150}
    with pytest.raises(ValueError, match=r"row 1: visit is '.*'; a date cannot be a feature: replace it by a number"):
        datasets.read_table(table, client="site", label="ill")
    named = datasets.read_table(table, client="site", label="ill", categories=["visit"])
    assert len(datasets.Encoder.of_table(named).names) == 28


def test_versions_and_codes_are_no_dates() -> None:
    table = {"site": "ab" * 6, "code": ["1.2.3", "10-20", "A1/2"] * 4, "ill": "01" * 6}
    assert datasets.read_table(table, client="site", label="ill").examples["code"].dtype == object


def test_bytes_of_labeled_images_become_shares(tmp_path: Path) -> None:
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 51, 255, 102]))
    labels.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 3]))
    scaled = datasets.read_labeled(images, labels)["features"]
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, [[0, 0.2], [1, 0.4]], atol=1e-7)
    assert datasets.read_labeled(images, labels, scaled=False)["features"].tolist() == [[0, 51], [255, 102]]


# --- what is held out ---


def test_a_share_that_leaves_too_little_or_holds_out_nothing_is_told() -> None:
    digits = {"method": AUTO, "model": "softmax", "clients": {"split": "iid", "count": 1797}}
    with pytest.raises(ConfigError, match=r"^data.test = 0.9999 leaves too little to train with; hold out less"):
        make(decode({"data": {"kind": "digits", "test": 0.9999}, **digits}))
    with pytest.warns(UserWarning, match="data.test = 0.2 holds out no row, since no client has 3 rows"):
        assert "accuracy" not in make(decode({"data": {"kind": "digits"}, **digits})).metrics


# --- how good a model is where one class is rare ---


def rare_rows(count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which a twentieth are 1, and scores with ties that know a little."""
    random = np.random.default_rng(3)
    labels = (random.random(count) < 0.05).astype(np.int32)
    return labels, np.round(labels - 1 + random.normal(size=count), 1)


def test_metrics_of_a_rare_class_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    labels, scores = rare_rows()
    predicted = scores > 0
    due = {
        "accuracy": sklearn.accuracy_score(labels, predicted),
        "balanced_accuracy": sklearn.balanced_accuracy_score(labels, predicted),
        "f1": sklearn.f1_score(labels, predicted, average="macro"),
        "rare_f1": sklearn.f1_score(labels, predicted),
        "auc": sklearn.roc_auc_score(labels, scores),
    }
    for name, value in due.items():
        for given in (scores, np.stack([-scores / 2, scores / 2], axis=1)):
            assert float(METRICS[name](labels, given)) == pytest.approx(value), name
    numbers = np.random.default_rng(0).normal(size=(2, 50))
    assert float(METRICS["rmse"](*numbers)) ** 2 == pytest.approx(sklearn.mean_squared_error(*numbers))
    assert np.isnan(METRICS["auc"](np.zeros(5, int), np.arange(5.0)))


def test_an_evaluation_answers_metrics_of_all_rows_together() -> None:
    """As many as two blocks and a half, over clients of which none has both classes."""
    labels, scores = rare_rows()
    order = np.argsort(labels, kind="stable")
    rows = {"features": scores[order, None], "label": labels[order]}
    data = datasets.FederatedData.by(rows, rows["label"])
    names = ("balanced_accuracy", "f1", "rare_f1", "auc")
    margins = lambda params, features: features @ params
    judge = Evaluation.of(data, lambda params, rows: rows["label"], block=160, scores=margins, metrics=names)
    found = judge(jnp.ones(1))
    for name in names:
        assert float(found[name]) == pytest.approx(float(METRICS[name](labels, scores))), name
    with pytest.raises(ValueError, match=r"need the scores of all rows; give scores=model.logits"):
        Evaluation.of(data, lambda params, rows: rows["label"], metrics=("auc",))
    with pytest.raises(ValueError, match=r"metric = 'auk' must be one of .*did you mean 'auc'"):
        Evaluation.of(data, lambda params, rows: rows["label"], scores=margins, metrics=("auk",))


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in which a twelfth of the rows is ill, and an experiment on it."""
    folder, random = tmp_path_factory.mktemp("rare"), np.random.default_rng(0)
    lines = ["site;age;crp;state"]
    for _ in range(600):
        age, crp = random.normal(50, 12), random.exponential(5)
        ill = random.random() < 1 / (1 + np.exp(4.5 - 0.08 * (age - 50) - 0.2 * crp))
        lines.append(f"h{random.integers(4)};{age:.1f};{crp:.2f};{'ill' if ill else 'well'}".replace(".", ","))
    written(folder / "rows.csv", "\n".join(lines))
    written(folder / "experiment.toml", EXPERIMENT)
    return folder


EXPERIMENT = """
data = {kind = "csv", path = "rows.csv", client = "site", label = "state"}
model = "logistic"
method = {name = "fedavg", cohort_size = 3, local_steps = 4, local_rate = 0.5}
run = {rounds = 6}
"""


def ran(folder: Path, *words: str) -> dict:
    assert main(["run", str(folder / "experiment.toml"), "--quiet", *words]) == 0
    return json.loads((Path(words[words.index("--out") + 1]) / "summary.json").read_text())


def test_a_run_tells_of_each_class_and_measures_the_metric_of_its_target(rare: Path, tmp_path: Path, capsys) -> None:
    for metric in ("auc", "rare_f1", "f1", "balanced_accuracy"):
        out = tmp_path / metric
        facts = ran(rare, "--out", str(out), "--evaluate.metric", metric, "--evaluate.target", "0.01")
        assert facts["target"]["metric"] == metric
        assert facts["target"]["round"] is not None
        # measured in the compiled rounds, and again from the file of the model
        assert records.read(out)[2][metric][-1] == pytest.approx(facts[metric], abs=1e-6)
    assert sum(row["rows"] for row in facts["per_class"].values()) == np.sum(facts["confusion"])
    assert facts["per_class"]["ill"]["f1"] == facts["rare_f1"]
    assert main(["run", str(rare / "experiment.toml"), "--out", str(tmp_path / "shown")]) == 0
    shown = capsys.readouterr().out
    for words in ("if always the same 0.9", "F1, mean of classes", "precision", "recall"):
        assert words in " ".join(shown.split())


def test_the_usual_target_of_a_lopsided_table_is_the_balanced_accuracy(rare: Path) -> None:
    made_with = lambda **evaluate: make(
        read(rare / "experiment.toml", [(f"evaluate.{k}", v) for k, v in evaluate.items()])
    )
    assert made_with(target="0.6").target == Target("balanced_accuracy", at_least=0.6)
    assert made_with(patience="3").until == Patience("balanced_accuracy", 3, largest=True)
    assert made_with(target="0.6", metric="accuracy").target == Target("accuracy", at_least=0.6)
    assert "balanced_accuracy" not in made_with().metrics  # nobody asks for it


@pytest.mark.parametrize(
    ("metric", "target", "told"),
    [
        (
            "accuracy",
            "85",
            "evaluate.target: accuracy is never 85, since it is between 0 and 1; for 85 percent give 0.85",
        ),
        ("auc", "-0.5", "evaluate.target: auc is never -0.5, since it is between 0 and 1"),
        ("gradient", "-1", "evaluate.target: gradient is never -1, since it is at least 0"),
        ("rmse", "1", "evaluate.metric = 'rmse' is not measured here; choose one of loss, gradient, accuracy"),
        ("auk", "1", "did you mean 'auc'?"),
    ],
)
def test_targets_that_cannot_be_reached_are_refused(metric: str, target: str, told: str, rare: Path) -> None:
    with pytest.raises(ConfigError) as stopped:
        make(read(rare / "experiment.toml", [("evaluate.metric", metric), ("evaluate.target", target)]))
    assert told in str(stopped.value)
    assert "\n" not in str(stopped.value)


def test_numbers_have_an_rmse_to_reach(rare: Path, tmp_path: Path) -> None:
    words = ["--data.label", "crp", "--data.task", "numbers", "--model", "linear", "--method.local_rate", "0.1"]
    out = tmp_path / "run"
    facts = ran(rare, *words, "--evaluate.metric", "rmse", "--evaluate.target", "100", "--out", str(out))
    assert facts["target"]["round"] == 0
    assert records.read(out)[2]["rmse"][-1] == pytest.approx(facts["rmse"], rel=1e-5)


@pytest.mark.slow
def test_methods_are_compared_by_their_auc(rare: Path, tmp_path: Path, capsys) -> None:
    line = "--methods fedavg --budget 2 --rounds 4 --seeds 1 --metric auc --targets 0.55,0.6"
    out = tmp_path / "compared"
    assert main(["compare", str(rare / "experiment.toml"), *line.split(), "--out", str(out)]) == 0
    assert "to AUC 0.6" in capsys.readouterr().out
    with (out / "curves.csv").open() as file:
        errors = [float(row["error"]) for row in csv.DictReader(file)]
    assert errors[0] == 0.5  # all rows score alike at the start
    assert min(errors) < 0.4
    with pytest.raises(SystemExit):
        main(["compare", str(rare / "experiment.toml"), "--metric", "auk"])
    assert capsys.readouterr().err.count("\n") == 1


def test_new_rows_with_labels_are_judged_by_class(rare: Path, tmp_path: Path, capsys) -> None:
    ran(rare, "--out", str(tmp_path / "run"))
    assert main(["predict", str(tmp_path / "run"), str(rare / "rows.csv"), "--out", str(tmp_path / "out.csv")]) == 0
    told = capsys.readouterr().err
    assert "balanced accuracy 0." in told
    assert "state = ill: share 0.0" in told


# --- what flatters a model ---


def patients(count: int = 300, **more: list) -> datasets.FederatedData:
    """Rows of two classes, which age and city tell a little about."""
    random = np.random.default_rng(1)
    ill = (random.random(count) < 0.3).astype(int)
    table = {
        "site": random.choice(["a", "b", "c"], count).tolist(),
        "age": (50 + 8 * ill + random.normal(0, 10, count)).tolist(),
        "pressure": np.rint(120 + random.normal(0, 15, count)).tolist(),
        "city": random.choice(["Bonn", "Rome", "Oslo"], count).tolist(),
        "ill": ill.tolist(),
        **{name: values(ill, random) if callable(values) else values for name, values in more.items()},
    }
    rows = datasets.read_table(table, client="site", label="ill")
    return rows.map(lambda columns: {**columns, "label": columns["label"].astype(np.int32)})


def told(rows: datasets.FederatedData, test: datasets.FederatedData | None = None) -> list[str]:
    return datasets.suspicions(rows, test, label="ill", classes=["no", "yes"])


def test_an_honest_table_is_not_suspected() -> None:
    assert told(*patients().hold_out_examples()) == []
    # few whole numbers and names: rows are equal by chance, and no more often than that
    discrete = datasets.FederatedData.by(
        {name: np.random.default_rng(2).integers(0, 4, 2000).astype(float) for name in ("a", "b")}
        | {"label": np.random.default_rng(3).integers(0, 2, 2000)},
        np.zeros(2000, int),
    )
    assert told(*discrete.hold_out_examples()) == []


@pytest.mark.parametrize(
    ("column", "due"),
    [
        (
            lambda ill, random: random.permutation(len(ill)).tolist(),
            "x has 300 different whole numbers in 300 training",
        ),
        (lambda ill, random: np.argsort(np.argsort(ill)).tolist(), "x alone tells whether ill is yes (AUC 1.000)"),
        (lambda ill, random: (-ill + random.normal(0, 0.3, len(ill))).tolist(), "x alone tells whether ill is yes"),
        (
            lambda ill, random: [float(row) if row else None for row in ill],
            "x alone tells whether ill is yes (AUC 1.000)",
        ),
        (
            lambda ill, random: ["ward" if row else "home" for row in ill],
            "x alone tells whether ill is yes (AUC 1.000)",
        ),
        (
            lambda ill, random: [f"n{row // 3}" for row in range(len(ill))],
            "x has 100 different texts in 300 training rows",
        ),
    ],
)
def test_ids_and_columns_that_tell_the_label_are_named(column: Any, due: str) -> None:
    found = told(patients(x=column))
    assert any(text.startswith(due) for text in found), found
    assert all(text.startswith("x ") for text in found)


def test_a_column_that_nearly_is_the_number_to_predict_is_named() -> None:
    random = np.random.default_rng(0)
    price = random.normal(size=100)
    table = {"site": "ab" * 50, "tax": 0.2 * price, "size": random.normal(size=100), "price": price}
    rows = datasets.read_table(table, client="site", label="price")
    rows = rows.map(lambda columns: {**columns, "label": columns["label"].astype(float)})
    (only,) = datasets.suspicions(rows, label="price")
    assert only.startswith("tax alone nearly is price (correlation 1.0000): if it is not known before price is")


def test_rows_that_come_twice_are_counted_also_between_training_and_test() -> None:
    rows = patients()
    some = np.arange(rows.rows) % 10 == 0
    examples = {name: np.concatenate([values, values[some]]) for name, values in rows.examples.items()}
    doubled = datasets.FederatedData.by(examples, np.zeros(len(examples["label"]), int))
    train, test = doubled.hold_out_examples()
    keys = lambda part: [tuple(values) for values in zip(*part.examples.values(), strict=True)]
    shared = len([key for key in keys(test) if key in set(keys(train))])
    assert shared > 0
    (only,) = told(train, test)
    assert only.startswith(f"30 of 330 rows are copies of others, and {shared} of 66 test rows are also training rows;")


def test_a_run_warns_of_an_id(rare: Path, tmp_path: Path) -> None:
    lines = (rare / "rows.csv").read_text().splitlines()
    numbered = [f"{line};{'patient' if number == 0 else number}" for number, line in enumerate(lines)]
    written(tmp_path / "rows.csv", "\n".join(numbered))
    written(tmp_path / "experiment.toml", EXPERIMENT)
    with pytest.warns(UserWarning, match="patient has .* different whole numbers in .* training rows, as an id has"):
        make(read(tmp_path / "experiment.toml", []))
    command = [sys.executable, "-m", "fedspam.app", "measure", str(tmp_path / "experiment.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stderr.startswith("fedspam: warning: patient has ")
    assert done.stderr.count("\n") == 1


# --- weights and a threshold ---


def test_class_weights_multiply_the_loss_and_not_the_penalty() -> None:
    rows = {"features": jnp.array([[1.0], [2.0], [-1.0]]), "label": jnp.array([0, 1, 1])}
    for make_model in (models.logistic_regression, lambda inputs, **more: models.softmax_regression(inputs, 2, **more)):
        plain = make_model(1)
        params = jax.tree.map(lambda leaf: leaf + 0.3, plain.init(0))
        losses = plain.loss(params, rows)
        penalty = make_model(1, regularization=2.0).loss(params, rows) - losses
        weighted = dataclasses.replace(make_model(1, regularization=2.0), class_weights=(0.5, 4.0))
        np.testing.assert_allclose(weighted.loss(params, rows), losses * np.array([0.5, 4, 4]) + penalty, rtol=1e-6)
    with pytest.raises(ValueError, match=r"class_weights = -1.0 must be"):
        dataclasses.replace(plain, class_weights=(-1.0, 1.0))


def test_balanced_weights_are_those_of_scikit_learn(rare: Path) -> None:
    made = make(read(rare / "experiment.toml", [("model.class_weights", "balanced")]))
    utils = pytest.importorskip("sklearn.utils")
    labels = made.examples.train.examples["label"]
    due = utils.compute_class_weight("balanced", classes=np.arange(2), y=labels)
    np.testing.assert_allclose(made.population.loss.model.class_weights, due)
    by_name = make(read(rare / "experiment.toml", [("model.class_weights.ill", "3")]))
    assert by_name.population.loss.model.class_weights == (3.0, 1.0)
    with pytest.raises(ConfigError, match=r"model.class_weights: 'il' is not a class of the data; did you mean 'ill'"):
        make(read(rare / "experiment.toml", [("model.class_weights.il", "3")]))


def test_weights_and_thresholds_find_more_of_a_rare_class(rare: Path, tmp_path: Path, capsys) -> None:
    plain = ran(rare, "--out", str(tmp_path / "plain"))
    weighted = ran(rare, "--out", str(tmp_path / "weighted"), "--model.class_weights", "balanced")
    chosen = ran(rare, "--out", str(tmp_path / "chosen"), "--evaluate.threshold", "balanced_accuracy")
    recall = lambda facts: facts["per_class"]["ill"]["recall"]
    assert min(recall(weighted), recall(chosen)) > recall(plain) + 0.2
    assert min(weighted["balanced_accuracy"], chosen["balanced_accuracy"]) > plain["balanced_accuracy"]
    assert chosen["auc"] == plain["auc"]
    assert chosen["threshold"]["class"] == "ill"
    assert 0 < chosen["threshold"]["probability"] < 0.5
    # whoever loads the model decides with the same threshold
    trained = load(tmp_path / "chosen")
    shares, found = trained.probabilities(rare / "rows.csv"), trained.predict(rare / "rows.csv")
    np.testing.assert_array_equal(found == "ill", shares[:, 0] >= chosen["threshold"]["probability"])
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "chosen"), str(rare / "rows.csv"), "--out", str(tmp_path / "out.csv")]) == 0
    assert "'ill' is predicted from a probability of 0." in capsys.readouterr().err
    with (tmp_path / "out.csv").open() as file:
        assert [row["predicted_state"] for row in csv.DictReader(file)] == found.tolist()


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "f1", "rare_f1"])
@pytest.mark.parametrize("positive", [0, 1])
def test_the_threshold_is_the_best_of_all(metric: str, positive: int) -> None:
    labels, scores = rare_rows(120)
    labels, scores = (labels, scores) if positive else (1 - labels, -scores)
    trained = SimpleNamespace(raw_scores=lambda features: features[:, 0])
    rows = datasets.FederatedData.by({"features": scores[:, None], "label": labels}, np.zeros(120, int))
    found = chosen_threshold(trained, rows, metric)  # type: ignore[arg-type]
    assert found.number == positive
    shares = shares_of(scores)[:, positive]
    value = lambda least: float(
        METRICS[metric].decided(confusion(labels, np.where(shares >= least, positive, 1 - positive), 2))
    )
    cuts = [0, *np.unique(shares)]
    assert value(found.probability) == pytest.approx(max(map(value, cuts)))
    assert chosen_threshold(trained, rows, 0.3) == Threshold(positive, 0.3)  # type: ignore[arg-type]


def test_a_threshold_needs_two_classes_and_a_sound_file(rare: Path, tmp_path: Path, capsys) -> None:
    words = ["--data.label", "crp", "--data.task", "numbers", "--model", "linear", "--evaluate.threshold", "0.3"]
    with pytest.raises(SystemExit):
        main(["run", str(rare / "experiment.toml"), "--out", str(tmp_path / "run"), *words])
    assert "evaluate.threshold: it needs rows of two classes" in capsys.readouterr().err
    model = models.softmax_regression(1, 2)
    for wrong in ({"number": 2, "probability": 0.5}, {"number": 1, "probability": 7}, [1], {"number": 1}):
        path = models.save(tmp_path, model.init(0), model=model, classes=["a", "b"], threshold=wrong)
        with pytest.raises(records.RecordError, match="has a description that cannot be used"):
            load(path)

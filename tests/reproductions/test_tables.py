"""Published tables: FLamby's split, scaling and starting points, verdicts on made-up numbers, the command."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import fedprox_mnist
import flamby_heart
import leaf_femnist
import niid_bench
import nvflare_cifar10
from curves import Cell, Curves, as_torch
from fedspam import datasets
from harness import main
from published import BEAT, MATCH, PART, SHORT, PublishedRow, PublishedTable, markdown

ROOT = Path(__file__).parents[2]
STORED = ROOT / "docs" / "flamby-heart.csv"


@pytest.fixture(scope="module")
def patients(data):
    return datasets.read_heart(data)


def niid(words):
    """The command of NIID-Bench."""
    known = {"methods": niid_bench.METHODS, "columns": niid_bench.COLUMNS}
    return main(niid_bench.niid_table, "", takes=niid_bench.OPTIONS, **known, words=words)


def test_the_split_is_that_of_scikit_learn(patients):
    selection = pytest.importorskip("sklearn.model_selection", reason="scikit-learn is not installed")
    test = flamby_heart.heart_split(patients)
    for hospital, sizes in enumerate(((199, 104), (172, 89), (30, 16), (85, 45))):
        rows = patients.hospital == hospital
        ill = patients.labels[rows]
        stratify = ill if min(np.bincount(ill, minlength=2)) > 2 else None
        kept, held = selection.train_test_split(
            np.arange(len(ill)), test_size=1 - 0.66, train_size=0.66, random_state=43, stratify=stratify
        )
        assert (len(kept), len(held)) == sizes
        assert np.flatnonzero(test[rows]).tolist() == sorted(held)


def test_features_are_scaled_per_hospital_with_the_training_part(patients):
    data, test = flamby_heart.heart_data(patients), flamby_heart.heart_split(patients)
    clients = data.clients["plain"]
    for hospital in range(4):
        rows = patients.features[(patients.hospital == hospital) & ~test]
        begin, end = np.asarray(clients.offsets)[hospital : hospital + 2]
        scaled = np.asarray(clients.examples["features"])[begin:end]
        with np.errstate(invalid="ignore"):
            expected = np.nan_to_num((rows - rows.mean(0)) / rows.std(0, ddof=1))  # a constant feature becomes 0
        np.testing.assert_allclose(scaled, expected, atol=1e-4)
    pooled = np.asarray(data.pooled["features"])
    np.testing.assert_allclose(pooled.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(pooled.std(0, ddof=1), 1, atol=1e-5)


def test_the_starting_points_are_those_of_pytorch(patients):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    order = sorted(range(13), key=lambda place: "=" in patients.names[place])  # indicators last, as in FLamby
    for seed in (42, 46):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(13, 1)
        found = flamby_heart.start(seed)
        np.testing.assert_allclose(found["kernel"][np.asarray(order), 0], layer.weight.detach().numpy()[0], atol=1e-7)
        np.testing.assert_allclose(found["bias"], layer.bias.detach().numpy(), atol=1e-7)


def test_patients_of_another_file_are_refused(patients):
    fewer = datasets.Heart(patients.features[1:], patients.labels[1:], patients.hospital[1:], patients.names)
    with pytest.raises(ValueError, match="cleveland has 302 complete patients, FLamby's split is of 303; give"):
        flamby_heart.heart_split(fewer)


def test_verdicts():
    rows = (
        PublishedRow("same", "", (0.50, 0.60), (0.51, 0.60)),
        PublishedRow("worse", "", (0.50, 0.60), (0.51, 0.63)),
        PublishedRow("better", "", (0.55, 0.60), (0.51, 0.61)),
        PublishedRow("broken", "", (float("nan"), 0.60), (0.51, 0.60)),
        PublishedRow("central", "", (0.90, 0.90), (0.90, 0.90), federated=False),
        PublishedRow("own", "", (0.60, 0.62)),
        PublishedRow("partly", "", (0.70, 0.62), (0.71, float("nan")), federated=False),
        PublishedRow("spread", "", (0.45, 0.60), (0.51, 0.60), spread=(0.05, 0.0)),
    )
    table = PublishedTable("toy", "Toy", "nobody", ("a", "b"), 2.0, rows, ())
    assert [table.verdict(row) for row in rows] == [MATCH, SHORT, BEAT, SHORT, MATCH, BEAT, MATCH, MATCH]
    assert table.best() == (0.51, 0.63)
    assert not table.holds
    assert len(table.published_cells()) == 2 * 5 + 1 + 2
    lines = markdown(table.csv()).splitlines()
    assert lines[2] == "| same | published | **0.500** (0.510, -1.0) | **0.600** (0.600, 0.0) | match |"
    assert lines[7] == "| own | best federated | **0.600** (0.510, +9.0) | **0.620** (0.630, -1.0) | beat |"
    assert lines[8] == "| partly | published | **0.700** (0.710, -1.0) | **0.620** (–, –) | match |"


@pytest.mark.slow
def test_pooled_training_reaches_the_published_numbers():
    """The row that compiles quickest; `make full` runs the whole table."""
    table = flamby_heart.heart_table(methods=())
    assert len(table.published_cells()) == 6
    assert table.holds, table.csv()


@pytest.mark.thorough
def test_the_command_matches_the_published_table_and_the_page(tmp_path):
    folder = tmp_path / "heart"
    # a process of its own, in single precision
    command = [sys.executable, str(ROOT / "reproductions" / "flamby_heart.py"), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "44 of 44 cells are within 2 points" in done.stdout
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["comparable"]
    assert (folder / "table.md").read_text() == markdown((folder / "table.csv").read_text())
    found, stored = (cells(path) for path in (folder / "table.csv", STORED))
    assert found.keys() == stored.keys()
    for (method, column), number in found.items():
        # one patient of 45 in one of five seeds is half a point; `auto` takes other steps where rounding differs
        assert number == pytest.approx(stored[method, column], abs=0.05 if method == "auto" else 0.011), method


def cells(path: Path) -> dict[tuple[str, str], float]:
    """Our numbers of a stored table, by method and column."""
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["ours"] != "–"]
        return {(row["method"], row["column"]): float(row["ours"]) for row in rows}


def test_the_page_shows_the_stored_table():
    page = (ROOT / "docs" / "tables.md").read_text()
    assert markdown(STORED.read_text()) in page, (
        "run python reproductions/flamby_heart.py, and copy its table.csv and table.md"
    )
    known = {
        "pooled training": flamby_heart.POOLED,
        **{method.name: method.published for method in flamby_heart.METHODS},
    }
    with STORED.open() as file:
        for row in csv.DictReader(file):
            if row["compared_with"] == "published":
                theirs = known[row["method"]][flamby_heart.COLUMNS.index(row["column"])]
                assert row["reference"] == ("–" if np.isnan(theirs) else f"{theirs:.3f}")
    assert {method for method, _ in cells(STORED)} == set(known)


def test_the_page_shows_the_stored_table_of_niid_bench():
    stored = ROOT / "docs" / "niid-bench.csv"
    assert markdown(stored.read_text()) in (ROOT / "docs" / "tables.md").read_text()
    with stored.open() as file:
        for row in csv.DictReader(file):
            theirs = niid_bench.PUBLISHED["fashion"][row["method"]][niid_bench.COLUMNS.index(row["column"])]
            assert float(row["reference"]) == pytest.approx(theirs, abs=0.00051)
            assert row["verdict"] in (MATCH, BEAT)


def test_a_folder_without_the_patients_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"processed.cleveland.data is missing in the data folder"):
        flamby_heart.heart_table(folder=tmp_path)


def test_rows_without_published_ones_have_no_reference():
    table = PublishedTable("toy", "Toy", "nobody", ("a", "b"), 2.0, (PublishedRow("auto", "", (0.5, 0.6)),), ())
    assert np.isnan(table.best()).all()
    assert table.verdict(table.rows[0]) == MATCH
    assert markdown(table.csv()).splitlines()[2].startswith("| auto | best federated | **0.500** (–, –) |")


def test_a_slice_is_not_compared():
    rows = (PublishedRow("far", "", (0.2,), (0.9,)),)
    table = PublishedTable("toy", "Toy", "nobody", ("a",), 2.0, rows, (), comparable=False)
    assert table.verdict(rows[0]) == PART
    assert table.holds
    assert markdown(table.csv()).splitlines()[2] == "| far | published | **0.200** (0.900, –) | a slice |"


def test_the_splits_of_niid_bench():
    labels = np.tile(np.arange(10), 300)
    held = {column: np.zeros((10, 10), int) for column in niid_bench.COLUMNS}
    for column, table in held.items():
        np.add.at(table, (niid_bench.split_labels(column, labels), labels), 1)
        np.testing.assert_array_equal(table.sum(0), 300)  # every image has one owner
    np.testing.assert_array_equal(held["IID"].sum(1), 300)
    assert np.all(held["IID"] > 10)
    assert held["Dirichlet(0.5)"].sum(1).min() >= 10
    for name, count in niid_bench.COUNTS.items():
        assert np.all((held[name] > 0).sum(1) == count)
        assert np.all(np.diag(held[name]) > 0)
        for column in held[name].T:  # the clients of a class share it evenly
            assert np.ptp(column[column > 0]) <= 1


def test_the_splits_of_nvflare_are_those_of_the_example():
    """By its own steps: lists of indices, and NumPy's global generator."""
    labels = np.random.default_rng(0).integers(0, 10, 3000)
    before = np.random.get_state()  # noqa: NPY002 (the example's generator)
    for alpha in nvflare_cifar10.ALPHAS.values():
        np.random.seed(0)  # noqa: NPY002
        least = 0
        while least < 10:
            held: list[list[int]] = [[] for _ in range(8)]
            for label in range(10):
                rows = np.where(labels == label)[0]
                np.random.shuffle(rows)  # noqa: NPY002
                shares = np.random.dirichlet(np.repeat(alpha, 8))  # noqa: NPY002
                shares = np.array([s * (len(own) < 3000 / 8) for s, own in zip(shares, held, strict=True)])
                ends = (np.cumsum(shares / shares.sum()) * len(rows)).astype(int)[:-1]
                held = [own + part.tolist() for own, part in zip(held, np.split(rows, ends), strict=True)]
                least = min(len(own) for own in held)
        owner = nvflare_cifar10.split_labels(labels, alpha)
        for client, own in enumerate(held):
            assert sorted(own) == np.flatnonzero(owner == client).tolist()
    np.random.set_state(before)  # noqa: NPY002


def test_the_rates_of_nvflare():
    rates = nvflare_cifar10.cosine(200, 0.05, 4)
    assert len(rates) == 50
    assert rates[0] == pytest.approx(0.05, rel=1e-2)
    assert rates[-1] == pytest.approx(0.0005, rel=0.1)
    assert sum(rates) / 50 == pytest.approx(0.05 * (0.01 + 0.99 / 2), rel=1e-2)  # the mean of a cosine from 1 to 0.01
    kept = [(m, c) for m in nvflare_cifar10.METHODS for c in nvflare_cifar10.COLUMNS if nvflare_cifar10.wanted(m, c)]
    assert len([pair for pair in kept if pair[0] != "auto"]) == 8


def test_curves_of_several_machines_become_one_table(tmp_path):
    """The longest curve of a cell counts, and only whole ones are shown."""
    cell = lambda method, column: Cell("mnist", method, column, 42)
    both = [cell("FedAvg", "IID"), cell("FedProx 1", "one label")]
    Curves(tmp_path).write("a", both, np.array([[0.1, 0.1], [0.5, 0.4]]))
    Curves(tmp_path).write("b", [cell("FedAvg", "IID")], np.array([[0.1], [0.5], [0.4]]))
    (tmp_path / "table.csv").write_text("method,settings\n")
    found = Curves(tmp_path)
    assert found.whole("mnist", {"FedAvg": 2, "FedProx 1": 2}) == {("FedAvg", "IID"): [[0.1, 0.5, 0.4]]}
    assert set(found.read()) == set(both)
    table = niid_bench.niid_table("mnist", rounds=2, merge=True, out=tmp_path)
    assert table.rows[0].ours[0] == 0.5
    assert np.isnan(table.rows[0].ours[1:]).all()
    assert [row.method for row in table.rows] == list(niid_bench.ROWS)


@pytest.mark.thorough
def test_a_network_of_niid_bench_begins_as_in_pytorch():
    params = as_torch(niid_bench.model().init(0), jax.random.key(0))
    assert {name: layer["kernel"].shape for name, layer in params.items()} == {
        "conv0": (5, 5, 1, 6), "conv1": (5, 5, 6, 16), "dense0": (256, 120), "dense1": (120, 84), "dense2": (84, 10)
    }  # fmt: skip
    for layer in params.values():
        reach = 1 / np.sqrt(np.prod(layer["kernel"].shape[:-1]))
        for array in layer.values():
            assert 0.7 * reach < np.abs(array).max() <= reach


@pytest.mark.thorough
def test_a_slice_of_niid_bench(tmp_path, data, monkeypatch, capsys):
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(data))
    assert niid(["--scale", "small", "--out", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "A slice of the experiment, not the experiment: 2000 of 60000 images" in printed
    found = cells(tmp_path / "table.csv")
    assert len(found) == 25
    for method in ("FedAvg", "FedNova"):  # ten classes; the fewer labels a client has, the harder
        assert found[method, "IID"] > found[method, "Dirichlet(0.5)"] > found[method, "two labels"] > 0.15


def test_the_measures_of_leaf(data, monkeypatch):
    """Bytes and FLOPs of two rounds, by hand."""
    seen = {}

    def two_rounds(method, clients, params, **options):
        seen.update(params=params, batch=clients.batch, rounds=options["rounds"])
        rows = {"gradients": np.array([45.0, 50.0]), "bytes_up": np.array([3, 3]) * 26_414_840}
        return SimpleNamespace(rows=rows, probes={"accuracy": np.array([0.01, 0.8])}, rounds=2)

    monkeypatch.setattr(leaf_femnist, "simulate", two_rounds)
    table = leaf_femnist.leaf_table(methods=("SGD with 3 clients", "FedAvg with 3 clients and 1 epoch"), data=data)
    assert sum(array.size for array in jax.tree.leaves(seen["params"])) == 6_603_710
    assert (seen["batch"], seen["rounds"]) == (10, 2000)
    # 6 x 26.41 MB; a step of SGD takes all of a client, one of FedAvg 10 images
    flops = [f"{95 * images * 13_203_021 / 1e12:.3g}" for images in (14708 / 105, 10)]
    assert table.rows == (
        ("SGD with 3 clients", "yes", "0.800", "2", "0.158", flops[0]),
        ("FedAvg with 3 clients and 1 epoch", "yes", "0.800", "2", "0.158", flops[1]),
    )
    assert table.holds
    assert table.markdown().splitlines()[1:3] == [
        "|---|---|---|---|---|---|", f"| SGD with 3 clients | yes | 0.800 | 2 | 0.158 | {flops[0]} |"
    ]  # fmt: skip


@pytest.mark.thorough
def test_a_slice_of_leaf(tmp_path, data, monkeypatch, capsys):
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(data))
    words = ["--scale", "small", "--only", "FedAvg with 35 clients and 1 epoch", "--out", str(tmp_path)]
    names = tuple(method.name for method in leaf_femnist.METHODS)
    assert main(leaf_femnist.leaf_table, "", takes=("scale", "only"), methods=names, words=words) == 0
    assert "Part of the data: 105 writers" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "table.md").read_text().count("| yes |") == 1


def test_the_split_of_fedprox():
    """Two neighboring digits per client, at least five images of each, and sizes that differ much."""
    label = np.tile(np.arange(10), 1100)
    owner = fedprox_mnist.power_law(label, np.random.default_rng(0))
    held = np.zeros((fedprox_mnist.CLIENTS, 10), int)
    np.add.at(held, (owner, label), 1)
    assert held.sum() == len(label)
    for client, row in enumerate(held):
        assert sorted(np.flatnonzero(row)) == sorted({client % 10, (client + 1) % 10})
        assert min(row[row > 0]) >= 5
    sizes = held.sum(1)
    assert np.std(sizes) > np.mean(sizes)


def test_digits_are_scaled_and_held_out(data):
    train, test = fedprox_mnist.digits(0, data)
    rows = np.concatenate([part.examples["features"] for part in (train, test)])
    assert rows.shape[1] == 784
    assert abs(rows.mean()) < 1e-3
    assert np.percentile(rows.std(axis=0), 75) == pytest.approx(1, abs=1e-3)  # pixels at the border are rarely inked
    assert rows.std(axis=0).max() < 1.001
    assert 0.09 < test.sizes.sum() / train.sizes.sum() < 0.13  # one of ten, rounded up for each client


@pytest.mark.parametrize("name", ["fedprox-mnist", "leaf-femnist"])
def test_the_page_shows_what_was_measured(name):
    page = (ROOT / "docs" / "tables.md").read_text()
    for line in csv.reader((ROOT / "docs" / f"{name}.csv").read_text().splitlines()):
        assert f"| {' | '.join(line)} |" in page


def test_the_claims_of_leaf_and_fedprox_hold():
    rows = {name: list(csv.reader((ROOT / "docs" / f"{name}.csv").read_text().splitlines())) for name in
            ("fedprox-mnist", "leaf-femnist")}  # fmt: skip
    costs = {row[0]: (float(row[4]), float(row[5])) for row in rows["leaf-femnist"][1:]}
    assert set(costs) == {method.name for method in leaf_femnist.METHODS}
    few, many = costs["FedAvg with 3 clients and 1 epoch"], costs["FedAvg with 3 clients and 100 epochs"]
    assert many[0] < 0.5 * few[0]  # more local work, fewer bytes
    assert many[1] > 10 * few[1]
    stored = rows["fedprox-mnist"]
    numbers = {row[0]: float(row[3].split()[0]) for row in stored[1:]}
    assert numbers["FedAvg"] < numbers["FedProx, mu = 0"] < numbers["FedProx, mu = 1"]  # the claim of the paper


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--only FedAvgg", "--only names 'FedAvgg'; it takes FedAvg, SCAFFOLD, FedProx, FedProx 0.001,"),
        ("--resume", "--resume needs the folder of the run; give it with --out"),
        ("--scales small", "did you mean --scale?"),
        ("--rounds 0", "must be a whole number from 1"),
    ],
)
def test_wrong_arguments_are_refused(words, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        niid(words.split())
    assert stopped.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow  # a process each
@pytest.mark.parametrize("name", ["flamby_heart", "niid_bench", "leaf_femnist", "fedprox_mnist", "nvflare_cifar10"])
def test_every_table_is_a_script_with_help(name):
    command = [sys.executable, str(ROOT / "reproductions" / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert f"python reproductions/{name}.py" in done.stdout


@pytest.mark.slow
def test_a_part_of_niid_bench_is_kept_and_shown_again(data, tmp_path, monkeypatch, capsys):
    """A cell of a few images; the second time, nothing is left to run."""
    monkeypatch.setitem(niid_bench.SCALES, "small", niid_bench.BenchScale(60, 20, 1, 1, 6))
    monkeypatch.setenv("FEDSPAM_DATA", str(data))
    command = ["--scale", "small", "--rounds", "8", "--only", "FedAvg,IID", "--out", str(tmp_path)]
    assert niid(command) == 0
    table, curve = ((tmp_path / name).read_text() for name in ("table.csv", "fashion-fedavg-iid-42.csv"))
    (row,) = csv.DictReader(table.splitlines())
    assert (row["method"], row["column"]) == ("FedAvg", "IID")
    assert len(curve.splitlines()) == 1 + 9
    best = max(float(line["accuracy"]) for line in csv.DictReader(curve.splitlines()))
    assert (row["ours"], row["points"]) == (f"{best:.3f}", "–")
    assert niid(command) == 1
    assert "already holds a run" in capsys.readouterr().err
    monkeypatch.setattr("side_by_side._advance", None)
    assert niid([*command, "--resume"]) == 0
    assert (tmp_path / "table.csv").read_text() == table

"""Data on disk: what readers take and refuse, how rows are split, and optima against those of other libraries."""

import bz2
import gzip
import lzma

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from fedspam import datasets
from fedspam.problems import logistic, row_weights, softmax, solution, solve, synthetic_logistic


@pytest.fixture(scope="module")
def a9a(data):
    return datasets.read_libsvm(data / "libsvm" / "a9a", features=123)


@pytest.fixture(scope="module")
def mushrooms(data):
    return datasets.read_libsvm(data / "libsvm" / "mushrooms")


# --- the folder ------------------------------------------------------------------------------------------------------


def test_the_folder_is_the_argument_then_the_variable_then_here(tmp_path, monkeypatch):
    for name in ("given", "named", "work/data"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path / "named"))
    assert datasets.data_folder(tmp_path / "given") == tmp_path / "given"
    assert datasets.data_folder() == tmp_path / "named"
    monkeypatch.delenv(datasets.FOLDER_VARIABLE)
    assert datasets.data_folder().resolve() == tmp_path / "work" / "data"


def test_one_data_set_comes_with_fedspam(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(datasets.FOLDER_VARIABLE, raising=False)
    assert np.bincount(datasets.read_heart().hospital).tolist() == [303, 261, 46, 130]
    (tmp_path / "data").mkdir()  # of other data sets
    assert len(datasets.read_heart().labels) == 740
    (tmp_path / "data" / "heart_disease").mkdir()
    for hospital in datasets.HOSPITALS:  # one's own files come first
        row = "63,1,1,145,233,1,2,150,0,2.3,3,0,6,0\n"
        (tmp_path / "data" / "heart_disease" / f"processed.{hospital}.data").write_text(row)
    assert len(datasets.read_heart().labels) == 4
    (tmp_path / "given").mkdir()
    with pytest.raises(FileNotFoundError, match=r"processed.cleveland.data is missing in the data folder .*given"):
        datasets.read_heart(tmp_path / "given")


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(datasets.FOLDER_VARIABLE, raising=False)
    with pytest.raises(FileNotFoundError, match=r"no data found: FEDSPAM_DATA is not set.*set FEDSPAM_DATA"):
        datasets.data_folder()
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, "nowhere")
    with pytest.raises(FileNotFoundError, match="FEDSPAM_DATA 'nowhere' is not a folder"):
        datasets.data_folder()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "har").mkdir()
    with pytest.raises(FileNotFoundError, match=r"libsvm/a9a is missing .*nor with .gz or .bz2.*the folder holds: har"):
        datasets.data_path("libsvm/a9a", tmp_path / "here", endings=("", ".gz", ".bz2"))
    (tmp_path / "here" / "rows.bz2").write_bytes(bz2.compress(b"1 1:2\n"))
    found = datasets.data_path("rows", tmp_path / "here", endings=("", ".gz", ".bz2"))
    assert datasets.read_libsvm(found).features.tolist() == [[2.0]]


# --- LIBSVM ----------------------------------------------------------------------------------------------------------

GOOD = b"+1 1:0.5 4:-2e1  # a comment\n\n-1\r\n2 2:1\n"


@pytest.mark.parametrize(
    ("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_libsvm_is_read_packed_or_not(tmp_path, ending, pack):
    path = tmp_path / f"rows{ending}"
    path.write_bytes(pack(GOOD))
    rows = datasets.read_libsvm(path)
    np.testing.assert_array_equal(rows.features, [[0.5, 0, 0, -20], [0, 0, 0, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(rows.labels, [1, -1, 2])
    assert datasets.read_libsvm(path, features=6).features.shape == (3, 6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:1\n1 0:3\n", "line 2: index 0 in '0:3': indices begin at 1; add 1 to every index"),
        ("1 2:1 2:3\n", r"line 1: index 2 in '2:3': it must be above the one before it, 2; sort"),
        ("1 3:1 2:3\n", "line 1: index 2 in '2:3': it must be above the one before it, 3"),
        ("\n1 3\n", "line 2: '3' is not index:value; write one such as 3:0.5"),
        ("1 -3:1\n", "line 1: '-3:1' is not index:value"),
        ("1 1:one\n", "line 1: the value of index 1 is 'one'; it must be a finite number"),
        ("1 1:nan\n", "line 1: the value of index 1 is 'nan'"),
        ("1 1:\n", "line 1: the value of index 1 is ''"),
        ("1 1:1\nyes 1:1\n", "line 2: the label is 'yes'; it must be a finite number"),
        ("# nothing\n", "holds no examples"),
        ("1\n2\n", "no feature in any line; say how many"),
        ("1 9999999:1\n", "rows are kept dense, at most 1000000 features"),
        ("1 1:1 \xe9\n", "is not text"),
    ],
)
def test_what_is_not_libsvm_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "rows"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=message) as refused:
        datasets.read_libsvm(path)
    assert str(path) in str(refused.value)


def test_libsvm_refuses_too_few_features_and_damaged_files(tmp_path):
    path = tmp_path / "rows"
    path.write_text("1 1:1\n1 7:1\n")
    with pytest.raises(ValueError, match=r"example 2: index 7 is above features = 5; give features=7"):
        datasets.read_libsvm(path, features=5)
    for ending, pack in ((".gz", gzip.compress), (".bz2", bz2.compress)):
        cut = tmp_path / f"cut{ending}"
        cut.write_bytes(pack(b"1 1:1\n" * 1000)[:-8])
        with pytest.raises(ValueError, match="damaged"):
            datasets.read_libsvm(cut)
    (tmp_path / "plain.gz").write_text("1 1:1\n")
    with pytest.raises(ValueError, match="not compressed as its name says"):
        datasets.read_libsvm(tmp_path / "plain.gz")


def test_libsvm_sets_are_as_their_description_says(a9a, mushrooms):
    assert a9a.features.shape == (32561, 123)
    assert (a9a.labels == 1).sum() == 7841
    assert set(np.unique(a9a.features)) == {0, 1}
    assert mushrooms.features.shape == (8124, 112)
    assert [(mushrooms.labels == label).sum() for label in (1, 2)] == [3916, 4208]
    # the largest eigenvalue of the mean Hessian at 0, computed elsewhere
    for rows, L in ((a9a, 1.571920), (mushrooms, 2.586214)):
        assert np.linalg.eigvalsh(rows.features.T @ rows.features)[-1] / (4 * len(rows.labels)) == pytest.approx(
            L, abs=1e-6
        )


# --- archives, heart disease, activities -----------------------------------------------------------------------------


def test_archives_are_never_unpickled(tmp_path):
    path = tmp_path / "arrays.npz"
    np.savez(path, x=np.ones(2), thing=np.array([{"a": 1}], dtype=object), bad=np.array([np.nan]))
    assert datasets.read_arrays(path, ["x"])["x"].tolist() == [1, 1]
    for name, message in (("thing", "cannot be read"), ("y", "no array 'y', it has x, thing, bad"), ("bad", "NaN")):
        with pytest.raises(ValueError, match=message):
            datasets.read_arrays(path, [name])
    np.save(tmp_path / "single.npy", np.ones(2))
    (tmp_path / "cut.npz").write_bytes(path.read_bytes()[:100])
    for name in ("single.npy", "cut.npz"):
        with pytest.raises(ValueError, match=name):
            datasets.read_arrays(tmp_path / name, ["x"])


def test_heart_disease_follows_the_rule(data):
    heart = datasets.read_heart(data)
    assert heart.features.shape == (740, 13)
    assert np.bincount(heart.hospital).tolist() == [303, 261, 46, 130]
    assert np.bincount(heart.hospital, weights=heart.labels).tolist() == [139, 98, 45, 101]
    # the first line of Cleveland: 63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0
    first = dict(zip(heart.names, heart.features[0], strict=True))
    told = {"age": 63, "sex": 1, "trestbps": 145, "chol": 233, "fbs": 1, "thalach": 150, "exang": 0, "oldpeak": 2.3}
    assert first == {**told, "cp=2": 0, "cp=3": 0, "cp=4": 0, "restecg=1": 0, "restecg=2": 1}
    assert heart.labels[0] == 0


def write_hospitals(folder, line):
    (folder / "heart_disease").mkdir()
    for hospital in datasets.HOSPITALS:
        (folder / "heart_disease" / f"processed.{hospital}.data").write_text(line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("63,1,1,145,233,1,2,150,0,2.3,3,0,6\n", "line 1 has 13 columns instead of 14"),
        ("63,1,1,145,233,1,2,150,0,high,3,0,6,0\n", "line 1: oldpeak is 'high'; it must be a number, or ?"),
        ("63,1,5,145,233,1,2,150,0,2.3,3,0,6,0\n", "line 1: cp is '5'; it must be one of 1, 2, 3, 4, or ?"),
    ],
)
def test_heart_disease_refuses_other_files(tmp_path, line, message):
    write_hospitals(tmp_path, line)
    with pytest.raises(ValueError, match=message):
        datasets.read_heart(tmp_path)


def test_heart_disease_leaves_out_rows_with_missing_entries(tmp_path):
    whole, missing = "63,1,4,145,233,1,1,150,0,2.3,?,?,?,2\n", "63,1,4,145,?,1,1,150,0,2.3,3,0,6,0\n"
    write_hospitals(tmp_path, whole + missing)
    heart = datasets.read_heart(tmp_path)
    assert heart.labels.tolist() == [1] * 4
    np.testing.assert_array_equal(heart.features[0], [63, 1, 0, 0, 1, 145, 233, 1, 1, 0, 150, 0, 2.3])


def test_activities_are_as_their_description_says(data):
    har = datasets.read_har(data)
    assert har.features.shape == (10411, 123) == (len(har.labels), len(har.names))
    sizes = np.bincount(har.person)[1:]
    assert (len(sizes), sizes.min(), sizes.max()) == (30, 284, 413)
    assert np.unique(har.labels).tolist() == list(range(6))


# --- splits ----------------------------------------------------------------------------------------------------------

LABELS = np.repeat([0, 1, 2], [300, 200, 100])


def shares(owners, clients):
    """The share of each class in each client's rows."""
    counts = np.array([np.bincount(LABELS[owners == client], minlength=3) for client in range(clients)])
    return counts / counts.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    "split",
    [
        lambda seed: datasets.iid(600, 12, seed=seed),
        lambda seed: datasets.dirichlet(LABELS, 12, 0.5, seed=seed),
        lambda seed: datasets.shards(LABELS, 12, 2, seed=seed),
    ],
)
def test_every_row_has_one_owner_and_equal_seeds_equal_splits(split):
    owners = split(3)
    assert owners.shape == (600,)
    assert set(owners.tolist()) == set(range(12))
    np.testing.assert_array_equal(owners, split(3))
    assert (owners != split(4)).any()


def test_splits_do_what_their_names_say():
    np.testing.assert_array_equal(np.bincount(datasets.iid(602, 12)), [51] * 2 + [50] * 10)
    whole = np.array([300, 200, 100]) / 600
    even, uneven = (np.abs(shares(datasets.dirichlet(LABELS, 6, a), 6) - whole).mean() for a in (1e4, 0.3))
    assert even < 0.01
    assert uneven > 0.15
    assert np.bincount(datasets.dirichlet(LABELS, 10, 0.5, least=20)).min() >= 20
    # 24 equal shards of 25 rows in order of label: 12 of class 0, 8 of class 1, 4 of class 2; two to each client
    owners = datasets.shards(LABELS, 12, 2)
    np.testing.assert_array_equal(np.bincount(owners), [50] * 12)
    assert set(np.unique(shares(owners, 12))) == {0, 0.5, 1}
    owners, values = datasets.by_key(np.array(["va", "ch", "va"]))
    assert (owners.tolist(), values) == ([1, 0, 1], ["ch", "va"])


def test_a_class_is_split_by_its_dirichlet_shares():
    """The mean share of a client is 1/n and its variance that of a Dirichlet: (1/n)(1 - 1/n)/(n alpha + 1)."""
    labels, n, alpha = np.zeros(1000, int), 4, 2.0
    drawn = (
        np.array([np.bincount(datasets.dirichlet(labels, n, alpha, seed=s), minlength=n) for s in range(400)]) / 1000
    )
    assert drawn.mean(0) == pytest.approx(np.full(n, 1 / n), abs=0.03)
    assert drawn.var(0).mean() == pytest.approx((1 / n) * (1 - 1 / n) / (n * alpha + 1), rel=0.15)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (lambda: datasets.iid(5, 6), "clients = 6 exceeds the 5 rows"),
        (lambda: datasets.dirichlet(LABELS, 5, 0.0), "alpha = 0.0 must be greater than 0"),
        (lambda: datasets.dirichlet(LABELS, 5, 1.0, least=200), "5 clients with 200 rows each need 1000 rows"),
        (lambda: datasets.dirichlet(LABELS[:4], 4, 0.01), "raise alpha, or lower least or clients"),
        (lambda: datasets.shards(LABELS, 400, 2), "400 clients with 2 shards each need 800 rows, there are 600"),
        (lambda: datasets.by_key([]), "give one for each row"),
    ],
)
def test_impossible_splits_are_refused(split, message):
    with pytest.raises(ValueError, match=message):
        split()


# --- measured constants ----------------------------------------------------------------------------------------------


def regressions():
    random = np.random.default_rng(0)
    features, owners = random.standard_normal((40, 4)), np.repeat([0, 1, 2], [5, 15, 20])
    labels = random.integers(0, 3, 40)
    for weighted in (False, True):
        yield softmax(features, labels, owners, regularization=0.03, weighted=weighted), (4, 3)
        for nonconvex in (False, True):
            two = logistic(features, labels % 2, owners, regularization=0.3, nonconvex=nonconvex, weighted=weighted)
            yield two, (4,)


@pytest.mark.x64
@pytest.mark.parametrize("number", range(6))
@pytest.mark.slow
def test_closed_forms_are_those_of_the_losses(number):
    """The value, gradient and Hessians that `solve` uses against automatic derivatives of the clients' losses."""
    population, shape = list(regressions())[number]
    x = jnp.asarray(np.random.default_rng(1).standard_normal(shape))
    all = lambda x: jax.vmap(lambda i: population.client(i)(x))(jnp.arange(3, dtype=jnp.uint32))
    values, slopes, hessians = jax.jit(lambda x: (all(x), jax.jacobian(all)(x), jax.hessian(all)(x)))(x)
    features, label = np.asarray(population.examples["features"]), np.asarray(population.examples["label"])
    rows = solution._Rows(features, label, row_weights(population))
    value, gradient = solution._value_and_gradient(population.loss, np.asarray(x), rows)
    assert value == pytest.approx(float(values.mean()), rel=1e-12)
    np.testing.assert_allclose(gradient, slopes.mean(0), atol=1e-14)
    size = int(np.prod(shape))
    own = np.asarray(hessians).reshape(3, size, size)
    whole = own.mean(0)
    np.testing.assert_allclose(solution._hessian(population.loss, np.asarray(x), rows), whole, atol=1e-13)
    norm = lambda matrix: np.linalg.norm(matrix, 2)
    found = solution._similarity_and_smoothness(population.loss, np.asarray(x), rows, np.asarray(population.offsets))
    assert found == pytest.approx((max(norm(matrix - whole) for matrix in own), norm(whole)), rel=1e-10)


@pytest.mark.x64
@pytest.mark.slow
def test_solve_ends_where_the_gradient_vanishes():
    for population, shape in regressions():
        found = solve(population, np.zeros(shape))
        weights = jnp.asarray(row_weights(population))
        slope = jax.grad(lambda x: jnp.vdot(weights, population.loss(x, population.examples)))(jnp.asarray(found.point))
        assert float(jnp.linalg.norm(slope)) < 1e-11
    with pytest.raises(ValueError, match="is not a regression whose Hessian is known"):
        solve(synthetic_logistic(0).of([np.ones((2, 1))], lambda x, rows: rows[:, 0]), np.zeros(1))


@pytest.mark.parametrize("size", ["1/n", "0.001"])
@pytest.mark.parametrize("name", ["a9a", "mushrooms"])
@pytest.mark.slow
def test_pooled_optima_are_the_reference_ones(name, size, a9a, mushrooms):
    """Optima and norms of their minimizers, computed elsewhere to a gradient of 1e-12."""
    told = {
        ("a9a", "1/n"): (0.323379582465, 6.222226),
        ("a9a", "0.001"): (0.333340752069, 3.988335),
        ("mushrooms", "1/n"): (0.014485866128, 12.334571),
        ("mushrooms", "0.001"): (0.050301979486, 7.347901),
    }
    rows = {"a9a": a9a, "mushrooms": mushrooms}[name]
    labels = (rows.labels == rows.labels.max()).astype(int)
    owners = datasets.dirichlet(labels, 10, 1.0)
    factor = 1 / len(labels) if size == "1/n" else 1e-3
    population = logistic(rows.features, labels, owners, regularization=factor, weighted=True)
    found = solve(population, np.zeros(rows.features.shape[1]))
    optimum, norm = told[name, size]
    assert found.value == pytest.approx(optimum, rel=1e-6)
    assert np.linalg.norm(found.point) == pytest.approx(norm, rel=1e-5)
    assert found.gradient_norm <= 1e-11


def test_heart_disease_is_predicted_as_well_as_elsewhere(data):
    """0.796 +- 0.021 was measured with scikit-learn: 66/34 within hospitals, 20 seeds, pooled and standardised."""
    heart = datasets.read_heart(data)
    scores = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        train = np.zeros(len(heart.labels), bool)
        for hospital in range(4):
            rows = random.permutation(np.flatnonzero(heart.hospital == hospital))
            train[rows[: round(0.66 * len(rows))]] = True
        scaled = (heart.features - heart.features[train].mean(0)) / heart.features[train].std(0)
        scaled = np.c_[scaled, np.ones(len(scaled))]
        pooled = logistic(scaled[train], heart.labels[train], np.zeros(train.sum()), regularization=1 / train.sum())
        guess = scaled[~train] @ solve(pooled, np.zeros(14)).point > 0
        scores.append(np.mean(guess == heart.labels[~train]))
    assert np.mean(scores) == pytest.approx(0.796, abs=0.01)  # other splits than those of the reference
    assert np.std(scores) == pytest.approx(0.021, abs=0.01)


def test_activities_are_recognised_as_well_as_elsewhere(data):
    """0.9556 on the nine unseen persons was measured with scikit-learn's softmax regression, C = 1."""
    har = datasets.read_har(data)
    unseen = np.isin(har.person, (2, 4, 9, 10, 12, 13, 18, 20, 24))
    scaled = (har.features - har.features[~unseen].mean(0)) / har.features[~unseen].std(0)
    scaled = np.c_[scaled, np.ones(len(scaled))]
    train = softmax(scaled[~unseen], har.labels[~unseen], np.zeros((~unseen).sum()), regularization=1 / (~unseen).sum())
    look = jax.jit(jax.value_and_grad(lambda x, rows: jnp.mean(train.loss(x.reshape(124, 6), rows))))
    rows = train.examples
    fit = scipy.optimize.minimize(
        lambda x: tuple(map(np.asarray, look(x, rows))),
        np.zeros(744),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 200},
    )
    accuracy = np.mean(np.argmax(scaled[unseen] @ fit.x.reshape(124, 6), axis=1) == har.labels[unseen])
    assert accuracy == pytest.approx(0.9556, abs=0.004)  # a dozen of 2,996 windows

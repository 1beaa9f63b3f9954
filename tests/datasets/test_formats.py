"""Federated data in the formats it comes in: what each reader takes, what it refuses, and with which words."""

import csv
import gzip
import json
import resource
import struct
import subprocess
import sys

import numpy as np
import pytest

from fedspam import datasets
from fedspam.datasets import FederatedData, tff


def refused(read, path, message):
    """The reader's refusal, which names the file."""
    with pytest.raises(ValueError, match=message) as found:
        read(path)
    assert str(path) in str(found.value)


# --- clients and their rows -----------------------------------------------------------------------------------------


def people(sizes=(3, 1, 4)) -> FederatedData:
    rows = np.arange(sum(sizes))
    return FederatedData.by({"x": rows[:, None] * 1.0, "label": rows % 2}, np.repeat(np.arange(len(sizes)), sizes))


def test_rows_keep_their_owner_whatever_order_they_come_in():
    random = np.random.default_rng(0)
    owners = random.integers(0, 5, 40)
    made = FederatedData.by({"x": np.arange(40)}, owners, ["a", "b", "c", "d", "e"])
    for number, name in enumerate("abcde"):
        np.testing.assert_array_equal(made[name]["x"], np.flatnonzero(owners == number))
    assert made.rows == 40
    assert [name for name, _ in made] == list("abcde")
    again = FederatedData.of(made)
    np.testing.assert_array_equal(again.examples["x"], made.examples["x"])
    joined = FederatedData.of([("a", {"x": [1]}), ("b", {"x": [2]}), ("a", {"x": [3]})])  # as LEAF's shards may
    assert (joined.clients, joined["a"]["x"].tolist(), joined.sizes.tolist()) == (("a", "b"), [1, 3], [2, 1])
    taken = made.take(["c", 0])
    assert taken.clients == ("c", "a")
    np.testing.assert_array_equal(taken["a"]["x"], made["a"]["x"])


def test_held_out_clients_and_examples_are_apart_and_complete():
    made = people((30, 1, 10, 5, 2))
    train, test = made.hold_out_examples(0.3, seed=3)
    assert test.sizes.tolist() == [9, 0, 3, 2, 1]  # a share of each, and one left at least
    assert sorted([*train.examples["x"].ravel(), *test.examples["x"].ravel()]) == list(range(48))
    assert set(test["0"]["x"].ravel()) <= set(range(30))
    last = made.hold_out_examples(0.3, seed=None)[1]
    assert last["2"]["x"].ravel().tolist() == [38, 39, 40]  # the last of rows 31 to 40
    seen, strangers = made.hold_out_clients(0.4, seed=1)
    assert (len(seen), len(strangers)) == (3, 2)
    assert {*seen.clients, *strangers.clients} == set(made.clients)
    assert made.hold_out_clients(0.4, seed=1)[1].clients == strangers.clients
    assert len(made.hold_out_clients(0.01)[1]) == 1


def test_features_are_scaled_by_the_training_rows_alone():
    random = np.random.default_rng(0)
    train, test = random.normal(3.0, 2.0, (50, 4)), random.normal(3.0, 2.0, (7, 4))
    train[:, 2] = test[:, 2] = 5.0  # a feature that never varies
    scale = datasets.Standardizer.of(train)
    scaled = scale(train)
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.std(0), [1, 1, 0, 1], atol=1e-12)
    np.testing.assert_allclose(scale(test), (test - train.mean(0)) / np.where(train.std(0) > 0, train.std(0), 1))
    assert (scale(test, intercept=True)[:, -1] == 1).all()
    windows = random.normal(1.0, 2.0, (20, 8, 3))  # per place and channel
    np.testing.assert_allclose(datasets.Standardizer.of(windows)(windows).std(0), np.ones((8, 3)))


def test_a_population_has_the_same_clients():
    made = people()
    population = made.population(lambda x, rows: (rows["x"][:, 0] - x) ** 2, weighted=True)
    losses = [float(population.client(np.uint32(i))(0.0)) for i in range(3)]
    rows = made.examples["x"][:, 0]
    assert np.mean(losses) == pytest.approx(np.mean(rows**2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FederatedData.of([]), "no clients"),
        (
            lambda: FederatedData.of([("a", {"x": [1]}), ("b", {"y": [1]})]),
            "'b' has the columns y, the first client has x",
        ),
        (lambda: FederatedData.of([("a", {"x": [1], "y": [1, 2]})]), r"'a' has columns of \[1, 2\] rows"),
        (lambda: FederatedData.of([("a", {"x": [[1]]}), ("b", {"x": [[1, 2]]})]), r"rows of 'x' have shape \(2,\)"),
        (lambda: FederatedData.by({"x": [1, 2]}, [0]), "'x' has 2 rows, there are 1 owners"),
        (lambda: FederatedData.by({"x": [1]}, [-1]), "from 0 on"),
        (lambda: people().hold_out_examples(1.0), "leaves nothing to train with"),
        (lambda: people().hold_out_clients(0.0), r"share = 0.0 must lie in \(0, 1\]"),
        (lambda: people((3,)).hold_out_clients(0.5), "hold out examples instead"),
    ],
)
def test_what_is_no_federated_data_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- LEAF -----------------------------------------------------------------------------------------------------------


def shard(users) -> str:
    return json.dumps(
        {"users": list(users), "num_samples": [len(part["y"]) for part in users.values()], "user_data": users}
    )


def test_leaf_shards_are_joined(tmp_path):
    first = {"ann": {"x": [[0.5, 1], [2, 3]], "y": [0, 1]}, "bob": {"x": [[4, 5]], "y": [2]}}
    (tmp_path / "all_data_0.json").write_text(shard(first))
    second = shard({"ann": {"x": [[6, 7]], "y": [3]}, "eve": {"x": [[8, 9]], "y": [4]}})
    (tmp_path / "all_data_1.json.gz").write_bytes(gzip.compress(second.encode()))
    made = datasets.read_leaf(tmp_path)
    assert made.clients == ("ann", "bob", "eve")
    assert made["ann"]["features"].tolist() == [[0.5, 1], [2, 3], [6, 7]]
    assert made["ann"]["label"].tolist() == [0, 1, 3]


@pytest.mark.parametrize("piece", [1, 7, 64])
def test_leaf_is_read_the_same_in_pieces_of_any_size(tmp_path, monkeypatch, piece):
    users = {f"u{i}": {"x": ["to be or ", "not to be"][: i + 1], "y": ["n", "\\"][: i + 1]} for i in range(2)}
    text = '{"hierarchies": ["HAMLET", {"a": 12}], "version": 12 , ' + shard(users)[1:]
    (tmp_path / "s.json").write_text(text)
    monkeypatch.setattr("fedspam.datasets.leaf.PIECE", piece)
    made = datasets.read_leaf(tmp_path / "s.json")
    assert made["u1"]["features"].tolist() == ["to be or ", "not to be"]
    assert made["u1"]["label"].tolist() == ["n", "\\"]
    # cut anywhere, it is refused with the file's name
    for end in range(0, len(text) - 1, 5):
        (tmp_path / "cut.json").write_text(text[:end])
        refused(datasets.read_leaf, tmp_path / "cut.json", "character")


ONE = {"a": {"x": [1], "y": [2]}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the end of the file where an object should be"),
        ("[1]", "'\\['"),
        ('{"users": []}', "there is no 'user_data'"),
        ('{"user_data": {"a": {"x": [1]}}}', "the user 'a' has no 'x' and 'y'"),
        ('{"user_data": {"a": {"x": [1, 2], "y": [1]}}}', "'a' has 2 x and 1 y; give one y for each x"),
        ('{"user_data": {"a": {"x": [[1], [1, 2]], "y": [1, 2]}}}', "make its rows equally long"),
        ('{"user_data": {"a": {"x": [NaN], "y": [1]}}}', "NaN is not a number of JSON"),
        ('{"user_data": {"a": {"x": [1e999], "y": [1]}}}', "not finite"),
        ('{"user_data": {"a": {"x": [1], "x": [1], "y": [1]}}}', "a name comes twice"),
        ('{"user_data": {"a": {"x": [1], "y": [1]}, "a": {"x": [1], "y": [1]}}}', "'a' comes twice in one shard"),
        (shard(ONE).replace('"users": ["a"]', '"users": ["b"]'), "name different users"),
        (shard(ONE).replace('"num_samples": [1]', '"num_samples": [3]'), "'a' has 1 examples and num_samples says 3"),
    ],
)
def test_what_is_no_leaf_is_refused_with_its_place(tmp_path, text, message):
    path = tmp_path / "shard.json"
    path.write_text(text)
    refused(datasets.read_leaf, path, message)


def test_leaf_refuses_damaged_files_and_empty_folders(tmp_path):
    path = tmp_path / "shard.json.gz"
    path.write_bytes(gzip.compress(shard(ONE).encode() * 100)[:-9])
    refused(datasets.read_leaf, path, "damaged|cut short|character")
    path.write_bytes(b'{"users')
    refused(datasets.read_leaf, path, "not compressed as its name says")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no shard of LEAF"):
        datasets.read_leaf(tmp_path / "empty")


def test_leafs_own_shard_holds_the_same_images_as_the_archive(data):
    femnist = datasets.read_femnist(data)
    for part, known in (("train", femnist.train), ("test", femnist.test)):
        read = datasets.read_leaf(data / "femnist" / "leaf_json" / part)
        common = [writer for writer in read.clients if writer in known.clients]
        assert len(common) >= 5
        for writer in common:
            ink = np.rint(255 * (1 - read[writer]["features"])).reshape(-1, 28, 28)
            np.testing.assert_array_equal(ink, known[writer]["features"])
            np.testing.assert_array_equal(read[writer]["label"], known[writer]["label"])


def test_femnist_is_as_its_description_says(data):
    femnist = datasets.read_femnist(data)
    assert [part.rows for part in femnist] == [14708, 1685, 2403]
    assert [len(part) for part in femnist] == [105, 105, 79]
    assert not set(femnist.train.clients) & set(femnist.unseen.clients)
    assert (femnist.train.sizes.min(), femnist.train.sizes.max(), np.median(femnist.train.sizes)) == (4, 165, 152)
    digits = [np.mean(part.examples["label"] < 10) for part in (femnist.train, femnist.unseen)]
    assert digits == pytest.approx([0.72, 0.32], abs=0.01)


# --- TensorFlow Federated -------------------------------------------------------------------------------------------

LAYOUTS = {
    "emnist": {"pixels": np.ones((2, 28, 28), np.float32), "label": np.array([3, 4])},
    "cifar100": {
        "image": np.zeros((2, 32, 32, 3), np.uint8),
        "label": np.array([3, 4]),
        "coarse_label": np.array([1, 2]),
    },
    "shakespeare": {"snippets": np.array([b"To be, or not", b"to be: \xe2\x80\x94"], object)},
    "stackoverflow": {
        "tokens": np.array([b"how to sort", b"a list"], object),
        "title": np.array([b"sort", b"sort"], object),
        "tags": np.array([b"python|list", b""], object),
        "type": np.array([b"question", b"answer"], object),
        "score": np.array([1, -2]),
        "creation_date": np.array([b"2010", b"2011"], "S4"),
    },
}


def write_tff(path, clients) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for client, columns in clients.items():
            for name, column in columns.items():
                kind = h5py.special_dtype(vlen=bytes) if column.dtype == object else None
                file.create_dataset(f"examples/{client}/{name}", data=column, dtype=kind)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tff_files_of_every_layout(tmp_path, layout):
    path = tmp_path / f"{layout}_train.h5"
    columns = LAYOUTS[layout]
    write_tff(path, {"f0": columns, "f1": {name: column[:1] for name, column in columns.items()}})
    made = datasets.read_tff(path)
    assert (made.clients, made.sizes.tolist()) == (("f0", "f1"), [2, 1])
    for name, column in columns.items():
        read = made["f0"]["features" if name in ("pixels", "image") else name]
        text = column.dtype.kind in "OS"
        np.testing.assert_array_equal(read, [item.decode() for item in column] if text else column)
    some = datasets.read_tff(path, features=[next(iter(columns))], clients=["f1"])
    assert (some.clients, len(some.examples), some.rows) == (("f1",), 1, 1)
    assert [client for client, _ in datasets.stream_tff(path, clients=1)] == ["f0"]


def test_what_is_no_tff_file_is_refused(tmp_path):
    import h5py

    path = tmp_path / "f.h5"
    write_tff(path, {"f0": {"x": np.array([1.0, np.nan])}})
    refused(datasets.read_tff, path, "examples/f0/x cannot be read .*NaN")
    refused(lambda p: datasets.read_tff(p, features=["y"]), path, "has no 'y', it has x")
    refused(lambda p: datasets.read_tff(p, clients=["g"]), path, "has no client 'g'; its first is 'f0'")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(datasets.read_tff, path, "not an HDF5 file, or cut short|cannot be read|damaged")
    with h5py.File(path, "w") as file:
        file.create_dataset("other", data=[1])
    refused(datasets.read_tff, path, "has no group 'examples'")
    with h5py.File(path, "w") as file:  # a link to another file must not be followed
        file.create_group("examples/f0")["x"] = h5py.ExternalLink("elsewhere.h5", "/x")
    refused(datasets.read_tff, path, "not an array stored in this file|has no 'x'")
    with h5py.File(path, "w") as file:  # what is not written takes no place in the file
        file.create_dataset("examples/f0/x", (3 * 2**28,), "f8", chunks=True)
    refused(datasets.read_tff, path, r"shape \(805306368,\): .* more bytes are read of a file of this size")
    with pytest.raises(FileNotFoundError, match="is not a file"):
        datasets.read_tff(tmp_path / "none.h5")


@pytest.mark.parametrize(
    "fault",
    ["os.abort()", "[bytes(2**28) for _ in range(8)]", "while True: pass", "print('x' * 100)"],
    ids=["crash", "memory", "endless", "nonsense"],
)
def test_a_library_that_a_file_leads_astray_does_no_harm(fault, tmp_path, monkeypatch):
    path = tmp_path / "f.h5"
    write_tff(path, {"f0": {"x": np.zeros(2)}})
    script = tff.SCRIPT.read_text().replace(
        "def group(", f"def group(*_):\n    import os\n    {fault}\n\n\ndef unused("
    )
    (tmp_path / "script.py").write_text(script.replace("BRIEF = 10**7, 2", "BRIEF = 10**7, 0"))
    monkeypatch.setattr(tff, "SCRIPT", tmp_path / "script.py")
    refused(datasets.read_tff, path, "crash, hang, or take more time or memory|is damaged")


def test_limits_of_the_user_stay(tmp_path, monkeypatch):
    """As `ulimit -v` and `ulimit -t` set them: only an administrator may raise them, and every file was refused."""
    from fedspam.datasets import _hdf5

    path, made = tmp_path / "f.h5", []
    write_tff(path, {"f0": {"x": np.zeros(2)}})

    code = (
        "import resource, runpy, sys\n"
        "for kind, value in ((resource.RLIMIT_AS, 2**33), (resource.RLIMIT_CPU, 600)):\n"
        "    resource.setrlimit(kind, (value, value))\n"
        "del sys.argv[0]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    asked = json.dumps({"path": str(path), "features": None, "clients": None, "most": 2**27})
    command = [sys.executable, "-P", "-c", code, str(tff.SCRIPT), asked]
    said = subprocess.run(command, capture_output=True, check=True).stdout
    assert said.endswith(b'{"end": true}')
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (7, 7))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: made.append(pair))
    _hdf5.limit(resource.RLIMIT_CPU, 5)
    _hdf5.limit(resource.RLIMIT_CPU, 9)
    assert made == [(5, 7), (7, 7)]


def test_a_small_file_has_some_seconds_for_all_of_its_clients(tmp_path, monkeypatch):
    """They were for each array, so that a file of 6 MB with 15,000 clients took 9 s."""
    from fedspam.datasets import _hdf5

    path, allowed = tmp_path / "f.h5", []
    write_tff(path, {f"f{number}": {"x": np.zeros(2)} for number in range(3)})
    monkeypatch.setattr(_hdf5, "allow", allowed.append)
    assert len(list(_hdf5.clients(str(path), None, None, 2**20))) == 3
    assert allowed == [_hdf5.BRIEF]
    monkeypatch.setattr(_hdf5, "SMALL", 0)
    assert len(list(_hdf5.clients(str(path), None, 2, 2**20))) == 2
    assert allowed[1:] == [_hdf5.SECONDS] * 3


def test_a_missing_package_names_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "f.h5").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ImportError, match=r"needs h5py.*pip install h5py"):
        datasets.read_tff(tmp_path / "f.h5")


# --- IDX ------------------------------------------------------------------------------------------------------------


def idx(code: int, shape, body: bytes) -> bytes:
    return bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


@pytest.mark.parametrize(
    ("code", "kind"), [(8, "u1"), (9, "i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")]
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_of_every_kind(tmp_path, code, kind, ending):
    array = np.arange(6).reshape(1, 2, 3).astype(kind)
    path = tmp_path / f"images-idx3-ubyte{ending}"
    packed = idx(code, array.shape, array.tobytes())
    path.write_bytes(gzip.compress(packed) if ending else packed)
    read = datasets.read_idx(path)
    np.testing.assert_array_equal(read, array)
    assert read.dtype.isnative


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "byte 0: nothing is not an IDX magic number"),
        (b"\x89PNG....", "byte 0: 89504e47 is not an IDX magic number"),
        (
            idx(8, (2, 2), b"abc"),
            r"byte 15: shape \(2, 2\) needs 4 bytes after the header, there are 3; fetch it again",
        ),
        (idx(8, (2,), b"abc"), "byte 10: .* there are more"),
        (idx(8, (2, 2), b"")[:9], "byte 9: it ends within its header"),
        (idx(8, (2**31, 2**10), b""), "at most 4294967296 are read"),
    ],
)
def test_what_is_no_idx_is_refused_with_its_place(tmp_path, text, message):
    path = tmp_path / "file"
    path.write_bytes(text)
    refused(datasets.read_idx, path, message)


def test_images_and_labels_must_belong_together(tmp_path):
    (tmp_path / "i").write_bytes(idx(8, (2, 1, 1), b"ab"))
    (tmp_path / "l").write_bytes(idx(8, (3,), b"\0\1\2"))
    refused(lambda p: datasets.read_labeled(p, tmp_path / "l"), tmp_path / "i", "of one set")
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(idx(8, (1000,), bytes(range(250)) * 4))[:-12])
    refused(datasets.read_idx, cut, "damaged")


def test_fashion_mnist_is_as_its_description_says(data):
    folder = data / "fashion_mnist"
    read = datasets.read_labeled(folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz")
    assert read["features"].shape == (10000, 28, 28)
    assert np.bincount(read["label"]).tolist() == [1000] * 10


# --- tables ---------------------------------------------------------------------------------------------------------


def test_csv_by_client(tmp_path):
    path = tmp_path / "rows.csv.gz"
    text = 'who,age,"blood, mean",sort\nb,63,1e1,ill\na,50,2,well\n\nb,41,3,well\n'
    path.write_bytes(gzip.compress(text.encode()))
    assert datasets.open_table(path).names == ["who", "age", "blood, mean", "sort"]
    made = datasets.read_table(path, client="who", label="sort")
    assert made.clients == ("a", "b")
    assert made["b"]["blood, mean"].tolist() == [10, 3]
    assert made["b"]["label"].tolist() == ["ill", "well"]
    matrix = datasets.Encoder.of_table(made, standardize=False).examples(made)
    assert matrix["b"]["features"].tolist() == [[63, 10], [41, 3]]
    assert matrix["b"]["label"].tolist() == [0, 1]
    some = datasets.read_table(path, client="who", label="sort", features=["age"])
    assert some.examples.keys() == {"age", "label"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; give a header"),
        ("c,y\n", "has no rows"),
        ("c,x\n1,2\n", "has no column 'y', it has c, x"),
        ("c,y,y\n", "more than one column 'y'"),
        ("c,y,x\n1,2,3\n1,2\n", "line 3 has 2 cells, the header 3"),
        ("c,y,x\n1,2,3\n1,2,4\n1,2,b\n", "line 4: x is 'b'; it must be a finite number"),
        ("c,y,x\n1,2,3\n1,nan,4\n", r"line 3: y is 'nan'; a label must not be missing"),
        ("c,y,x\n1, ,3\n", r"line 2: y is ''; a label must not be missing"),
        ("c,y,x\n1,2,inf\n", "line 2: x is 'inf'"),
        ('c,y,x\n1,2,"' + "3" * (csv.field_size_limit() + 1), "line 2 is not CSV"),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    refused(lambda p: datasets.read_table(p, client="c", label="y"), path, message)


class Dataset:
    """What a dataset of Hugging Face looks like to a reader: column names, a length, and slices as dicts of lists."""

    def __init__(self, columns):
        self.columns = columns
        self.column_names = list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows):
        assert isinstance(rows, slice)
        return {name: column[rows] for name, column in self.columns.items()}


class Stream:
    """A streamed one: column names, and rows one by one."""

    def __init__(self, dataset):
        self.dataset, self.column_names = dataset, dataset.column_names

    def __iter__(self):
        for i in range(len(self.dataset)):
            yield {name: column[i] for name, column in self.dataset.columns.items()}


class Image:
    """An image that turns into an array when asked, as those of Pillow do."""

    def __init__(self, value):
        self.value = value

    def __array__(self, dtype=None, copy=None):
        return np.full((2, 2), self.value, dtype or np.uint8)


def handwriting(count=7):
    return Dataset(
        {"image": [Image(i) for i in range(count)], "writer_id": [f"w{i % 2}" for i in range(count)],
         "character": list(range(count)), "note": [None] * count}
    )  # fmt: skip


@pytest.mark.parametrize("look", [lambda dataset: dataset, Stream])
def test_any_dataset_with_a_client_column(monkeypatch, look):
    monkeypatch.setattr("fedspam.datasets.hugging_face.ROWS", 3)  # several pieces
    names = {"image": "features", "character": "label"}
    made = datasets.from_dataset(look(handwriting()), "writer_id", columns=["image", "character"], names=names)
    assert made.clients == ("w0", "w1")
    assert made["w1"]["label"].tolist() == [1, 3, 5]
    np.testing.assert_array_equal(made["w1"]["features"][2], np.full((2, 2), 5))


def test_datasets_without_the_columns_are_refused():
    with pytest.raises(ValueError, match="no column 'speaker', it has image, writer_id"):
        datasets.from_dataset(handwriting(), "speaker")
    with pytest.raises(ValueError, match="'note' holds objects or missing values; leave it out"):
        datasets.from_dataset(handwriting(), "writer_id")
    ragged = Dataset({"x": [[1], [1, 2]], "who": [0, 0]})
    with pytest.raises(ValueError, match="rows of 'x' differ in shape"):
        datasets.from_dataset(ragged, "who")
    with pytest.raises(ValueError, match="has no rows"):
        datasets.from_dataset(handwriting(0), "writer_id")


def test_partitioners_of_others():
    class Partitioner:
        """What flwr-datasets' partitioners offer."""

        num_partitions = 3

        def load_partition(self, partition_id):
            return Dataset({"x": list(range(partition_id + 1)), "label": [partition_id] * (partition_id + 1)})

    made = datasets.from_partitions(Partitioner(), columns=["x"])
    assert (made.clients, made.sizes.tolist(), made["2"]["x"].tolist()) == (("0", "1", "2"), [1, 2, 3], [0, 1, 2])


def test_flowers_own_partitioners():
    partitioners = pytest.importorskip("flwr_datasets.partitioner", reason="flwr-datasets is not installed")
    table = pytest.importorskip("datasets").Dataset.from_dict(
        {"x": list(range(60)), "label": [i % 3 for i in range(60)]}
    )
    for made, sizes in (
        (partitioners.IidPartitioner(num_partitions=4), [15] * 4),
        (partitioners.NaturalIdPartitioner(partition_by="label"), [20] * 3),
    ):
        made.dataset = table
        assert datasets.from_partitions(made).sizes.tolist() == sizes
    assert datasets.from_dataset(table, "label").sizes.tolist() == [20] * 3


# --- text -----------------------------------------------------------------------------------------------------------


def test_text_becomes_numbers_and_back():
    assert len(datasets.ALPHABET) == 80
    codes = datasets.encode(datasets.ALPHABET)
    assert codes.tolist() == list(range(80))
    assert datasets.decode(codes) == datasets.ALPHABET
    assert datasets.encode("a$\N{EM DASH}").tolist() == [53, 80, 80]
    with pytest.raises(ValueError, match="give texts of one length"):
        datasets.encode(["ab", "a"])
    rows = datasets.sequences(datasets.encode("to be or not to be"), 5)
    kept = rows["label"] >= 0
    assert datasets.decode(rows["features"][kept]) == "to be or not to b"
    assert datasets.decode(rows["label"][kept]) == "o be or not to be"
    with pytest.raises(ValueError, match="no next character to predict"):
        datasets.sequences(datasets.encode("a"), 5)


def test_shakespeare_is_as_its_description_says(data, tmp_path):
    roles = datasets.read_roles(data)
    assert len(roles) == 1128
    # 4,239,214 characters in 30,742 speeches, joined by newlines within a role
    assert sum(map(len, roles.values())) == 4239214 + 30742 - 1128
    text = roles["hamlet/HAMLET"]
    cut = int(0.8 * len(text))
    read = datasets.read_shakespeare(data, least=10)
    for part, expected in zip(read, (text[1:cut], text[cut + 1 :]), strict=True):
        label = part["hamlet/HAMLET"]["label"]
        assert datasets.decode(label[label >= 0]) == expected
    # one prediction for every character of the test but each role's first
    assert (read.test.examples["label"] >= 0).sum() == 853096
    (tmp_path / "shakespeare").mkdir()
    path = tmp_path / "shakespeare" / "shakespeare_by_role.json"
    path.write_text('{"clients": {"a": ["x", 3]}}')
    with pytest.raises(ValueError, match="no object 'clients' of roles and lists of speeches"):
        datasets.read_roles(tmp_path)


# --- what needs no file ---------------------------------------------------------------------------------------------


def test_synthetic_clients_differ_as_asked():
    """The spread of the features' means over clients is that of B_k and v_k: beta^2 + 1 for each coordinate."""
    for beta in (0.0, 3.0):
        made = datasets.synthetic(1.0, beta, clients=400, dimension=8, classes=3, seed=2)
        means = np.array([rows["features"].mean(0) for _, rows in made])
        assert np.var(means, axis=0).mean() == pytest.approx(beta**2 + 1, rel=0.15)
        # within a client: variance j^-1.2
        within = np.mean([rows["features"].var(0) for _, rows in made], axis=0)
        assert within == pytest.approx(np.arange(1, 9) ** -1.2, rel=0.1)
    assert made.sizes.min() >= 50
    np.testing.assert_array_equal(
        datasets.synthetic(clients=3, seed=5).sizes, datasets.synthetic(clients=3, seed=5).sizes
    )
    same = datasets.synthetic(1.0, 1.0, clients=3, dimension=4, classes=3, iid=True)
    features = np.concatenate([rows["features"] for _, rows in same])
    assert np.abs(features.mean(0)).max() < 0.3


def test_endless_clients_are_those_of_their_ids():
    import jax
    import jax.numpy as jnp

    from fedspam.problems import SoftmaxLoss

    made = datasets.endless(SoftmaxLoss(0.0), 0.0, 2.0, rows=30, dimension=5, classes=3, seed=1)
    of = jax.jit(jax.vmap(lambda id: made.client(id).data))
    clients = of(jnp.arange(500, dtype=jnp.uint32))
    again = of(jnp.full(500, 17, jnp.uint32))
    np.testing.assert_array_equal(again["features"][3], clients["features"][17])
    assert (clients["features"][16] != clients["features"][17]).all()
    middles = np.asarray(clients["features"]).mean(1)
    assert middles.var(0).mean() == pytest.approx(2.0**2 + 1, rel=0.2)
    assert set(np.unique(clients["label"])) == {0, 1, 2}


def test_digits_come_along():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    digits = datasets.read_digits()
    assert digits["features"].shape == (1797, 64)
    assert (digits["features"].min(), digits["features"].max()) == (0, 1)
    assert np.bincount(digits["label"]).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


# --- larger than memory ---------------------------------------------------------------------------------------------


def test_mapped_data_is_what_was_written(tmp_path):
    random = np.random.default_rng(0)
    parts = [(f"c{i}", {"x": random.standard_normal((i + 1, 3)), "y": np.arange(i + 1)}) for i in range(50)]
    made = datasets.write_mapped(iter(parts), tmp_path / "data")
    assert all(isinstance(column, np.memmap) for column in made.examples.values())
    for client, rows in parts:
        np.testing.assert_array_equal(made[client]["x"], rows["x"])
    again = datasets.open_mapped(tmp_path / "data")
    np.testing.assert_array_equal(again.sizes, made.sizes)
    with pytest.raises(FileExistsError, match="not empty"):
        datasets.write_mapped(parts, tmp_path / "data")


def test_mapped_data_is_finite_and_as_written(tmp_path):
    with pytest.raises(ValueError, match="client 'b': 'x' holds NaN or infinite"):
        datasets.write_mapped([("a", {"x": np.zeros(2)}), ("b", {"x": np.array([np.nan])})], tmp_path / "nan")
    datasets.write_mapped([("a", {"x": np.zeros(2)})], tmp_path / "old")
    index = tmp_path / "old" / "clients.json"
    right = index.read_text()
    for wrong in ('["a", "a"]', '[""]'):
        index.write_text(right.replace('["a"]', wrong))
        with pytest.raises(ValueError, match=r"clients.json is damaged.*write the folder again"):
            datasets.open_mapped(tmp_path / "old")
    index.write_text(right)
    column = tmp_path / "old" / "x.npy"
    column.write_bytes(column.read_bytes().replace(b"(2,), } ", b"(2L,), }"))  # as Python 2 wrote it
    with pytest.raises(ValueError, match=r"damaged.*write the folder again"):
        datasets.open_mapped(tmp_path / "old")
    column.unlink()
    with pytest.raises(FileNotFoundError, match="names 'x'; write the folder again"):
        datasets.open_mapped(tmp_path / "old")


def test_mapped_data_that_is_not_whole_is_refused(tmp_path):
    parts = [("a", {"x": np.ones((5, 2))}), ("b", {"x": np.ones((3, 2), np.float32)})]
    with pytest.raises(ValueError, match="'b': 'x' holds float32, the first client's float64"):
        datasets.write_mapped(parts, tmp_path / "kinds")
    with pytest.raises(FileNotFoundError, match="not completely"):
        datasets.open_mapped(tmp_path / "kinds")
    with pytest.raises(ValueError, match="'a' comes twice"):
        datasets.write_mapped([parts[0], parts[0]], tmp_path / "twice")
    with pytest.raises(ValueError, match="cannot name a file"):
        datasets.write_mapped([("a", {"../x": np.ones(2)})], tmp_path / "names")
    datasets.write_mapped(parts[:1], tmp_path / "data")
    column, index = tmp_path / "data" / "x.npy", tmp_path / "data" / "clients.json"
    whole = column.read_bytes()
    column.write_bytes(whole[:-8])
    refused(lambda _: datasets.open_mapped(tmp_path / "data"), column, "damaged or cut short")
    column.write_bytes(whole)
    index.write_text(index.read_text().replace("[5]", "[4]"))
    refused(lambda _: datasets.open_mapped(tmp_path / "data"), column, "says 4 rows")
    index.write_text("{")
    refused(lambda _: datasets.open_mapped(tmp_path / "data"), index, "damaged")

"""Damage for all readers at once: each input is read as it stands, or refused with file, rule and remedy."""

import bz2
import gzip
import json
import lzma
import os
import random
import re
import signal
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings, strategies as st

from fedspam import datasets
from fedspam._internal import reading
from fedspam._internal.files import RecordError
from fedspam.datasets import libsvm
from readers import IDX, IMAGES, LEAF, LEAF_B, READERS, ROLES, long_header, npy, npz

every_reader = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(not reader.is_possible, reason=f"{reader.needs} is not installed"))
        for name, reader in READERS.items()
    ],
)


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fails after so many seconds of a processor, or ten minutes: other work on the machine does not count."""

    def late(number, frame):
        pytest.fail(f"it took more than {seconds} s")  # an error that no reader takes for damage

    before = [(kind, signal.signal(kind, late)) for kind in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(600)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for kind, handler in before:
            signal.signal(kind, handler)


def is_answered(name: str, folder: Path) -> bool:
    """Whether the files were read; a refusal has to be clear, and what is read has to be sound."""
    try:
        with within(20), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            read = READERS[name].read(folder)
    except READERS[name].refusals as error:
        assert_clear(str(error), folder)
        return False
    for warning in warned:
        assert_clear(str(warning.message), folder)
    if not READERS[name].is_data:
        return not warned
    for array in arrays_of(read):
        if name.startswith("table"):  # its cells may be missing, and its texts are of Python
            is_text = array.dtype == object
            assert all(text.encode() is not None for text in array) if is_text else not np.isinf(array).any()
            continue
        assert array.dtype.kind in "biufU", array.dtype
        # columns of write_mapped may be larger than memory: they are checked when written, not when opened
        assert array.dtype.kind != "f" or name == "mapped" or np.isfinite(array).all()
        assert array.dtype.kind != "U" or all(text.encode() is not None for text in array.ravel().tolist())
    return True


def assert_clear(said: str, folder: Path) -> None:
    """One line that names the file with its folder, says what is wrong with it, and never advises to unpickle."""
    assert str(folder) in said, said
    assert "\n" not in said.replace(":\n  ", " ").replace("\n  ", " "), said  # a configuration tells all its faults
    assert len(said) < 1200, said[:200]
    assert re.search("[;:] ", said), said
    assert "pickle" not in said, said


def arrays_of(read) -> Iterator[np.ndarray]:
    if isinstance(read, np.ndarray):
        yield read
    elif isinstance(read, datasets.FederatedData):
        assert len(set(read.clients)) == len(read.clients)
        assert all(name.strip() and name.encode() for name in read.clients)
        assert all(len(column) == read.sizes.sum() for column in read.examples.values())
        yield from read.examples.values()
    elif isinstance(read, dict | tuple | list):
        for part in read.values() if isinstance(read, dict) else read:
            yield from arrays_of(part)
    else:
        assert isinstance(read, str), type(read)


def mutate(data: bytes, random: random.Random) -> bytes:
    """One to four flips, cuts, insertions, repetitions and false lengths."""
    made = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(made) + 1)
        match random.randrange(6):
            case 0 if made:
                made[at % len(made)] ^= 1 << random.randrange(8)
            case 1 if made:
                made[at % len(made)] = random.randrange(256)
            case 2:
                del made[at:]
            case 3:
                made[at:at] = random.choice(
                    [b"_", b",", b'"', b"\n", b"nan", "\u0663".encode(), b"\0", b"[{", b"-", b"1e9"]
                )
            case 4:
                made[at:at] = made[at : at + random.randint(1, 40)]
            case _:
                made[at : at + 8] = random.choice([2**31, 2**32 - 1, 2**40, 2**63]).to_bytes(
                    8, random.choice(["big", "little"])
                )
    return bytes(made)


def try_mutations(name: str, folder: Path, count: int, seed: int) -> None:
    chance, good = random.Random(seed), READERS[name].files()
    READERS[name].write(folder)
    assert is_answered(name, folder)
    for _ in range(int(count * READERS[name].share)):
        damaged = chance.choice(sorted(good))
        (folder / damaged).write_bytes(mutate(good[damaged], chance))
        is_answered(name, folder)
        (folder / damaged).write_bytes(good[damaged])


@every_reader
def test_mutations_are_read_or_refused_clearly(name, tmp_path):
    try_mutations(name, tmp_path, 120, seed=1)


@pytest.mark.thorough
@every_reader
def test_many_mutations_are_read_or_refused_clearly(name, tmp_path):
    try_mutations(name, tmp_path, 5_000, seed=2)


@every_reader
def test_generated_bytes_are_read_or_refused_clearly(name, tmp_path):
    """Hypothesis makes the bytes up, alone or behind the beginning of a good file."""
    good = READERS[name].files()
    READERS[name].write(tmp_path)

    examples = int(40 * READERS[name].share)

    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
    )
    @given(st.sampled_from(sorted(good)), st.floats(0, 1), st.one_of(st.binary(max_size=80), st.text(max_size=40)))
    def run(damaged, share, more):
        kept = good[damaged][: int(share * len(good[damaged]))]
        (tmp_path / damaged).write_bytes(kept + (more.encode() if isinstance(more, str) else more))
        is_answered(name, tmp_path)
        (tmp_path / damaged).write_bytes(good[damaged])

    run()


@every_reader
def test_cut_files_and_empty_files_are_refused(name, tmp_path):
    good = READERS[name].files()
    for damaged, content in good.items():
        for end in (0, 1, len(content) // 2):
            READERS[name].write(tmp_path, **{damaged: content[:end]})
            text = name == "libsvm" or damaged.endswith((".csv", ".data", ".toml"))  # half of a text may be a text
            least = 2 if READERS[name].is_data else 1  # bytes; one letter is a table without rows
            may_be = (text and end >= least) or damaged in READERS[name].optional
            assert not is_answered(name, tmp_path) or may_be, (damaged, end)
        (tmp_path / damaged).write_bytes(content)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**42)


# what stands in place of a file and is no such file
NO_FILES = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "huge": sparse,
}


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
@every_reader
def test_what_is_no_file_is_refused_without_waiting(name, make, tmp_path):
    READERS[name].write(tmp_path)
    for damaged, content in READERS[name].files().items():
        (tmp_path / damaged).unlink()
        make(tmp_path / damaged)
        assert not is_answered(name, tmp_path) or damaged in READERS[name].optional, damaged
        (tmp_path / damaged).rmdir() if make is os.mkdir else (tmp_path / damaged).unlink()
        (tmp_path / damaged).write_bytes(content)


NESTED = b"[" * 10**5 + b"]" * 10**5
# files of other kinds; a text may be a text of another kind
OTHERS = {
    "zip": npz(x=np.eye(2)),
    "gzip": gzip.compress(b"nothing"),
    "npy": npy(np.eye(2)),
    "long_header": long_header(),
    "picture": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "null": b"null",
    "nested": NESTED,
    "nested_object": b'{"a": ' + NESTED + b"}",
    "nan": b'{"a": NaN, "plan": [1]}',
    "plan": b'{"plan": [1], "problem": 7, "sha256": null}',
    "latin": b"client,seconds\n\xe4,1\n",
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS)
@every_reader
def test_files_of_other_kinds_are_refused(name, content, tmp_path):
    READERS[name].write(tmp_path)
    for damaged, good in READERS[name].files().items():
        (tmp_path / damaged).write_bytes(content)
        taken = is_answered(name, tmp_path)
        text = damaged.endswith(".csv") and not READERS[name].is_data  # one word is a table without rows
        assert not taken or content.startswith(b"{") or text or damaged in READERS[name].optional, damaged
        (tmp_path / damaged).write_bytes(good)


@every_reader
def test_a_folder_may_have_any_name(name, tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    folder.mkdir()
    READERS[name].write(folder)
    assert is_answered(name, folder)
    first = next(file for file in READERS[name].files() if file not in READERS[name].optional)
    (folder / first).write_bytes(b"")
    assert not is_answered(name, folder)


# what stands in a hole of a file and must not be taken for a number, a label or a name
NUMBERS = ("1_000", "\u0663", "nan", "inf", "-Infinity", "1e999", "9" * 5000, "0x10", "1 0", "1,0,", "", "\0", "ten")
WRONG = {
    "number": NUMBERS,
    "label_number": NUMBERS,
    "code": (*NUMBERS, "7", "1.5"),
    "label": ("0.9", "nan", "1e10", "", "2147483648", "1" * 5000, "\0", "7" * 20),
    "cell": ("1_000", "\u0663", "inf", "-Infinity", "1e999", "9" * 5000),  # text is a category
    "class": ("", "?", "nan", "1.0", "01", "\u0661", "0_1", "1" * 1001, "\0"),
    "name": ("", " ", "n" * 1001, "b\0"),
    "json_number": (*NUMBERS[:-1], "null", '"6"', "[6]", "true", "{}", '"\\ud800"'),
    "json_label": ('"1"', "null", "[1]", "true", "9" * 5000, "1e999", '"' + "x" * 10**6 + '"'),
    "json_name": ("a", "", " ", "\\u0000", "b\\ud800"),
    "id": (*NUMBERS, "-1", "0.5", "7", "a", "0_2", "\u0662", "+2"),
    "seconds": (*NUMBERS, "-1"),
}


@pytest.mark.parametrize(("name", "hole"), [(name, hole) for name in READERS for hole in READERS[name].holes])
def test_what_is_no_number_label_or_name_is_refused(name, hole, tmp_path):
    file = next(iter(READERS[name].files()))
    for wrong in WRONG[hole]:
        text = READERS[name].holes[hole].replace("%s", wrong)
        READERS[name].write(tmp_path, **{file: text.encode("utf-8", "surrogatepass")})
        assert not is_answered(name, tmp_path), wrong[:20]


def refused(name: str, folder: Path, message: str, **files: bytes | str) -> None:
    changed = {file: content.encode() if isinstance(content, str) else content for file, content in files.items()}
    READERS[name].write(folder, **changed)
    with pytest.raises(ValueError, match=message) as said:
        READERS[name].read(folder)
    assert str(folder) in str(said.value)


# --- what used to be taken in silence ---


LONG = '"' + ', "a"' * 200 + '], "y": [' + "1," * 200 + "1]}"


def users(data: str) -> str:
    return f'{{"user_data": {{"a": {data}}}}}'


@pytest.mark.parametrize(
    ("name", "message", "content"),
    [
        ("table", "'1' and '1.0', which are one number; choose one", "who,x,y\na,1,1\nb,1,1.0\nb,2,2\n"),
        ("table", "'3' and '\u0663', which are one number", "who,x,y\na,1,3\nb,1,\u0663\n"),
        ("table", "line 2: x is '1_000'; it must be a finite number", "who,x,y\na,1_000,1\nb,1_001,0\n"),
        ("table", "line 2: who is 'b.x00'; a client must have.*no NUL", "who,x,y\nb\0,1,1\n"),
        ("table", "line 2: who is ''; a client must not be missing", "who,x,y\n,1,1\n"),
        ("table", "line 2: who is 'nnn.*at most 1000 characters", "who,x,y\n" + "n" * 130_000 + ",1,1\n"),
        ("table", "100001 cells, at most 100000 are read; leave columns out", ",".join(map(str, range(100_001)))),
        ("table", "a line of 16777216 characters or more", "a" * 2**24),
        ("leaf", "more follows the end", LEAF % (LEAF_B % ("b", "1", "1")) + "{}"),
        ("leaf", "'user_data' comes twice", (LEAF % (LEAF_B % ("b", "1", "1")))[:-1] + ', "user_data": {}}'),
        ("leaf", "name different users", (LEAF % (LEAF_B % ("b", "1", "1"))).replace('["a", "b"]', '["a", "b", "b"]')),
        ("leaf", "num_samples is not a list of as many", (LEAF % (LEAF_B % ("b", "1", "1"))).replace("[2, 1]", "[2]")),
        ("leaf", "num_samples is not a list of as many", (LEAF % (LEAF_B % ("b", "1", "1"))).replace("[2, 1]", "7")),
        ("leaf", "must be a list of numbers, or of texts", '{"user_data": {"a": {"x": [1, "a"], "y": [1, 2]}}}'),
        ("leaf", "must be a list of numbers, or of texts", '{"user_data": {"a": {"x": [1, true], "y": [1, 2]}}}'),
        ("leaf", "'label'.*booleans or text for all", users('{"x": [1], "y": [1]}, "b": {"x": [1], "y": ["c"]}')),
        ("leaf", "cannot be read .*digits.*; correct it", users('{"x": [' + "9" * 5000 + '], "y": [1]}')),
        ("leaf", "visible character", '{"user_data": {"": {"x": [1], "y": [1]}}}'),
        ("leaf", "y of the user 'a' holds half of a character; write it", users(r'{"x": [1], "y": ["\ud800"]}')),
        ("leaf", "y of the user 'a' has 1 empty rows; fill or drop", users('{"x": [1], "y": [[]]}')),
        ("leaf", "longer than 1000 characters; shorten", '{"user_data": {"' + "n" * 1001 + '": {"x": [1], "y": [1]}}}'),
        ("leaf", "cut it into pieces", users('{"x": ["' + "x" * 10**6 + LONG)),
        ("roles", "a name twice", ROLES % "a"),
        ("roles", "nested deeper", '{"clients": {}, "more": ' + "[" * 10**5 + "]" * 10**5 + "}"),
        ("idx", "NaN or infinite", IDX[:12] + np.array([1, np.nan], ">f4").tobytes()),
        ("idx", "NaN or infinite", IDX[:12] + np.array([1, np.inf], ">f4").tobytes()),
        ("heart", "num is '0.5'; it must be one of 0, 1, 2, 3, 4", "28,1,2,130,132,0,2,185,0,0,?,?,?,0.5\n"),
        ("heart", "has 2097152 bytes, at most 1048576 are read", "1" * 2**21),
        ("libsvm", "index 99999999999; rows are kept dense, at most 1000000", "1 99999999999:1\n"),
        ("libsvm", r"index 999.*\(5000 characters\); .* at most 1000000 features", "1 " + "9" * 5000 + ":1\n"),
        ("libsvm", r"index 3 in '3:999.*5002 characters", "1 3:1 3:" + "9" * 5000 + "\n"),
        ("libsvm", "500 rows of 1000000 features; rows are kept dense", "1 1000000:1\n" * 500),
        ("npz", "2 arrays 'x'", None),
    ],
)  # fmt: skip
def test_what_was_taken_in_silence_is_refused(name, message, content, tmp_path):
    if content is None:
        file = BytesIO(npz(x=np.eye(2), y=np.eye(2)))
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr("x", archive.read("y.npy"))
        content = file.getvalue()
    refused(name, tmp_path, message, **{next(iter(READERS[name].files())): content})


def record():
    return np.array([(1, 2.0)], [("a", int), ("b", float)])


def test_bytes_in_archives_are_text(tmp_path):
    READERS["npz"].write(tmp_path, **{"data.npz": npz(x=np.array([b"caf\xc3\xa9"]), y=np.zeros(1))})
    assert READERS["npz"].read(tmp_path)["x"].tolist() == ["caf\u00e9"]
    refused("npz", tmp_path, "'x' cannot be read", **{"data.npz": npz(x=np.array([b"\xff"]), y=np.zeros(1))})


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(["2020-01-01"], "M8[D]"), "datetime64.*neither numbers nor text"),
        (record(), "neither numbers nor text"),
        (np.array([1 + 2j]), "complex128, neither"),
        (np.array([None]), "Python objects"),
        (np.array([1.0, np.nan]), "NaN or infinite"),
        (np.array([0x61, 0x110000], np.uint32).view("<U2"), "the text contains invalid Unicode"),
        (np.array([0xD800], ">u4").view(">U1"), "the text contains invalid Unicode"),
    ],
)
def test_archives_hold_plain_numbers_or_text(array, message, tmp_path):
    refused("npz", tmp_path, message, **{"data.npz": npz(x=array, y=np.zeros(1))})


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("femnist", {"y_train": np.array([0.9, 1.0])}, "y_train has .*float64; it must be one whole number per row"),
        ("femnist", {"y_train": np.array([0, 62])}, "y_train holds 62; it must be 0 to 61"),
        ("femnist", {"writers": np.array(["w", "w"])}, "the client 'w' comes twice"),
        ("femnist", {"x_test": np.zeros((0, 28, 28), np.uint8), "y_test": np.zeros(0, int)}, "y_test has shape"),
        ("femnist", {"writers": np.array(3)}, "cannot be read"),
    ],
)
def test_labels_of_femnist_are_whole_and_writers_distinct(name, changed, message, tmp_path):
    content = npz(**{**IMAGES, "writers": np.array(["v", "w"]), **changed})
    refused(name, tmp_path, message, **{"femnist/femnist_184writers.npz": content})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": np.array([0.9, 1.0])}, "y has .*float64"),
        ({"y": np.array([0, 6])}, "y holds 6; it must be 0 to 5"),
        ({"x": np.array([["a", "b"]] * 2)}, "x holds <U1; it must hold numbers"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int), "subject": np.zeros(0, int)}, "y has shape"),
        ({"subject": np.array([1])}, "subject has 1 rows and x 2"),
        ({"feature_names": np.array(["p", "p"])}, "feature names"),
    ],
)
def test_activities_are_whole_numbers(changed, message, tmp_path):
    good = {"x": np.eye(2), "y": np.array([0, 5]), "subject": np.array([1, 2]), "feature_names": np.array(["p", "q"])}
    refused("har", tmp_path, message, **{"har/har_features.npz": npz(**{**good, **changed})})


def test_windows_that_overflow_are_refused(tmp_path):
    good = {"x": np.ones((2, 128, 6), np.int16), "y": np.array([0, 5]), "subject": np.array([1, 2])}
    content = npz(**good, scale=np.full(6, 1e300))
    refused("har_windows", tmp_path, "x times scale is infinite", **{"har/har_windows.npz": content})


@pytest.mark.skipif(not READERS["works"].is_possible, reason="flwr is not installed")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"dtype": "float32"', '"dtype": "O"'),
        ('"dtype": "float32"', '"dtype": null'),
        ('"shape": [2]', '"shape": "ab"'),
        ('"shape": [2]', '"shape": [-1]'),
        ('"shape": [2]', '"shape": [1e400]'),
        ('"params": [', '"params": null, "more": ['),
        ('"exchanges": {', '"exchanges": [1], "more": {'),
        ('"format": 1', '"format": ' + "[" * 5000 + "]" * 5000),
        ('"schema": "', '"schema": 7, "more": "'),
        ('"description": {', '"description": [1], "more": {'),
        ('"steps": [', '"steps": [null, '),
    ],
)
def test_works_claim_what_arrays_can_be(old, new, tmp_path):
    content = READERS["works"].files()["a.works"]
    found = dict(safetensors.deserialize(content))
    length = int.from_bytes(content[:8], "little")
    text = json.loads(content[8 : 8 + length])["__metadata__"]["works"]
    assert old in text
    arrays = {name: np.zeros(entry["shape"], np.float32) for name, entry in found.items()}
    split = text.rsplit if "exchanges" in old else text.split  # a nested one comes first
    made = safetensors.numpy.save(arrays, {"works": new.join(split(old, 1))})
    refused("works", tmp_path, "is not a file of works that this client can read", **{"a.works": made})


def test_errors_of_parquet_and_numpy_are_one_line(tmp_path):
    """NumPy's error on a long header has three lines, the last of which advise to unpickle it."""
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("x.npy", long_header())
        archive.writestr("y.npy", npy(np.eye(2)))
    READERS["npz"].write(tmp_path, **{"data.npz": made.getvalue()})
    assert not is_answered("npz", tmp_path)
    assert reading.shown(ValueError("Couldn't deserialize thrift\nIn file of pyarrow")) == "Couldn't deserialize thrift"
    assert reading.shown("a name\nof two lines") == "a name of two lines"


def test_a_plan_that_is_a_list_is_refused_by_its_file(tmp_path):
    READERS["comparison"].write(tmp_path, **{"manifest.json": b'{"plan": [1]}'})
    with pytest.raises(RecordError, match=r"manifest.json is damaged: plan is \[1\], not an object"):
        READERS["comparison"].read(tmp_path)


def test_float_labels_are_not_rounded(tmp_path):
    label = bytes([0, 0, 0x0D, 1, 0, 0, 0, 2]) + np.array([0.9, 1], ">f4").tobytes()
    refused("labeled", tmp_path, "it must be one whole number per row", labels=label)


def test_datasets_of_others_have_one_kind_per_column_and_a_client_in_every_row():
    class Table:
        column_names = ("who", "x")

        def __init__(self, who, x):
            self.rows = {"who": who, "x": x}

        def __len__(self):
            return len(self.rows["x"])

        def __getitem__(self, which):
            return {name: column[which] for name, column in self.rows.items()}

    for who, x, message in (
        ([None, "a"], [1, 2], "row 0: 'who' is None"),
        (["a", float("nan")], [1, 2], "row 1: 'who' is nan"),
        (["a", ""], [1, 2], "visible character"),
        (["a", "b"], [1, "2"], "'x' holds .*give numbers, or text"),
        (["a"] * 1001, [1] * 1000 + ["2"], "'x' holds .*give numbers, or text"),
        (["a", "b"], list(np.array(["2020-01-01"] * 2, "M8[D]")), "'x' holds datetime64"),
        (["a"], [record()[0]], "'x' holds "),
    ):
        with pytest.raises(ValueError, match=message):
            datasets.from_dataset(Table(who, x), "who")
    with pytest.raises(ValueError, match="a name of its own"):
        datasets.from_dataset(
            type("T", (Table,), {"column_names": ("who", "x", "y")})(["a"], [1]), "who", columns=["x", "x"]
        )
    with pytest.raises(ValueError, match="partly text"):
        datasets.by_key(["1", 1])
    with pytest.raises(ValueError, match="none of them NaN"):
        datasets.by_key(np.array([1.0, np.nan]))


# --- compressed bytes ---

PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize(
    ("read", "text"),
    [
        (datasets.read_libsvm, b"1 1:1\n"),
        (lambda path: datasets.read_table(path, client="1", label="2"), b"1,2,3\n"),
        (datasets.read_leaf, b" "),
        (datasets.read_idx, bytes(12)),
    ],
)
def test_bombs_are_refused_within_the_limit(tmp_path, monkeypatch, ending, read, text):
    monkeypatch.setitem(reading.UNPACKED, "rt", (10_000, 4))
    monkeypatch.setitem(reading.UNPACKED, "rb", (10_000, 4))
    path = tmp_path / f"bomb{ending}"
    body = text * 20_000 if text != bytes(12) else bytes([0, 0, 8, 1, 0, 15, 0, 0]) + bytes(0xF0000)
    path.write_bytes(PACK[ending](body))
    with pytest.raises(ValueError, match=r"unpacks to more than \d+ bytes.*unpack it first") as said:
        read(path)
    assert str(path) in str(said.value)


@pytest.mark.slow
@pytest.mark.parametrize("seconds_per_megabyte", [0.5, 10.0])
def test_a_small_bomb_takes_seconds_only(tmp_path, monkeypatch, seconds_per_megabyte):
    """With the limits as they are: 30 MB of short lines in 0.06 MB, on a machine that took 15 s or 5 minutes for them.

    The clock is that of the lines that are read, so the seconds are those of this test on every machine.
    """
    clock = [0.0]

    def lines(file, path):
        for line in read_lines(file, path):
            clock[0] += len(line) * seconds_per_megabyte / 1e6
            yield line

    read_lines = libsvm.lines
    monkeypatch.setattr(libsvm, "lines", lines)
    monkeypatch.setattr(reading.time, "thread_time", lambda: clock[0])
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"1 1:1\n" * 5_000_000, 6))
    with pytest.raises(ValueError, match=r"takes more than 3 s to unpack and read.*unpack it first"):
        datasets.read_libsvm(path)
    at_once = reading.AT_ONCE * seconds_per_megabyte / 1e6  # before that the clock does not count
    assert 3 <= clock[0] < max(3.0, at_once) + 0.1 * seconds_per_megabyte  # the clock is asked for every 0.1 MB


def test_the_time_of_small_packed_files_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "AT_ONCE", 10_000)
    path = tmp_path / "rows.gz"
    path.write_bytes(gzip.compress(b"1 1:1\n" * 5_000))
    assert len(datasets.read_libsvm(path).labels) == 5_000
    monkeypatch.setattr(reading, "SECONDS", 1e-9)
    with pytest.raises(ValueError, match=r"takes more than 1e-09 s to unpack and read.*unpack it first") as said:
        datasets.read_libsvm(path)
    assert str(path) in str(said.value)
    monkeypatch.setattr(reading, "SMALL", 10)  # larger files are limited by their bytes alone
    assert len(datasets.read_libsvm(path).labels) == 5_000


def test_who_streams_users_may_take_time(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "AT_ONCE", 0)
    monkeypatch.setattr(reading, "SECONDS", 1e-9)
    path = tmp_path / "users.json.gz"
    path.write_bytes(gzip.compress(users('{"x": [1], "y": [1]}').encode()))
    assert [user for user, _ in datasets.stream_leaf(path)] == ["a"]
    with pytest.raises(ValueError, match="takes more than"):
        datasets.read_leaf(path)


@pytest.mark.slow
def test_honest_packed_numbers_are_read(tmp_path):
    """They pack to a third; 12 MB of them are read within the limits as they are."""
    values = np.random.default_rng(0).normal(size=(1000, 20))
    body = "".join("c," + ",".join(f"{value:.4f}" for value in row) + ",1\n" for row in values) * 80
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(f"a,{','.join(f'x{i}' for i in range(20))},b\n{body}".encode(), 1))
    assert datasets.read_table(path, client="a", label="b").rows == 80_000


@pytest.mark.slow
@pytest.mark.skipif(not READERS["table_feather"].is_possible, reason="pyarrow is not installed")
@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_tables_are_no_larger_than_their_size_allows(tmp_path, ending):
    import pyarrow as pa
    from pyarrow import feather, parquet

    path = tmp_path / f"data.{ending}"
    write = parquet.write_table if ending == "parquet" else feather.write_feather
    for columns, message in (
        ({"x": pa.array(np.zeros(6_000_000, np.int8))}, r"data.\w+: it has \d+ (cells|rows), at most 5000000 are read"),
        ({f"x{i}": pa.array(np.zeros(200_000, np.int8)) for i in range(30)}, "6000000 cells, at most 5000000"),
        ({"x": pa.array(["n" * 100_000] * 1500)}, "bytes.*, at most 134217728 are read"),
        ({"x": pa.array(["n" * 100_000] * 1500).dictionary_encode()}, "bytes of text, at most 134217728"),
        ({"x": pa.array([[1, 2], [3]])}, "'x' holds list.*: leave it out"),
    ):
        write(pa.table(columns), path, compression="zstd")
        assert path.stat().st_size < 10**6
        with pytest.raises(ValueError, match=message) as said:
            datasets.open_table(path)
        assert str(path) in str(said.value)
        assert pa.total_allocated_bytes() < 2**28


def test_every_damaged_end_of_packed_text_is_refused(tmp_path):
    for ending, pack in PACK.items():
        path = tmp_path / f"rows{ending}"
        content = pack(b"1 1:1\n" * 100)
        for end in range(len(content)):
            path.write_bytes(content[:end])
            with pytest.raises(ValueError, match=r"damaged|no examples") as said:
                datasets.read_libsvm(path)
            assert str(path) in str(said.value)


def test_users_and_roles_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr("fedspam.datasets.leaf.MOST_USERS", 1)
    monkeypatch.setattr("fedspam.datasets.shakespeare.MOST_ROLES", 1)
    refused("roles", tmp_path, "has 2 roles, at most 1 are read")
    refused("leaf", tmp_path, "more than 1 users; split them among several shards")


def test_a_dictionary_of_xz_is_limited(tmp_path):
    path = tmp_path / "rows.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**28}]
    path.write_bytes(lzma.compress(b"1 1:1\n", filters=filters))
    with pytest.raises(ValueError, match=r"Memory usage limit exceeded.*fetch it again"):
        datasets.read_libsvm(path)


def test_an_archive_is_no_larger_than_its_size_allows(tmp_path):
    content = npz(np.savez_compressed, x=np.zeros(2**25), y=np.zeros(1))
    refused(
        "npz", tmp_path, "268435456 bytes.*at most 134217728 are read: store it with np.savez", **{"data.npz": content}
    )


def test_an_archive_that_claims_4_gib_is_refused_at_once(tmp_path):
    """Its header says so; NumPy would ask for the memory before it finds the end of the file."""
    claim = BytesIO()
    np.lib.format.write_array_header_1_0(claim, {"descr": "|u1", "fortran_order": False, "shape": (2**32,)})
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", claim.getvalue() + bytes(8))
    refused("npz", tmp_path, "its header says 4294967296 bytes, 8 are stored.*; store", **{"data.npz": file.getvalue()})

"""Every reader of files in one table: files that it reads, and how it is called.

A new reader gets one row here, and with it the damage of `_internal/test_readers.py` and `benchmarks/damage.py`. One
without a row is found by `_internal/test_every_reader.py`.
"""

import functools
import gzip
import importlib
import importlib.util
import io
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedspam import datasets, models
from fedspam._internal.files import RecordError
from fedspam.app import config
from fedspam.app.compare.measures import Curves, MethodResult, TunedCost
from fedspam.app.compare.parts import ComparisonPart, read_parts, results_of, write_part
from fedspam.app.experiment.execute import own_config
from fedspam.app.report import sources
from fedspam.clients import MeasuredDelay
from fedspam.simulation import records
from fedspam.simulation.status import COMPLETED


@dataclass(frozen=True)
class Reader:
    """A reader, called with the folder that holds its files.

    Arguments:
        read: what is called with the folder.
        files: that it reads, by their paths in the folder.
        holes: a file with `%s` in place of a number, a label, or the name of a client, by what stands there.
        needs: an optional package.
        share: of the usual number of inputs that are tried, where one read takes long.
        refusals: how it may refuse.
        optional: files that may be damaged or missing without harm.
        is_data: whether it reads rows of clients.
    """

    read: Callable[[Path], Any]
    files: Callable[[], Mapping[str, bytes]]
    holes: Mapping[str, str]
    needs: str | None = None
    share: float = 1.0
    refusals: tuple[type[Exception], ...] = (ValueError, FileNotFoundError)
    optional: tuple[str, ...] = ()
    is_data: bool = True

    @property
    def is_possible(self) -> bool:
        return self.needs is None or importlib.util.find_spec(self.needs) is not None

    def write(self, folder: Path, **changed: bytes) -> None:
        """All files, some of them with other content."""
        for name, content in {**self.files(), **changed}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


def npz(save: Any = np.savez, **arrays: Any) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def long_header() -> bytes:
    """An array whose header is longer than NumPy reads; its error advises to trust the file."""
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (4,), }".ljust(20_000) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(32)


LEAF = '{"users": ["a", "b"], "num_samples": [2, 1], "user_data": {"a": {"x": [[1, 2.5], [3, 4]], "y": [0, 1]}, %s}}'
HEART = "63,1,%s,145,233,1,2,150,0,%s,3,0,6,%s\n28,1,2,130,132,0,2,185,0,0,?,?,?,1\n"
IDX = bytes([0, 0, 0x0D, 2, 0, 0, 0, 1, 0, 0, 0, 2]) + np.array([1.5, -2], ">f4").tobytes()
IMAGES = {
    f"{name}_{part}": value
    for part in ("train", "test", "unseen")
    for name, value in {
        "x": np.zeros((2, 28, 28), np.uint8),
        "y": np.array([0, 61]),
        "writer": np.array([1, 0]),
    }.items()
}


def tff() -> dict[str, bytes]:
    import h5py

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.h5"
        with h5py.File(path, "w", track_order=False) as file:
            for client in ("a", "b"):
                columns = {"pixels": np.eye(2, dtype="f4"), "label": [0, 1], "text": ["to be", "or not"]}
                for name, column in columns.items():
                    file.create_dataset(f"examples/{client}/{name}", data=column, track_times=False)
        return {path.name: path.read_bytes()}


def mapped() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        parts = [(name, {"x": np.eye(2), "y": np.array([0, 1])}) for name in ("a", "b")]
        datasets.write_mapped(parts, folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def just(**files: bytes | str) -> Callable[[], Mapping[str, bytes]]:
    named = {name.replace("__", "/").replace("_dot_", "."): content for name, content in files.items()}
    return lambda: {name: c.encode() if isinstance(c, str) else c for name, c in named.items()}


def arrow(ending: str) -> Callable[[], Mapping[str, bytes]]:
    """A table as pyarrow writes it, with text, missing values and compression."""

    def files() -> dict[str, bytes]:
        import pyarrow as pa
        from pyarrow import feather, parquet

        file = io.BytesIO()
        columns = {"who": ["a", "b", "a"], "x": [1.5, None, 3.0], "city": ["Bonn", "", "Bonn"], "y": [0, 1, 1]}
        write = parquet.write_table if ending == "parquet" else feather.write_feather
        write(pa.table(columns), file, compression="zstd")
        return {f"data.{ending}": file.getvalue()}

    return files


def table(name: str) -> Callable[[Path], Any]:
    return lambda folder: datasets.read_table(folder / name, client="who", label="y")


@functools.cache
def run() -> dict[str, bytes]:
    """The folder of a run that has ended, with what a report takes from it."""
    with tempfile.TemporaryDirectory() as folder:
        with records.Store(folder) as store:
            store.begin({"method": {"type": "Spam"}, "every": 2})
            for done in (0, 2, 4):
                rows = {"void": np.zeros(2, bool), "bytes_up": np.arange(2), "bytes_down": np.arange(2)} if done else {}
                store.append(done, {"x": np.arange(3.0)}, rows, {"norm": np.array([1.0 / (1 + done)])})
            store.finish(COMPLETED)
        made = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != ".lock"}
    more = {"summary.json": b'{"f1": 0.5, "confusion": [[1, 0], [0, 1]], "classes": ["a", "b"]}'}
    return made | more | {"clients.csv": b"client,accuracy\na,0.5\n", "config.toml": b"[run]\n"}


@functools.cache
def part() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        curves, cost = Curves(*[np.ones((1, 2))] * 5, np.zeros(1)), TunedCost("mvr", 0.5, "rounds", *[1.0] * 3, 1, 1, 1)
        result = MethodResult([cost], [["mvr", 1, "fine"]], {"rounds": 1}, 0, {1: curves})
        write_part(Path(folder), ComparisonPart(1, 1), {"kind": "compare"}, {}, {(0, "mvr"): result}, "fedspam compare")
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@functools.cache
def model() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        made = models.mlp(2, 2, hidden=(3,))
        return {"model.safetensors": models.save(folder, made.init(0), model=made, classes=["a", "b"]).read_bytes()}


@functools.cache
def works(name: str) -> dict[str, bytes]:
    from fedspam.methods import spam_pp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what Flower imports
        from fedspam.flower import export_works

    with tempfile.TemporaryDirectory() as folder:
        export_works(Path(folder) / name, spam_pp(1, step_size=0.5, fresh_weight=0.3), np.ones(2, np.float32))
        return {name: (Path(folder) / name).read_bytes()}


def read_works(folder: Path, name: str = "a.works") -> Any:
    from fedspam_client.works import Works

    return Works.read(folder / name)


def results(curves: str, **others: str) -> Callable[[], Mapping[str, bytes]]:
    """The folder of a comparison, of the paper's experiment or of bounds."""
    return just(manifest_dot_json="{}", curves_dot_csv=curves, command="fedspam compare\n", **others)


CURVES = "method,trial,seed,rounds,error,bytes_up,bytes,gradients\nmvr,1,0,0,1,0,0,0\nmvr,1,0,5,0.5,10,20,5\n"
COSTS = "method,target,measure,median,low,high,trial\nmvr,0.5,rounds,5,5,5,1\n"
PANELS = "panel,prox,gamma_delta,fresh_weight,round,median,low,high\n1,exact,0.5,0.1,0,1,1,1\n"
BOUNDS = "theorem,rounds,corrected,mean,low,high\n1,5,2,1,1,1\n"
DELAYS = "client,seconds\n%s,%s\n1,30\n0,2\n"
TABLE = "who,x,y\na,%s,%s\n%s,,1\n"  # the number is the only one of its column
SVM = "%s 1:0.5 3:%s\n-1 2:1e3\n"
ROLES = '{"clients": {"a": ["To be, or not to be"], "%s": ["that is the question"]}, "more": [1, null]}'
LEAF_B = '"%s": {"x": [[5, %s]], "y": [%s]}'

CIFAR_NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
CIFAR = b"\3" + bytes(range(256)) * 12


def sheet():
    """One image of CIFAR-10 as a line of pixels."""
    from PIL import Image

    written = io.BytesIO()
    Image.fromarray(np.frombuffer(CIFAR[1:], np.uint8).reshape(1, 1024, 3)).save(written, "PNG")
    return written.getvalue()


READERS = {
    "table": Reader(
        table("data.csv"),
        just(data_dot_csv="who,x,city,y\na,1.5,Bonn,0\nb,,,1\n"),
        {"cell": TABLE % ("%s", "0", "b"), "class": TABLE % ("1", "%s", "b"), "name": TABLE % ("1", "0", "%s")},
    ),
    "table_gz": Reader(
        table("data.csv.gz"), just(data_dot_csv_dot_gz=gzip.compress((TABLE % (1, 0, "b")).encode())), {}
    ),
    "table_parquet": Reader(table("data.parquet"), arrow("parquet"), {}, needs="pyarrow", share=0.5),
    "table_feather": Reader(table("data.feather"), arrow("feather"), {}, needs="pyarrow", share=0.5),
    "libsvm": Reader(
        lambda folder: datasets.read_libsvm(folder / "data"),
        just(data=SVM % ("+1", "2")),
        {"number": SVM % ("1", "%s"), "label_number": SVM % ("%s", "1")},
    ),
    "leaf": Reader(
        lambda folder: datasets.read_leaf(folder / "data.json"),
        just(data_dot_json=LEAF % (LEAF_B % ("b", "6", "1"))),
        {"json_number": LEAF % (LEAF_B % ("b", "%s", "1")), "json_label": LEAF % (LEAF_B % ("b", "1", "%s"))},
    ),
    "roles": Reader(
        lambda folder: datasets.read_shakespeare(folder, least=10),
        just(shakespeare__shakespeare_by_role_dot_json=ROLES % "b"),
        {"json_name": ROLES},
    ),
    "heart": Reader(
        datasets.read_heart,
        lambda: {f"heart_disease/processed.{name}.data": (HEART % (1, 2.3, 0)).encode() for name in datasets.HOSPITALS},
        {"number": HEART % ("1", "%s", "0"), "label": HEART % ("1", "2", "%s"), "code": HEART % ("%s", "2", "1")},
    ),
    "idx": Reader(lambda folder: datasets.read_idx(folder / "data"), just(data=IDX), {}),
    "labeled": Reader(
        lambda folder: datasets.read_labeled(folder / "images", folder / "labels"),
        just(images=bytes([0, 0, 8, 3, *(0, 0, 0, 2) * 3]) + bytes(8), labels=bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])),
        {},
    ),
    "cifar10": Reader(datasets.read_cifar10, lambda: {f"cifar10/{name}.bin": CIFAR for name in CIFAR_NAMES}, {}),
    "cifar10_sheets": Reader(
        datasets.read_cifar10,
        lambda: (
            {f"cifar10/{name}.png": sheet() for name in CIFAR_NAMES}
            | {"cifar10/train_lables.json": b"[0, 1, 2, 3, 9]", "cifar10/test_lables.json": b"[7]"}
        ),
        {},
    ),
    "npz": Reader(
        lambda folder: datasets.read_arrays(folder / "data.npz", ("x", "y")),
        lambda: {"data.npz": npz(np.savez_compressed, x=np.eye(2), y=np.array(["a", "b"]))},
        {},
    ),
    "femnist": Reader(
        datasets.read_femnist,
        lambda: {"femnist/femnist_184writers.npz": npz(**IMAGES, writers=np.array(["v", "w"]))},
        {},
    ),
    "har": Reader(
        datasets.read_har,
        lambda: {
            "har/har_features.npz": npz(
                x=np.eye(2), y=np.array([0, 5]), subject=np.array([1, 2]), feature_names=np.array(["p", "q"])
            )
        },
        {},
    ),
    "har_windows": Reader(
        datasets.read_har_windows,
        lambda: {
            "har/har_windows.npz": npz(
                x=np.zeros((2, 128, 6), np.int16), y=np.array([0, 5]), subject=np.array([1, 2]), scale=np.ones(6)
            )
        },
        {},
    ),
    "tff": Reader(lambda folder: datasets.read_tff(folder / "data.h5"), tff, {}, needs="h5py", share=0.1),
    "mapped": Reader(datasets.open_mapped, mapped, {}),
    "delays": Reader(
        lambda folder: MeasuredDelay.read(folder / "delays.csv"),
        just(delays_dot_csv=DELAYS % ("0", "1.5")),
        {"id": DELAYS % ("%s", "1.5"), "seconds": DELAYS % ("0", "%s")},
        is_data=False,
    ),
    "config": Reader(
        lambda folder: config.read(folder / "experiment.toml"),
        just(experiment_dot_toml=config.EXAMPLE),
        {},
        is_data=False,
    ),
    "policy": Reader(
        lambda folder: importlib.import_module("fedspam.flower.client.policy").Policy.read(folder / "policy.toml"),
        just(policy_dot_toml='methods = ["fedavg"]\nbytes_per_day = 5_000\nsecure_sum = true\nbound = 0.5\n'),
        {},
        needs="flwr",
        is_data=False,
    ),
    "own_config": Reader(
        own_config,
        just(config_dot_toml=config.EXAMPLE),
        {},
        refusals=(ValueError, RecordError),
        is_data=False,
    ),
    "model": Reader(
        lambda folder: models.load(folder / "model.safetensors"), model, {}, refusals=(RecordError,), is_data=False
    ),
    "works": Reader(read_works, lambda: works("a.works"), {}, needs="flwr", is_data=False),
    "works_json": Reader(
        lambda folder: read_works(folder, "a.json"), lambda: works("a.json"), {}, needs="flwr", is_data=False
    ),
    "run": Reader(
        sources.read,
        run,
        {},
        refusals=(RecordError,),
        is_data=False,
        optional=("config.toml", *(f"checkpoint-00000000{done}.safetensors" for done in (0, 2, 4))),
    ),
    "comparison": Reader(
        sources.read,
        results(CURVES, table_dot_csv=COSTS),
        {},
        refusals=(RecordError,),
        is_data=False,
        optional=("command",),
    ),
    "reproduction": Reader(
        sources.read, results(PANELS), {}, refusals=(RecordError,), is_data=False, optional=("command",)
    ),
    "theory": Reader(sources.read, results(BOUNDS), {}, refusals=(RecordError,), is_data=False, optional=("command",)),
    "part": Reader(
        lambda folder: results_of(read_parts([folder])),
        part,
        {},
        refusals=(ValueError, RecordError),
        is_data=False,
        optional=("command",),
    ),
}
assert json.loads(LEAF % (LEAF_B % ("b", "6", "1")))

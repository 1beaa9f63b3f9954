"""Every decoder of bytes that others may have written, as a function that must not fail but in its own clear way."""

import atexit
import bz2
import contextlib
import functools
import gzip
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

from fedspam._internal import describe, files, strict
from fedspam.app import config
from fedspam.clients import MeasuredDelay
from fedspam.datasets import arrays, heart, idx, leaf, libsvm, shakespeare, table, tff
from fedspam.federation import wire
from fedspam.simulation import records

LIKE = {
    "@client": jax.ShapeDtypeStruct((), np.uint32),
    "@round": jax.ShapeDtypeStruct((), np.uint32),
    "x": {"w": jax.ShapeDtypeStruct((2, 3), np.float32), "on": jax.ShapeDtypeStruct((2,), np.bool_)},
}
STATE = {"x": jax.ShapeDtypeStruct((3,), np.float32), "k": jax.ShapeDtypeStruct((), np.int32)}
IDENTITY = {"method": "spam", "numbers": [1, 2.5, None]}


@dataclass(frozen=True)
class Target:
    """A decoder: what to call, how it may refuse, examples to start from, and the optional package that it needs."""

    run: Callable[[bytes], None]
    refusals: tuple[type[Exception], ...]
    seeds: Callable[[], Iterator[bytes]]
    needs: str | None = None

    @property
    def is_possible(self) -> bool:
        return self.needs is None or importlib.util.find_spec(self.needs) is not None

    def __call__(self, data: bytes) -> bool:
        """Whether the bytes were accepted; any exception but a refusal passes through."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.run(data)
            except self.refusals as refusal:
                if not str(refusal):
                    raise AssertionError("a refusal has to say something") from refusal
                return False
        return True


# --- the wire ---


def run_wire(data: bytes) -> None:
    fields = wire.decode(data, LIKE)
    again = wire.decode(wire.encode(fields), LIKE)
    same = jax.tree.map(lambda a, b: a.dtype == b.dtype and a.tobytes() == b.tobytes(), fields, again)
    assert all(jax.tree.leaves(same))


def message(**changed: Any) -> dict[str, Any]:
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), LIKE)
    return zeros | changed


def seeds_wire() -> Iterator[bytes]:
    yield wire.encode(message())
    yield wire.encode(message(x={"w": np.full((2, 3), np.nan, np.float32), "on": np.ones(2, bool)}))
    yield wire.encode({"x": np.zeros(3)})


# --- arrays and JSON ---


def run_arrays(data: bytes) -> None:
    found, _ = strict.arrays(data, size=2**20, header=2**16)
    # whatever is read here, the reference reader must read alike
    reference = dict(safetensors.deserialize(data))
    assert found.keys() == reference.keys()
    for name, array in found.items():
        assert array.tobytes() == bytes(reference[name]["data"])
        assert list(array.shape) == list(reference[name]["shape"])


def seeds_arrays() -> Iterator[bytes]:
    every = {kind: np.zeros((2, 1), dtype) for kind, dtype in strict.DTYPES.items()}
    yield safetensors.numpy.save(every, metadata={"format": "2", "ü": "é"})
    yield safetensors.numpy.save({"empty": np.zeros((0, 3)), "scalar": np.array(1, np.float32)})
    yield safetensors.numpy.save({})


def run_json(data: bytes) -> None:
    value = strict.json_object(data, size=2**16, depth=10)
    assert strict.json_object(json.dumps(value, allow_nan=False).encode(), size=2**20, depth=10) == value


def seeds_json() -> Iterator[bytes]:
    yield b'{"a": [1, 2.5, null, true], "b": {"c": "d\\u00e9\\ud83d\\ude00"}}'
    yield b'{"a": 1e308, "b": -0.0, "c": 12345678901234567890}'
    yield b'{"a": ' + b"[" * 12 + b"]" * 12 + b"}"


# --- files of a run ---


def sealed(data: bytes) -> bytes:
    """The bytes with a hash that fits, so that what comes after the hash is tried as well."""
    place = data.find(files.SEAL) + len(files.SEAL)
    if place < len(files.SEAL) or len(data) < place + 64:
        return data
    blank = data[:place] + files.BLANK + data[place + 64 :]
    return data[:place] + hashlib.sha256(blank).hexdigest().encode() + data[place + 64 :]


def run_unpack(data: bytes) -> None:
    with_hash = sealed(data)
    arrays_found, facts = files.unpack(with_hash, Path("fuzzed"), size=2**20)
    assert facts["format"] == str(files.FORMAT)
    assert with_hash == data or sum(array.nbytes for array in arrays_found.values()) <= len(data)


def seeds_unpack() -> Iterator[bytes]:
    yield bytes(files.pack({"0000 x": np.arange(3.0)}, kind="state", run="r", round="10"))
    yield bytes(files.pack({}, kind="rows"))


FOLDER = Path(tempfile.mkdtemp(prefix="fedspam-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def state(done: int) -> dict[str, Any]:
    return {"x": np.arange(3, dtype=np.float32) + done, "k": np.int32(done)}


def run_folder(data: bytes) -> None:
    """A run folder in which one file, chosen by the first byte, holds the rest of the bytes: it must still load."""
    place = FOLDER / "run"
    shutil.rmtree(place, ignore_errors=True)
    good_files, content = files_of_a_run(), data[1:]
    name = sorted(good_files)[data[0] % len(good_files) if data else 0]
    if data and data[0] >= 128:
        content = resealed(content) if name == "manifest.json" else sealed_frames(content)
    place.mkdir()
    for other, good in good_files.items():
        (place / other).write_bytes(content if other == name else good)
    with records.Store(place, records.Keep(best="norm")) as store:
        saved = store.load(IDENTITY, like=lambda: STATE)
        if saved is None:
            assert name == "rows.bin"  # one damaged checkpoint leaves another
        else:
            hidden = data and data[0] >= 128  # bytes with a hash that fits are believed
            assert hidden or np.asarray(saved.carry["x"]).tobytes() == state(saved.done)["x"].tobytes()
            assert len(saved.rows) == len(saved.probes)
    records.read(place)


_FILES: dict[str, bytes] = {}


def files_of_a_run() -> dict[str, bytes]:
    if not _FILES:
        with tempfile.TemporaryDirectory() as folder, records.Store(folder, records.Keep(best="norm")) as store:
            store.begin(IDENTITY)
            for done in (0, 2, 4):
                rows = {"void": np.zeros(2, bool), "bytes_up": np.arange(2), "bytes_down": np.arange(2)} if done else {}
                store.append(done, state(done), rows, {"norm": np.array([1.0 / (1 + done)])})
            _FILES.update({path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != ".lock"})
    return _FILES


def resealed(data: bytes) -> bytes:
    try:
        facts = json.loads(data)
        facts["sha256"] = describe.digest({name: value for name, value in facts.items() if name != "sha256"})
        return json.dumps(facts).encode()
    except (ValueError, TypeError, RecursionError):
        return data


def sealed_frames(data: bytes) -> bytes:
    """Frames as far as their lengths make sense, each with a hash that fits."""
    if data.startswith(b"{", 8):
        return sealed(data)
    made, rest = b"", data
    while len(rest) >= 8 and int.from_bytes(rest[:8], "little") <= len(rest) - 8:
        length = int.from_bytes(rest[:8], "little")
        made, rest = made + rest[:8] + sealed(rest[8 : 8 + length]), rest[8 + length :]
    return made + rest


def seeds_folder() -> Iterator[bytes]:
    files = files_of_a_run()
    for number, name in enumerate(sorted(files)):
        yield bytes([number]) + files[name]
        yield bytes([number + len(files) * (128 // len(files) + 1)]) + files[name]


# --- configurations ---


def run_config(data: bytes) -> None:
    """What is accepted is written back as TOML and read again to the same."""
    path = FOLDER / "experiment.toml"
    path.write_bytes(data)
    found = config.decode(config.load(path))
    path.write_text(config.to_toml(found), encoding="utf-8")
    assert config.decode(config.load(path)) == found


def seeds_config() -> Iterator[bytes]:
    yield config.EXAMPLE.encode()
    yield b'data = "ridge"\n[method]\nname = "spam"\nstep_size = 0.5\nmomentum = 0.2\n'
    yield b"data.kind = 'problem'\n[run]\nrounds = 0x10\nseed = 1e400\nwhen = 1979-05-27T07:32:00Z\n"


# --- data sets ---


def from_file(read: Callable[[Path], Any], ending: str = "") -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        path = FOLDER / f"data{ending}"
        path.write_bytes(data)
        read(path)

    return run


def read_npz(path: Path) -> None:
    found = arrays.read_arrays(path, ("x", "y"))
    assert found.keys() == {"x", "y"}


def seeds_npz() -> Iterator[bytes]:
    for save in (np.savez, np.savez_compressed):
        path = FOLDER / "seed.npz"
        save(path, x=np.eye(2), y=np.array(["a", "b"]))
        yield path.read_bytes()


def seeds_gzip() -> Iterator[bytes]:
    yield gzip.compress(b"+1 1:0.5 3:2\n-1 2:1\n", mtime=0)


def seeds_bzip() -> Iterator[bytes]:
    yield bz2.compress(b"+1 1:0.5 3:2\n-1 2:1\n")


def read_by_client(read: Callable[[Path], Any]) -> Callable[[Path], None]:
    """A reader of federated data: every client's rows must add up."""

    def run(path: Path) -> None:
        data = read(path)
        assert data.clients
        assert all(len(column) == data.rows == data.sizes.sum() for column in data.examples.values())
        objects = (column for column in data.examples.values() if column.dtype == object)
        assert all(isinstance(text, str) for column in objects for text in column)

    return run


def seeds_idx() -> Iterator[bytes]:
    yield bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])
    yield bytes([0, 0, 0x0D, 2, 0, 0, 0, 1, 0, 0, 0, 2]) + np.array([1.5, -2], ">f4").tobytes()
    yield bytes([0, 0, 8, 3, *[255] * 12])  # promises more than there is


LEAF = {
    "users": ["ann", "bob"],
    "num_samples": [2, 1],
    "user_data": {"ann": {"x": [[1, 2.5], [3, 4]], "y": [0, 1]}, "bob": {"x": [[5, 6]], "y": [1]}},
}


def seeds_leaf() -> Iterator[bytes]:
    yield json.dumps(LEAF).encode()
    yield json.dumps({"user_data": {"é": {"x": ["to be"], "y": ["."]}}, "more": [None, True]}).encode()


def seeds_csv() -> Iterator[bytes]:
    yield b"client,age,label\nb,63,1\na,50,0\nb,4.1e1,0\n"
    yield '\ufeff"client", age ,label\n"b ""x""\n",63,yes\n\na,50,no\n'.encode()


def seeds_delays() -> Iterator[bytes]:
    yield b"client,seconds\n0,1.5\n1,30\n0,2\n"
    yield b"seconds\n0.5\n7e1\n\n"


def run_roles(data: bytes) -> None:
    path = FOLDER / "shakespeare" / "shakespeare_by_role.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    assert all(isinstance(text, str) for text in shakespeare.read_roles(FOLDER).values())


def seeds_roles() -> Iterator[bytes]:
    yield b'{"clients": {"HAMLET": ["To be, or not to be", "\\u00e9"], "GHOST": []}, "more": {"a": [1, null]}}'


def seeds_tff() -> Iterator[bytes]:
    import h5py

    path = FOLDER / "seed.h5"
    for text in (False, True):
        with h5py.File(path, "w", track_order=False) as file:
            for client in ("ann", "bob"):
                columns = (
                    {"snippets": ["to be", "or not"]} if text else {"pixels": np.eye(2, dtype="f4"), "label": [0, 1]}
                )
                for name, column in columns.items():
                    file.create_dataset(f"examples/{client}/{name}", data=column, track_times=False)
        yield path.read_bytes()


# --- a whole server over Flower, of whose clients one replies what the bytes say ---

STAGES = (
    "query.whoami", "train.train", "evaluate", "query.secure_keys", "query.secure_shares", "train.train",
    "query.secure_unmask",
)  # fmt: skip
MASKED = 3  # stages from here on are of a run with secure sums
RECORDS = ("fedspam", "arrays", "metrics", "secure", "config", "note")
ENTRIES = (
    "schema", "exchange", "refused", "partition-id", "num-partitions", "fedspam", "wire", "num-examples", "loss",
    "session", "ids", "sealing", "masking", "sealed", "shares", "fields",
)  # fmt: skip
NODES, LIAR = 4, 0


class Choices:
    """Bytes as a sequence of choices; zeros when they are used up."""

    def __init__(self, data: bytes) -> None:
        self.left = data

    def take(self, count: int) -> bytes:
        taken, self.left = self.left[:count], self.left[count:]
        return taken.ljust(count, b"\0")

    def number(self, below: int) -> int:
        return self.take(1)[0] % below

    def of(self, some: tuple[Any, ...]) -> Any:
        return some[self.number(len(some))]

    def value(self) -> Any:
        """What an entry of a record may hold."""
        whole = lambda: int.from_bytes(self.take(8), "little", signed=True)
        makers = (
            lambda: "", lambda: b"", list, whole, lambda: self.number(8), lambda: struct.unpack("<d", self.take(8))[0],
            lambda: bool(self.number(2)), lambda: self.take(self.number(256)), lambda: self.take(20).decode("latin-1"),
            lambda: [whole() for _ in range(self.number(6))], lambda: [self.take(9) for _ in range(self.number(6))],
            lambda: "long " * 50_000,
        )  # fmt: skip
        return self.of(makers)()


def changed(message: Any, reply: Any, choices: Choices) -> Any:
    """The reply with one thing in it changed."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord

    content, record, entry = reply.content, choices.of(RECORDS), choices.of(ENTRIES)
    match choices.number(8):
        case 0 | 1:  # of a record as it is, or of a new one
            held = content.get(record)
            content[record] = ConfigRecord({**(held if isinstance(held, ConfigRecord) else {}), entry: choices.value()})
        case 2:
            held = content.get("metrics")
            content["metrics"] = MetricRecord({**(held or {}), entry: choices.value()})
        case 3:
            content[record] = choices.of((ConfigRecord, MetricRecord, ArrayRecord))()
        case 4:
            content.pop(record, None)
        case 5:
            for arrays_found in filter(None, content.array_records.values()):
                data = bytearray(next(iter(arrays_found.values())).data)
                place = int.from_bytes(choices.take(2), "little") % max(1, len(data))
                piece = choices.take(choices.number(10))
                data[place : place + choices.number(12)] = piece
                arrays_found["fields"] = Array("uint8", (len(data),), "safetensors", bytes(data))
        case 6:
            shape = tuple(choices.take(choices.number(4)))
            more = Array(
                choices.of(("float64", "object", "")), shape, choices.of(("safetensors", "numpy.ndarray")), b"x"
            )
            content[record] = ArrayRecord({entry: more})
        case _:
            return Message(Error(code=choices.number(12), reason=choices.of(("", "text", None))), reply_to=message)
    return reply


@functools.cache
def federation(masked: bool) -> tuple[Any, Any, Any]:
    """The method, the app of its clients, and the settings of a secure sum."""
    from fedspam import fedavg
    from fedspam.flower import client_app, clients_of
    from fedspam.flower.privacy.secure_client import SecureSum
    from fedspam.problems import quadratics

    clients, method = quadratics(0, clients=NODES, dimension=3), fedavg(NODES, 2, 0.1)
    secure = SecureSum(("train",), in_clear=("evaluate",)) if masked else None
    return method, client_app(clients_of(clients), method, np.ones(3, np.float32), secure=secure), secure


def run_server(data: bytes) -> None:
    """A run with four clients, one of which lies in one stage: it ends, and the replies of the others count."""
    from fedspam.flower import FedspamStrategy, LoopbackGrid, Replies, to_arrays

    choices = Choices(data)
    stage = choices.number(len(STAGES))
    method, app, secure = federation(stage >= MASKED)

    def twist(client: int, message: Any, answer: Callable[[], Any]) -> list[Any]:
        reply = answer()
        if client != LIAR or message.metadata.message_type != STAGES[stage]:
            return [reply]
        lies = Choices(choices.left)
        for _ in range(1 + lies.number(3)):
            if reply.has_content():
                try:
                    reply = changed(message, reply, lies)
                except (TypeError, ValueError):
                    continue  # Flower's own records do not take it
        return [reply]

    strategy = FedspamStrategy(
        method, np.ones(3, np.float32), min_available_nodes=NODES - 1, fraction_evaluate=1.0,
        replies=Replies(quorum=0.5, retries=0), secure=secure,
    )  # fmt: skip
    grid = LoopbackGrid(app, NODES, twist=twist)
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        result = strategy.start(grid, to_arrays(np.ones(3, np.float32)), num_rounds=1, timeout=5)
    finally:
        log.setLevel(before)
    row = result.train_metrics_clientapp[1]
    # a share that cannot be opened is noticed too late: the sum is lost, and the round is void
    assert row["train.accepted"] >= 2 or STAGES[stage] == "query.secure_shares"
    assert np.isfinite(result.arrays["params"].numpy()).all()


def seeds_server() -> Iterator[bytes]:
    yield bytes([1, 0, 5, 0, 0, 0])  # a note with an empty text
    for stage in range(len(STAGES)):
        yield bytes([stage, 1, 0, 3, 0, 2, 3, 3, 3, 9, 8, 7, 6, 5, 4, 3, 2, 1])
        yield bytes([stage, 0, 1, 0, 5, 40, 0, 4, 200, 7, 200, 0, 4])
        yield bytes([stage, 0, 0, 0, 7, 3, 0])


# --- what a client is asked in a secure sum ---

PROTOCOL = ("query.secure_keys", "query.secure_shares", "train.train", "query.secure_unmask")


def run_secure(data: bytes) -> None:
    """A sum of which one message to client 0 is changed: it answers or refuses, raises nothing, and never says twice
    what it holds of a sum."""
    from flwr.app import ConfigRecord

    from fedspam.flower import FedspamStrategy, LoopbackGrid, Replies, to_arrays

    choices = Choices(data)
    stage, (method, app, secure) = choices.of(PROTOCOL), federation(True)
    revealed = [0]

    def twist(client: int, message: Any, answer: Callable[[], Any]) -> list[Any]:
        kind, lies = message.metadata.message_type, Choices(choices.left)
        if client == 0 and kind == stage:
            for _ in range(1 + lies.number(3)):
                held = dict(message.content.config_records["secure"])
                entry = lies.of(("session", "ids", "size", "sealing", "masking", "sealed", "promised", "arrived"))
                old = held.get(entry)
                if isinstance(old, list) and old and lies.number(2):
                    old[lies.number(len(old))] = lies.take(80) if isinstance(old[0], bytes) else lies.number(NODES + 1)
                else:
                    held[entry] = lies.value()
                with contextlib.suppress(TypeError, ValueError):  # Flower's own records do not take it
                    message.content["secure"] = ConfigRecord(held)
        reply = answer()
        assert reply.has_content(), reply.error
        revealed[0] += client == 0 and "shares" in reply.content.config_records.get("secure", {})
        return [reply]

    first = np.ones(3, np.float32)
    strategy = FedspamStrategy(
        method, first, min_available_nodes=NODES, replies=Replies(quorum=0.5, retries=0), secure=secure
    )
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        strategy.start(LoopbackGrid(app, NODES, twist=twist), to_arrays(first), num_rounds=1, timeout=5)
    finally:
        log.setLevel(before)
    assert revealed[0] <= 1


def seeds_secure() -> Iterator[bytes]:
    for stage in range(len(PROTOCOL)):
        yield bytes([stage, 0, 1, 1, 0, 2])
        yield bytes([stage, 2, 5, 0, 1, 9, 8, 7, 6, 7, 1, 2])


# --- files that travel: trained models, and the works of a method ---


def seeds_model() -> Iterator[bytes]:
    from fedspam import models

    for made in (models.mlp(2, 2, hidden=(3,)), models.softmax_regression(2, 3)):
        yield models.save(FOLDER / "seed.safetensors", made.init(0), model=made).read_bytes()


def run_model(data: bytes) -> None:
    from fedspam import models

    path = FOLDER / "model.safetensors"
    path.write_bytes(sealed(data))
    models.load(path)


def run_works(data: bytes) -> None:
    from fedspam_client.works import Works

    path = FOLDER / "a.works"
    path.write_bytes(sealed(data))
    Works.read(path)


def seeds_works() -> Iterator[bytes]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what Flower imports
        from fedspam.flower import export_works
    from fedspam.methods import spam_pp

    path = FOLDER / "seed.works"
    export_works(path, spam_pp(1, step_size=0.5, fresh_weight=0.3), np.ones(2, np.float32))
    yield path.read_bytes()


TARGETS = {
    "wire": Target(run_wire, (ValueError,), seeds_wire),
    "arrays": Target(run_arrays, (strict.MalformedError,), seeds_arrays),
    "json": Target(run_json, (strict.MalformedError,), seeds_json),
    "unpack": Target(run_unpack, (records.RecordError,), seeds_unpack),
    "folder": Target(run_folder, (records.RecordError,), seeds_folder),
    "config": Target(run_config, (config.ConfigError,), seeds_config),
    "libsvm": Target(
        from_file(libsvm.read_libsvm), (ValueError,), lambda: iter([b"+1 1:0.5 3:2 # b\n\n-1 2:1e3\n", b"1\n2 7:1\n"])
    ),
    "libsvm_gzip": Target(from_file(libsvm.read_libsvm, ".gz"), (ValueError,), seeds_gzip),
    "libsvm_bzip": Target(from_file(libsvm.read_libsvm, ".bz2"), (ValueError,), seeds_bzip),
    "npz": Target(from_file(read_npz), (ValueError,), seeds_npz),
    "idx": Target(from_file(idx.read_idx), (ValueError,), seeds_idx),
    "idx_gzip": Target(
        from_file(idx.read_idx, ".gz"), (ValueError,), lambda: (gzip.compress(seed, mtime=0) for seed in seeds_idx())
    ),
    "leaf": Target(from_file(read_by_client(leaf.read_leaf), ".json"), (ValueError,), seeds_leaf),
    "csv": Target(
        from_file(read_by_client(lambda path: table.read_table(path, client="client", label="label"))),
        (ValueError,),
        seeds_csv,
    ),
    "server": Target(run_server, (), seeds_server, needs="flwr"),
    "secure": Target(run_secure, (RuntimeError,), seeds_secure, needs="flwr"),  # a run of which every round is void
    "model": Target(run_model, (ValueError, records.RecordError), seeds_model),
    "works": Target(run_works, (ValueError, records.RecordError), seeds_works, needs="flwr"),
    "delays": Target(from_file(MeasuredDelay.read), (ValueError,), seeds_delays),
    "roles": Target(run_roles, (ValueError,), seeds_roles),
    "tff": Target(from_file(read_by_client(tff.read_tff)), (ValueError,), seeds_tff, needs="h5py"),
    "heart": Target(
        from_file(heart._read_hospital),
        (ValueError,),
        lambda: iter(
            [b"63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n28,1,2,130,132,0,2,185,0,0,?,?,?,1\n"]
        ),
    ),
}

"""A run on disk: its configuration, its rows, and checkpoints from which it continues to the same bits.

A run folder holds

- ``manifest.json``: the resolved configuration (`identity`), the versions and the machine, and how the run ended;
- ``rows.bin``: one frame per segment, a safetensors with the rows and probes of its rounds; it is only appended to;
- ``checkpoint-<round>.safetensors``: the states after the last few segments; ``best.safetensors``: the best one;
- ``model.safetensors``: the trained parameters by plain names, once the run has ended; `fedspam.load` reads it.

Every file but the rows is written under another name, flushed, and renamed. Rows are flushed before the checkpoint that
needs them. So a process that dies at any moment leaves a folder that resumes. Every file carries a hash of itself. A
damaged file is named, and the newest good state with a complete past is used. Nothing is ever unpickled.
"""

import functools
import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from fedspam._internal import checks, describe, files, hosts, strict, trees
from fedspam._internal.describe import manifest
from fedspam._internal.files import FORMAT, DamagedError, RecordError, write
from fedspam._internal.strict import MIB
from fedspam.simulation.row_tables import Columns, joined, named_part, round_of, tables
from fedspam.simulation.status import RUNNING, Status

__all__ = ["FORMAT", "Keep", "RecordError", "Saved", "Store", "identity", "manifest", "read", "write"]

MANIFEST = 16 * MIB  # the longest manifest that is read
DEPTH = 100  # and its levels
# what may change the last bits of a result
ENVIRONMENT = ("fedspam", "jax", "jaxlib", "python", "device", "devices", "cores")

ROUNDING = 1e-3  # relative, up to which two numbers may differ by rounding alone
SENT = Path("what the first process read")


@dataclass(frozen=True)
class Keep:
    """How often checkpoints are written, and which of them stay.

    Arguments:
        last: how many of the newest stay.
        best: the name of a probe; the checkpoint where it was best stays as well.
        largest: whether the largest value is the best, instead of the smallest.
        every: rounds between two checkpoints. It changes no result.
    """

    last: int = 2
    best: str | None = None
    largest: bool = False
    every: int = 1000

    def __post_init__(self) -> None:
        checks.whole("every", self.every, 1)
        checks.whole("last", self.last, 1, "a run cannot resume without a checkpoint")

    @property
    def measure(self) -> str:
        """The meaning of best, in words; empty if no best state is kept."""
        return "" if self.best is None else f"{'largest' if self.largest else 'smallest'} {self.best}"


class Saved(NamedTuple):
    """A run as its folder holds it: the state after `done` rounds, and rows and probes by segment."""

    carry: Any
    done: int
    rows: list[dict[str, np.ndarray]]
    probes: list[dict[str, np.ndarray]]


def identity(method: Any, population: Any, params: Any, key: Any, **options: Any) -> dict[str, Any]:
    """Everything that determines the bits of a run. A resumed run must have the same."""
    return describe.describe(
        {
            "method": method,
            "population": population,
            "params": params,
            "key": key,
            **options,
            "x64": jnp.result_type(float) == jnp.float64,
        }
    )


def _in_first(method: Callable[..., None]) -> Callable[..., None]:
    """Let the first process alone act on a shared store. What fails there fails in every process, with its words."""

    @functools.wraps(method)
    def call(self: "Store", *arguments: Any, **options: Any) -> None:
        act = functools.partial(method, self, *arguments, **options)
        hosts.first(act) if self._shared else act()

    return call


class Store:
    """The folder of one run, locked while it is open: ``with Store(folder) as store``.

    If it is `shared`, every process of the program makes the same calls: the first reads and writes the folder, and the
    others hear what it read.
    """

    def __init__(self, folder: str | Path, keep: Keep | None = None, *, shared: bool = False) -> None:
        self.folder, self._shared = Path(folder), shared and jax.process_count() > 1
        self.keep = keep or Keep()
        self._manifest: dict[str, Any] = {}
        self.run = ""  # the hash of the run's identity, which all its files carry
        self._end = 0  # of the good part of the rows
        self._score: float | None = None  # of the best state so far

    def __enter__(self) -> "Store":
        self._lock_folder()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._shared or jax.process_index() == 0:
            self._lock.release()

    @_in_first
    def _lock_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(f"cannot make the folder {self.folder}: {error.strerror}; choose another") from error
        self._lock = files.Lock(self.folder)
        try:
            for kind in ("checkpoint-*.safetensors", "best.safetensors", "manifest.json"):
                for stale in self.folder.glob(f".{kind}.partial"):
                    files.remove(stale)
        except RecordError:
            self._lock.release()
            raise

    def open(self, identity: Mapping[str, Any], like: Callable[[], Any], *, resume: bool) -> Saved | None:
        """The run of this folder, to be resumed; None if there is none, and the run begins."""
        saved = self.load(identity, like) if resume else None
        if saved is None:
            self.begin(identity, over=resume)
        return saved

    @_in_first
    def begin(self, identity: Mapping[str, Any], *, over: bool = False) -> None:
        """Start a run here. A folder that holds something else is refused; with `over`, the same run begins again."""
        old = [path for path in map(self.folder.joinpath, ("rows.bin", "best.safetensors")) if path.exists()]
        if not (over and self._manifest):
            path = self.folder / "manifest.json"
            if self._numbers():
                raise RecordError(f"{self.folder} already holds a run; resume it, or choose another folder")
            if (old or path.exists()) and "identity" not in _loosely(path):
                raise RecordError(f"{(old or [path])[0]} does not belong to a run; choose another folder")
        for path in [*old, *map(self._path, self._numbers())]:
            files.remove(path)
        self.run, self._end, self._score = describe.digest(identity), 0, None
        facts = {"format": FORMAT, "started": datetime.now(UTC).isoformat(timespec="seconds")}
        self._manifest = {**facts, **manifest(), "status": RUNNING.as_json(), "identity": identity}
        self._write_manifest()

    @_in_first
    def append(
        self, done: int, carry: PyTree, rows: Columns, probes: Columns, *, probed: bool = True, seconds: float = 0.0
    ) -> None:
        """Save the rows of a segment, then the state after it, so that a state never lacks its past.

        `probed` says whether the last value of each probe belongs to this state; `seconds` is the time of the rounds.
        """
        facts = {"run": self.run, "round": str(done)}
        # the time stands with the rows only, so that states are equal to the bit
        frame = files.pack(_columns(rows, probes), kind="rows", **facts, seconds=f"{seconds:.6f}")
        self._end = files.append(self.folder / "rows.bin", frame, self._end)
        score = self._scored(probes) if probed else None
        names, leaves = _named(carry)
        facts |= {"score": str(score), "measure": self.keep.measure}
        data = files.pack(dict(zip(names, map(plain, leaves), strict=True)), kind="state", **facts)
        if score is not None and (self._score is None or score < self._score):
            write(self.folder / "best.safetensors", data)
            self._score = score
        write(self._path(done), data)
        for old in self._numbers()[: -self.keep.last]:
            files.remove(self._path(old))

    @_in_first
    def finish(self, status: Status) -> None:
        """Note in the manifest how the run ended."""
        if self._manifest.get("status") != status.as_json():
            self._manifest["status"] = status.as_json()
            self._write_manifest()

    def load(self, identity: Mapping[str, Any], like: Callable[[], Any]) -> Saved | None:
        """The newest good state with all rows before it; None if the run has to begin again."""
        if not self._shared:
            return self._loaded(identity, like)
        data = hosts.on_first(lambda: _packed(self._loaded(identity, like)))
        return _unpacked(data, jax.eval_shape(like)) if data else None

    def _loaded(self, identity: Mapping[str, Any], like: Callable[[], Any]) -> Saved | None:
        self.run = describe.digest(identity)
        numbers = self._numbers()
        if not self._recognise(identity, numbers):
            return None
        shapes = jax.eval_shape(like)
        frames, trouble = files.frames(self.folder / "rows.bin") if numbers else ([], None)
        frames = [frame for frame in frames if frame.facts.get("run") == self.run]
        rounds = [round_of(frame.facts) for frame in frames]
        for done in reversed(numbers):
            try:
                carry = self._checkpoint(done, shapes)
                if done not in rounds:
                    raise DamagedError(trouble or f"the rows before round {done} are missing in {self.folder}")
            except DamagedError as error:
                warnings.warn(f"{error}; going back to the state before it", stacklevel=6)
                files.remove(self._path(done))  # otherwise it would seem newer than what is written from now on
                continue
            past = frames[: rounds.index(done) + 1]
            self._end = past[-1].end
            self._score = self._best_score(shapes)
            return Saved(carry, done, *tables(past, identity, self.folder / "rows.bin"))
        if numbers:
            warnings.warn(f"no good state is left in {self.folder}; the run begins again", stacklevel=6)
        return None

    def peek(self, shapes: PyTree, best: bool) -> tuple[Any, int]:
        """The newest good state, or the best, and after how many rounds it was reached; the folder may be in use."""
        self.run = describe.digest((facts := _manifest(self.folder / "manifest.json"))["identity"])
        if best:
            carry, facts = self._state(self.folder / "best.safetensors", shapes)
            return carry, round_of(facts)
        trouble = f"{self.folder} holds no good state; its status is '{Status.from_json(facts.get('status'))}'"
        for number in reversed(self._numbers()):
            try:
                return self._checkpoint(number, shapes), number
            except DamagedError as error:
                trouble = str(error)
        raise RecordError(trouble)

    def _recognise(self, identity: Mapping[str, Any], numbers: list[int]) -> bool:
        """Whether the folder holds this run; raises if it holds another."""
        path = self.folder / "manifest.json"
        try:
            self._manifest = _manifest(path)
        except DamagedError as error:
            if not numbers and not path.exists():
                return False
            if not any(self._is_ours(number) for number in numbers):
                raise RecordError(
                    f"{error}, and no checkpoint beside it is of this run, so the folder cannot be identified; "
                    "start in another folder"
                ) from None
            warnings.warn(f"{error}; the checkpoints belong to this run, so it is written again", stacklevel=7)
            self._manifest = {"format": FORMAT, **manifest(), "status": RUNNING.as_json(), "identity": identity}
            self._write_manifest()
            return True
        now, then = manifest(), self._manifest
        changed = [f"{n} changed from {then[n]} to {now[n]}" for n in ENVIRONMENT if n in then and then[n] != now[n]]
        same_python = str(then.get("python")).split(".")[:2] == now["python"].split(".")[:2]
        strip = (lambda value: value) if same_python else describe.without_code
        differences = list(describe.differences(strip(then["identity"]), strip(json.loads(json.dumps(identity)))))
        if any(not (changed and _is_computed(*difference)) for difference in differences):
            told = "; ".join(f"{where} changed from {old} to {new}" for where, old, new in differences[:8])
            remedy = "Resume with the same settings, or choose another folder"
            if changed:
                remedy = f"Also, {', '.join(changed)}, which may change what is computed of the data. {remedy}"
            raise RecordError(f"{self.folder} holds another run: {told} since it began. {remedy}")
        if changed:
            warnings.warn(f"{', '.join(changed)}: the last bits of the results may differ from here on", stacklevel=7)
        self.run = describe.digest(then["identity"])
        return True

    def _is_ours(self, number: int) -> bool:
        try:
            path = self._path(number)
            _, facts = files.unpack(files.read(path, size=files.FRAME), path, size=files.FRAME)
        except DamagedError:
            return False
        return facts.get("run") == self.run

    def _checkpoint(self, number: int, shapes: PyTree) -> Any:
        """The state after so many rounds. A file may have been copied or renamed, so its header has to say so too."""
        carry, facts = self._state(self._path(number), shapes)
        if round_of(facts) != number:
            raise DamagedError(f"{self._path(number)} holds the state after round {facts.get('round')}, not {number}")
        return carry

    def _state(self, path: Path, shapes: PyTree) -> tuple[Any, dict[str, str]]:
        names, leaves = _named(shapes)
        size = files.HEADER + sum(16 * leaf.size for leaf in leaves)
        arrays, facts = files.unpack(files.read(path, size=size), path, size=size)
        if facts.get("run") != self.run or facts.get("kind") != "state":
            raise DamagedError(f"{path} belongs to another run")
        if arrays.keys() != set(names):  # it is good, so another version wrote it: what is not damaged is not removed
            kept, due = (
                ", ".join(sorted(part)[:3]) for part in (arrays.keys() - set(names), set(names) - arrays.keys())
            )
            raise RecordError(
                f"{path} holds a state that has {kept or 'nothing'} where this version of the method has "
                f"{due or 'nothing'}; resume with the version of fedspam that began it, or start in another folder"
            )
        return jax.tree.unflatten(
            jax.tree.structure(shapes),
            [restored(arrays[name], leaf, path) for name, leaf in zip(names, leaves, strict=True)],
        ), facts

    def _scored(self, probes: Mapping[str, np.ndarray]) -> float | None:
        """The last value of the probe that decides, with the sign that makes less better."""
        if self.keep.best is None:
            return None
        if self.keep.best not in probes:
            raise ValueError(f"best = {self.keep.best!r} is not a probe of this run; it has {sorted(probes)}")
        if not len(probes[self.keep.best]):
            return None
        value = float(probes[self.keep.best][-1])
        return None if not math.isfinite(value) else -value if self.keep.largest else value

    def _best_score(self, shapes: PyTree) -> float | None:
        path = self.folder / "best.safetensors"
        if self.keep.best is None or not path.exists():
            return None
        try:
            facts = self._state(path, shapes)[1]
            if facts.get("measure") != self.keep.measure:
                raise DamagedError(f"{path} is the {facts.get('measure')}, not the {self.keep.measure}")
            return float(facts["score"])
        except (DamagedError, KeyError, ValueError) as error:
            warnings.warn(f"{error}; it is removed, and the best state of the coming rounds replaces it", stacklevel=7)
            files.remove(path)
            return None

    def _write_manifest(self) -> None:
        facts = {name: value for name, value in self._manifest.items() if name != "sha256"}
        sealed = {"sha256": describe.digest(facts), **facts}
        write(self.folder / "manifest.json", json.dumps(sealed, indent=1, allow_nan=False).encode())

    def _path(self, number: int) -> Path:
        return self.folder / f"checkpoint-{number:09d}.safetensors"

    def _numbers(self) -> list[int]:
        names = [path.stem.removeprefix("checkpoint-") for path in self.folder.glob("checkpoint-*.safetensors")]
        return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 19)


def read(folder: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The manifest, the rows and the probes of a run; rows may be cut off while it runs, and absent before a state."""
    facts = _manifest(Path(folder) / "manifest.json")
    path = Path(folder) / "rows.bin"
    frames, trouble = files.frames(path)
    trouble = trouble or (None if frames else f"{path} is empty: it was cut off")
    if (
        trouble
        and Status.from_json(facts.get("status")) != RUNNING
        and any(Path(folder).glob("checkpoint-*.safetensors"))
    ):
        warnings.warn(f"{trouble}; the rows before it are read", stacklevel=2)
    rows, probes = tables(frames, facts["identity"], path)
    return facts, joined(rows), joined(probes)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        facts = strict.json_object(files.read(path, size=MANIFEST), size=MANIFEST, depth=DEPTH)
    except strict.MalformedError as error:
        raise DamagedError(f"{path} is damaged: {error}") from None
    seal = facts.pop("sha256", None)
    if seal != describe.digest(facts) or not isinstance(facts.get("identity"), dict):
        raise DamagedError(f"{path} is damaged: its hash does not fit its content")
    if facts.get("format") != FORMAT:
        raise RecordError(f"{path} has format {facts.get('format')}, this version of fedspam reads {FORMAT}")
    return facts


def _loosely(path: Path) -> dict[str, Any]:
    try:
        return strict.json_object(files.read(path, size=MANIFEST), size=MANIFEST, depth=DEPTH)
    except (DamagedError, strict.MalformedError):
        return {}


def _is_computed(where: str, old: str, new: str) -> bool:
    """Whether a difference may be the last bits of what a probe computed from the clients, which are compared too."""
    if not where.startswith("probe.") or where.endswith(".sha256"):
        return where.startswith("probe.")
    try:
        return math.isclose(float(old), float(new), rel_tol=ROUNDING)
    except ValueError:
        return False


def _named(tree: PyTree) -> tuple[list[str], list[Any]]:
    """Unique names for leaves: their number and their path."""
    return [f"{number:04d} {name}" for number, name in enumerate(trees.names(tree))], jax.tree.leaves(tree)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def plain(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def restored(array: np.ndarray, like: Any, path: Path) -> jax.Array:
    impl: list[Any] = []
    if _is_key(like):  # only a value or a tracer knows its kind of key
        jax.eval_shape(lambda key: impl.append(jax.random.key_impl(key)), like)
    due = jax.eval_shape(jax.random.key_data, like) if impl else like
    if array.shape != due.shape or array.dtype != due.dtype:
        raise DamagedError(
            f"{path} does not hold a state of this method: {array.dtype}{list(array.shape)} where "
            f"{due.dtype}{list(due.shape)} should be"
        )
    whole = jnp.array(array)
    return jax.random.wrap_key_data(whole, impl=impl[0]) if impl else whole


def _packed(saved: Saved | None) -> bytes | bytearray:
    """A run as bytes; none for None."""
    if saved is None:
        return b""
    arrays = {f"state.{number}": plain(leaf) for number, leaf in enumerate(jax.tree.leaves(saved.carry))}
    arrays |= _columns(joined(saved.rows), joined(saved.probes))
    return files.pack(arrays, round=str(saved.done))


def _unpacked(data: bytes, shapes: PyTree) -> Saved:
    arrays, facts = files.unpack(data, SENT, size=len(data))
    leaves = [restored(arrays[f"state.{n}"], leaf, SENT) for n, leaf in enumerate(jax.tree.leaves(shapes))]
    carry = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    return Saved(carry, int(facts["round"]), *([named_part(arrays, kind)] for kind in ("row.", "probe.")))


def _columns(rows: Columns, probes: Columns) -> dict[str, np.ndarray]:
    """Rows and probes in one table, as `named_part` takes them apart."""
    return {f"{kind}.{name}": part for kind, all in (("row", rows), ("probe", probes)) for name, part in all.items()}

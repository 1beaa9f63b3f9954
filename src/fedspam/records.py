"""A run on disk: what was run, its rows, and checkpoints from which it continues to the same bits.

Every file is written whole under another name, flushed, and renamed, so a run that dies at any moment leaves only
complete files behind. Arrays are kept as safetensors with a hash: nothing is ever unpickled.
"""

import dataclasses
import hashlib
import json
import os
import platform
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import PyTree

from fedspam import __version__

FORMAT = 1
KEEP = 2  # checkpoints kept, the newest ones


class RecordError(RuntimeError):
    """A run folder that cannot be used as asked; says what to do instead."""


def describe(value: Any) -> Any:
    """A value as plain JSON: structs by type and field, functions by name, arrays by shape, dtype and hash."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        return float(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__qualname__, **fields}
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"key": np.asarray(jax.random.key_data(value)).tolist()}
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        if array.ndim == 0:
            return array.item()
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
        return {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": digest}
    if isinstance(value, dict):
        return {str(name): describe(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [describe(part) for part in value]
    if callable(value):
        return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    return str(value)


def identity(algorithm: Any, population: Any, params: Any, key: Any, **options: Any) -> dict[str, Any]:
    """All that decides the bits of a run; a resumed run must have the same."""
    return describe(
        {
            "algorithm": algorithm,
            "population": population,
            "params": params,
            "key": key,
            **options,
            "x64": jnp.result_type(float) == jnp.float64,
        }
    )


def manifest(**facts: Any) -> dict[str, Any]:
    """Where and with what something was made."""
    return {
        "fedspam": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "commit": _commit(),
        **facts,
    }


def _commit() -> str | None:
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # before the first commit git fails and still prints "HEAD"
    return found.stdout.strip() or None if found.returncode == 0 else None


def write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and have it on the disk before returning."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RecordError(
            f"cannot write {path}: {error.strerror}; free space or choose another folder, then resume: "
            "what was saved before is still good"
        ) from error


def pack(arrays: dict[str, np.ndarray]) -> bytes:
    """Named arrays as safetensors behind their own hash."""
    body = safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    return hashlib.sha256(body).digest() + body


def unpack(data: bytes, source: Path) -> dict[str, np.ndarray]:
    if len(data) < 32 or hashlib.sha256(data[32:]).digest() != data[:32]:
        raise RecordError(f"{source} is damaged: its hash does not fit its content")
    try:
        return safetensors.numpy.load(data[32:])
    except (safetensors.SafetensorError, ValueError) as error:
        raise RecordError(f"{source} is damaged: {error}") from None


class Store:
    """The folder of one run."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def begin(self, identity: dict[str, Any]) -> None:
        """Start a run here. A folder that holds another run is refused."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(f"cannot make the folder {self.folder}: {error.strerror}; choose another") from error
        if (self.folder / "manifest.json").exists() and self._numbers("checkpoint"):
            raise RecordError(f"{self.folder} already holds a run; resume it, or choose another folder")
        for stale in self.folder.glob("rows-*.safetensors"):
            stale.unlink()
        text = json.dumps({"format": FORMAT, **manifest(), "identity": identity}, indent=1)
        write(self.folder / "manifest.json", text.encode())

    def append(self, done: int, carry: PyTree, rows: dict[str, np.ndarray], probes: dict[str, np.ndarray]) -> None:
        """Save the rows of a segment and the state after it; the rows first, so that a state never lacks its past."""
        columns = {f"row.{name}": column for name, column in rows.items()}
        columns |= {f"probe.{name}": column for name, column in probes.items()}
        write(self._path("rows", done), pack(columns))
        leaves = {f"{number:04d}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(carry))}
        write(self._path("checkpoint", done), pack(leaves))
        for old in self._numbers("checkpoint")[:-KEEP]:
            self._path("checkpoint", old).unlink(missing_ok=True)

    def start(self, probes: dict[str, np.ndarray]) -> None:
        write(self._path("rows", 0), pack({f"probe.{name}": column for name, column in probes.items()}))

    def load(self, identity: dict[str, Any], like: Callable[[], Any]) -> tuple[Any, int, list[Any], list[Any]]:
        """The newest good state with all rows before it; (None, 0, [], []) where there is none yet."""
        nothing = (None, 0, [], [])
        path = self.folder / "manifest.json"
        if not path.exists():
            if any(self.folder.glob("*.safetensors")):
                raise RecordError(f"{path} is missing, so it is not known what was run here; start in another folder")
            return nothing
        try:
            saved = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RecordError(f"{path} is not readable ({error}); start in another folder") from None
        if saved.get("format") != FORMAT:
            raise RecordError(f"{path} has format {saved.get('format')}, this version writes {FORMAT}")
        changed = list(_changes(saved["identity"], json.loads(json.dumps(identity))))
        if changed:
            raise RecordError("this is not the run of that folder; it differs in " + "; ".join(changed[:8]))
        for done in reversed(self._numbers("checkpoint")):
            try:
                carry = self._carry(done, like)
                rows, probes = self._rows(done)
            except RecordError as error:
                warnings.warn(f"{error}; going back to the state before it", stacklevel=3)
                continue
            return carry, done, rows, probes
        return nothing

    def _carry(self, done: int, like: Callable[[], Any]) -> Any:
        leaves, structure = jax.tree.flatten(jax.eval_shape(like)[0])
        arrays = unpack(_read(self._path("checkpoint", done)), self._path("checkpoint", done))
        loaded = [arrays.get(f"{number:04d}") for number in range(len(leaves))]
        for leaf, array in zip(leaves, loaded, strict=True):
            if array is None or array.shape != leaf.shape or array.dtype != leaf.dtype:
                raise RecordError(f"{self._path('checkpoint', done)} does not hold a state of this method")
        return jax.tree.unflatten(structure, [jnp.asarray(array) for array in loaded])

    def _rows(self, done: int) -> tuple[list[Any], list[Any]]:
        rows, probes = [], []
        for number in [n for n in self._numbers("rows") if n <= done]:
            columns = unpack(_read(self._path("rows", number)), self._path("rows", number))
            part = {name[4:]: column for name, column in columns.items() if name.startswith("row.")}
            if part:
                rows.append(part)
            probes.append({name[6:]: column for name, column in columns.items() if name.startswith("probe.")})
        if sum(len(part["void"]) for part in rows) != done:
            raise RecordError(f"rows before round {done} are missing in {self.folder}")
        return rows, probes

    def _path(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{number:09d}.safetensors"

    def _numbers(self, kind: str) -> list[int]:
        return sorted(int(path.stem.split("-")[1]) for path in self.folder.glob(f"{kind}-*.safetensors"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from None


def _changes(old: Any, new: Any, where: str = "") -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from _changes(old.get(name), new.get(name), f"{where}.{name}" if where else name)
    elif old != new:
        yield f"{where}: {json.dumps(old)} was, {json.dumps(new)} is"

"""The folder of a run on several hosts: the first process reads and writes it, and the others hear what it read."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from fedspam._internal import files, hosts
from fedspam.simulation import records
from fedspam.simulation.records import Keep, Saved, Store, joined
from fedspam.simulation.status import Status

SENT = Path("what the first process read")


def store_of(folder: str | Path, keep: Keep | None = None) -> "Store | SharedStore":
    """The folder of a run, for as many processes as there are; ``with store_of(folder) as store`` locks it."""
    return SharedStore(folder, keep) if jax.process_count() > 1 else Store(folder, keep)


class SharedStore:
    """A `Store` that only the first process opens. What fails there fails in every process, with the same words."""

    def __init__(self, folder: str | Path, keep: Keep | None = None) -> None:
        self._store, self.folder = Store(folder, keep), Path(folder)

    def __enter__(self) -> "SharedStore":
        hosts.first(self._store.__enter__)
        return self

    def __exit__(self, *error: object) -> None:
        if jax.process_index() == 0:
            self._store.__exit__(*error)

    def begin(self, identity: Mapping[str, Any], *, over: bool = False) -> None:
        hosts.first(lambda: self._store.begin(identity, over=over))

    def append(
        self,
        done: int,
        carry: PyTree,
        rows: Mapping[str, np.ndarray],
        probes: Mapping[str, np.ndarray],
        *,
        probed: bool = True,
        seconds: float = 0.0,
    ) -> None:
        hosts.first(lambda: self._store.append(done, carry, rows, probes, probed=probed, seconds=seconds))

    def finish(self, status: Status) -> None:
        hosts.first(lambda: self._store.finish(status))

    def load(self, identity: Mapping[str, Any], like: Callable[[], Any]) -> Saved | None:
        data = hosts.on_first(lambda: _packed(self._store.load(identity, like)))
        return _unpacked(data, jax.eval_shape(like)) if data else None


def _packed(saved: Saved | None) -> bytes | bytearray:
    """A run as bytes; none for None."""
    if saved is None:
        return b""
    arrays = {f"state.{number}": records.plain(leaf) for number, leaf in enumerate(jax.tree.leaves(saved.carry))}
    arrays |= {f"row.{name}": column for name, column in joined(saved.rows).items()}
    arrays |= {f"probe.{name}": column for name, column in joined(saved.probes).items()}
    return files.pack(arrays, round=str(saved.done))


def _unpacked(data: bytes, shapes: PyTree) -> Saved:
    arrays, facts = files.unpack(data, SENT, size=len(data))
    leaves = [records.restored(arrays[f"state.{n}"], leaf, SENT) for n, leaf in enumerate(jax.tree.leaves(shapes))]
    table = lambda kind: {name.removeprefix(kind): part for name, part in arrays.items() if name.startswith(kind)}
    carry = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    return Saved(carry, int(facts["round"]), [table("row.")], [table("probe.")])

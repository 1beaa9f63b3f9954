"""The folder of a run on several hosts: the first process reads and writes it, and the others hear what it read."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax
from jaxtyping import PyTree

from fedspam._internal import files, hosts
from fedspam.simulation import records
from fedspam.simulation.records import Keep, Saved, Store, joined
from fedspam.simulation.status import Status

SENT = Path("what the first process read")


def store_of(folder: str | Path, keep: Keep | None = None) -> Store:
    """The folder of a run, for as many processes as there are; ``with store_of(folder) as store`` locks it."""
    return SharedStore(folder, keep) if jax.process_count() > 1 else Store(folder, keep)


def opened(folder: str | Path | Store | None, keep: Keep) -> AbstractContextManager[Store | None]:
    """The store of a folder, locked inside ``with``. One that is open already stays open; None for no folder."""
    return nullcontext(folder) if folder is None or isinstance(folder, Store) else store_of(folder, keep)


class SharedStore(Store):
    """A `Store` that only the first process opens. What fails there fails in every process, with the same words."""

    def __enter__(self) -> "SharedStore":
        hosts.first(super().__enter__)
        return self

    def __exit__(self, *error: object) -> None:
        if jax.process_index() == 0:
            super().__exit__(*error)

    def begin(self, identity: Mapping[str, Any], *, over: bool = False) -> None:
        hosts.first(lambda: Store.begin(self, identity, over=over))

    def append(self, *arguments: Any, **options: Any) -> None:
        hosts.first(lambda: Store.append(self, *arguments, **options))

    def finish(self, status: Status) -> None:
        hosts.first(lambda: Store.finish(self, status))

    def load(self, identity: Mapping[str, Any], like: Callable[[], Any]) -> Saved | None:
        data = hosts.on_first(lambda: _packed(Store.load(self, identity, like)))
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
    carry = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    return Saved(carry, int(facts["round"]), *([records.named_part(arrays, kind)] for kind in ("row.", "probe.")))

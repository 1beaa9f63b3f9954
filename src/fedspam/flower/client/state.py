"""What a client remembers between rounds: in Flower's ``Context.state``, and on its disk if it has a folder for it.

The server says with each message which memory the work starts from. A reply may be lost or refused after the client has
done its work, and a round may be void after replies were accepted; so a client keeps its memory of before, until
the server has said that it is no longer needed.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from jaxtyping import PyTree

from fedspam._internal import files, trees
from fedspam.federation import wire

FIRST = 0  # the memory before anything was asked
FOLDER = "memory-folder"  # the entry of a node's configuration that names its folder
SLOT = "fedspam-memory"


class Memory:
    """The memories of one client by version: the number of the exchange that left them.

    Arguments:
        context: where they live while a run lasts.
        first: what a client remembers before it is first asked.
        run: names the run, so that no memory of another is taken up.
        client: the number of the client.
    """

    def __init__(self, context: Context, first: PyTree, run: str, client: int) -> None:
        self._context, self._first, self._run = context, jax.tree.map(jnp.asarray, first), run
        folder = context.node_config.get(FOLDER)
        self._path = None if folder is None else Path(str(folder)) / f"client-{client}.safetensors"

    def at(self, version: int) -> PyTree | None:
        """The memory that this exchange left; None if it is lost."""
        if version == FIRST or not jax.tree.leaves(self._first):
            return self._first
        data = self._stored().get(version)
        return None if data is None else jax.tree.map(jnp.asarray, wire.decode(data, {"memory": self._first})["memory"])

    def keep(self, memory: PyTree, version: int, others: set[int]) -> None:
        """Remember this, and of what was remembered before only these versions."""
        if not jax.tree.leaves(self._first):
            return
        stored = {number: data for number, data in self._stored().items() if number in others}
        cast = jax.tree.map(lambda leaf, like: np.asarray(leaf, like.dtype), memory, self._first)
        stored[version] = wire.encode({"memory": cast})
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            columns = {str(number): np.frombuffer(data, np.uint8) for number, data in stored.items()}
            files.write(self._path, files.pack(columns, kind="memory", run=self._run))
        record = ArrayRecord({str(v): Array("uint8", (len(data),), "safetensors", data) for v, data in stored.items()})
        self._context.state[SLOT] = record

    def _stored(self) -> dict[int, bytes]:
        record = self._context.state.array_records.get(SLOT)
        if record is not None:
            return {int(version): array.data for version, array in record.items()}
        if self._path is None or not self._path.exists():
            return {}
        limit = files.HEADER + 4 * (1024 * (1 + len(jax.tree.leaves(self._first))) + 8 * trees.size(self._first))
        try:
            columns, facts = files.unpack(files.read(self._path, size=limit), self._path, size=limit)
        except files.DamagedError:
            return {}
        return {int(v): column.tobytes() for v, column in columns.items()} if facts.get("run") == self._run else {}


class Held:
    """The fields that the client was sent earlier in the round and will need again in it."""

    SLOT = "fedspam-held"

    def __init__(self, context: Context) -> None:
        self._context = context

    def of(self, round: str, like: dict[str, Any]) -> dict[str, Any] | None:
        """The fields as they were sent in this round; None if they were not."""
        if not like:
            return {}
        head = self._context.state.config_records.get(self.SLOT)
        record = self._context.state.array_records.get(self.SLOT + "-fields")
        if head is None or record is None or head.get("round") != round or not like.keys() <= record.keys():
            return None
        return {name: wire.decode(record[name].data, {name: shape})[name] for name, shape in like.items()}

    def keep(self, round: str, fields: dict[str, Any]) -> None:
        if not fields:
            return
        head = self._context.state.config_records.get(self.SLOT)
        before = self._context.state.array_records.get(self.SLOT + "-fields")
        arrays = dict(before) if before is not None and head is not None and head.get("round") == round else {}
        for name, value in fields.items():
            data = wire.encode({name: value})
            arrays[name] = Array("uint8", (len(data),), "safetensors", data)
        self._context.state[self.SLOT] = ConfigRecord({"round": round})
        self._context.state[self.SLOT + "-fields"] = ArrayRecord(arrays)

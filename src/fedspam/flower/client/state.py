"""What a client keeps between messages: in Flower's ``Context.state``, and on its disk if it has a folder.

Each message says from which version of the memory the work starts. A reply may be lost or rejected after the client has
done its work, and a round may be void after replies were accepted. So a client keeps earlier versions until the server
no longer needs them.
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
from fedspam.flower.wire import arrays

FIRST = 0  # the version before the first exchange
FOLDER = "memory-folder"  # the entry of the node-config that names the folder
SLOT = "fedspam-memory"
HELD, HELD_FIELDS = "fedspam-held", "fedspam-held-fields"


class Memory:
    """The memory of one client by version: the number of the exchange that left it."""

    def __init__(self, context: Context, first: PyTree, run: str, client: int) -> None:
        self._context, self._first, self._run = context, jax.tree.map(jnp.asarray, first), run
        folder = context.node_config.get(FOLDER)
        self._path = None if folder is None else Path(str(folder)) / f"client-{client}.safetensors"

    def at(self, version: int) -> PyTree | None:
        """The memory that this exchange left, or None if it is lost."""
        if version == FIRST or not jax.tree.leaves(self._first):
            return self._first
        data = self._stored().get(version)
        return None if data is None else jax.tree.map(jnp.asarray, wire.decode(data, {"memory": self._first})["memory"])

    def keep(self, memory: PyTree, version: int, others: set[int]) -> None:
        """Add this version, and drop all older ones but these others."""
        if not jax.tree.leaves(self._first):
            return
        stored = {number: data for number, data in self._stored().items() if number in others}
        stored[version] = wire.encode({"memory": wire.cast(memory, self._first)})
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            columns = {str(number): np.frombuffer(data, np.uint8) for number, data in stored.items()}
            files.write(self._path, files.pack(columns, kind="memory", run=self._run))
        self._context.state[SLOT] = ArrayRecord({str(v): arrays.array_of(data) for v, data in stored.items()})

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


class HeldFields:
    """The fields that the client was sent earlier in the round and needs again in it."""

    def __init__(self, context: Context) -> None:
        self._state = context.state

    def of(self, round: str, like: dict[str, Any]) -> dict[str, Any] | None:
        """The fields as they were sent in this round, or None if one of them was not."""
        held = self._fields(round)
        if not like.keys() <= held.keys():
            return None
        return {name: wire.decode(held[name].data, {name: shape})[name] for name, shape in like.items()}

    def keep(self, round: str, fields: dict[str, Any]) -> None:
        if not fields:
            return
        encoded = {name: arrays.array_of(wire.encode({name: value})) for name, value in fields.items()}
        self._state[HELD_FIELDS] = ArrayRecord(self._fields(round) | encoded)
        self._state[HELD] = ConfigRecord({"round": round})

    def _fields(self, round: str) -> dict[str, Array]:
        head, record = self._state.config_records.get(HELD), self._state.array_records.get(HELD_FIELDS)
        return {} if head is None or record is None or head.get("round") != round else dict(record)

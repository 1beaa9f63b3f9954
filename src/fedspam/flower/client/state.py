"""What a client keeps between messages: in Flower's ``Context.state``, and on its disk if it has a folder.

Each message says from which version of the memory the work starts. A reply may be lost or rejected after the client has
done its work, and a round may be void after replies were accepted. So a client keeps earlier versions until the server
no longer needs them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context

from ..._internal import files
from ..wire import envelope
from ..wire.node import RefusedError

FIRST = 0  # the version before the first exchange
FOLDER = "memory-folder"  # the entry of the node-config that names the folder
SLOT = "fedspam-memory"
VERSIONS = 4  # kept at once, at most
HELD, HELD_FIELDS = "fedspam-held", "fedspam-held-fields"


class Memory:
    """The memory of one client, encoded, by version: the number of the exchange that left it.

    Arguments:
        first: the memory before the first exchange; None for methods whose clients keep nothing.
    """

    def __init__(self, context: Context, first: bytes | None, run: str, client: int) -> None:
        self._context, self._first, self._client = context, first, client
        self._owner = {"kind": "memory", "run": run, "client": str(client)}
        folder = context.node_config.get(FOLDER)
        self._path = None if folder is None else Path(str(folder)) / f"client-{client}.safetensors"

    def at(self, version: int) -> bytes:
        """The memory that this exchange left."""
        data = (self._first or b"") if version == FIRST else self._stored().get(version)
        if data is None:
            raise RefusedError(
                f"client {self._client} has lost its memory of exchange {version}, which the method needs; to keep "
                f"memories after a run, start its SuperNode with --node-config '{FOLDER}=\"/some/folder\"'"
            )
        return data

    def keep(self, memory: bytes, version: int, others: set[int]) -> None:
        """Add this version, and drop all older ones but these others."""
        if self._first is None:
            return
        stored = {number: data for number, data in self._stored().items() if number in others}
        stored[version] = memory
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            columns = {str(number): np.frombuffer(data, np.uint8) for number, data in stored.items()}
            files.write(self._path, files.pack(columns, **self._owner))
        self._context.state[SLOT] = ArrayRecord({str(v): envelope.array_of(data) for v, data in stored.items()})

    def _stored(self) -> dict[int, bytes]:
        record = self._context.state.array_records.get(SLOT)
        if record is not None:
            return {int(version): array.data for version, array in record.items()}
        if self._path is None or not self._path.exists():
            return {}
        limit = files.HEADER + VERSIONS * (2048 + 2 * len(self._first or b""))
        try:
            columns, facts = files.unpack(files.read(self._path, size=limit), self._path, size=limit)
        except files.DamagedError:
            return {}
        is_own = self._owner.items() <= facts.items()
        return {int(version): column.tobytes() for version, column in columns.items()} if is_own else {}


class HeldFields:
    """The fields, each encoded, that the client was sent earlier in the round and needs again in it."""

    def __init__(self, context: Context) -> None:
        self._state = context.state

    def of(self, round: str, names: Iterable[str], client: int) -> dict[str, bytes]:
        """The fields as they were sent in this round."""
        held, names = self._fields(round), list(names)
        if not set(names) <= held.keys():
            raise RefusedError(
                f"client {client} does not hold {sorted(names)}, which it should have been sent in this round"
            )
        return {name: held[name].data for name in names}

    def keep(self, round: str, fields: Mapping[str, bytes]) -> None:
        if not fields:
            return
        encoded = {name: envelope.array_of(data) for name, data in fields.items()}
        self._state[HELD_FIELDS] = ArrayRecord(self._fields(round) | encoded)
        self._state[HELD] = ConfigRecord({"round": round})

    def _fields(self, round: str) -> dict[str, Array]:
        head, record = self._state.config_records.get(HELD), self._state.array_records.get(HELD_FIELDS)
        return {} if head is None or record is None or head.get("round") != round else dict(record)

"""The file of works: what a client without JAX knows of a method. ``fedspam.flower.export_works`` writes it."""

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedspam_client._shared._internal import files, strict
from fedspam_client._shared._internal.packing import CHECKSUM, Codes, Floats, checksum
from fedspam_client._shared._internal.strict import GIB, MIB, MalformedError
from fedspam_client.program import LightClient, WorkProgram

FORMAT = 1
DEPTH = 200  # levels of the description; a loop in a loop takes four more
Named = dict[str, np.ndarray]


@dataclass(frozen=True)
class WorkField:
    """An array that travels: its name, dtype and shape, and the sections of its payload if it is coded."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    sections: tuple[Floats | Codes, ...] | None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "WorkField":
        found = entry.get("sections")
        sections = None if found is None else tuple(map(_section, found))
        return cls(str(entry["name"]), *strict.array_of(entry["dtype"], entry["shape"]), sections)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def unpacked(self, array: np.ndarray) -> list[np.ndarray]:
        """The sections of an array that arrived, or the array itself."""
        if self.sections is None:
            return [array]
        found, start = [], 0
        for section in self.sections:
            found.append(section.unpack(np.ascontiguousarray(array[start : start + section.bytes])))
            start += section.bytes
        return found

    def packed(self, parts: list[np.ndarray]) -> np.ndarray:
        """The array that is sent, from its sections."""
        if self.sections is None:
            return np.asarray(parts.pop(0), self.dtype, order="C")
        return np.concatenate([section.pack(parts.pop(0)) for section in self.sections])


def _section(entry: Mapping[str, Any]) -> Floats | Codes:
    if not strict.is_sizes([entry.get(name, 0) for name in ("length", "bits", "largest")]):
        raise MalformedError(f"the section {entry!r:.80} has sizes that are not whole numbers from 0 on")
    if "floats" in entry:
        least = -math.inf if entry["least"] is None else float(entry["least"])
        return Floats(entry["length"], strict.dtype_of(entry["floats"]).newbyteorder("<"), least)
    return Codes(entry["length"], entry["bits"], entry["largest"], bool(entry["increasing"]))


class WireMessage:
    """The arrays of a message as they travel, and how they are decoded."""

    def __init__(self, text: Mapping[str, Any]) -> None:
        self.entries = {entry["name"]: WorkField.of(entry) for entry in text["arrays"]}
        self.decode = WorkProgram(text["decode"]) if "decode" in text else None
        self.decoded = [str(entry["name"]) for entry in text.get("decoded", ())]

    def read(self, data: bytes) -> Named:
        """The arrays of a message, whose checksum must be right if it has one."""
        found = strict.fields(data, self.entries)
        coded = {name: array for name, array in found.items() if not name.startswith("@")}
        if CHECKSUM in found and int(found.pop(CHECKSUM)) != int(checksum(coded)):
            raise MalformedError("the checksum of the codes is wrong: they were damaged on their way")
        return found

    def fields(self, found: Named, held: Named, constants: Named, client: LightClient) -> Named:
        """The fields that the arrays stand for, beside those that the client holds."""
        if self.decode is None:
            return found
        inputs = [part for name, array in found.items() for part in self.entries[name].unpacked(array)]
        values = self.decode(constants, client, [*inputs, *held.values()])
        if not all(np.all(np.isfinite(value)) for value in values if np.issubdtype(value.dtype, np.floating)):
            raise MalformedError("the payload stands for a number that is infinite")
        return dict(zip(self.decoded, values, strict=True))


class LightExchange:
    """One exchange of a method: what its message and its reply hold, and the work between them."""

    def __init__(self, text: Mapping[str, Any]) -> None:
        self.work, self.label, self.stateful = str(text["work"]), str(text["label"]), bool(text["stateful"])
        self.message = {entry["name"]: WorkField.of(entry) for entry in text["message"]}
        self.kept = frozenset(text["kept"])  # fields that are needed again in the round
        self.part, self.whole = WireMessage(text["part"]), WireMessage(text["whole"])
        self.reply = [WorkField.of(entry) for entry in text["reply"]]
        self.answer = WorkProgram(text["answer"])

    def replied(self, parts: list[np.ndarray]) -> tuple[Named, list[np.ndarray]]:
        """The named arrays of the reply, and what remains: the memory."""
        found = {entry.name: entry.packed(parts) for entry in self.reply if not entry.name.startswith("@")}
        if any(entry.name == CHECKSUM for entry in self.reply):
            found[CHECKSUM] = np.asarray(checksum(found))
        return found, parts


@dataclass(frozen=True)
class Works:
    """The works of one method."""

    schema: str
    description: Mapping[str, Any]
    params: Mapping[str, WorkField]
    memory: Mapping[str, WorkField]  # of a client
    exchanges: Mapping[str, LightExchange]  # by phase and label
    constants: Named  # of the programs, and the first memory

    @classmethod
    def read(cls, path: str | Path) -> "Works":
        """The works in a file, which ``fedspam.flower.export_works`` wrote."""
        try:
            data = files.read(Path(path), size=4 * GIB)
            if Path(path).suffix == ".json":
                data = base64.b64decode(strict.json_object(data, size=4 * GIB, depth=1)["safetensors"], validate=True)
            arrays, notes = strict.arrays(data, size=4 * GIB, header=256 * MIB)
            text = strict.json_object(notes["works"].encode(), size=256 * MIB, depth=DEPTH)
            if text["format"] != FORMAT:
                raise MalformedError(f"its format is {text['format']}, this client reads {FORMAT}")
            entries = lambda name: {entry["name"]: WorkField.of(entry) for entry in text[name]}
            exchanges = {name: LightExchange(part) for name, part in text["exchanges"].items()}
            constants = {name: np.array(array) for name, array in arrays.items()}
            memory, missing = (
                entries("memory"),
                [entry["name"] for entry in text["memory"] if entry["name"] not in arrays],
            )
            if missing or not isinstance(text["schema"], str) or not isinstance(text["description"], dict):
                raise MalformedError(f"it lacks {missing[0]!r:.80}" if missing else "schema or description is wrong")
            return cls(text["schema"], text["description"], entries("params"), memory, exchanges, constants)
        except (files.DamagedError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise ValueError(
                f"{path} is not a file of works that this client can read ({error}); write it with "
                "fedspam.flower.export_works, with the fedspam of the server"
            ) from None

    @property
    def first_memory(self) -> Named:
        return {name: self.constants[name] for name in self.memory}

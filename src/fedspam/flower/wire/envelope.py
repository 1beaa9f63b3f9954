"""Encoded messages inside Flower's records. Clients without JAX use it too."""

from typing import Any

from flwr.app import Array, ArrayRecord, RecordDict

WIRE = 1  # the version of the messages, and of what a client computes from them
HEADER = "fedspam"  # the name of the record that describes a message
STYPE = "safetensors"  # the serialization of the one array of a message
LONE = "params"  # the name of parameters that are a lone array


def enclose(data: bytes) -> ArrayRecord:
    """Encoded fields as one array, which Flower splits into chunks by itself."""
    return ArrayRecord({"fields": array_of(data)})


def array_of(data: bytes) -> Array:
    """Encoded bytes as an array of Flower."""
    return Array("uint8", (len(data),), STYPE, data)


def enclosed(content: RecordDict) -> bytes:
    """The encoded fields of a message, which must hold exactly one array."""
    found = [array for record in content.array_records.values() for array in record.values()]
    if len(found) != 1 or found[0].stype != STYPE:
        raise ValueError(f"the message has {len(found)} arrays; it must have one, of type {STYPE!r}")
    return found[0].data


def size(content: RecordDict) -> int:
    """The bytes of all records of a message: the names and values of their entries, as Flower counts them.

    Flower's own ``count_bytes`` is not called, because it raises at empty texts and lists.
    """
    return sum(len(name) + _length(value) for record in content.values() for name, value in record.items())


def payload(content: RecordDict) -> int:
    """The bytes of the arrays alone."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def _length(value: Any) -> int:
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, list):
        return sum(map(_length, value))
    if isinstance(value, str | bytes):
        return len(value)
    return 1 if isinstance(value, bool) else 8

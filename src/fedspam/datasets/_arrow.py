"""Parquet, Arrow and Feather files for `open_table`: what they claim is checked before memory is taken for it.

A file of 0.2 MB can hold a gigabyte of zeros. Parquet says in its footer how many rows and bytes it unpacks to; each
message of Arrow says how many rows it has, and each compressed buffer begins with its length.
"""

import io
from typing import Any

DICTIONARY_BATCH, RECORD_BATCH = 2, 3  # kinds of messages
MAGIC, BEGIN = b"ARROW1", 8  # of a file of Arrow, and where its messages begin
MORE = "more than is usual for its size: leave out rows or columns, or write it without compression"


class RefusedTableError(ValueError):
    """A table that is sound and not read."""


def arrow_table(data: bytes, is_parquet: bool, cells: int, size: int) -> Any:
    """The table in a file of pyarrow, if it has at most so many cells and, unpacked, so many bytes."""
    import pyarrow as pa
    from pyarrow import feather, parquet

    if is_parquet:
        file = parquet.ParquetFile(io.BytesIO(data))
        facts = file.metadata
        _check(facts.num_rows * facts.num_columns, cells, "cells")
        _check(sum(facts.row_group(i).total_byte_size for i in range(facts.num_row_groups)), size, "bytes")
        _check_types(file.schema_arrow)
        # a long text that is repeated stays one text
        texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        found = parquet.read_table(io.BytesIO(data), read_dictionary=texts)
    elif data.startswith(MAGIC):
        messages = pa.py_buffer(data)[BEGIN:]
        _check_messages(pa.ipc.MessageReader.open_stream(messages), cells, size)
        with pa.ipc.open_stream(messages) as stream:
            _check_types(stream.schema)
            found = stream.read_all()
    else:
        found = feather.read_table(io.BytesIO(data))  # the first version of Feather, without compression
        _check_types(found.schema)
    _check(found.num_rows * found.num_columns, cells, "cells")
    found.validate(full=True)
    _check(sum(map(_text_bytes, found.columns)), size, "bytes of text")
    return found


def _check(count: int, most: int, what: str) -> None:
    if not 0 <= count <= most:
        raise RefusedTableError(f"it has {count} {what}, at most {most} are read, {MORE}")


def _check_types(schema: Any) -> None:
    """Lists and structures of no bytes can have any number of items, and are not cells of a table."""
    import pyarrow as pa

    for field in schema:
        if pa.types.is_nested(field.type) or pa.types.is_run_end_encoded(field.type):
            raise RefusedTableError(f"the column {field.name[:80]!r} holds {str(field.type)[:80]}: leave it out")


def _text_bytes(column: Any) -> int:
    """At most so many bytes of text come out of a column: those of the longest, for each row of a dictionary."""
    import pyarrow as pa
    from pyarrow import compute as _compute

    compute: Any = _compute  # it makes its functions when it is imported

    total = 0
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type) and len(chunk.dictionary):
            lengths = compute.binary_length(chunk.dictionary.cast(pa.large_binary()))
            total += compute.sum(lengths.take(chunk.indices)).as_py() or 0
        else:
            total += chunk.nbytes
    return total


def _check_messages(messages: Any, cells: int, size: int) -> None:
    """The rows of all batches, and the bytes of their buffers when they are unpacked."""
    rows = unpacked = 0
    for message in messages:
        meta, body = message.metadata.to_pybytes(), message.body
        root = int.from_bytes(meta[:4], "little")
        kind, batch = _field(meta, root, 1), _field(meta, root, 2)
        if not kind or not batch or meta[kind] not in (DICTIONARY_BATCH, RECORD_BATCH):
            continue  # a schema
        batch = _target(meta, batch)
        if meta[kind] == DICTIONARY_BATCH:
            batch = _target(meta, _field(meta, batch, 1))
        length, buffers = _field(meta, batch, 0), _field(meta, batch, 2)
        rows += int.from_bytes(meta[length : length + 8], "little") if length else 0
        _check(rows, cells, "rows")
        if not buffers or not _field(meta, batch, 3):
            continue  # no compression: the buffers are parts of the file
        begin = _target(meta, buffers)
        for at in range(begin + 4, begin + 4 + 16 * int.from_bytes(meta[begin : begin + 4], "little"), 16):
            offset, length = (int.from_bytes(meta[i : i + 8], "little") for i in (at, at + 8))
            said = int.from_bytes(body.slice(offset, 8).to_pybytes(), "little", signed=True) if length else 0
            unpacked += said if said > 0 else length  # -1: this one is not compressed
            _check(unpacked, size, "bytes")


def _field(meta: bytes, table: int, number: int) -> int:
    """Where a field of a table of FlatBuffers stands; 0 if it is left out."""
    fields = table - int.from_bytes(meta[table : table + 4], "little", signed=True)
    at = fields + 4 + 2 * number
    if at + 2 > fields + int.from_bytes(meta[fields : fields + 2], "little"):
        return 0
    offset = int.from_bytes(meta[at : at + 2], "little")
    return table + offset if offset else 0


def _target(meta: bytes, at: int) -> int:
    return at + int.from_bytes(meta[at : at + 4], "little")

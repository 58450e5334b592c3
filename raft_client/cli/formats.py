"""The files that ``zmqraft dump`` writes. All have the same columns: index, term, type, request_id, time, data.

==============  ====================================================================================================
JSON lines      one object per line; ``data``, or ``data_base64`` where it is not UTF-8 text; ``time`` in ISO 8601
MessagePack     one map after another; ``data`` is bin, ``time`` is seconds since 1970
Parquet         ``data`` is binary, ``time`` a timestamp in UTC; needs pyarrow
==============  ====================================================================================================

``type`` is state, config or checkpoint; ``request_id`` has 24 hexadecimal digits. ``request_id`` and ``time`` are null
for checkpoints, which nobody asked for. ``time`` is when the request id was made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, BinaryIO, Final, Protocol

import click
import msgpack

from raft_client.cli.output import json_line
from raft_client.cli.records import entry_record, made_at, type_name
from raft_client.wire.log_entry import LogEntry

#: A row group of Parquet is held in memory until it is this large.
_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
_ROW_GROUP_ROWS: Final = 65_536
_SUFFIXES: Final = {
    ".json": "jsonl", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".msgpack": "msgpack", ".mpk": "msgpack",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip


class EntryWriter(Protocol):
    """Writes entries to a file. ``close`` completes the file; it does not close the stream."""

    def write(self, entries: Sequence[LogEntry]) -> None: ...

    def close(self) -> None: ...


class JsonLinesWriter:
    """One JSON object per line."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, entries: Sequence[LogEntry]) -> None:
        self._stream.write(b"".join([json_line(entry_record(entry)) for entry in entries]))

    def close(self) -> None:
        self._stream.flush()


class MessagePackWriter:
    """One map after another."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._pack = msgpack.Packer().pack

    def write(self, entries: Sequence[LogEntry]) -> None:
        self._stream.write(b"".join([self._pack(_binary_record(entry)) for entry in entries]))

    def close(self) -> None:
        self._stream.flush()


class ParquetWriter:
    """Columns. Raises UsageError when pyarrow is not installed."""

    def __init__(self, stream: BinaryIO) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise click.UsageError("--format parquet needs pyarrow: pip install pyarrow") from None
        columns = {
            "index": pyarrow.int64(),
            "term": pyarrow.int64(),
            "type": pyarrow.string(),
            "request_id": pyarrow.string(),
            "time": pyarrow.timestamp("ms", "UTC"),
            "data": pyarrow.binary(),
        }
        self._table = pyarrow.Table
        self._schema = pyarrow.schema(list(columns.items()))
        self._writer = pyarrow.parquet.ParquetWriter(stream, self._schema)
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def write(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            self._rows.append(_binary_record(entry) | {"time": made_at(entry)})
            self._bytes += entry.size
            if self._bytes >= _ROW_GROUP_BYTES or len(self._rows) >= _ROW_GROUP_ROWS:
                self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._table.from_pylist(self._rows, schema=self._schema))
            self._rows = []
            self._bytes = 0


def _binary_record(entry: LogEntry) -> dict[str, Any]:
    made = made_at(entry)
    return {
        "index": entry.index,
        "term": entry.term,
        "type": type_name(entry),
        "request_id": None if made is None else str(entry.request_id),
        "time": None if made is None else entry.request_id.seconds,
        "data": entry.data,
    }


_WRITERS: Final[dict[str, Callable[[BinaryIO], EntryWriter]]] = {
    "jsonl": JsonLinesWriter,
    "msgpack": MessagePackWriter,
    "parquet": ParquetWriter,
}
FORMATS: Final = tuple(_WRITERS)


def format_of(output: str) -> str:
    """By the end of the name; JSON lines for standard output. Raises UsageError when the name does not tell."""
    if output == "-":
        return "jsonl"
    suffix = PurePath(output).suffix.lower()
    if suffix not in _SUFFIXES:
        raise click.UsageError(f"{output}: the name does not tell the format; give --format {'|'.join(FORMATS)}")
    return _SUFFIXES[suffix]


def open_writer(kind: str, stream: BinaryIO) -> EntryWriter:
    """A writer of one of the :data:`FORMATS`."""
    return _WRITERS[kind](stream)

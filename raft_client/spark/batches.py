"""Entries as Arrow record batches.

==============  =============  ====================================================================================
column          type           content
==============  =============  ====================================================================================
``index``       bigint         the place in the log, from 1; of a snapshot: that of the last entry in it
``term``        bigint         the term of the leader that appended it
``type``        string         ``state``, ``config`` or ``checkpoint``; ``snapshot`` for a snapshot
``request_id``  binary         the 12 bytes of the append's id; null when no client appended it
``time``        timestamp      when the id was made, in whole seconds, by the clock of whoever made it; or null
``data``        binary         what was appended
==============  =============  ====================================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from raft_client.wire.log_entry import ENTRY_HEADER_BYTES, EntryKind, LogEntry
from raft_client.wire.request_id import REQUEST_ID_BYTES, ZERO_REQUEST_ID

__all__ = ["COLUMNS", "ENTRY_SCHEMA", "SNAPSHOT_TYPE", "entry_batch", "snapshot_batch"]

#: The same for Spark.
COLUMNS: Final = "index bigint, term bigint, type string, request_id binary, time timestamp, data binary"
#: As Spark expects it of a data source, to the letter: times are microseconds of UTC.
ENTRY_SCHEMA: Final = pa.schema(
    [
        ("index", pa.int64()),
        ("term", pa.int64()),
        ("type", pa.string()),
        ("request_id", pa.binary()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("data", pa.binary()),
    ]
)
SNAPSHOT_TYPE: Final = "snapshot"

_TYPES: Final = tuple(kind.name.lower() for kind in EntryKind)
#: Seconds, big endian, at the start of the id; then kind (1 byte) and term (7 bytes), little endian.
_SECONDS: Final = struct.Struct(">I16x")
_KIND_AND_TERM: Final = struct.Struct("<12xQ")
_US_PER_S: Final = 1_000_000


def entry_batch(entries: Sequence[LogEntry]) -> pa.RecordBatch:
    """One row for each entry. Headers are read in one go: half a million of them pass per second."""
    frames = [entry.frame for entry in entries]
    headers = b"".join([frame[:ENTRY_HEADER_BYTES] for frame in frames])
    kinds_and_terms = [number for (number,) in _KIND_AND_TERM.iter_unpack(headers)]
    ids = [frame[:REQUEST_ID_BYTES] for frame in frames]
    seconds = [second for (second,) in _SECONDS.iter_unpack(headers)]
    if ZERO_REQUEST_ID.raw in ids:  # no client appended it
        nobody = ZERO_REQUEST_ID.raw
        times = [None if raw == nobody else s * _US_PER_S for raw, s in zip(ids, seconds, strict=True)]
        return _batch(entries, kinds_and_terms, [None if raw == nobody else raw for raw in ids], times, frames)
    return _batch(entries, kinds_and_terms, ids, [s * _US_PER_S for s in seconds], frames)


def _batch(
    entries: Sequence[LogEntry],
    kinds_and_terms: list[int],
    ids: Sequence[bytes | None],
    times: Any,
    frames: list[bytes],
) -> pa.RecordBatch:
    columns = (
        [entry.index for entry in entries],
        [number >> 8 for number in kinds_and_terms],
        [_TYPES[number & 0xFF] for number in kinds_and_terms],
        ids,
        times,
        [frame[ENTRY_HEADER_BYTES:] for frame in frames],
    )
    return _record_batch(columns)


def snapshot_batch(index: int, term: int, data: bytes) -> pa.RecordBatch:
    """The one row of a snapshot."""
    return _record_batch(([index], [term], [SNAPSHOT_TYPE], [None], [None], [data]))


def _record_batch(columns: Sequence[Any]) -> pa.RecordBatch:
    arrays = [pa.array(values, field.type) for values, field in zip(columns, ENTRY_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)

"""What must survive the process, as values: streams of records by subject, cut into batches. Pure.

Broker and state store write into a :class:`Journal`; what keeps the batches is a :class:`BatchStorage`: a
directory, or a replicated log.
"""

from __future__ import annotations

from statestore_client.server.journal.journal import (
    ALL_STREAMS,
    TIME,
    BatchStorage,
    Changes,
    DamagedRecordError,
    Done,
    Journal,
    JournalStream,
    Record,
    Row,
    StoredRecords,
    Stream,
    StreamStorage,
    StreamTables,
    Subject,
    Timeline,
    TimeRecord,
    WriteBatch,
    load,
    records_in,
    seal,
    unseal,
)

__all__ = [
    "ALL_STREAMS",
    "TIME",
    "BatchStorage",
    "Changes",
    "DamagedRecordError",
    "Done",
    "Journal",
    "JournalStream",
    "Record",
    "Row",
    "StoredRecords",
    "Stream",
    "StreamStorage",
    "StreamTables",
    "Subject",
    "TimeRecord",
    "Timeline",
    "WriteBatch",
    "load",
    "records_in",
    "seal",
    "unseal",
]

"""What must survive the process, as values: streams of records by subject, cut into batches. Pure.

Broker and state store write into a :class:`Journal`; what keeps the batches is a :class:`BatchStorage`: a
directory, or a replicated log.
"""

from __future__ import annotations

from statestore_client.server.journal.codec import DamagedRecordError, seal, unseal
from statestore_client.server.journal.journal import Journal, JournalStream, Record, Row
from statestore_client.server.journal.storage import (
    BatchStorage,
    Changes,
    Done,
    StoredRecords,
    StreamStorage,
    WriteBatch,
    load,
    records_in,
)
from statestore_client.server.journal.streams import ALL_STREAMS, Stream, Subject
from statestore_client.server.journal.tables import StreamTables
from statestore_client.server.journal.timeline import TIME, Timeline, TimeRecord

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

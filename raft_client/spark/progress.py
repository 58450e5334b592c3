"""How far a stream is behind, from what Spark reports of a query."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from raft_client.wire.log_entry import Position

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import SourceProgress, StreamingQueryProgress


def entries_behind(progress: StreamingQueryProgress | None) -> int | None:
    """How many entries of the log a streaming query has not read yet, as of its last micro-batch.

    ``progress`` is ``query.lastProgress``, or ``event.progress`` of a ``StreamingQueryListener``. Entries that no
    client appended count, too; of several logs, all, and of one that is read twice, both. None before the first
    micro-batch, after one that was repeated when the query was started again, and for a query that reads no log. A
    query that stands still reports nothing new: watch the age of ``progress.timestamp`` as well.
    """
    behind = [_behind(source) for source in progress.sources] if progress is not None else []
    known = [entries for entries in behind if entries is not None]
    return sum(known) if known else None


def _behind(source: SourceProgress) -> int | None:
    read, end = _until(source.endOffset), _until(source.latestOffset)
    return None if read is None or end is None else max(0, end - read)


def _until(text: str | None) -> int | None:
    """The index in an offset of :mod:`raft_client.spark.offsets`, given as JSON; None for one of another source."""
    try:
        offset: Any = json.loads(text or "null")
    except ValueError:
        return None
    if not isinstance(offset, dict) or not {"format", "until"} <= offset.keys():
        return None
    return Position.parse(str(offset["until"])).index

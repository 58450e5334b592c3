"""Where a stream begins that is to begin at a time.

Entries have no time of their own. Their request ids begin with a second, by the clock of whoever made the id: a leader
takes an id that is up to 7 h 45 min old, or up to 15 min in the future. So times go up and down along the log, and the
answer is exact in this sense: *the first entry whose id was made at that time or later*. Entries before it are older.

Halving finds a place that is early enough, and from there on it is read::

    seconds(j) < time - 8 h   =>   j was appended before time - 15 min   =>   all entries before j are older than time
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.wire.log_entry import LogEntry
from raft_client.wire.request_id import DEFAULT_TTL_S

if TYPE_CHECKING:
    from raft_client.sync.client import RaftClient

#: Ranges as short as this are read rather than halved.
_SHORT: Final = 1000
#: Of these one has an id, unless a cluster does nothing but change its leader.
_LOOK: Final = 16


def index_before(client: RaftClient, after: int, last: int, time_s: int) -> int:
    """The index before the first entry after ``after`` whose id was made at ``time_s`` (since 1970) or later.

    ``last`` if there is none up to there. Reads the entries of the 8 hours before, or of the cluster's window if that
    is shorter; a longer window makes it inexact.
    """
    low, high = after, last
    while high - low > _SHORT:
        middle = (low + high) // 2
        seconds = _first_seconds(client, middle)
        if seconds is not None and seconds < time_s - DEFAULT_TTL_S:
            low = middle
        else:
            high = middle
    with client.entries(low, last - low, snapshot=SnapshotPolicy.SKIP) as stream:
        for entry in stream:
            if isinstance(entry, LogEntry) and _seconds(entry) >= time_s:
                return entry.index - 1
    return last


def _first_seconds(client: RaftClient, after: int) -> int | None:
    with client.entries(after, _LOOK, snapshot=SnapshotPolicy.SKIP) as stream:
        entries = [entry for entry in stream if isinstance(entry, LogEntry)]
    return next((seconds for seconds in map(_seconds, entries) if seconds), None)


def _seconds(entry: LogEntry) -> int:
    """0 of entries that no client appended."""
    return int.from_bytes(entry.frame[:4], "big")

"""Where to begin to read a log: at its newest complete snapshot, or at its beginning.

Each entry names the newest complete snapshot that its writer knew, so the last entries tell. If all servers stopped
right after the last part of a snapshot none does; then the whole log is looked through, which was trimmed before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raft_client import LogEntry as RaftEntry
from raft_client import SnapshotPolicy
from statestore_client.errors import ReplicatedLogError
from statestore_client.server.cluster.codec import decode
from statestore_client.server.cluster.entries import Part, Snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raft_client import AsyncRaftClient
    from statestore_client.server.cluster.entries import Life, LogEntry

__all__ = ["entries_of_servers", "find_base"]

_TAIL: Final = 256


async def find_base(client: AsyncRaftClient) -> tuple[int, LogEntry] | None:
    """The first entry of that snapshot, with its index; None for a log that is read from its beginning.

    Raises UnreadableLogError for a log of something else, ReplicatedLogError for one that has lost what was in it, and
    what the client raises.
    """
    log = await client.log_info()
    end, first = log.last_applied, max(1, log.first_index)
    base = 0
    async for _, entry in entries_of_servers(client, max(first - 1, end - _TAIL), end):
        base = max(base, entry.base)
    if not base and first > 1:
        base = await _search(client, first - 1, end)
    if not base:
        return None
    async for at, entry in entries_of_servers(client, base - 1, base):
        return at, entry
    raise ReplicatedLogError(f"the snapshot at {base} of the log is gone: the log was trimmed by something else")


async def entries_of_servers(client: AsyncRaftClient, after: int, end: int) -> AsyncIterator[tuple[int, LogEntry]]:
    """Those that servers have appended, up to ``end``. Raises what the client raises, and UnreadableLogError."""
    if after >= end:
        return
    async for item in client.entries(after, end - after, snapshot=SnapshotPolicy.SKIP):
        if isinstance(item, RaftEntry) and item.is_state:
            yield item.index, decode(item.data)


async def _search(client: AsyncRaftClient, after: int, end: int) -> int:
    """The last snapshot all of whose parts are there: only the writer of a valid one comes to its end."""
    base = 0
    begun: dict[tuple[Life, int], tuple[int, int]] = {}  # where, and the parts so far
    async for at, entry in entries_of_servers(client, after, end):
        body = entry.body
        if isinstance(body, Snapshot):
            begun[entry.life, body.index] = (at, 0)
        elif isinstance(body, Part):
            place, parts = begun.get((entry.life, body.index), (0, -1))
            if entry.seq == parts:
                begun[entry.life, body.index] = (place, parts + 1)
                base = place if body.is_end else base
    if not base:
        raise ReplicatedLogError("the log was trimmed, and no snapshot in it says what there was")
    return base

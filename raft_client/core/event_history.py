"""The last entries of the log, as far as memory was set aside for them.

Source: State Watch pattern, "Storing Event History"; here what is no longer in memory is still in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from raft_client.wire.log_entry import LogEntry

#: What an entry costs beside its bytes.
_ENTRY_BYTES: Final = 100


class EventHistory:
    """Entries with consecutive indexes, the oldest being dropped when they take more than ``limit`` bytes."""

    __slots__ = ("_bytes", "_entries", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: deque[LogEntry] = deque()
        self._bytes = 0

    def append(self, entry: LogEntry) -> None:
        """The entry after the last one."""
        self._entries.append(entry)
        self._bytes += entry.size + _ENTRY_BYTES
        while self._bytes > self._limit:
            self._bytes -= self._entries.popleft().size + _ENTRY_BYTES

    def after(self, index: int) -> Iterable[LogEntry]:
        """All entries after ``index``; nothing when the first of them is no longer there."""
        skip = index + 1 - self._entries[0].index if self._entries else -1
        return islice(self._entries, skip, None) if skip >= 0 else ()

    def term_of(self, index: int) -> int:
        """The term of the entry at ``index``; 0 when it is not there."""
        skip = index - self._entries[0].index if self._entries else -1
        return self._entries[skip].term if 0 <= skip < len(self._entries) else 0

    def clear(self) -> None:
        """Forget them all: the next one has any index."""
        self._entries.clear()
        self._bytes = 0

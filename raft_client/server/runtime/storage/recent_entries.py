"""The newest entries of a log, in memory: what followers that keep up are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raft_client.wire.log_entry import LogEntry


class RecentEntries:
    """The last entries of the log, without a gap, about as many bytes as allowed; more only until they are durable.

    What an entry takes in memory beside its bytes counts, too.
    """

    _OVERHEAD = 150  # bytes: two objects and a place in the list

    def __init__(self, last: int, max_bytes: int) -> None:
        self._entries: list[LogEntry] = []
        self._bytes = 0
        self._max_bytes = max_bytes
        #: The index of the oldest one; one more than the last if there is none.
        self.first: int = last + 1

    def get(self, index: int) -> LogEntry:
        """One from ``first`` on."""
        return self._entries[index - self.first]

    def entries(self, index: int, last: int) -> Iterator[LogEntry]:
        """Those from ``index``, which is at least ``first``, to ``last``."""
        return map(self._entries.__getitem__, range(index - self.first, last + 1 - self.first))

    def extend(self, entries: tuple[LogEntry, ...]) -> None:
        """The next ones."""
        self._entries += entries
        self._bytes += sum([len(entry.frame) for entry in entries]) + len(entries) * self._OVERHEAD

    def truncate(self, last: int) -> None:
        """The log ends at ``last`` now."""
        if last + 1 < self.first:
            self.clear(last)
        else:
            self._drop(last + 1 - self.first, len(self._entries))

    def clear(self, last: int) -> None:
        """The log is another one, and ends at ``last``."""
        self._entries.clear()
        self._bytes = 0
        self.first = last + 1

    def trim(self) -> None:
        """All of it is durable: let the oldest go. Rarely, and then some at once."""
        if self._bytes <= self._max_bytes + self._max_bytes // 4:
            return
        excess, count = self._bytes - self._max_bytes, 0
        while excess > 0:
            excess -= len(self._entries[count].frame) + self._OVERHEAD
            count += 1
        self._drop(0, count)
        self.first += count

    def _drop(self, begin: int, end: int) -> None:
        gone = self._entries[begin:end]
        self._bytes -= sum([len(entry.frame) for entry in gone]) + len(gone) * self._OVERHEAD
        del self._entries[begin:end]

"""The log as the node sees it: what is stored, and the tail that is not, or was not long ago.

::

    stored (read from the disk)          tail (in memory)
    [ first_index ......... ] [ tail_start .... durable_index .... last_index ]
                                                              └ the disk has not said so yet

Invariant: below ``tail_start`` the stored log is what this log is, whatever the disk is still to do; it is asked for
no other entries. The tail keeps a bounded part of what is durable, so that followers who keep up cost no reading; it is
the only copy in memory. Request ids of what is durable are asked of the stored log, which has a table of them.

Configurations take effect when they are in the log, committed or not, and go when their entry goes (Raft, §4.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft_client.server.node.ready import Configuration, SnapshotMeta, as_many_as_fit
from raft_client.wire.configuration import decode_config
from raft_client.wire.log_entry import EntryKind, LogEntry
from raft_client.wire.request_id import REQUEST_ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raft_client.server.node.ready import StoredLog
    from raft_client.wire.configuration import ConfigChange


class Log:
    """See the head of this file. Indexes count from 1."""

    def __init__(self, stored: StoredLog) -> None:
        self.stored = stored
        self.last_index: int = stored.last_index
        self.last_term: int = stored.term_at(stored.last_index) or 0
        #: All entries up to here are on the disk, as they are in this log.
        self.durable_index: int = stored.last_index
        #: Oldest first, never empty; the last one is in force.
        self.configurations: list[Configuration] = list(stored.configurations)
        self._tail: list[LogEntry] = []
        self._tail_start = stored.last_index + 1
        self._cached_bytes = 0
        self._index_of_id: dict[bytes, int] = {}  # of what is not durable
        # What the next job for the disk does, and what the one under way does.
        self._truncate_after: int | None = None
        self._handed = stored.last_index  # up to here the disk has, or was given, what is in this log
        self._install: SnapshotMeta | None = None
        self._installing: SnapshotMeta | None = None
        self._job_last = stored.last_index  # durable_index when the job under way is done

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def configuration(self) -> ConfigChange:
        """The one in force."""
        return self.configurations[-1].change

    @property
    def snapshot(self) -> SnapshotMeta | None:
        """The newest one, be it on its way to the disk."""
        return self._install or self._installing or self.stored.snapshot

    @property
    def first_index(self) -> int:
        """Of the oldest entry that can be read."""
        pending = self._install or self._installing
        return self.stored.first_index if pending is None else pending.index + 1

    @property
    def is_installing(self) -> bool:
        """Whether a snapshot is on its way to the disk."""
        return self._install is not None or self._installing is not None

    @property
    def knows_configuration(self) -> bool:
        """Whether the configuration is that of this log's end, and not one that a snapshot may have outdated."""
        snapshot = self.snapshot
        return snapshot is None or snapshot.members_known or self.configurations[-1].index > snapshot.index

    @property
    def dirty(self) -> bool:
        """Whether the disk has something to do that was not handed out."""
        return self._handed < self.last_index or self._truncate_after is not None or self._install is not None

    def term_at(self, index: int) -> int | None:
        """0 for index 0; None before the snapshot and beyond the end."""
        if index == self.last_index:
            return self.last_term
        if index >= self._tail_start:
            return self._tail[index - self._tail_start].term if index <= self.last_index else None
        pending = self._install or self._installing
        if pending is not None and index <= pending.index:
            return pending.term if index == pending.index else None
        return self.stored.term_at(index)

    def entries(self, after: int, last: int, max_bytes: int) -> list[LogEntry]:
        """The entries after ``after`` up to ``last``, as many as fit into ``max_bytes``; see StoredLog."""
        last = min(last, self.last_index)
        if after + 1 < self._tail_start:
            return self.stored.entries(after, min(last, self._tail_start - 1), max_bytes)
        places = range(after + 1 - self._tail_start, last + 1 - self._tail_start)
        return as_many_as_fit(map(self._tail.__getitem__, places), max_bytes)  # without a copy of the tail

    def last_at_hand(self, after: int, max_bytes: int) -> int:
        """The index up to which :meth:`entries` after that one, and its term, wait for no disk; see StoredLog."""
        if after + 1 >= self._tail_start or after + 1 < self.first_index:
            return self.last_index
        return self.stored.last_at_hand(after, max_bytes)

    def index_of_request(self, request_id: bytes) -> int | None:
        """Of the entry that has this id of 12 bytes; None if it is not remembered."""
        index = self._index_of_id.get(request_id)
        if index is not None:
            return index
        index = self.stored.index_of_request(request_id)
        # What the disk is still to cut off does not count.
        return index if index is not None and index <= self.durable_index else None

    def first_index_of_term(self, index: int, down_to: int) -> int:
        """The first index, not below ``down_to``, from which on the entries up to ``index`` have one term."""
        term = self.term_at(index)
        while index > down_to and self.term_at(index - 1) == term:
            index -= 1
        return index

    # -- changing ------------------------------------------------------------------------------------------------------

    def append(self, entries: Iterable[LogEntry]) -> None:
        """``entries`` follow each other and the last one of the log."""
        for entry in entries:
            self._tail.append(entry)
            self._cached_bytes += entry.size
            if entry.is_state or entry.kind is EntryKind.CONFIG:
                self._index_of_id[entry.frame[:REQUEST_ID_BYTES]] = entry.index
            if not entry.is_state and entry.kind is EntryKind.CONFIG:
                self.configurations.append(Configuration(entry.index, decode_config(entry.data)))
            self.last_index = entry.index
        if self._tail:
            self.last_term = self._tail[-1].term

    def truncate_after(self, index: int) -> None:
        """Cut off the entries after ``index``."""
        if index >= self.last_index:
            return
        if index < self._handed:
            self._truncate_after = index if self._truncate_after is None else min(index, self._truncate_after)
            self._handed = index
        self.durable_index = min(self.durable_index, index)
        self._job_last = min(self._job_last, index)
        self._drop_tail(index)
        while len(self.configurations) > 1 and self.configurations[-1].index > index:
            self.configurations.pop()
        self.last_term = self.term_at(index) or 0
        self.last_index = index

    def install(self, meta: SnapshotMeta) -> None:
        """A snapshot takes the place of all entries up to ``meta.index``; others stay only if they follow it."""
        if self.term_at(meta.index) == meta.term:
            self._install = meta
            self._drop_front(meta.index)
            self._handed = max(self._handed, meta.index)
            return
        self.configurations = [meta.configuration]
        self._install = meta
        self._truncate_after = meta.index  # nothing stays, whatever the disk finds there
        self._tail.clear()
        self._index_of_id.clear()
        self._cached_bytes = 0
        self._tail_start = meta.index + 1
        self.last_index, self.last_term = meta.index, meta.term
        self._handed = meta.index
        self.durable_index = self._job_last = 0

    def configuration_for(self, index: int) -> Configuration:
        """The newest one at or before ``index``: what a snapshot that ends there keeps."""
        return next((each for each in reversed(self.configurations) if each.index <= index), self.configurations[0])

    def _drop_tail(self, index: int) -> None:
        keep = max(0, index + 1 - self._tail_start)
        for entry in self._tail[keep:]:
            self._cached_bytes -= entry.size
            self._index_of_id.pop(entry.frame[:REQUEST_ID_BYTES], None)
        del self._tail[keep:]
        self._tail_start = min(self._tail_start, index + 1)

    def _drop_front(self, index: int) -> None:
        """Forget what the tail holds up to ``index``, which is durable."""
        count = index + 1 - self._tail_start
        if count <= 0:
            return
        self._cached_bytes -= sum(entry.size for entry in self._tail[:count])
        del self._tail[:count]
        self._tail_start = index + 1

    def compacted(self, meta: SnapshotMeta) -> None:
        """The stored log begins after this snapshot of the own state machine now."""
        self._drop_front(min(meta.index, self.durable_index))
        self.configurations = [meta.configuration, *(each for each in self.configurations if each.index > meta.index)]

    # -- the disk ------------------------------------------------------------------------------------------------------

    def take_job(self, max_bytes: int) -> tuple[SnapshotMeta | None, int | None, tuple[LogEntry, ...]]:
        """What the disk is to do next: the snapshot to install, where to cut, what to append.

        As many entries as fit into ``max_bytes``. If that is not all of them, the log is still dirty.
        """
        places = range(max(0, self._handed + 1 - self._tail_start), len(self._tail))
        entries = as_many_as_fit(map(self._tail.__getitem__, places), max_bytes)
        job = self._install, self._truncate_after, tuple(entries)
        self._installing, self._install, self._truncate_after = self._install, None, None
        self._handed = self._job_last = entries[-1].index if entries else self.last_index
        return job

    def job_done(self) -> None:
        """What was taken last is durable."""
        self._installing = None
        self._forget_ids(self._job_last)
        self.durable_index = self._job_last
        if self._cached_bytes > self.stored.recent_bytes:
            self._trim()

    def _forget_ids(self, last: int) -> None:
        """Those of the entries up to ``last``, which are durable from now on."""
        if last == self.last_index:
            self._index_of_id.clear()
            return
        begin = max(self.durable_index + 1, self._tail_start)
        for place in range(begin - self._tail_start, last + 1 - self._tail_start):
            self._index_of_id.pop(self._tail[place].frame[:REQUEST_ID_BYTES], None)

    def _trim(self) -> None:
        limit = self.stored.recent_bytes
        excess, upto = self._cached_bytes - limit + limit // 4, self._tail_start - 1  # rarely, and then some at once
        for entry in self._tail:
            if excess <= 0 or entry.index > self.durable_index:
                break
            excess -= entry.size
            upto = entry.index
        self._drop_front(upto)

"""What a log on a disk holds: the side of it that is read."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from raft_client.errors import StorageError
from raft_client.server.node.stored_log import Configuration, HardState, as_many_as_fit
from raft_client.server.runtime.storage.filesystem import storage_error
from raft_client.server.runtime.storage.recent_entries import RecentEntries
from raft_client.server.runtime.storage.snapshot_store import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from raft_client.server.node.stored_log import SnapshotMeta
    from raft_client.server.runtime.storage.filesystem import Folder
    from raft_client.server.runtime.storage.recovery import Recovered
    from raft_client.wire.log_entry import LogEntry


class LogContents:
    """Implements :class:`~raft_client.server.node.stored_log.StoredLog`. Belongs to the loop's thread."""

    def __init__(self, folder: Folder, found: Recovered, recent_bytes: int, *, is_synced: bool) -> None:
        self._owner = found.owner
        self._segments = found.segments
        self._snapshots = SnapshotStore(folder, found.snapshot, is_log_synced=is_synced)
        self._recent = RecentEntries(self._segments.last.last, recent_bytes)
        self._configurations: list[Configuration] | None = None
        self._failure: str | None = None

    @property
    def peer_id(self) -> str:
        """Whose log it is."""
        return self._owner.peer_id

    @property
    def hard_state(self) -> HardState:
        """As it was persisted last."""
        return self._segments.last.hard_state

    @property
    def configurations(self) -> Sequence[Configuration]:
        """That of the snapshot, or of the start; then those of the CONFIG entries behind it, oldest first."""
        if self._configurations is None:
            base = Configuration(0, self._owner.change) if self.snapshot is None else self.snapshot.configuration
            self._configurations = [base, *(each for each in self._segments.configurations if each.index > base.index)]
        return self._configurations

    @property
    def snapshot(self) -> SnapshotMeta | None:
        """The newest one."""
        current = self._snapshots.current
        return None if current is None else current.meta

    @property
    def first_index(self) -> int:
        """Of the oldest entry that is kept; ``last_index + 1`` if there is none."""
        return self._segments.first_index

    @property
    def last_index(self) -> int:
        """Of the newest entry; that of the snapshot if no entry follows it; 0 if there is nothing."""
        return self._segments.last.last

    def term_at(self, index: int) -> int | None:
        """The term of the entry, or of the snapshot that ends there; 0 for 0; None if unknown. Raises StorageError."""
        self._check_usable()
        if index == 0:
            return 0
        if self._recent.first <= index <= self.last_index:
            return self._recent.get(index).term
        snapshot = self.snapshot
        return snapshot.term if snapshot is not None and index == snapshot.index else self._segments.term_at(index)

    def entries(self, after: int, last: int, max_bytes: int) -> list[LogEntry]:
        """The entries after the index ``after`` up to ``last``, as many as fit into ``max_bytes``; see StoredLog.

        Empty if the first one is compacted. Raises StorageError.
        """
        self._check_usable()
        index, last = after + 1, min(last, self.last_index)
        if index < self.first_index:
            return []
        recent = self._recent.first
        stored = self._segments.read(index, min(last, recent - 1), max_bytes)
        return as_many_as_fit(chain(stored, self._recent.entries(max(index, recent), last)), max_bytes)

    def read_snapshot(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes of the newest snapshot; fewer at its end. Raises StorageError.

        BusyError between the write and the end of the sync that installs it.
        """
        self._check_usable()
        return self._snapshots.read(offset, size)

    def snapshot_pieces(self) -> Generator[bytes]:
        """All of the newest snapshot, also if another one takes its place meanwhile; close it. Raises StorageError."""
        self._check_usable()
        return self._snapshots.pieces()

    def index_of_request(self, request_id: bytes) -> int | None:
        """The newest entry with this request id (12 bytes), as far back as ids are known. Raises StorageError."""
        self._check_usable()
        return self._segments.find_request(request_id)

    @property
    def prune_index(self) -> int:
        """The index before the first entry whose request id is known; ``last_index`` if none is."""
        return self._segments.prune_index

    def newest_request_s(self) -> float:
        """When the newest request id was made, or a time before that: those of the last segment are not looked at."""
        return self._segments.newest_request_s()

    # -- failure -------------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise StorageError(self._failure)

    def _fail(self, error: OSError, doing: str) -> StorageError:
        """No more from now on."""
        self._failure = f"the log failed ({error}); open it again"
        return storage_error(error, doing)

"""A stored log in memory: it does what a Persist says, at once and in its order."""

from __future__ import annotations

from collections.abc import Sequence

from raft_client.server.node.ready import Persist
from raft_client.server.node.stored_log import Configuration, HardState, SnapshotMeta
from raft_client.wire.configuration import ConfigChange, Peers, decode_config
from raft_client.wire.log_entry import EntryKind, LogEntry

__all__ = ["MemoryLog"]


class MemoryLog:
    """A StoredLog. All that is in it counts as durable."""

    def __init__(self, peers: Peers) -> None:
        self.start = Configuration(0, ConfigChange(peers))
        self.hard_state = HardState()
        self.snapshot: SnapshotMeta | None = None
        self.snapshot_data = b""
        self.incoming = b""
        self.log: list[LogEntry] = []
        self.prune_index = 2**53 - 1
        self.jobs: list[Persist] = []

    @property
    def _base(self) -> tuple[int, int]:
        return (self.snapshot.index, self.snapshot.term) if self.snapshot else (0, 0)

    @property
    def configurations(self) -> Sequence[Configuration]:
        first = self.snapshot.configuration if self.snapshot else self.start
        found = [entry for entry in self.log if entry.kind is EntryKind.CONFIG]
        return [first, *(Configuration(entry.index, decode_config(entry.data)) for entry in found)]

    @property
    def first_index(self) -> int:
        return self._base[0] + 1

    @property
    def last_index(self) -> int:
        return self._base[0] + len(self.log)

    def term_at(self, index: int) -> int | None:
        base, term = self._base
        if index == base:
            return term
        return self.log[index - base - 1].term if base < index <= self.last_index else None

    def entries(self, after: int, last: int, max_bytes: int) -> list[LogEntry]:
        found: list[LogEntry] = []
        for entry in self.log[after - self._base[0] : last - self._base[0]]:
            max_bytes -= entry.size
            if found and max_bytes < 0:
                break
            found.append(entry)
        return found

    def read_snapshot(self, offset: int, size: int) -> bytes:
        return self.snapshot_data[offset : offset + size]

    def index_of_request(self, request_id: bytes) -> int | None:
        return next((entry.index for entry in reversed(self.log) if entry.request_id.raw == request_id), None)

    def do(self, job: Persist) -> None:
        """What a disk does with a job."""
        self.jobs.append(job)
        self.hard_state = job.hard_state or self.hard_state
        if job.chunk is not None:
            self.incoming = self.incoming[: job.chunk.offset] + job.chunk.data
        if job.install is not None:
            assert len(self.incoming) == job.install.size
            self.compact(job.install, self.incoming)
        if job.truncate_after is not None:
            del self.log[max(0, job.truncate_after - self._base[0]) :]
        for entry in job.entries:
            assert entry.index == self.last_index + 1
            self.log.append(entry)

    def compact(self, meta: SnapshotMeta, data: bytes) -> None:
        """Put a snapshot in the place of the entries up to its end."""
        self.log = self.log[meta.index - self._base[0] :] if self.term_at(meta.index) == meta.term else []
        self.snapshot, self.snapshot_data = meta, data

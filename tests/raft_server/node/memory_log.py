"""A stored log in memory: it does what a Persist says, at once and in its order."""

from __future__ import annotations

from support.raft_disks import ImageReader, steps_of

from raft_client.server.node.ready import Configuration, Persist, SnapshotMeta
from raft_client.wire.configuration import ConfigChange, Peers
from raft_client.wire.log_entry import LogEntry

__all__ = ["MemoryLog"]


class MemoryLog(ImageReader):
    """A StoredLog. All that is in it counts as durable."""

    def __init__(self, peers: Peers) -> None:
        self.start = Configuration(0, ConfigChange(peers))
        super().__init__(self.start)
        self.prune_index = 2**53 - 1
        self.jobs: list[Persist] = []

    @property
    def log(self) -> list[LogEntry]:
        return self.cache.entries

    @property
    def snapshot_data(self) -> bytes:
        return self.cache.snapshot_data

    def index_of_request(self, request_id: bytes) -> int | None:
        return next((entry.index for entry in reversed(self.log) if entry.request_id.raw == request_id), None)

    def do(self, job: Persist) -> None:
        """What a disk does with a job."""
        self.jobs.append(job)
        for step in steps_of(job):
            if isinstance(step, SnapshotMeta):
                assert self.cache.incoming is not None
                assert len(self.cache.incoming[1]) == step.size
            if isinstance(step, LogEntry):
                assert step.index == self.last_index + 1
            self.cache.apply(step)

    def compact(self, meta: SnapshotMeta, data: bytes) -> None:
        """Put a snapshot in the place of the entries up to its end."""
        self.cache.install(meta, data)

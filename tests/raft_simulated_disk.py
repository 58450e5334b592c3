"""The disk of a peer, as jobs see it: what is written is in the cache, what was synced survives a power failure.

A job is written step by step in the order of its fields. A power failure leaves any first part of the one under way,
and so does an error. After a sync that failed, the cache says that everything is there and the disk never hears of it
again (as Linux does): only who opens the log anew finds out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from raft_log_image import Image, ImageReader, steps_of

from raft_client.errors import RaftError
from raft_client.server.node.ready import Persist
from raft_client.server.node.stored_log import Configuration, SnapshotMeta
from raft_client.wire.log_entry import LogEntry
from raft_client.wire.request_id import RequestId

__all__ = ["DamagedLogError", "SimulatedLog"]


class DamagedLogError(RaftError):
    """What was synced is not there any more, or not as it was."""


class SimulatedLog(ImageReader):
    """A StoredLog: the cache of a disk with crash semantics."""

    def __init__(self, start: Configuration) -> None:
        super().__init__(start)
        self.durable = Image(start)
        self.damaged_at: int | None = None  # reading this entry fails
        self._forgotten_s = 0.0  # ids made before that time are not known
        self._ids: dict[bytes, int] = {}

    # -- what a node reads ---------------------------------------------------------------------------------------------

    def look_at(self, entry: LogEntry) -> None:
        if entry.index == self.damaged_at:
            raise DamagedLogError(f"the entry {entry.index} is not what was written")

    def index_of_request(self, request_id: bytes) -> int | None:
        return self._ids.get(request_id)

    @property
    def prune_index(self) -> int:
        for entry in self.cache.entries:
            if any(entry.request_id.raw) and entry.request_id.seconds >= self._forgotten_s:
                return entry.index - 1
        return self.last_index

    def newest_request_s(self) -> float:
        ids = (entry.request_id for entry in self.cache.entries)
        return max((each.seconds for each in ids if any(each.raw)), default=-math.inf)

    # -- what a disk does ----------------------------------------------------------------------------------------------

    def write(self, job: Persist) -> None:
        """Into the cache."""
        for step in steps_of(job):
            if not isinstance(step, LogEntry):
                if isinstance(step, SnapshotMeta) and self.cache.term_at(step.index) != step.term:
                    self._ids.clear()  # what it replaces may never have been committed
                self.cache.apply(step)
                if isinstance(step, int | SnapshotMeta):
                    self._index_ids()
                continue
            self.cache.apply(step)
            if step.request_id.raw != bytes(12):
                self._ids[step.request_id.raw] = step.index

    def sync(self, job: Persist, share: float = 1.0) -> None:
        """What ``write`` wrote reaches the disk; with a share below one, only the first part of it."""
        steps = steps_of(job)
        for step in steps[: len(steps) if share >= 1.0 else int(share * (len(steps) + 1))]:
            self.durable.apply(step)

    def compact(self, meta: SnapshotMeta, data: bytes) -> None:
        """Durable at once: a file of its own, renamed when it is synced."""
        self.cache.install(meta, data)
        self.durable.install(meta, data)

    def forget_requests(self, before_s: float) -> None:
        """Ids made before that time (seconds since 1970) are not known any more; a start finds those of entries."""
        if before_s > self._forgotten_s:
            self._forgotten_s = before_s
            self._forget()

    def _forget(self) -> None:
        self._ids = {raw: at for raw, at in self._ids.items() if RequestId(raw).seconds >= self._forgotten_s}

    def reopen(self) -> None:
        """After the process ended: what is on the disk is all there is. Raises DamagedLogError."""
        if self.damaged_at is not None and self.durable.before < self.damaged_at <= self.durable.last_index:
            raise DamagedLogError(f"the entry {self.damaged_at} is not what was written")
        self.cache = self.durable.copy()
        self._forgotten_s = 0.0
        self._index_ids()

    def _index_ids(self) -> None:
        """Ids before the first entry stay known: a compaction keeps them."""
        cache = self.cache
        self._ids = {name: index for name, index in self._ids.items() if index <= cache.before}
        self._ids.update(self._ids_in(cache.entries))
        self._forget()

    def _ids_in(self, entries: Sequence[LogEntry]) -> Iterator[tuple[bytes, int]]:
        return ((entry.request_id.raw, entry.index) for entry in entries if any(entry.request_id.raw))

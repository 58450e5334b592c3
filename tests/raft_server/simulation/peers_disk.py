"""The real log of a peer in the simulation, on a disk of bytes that fails, is full, tears and loses power.

What the simulated log says about the disk is here what the real log finds there: after each end of a process its files
are opened again, without what was not synced.
"""

from __future__ import annotations

import errno
from random import Random
from typing import Final

from faulty_disk import CrashError, FaultyDisk
from peers_profile import IDENT
from raft_log_image import Image
from raft_simulated_disk import SimulatedLog

from raft_client.errors import StorageError
from raft_client.server.node.ready import Persist
from raft_client.server.node.stored_log import Configuration, SnapshotMeta
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.server.runtime.storage.options import Fsync, StorageLimits
from raft_client.server.runtime.storage.owner import Owner
from raft_client.wire.snapshots import SnapshotChunk

__all__ = ["DiskBackedLog"]

#: Segments end often, so that there are many files.
_LIMITS: Final = StorageLimits(segment_entries=2)
#: An operation on the disk, from the next one on, that fails or does not come to pass. A job that begins a segment has
#: as many; most have fewer.
_NEXT: Final = 12


class DiskBackedLog(SimulatedLog):
    """``failures`` is how jobs ended that did not end well: the errno, or 0 for a process that died; and where."""

    def __init__(self, name: str, start: Configuration, chances: Random) -> None:
        super().__init__(start)
        self.failures: list[tuple[int, str]] = []
        self._chances = chances
        self._disk = FaultyDisk()
        self._owner = Owner(name, IDENT, start.change)
        self._fsync = chances.choice((Fsync.GROUP, Fsync.ALWAYS))
        self._log: DiskLog | None = None

    @property
    def log(self) -> DiskLog:
        """The real one, open."""
        assert self._log is not None
        return self._log

    def index_of_request(self, request_id: bytes) -> int | None:
        return self.log.index_of_request(request_id)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def sync(self, job: Persist, share: float = 1.0) -> None:
        if share >= 1.0:
            super().sync(job)
            self.log.write(job)
            self.log.sync()
            self.log.maintain()
            return
        error, at = self._chances.choice((0, errno.EIO, errno.ENOSPC)), self._chances.randrange(_NEXT)
        if error:
            self._disk.fail_at, self._disk.error = self._disk.operations + at, error
        else:
            self._disk.crash_at = self._disk.operations + at
        try:
            self.log.write(job)
            self.log.sync()
            self.log.maintain()
        except (CrashError, StorageError):
            what = self._disk.log[-1]
            self.failures.append((error, what if "directory" in what else what.split()[0]))
        self._start_again()
        self.durable = self._found()

    def compact(self, meta: SnapshotMeta, data: bytes) -> None:
        with self.log.new_snapshot() as writer:
            writer.write(data)
            writer.finish(meta)
        self.log.compact(meta)
        super().compact(meta, data)

    def forget_requests(self, before_s: float) -> None:
        super().forget_requests(before_s)
        self.log.forget_requests(before_s)

    # -- the end of a process ------------------------------------------------------------------------------------------

    def reopen(self) -> None:
        self.durable.incoming = None
        if self._log is None:
            self._write_past()
        else:
            self._start_again()
        found = self._found()
        if _content(found) != _content(self.durable):
            raise AssertionError(f"found {_content(found)}, not {_content(self.durable)}")
        super().reopen()

    def _start_again(self) -> None:
        """Often the machine loses its power, too."""
        self._disk.heal()
        if self._log is not None:
            self._log._failure = "its process has ended"
            self._log._close_files()
        if self._chances.random() < 0.7:
            self._disk.lose_power(self._chances)
        self._log = DiskLog.open_in(
            self._disk, self._owner, fsync=self._fsync, limits=_LIMITS, random_bytes=self._chances.randbytes
        )

    def _write_past(self) -> None:
        """What an earlier life left."""
        self._start_again()
        past = self.durable
        if past.snapshot is not None:
            data = past.snapshot_data
            chunk = SnapshotChunk(past.snapshot.index, past.snapshot.term, 0, len(data), data)
            self._do(Persist(chunk=chunk))
            self._do(Persist(install=past.snapshot))
        self._do(Persist(hard_state=past.hard_state, entries=tuple(past.entries)))

    def _do(self, job: Persist) -> None:
        self.log.write(job)
        self.log.sync()

    def _found(self) -> Image:
        image, log = Image(self.durable.start), self.log
        if log.snapshot is not None:
            image.install(log.snapshot, log.read_snapshot(0, log.snapshot.size))
        image.apply(log.hard_state)
        for entry in log.entries(image.before, log.last_index, 1 << 40):
            image.apply(entry)
        return image


def _content(image: Image) -> tuple[object, ...]:
    frames = [entry.frame for entry in image.entries]
    return image.hard_state, image.snapshot, image.snapshot_data, image.before, image.before_term, frames

"""The real log of a peer in the simulation, on a disk of bytes that fails, is full, tears, loses power and flips bits.

What the simulated log says about the disk is here what the real log finds there: after each end of a process its files
are opened again, without what was not synced. What the node reads, it reads from the real log. After a bit flipped, the
real log may refuse to be opened or read; what it gives all the same must be what was written.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final, ParamSpec, TypeVar

from peers_profile import IDENT
from support.disks import CrashError, FaultyDisk
from support.raft_disks import DamagedLogError, Image, SimulatedLog

from raft_client.errors import StorageDamagedError, StorageError, StorageVersionError
from raft_client.server.node.ready import Configuration, Persist, SnapshotMeta
from raft_client.server.runtime.storage.directory import Owner
from raft_client.server.runtime.storage.disk_log import DiskLog, Fsync, StorageLimits
from raft_client.wire.log_entry import LogEntry, SnapshotChunk

__all__ = ["FILE_KINDS", "DiskBackedLog"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Of files.
FILE_KINDS: Final = ("log", "index", "snapshot", "meta")
#: Segments end often, so that there are many files; and most of what is read is read from them.
_LIMITS: Final = StorageLimits(segment_entries=2, recent_bytes=400)
#: An operation on the disk, from the next one on, that fails or does not come to pass. A job that begins a segment has
#: as many; most have fewer.
_NEXT: Final = 12


class DiskBackedLog(SimulatedLog):
    """``failures`` is how jobs ended that did not end well: the errno, or 0 for a process that died; and where.

    ``flipped`` counts the bits by kind of file, ``noticed`` how often and in which file that ended the peer.
    """

    def __init__(self, name: str, start: Configuration, chances: Random) -> None:
        super().__init__(start)
        self.reads_disk = True
        self.failures: list[tuple[int, str]] = []
        self.flipped: Counter[str] = Counter()
        self.noticed: Counter[str] = Counter()
        self._is_lost = False  # nobody can tell any more what a job left on it
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

    # -- what a node reads ---------------------------------------------------------------------------------------------

    def term_at(self, index: int) -> int | None:
        return None if super().term_at(index) is None else self._read("read", self.log.term_at, index)

    def entries(self, after: int, last: int, max_bytes: int) -> list[LogEntry]:
        return self._read("read", self.log.entries, after, last, max_bytes)

    def last_at_hand(self, after: int, max_bytes: int) -> int:
        return self._read("read", self.log.last_at_hand, after, max_bytes)

    def is_snapshot_at_hand(self, offset: int, size: int) -> bool:
        return self._read("read", self.log.is_snapshot_at_hand, offset, size)

    @property
    def wants_reading(self) -> bool:
        return self.log.wants_reading

    def read_ahead(self) -> None:
        self._read("read", self.log.read_ahead)

    def read_snapshot(self, offset: int, size: int) -> bytes:
        return self._read("read", self.log.read_snapshot, offset, size)

    def index_of_request(self, request_id: bytes) -> int | None:
        return self._read("read", self.log.index_of_request, request_id)

    def _read(self, when: str, read: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Damage is an error of the real log only where a bit has flipped."""
        try:
            return read(*args, **kwargs)
        except (StorageDamagedError, StorageVersionError) as error:
            if not self.flipped:
                raise
            file = error.file if isinstance(error, StorageDamagedError) else str(error).split()[0]
            self.noticed[f"{when} {_kind(file)}"] += 1
            raise DamagedLogError(str(error)) from error

    # -- what happens to it --------------------------------------------------------------------------------------------

    def flip(self, kind: str, which: int, where: int, bit: int) -> None:
        """One bit of what was synced, at ``where`` in the file ``which`` of this kind, modulo how much there is."""
        names = sorted(name for name, file in self._disk.files.items() if file.content and _kind(name) == kind)
        if names:
            name = names[which % len(names)]
            file = self._disk.files[name]
            self._disk.flip(name, where % min(len(file.content), len(file.cache)), bit)
            self.flipped[kind] += 1

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def sync(self, job: Persist, share: float = 1.0) -> None:
        if share >= 1.0:
            self._read("write", self._do, job)
            self.log.maintain()
            super().sync(job)
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
        self._is_lost = True
        self._read("start", self._start_again)
        self.durable = self._read("start", self._found)
        self._is_lost = False

    def compact(self, meta: SnapshotMeta, data: bytes) -> None:
        with self.log.new_snapshot() as writer:
            writer.write(data)
            writer.finish(meta)
        self._read("compact", self.log.compact, meta)
        super().compact(meta, data)

    def forget_requests(self, before_s: float) -> None:
        super().forget_requests(before_s)
        self.log.forget_requests(before_s)

    # -- the end of a process ------------------------------------------------------------------------------------------

    def reopen(self) -> None:
        self.durable.incoming = None
        if self._is_lost:
            raise DamagedLogError("it was damaged when a job failed")
        if self._log is None:
            self._write_past()
        else:
            self._read("start", self._start_again)
        self._check_found()
        super().reopen()

    def _check_found(self) -> None:
        """What is not read when a peer starts may be damaged: it is noticed when it is read."""
        try:
            found = self._found()
        except StorageDamagedError:
            if not self.flipped:
                raise
            return
        if _content(found) != _content(self.durable):
            raise AssertionError(f"found {_content(found)}, not {_content(self.durable)}")

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


def _kind(name: str) -> str:
    """One of those above, or ``tmp`` while it is not whole."""
    return name.partition("-")[0].rpartition(".")[2]


def _content(image: Image) -> tuple[object, ...]:
    frames = [entry.frame for entry in image.entries]
    return image.hard_state, image.snapshot, image.snapshot_data, image.before, image.before_term, frames

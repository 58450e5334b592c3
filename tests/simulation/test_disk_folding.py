"""What is over is cleared away, a little at a time; and files get smaller again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.disks import SimulatedDisk, SimulatedFile
from support.waiting import eventually

from statestore_client.server.journal import Changes, Stream, Subject, WriteBatch
from statestore_client.server.runtime.storage import DiskStorage
from statestore_client.server.runtime.storage.files import FRAME_BYTES, TEMPORARY_NAME
from statestore_client.server.runtime.storage.log_store import LogStore

_IDENTITY = bytes(16)
_MIB = 1024 * 1024


class _CountingDisk(SimulatedDisk):
    """Counts what is written, and what a sync has to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.synced: list[int] = []

    def open(self, name: str, *, create: bool = False) -> SimulatedFile:
        file = super().open(name, create=create)
        return file if isinstance(file, _CountingFile) else self._counting(name, file)

    def _counting(self, name: str, file: SimulatedFile) -> SimulatedFile:
        counting = _CountingFile(self)
        counting.cache, counting.content = file.cache, file.content
        self.files[name] = counting
        return counting

    def size(self) -> int:
        return sum(file.size for file in self.files.values())


class _CrampedDisk(SimulatedDisk):
    """Files that are removed give their room back."""

    def remove(self, name: str) -> None:
        if self.room is not None and name in self.files:
            self.room += self.files[name].size
        super().remove(name)


class _CountingFile(SimulatedFile):
    def write(self, data: bytes, offset: int) -> None:
        assert isinstance(self._disk, _CountingDisk)
        self._disk.written += len(data)
        super().write(data, offset)

    def sync(self) -> None:
        assert isinstance(self._disk, _CountingDisk)
        self._disk.synced.append(sum(len(each[1]) for each in self.waiting if not isinstance(each, int)))
        super().sync()


def _put(*puts: tuple[Subject, bytes]) -> WriteBatch:
    return WriteBatch((Changes(Stream.KEYS, puts, ()),))


def _remove(*subjects: Subject) -> WriteBatch:
    return WriteBatch((Changes(Stream.KEYS, (), subjects),))


def _settle(store: LogStore) -> None:
    while store.wants_work_when_quiet:
        store.work()


def test_no_step_is_long() -> None:
    """Between two batches at most a few frames are written, and no sync covers more than a MiB or so."""
    disk = _CountingDisk()
    store = LogStore(disk, _IDENTITY)
    store.forget()
    for number in range(0, 20_000, 100):
        store.append(_put(*((b"%d" % (number + i), bytes(1000)) for i in range(100))))
    _settle(store)
    steps = 0
    for number in range(0, 20_000, 100):  # everything changes
        store.append(_put(*((b"%d" % (number + i), bytes(1001)) for i in range(100))))
        disk.written, disk.synced = 0, []
        while store.wants_work and steps < 10_000:
            disk.written, disk.synced = 0, []
            store.work()
            steps += 1
            assert disk.written <= 3 * FRAME_BYTES
            assert max(disk.synced, default=0) <= _MIB + 3 * FRAME_BYTES
    assert steps > 100
    store.close()


def test_no_step_lets_go_of_everything() -> None:
    """A hundred thousand records held for a new database are released a few at a time, because other threads wait
    meanwhile."""
    store = LogStore(SimulatedDisk(), _IDENTITY)
    store.forget()
    for number in range(0, 100_000, 500):
        store.append(_put(*((b"%d" % (number + i), b"%d" % i * 50) for i in range(500))))
    store.short_bytes = _MIB
    most = 0
    while store.wants_work:
        before = sys.getallocatedblocks()
        store.work()
        most = max(most, before - sys.getallocatedblocks())
    assert most < 10_000
    store.close()


def test_folding_keeps_up() -> None:
    """Files stay bounded without a quiet moment, whatever is written how often."""
    disk = _CountingDisk()
    store = LogStore(disk, _IDENTITY)
    store.short_bytes = _MIB
    store.forget()
    largest = 0
    for number in range(3000):
        before = store.log_bytes
        store.append(_put(*((b"%d" % ((number * 10 + i) % 500), bytes(1000)) for i in range(10))))
        if store.wants_work:
            store.work(store.log_bytes - before)
        largest = max(largest, disk.size())
    assert disk.written > 25 * _MIB
    assert largest < 6 * _MIB  # half a MiB is alive
    store.close()


@pytest.mark.parametrize("room", [0, 10, 60, 75, 1000, 300_000])
def test_no_room_for_a_new_database_stops_nobody(room: int) -> None:
    """When there is no room for a new database, the log goes on and it is tried again later; a kill in between loses
    nothing."""
    disk = SimulatedDisk()
    store = LogStore(disk, _IDENTITY)
    store.short_bytes = _MIB
    store.forget()
    number = 0

    def fill() -> None:
        nonlocal number
        while not store.wants_work:
            number += 1
            store.append(_put((b"%d" % number, bytes(10_000))))

    fill()
    disk.room = room  # also not for the next log, or for the end of this one
    while store.wants_work:
        store.work()
    assert store.lacks_room
    disk.room = None
    assert TEMPORARY_NAME not in disk.names()
    assert {name for name, _ in LogStore(disk.copy(), _IDENTITY).load(Stream.KEYS)} == {
        b"%d" % each for each in range(1, number + 1)
    }
    fill()
    _settle(store)
    assert not store.lacks_room
    assert len(disk.names()) == 2
    store.close()
    assert {subject for subject, _ in LogStore(disk, _IDENTITY).load(Stream.KEYS)} == {
        b"%d" % each for each in range(1, number + 1)
    }


def test_a_batch_that_has_no_room_because_of_a_new_database() -> None:
    """A batch that lacks room gets it from an unfinished new database, and its half-written start is not taken for
    it."""
    disk = _CrampedDisk()
    store = LogStore(disk, _IDENTITY)
    store.short_bytes = _MIB
    store.forget()
    for number in range(100):
        store.append(_put((b"%d" % number, bytes(12_000))))
    while TEMPORARY_NAME not in disk.names() or not disk.files[TEMPORARY_NAME].size:
        store.work()
    disk.room = 5000
    store.append(_put((b"last", bytes(12_000))))
    assert store.lacks_room
    assert not store.wants_work
    store.close()
    assert len(list(LogStore(disk, _IDENTITY).load(Stream.KEYS))) == 101


def test_it_ends() -> None:
    """Without anything new to write there is soon nothing to do."""
    disk = _CountingDisk()
    store = LogStore(disk, _IDENTITY)
    store.forget()
    for number in range(3000):
        store.append(_put((b"%d" % number, bytes(1000))))
        store.append(_remove(b"%d" % number))
    _settle(store)
    disk.written = 0
    _settle(store)
    assert disk.written == 0
    assert disk.size() < 10_000
    store.close()


def test_files_get_smaller_again(tmp_path: Path) -> None:
    """After 40,000 records came and were removed, the files are small again without a restart."""
    storage = DiskStorage(tmp_path)
    done: list[Exception | None] = []
    for first in range(0, 40_000, 400):
        storage.append(_put(*((b"%d" % number, bytes(1000)) for number in range(first, first + 400))), done.append)
    eventually(lambda: len(done) == 100, "all of it is written")

    def size() -> int:
        return sum(path.stat().st_size for path in tmp_path.iterdir())

    assert size() > 40_000_000
    for first in range(0, 40_000, 400):
        storage.append(_remove(*(b"%d" % number for number in range(first, first + 400))), done.append)
    eventually(lambda: len(done) == 200 and not storage._store.wants_work_when_quiet, "all is cleared away")
    assert size() < 1_100_000
    assert done == [None] * 200
    storage.close()

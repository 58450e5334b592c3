"""A log on a real disk: how often it writes and syncs, and in which thread."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_jobs import START, entries, entry, open_log, request_id, snapshot, write
from support.disks import SimulatedDisk

from raft_client._common import durable_files
from raft_client.server.node.ready import HardState, Persist
from raft_client.server.runtime.storage import recovery
from raft_client.server.runtime.storage.directory import Owner
from raft_client.server.runtime.storage.disk_log import DiskLog, Fsync, StorageLimits
from raft_client.server.runtime.storage.segment_index import RequestFilter
from raft_client.wire.log_entry import SnapshotChunk


class Counts:
    """Calls of the operating system that cost something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.threads: set[int] = set()
        for name in ("pread", "pwrite", "open", "fsync"):
            monkeypatch.setattr(durable_files.os, name, self.counted(name, getattr(os, name)))
        monkeypatch.setattr(durable_files, "sync_file", self.counted("sync", durable_files.sync_file))

    def counted(self, name: str, call: Any) -> Any:
        def counting(*arguments: Any) -> Any:
            self.calls.append(name)
            if name not in ("open", "pread"):
                self.threads.add(threading.get_ident())
            return call(*arguments)

        return counting

    def take(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


@pytest.mark.skipif(not hasattr(os, "pwrite"), reason="counts calls of POSIX")
def test_a_job_is_one_write_and_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job with any number of entries, with a vote or a cut, is one write and one sync."""
    with open_log(tmp_path) as log:
        counts = Counts(monkeypatch)
        for fields in (
            {"entries": entries(1, 500)},
            {"hard_state": HardState(4, "2")},
            {"hard_state": HardState(5), "truncate_after": 77, "entries": entries(78, 90, 5)},
            {"truncate_after": 80},
        ):
            log.write(Persist(**fields))  # type: ignore[arg-type]  # each is the one that it is named
            assert counts.take() == []
            log.sync()
            assert counts.take() == ["pwrite", "sync"]
        write(log, truncate_after=80)
        write(log)
        write(log, chunk=SnapshotChunk(200, 5, 0, 9000, bytes(4000)))
        assert "sync" not in counts.take()


@pytest.mark.skipif(not hasattr(os, "pwrite"), reason="counts calls of POSIX")
@pytest.mark.parametrize(("fsync", "syncs"), [(Fsync.ALWAYS, 3), (Fsync.GROUP, 1), (Fsync.OFF, 0)])
def test_how_often_it_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: Fsync, syncs: int) -> None:
    """The log syncs for each entry, for each job, or never, and what was written is there after the next start."""
    with open_log(tmp_path, fsync=fsync) as log:
        counts = Counts(monkeypatch)
        write(log, entries=entries(1, 3))
        assert counts.take().count("sync") == syncs
    with open_log(tmp_path) as log:
        assert log.last_index == 3


def test_without_syncs_a_snapshot_may_outlive_the_entries_before_it() -> None:
    """With ``off``, a power failure may take entries whose snapshot is on the disk: the log goes on after the snapshot,
    and otherwise holds some first part of the entries."""
    for seed in range(20):
        disk = SimulatedDisk()
        log = DiskLog.open_in(disk, Owner("1", b"factory", START.change), fsync=Fsync.OFF)
        for index in range(1, 21):
            write(log, entries=(entry(index, data=b"y" * 300),))
            if index == 15:
                snapshot(log, 15)
        disk.lose_power(random.Random(seed))
        log = DiskLog.open_in(disk, Owner("1", b"factory", START.change))
        assert log.last_index >= 15
        assert log.read_snapshot(0, 10) == b"state"
        assert [each.index for each in log.entries(15, 20, 10_000)] == list(range(16, log.last_index + 1))
        write(log, entries=(entry(log.last_index + 1),))


def test_only_sync_and_maintain_touch_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only sync() and maintain() touch the disk, so that they may run in a thread of their own."""
    with open_log(tmp_path, limits=StorageLimits(segment_entries=50, recent_bytes=1000)) as log:
        counts = Counts(monkeypatch)
        for begin in range(1, 400, 10):
            log.write(Persist(entries=entries(begin, begin + 9)))
            worker = threading.Thread(target=lambda: (log.sync(), log.maintain()))
            worker.start()
            while worker.is_alive():
                after = begin * 7 // 9
                found = log.entries(after, begin, 500)
                assert found == list(entries(after + 1, begin))[: len(found)]
                assert found
                assert log.index_of_request(request_id(after + 1)) == after + 1
            worker.join()
        assert threading.get_ident() not in counts.threads
        assert log.last_index == 400


def reads_of(log: DiskLog, counts: Counts, numbers: range) -> int:
    """How often the disk was read to learn that none of these is the number of a request."""
    counts.take()
    assert not any(log.index_of_request(request_id(number)) for number in numbers)
    return counts.take().count("pread")


#: A hundred whose last byte is 255: in an index they would stand behind all others, in a block that has to be read.
NEW = range(10_239, 10_239 + 25_600, 256)


@pytest.mark.skipif(not hasattr(os, "pread"), reason="counts calls of POSIX")
def test_a_new_request_id_is_not_sought_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many segments have ids of the same second: a new one of that second is looked up in few of them, and each one
    that is there is found. Segments that are old, or were written by another process, are read.
    """
    monkeypatch.setattr(recovery, "_FILTERS", 10)
    with open_log(tmp_path, limits=StorageLimits(segment_entries=50)) as log:
        counts = Counts(monkeypatch)
        for begin in range(1, 501, 50):
            write(log, entries=entries(begin, begin + 49))
        log.maintain()
        assert reads_of(log, counts, NEW) < 100  # 9 or 10 segments for each of 100 ids
        assert [log.index_of_request(request_id(number)) for number in range(1, 501)] == [*range(1, 501)]
        for begin in range(501, 1001, 50):
            write(log, entries=entries(begin, begin + 49))
        log.maintain()
        assert 900 < reads_of(log, counts, NEW) < 1200
    with open_log(tmp_path) as log:
        assert reads_of(log, counts, NEW) > 1800


@given(st.sets(st.binary(min_size=12, max_size=12)))
def test_a_filter_has_all_that_it_was_made_of(ids: set[bytes]) -> None:
    """A filter has each id that it was made of, and few others: 1.4 to 5 of 100."""
    requests = RequestFilter(ids)
    assert all(map(requests.may_have, ids))


def test_a_filter_has_few_others() -> None:
    """Of 20,000 ids, a twentieth at most."""
    requests = RequestFilter([request_id(number) for number in range(20_000)])
    assert sum(requests.may_have(request_id(number)) for number in range(20_000, 40_000)) < 1200

"""A log on a real disk: what it takes and holds, its snapshots, and who may open it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from log_jobs import PEERS, START, arrive, entries, entry, open_log, request_id, snapshot, write

from raft_client.errors import (
    BusyError,
    InvalidArgumentError,
    ProtocolError,
    StorageDamagedError,
    StorageError,
    StorageInUseError,
    StorageOwnerError,
    StorageVersionError,
)
from raft_client.server.node.ready import Configuration, HardState, Persist, SnapshotMeta, StoredLog
from raft_client.server.runtime.storage.backup import inspect_directory
from raft_client.server.runtime.storage.directory import DirectoryLock
from raft_client.server.runtime.storage.disk_log import DiskLog, StorageLimits
from raft_client.wire.configuration import ConfigChange, Peer, encode_config
from raft_client.wire.log_entry import EntryKind, LogEntry, SnapshotChunk


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DiskLog]:
    """A new one, of the peer "1" alone."""
    with open_log(tmp_path / "peer") as log:
        yield log


def test_a_new_log_is_empty(log: DiskLog) -> None:
    """A new log begins at index 1 in term 0, with the peers that it was given."""
    stored: StoredLog = log
    assert (stored.first_index, stored.last_index, stored.prune_index) == (1, 0, 0)
    assert stored.hard_state == HardState()
    assert stored.configurations == [START]
    assert stored.snapshot is None
    assert stored.term_at(0) == 0
    assert stored.term_at(1) is None
    assert stored.entries(0, 10, 1000) == []
    assert stored.read_snapshot(0, 10) == b""
    assert stored.index_of_request(request_id(1)) is None


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    """Entries, votes, configurations and request ids are there at once, and after the next start."""
    change = ConfigChange((*PEERS, Peer("2", "tcp://127.0.0.1:8048")), PEERS)
    config = LogEntry.of(encode_config(change), term=2, index=3, kind=EntryKind.CONFIG)

    def check(log: DiskLog) -> None:
        assert log.hard_state == HardState(2, "zürich")
        assert (log.first_index, log.last_index) == (1, 3)
        assert log.entries(0, 3, 10_000) == [*entries(1, 2), config]
        assert [log.term_at(index) for index in range(5)] == [0, 1, 1, 2, None]
        assert log.configurations == [START, Configuration(3, change)]
        assert log.index_of_request(request_id(2)) == 2

    with open_log(tmp_path) as log:
        write(log, hard_state=HardState(2, "zürich"), entries=(*entries(1, 2), config))
        check(log)
    with open_log(tmp_path) as log:
        check(log)


def test_entries_that_no_client_asked_for_have_no_id(log: DiskLog) -> None:
    """Entries that no client appended have zeros as their request id, which is not found."""
    write(log, entries=(LogEntry.of(b"\xc0", term=1, index=1, kind=EntryKind.CHECKPOINT),))
    assert log.index_of_request(bytes(12)) is None


def test_as_many_entries_as_fit_but_one_at_least(tmp_path: Path) -> None:
    """A read gives as many entries as fit, one at least, from memory and disk and across segments."""
    sizes = [30, 5000, 10, 10, 70_000, 1]
    all_entries = tuple(entry(number, data=b"y" * size) for number, size in enumerate(sizes, 1))
    for recent_bytes in (0, 6000, 1_000_000):
        limits = StorageLimits(segment_entries=2, recent_bytes=recent_bytes)
        with open_log(tmp_path / str(recent_bytes), limits=limits) as log:
            for each in all_entries:
                write(log, entries=(each,))
            for max_bytes in (0, 60, 5100, 76_000, 1 << 60):
                for after in range(6):
                    found = log.entries(after, 6, max_bytes)
                    count = len(found)
                    assert found == list(all_entries[after : after + count])
                    assert count == 1 or sum(each.size for each in found) <= max_bytes
                    following = all_entries[after : after + count + 1]
                    assert count == 6 - after or sum(each.size for each in following) > max_bytes


def test_a_job_that_does_not_fit_changes_nothing(log: DiskLog) -> None:
    """A gap, a cut beyond the end, a chunk out of order and an invalid configuration are refused and change nothing."""
    write(log, hard_state=HardState(3), entries=entries(1, 5))
    meta = SnapshotMeta(9, 3, 4, START)
    config = LogEntry.of(b"\xc1", term=3, index=6, kind=EntryKind.CONFIG)
    for job, error in (
        (Persist(hard_state=HardState(4), entries=entries(7, 8)), InvalidArgumentError),
        (Persist(truncate_after=6), InvalidArgumentError),
        (Persist(truncate_after=-1), InvalidArgumentError),
        (Persist(truncate_after=3, entries=entries(6, 6)), InvalidArgumentError),
        (Persist(chunk=SnapshotChunk(9, 3, 2, 4, b"cd")), InvalidArgumentError),
        (Persist(install=meta), InvalidArgumentError),
        (Persist(hard_state=HardState(4), chunk=SnapshotChunk(9, 3, 0, 4, b"ab"), install=meta), InvalidArgumentError),
        (Persist(hard_state=HardState(4), entries=(config,)), ProtocolError),
    ):
        with pytest.raises(error):
            log.write(job)
        log.sync()
        assert log.hard_state == HardState(3)
        assert log.entries(0, 9, 10_000) == list(entries(1, 5))
    write(log, entries=entries(6, 6))


def test_a_job_is_synced_before_the_next(log: DiskLog) -> None:
    """A job has to be synced before the next; otherwise the caller gets an error."""
    log.write(Persist(entries=entries(1, 1)))
    with pytest.raises(BusyError):
        log.write(Persist(entries=entries(2, 2)))
    log.sync()
    log.sync()  # nothing to do
    write(log, entries=entries(2, 2))
    assert log.last_index == 2


# -- snapshots, what they replace, and which request ids stay known ----------------------------------------------------


@pytest.mark.parametrize(("term", "kept"), [(1, True), (2, False)])
def test_a_snapshot_from_another_peer(tmp_path: Path, term: int, kept: bool) -> None:
    """After a snapshot of another peer, entries and ids after it stay only if the log has its last entry."""
    data = bytes(range(256)) * 10
    meta = SnapshotMeta(4, term, len(data), START)
    with open_log(tmp_path) as log:
        write(log, entries=entries(1, 6))
        arrive(log, meta, data)
    with open_log(tmp_path) as log:
        assert log.snapshot == meta
        assert log.read_snapshot(0, 10_000) == data
        assert log.read_snapshot(300, 7) == data[300:307]
        assert log.read_snapshot(len(data), 7) == b""
        assert log.term_at(4) == term
        assert log.last_index == (6 if kept else 4)
        assert log.index_of_request(request_id(2)) == (2 if kept else None)
        assert log.prune_index == (0 if kept else 4)
        write(log, entries=entries(log.last_index + 1, 8, 3))
        assert log.entries(6, 8, 1000) == list(entries(7, 8, 3))


def test_a_snapshot_and_a_cut_in_one_job(log: DiskLog) -> None:
    """A snapshot and a cut may come in one job: what follows the snapshot in the log goes."""
    write(log, entries=entries(1, 9))
    arrive(log, SnapshotMeta(4, 1, 3, START), b"abc", truncate_after=2, entries=entries(5, 6, 7))
    assert [log.term_at(index) for index in (4, 5, 6, 7)] == [1, 7, 7, None]
    arrive(log, SnapshotMeta(20, 8, 3, START), b"abc", truncate_after=20)
    assert (log.first_index, log.last_index) == (21, 20)


def test_a_snapshot_does_not_take_a_newer_configuration_away(tmp_path: Path) -> None:
    """A snapshot from another peer may come with an outdated list of members: CONFIG entries that are newer stay, and
    so does what it says of its members.
    """
    change = ConfigChange((*PEERS, Peer("2", "tcp://127.0.0.1:8048")))
    config = LogEntry.of(encode_config(change), term=1, index=4, kind=EntryKind.CONFIG)
    limits = StorageLimits(segment_entries=2)
    meta = SnapshotMeta(8, 1, 3, START, members_known=False)
    with open_log(tmp_path, limits=limits) as log:
        for each in (*entries(1, 3), config, *entries(5, 10)):
            write(log, entries=(each,))
        log.maintain()
        arrive(log, meta, b"abc")
        assert log.configurations == [START, Configuration(4, change)]
        assert log.first_index == 3
    with open_log(tmp_path) as log:
        assert log.configurations == [START, Configuration(4, change)]
        assert log.snapshot == meta


def test_a_snapshot_that_begins_again(log: DiskLog) -> None:
    """A first chunk begins the snapshot again, as when its sender is another one."""
    write(log, chunk=SnapshotChunk(3, 1, 0, 4, b"ab"))
    write(log, chunk=SnapshotChunk(3, 1, 0, 4, b"xy"))
    write(log, chunk=SnapshotChunk(3, 1, 2, 4, b"z!"), install=SnapshotMeta(3, 1, 4, START))
    assert log.read_snapshot(0, 100) == b"xyz!"


def test_compaction_drops_segments_and_remembers_ids(tmp_path: Path) -> None:
    """Compaction drops whole segments, but not the last, and keeps the ids of their entries until they are too old."""
    limits = StorageLimits(segment_entries=4)
    with open_log(tmp_path, limits=limits) as log:
        for index in range(1, 21):
            write(log, entries=(entry(index, raw=request_id(index, 1000 + index)),))
        log.maintain()
        meta = snapshot(log, 14)
        assert log.wants_maintenance
        log.maintain()
        assert not log.wants_maintenance
        assert (log.first_index, log.prune_index) == (13, 0)
        assert log.entries(5, 9, 1000) == []
    assert len(list(tmp_path.glob("*.log"))) == 2  # 13 to 16, 17 to 20
    with open_log(tmp_path, limits=limits) as log:
        assert (log.snapshot, log.first_index) == (meta, 13)
        assert [log.index_of_request(request_id(i, 1000 + i)) for i in (1, 12, 13, 20)] == [1, 12, 13, 20]
        assert log.index_of_request(request_id(2, 1001)) is None
        log.forget_requests(1000 + 9)
        assert log.prune_index == 8
        assert log.index_of_request(request_id(8, 1008)) is None
        assert log.index_of_request(request_id(9, 1009)) == 9
    with open_log(tmp_path, limits=limits) as log:
        assert log.prune_index == 8


def test_ids_are_forgotten_before_their_entries_are_compacted(tmp_path: Path) -> None:
    """Request ids can be forgotten before their entries go, so that no snapshot ends after a remembered id."""
    with open_log(tmp_path, limits=StorageLimits(segment_entries=4)) as log:
        for index in range(1, 21):
            write(log, entries=(entry(index, raw=request_id(index, 1000 + index)),))
        assert log.newest_request_s() == -math.inf  # no segment has an index yet
        log.maintain()
        assert log.newest_request_s() == 1016  # of the segments that have ended
        log.forget_requests(1000 + 13)
        assert (log.prune_index, log.first_index) == (12, 1)
        assert log.index_of_request(request_id(12, 1012)) is None
        assert log.entries(11, 12, 1000)
        log.forget_requests(1_000_000)
        assert log.prune_index == 16  # those of the last segment stay
        snapshot(log, 12)
        log.maintain()
        assert not [name for name in os.listdir(tmp_path) if name.startswith("0000000000000001")]


def test_only_a_snapshot_of_this_log_compacts_it(log: DiskLog) -> None:
    """A log is compacted only by a finished snapshot of its size, newer than the last, of an entry that the log has."""
    write(log, entries=entries(1, 5))
    good = SnapshotMeta(3, 1, 5, START)
    with pytest.raises(InvalidArgumentError):
        log.compact(good)
    with log.new_snapshot() as writer:
        with pytest.raises(BusyError):
            log.new_snapshot()
        writer.write(b"state")
        with pytest.raises(InvalidArgumentError, match="5 bytes"):
            writer.finish(SnapshotMeta(3, 1, 6, START))
        writer.finish(good)
    for meta in (SnapshotMeta(3, 2, 5, START), SnapshotMeta(6, 1, 5, START), SnapshotMeta(2, 1, 5, START)):
        with pytest.raises(InvalidArgumentError):
            log.compact(meta)
    log.compact(good)
    with pytest.raises(InvalidArgumentError):
        log.write(Persist(truncate_after=2))
    with pytest.raises(InvalidArgumentError):
        arrive(log, SnapshotMeta(2, 1, 3, START), b"old")


# -- who may open it, and what is refused ------------------------------------------------------------------------------


def test_one_directory_has_one_peer(tmp_path: Path) -> None:
    """A second peer is refused the directory, in this process and in another, until the first has closed it."""
    code = """
import sys
from raft_client import StorageInUseError
from raft_client.server.runtime.storage.disk_log import DiskLog
try:
    DiskLog.open(sys.argv[1], peer_id="1", ident=b"factory", peers=())
except StorageInUseError as error:
    print("in use:", error)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    with open_log(tmp_path):
        with pytest.raises(StorageInUseError, match="another peer"):
            open_log(tmp_path)
        with pytest.raises(StorageInUseError):
            inspect_directory(tmp_path)
        assert "in use:" in subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == ""


def test_a_directory_belongs_to_one_peer_of_one_cluster(tmp_path: Path) -> None:
    """A directory belongs to one peer of one cluster; another is refused, and the lock is free again."""
    open_log(tmp_path).close()
    for changes, match in (({"peer_id": "2"}, "peer '1'"), ({"ident": b"other"}, "cluster b'factory'")):
        with pytest.raises(StorageOwnerError, match=match):
            open_log(tmp_path, **changes)
    open_log(tmp_path).close()


@pytest.mark.parametrize("pattern", ["meta", "*.log", "*.index", "snapshot-*"])
def test_a_newer_format_is_refused(tmp_path: Path, pattern: str) -> None:
    """A newer format in any file is refused."""
    with open_log(tmp_path, limits=StorageLimits(segment_entries=2)) as log:
        for index in range(1, 6):
            write(log, entries=entries(index, index))
        log.maintain()
        snapshot(log, 3)
    for path in tmp_path.glob(pattern):
        data = bytearray(path.read_bytes())
        data[8:10] = b"\x02\x00"
        path.write_bytes(data)
    with pytest.raises(StorageVersionError, match="version 2"):
        open_log(tmp_path)


def test_an_index_of_a_newer_format_is_made_anew(tmp_path: Path) -> None:
    """While its segment is there: an index says nothing that its segment does not say."""
    with open_log(tmp_path, limits=StorageLimits(segment_entries=2)) as log:
        for index in range(1, 6):
            write(log, entries=entries(index, index))
        log.maintain()
    indexes = {path: path.read_bytes() for path in tmp_path.glob("*.index")}
    assert len(indexes) == 2
    for path, data in indexes.items():
        path.write_bytes(data[:8] + b"\x02\x00" + data[10:])
    with open_log(tmp_path) as log:
        assert log.last_index == 5
        assert log.index_of_request(request_id(1)) == 1
        log.maintain()
    assert {path: path.read_bytes() for path in indexes} == indexes


def test_damage_names_the_file_and_the_byte(tmp_path: Path) -> None:
    """The error about damage names the file and the byte, and an inspection reports the same without opening the
    log."""
    with open_log(tmp_path) as log:
        write(log, entries=entries(1, 3))
    (path,) = tmp_path.glob("*.log")
    data = bytearray(path.read_bytes())
    at = data.index(request_id(2)) - 12
    data[at + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageDamagedError, match=f"{path.name} is damaged at byte {at}") as told:
        open_log(tmp_path)
    assert (told.value.file, told.value.offset) == (path.name, at)
    (problem,) = inspect_directory(tmp_path).problems
    assert (problem.file, problem.offset) == (path.name, at)
    assert path.read_bytes() == data


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    """A file in place of the directory, and for an inspection a missing directory, are typed errors."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        open_log(tmp_path / "file")
    with pytest.raises(StorageError, match="no directory"):
        inspect_directory(tmp_path / "nothing")
    assert not inspect_directory(tmp_path).problems


def test_an_inspection_needs_no_right_to_write(tmp_path: Path) -> None:
    """A directory on a medium that cannot be written is inspected, and nothing is created in it."""
    with open_log(tmp_path / "peer") as log:
        write(log, entries=entries(1, 3))
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (tmp_path / "peer").iterdir():
        if path.name != "lock":
            (copy / path.name).write_bytes(path.read_bytes())
            (copy / path.name).chmod(0o400)
    names = set(os.listdir(copy))
    copy.chmod(0o500)
    try:
        found = inspect_directory(copy)
    finally:
        copy.chmod(0o700)
    assert (found.last_index, found.problems) == (3, ())
    assert set(os.listdir(copy)) == names


def test_a_log_that_is_closed(tmp_path: Path) -> None:
    """A closed log takes nothing, and can be closed again."""
    log = open_log(tmp_path)
    log.close()
    log.close()
    with pytest.raises(StorageError, match="closed"):
        log.write(Persist(hard_state=HardState(1)))


def test_a_directory_that_was_released_keeps_no_descriptor(tmp_path: Path) -> None:
    """A released lock has closed its file: a process that opens logs again and again runs out of nothing."""
    for _ in range(2):
        lock = DirectoryLock(tmp_path)
        assert lock._file.descriptor >= 0
        lock.release()
        assert lock._file.descriptor < 0
        lock.release()

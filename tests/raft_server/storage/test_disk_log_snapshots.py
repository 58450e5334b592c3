"""A log on a real disk: snapshots, what they replace, and which request ids stay known."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from log_jobs import PEERS, START, arrive, entries, entry, open_log, request_id, snapshot, write

from raft_client.errors import (
    BusyError,
    InvalidArgumentError,
)
from raft_client.server.node.ready import Persist
from raft_client.server.node.stored_log import Configuration, SnapshotMeta
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.server.runtime.storage.options import StorageLimits
from raft_client.wire.configuration import ConfigChange, Peer, encode_config
from raft_client.wire.log_entry import EntryKind, LogEntry
from raft_client.wire.snapshots import SnapshotChunk


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


def test_an_empty_snapshot(log: DiskLog) -> None:
    """An empty snapshot has one chunk without data."""
    meta = SnapshotMeta(3, 1, 0, START)
    write(log, chunk=SnapshotChunk(3, 1, 0, 0, b""), install=meta)
    assert log.snapshot == meta
    assert log.read_snapshot(0, 100) == b""


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

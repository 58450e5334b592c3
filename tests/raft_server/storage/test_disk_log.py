"""A log on a real disk: what it takes, and what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_jobs import PEERS, START, entries, entry, open_log, request_id, write

from raft_client.errors import (
    BusyError,
    InvalidArgumentError,
    ProtocolError,
)
from raft_client.server.node.ready import Persist
from raft_client.server.node.stored_log import Configuration, HardState, SnapshotMeta, StoredLog
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.server.runtime.storage.options import StorageLimits
from raft_client.wire.configuration import ConfigChange, Peer, encode_config
from raft_client.wire.log_entry import EntryKind, LogEntry
from raft_client.wire.snapshots import SnapshotChunk


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


def test_the_newest_entry_with_an_id_counts(log: DiskLog) -> None:
    """A request id leads to the newest entry with it, and to the older one when that is cut off."""
    raw = request_id(7)
    write(log, entries=(entry(1, raw=raw), entry(2, raw=raw), entry(3), entry(4, raw=raw)))
    assert log.index_of_request(raw) == 4
    write(log, truncate_after=3)
    assert log.index_of_request(raw) == 2
    write(log, truncate_after=0)
    assert log.index_of_request(raw) is None


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

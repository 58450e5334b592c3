"""Backups of a peer's directory: what is in one, and the new cluster that one becomes."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from log_jobs import write

from raft_client._common import durable_files
from raft_client.errors import (
    InvalidArgumentError,
    StorageDamagedError,
    StorageError,
    StorageFullError,
    StorageOwnerError,
)
from raft_client.server.node.ready import Configuration, HardState, SnapshotMeta
from raft_client.server.runtime.storage.backup import TERM_STEP, back_up, inspect_directory, restore
from raft_client.server.runtime.storage.disk_log import DiskLog, Fsync, StorageLimits
from raft_client.wire.configuration import ConfigChange, Peer, encode_config
from raft_client.wire.log_entry import EntryKind, LogEntry
from raft_client.wire.request_id import RequestId

PEERS = tuple(Peer(str(n), f"tcp://127.0.0.1:{8000 + n}") for n in (1, 2, 3))
NEW = Peer("9", "tcp://127.0.0.1:8009")
NEW_ID = RequestId(bytes(range(12)))
SMALL = StorageLimits(segment_entries=5)


def request_id(number: int) -> RequestId:
    return RequestId((1_700_000_000).to_bytes(4, "big") + number.to_bytes(8, "big"))


def entry(index: int, term: int = 3) -> LogEntry:
    return LogEntry.of(b"pump %d" % index, term=term, index=index, request_id=request_id(index))


def open_log(path: Path, **changes: Any) -> DiskLog:
    return DiskLog.open(path, **{"peer_id": "1", "ident": b"plant", "peers": PEERS, "limits": SMALL, **changes})


def compact(log: DiskLog, index: int) -> None:
    meta = SnapshotMeta(index, log.term_at(index) or 0, 5, Configuration(0, ConfigChange(PEERS)))
    with log.new_snapshot() as writer:
        writer.write(b"state")
        writer.finish(meta)
    log.compact(meta)
    log.maintain()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a peer with a vote, a snapshot up to 12, and the entries 11 to 20, of which 18 is one of an added peer."""
    path = tmp_path / "1"
    added = LogEntry.of(
        encode_config(ConfigChange((*PEERS, Peer("4", "tcp://127.0.0.1:8004")))), term=3, index=18,
        kind=EntryKind.CONFIG, request_id=request_id(18),
    )  # fmt: skip
    with open_log(path) as log:
        for index in range(1, 21):
            write(log, hard_state=HardState(4, "2"), entries=(added if index == 18 else entry(index),))
        log.maintain()
        compact(log, 12)
    return path


def restored(source: Path, path: Path, **changes: Any) -> Path:
    restore(source, path, **{"peer": NEW, "ident": b"plant-2", "request_id": NEW_ID, **changes})
    return path


def test_a_backup_is_restored_as_a_new_cluster(directory: Path, tmp_path: Path) -> None:
    """A restored directory has the entries, ids and the snapshot; one more entry makes its peer the only member, in a
    term that the old cluster never had, and in which it has voted already."""
    found = back_up(directory, tmp_path / "backup")
    assert (found.first_index, found.last_index, found.is_backup) == (11, 20, True)
    with open_log(directory) as log:
        before, snapshot = log.entries(10, 20, 1 << 30), log.snapshot
    restored(tmp_path / "backup", tmp_path / "9")
    with open_log(tmp_path / "9", peer_id="9", ident=b"plant-2", peers=(NEW,)) as log:
        assert log.entries(10, 20, 1 << 30) == before
        (last,) = log.entries(20, 21, 1 << 30)
        assert (last.kind, last.request_id, last.term) == (EntryKind.CONFIG, NEW_ID, 4 + TERM_STEP)
        assert log.hard_state == HardState(4 + TERM_STEP, "9")
        assert log.configurations[-1] == Configuration(21, ConfigChange((NEW,)))
        assert [log.index_of_request(request_id(n).raw) for n in range(1, 21)] == list(range(1, 21))
        assert log.snapshot == snapshot
        assert log.read_snapshot(0, 10) == b"state"


def test_a_backup_of_a_backup_is_the_same(directory: Path, tmp_path: Path) -> None:
    """The files of a backup are those of the directory, byte for byte; only the owner's has another name."""
    back_up(directory, tmp_path / "backup")

    def image(path: Path) -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in path.iterdir() if each.name != "lock"}

    names = image(directory)
    names["meta.backup"] = names.pop("meta")
    assert image(tmp_path / "backup") == names
    with pytest.raises(StorageError, match="not the data directory of a peer"):
        back_up(tmp_path / "backup", tmp_path / "again")


def test_no_peer_starts_with_a_backup(directory: Path, tmp_path: Path) -> None:
    """Neither the peer whose backup it is nor another one can be started with it, and an inspection says what it is."""
    back_up(directory, tmp_path / "backup")
    for peer_id in ("1", "9"):
        with pytest.raises(StorageOwnerError, match="zmqraft restore"):
            open_log(tmp_path / "backup", peer_id=peer_id)
    found = inspect_directory(tmp_path / "backup")
    assert (found.is_backup, found.problems, found.last_index) == (True, (), 20)


def test_the_old_peer_cannot_use_a_restored_directory(directory: Path, tmp_path: Path) -> None:
    """A peer of the old cluster is refused a restored directory, under its old id and under the new one."""
    back_up(directory, tmp_path / "backup")
    restored(tmp_path / "backup", tmp_path / "9")
    for peer_id, ident in (("1", b"plant"), ("9", b"plant"), ("1", b"plant-2")):
        with pytest.raises(StorageOwnerError):
            open_log(tmp_path / "9", peer_id=peer_id, ident=ident)


@pytest.mark.parametrize("peer_id", ["1", "2", "3", "4"])
def test_an_id_that_was_used_is_refused(directory: Path, tmp_path: Path, peer_id: str) -> None:
    """The ids of all members that the log tells of are refused: a peer that copies the old entries would stand for
    election as such a member."""
    back_up(directory, tmp_path / "backup")
    with pytest.raises(InvalidArgumentError, match="was used"):
        restored(tmp_path / "backup", tmp_path / "new", peer=Peer(peer_id, NEW.url))
    assert {path.name for path in tmp_path.iterdir()} == {"1", "backup"}


def test_the_name_of_the_old_cluster_is_refused(directory: Path, tmp_path: Path) -> None:
    """A restored cluster has a name of its own, so that peers of the old one never hear it."""
    back_up(directory, tmp_path / "backup")
    with pytest.raises(InvalidArgumentError, match="'plant'"):
        restored(tmp_path / "backup", tmp_path / "new", ident=b"plant")
    assert {path.name for path in tmp_path.iterdir()} == {"1", "backup"}


def test_a_log_without_entries_is_restored(tmp_path: Path) -> None:
    """A peer that has written nothing yet can be backed up and restored."""
    open_log(tmp_path / "1").close()
    back_up(tmp_path / "1", tmp_path / "backup")
    restored(tmp_path / "backup", tmp_path / "9")
    with open_log(tmp_path / "9", peer_id="9", ident=b"plant-2", peers=(NEW,)) as log:
        assert (log.first_index, log.last_index, log.hard_state.term) == (1, 1, TERM_STEP)


@pytest.mark.parametrize("pattern", ["*1.index", "*4.log", "snapshot-*", "meta"])
def test_damage_is_refused(directory: Path, tmp_path: Path, pattern: str) -> None:
    """Damage in any file ends a backup, and a restore of a backup that was damaged later; nothing is left of either."""
    back_up(directory, tmp_path / "backup")
    for place, act in (
        (directory, lambda: back_up(directory, tmp_path / "other")),
        (tmp_path / "backup", lambda: restored(tmp_path / "backup", tmp_path / "other")),
    ):
        (path,) = place.glob(pattern if place == directory else pattern.replace("meta", "meta.backup"))
        data = bytearray(path.read_bytes())
        data[30 if path.suffix != ".log" else data.index(b"pump")] ^= 4
        path.write_bytes(data)
        with pytest.raises(StorageDamagedError) as caught:
            act()
        assert caught.value.file.startswith(path.name.removesuffix(".backup"))
        assert {path.name for path in tmp_path.iterdir()} == {"1", "backup"}


def test_what_exists_stays(directory: Path, tmp_path: Path) -> None:
    """Nothing is written over a directory with something in it or a file; an empty directory is taken."""
    full, file, empty = tmp_path / "full", tmp_path / "file", tmp_path / "empty"
    full.mkdir()
    (full / "mine").write_bytes(b"data")
    file.write_bytes(b"data")
    empty.mkdir()
    for target in (full, file, directory):
        with pytest.raises(StorageError, match="exists already"):
            back_up(directory, target)
    back_up(directory, empty)
    assert inspect_directory(empty).is_backup
    with pytest.raises(StorageError, match="exists already"):
        restored(empty, full)
    assert (full / "mine").read_bytes() == file.read_bytes() == b"data"
    for missing in (tmp_path / "none", full):
        with pytest.raises(StorageError, match="not the data directory of a peer"):
            back_up(missing, tmp_path / "new")
        with pytest.raises(StorageError, match="no backup"):
            restored(missing, tmp_path / "new")


def failing_at(patch: pytest.MonkeyPatch, number: int) -> Callable[[], bool]:
    """The disk is full at the sync with this number. Returns what tells whether there was one."""
    syncs = 0

    def counted(_descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(durable_files, "sync_file", counted)
    patch.setattr(os, "fsync", counted)
    return lambda: syncs >= number


def test_a_disk_that_fails_leaves_nothing(directory: Path, tmp_path: Path) -> None:
    """A full disk at any sync of a backup or a restore is told, and leaves nothing behind."""
    back_up(directory, tmp_path / "backup")
    for act in (
        lambda: back_up(directory, tmp_path / "other"),
        lambda: restored(tmp_path / "backup", tmp_path / "other"),
    ):
        for number in range(1, 1000):
            with pytest.MonkeyPatch.context() as patch:
                failed = failing_at(patch, number)
                try:
                    act()
                except StorageFullError:
                    assert {path.name for path in tmp_path.iterdir()} == {"1", "backup"}
                else:
                    assert not failed()
                    break
        assert number > 5
        shutil.rmtree(tmp_path / "other")


def test_a_peer_that_runs_is_backed_up(tmp_path: Path) -> None:
    """While a peer appends, votes and compacts, a backup holds a sound log with all that was durable when it began."""
    jobs, begun, synced = threading.Semaphore(500), threading.Event(), [0]
    stop = False

    def live() -> None:
        with open_log(tmp_path / "1", fsync=Fsync.OFF) as log:
            for number in range(1, 1_000_000):
                jobs.acquire()
                if stop:
                    return
                term, first = 1 + number // 50, log.last_index + 1
                write(log, hard_state=HardState(term, "2"), entries=tuple(entry(first + n, term) for n in range(3)))
                synced[0] = log.last_index
                if number % 100 == 0:
                    log.maintain()
                    compact(log, log.last_index - 10)
                    log.forget_requests(1 << 40)
                    begun.set()

    peer = threading.Thread(target=live)
    peer.start()
    try:
        assert begun.wait(60)
        for number in range(10):
            while jobs.acquire(blocking=False):
                pass
            jobs.release(500)  # six compactions at most: a backup has time for a sound copy
            before = synced[0]
            found = back_up(tmp_path / "1", tmp_path / f"backup {number}")
            assert (found.problems, (found.last_index or 0) >= before) == ((), True)
    finally:
        stop = True
        jobs.release()
        peer.join()
    restored(tmp_path / "backup 9", tmp_path / "9")
    with open_log(tmp_path / "9", peer_id="9", ident=b"plant-2", peers=(NEW,)) as log:
        kept = log.entries(log.first_index - 1, log.last_index - 1, 1 << 30)
        assert [each.data for each in kept] == [b"pump %d" % index for index in range(log.first_index, log.last_index)]

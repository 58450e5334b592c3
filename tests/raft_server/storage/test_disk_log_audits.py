"""A disk that fails, is full, changes bits or loses its power; and mistakes planted in a log, which the audits find."""

from __future__ import annotations

import errno
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from log_audits import (
    check_flips,
    crash_everywhere,
    damaged,
    fail_everywhere,
    fail_syncs,
    flips,
    lived,
    tear_everywhere,
)
from log_history import History, ViolationError
from log_jobs import PEERS
from log_model import check_log
from support.disks import FaultyDisk

from raft_client.errors import StorageError, StorageFullError
from raft_client.server.node.ready import HardState, Persist, SnapshotMeta
from raft_client.server.runtime.storage import disk_log, segment, segment_format
from raft_client.server.runtime.storage.backup import inspect_directory, inspect_folder
from raft_client.server.runtime.storage.disk_log import DiskLog, Fsync
from raft_client.server.runtime.storage.recovery import FileNames, Recovered, SegmentList, recover
from raft_client.server.runtime.storage.snapshots import SnapshotFileWriter, SnapshotStore


@pytest.mark.parametrize(("error", "cls"), [(errno.EIO, StorageError), (errno.ENOSPC, StorageFullError)])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.ci
def test_every_operation_may_fail(seed: int, error: int, cls: type[StorageError]) -> None:
    """A failing operation is reported as what it is, and nothing acknowledged is lost, even with a loss of power."""
    failed = set()
    for history, operation, told in fail_everywhere(seed, 24, error):
        failed.add(operation.split()[0])
        assert type(told) is cls, operation
        chance = random.Random(operation)
        for power in (None, chance):
            history.find_again(power)
            history.random = chance
            history.run(3)
        history.find_again(chance)
    assert failed >= {"names", "open", "create", "write", "sync", "replace", "read"}


@pytest.mark.parametrize("seed", range(3))
def test_a_failed_write_or_sync_is_final(seed: int) -> None:
    """After a failed write or sync the log takes and serves nothing until it is opened again."""
    seen = 0
    for history, operation, _ in fail_everywhere(seed, 20, errno.EIO, stride=3):
        log = history.log
        if log is None or operation.split()[0] in ("names", "open", "read") or "local" in operation:
            continue
        seen += 1
        before = history.disk.image()
        for call in (
            lambda log=log: log.write(Persist(hard_state=HardState(99))),
            log.sync,
            log.maintain,
            log.new_snapshot,
            lambda log=log: log.entries(0, 1, 1),
            lambda log=log: log.term_at(log.last_index + 1),
            lambda log=log: log.read_snapshot(0, 1),
            lambda log=log: log.index_of_request(bytes(12)),
        ):
            with pytest.raises(StorageError):
                call()
        log.close()
        assert history.disk.image() == before
    assert seen > 5


@pytest.mark.parametrize("seed", range(5))
def test_what_a_failed_sync_left_in_memory_becomes_durable(seed: int) -> None:
    """After a failed sync the system reads as if all was written; what the next start finds survives a later power
    failure."""
    fail_syncs(seed, 20, errno.EIO)


def test_a_snapshot_without_room_is_given_up() -> None:
    """A snapshot of the peer's own that does not fit on the disk is given up, and the log goes on."""
    history = History(1, FaultyDisk())
    history.run(10)
    assert history.log is not None
    writer = history.log.new_snapshot()
    history.disk.room = 1000
    with pytest.raises(StorageFullError):
        writer.write(bytes(70_000))
    history.disk.room = None
    writer.close()
    history.log.abort_snapshot()
    history.append()
    history.check()
    history.log.new_snapshot()


# -- bits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.ci
def test_a_flipped_bit_is_refused_or_changes_nothing(seed: int) -> None:
    """A flipped bit in any file never makes the log serve another entry, vote, id or snapshot. A refusal to open
    changes nothing, and an error about damage names the file."""
    refused, unchanged = check_flips(seed, 150)
    assert refused > unchanged > 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.ci
def test_a_flipped_bit_is_found_by_an_inspection(seed: int) -> None:
    """An inspection finds a flipped bit also where no start reads, finds none in a whole log, and changes nothing."""
    history = lived(seed)
    before = history.disk.image()
    whole = inspect_folder(history.disk)
    assert not whole.problems
    assert (whole.hard_state, whole.last_index) == (history.model.hard_state, history.model.last_index)
    assert whole.snapshot == history.model.snapshot
    assert set(whole.stale) <= {"incoming.tmp"}
    assert not whole.torn_bytes
    last = max(name for name in before if name.endswith(".log"))
    missed = []
    for name, at, bit in flips(history, 40):
        disk = damaged(history.disk, name, at, bit)
        image = disk.image()
        try:
            found = inspect_folder(disk)
        except StorageError as error:
            pytest.fail(f"{name} {at}: {error}")
        assert disk.image() == image
        if not any(problem.file == name or name in problem.message for problem in found.problems):
            missed.append((name, at))
    # a byte that says nothing, and the last mark, which says nothing new
    harmless = {(name, at) for name in before for at in (8, 9, 10, 11)} | {
        (each, at) for each in whole.stale for at in range(90_000)
    }
    assert all((name, at) in harmless or name == last for name, at in missed), missed


@pytest.mark.parametrize("name", ["log", "index", "snapshot", "meta"])
def test_a_file_that_is_missing_is_missed(name: str) -> None:
    """A log with a missing or shortened file is refused, unless the other files hold all that it had."""
    history = lived(0)
    refused = 0
    for each in sorted(each for each in history.disk.image() if name in each):
        disk = damaged(history.disk, each, 0, 0)
        disk.remove(each)
        other = History(0, disk)
        model = attrs.evolve(history.model, forgot=name == "index")  # prune_index says that they are
        try:
            log = other.open()
        except StorageError:
            refused += 1
        else:
            assert name == "index" or log.first_index <= history.model.floor, each
            assert not check_log(log, model, history.ids), each
    assert refused or name == "index"


# -- a crash before every single operation, in random lives of a log ---------------------------------------------------

STEPS = 24
OFTEN_INSTALLED = (20, 5, 10, 2, 60, 1, 5, 1, 1)


@pytest.mark.parametrize("power", [True, False], ids=["power", "kill"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.ci
def test_a_crash_before_every_operation(seed: int, power: bool) -> None:
    """After a crash before any operation, and others in the next starts, what was synced is there, and the rest up to a
    point."""
    assert crash_everywhere(seed, STEPS, power=power) > 60


@pytest.mark.parametrize("fsync", [Fsync.ALWAYS, Fsync.OFF])
def test_a_crash_of_the_process_with_other_settings(fsync: Fsync) -> None:
    """With any setting of syncs, a process that dies loses nothing."""
    assert crash_everywhere(7, STEPS, power=False, stride=3, fsync=fsync) > 20


def test_a_power_failure_when_each_entry_is_synced() -> None:
    """If each entry is synced, a power failure keeps what one sync for a job keeps."""
    assert crash_everywhere(8, STEPS, power=True, stride=3, fsync=Fsync.ALWAYS) > 20


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.ci
def test_a_job_that_is_torn(seed: int) -> None:
    """Of a torn job, of which any sectors may be on the disk, the first whole entries are there and nothing after
    them."""
    assert tear_everywhere(seed, STEPS, 6) >= 4


@pytest.mark.parametrize("power", [True, False], ids=["power", "kill"])
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_while_snapshots_are_installed(seed: int, power: bool) -> None:
    """After a crash during the installation of a snapshot, the log has the new or the old state, never a part of
    each."""
    assert crash_everywhere(seed, STEPS, power=power, weights=OFTEN_INSTALLED) > 60


# -- a real process with a real disk, killed while it writes -----------------------------------------------------------

#: Appends, cuts, votes, and makes snapshots, with its syncs and its maintenance in threads. A line is written for each
#: job that is durable: its last index, how far the log reached at least, and the term.
WRITER = """
import random, sys
from concurrent.futures import ThreadPoolExecutor
from raft_client.server.node.ready import Persist
from raft_client.server.node.ready import HardState, SnapshotMeta
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.server.runtime.storage.disk_log import StorageLimits
from raft_client.wire.configuration import Peer
from raft_client.wire.log_entry import LogEntry
from raft_client.wire.request_id import RequestId

chance = random.Random(sys.argv[2])
limits = StorageLimits(segment_entries=40, recent_bytes=5000)
log = DiskLog.open(sys.argv[1], peer_id="1", ident=b"", peers=(Peer("1", "tcp://127.0.0.1:8047"),), limits=limits)
syncs, chores = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
maintained = None
while True:
    term, last = log.hard_state.term, log.last_index
    if chance.random() < 0.2:
        term += 1
        last = max(log.snapshot.index if log.snapshot else 0, last - chance.randint(0, 5))
    entries = tuple(
        LogEntry.of(b"%d " % term * chance.choice((1, 30, 300)), term=max(term, 1), index=index,
                    request_id=RequestId(index.to_bytes(12, "big")))
        for index in range(last + 1, last + chance.randint(1, 12)))
    log.write(Persist(hard_state=HardState(term, "1"), truncate_after=last, entries=entries))
    syncs.submit(log.sync).result()
    print(log.last_index, term, flush=True)
    if maintained is not None and maintained.done():
        maintained = maintained.result()
    if log.wants_maintenance and maintained is None:
        maintained = chores.submit(log.maintain)
    if log.last_index > (log.snapshot.index if log.snapshot else 0) + 100:
        with log.new_snapshot() as writer:
            writer.write(b"state" * 20_000)
            index = log.last_index - 10
            meta = SnapshotMeta(index, log.term_at(index), 100_000, log.configurations[-1])
            syncs.submit(writer.finish, meta).result()
        log.compact(meta)
"""


@pytest.mark.ci
def test_a_process_that_is_killed_loses_nothing_that_was_durable(tmp_path: Path) -> None:
    """After each kill the log is whole, is not older than the last job that was acknowledged, and goes on from
    there."""
    chance = random.Random(1)
    for life in range(8):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(chance.randint(1, 150))]
            process.kill()
            lines += process.stdout.readlines()
        told = [line.split() for line in lines if line.endswith("\n")]
        index, term = map(int, told[-1])
        found = inspect_directory(tmp_path)
        assert not found.problems
        with DiskLog.open(tmp_path, peer_id="1", ident=b"", peers=PEERS) as log:
            assert log.hard_state.term >= term
            assert log.last_index >= index or log.hard_state.term > term  # the next job may have cut it
            entries = log.entries(log.first_index - 1, log.last_index, 1 << 40)
            assert [entry.index for entry in entries] == list(range(log.first_index, log.last_index + 1))
            assert all(entry.data.startswith(b"%d " % entry.term) or entry.term == 1 for entry in entries)
            assert all(log.index_of_request(entry.request_id.raw) == entry.index for entry in entries)
            assert log.snapshot is None or log.read_snapshot(0, 100_000) == b"state" * 20_000


# -- logs with one planted mistake each: the audits find every one of them ---------------------------------------------

Steps = list[Callable[[], None]]


def audit() -> None:
    """Raises ViolationError."""
    for seed in range(5):
        fail_syncs(seed, 20, errno.EIO)
    check_flips(1, 150)
    for seed in range(4):
        crash_everywhere(seed, 24, power=True, stride=2)
        crash_everywhere(seed, 24, power=False, stride=5)
        tear_everywhere(seed, 24, 3)
        crash_everywhere(seed, 24, power=True, stride=2, weights=(20, 5, 10, 2, 60, 1, 5, 1, 1))


def no_directory_sync(patch: pytest.MonkeyPatch) -> None:
    """A new segment has no name after a power failure."""
    patch.setattr(FaultyDisk, "sync", lambda _disk: None)


def renamed_before_it_is_synced(patch: pytest.MonkeyPatch) -> None:
    """A snapshot that has its name, and not its bytes."""
    finish = SnapshotFileWriter.finish

    def careless(writer: SnapshotFileWriter, meta: Any, *, may_be_ahead: bool) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(type(writer._file), "sync", lambda _file: None)
            finish(writer, meta, may_be_ahead=may_be_ahead)

    patch.setattr(SnapshotFileWriter, "finish", careless)


def sync_tried_again(patch: pytest.MonkeyPatch) -> None:
    """The second one says that all is well, for the system has nothing left to write."""

    def careless(log: DiskLog) -> None:
        try:
            log._file.sync()
        except OSError:
            log._file.sync()

    patch.setattr(DiskLog, "_sync_file", careless)


def _recover_as(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    def careless(folder: Any, files: FileNames) -> Recovered:
        found = recover(folder, files)
        for name, value in changes.items():
            setattr(found, name, value)
        return found

    patch.setattr(disk_log, "recover", careless)


def torn_tail_is_left(patch: pytest.MonkeyPatch) -> None:
    """New records end before old ones: those are in the log again."""
    _recover_as(patch, torn_bytes=0)


def tail_is_not_written_again(patch: pytest.MonkeyPatch) -> None:
    """After a failed sync it is in memory only, and counts."""
    _recover_as(patch, tail=b"")


def nothing_is_synced_at_opening(patch: pytest.MonkeyPatch) -> None:
    """What a process wrote before it died counts before it is durable; a tail that was cut off comes back."""
    repair = DiskLog._repair

    def careless(log: DiskLog, found: Recovered) -> None:
        found.snapshot_is_ahead = False
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(type(log._folder.open(log._segments.last.name)), "sync", lambda _file: None)
            inner.setattr(DiskLog, "maintain", lambda _log: None)
            repair(log, found)

    patch.setattr(DiskLog, "_repair", careless)


def _prepare_as(patch: pytest.MonkeyPatch, change: Callable[[DiskLog, Persist, Steps], None]) -> None:
    prepare = DiskLog._prepare

    def careless(log: DiskLog, persist: Persist, last: int, *, replaces: bool) -> None:
        prepare(log, persist, last, replaces=replaces)
        change(log, persist, log._steps)

    patch.setattr(DiskLog, "_prepare", careless)


def _install_step(log: DiskLog, steps: Steps) -> Callable[[], None] | None:
    return next((step for step in steps if getattr(step, "func", None) == log._snapshots.install), None)


def votes_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A peer that votes twice in one term."""

    def change(_log: DiskLog, persist: Persist, steps: Steps) -> None:
        if persist.hard_state is not None and not persist.entries and persist.install is None:
            steps.pop()

    _prepare_as(patch, change)


def log_replaced_before_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Between the two there is neither."""

    def change(log: DiskLog, _persist: Persist, steps: Steps) -> None:
        step = _install_step(log, steps)
        if step is not None:
            steps.remove(step)
            steps.append(step)

    _prepare_as(patch, change)


def snapshot_before_its_hard_state(patch: pytest.MonkeyPatch) -> None:
    """A snapshot of a term that the peer has not heard of."""

    def change(log: DiskLog, persist: Persist, steps: Steps) -> None:
        step = _install_step(log, steps)
        if step is not None and persist.chunk is None:
            steps.remove(step)
            steps.insert(0, step)

    _prepare_as(patch, change)


def old_files_go_before_the_snapshot_stays(patch: pytest.MonkeyPatch) -> None:
    """Neither the entries nor what replaces them."""
    install = SnapshotStore.install

    def careless(store: SnapshotStore, meta: Any, replaces: bool) -> None:
        for name in store._folder.names():
            if name.startswith("snapshot"):
                store._folder.remove(name)
        store._folder.sync()
        install(store, meta, replaces)

    patch.setattr(SnapshotStore, "install", careless)


def every_bad_record_is_a_torn_one(patch: pytest.MonkeyPatch) -> None:
    """What was acknowledged is cut off."""
    patch.setattr(segment, "is_power_loss", lambda *_: True)
    patch.setattr(segment, "_is_synced_behind", lambda *_: False)


def torn_tails_in_the_middle(patch: pytest.MonkeyPatch) -> None:
    """A bad record ends any segment."""
    patch.setattr(segment, "_is_cut_off", lambda *_: False)


def no_checksums(patch: pytest.MonkeyPatch) -> None:
    """Another entry is served."""

    class NoChecksum:
        @staticmethod
        def crc32(_data: bytes, _value: int = 0) -> int:
            return 0

    patch.setattr(segment_format, "zlib", NoChecksum)


def marks_do_not_cut_earlier_segments(patch: pytest.MonkeyPatch) -> None:
    """What was cut off is there after the next start."""
    cut = segment.Segment.cut
    patch.setattr(segment.Segment, "cut", lambda each, last: None if each.index else cut(each, last))


def ids_go_with_their_segments(patch: pytest.MonkeyPatch) -> None:
    """An update that was applied is applied again."""
    retire = SegmentList.retire

    def careless(segments: SegmentList, snapshot: SnapshotMeta) -> list[str]:
        gone = retire(segments, snapshot)
        gone += [each.index_name for each in segments.retired]
        segments.retired.clear()
        segments.indexes_changed()
        return gone

    patch.setattr(SegmentList, "retire", careless)


def ids_stay_when_their_log_is_replaced(patch: pytest.MonkeyPatch) -> None:
    """An update that was never committed is said to be where it was."""
    replace_all = SegmentList.replace_all

    def careful(segments: SegmentList, active: segment.SegmentWriter) -> list[str]:
        kept = [*segments.retired, *segments.segments]
        gone = replace_all(segments, active)
        segments.retired = kept
        return [name for name in gone if not any(name in (each.name, each.index_name) for each in kept)]

    patch.setattr(SegmentList, "replace_all", careful)


@pytest.mark.ci
@pytest.mark.parametrize(
    "plant",
    [
        no_directory_sync,
        renamed_before_it_is_synced,
        sync_tried_again,
        torn_tail_is_left,
        tail_is_not_written_again,
        nothing_is_synced_at_opening,
        votes_are_not_synced,
        log_replaced_before_the_snapshot,
        snapshot_before_its_hard_state,
        old_files_go_before_the_snapshot_stays,
        every_bad_record_is_a_torn_one,
        torn_tails_in_the_middle,
        no_checksums,
        marks_do_not_cut_earlier_segments,
        ids_go_with_their_segments,
        ids_stay_when_their_log_is_replaced,
    ],
)
def test_a_planted_mistake_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: Any) -> None:
    """Each planted mistake is found by a crash, a failed sync or a flipped bit."""
    plant(monkeypatch)
    with pytest.raises(ViolationError):
        audit()

"""Logs with one planted mistake each: the audits, which find nothing in the other tests, find every one of them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from log_audits import check_flips, crash_everywhere, fail_syncs, tear_everywhere
from log_history import ViolationError
from support.disks import FaultyDisk

from raft_client.server.node.ready import Persist
from raft_client.server.node.stored_log import SnapshotMeta
from raft_client.server.runtime.storage import disk_log, segment, segment_format, segment_scan
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.server.runtime.storage.recovery import FileNames, Recovered, recover
from raft_client.server.runtime.storage.segment_list import SegmentList
from raft_client.server.runtime.storage.snapshot_file import SnapshotFileWriter
from raft_client.server.runtime.storage.snapshot_store import SnapshotStore

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
    patch.setattr(segment_scan, "is_power_loss", lambda *_: True)
    patch.setattr(segment_scan, "_is_synced_behind", lambda *_: False)


def torn_tails_in_the_middle(patch: pytest.MonkeyPatch) -> None:
    """A bad record ends any segment."""
    patch.setattr(segment_scan, "_is_cut_off", lambda *_: False)


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
@pytest.mark.ci
def test_a_planted_mistake_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: Any) -> None:
    """Each planted mistake is found by a crash, a failed sync or a flipped bit."""
    plant(monkeypatch)
    with pytest.raises(ViolationError):
        audit()

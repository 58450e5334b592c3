"""A log as a naive list, and what it may be after a crash in the middle of a job."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from raft_client.server.node.ready import Configuration, HardState, Persist, SnapshotMeta
from raft_client.server.runtime.storage.directory import Owner
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.wire.configuration import ConfigChange, Peer, decode_config
from raft_client.wire.log_entry import EntryKind, LogEntry

__all__ = ["OWNER", "LogModel", "check_log"]

OWNER = Owner("1", b"factory", ConfigChange((Peer("1", "tcp://127.0.0.1:8047"),)))


@attrs.frozen
class LogModel:
    """``entries`` follow the entry ``start``; those that were compacted away are still here."""

    hard_state: HardState = attrs.Factory(HardState)
    start: int = 0
    start_term: int = 0
    entries: tuple[LogEntry, ...] = ()
    snapshot: SnapshotMeta | None = None
    snapshot_data: bytes = b""
    #: Whether the oldest request ids may have been forgotten.
    forgot: bool = False

    @property
    def last_index(self) -> int:
        return self.start + len(self.entries)

    @property
    def floor(self) -> int:
        """Nothing before it is ever cut."""
        return max(self.start, self.snapshot.index if self.snapshot else 0)

    def term_at(self, index: int) -> int | None:
        if index == self.start:
            return self.start_term
        if not self.start < index <= self.last_index:
            return None
        return self.entries[index - self.start - 1].term

    @property
    def all_configurations(self) -> list[Configuration]:
        base = Configuration(0, OWNER.change) if self.snapshot is None else self.snapshot.configuration
        behind = (entry for entry in self.entries if entry.kind is EntryKind.CONFIG and entry.index > base.index)
        return [base, *(Configuration(entry.index, decode_config(entry.data)) for entry in behind)]

    def index_of(self, raw: bytes) -> int | None:
        return max((each.index for each in self.entries if each.frame[:12] == raw), default=None)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def first_parts(self, job: Persist, data: bytes) -> Iterator[LogModel]:
        """What may be there after a crash: before it, and after each part of it. ``data`` is the snapshot's."""
        now = self
        yield now
        if job.hard_state is not None:
            now = attrs.evolve(now, hard_state=job.hard_state)
            yield now
        if job.install is not None:
            now = now.installed(job.install, data)
            yield now
        if job.truncate_after is not None:
            now = attrs.evolve(now, entries=now.entries[: job.truncate_after - now.start])
            yield now
        for entry in job.entries:
            now = attrs.evolve(now, entries=(*now.entries, entry))
            yield now

    def done(self, job: Persist, data: bytes) -> LogModel:
        *_, last = self.first_parts(job, data)
        return last

    def installed(self, meta: SnapshotMeta, data: bytes) -> LogModel:
        now = attrs.evolve(self, snapshot=meta, snapshot_data=data)
        if self.term_at(meta.index) == meta.term:
            return now
        return attrs.evolve(now, start=meta.index, start_term=meta.term, entries=(), forgot=False)

    def compacted(self, meta: SnapshotMeta, data: bytes) -> LogModel:
        return attrs.evolve(self, snapshot=meta, snapshot_data=data)


def check_log(log: DiskLog, model: LogModel, ids: set[bytes]) -> str:
    """What is wrong; nothing if the log is the model's. All of it is read."""
    first = log.first_index
    checks = {
        "hard state": (log.hard_state, model.hard_state),
        "last index": (log.last_index, model.last_index),
        "snapshot": (log.snapshot, model.snapshot),
        "first index": (model.start < first <= model.floor + 1, True),
    }
    for name, (found, expected) in checks.items():
        if found != expected:
            return f"{name}: {found!r}, not {expected!r}"
    return _check_entries(log, model) or _check_ids(log, model, ids) or _check_snapshot(log, model)


def _check_entries(log: DiskLog, model: LogModel) -> str:
    expected = model.entries[log.first_index - 1 - model.start :]
    if log.entries(log.first_index - 1, log.last_index, 1 << 40) != list(expected):
        return "other entries"
    after, read = log.first_index - 1, []
    while some := log.entries(after, log.last_index, 700):
        if len(some) > 1 and sum(entry.size for entry in some) > 700:
            return "more entries than fit"
        read += some
        after = some[-1].index
    if read != list(expected):
        return "other entries, read in pieces"
    for index in range(log.first_index, log.last_index + 1):
        if log.term_at(index) != model.term_at(index):
            return f"term of {index}: {log.term_at(index)}, not {model.term_at(index)}"
    if model.snapshot and log.term_at(model.snapshot.index) != model.snapshot.term:
        return "term of the snapshot"
    if list(log.configurations) != model.all_configurations:
        return f"configurations: {log.configurations}, not {model.all_configurations}"
    return ""


def _check_ids(log: DiskLog, model: LogModel, ids: set[bytes]) -> str:
    if not model.start <= log.prune_index <= (model.last_index if model.forgot else model.start):
        return f"prune index: {log.prune_index}"
    for raw in sorted(ids):
        expected = model.index_of(raw)
        if expected is not None and expected <= log.prune_index:
            expected = None
        if log.index_of_request(raw) != expected:
            return f"request {raw.hex()}: {log.index_of_request(raw)}, not {expected}"
    return ""


def _check_snapshot(log: DiskLog, model: LogModel) -> str:
    size = len(model.snapshot_data)
    if log.read_snapshot(0, size + 5) != model.snapshot_data:
        return "other snapshot"
    return "" if log.read_snapshot(size // 3, 100) == model.snapshot_data[size // 3 :][:100] else "part of the snapshot"

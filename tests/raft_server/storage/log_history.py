"""The life of a log on the simulated disk, by chance, with a model beside it."""

from __future__ import annotations

import random

import attrs
from log_model import OWNER, LogModel, check_log
from support.disks import FaultyDisk

from raft_client.errors import StorageError
from raft_client.server.node.ready import Configuration, HardState, Persist, SnapshotMeta
from raft_client.server.runtime.storage.disk_log import DiskLog, Fsync, StorageLimits
from raft_client.wire.configuration import ConfigChange, Peer, encode_config
from raft_client.wire.log_entry import EntryKind, LogEntry, SnapshotChunk
from raft_client.wire.request_id import RequestId

__all__ = ["SMALL", "History", "ViolationError"]

SMALL = StorageLimits(segment_bytes=3000, segment_entries=9, recent_bytes=800)


class ViolationError(Exception):
    """The log on the disk is none that it may be. It is none of the disk's errors."""


class History:
    """Steps that depend on nothing but the seed. ``allowed`` is what the log may be if the process ended now."""

    #: How often each kind of step is taken, in the order of :meth:`step`.
    weights = (40, 12, 8, 8, 18, 4, 15, 1, 3)

    def __init__(self, seed: int | str, disk: FaultyDisk, *, fsync: Fsync = Fsync.GROUP) -> None:
        self.random = random.Random(seed)
        self.disk = disk
        self.fsync = fsync
        self.model = LogModel()
        self.allowed = [self.model]
        self.ids: set[bytes] = set()
        self.log: DiskLog | None = None
        self.next_id = 0
        self.arriving: tuple[SnapshotMeta, bytes, int] | None = None

    # -- the process ---------------------------------------------------------------------------------------------------

    def open(self) -> DiskLog:
        self.arriving = None
        salts = random.Random(self.random.random())
        self.log = DiskLog.open_in(
            self.disk, OWNER, fsync=self.fsync, limits=SMALL, random_bytes=lambda count: salts.randbytes(count)
        )
        return self.log

    def run(self, steps: int) -> None:
        """Raises CrashError where the disk says so, StorageError where it fails."""
        if self.log is None:
            self.open()
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        kinds = (
            self.append, self.cut, self.vote, self.compact, self.install, self.reopen, self.maintain, self.check,
            self.forget,
        )  # fmt: skip
        self.random.choices(kinds, self.weights)[0]()

    def find_again(self, power: random.Random | None) -> None:
        """Another process opens it. Raises ViolationError unless it is what it may be."""
        if power is not None:
            self.disk.lose_power(power)
        self.disk.heal()
        try:
            log = self.open()
            found = [(check_log(log, model, self.ids), model) for model in self.allowed]
        except StorageError as error:
            raise ViolationError(f"refused: {error}") from error
        models = [model for wrong, model in found if not wrong]
        if not models:
            raise ViolationError([wrong for wrong, _ in found])
        self.settle(models[-1])

    def check(self) -> None:
        assert self.log is not None
        wrong = check_log(self.log, self.model, self.ids)
        if wrong:
            raise ViolationError(wrong)

    def settle(self, model: LogModel) -> None:
        self.model = model
        self.allowed = [model]

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def job(self, job: Persist, data: bytes = b"") -> None:
        assert self.log is not None
        self.allowed = list(self.model.first_parts(job, data))
        self.log.write(job)
        self.log.sync()
        self.settle(self.allowed[-1])

    def entries(self, after: int, count: int, term: int) -> tuple[LogEntry, ...]:
        return tuple(self.entry(after + number, term) for number in range(1, count + 1))

    def entry(self, index: int, term: int) -> LogEntry:
        chance = self.random.random()
        if chance < 0.06:
            return LogEntry.of(b"\xc0", term=term, index=index, kind=EntryKind.CHECKPOINT)
        self.next_id += 1
        seconds = 1_700_000_000 + self.next_id // 4
        raw = seconds.to_bytes(4, "big") + self.next_id.to_bytes(8, "big")
        if chance < 0.12 and self.ids:
            raw = self.random.choice(sorted(self.ids))
        self.ids.add(raw)
        if chance > 0.92:
            peers = tuple(Peer(str(n), f"tcp://127.0.0.1:{8000 + n}") for n in range(1, self.random.randint(2, 5)))
            data = encode_config(ConfigChange(peers))
            return LogEntry.of(data, term=term, index=index, kind=EntryKind.CONFIG, request_id=RequestId(raw))
        data = bytes(self.random.choices(range(1, 256), k=self.random.choice((1, 20, 90, 200, 1200))))
        return LogEntry.of(data, term=term, index=index, request_id=RequestId(raw))

    def append(self) -> None:
        count = self.random.choice((1, 1, 2, 3, 6))
        term = max(1, self.model.hard_state.term)
        self.job(Persist(entries=self.entries(self.model.last_index, count, term)))

    def cut(self) -> None:
        last = self.random.randint(max(self.model.floor, self.model.last_index - 14), self.model.last_index)
        state = HardState(self.model.hard_state.term + 1)
        entries = self.entries(last, self.random.randint(0, 3), state.term)
        self.job(Persist(hard_state=state, truncate_after=last, entries=entries))

    def vote(self) -> None:
        term = self.model.hard_state.term + self.random.randint(0, 1)
        self.job(Persist(hard_state=HardState(term, self.random.choice(("", "1", "peer-2")))))

    def maintain(self) -> None:
        assert self.log is not None
        self.log.maintain()

    def reopen(self) -> None:
        assert self.log is not None
        self.log.close()
        self.open()

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def configuration_at(self, index: int) -> Configuration:
        return max((each for each in self.model.all_configurations if each.index <= index), key=lambda c: c.index)

    def some_bytes(self) -> bytes:
        return self.random.randbytes(self.random.choice((0, 10, 3000, 65_536, 70_000)))

    def compact(self) -> None:
        assert self.log is not None
        if self.model.last_index <= self.model.floor:
            return
        index = self.random.randint(self.model.floor + 1, self.model.last_index)
        data = self.some_bytes()
        meta = SnapshotMeta(index, self.model.term_at(index) or 0, len(data), self.configuration_at(index))
        with self.log.new_snapshot() as writer:
            for begin in range(0, len(data), 30_000):
                writer.write(data[begin : begin + 30_000])
            self.allowed.append(self.model.compacted(meta, data))
            writer.finish(meta)
        self.log.compact(meta)
        self.settle(self.allowed[-1])

    def forget(self) -> None:
        assert self.log is not None
        before_s = 1_700_000_000 + self.next_id // 4 - 8
        self.settle(attrs.evolve(self.model, forgot=True))
        self.log.forget_requests(before_s)
        for raw in self.ids:
            index = self.model.index_of(raw)
            if index is not None and int.from_bytes(raw[:4], "big") >= before_s and self.log.prune_index >= index:
                raise ViolationError("an id that is still fresh was forgotten")

    def install(self) -> None:
        """One chunk of a snapshot, alone or with others in a job."""
        if self.arriving is None:
            self.arriving = self.begin_install()
        meta, data, position = self.arriving
        if meta.index <= self.model.floor:
            self.arriving = None
            return
        piece = data[position : position + self.random.choice((1000, 65_536))]
        chunk = SnapshotChunk(meta.index, meta.term, position, meta.size, piece)
        self.arriving = (meta, data, chunk.end)
        if not chunk.is_last:
            self.job(Persist(chunk=chunk))
            return
        self.arriving = None
        together = self.random.random() < 0.5
        if not together:
            self.job(Persist(chunk=chunk))
        state = HardState(max(meta.term, self.model.hard_state.term)) if self.random.random() < 0.5 else None
        job = Persist(hard_state=state, chunk=chunk if together else None, install=meta)
        after = self.model.done(job, data)
        if self.random.random() < 0.5:
            job = attrs.evolve(job, entries=self.entries(after.last_index, self.random.randint(1, 3), meta.term))
        self.job(job, data)

    def begin_install(self) -> tuple[SnapshotMeta, bytes, int]:
        data = self.some_bytes()
        index = self.model.floor + self.random.randint(1, 25)
        known = self.model.term_at(index)
        term = known if known is not None and self.random.random() < 0.5 else self.model.hard_state.term + 1
        configuration = self.configuration_at(index if self.random.random() < 0.5 else self.model.floor)
        return SnapshotMeta(index, term, len(data), configuration, members_known=False), data, 0

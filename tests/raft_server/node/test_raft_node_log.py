"""The log in memory and the one on the disk, against a plain list."""

from __future__ import annotations

import random

import pytest
from memory_log import MemoryLog
from node_cluster import make_id, peers_of

from raft_client.server.node.log import Log
from raft_client.server.node.ready import Persist, SnapshotMeta
from raft_client.wire.configuration import ConfigChange, encode_config
from raft_client.wire.log_entry import EntryKind, LogEntry, SnapshotChunk
from raft_client.wire.request_id import RequestId


class Model:
    """What the log should be: the entries after ``base``, and the disk that jobs are done on."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = MemoryLog(peers_of("abc"))
        self.log = Log(self.disk)
        self.base, self.base_term = 0, 0
        self.entries: list[LogEntry] = []
        self.job: Persist | None = None
        self.numbers = 0
        self.term = 1
        self.chunk: SnapshotChunk | None = None

    @property
    def last(self) -> int:
        return self.base + len(self.entries)

    def step(self) -> None:
        kinds = [self.append] * 5 + [self.truncate] * 2 + [self.take, self.finish] * 3 + [self.install]
        self.random.choice(kinds)()
        self.check()

    def append(self) -> None:
        new: list[LogEntry] = []
        for place in range(self.random.randint(1, 4)):
            self.numbers += 1
            is_config = self.random.random() < 0.2
            change = ConfigChange(peers_of(self.random.choice(["ab", "abc", "bc"])))
            new.append(
                LogEntry.of(
                    encode_config(change) if is_config else bytes(self.random.randint(1, 300)),
                    term=self.term,
                    kind=EntryKind.CONFIG if is_config else EntryKind.STATE,
                    request_id=RequestId(make_id(self.numbers)),
                    index=self.last + 1 + place,
                )
            )
        self.log.append(new)
        self.entries += new

    def truncate(self) -> None:
        index = self.random.randint(self.base, self.last)
        self.log.truncate_after(index)
        del self.entries[index - self.base :]
        self.term += 1

    def take(self) -> None:
        if self.job is None and self.log.dirty:
            install, truncate_after, entries = self.log.take_job(self.random.choice((1, 400, 10_000)))
            self.job = Persist(None, self.chunk if install else None, install, truncate_after, entries)

    def finish(self) -> None:
        if self.job is not None:
            self.disk.do(self.job)
            self.job = None
            self.log.job_done()

    def install(self) -> None:
        """A snapshot of another peer: of what is here, or of something else."""
        if self.log.is_installing:
            return
        index = self.random.randint(self.base + 1, self.last + 3)
        is_same = index <= self.last and self.random.random() < 0.5
        term = self.entries[index - self.base - 1].term if is_same else self.term + 1
        self.term = max(self.term, term)
        self.chunk = SnapshotChunk(index, term, 0, 3, b"abc")
        meta = SnapshotMeta(index, term, 3, self.log.configuration_for(self.base), members_known=False)
        self.log.install(meta)
        self.entries = self.entries[index - self.base :] if is_same else []
        self.base, self.base_term = index, term

    def check(self) -> None:
        log, disk = self.log, self.disk
        assert (log.last_index, log.first_index) == (self.last, self.base + 1)
        assert log.last_term == (self.entries[-1].term if self.entries else self.base_term)
        assert log.term_at(self.base) == self.base_term
        assert log.term_at(self.last + 1) is None
        for entry in self.entries:
            assert log.term_at(entry.index) == entry.term
            if entry.index <= log.durable_index:
                assert disk.log[entry.index - disk.first_index] == entry
            assert log.index_of_request(entry.request_id.raw) == entry.index
        configs = [entry.index for entry in self.entries if entry.kind is EntryKind.CONFIG]
        assert [each.index for each in log.configurations if each.index > self.base] == configs
        after = self.random.randint(self.base, self.last)
        found: list[LogEntry] = []
        while after + len(found) < self.last:
            more = log.entries(after + len(found), self.last, 500)
            assert more
            assert len(more) == 1 or sum(entry.size for entry in more) <= 500
            found += more
        assert found == self.entries[after - self.base :]


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_the_log_is_what_was_done_to_it(first: int) -> None:
    """After appends, cuts, a replacement by a snapshot and jobs for the disk in between, the log is read as a plain
    list is."""
    for seed in range(first, first + 50):
        model = Model(seed)
        for _ in range(80):
            model.step()
        model.finish()
        while model.log.dirty:
            model.take()
            model.finish()
        assert model.log.durable_index == model.last
        assert model.disk.log == model.entries
        assert not model.log.dirty


def test_an_id_that_is_to_be_cut_off_is_not_known() -> None:
    """The id of an entry that is to be cut off is unknown, although the disk still has the entry."""
    model = Model(1)
    model.append()
    model.take()
    model.finish()
    cut = model.entries[-1].request_id.raw
    model.log.truncate_after(model.last - 1)
    assert model.disk.index_of_request(cut) is not None
    assert model.log.index_of_request(cut) is None


def test_the_tail_keeps_a_bounded_part_of_what_is_durable() -> None:
    """The log keeps four megabytes of what is durable in memory, however long it grows."""
    model = Model(1)
    for index in range(1, 101):
        model.log.append([LogEntry.of(bytes(100_000), term=1, index=index)])
        model.take()
        model.finish()
    assert sum(entry.size for entry in model.log._tail) <= 4 * 1024 * 1024
    assert len(model.log.entries(0, 100, 2**30)) >= 60
    assert model.log.entries(99, 100, 1)[0].index == 100

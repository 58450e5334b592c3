"""Snapshots in the log: written beside batches, read with what came since, by one writer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from cluster_lives import ReplicatedServer, puts

from statestore_client.server.cluster.entries import Part, Snapshot, UnreadableLogError, decode
from statestore_client.server.cluster.interface import (
    BatchReplicated,
    RowsRestored,
    SnapshotRestored,
    SnapshotWritten,
)
from statestore_client.server.cluster.member import ClusterMember
from statestore_client.server.cluster.snapshots import is_snapshot_wanted
from statestore_client.server.journal import Changes, Stream, WriteBatch

Rows = dict[object, bytes]


def apply(rows: Rows, batch: WriteBatch) -> None:
    """What a standby's tables do."""
    for changes in batch.changes:
        rows.update(changes.puts)
        for subject in changes.removals:
            rows.pop(subject, None)


def replicated(member: ClusterMember, rows: Rows) -> None:
    """All events so far."""
    for event in member.events:
        if isinstance(event, BatchReplicated | RowsRestored):
            apply(rows, event.batch)
    member.events.clear()


def rows_of(rows: Rows) -> Iterator[WriteBatch]:
    """Those of now, as they are when they are asked for."""
    for subject in list(rows):
        if subject in rows:
            yield WriteBatch((Changes(Stream.KEYS, ((subject, rows[subject]),), ()),))


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_and_the_rest_are_the_whole(seed: int) -> None:
    """Whatever is changed and removed while it is written: a reader that begins there comes to the same rows."""
    random = Random(seed)
    lives = ReplicatedServer("a")
    lives.begin("b", 2, part_bytes=40)
    owner = lives.found("a")
    rows: Rows = {}

    def change() -> None:
        key = b"k%d" % random.randrange(12)
        removal = random.random() < 0.3
        put = () if removal else ((key, random.randbytes(random.choice([3, 100]))),)
        owner.write(WriteBatch((Changes(Stream.KEYS, put, (key,) if removal else ()),)), lives.instant)
        lives.settle()
        replicated(lives["b"], rows)

    for _ in range(20):
        change()
    assert lives["b"].begin_snapshot(rows_of(rows), lives.instant)
    while not lives["b"].fence.base:
        if random.random() < 0.4:
            change()
        lives.go_on(0.02)
    for _ in range(5):
        change()

    base = lives["b"].fence.base
    start = decode(lives.log[base - 1])
    assert isinstance(start.body, Snapshot)
    reader = ClusterMember(lives["b"].settings, lives.instant, (base, start))
    reader.catch_up()
    restored: Rows = {}
    is_whole = False
    for index, data in list(enumerate(lives.log, start=1))[start.body.index :]:
        assert reader.is_ready is is_whole
        reader.receive(index, data, lives.instant)
        is_whole = is_whole or SnapshotRestored(start.body.index) in reader.events
        replicated(reader, restored)
    assert is_whole
    assert restored == rows
    assert reader.fence == lives["b"].fence


def test_only_whole_batches_are_in_a_snapshot() -> None:
    """Between two pieces none begins, neither at the owner nor elsewhere; nor before the own reading is done."""
    lives = ReplicatedServer("a", "b")
    lives.found("a").write(puts(k=bytes(1 << 20)), lives.instant)
    first, last = lives.take("a")
    lives.put(first)
    for server_id in ("a", "b"):
        assert not lives[server_id].begin_snapshot(iter(()), lives.instant)
    lives.put(last)
    for server_id in ("a", "b"):
        assert lives[server_id].begin_snapshot(iter(()), lives.instant)
        assert not lives[server_id].begin_snapshot(iter(()), lives.instant)


def test_the_second_of_two_writers_gives_up() -> None:
    """The log says which one was first; both hear when it is done."""
    lives = ReplicatedServer("a", "b")
    lives.found("a").write(puts(k=b""), lives.instant)
    lives.settle()
    for server_id in ("b", "a"):
        assert lives[server_id].begin_snapshot(iter([puts(k=b"")]), lives.instant)
    lives.put(*lives.take("b"), *lives.take("a"))
    assert not lives["a"].begin_snapshot(iter(()), lives.instant)
    lives.go_on(0.2)
    for server_id in ("a", "b"):
        assert [event.index for event in lives.events(server_id, SnapshotWritten)] == [2]
        assert lives[server_id].fence.base == 3
        assert lives[server_id].log_bytes < sum(map(len, lives.log))
    assert [type(decode(data).body) for data in lives.log[2:]] == [Snapshot, Snapshot, Part, Part]


def test_parts_are_paced_and_lost_ones_are_sent_again() -> None:
    """Eight mebibytes a second, one at a time, the smallest ones 256 a second; of two copies one counts."""
    lives = ReplicatedServer("a", "b")
    lives.found("a").write(puts(k=b""), lives.instant)
    lives.settle()
    began = lives.now
    lives["b"].begin_snapshot(iter([puts(k=bytes(3 << 20))]), lives.instant)
    (snapshot,) = lives.take("b")
    lives["b"].failed(snapshot.ticket, lives.instant)
    (again,) = lives.take("b")
    lives.put(snapshot, again)
    while not lives["b"].fence.base:
        lives.now = lives["b"].next_deadline(lives.instant)
        lives["b"].tick(lives.instant)
        (part,) = lives.take("b")
        lives["b"].failed(part.ticket, lives.instant)
        (copy,) = lives.take("b")
        lives.put(copy, part)
    assert lives.now - began == pytest.approx(
        12 / 32 + 2 / 256
    )  # 12 parts, a piece of one, the end; before them the beginning
    assert lives["b"].next_deadline(lives.instant) > lives.now


@pytest.mark.parametrize("spoil", ["kind", "index", "fence"])
def test_a_base_that_is_not_one_is_refused(spoil: str) -> None:
    """A base is the entry of a snapshot, with the fence of the index that it names."""
    lives = ReplicatedServer("a")
    lives.found("a").begin_snapshot(iter(()), lives.instant)
    (start,) = lives.sent("a")
    assert isinstance(start.body, Snapshot)
    bodies = {
        "kind": Part(1, b""),
        "index": Snapshot(start.body.index + 1, start.body.fence),
        "fence": Snapshot(start.body.index, b"\xc0"),
    }
    entry = type(start)(1, 0, start.life, 0, 0, bodies[spoil])
    with pytest.raises(UnreadableLogError):
        ClusterMember(lives["a"].settings, lives.instant, (2, entry))


def test_when_a_snapshot_is_wanted() -> None:
    """After 64 MiB, or four times what it comes to; the active server lets a standby go first."""
    mebi = 1 << 20
    assert not is_snapshot_wanted(64 * mebi, 0, is_active=False)
    assert is_snapshot_wanted(65 * mebi, 0, is_active=False)
    assert not is_snapshot_wanted(65 * mebi, 0, is_active=True)
    assert is_snapshot_wanted(81 * mebi, 0, is_active=True)
    assert not is_snapshot_wanted(399 * mebi, 100 * mebi, is_active=False)
    assert is_snapshot_wanted(401 * mebi, 100 * mebi, is_active=False)

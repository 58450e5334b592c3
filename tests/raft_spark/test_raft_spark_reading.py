"""What a task reads, without Spark: Arrow batches from scripted peers over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from short_log import CHUNKS, compacted
from support.waiting import eventually

pytest.importorskip("pyarrow")

from raft_client import HistoryOutrunError, LogEntry, OutOfDateLogError, RaftSettings, TermMismatchError
from raft_client.spark.options import ReadOptions
from raft_client.spark.reading import ENTRY_SCHEMA, EntryRange, Part, SnapshotPart, entry_batch, plan_read, read_part
from raft_client.wire.log_entry import Position

if TYPE_CHECKING:
    from support.scripted_peers import ScriptedCluster

ENTRIES, LOG_INFO = b"\x3c", b"\x25"
#: The answer of a leader that has applied 3 entries: no entries, then its last index.
END_AT_3 = [b"\x01", b"\xc0", b"\x03"]


def settings(peers: ScriptedCluster, **options: Any) -> RaftSettings:
    return RaftSettings(seeds=peers.seeds, election_grace=0.01, **options)


def rows(peers: ScriptedCluster, part: Part) -> list[dict[str, Any]]:
    return [row for batch in read_part(settings(peers), part) for row in batch.to_pylist()]


def indexes(peers: ScriptedCluster, part: Part) -> list[int]:
    return [row["index"] for row in rows(peers, part)]


# -- batches -----------------------------------------------------------------------------------------------------------


def test_the_entries_of_the_published_protocol() -> None:
    """The document's two examples of "zmq frame body as a log entry" become rows; the checkpoint has neither an id nor
    a time."""
    state = bytes.fromhex("5956dc8826f27e10dcccab20 00 2a000000000000 666f6f")
    checkpoint = bytes.fromhex("000000000000000000000000 02 2b000000000000 c0")
    batch = entry_batch([LogEntry.from_frame(state, 7), LogEntry.from_frame(checkpoint, 8)])
    assert batch.schema == ENTRY_SCHEMA
    assert batch.to_pylist() == [
        {
            "index": 7,
            "term": 42,
            "type": "state",
            "request_id": bytes.fromhex("5956dc8826f27e10dcccab20"),
            "time": datetime.fromtimestamp(0x5956DC88, UTC),
            "data": b"foo",
        },
        {"index": 8, "term": 43, "type": "checkpoint", "request_id": None, "time": None, "data": b"\xc0"},
    ]


def test_the_greatest_term_and_the_last_second() -> None:
    """A term of 53 bits and an id of the year 2106 are read (facts 4 have the entry)."""
    frame = bytes.fromhex("ffffffff15161718191a1b1c 01 ffffffffffff1f deadbaca")
    [row] = entry_batch([LogEntry.from_frame(frame, 2**53 - 1)]).to_pylist()
    assert (row["index"], row["term"], row["type"]) == (2**53 - 1, 2**53 - 1, "config")
    assert row["time"] == datetime.fromtimestamp(2**32 - 1, UTC)


# -- ranges ------------------------------------------------------------------------------------------------------------


def test_a_range_is_read(peers: ScriptedCluster) -> None:
    """A range gives exactly its entries in order, and an empty range sends no request."""
    peers.fill(100)
    found = rows(peers, EntryRange(Position(20), 60))
    assert [row["index"] for row in found] == list(range(21, 61))
    assert [row["data"] for row in found] == [b"%d" % n for n in range(20, 60)]
    assert rows(peers, EntryRange(Position(20), 20)) == []


def test_batches_have_the_size_that_spark_likes(peers: ScriptedCluster) -> None:
    """Messages of seven entries become batches of ten thousand rows."""
    peers.fill(25_000)
    sizes = [batch.num_rows for batch in read_part(settings(peers), EntryRange(Position(0), 25_000))]
    assert sum(sizes) == 25_000
    assert len(sizes) == 3
    assert all(10_000 <= size < 10_007 for size in sizes[:2])


def test_large_entries_make_small_batches(peers: ScriptedCluster) -> None:
    """Large entries make batches of a few MiB, not of ten thousand entries."""
    peers._order(lambda: [peers.commit(n.to_bytes(12, "big"), bytes(2**20)) for n in range(1, 31)])
    sizes = [batch.num_rows for batch in read_part(settings(peers), EntryRange(Position(0), 30))]
    assert sum(sizes) == 30
    assert max(sizes) <= 14  # 8 MiB and what came with the last message


def test_reading_goes_on_at_the_next_leader(peers: ScriptedCluster) -> None:
    """Each index comes once although the leader is lost in the middle."""
    peers.fill(30_000)
    batches = read_part(settings(peers), EntryRange(Position(0), 30_000))
    found = next(batches)["index"].to_pylist()
    peers.elect("2")
    peers.kill("1")
    for batch in batches:
        found += batch["index"].to_pylist()
    assert found == list(range(1, 30_001))


def test_a_new_leader_that_lags_is_asked_again(peers: ScriptedCluster) -> None:
    """A new leader whose stream ends too early is asked again."""
    peers.fill(10)
    early = iter([[[b"\x01", b"\xc0", b"\x03", *peers.log[:3]]], [END_AT_3], [END_AT_3]])

    def lag(arguments: list[bytes]) -> list[list[bytes]]:
        answer = next(early, None)
        if answer is None:
            after = int.from_bytes(arguments[0], "little")
            return [[b"\x01", b"\xc0", b"\x0a", *peers.log[after:]]]
        return answer

    peers.script("1", ENTRIES, lag)
    assert indexes(peers, EntryRange(Position(0), 10)) == list(range(1, 11))


def test_a_log_that_stays_too_short_is_an_error(peers: ScriptedCluster) -> None:
    """A log that stays shorter than the plan is an error, because it is another cluster or lost something."""
    peers.fill(3)
    with pytest.raises(OutOfDateLogError, match="the log ends at 3, before 5"):
        rows(peers, EntryRange(Position(0), 5))


# -- a compacted log ---------------------------------------------------------------------------------------------------


def test_the_plan_knows_that_the_log_was_compacted(peers: ScriptedCluster) -> None:
    """A compacted log is refused at planning, before any task starts."""
    compacted(peers)
    with pytest.raises(HistoryOutrunError, match="from 1 to 4 exist only as a snapshot"):
        plan_read(settings(peers), ReadOptions())
    assert plan_read(settings(peers), ReadOptions(snapshot="deliver")) == [SnapshotPart(4), EntryRange(Position(4), 10)]


def test_a_snapshot_is_one_row(peers: ScriptedCluster) -> None:
    """A snapshot's chunks become one row."""
    compacted(peers)
    [row] = rows(peers, SnapshotPart(4))
    expected = {"index": 4, "term": 2, "type": "snapshot", "request_id": None, "time": None, "data": b"abcdef"}
    assert row == expected
    assert indexes(peers, EntryRange(Position(4), 10)) == [5, 6, 7, 8, 9, 10]


def test_a_compaction_after_the_plan_fails_the_task(peers: ScriptedCluster) -> None:
    """A task fails if its entries were compacted after planning, or the snapshot is another than planned."""
    compacted(peers)
    with pytest.raises(HistoryOutrunError) as caught:
        rows(peers, EntryRange(Position(2), 10))
    assert caught.value.snapshot_index == 4
    with pytest.raises(HistoryOutrunError, match="compacted again meanwhile: its snapshot is now at 4, not at 3"):
        rows(peers, SnapshotPart(3))


def test_a_snapshot_that_is_another_one_is_not_awaited(peers: ScriptedCluster) -> None:
    """Its first piece is enough, and the stream is closed then: a stream that was dropped would warn."""
    compacted(peers)
    peers.script("1", ENTRIES, lambda arguments: [] if arguments[1:] == [b"\x00"] else CHUNKS[:1])
    with pytest.raises(HistoryOutrunError, match="compacted again meanwhile"):
        rows(peers, SnapshotPart(3))


@pytest.mark.parametrize(("part", "expected"), [((0, 3), []), ((2, 6), [5, 6]), ((0, 4), [])])
def test_a_compaction_after_the_plan_may_be_skipped(
    peers: ScriptedCluster, part: tuple[int, int], expected: list[int]
) -> None:
    """A snapshot made after planning may be skipped, and its range does not reach beyond its end for that."""
    compacted(peers)
    assert indexes(peers, EntryRange(Position(part[0]), part[1], skip=True)) == expected


def test_the_plan_waits_for_a_leader_that_lags(peers: ScriptedCluster) -> None:
    """Planning waits for a leader that lags after an election."""
    peers.fill(10)

    def answers() -> Iterator[bytes]:
        yield b"\x03"
        while True:
            yield b"\x0a"

    applied = answers()
    peers.script(
        "1", LOG_INFO, lambda _: [[b"\x01", b"\xa11", b"\x01", b"\x01", *[next(applied)] * 3, b"\x00", b"\x00"]]
    )
    assert plan_read(settings(peers), ReadOptions(after=5, until=9)) == [EntryRange(Position(5), 9)]


def test_a_read_behind_a_position_checks_the_log(peers: ScriptedCluster) -> None:
    """The term at a position is checked at planning and in the task that begins there, against the row before."""
    peers.fill(10)
    good, bad = Position(5, 1), Position(5, 2)
    plan = plan_read(settings(peers), ReadOptions(after=good, partitions=2))
    assert plan == [EntryRange(good, 7), EntryRange(Position(7), 10)]
    assert [index for part in plan for index in indexes(peers, part)] == [6, 7, 8, 9, 10]
    assert plan_read(settings(peers), ReadOptions(after=Position(10, 1))) == [EntryRange(Position(10, 1), 10)]
    for position in (bad, Position(10, 2)):
        with pytest.raises(TermMismatchError):
            plan_read(settings(peers), ReadOptions(after=position))
    with pytest.raises(TermMismatchError):
        rows(peers, EntryRange(bad, 10))


def test_a_task_that_is_abandoned_closes_its_client(peers: ScriptedCluster) -> None:
    """A task that Spark abandons closes its client, and tells the peer to stop (a count of 0)."""
    peers.fill(100_000)
    batches = read_part(settings(peers), EntryRange(Position(0), 100_000))
    next(batches)
    batches.close()
    eventually(
        lambda: any(kind == ENTRIES and arguments[1:2] == [b"\x00"] for _, _, kind, arguments in peers.seen),
        "the peer is told to stop",
    )

"""Where the micro-batches of a stream begin and end: the planner, without Spark, and logs of scripted peers."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from short_log import compacted

pytest.importorskip("pyarrow")

from raft_client import (
    HistoryOutrunError,
    OutOfDateLogError,
    Position,
    RaftSettings,
    RequestId,
    SettingsError,
    TermMismatchError,
)
from raft_client.spark.options import StreamOptions, parse_options
from raft_client.spark.reading import EntryRange, SnapshotPart
from raft_client.spark.stream_planning import StreamOffset, StreamPlanner

if TYPE_CHECKING:
    from support.scripted_peers import ScriptedCluster

LOG_INFO = b"\x25"


OPEN: list[StreamPlanner] = []


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def planner(peers: ScriptedCluster, **options: Any) -> StreamPlanner:
    """Closed when the test ends."""
    OPEN.append(StreamPlanner(RaftSettings(seeds=peers.seeds, election_grace=0.01), StreamOptions(**options)))
    return OPEN[-1]


def start(index: int, term: int = 0) -> StreamOffset:
    return StreamOffset.at(Position(index, term))


def ends(peers: ScriptedCluster, *, limit: int | None = None, size: int | None = None, **options: Any) -> list[int]:
    """Where the batches of a whole run end."""
    plans = planner(peers, **options)
    offset, found = plans.first(), []
    while (following := plans.next(offset, limit, size)) != offset:
        assert following.after.index == offset.until.index
        offset = following
        found.append(offset.until.index)
    return found


# -- where it begins ---------------------------------------------------------------------------------------------------


def test_the_first_entry(peers: ScriptedCluster) -> None:
    """A stream begins with the earliest entry, after the last one, or with a given one, which has to exist soon."""
    peers.fill(10)
    assert planner(peers).first() == start(0)
    assert planner(peers, starting_index="LATEST").first() == start(10)
    assert planner(peers, starting_index="7").first() == start(6)
    assert planner(peers, starting_index=11).first() == start(10)
    with pytest.raises(OutOfDateLogError, match="the log ends at 10, before startingIndex=12"):
        planner(peers, starting_index=12).first()


def test_the_first_entry_of_a_time(peers: ScriptedCluster) -> None:
    """A stream begins with the first entry whose id is of that time or later, although times go up and down."""
    now = int(time.time())
    ages = [*range(8000, 5000, -1), 100, 9000, 50, 60, 40]
    peers._order(
        lambda: [peers.commit(RequestId.derive("age", n, seconds=now - age).raw, b"x") for n, age in enumerate(ages)]
    )

    def first(age: int) -> int:
        return planner(peers, starting_time=now - age).first().until.index + 1

    expected = {8001: 1, 8000: 1, 7000: 1001, 5001: 3000, 5000: 3001, 100: 3001, 99: 3003, 50: 3003, 49: 3005, 1: 3006}
    assert {age: first(age) for age in expected} == expected


@pytest.mark.parametrize("early", [0, 1500, 2999])
def test_old_entries_are_not_read_for_a_time(peers: ScriptedCluster, early: int) -> None:
    """What is older than the window of request ids is found by halving, whatever stands there."""
    day = 24 * 3600
    seconds = [day] * early + [3 * day] * (3000 - early)
    ids = [struct.pack(">I8s", second, b"%08d" % n) for n, second in enumerate(seconds)]
    peers._order(lambda: [peers.commit(each, b"x") for each in ids])
    assert planner(peers, starting_time=2 * day).first() == start(early)


# -- where batches end -------------------------------------------------------------------------------------------------


def test_batches_have_limits(peers: ScriptedCluster) -> None:
    """A batch ends at the end of the log, at its limit of entries or bytes, whichever comes first, or at endingIndex;
    one entry that is larger than the limit is a batch."""
    peers._order(
        lambda: [peers.commit(b"%012d" % n, bytes(80 if n != 5 else 1000)) for n in range(1, 11)]
    )  # of 100 bytes each, but the fifth
    assert ends(peers) == [10]
    assert ends(peers, limit=4) == [4, 8, 10]
    assert ends(peers, size=250) == [2, 4, 5, 7, 9, 10]
    assert ends(peers, limit=3, size=250) == [2, 4, 5, 7, 9, 10]
    assert ends(peers, limit=1, size=250) == list(range(1, 11))
    assert ends(peers, ending_index=7, limit=4) == [4, 7]
    assert ends(peers, ending_index=7, starting_index=8) == []


def test_a_stream_never_goes_back(peers: ScriptedCluster) -> None:
    """An end that was handed out is handed out again when a new leader says less, and a log that stays shorter is an
    error."""
    peers.fill(10)
    plans = planner(peers)
    offset = plans.next(plans.first(), None)
    assert offset.until == Position(10, 1)
    applied = iter([3, 3])
    peers.script("1", LOG_INFO, lambda _: [info(next(applied, 10))])
    assert planner(peers).next(offset, None) == offset
    peers.script("1", LOG_INFO, lambda _: [info(3)])
    with pytest.raises(OutOfDateLogError, match="the log ends at 3, and 10 was read already"):
        planner(peers).next(offset, None)


def info(applied: int) -> list[bytes]:
    return [b"\x01", b"\xa11", b"\x01", b"\x01", *[bytes([applied])] * 3, b"\x00", b"\x00"]


def test_a_stream_goes_on_in_its_own_log(peers: ScriptedCluster) -> None:
    """A checkpoint of another log, or of one that lost its disks, is refused."""
    peers.fill(10)
    assert planner(peers).next(start(5, 1), None).after == Position(5, 1)
    with pytest.raises(TermMismatchError):
        planner(peers).next(start(5, 2), None)


def test_a_run_ends_where_it_aimed(peers: ScriptedCluster) -> None:
    """With availableNow, entries that came later belong to the next run."""
    peers.fill(10)
    plans = planner(peers)
    plans.aim()
    peers.fill(10)
    offset = plans.next(plans.first(), None)
    assert offset.until.index == 10
    assert plans.next(offset, None) == offset
    assert plans.latest() == 20


# -- a compacted log ---------------------------------------------------------------------------------------------------


def test_entries_that_were_compacted(peers: ScriptedCluster) -> None:
    """Entries that were compacted before they were read end the stream, are left out, or come as the snapshot."""
    compacted(peers)
    with pytest.raises(HistoryOutrunError, match="from 3 to 4 exist only as a snapshot"):
        planner(peers).next(start(2), None)
    assert planner(peers).first() == start(4)
    left_out = planner(peers, fail_on_data_loss=False).next(start(2), None)
    assert left_out.parts() == [EntryRange(Position(4), 10)]
    delivering = planner(peers, snapshot="deliver")
    assert delivering.first() == start(0)
    batch = delivering.next(start(2), 2)
    assert StreamOffset.from_json(batch.to_json()) == batch
    assert batch.parts() == [SnapshotPart(4), EntryRange(Position(4), 6)]
    assert delivering.next(batch, None).parts() == [EntryRange(Position(6, batch.until.term), 10)]
    assert planner(peers, snapshot="deliver", ending_index=3).next(start(2), None) == start(2)


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"startingIndex": "0"}, "startingIndex must be earliest, latest or the index of an entry, from 1, not '0'"),
        ({"startingIndex": "soon"}, "startingIndex must be earliest, latest or"),
        ({"startingIndex": "9", "endingIndex": "7"}, "endingIndex must not be before startingIndex: 7 < 9"),
        ({"startingTime": "yesterday"}, "startingTime must be whole seconds since 1970, or as 2026-"),
        ({"startingTime": "2026-11-25T08:00:00"}, "startingTime must be whole seconds since 1970, or as 2026-"),
        ({"startingTime": "1", "startingIndex": "latest"}, "give one of them"),
        ({"maxEntriesPerTrigger": "0"}, "maxEntriesPerTrigger must be a whole number from 1"),
        ({"maxEntriesPerTrigger": "1", "maxOffsetsPerTrigger": "1"}, "are the same: give one of them"),
        ({"maxBytesPerTrigger": "1MB"}, "the option maxBytesPerTrigger must be a whole number, not '1MB'"),
        ({"failOnDataLoss": "no"}, "the option failOnDataLoss must be true or false, not 'no'"),
        ({"snapshot": "yes"}, "snapshot must be deliver, refuse or skip, not 'yes'"),
        ({"minPartitions": "0"}, "minPartitions must be a whole number from 1 to 10000, not 0"),
        ({"after": "3"}, "unknown option after; did you mean startingIndex[?]"),
        ({"until": "3"}, "unknown option until; did you mean endingIndex[?]"),
        ({"startingOffsets": "earliest"}, "unknown option startingoffsets; did you mean startingIndex[?]"),
        ({"startingTimestamp": "1"}, "unknown option startingtimestamp; did you mean startingTime[?]"),
        ({"endingOffsets": "latest"}, "unknown option endingoffsets; did you mean endingIndex[?]"),
        ({"kafka.group.id": "pumps"}, "unknown option kafka.group.id: there are no consumer groups"),
        ({"kafka.client.rack": "a"}, "unknown option kafka.client.rack: that is a setting of Kafka's client[.] Known"),
        (
            {"kafka.bootstrap.servers": "10.0.0.1:9092", "subscribe": "pumps"},
            "unknown option kafka.bootstrap.servers; did you mean seeds[?] unknown option subscribe: a log has no",
        ),
    ],
)
def test_wrong_options_of_a_stream(options: dict[str, str], complaint: str) -> None:
    """Each wrong option is an error that names it and says what it takes."""
    with pytest.raises(SettingsError, match=complaint):
        parse_options({"seeds": "tcp://127.0.0.1:1"} | options, {}, kind=StreamOptions)


def test_options_of_a_stream_are_read() -> None:
    """Options of a stream are read in any case, with the familiar name of the limit and times of two kinds."""
    texts = {"seeds": "tcp://127.0.0.1:1", "MAXOFFSETSPERTRIGGER": "5", "startingTime": "2026-11-25T09:00:00.5+01:00"}
    options = parse_options(texts, {}, kind=StreamOptions)[1]
    assert options == StreamOptions(max_entries_per_trigger=5, starting_time=1795593601)

"""Options of a read, and the plan that is made of them."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft_client import HistoryOutrunError, OutOfDateLogError, RaftSettings, SettingsError, SnapshotPolicy
from raft_client.core.calls import LogInfo
from raft_client.spark.options import ReadOptions, StreamOptions, connection, parse_options, refuse_useless, to_options
from raft_client.spark.reading import MAX_SNAPSHOT_BYTES, EntryRange, SnapshotPart, plan
from raft_client.wire.log_entry import Position

SEEDS = "tcp://10.0.0.1:8047,tcp://10.0.0.2:8047"
INDEXES = st.integers(0, 2**53 - 1)


def info(last: int, *, first: int = 1, snapshot_bytes: int = 0) -> LogInfo:
    """What a leader says of a log from ``first`` to ``last``."""
    return LogInfo(True, "1", 1, first, last, last, last, snapshot_bytes, 0)


def test_importing_the_room_loads_no_spark() -> None:
    """Importing raft_client or its Spark folder does not import pyspark."""
    code = (
        "import sys, raft_client.spark; raft_client.spark.read_entries;"
        "print(*(m for m in ('pyspark', 'pyarrow', 'zmq', 'statestore_client') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        import_nonsense()


def import_nonsense() -> Any:
    import raft_client.spark

    return raft_client.spark.Nonsense


# -- options -----------------------------------------------------------------------------------------------------------


def test_options_are_read_in_any_case() -> None:
    """Options are read in any case, because Spark hands them over in lower case."""
    settings, read = parse_options(
        {"seeds": SEEDS, "requesttimeout": "2.5", "AFTER": "7", "until": "9", "partitions": "3", "snapshot": "skip"},
        kind=ReadOptions,
    )
    assert settings == RaftSettings(seeds=SEEDS, request_timeout=2.5)
    assert parse_options({"seeds": SEEDS, "after": "41@3"}, kind=ReadOptions)[1].after == Position(41, 3)
    assert read == ReadOptions(after=7, until=9, partitions=3, snapshot=SnapshotPolicy.SKIP)


def test_the_environment_of_the_driver_fills_in() -> None:
    """The driver's environment fills in what options leave out."""
    env = {"ZMQRAFT_SEEDS": SEEDS, "ZMQRAFT_CLUSTER": "plant", "ZMQRAFT_REQUEST_TIMEOUT": "3"}
    settings, _ = parse_options({"requestTimeout": "4"}, env, kind=ReadOptions)
    assert settings == RaftSettings(seeds=SEEDS, cluster="plant", request_timeout=4.0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "the option seeds is missing"),
        ({"seeds": "udp://10.0.0.1:1"}, "seeds must be tcp://host:port"),
        ({"seeds": SEEDS, "after": "soon"}, "after must be a log index or INDEX@TERM@ID, not 'soon'"),
        ({"seeds": SEEDS, "until": "1.5"}, "the option until must be a whole number, not '1.5'"),
        ({"seeds": SEEDS, "after": "-1"}, "after must be a log index or INDEX@TERM@ID, not '-1'"),
        ({"seeds": SEEDS, "after": "9", "until": "8"}, "until must not be before after: 8 < 9"),
        ({"seeds": SEEDS, "partitions": "0"}, "partitions must be a whole number from 1 to 10000, not 0"),
        ({"seeds": SEEDS, "snapshot": "maybe"}, "snapshot must be deliver, refuse or skip, not 'maybe'"),
        ({"url": SEEDS}, "unknown option url; did you mean seeds[?] Known options: after, cluster"),
        ({"seeds": SEEDS, "requestTimeout": "long"}, "the option requestTimeout must be a number of seconds"),
        ({"seeds": SEEDS, "untill": "3"}, "unknown option untill; did you mean until[?] Known options: after, cluster"),
        ({"seeds": SEEDS, "startingOffsets": "latest"}, "unknown option startingoffsets; did you mean after[?]"),
        ({"seeds": SEEDS, "failOnDataLoss": "true"}, "unknown option failondataloss; did you mean snapshot[?]"),
    ],
)
def test_unusable_options_say_what_is_wrong(options: dict[str, str], complaint: str) -> None:
    """The message about an unusable option names it and what it takes."""
    with pytest.raises(SettingsError, match=complaint):
        parse_options(options, {}, kind=ReadOptions)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"seeds": "10.0.0.1:8047"}, "^seeds must be tcp://host:port[^\\n]*$"),
        ({"seeds": SEEDS, "failOnDataLoss": "no"}, "^the option failOnDataLoss must be true or false, not 'no'$"),
        ({"seeds": SEEDS, "after": "soon"}, "^after must be a log index or INDEX@TERM@ID, not 'soon'$"),
        (
            {"seeds": SEEDS, "topic": "a"},
            "^unknown option topic: a log has no topics[^\\n]*\\nunknown option topic: a log",
        ),
    ],
)
def test_options_that_no_read_takes_are_refused_at_once(options: dict[str, str], complaint: str) -> None:
    """What is wrong for every kind of read is said as that kind says it whose options were given."""
    with pytest.raises(SettingsError, match=complaint):
        refuse_useless(options, (StreamOptions, ReadOptions))


@pytest.mark.parametrize("option", ["startingIndex", "after"])
def test_options_of_either_read_pass(option: str) -> None:
    """Options that one kind of read takes may be of that kind."""
    refuse_useless({"seeds": SEEDS, option: "3"}, (StreamOptions, ReadOptions))


def test_peers_are_given_as_to_a_client() -> None:
    """Peers are given as URLs in one text or several, and anything else is a typed error."""
    assert connection(SEEDS.split(",")) == connection(SEEDS) == RaftSettings(seeds=SEEDS)
    with pytest.raises(SettingsError, match="seeds"):
        connection(None)  # type: ignore[arg-type]  # the mistake in question


@given(
    st.builds(
        lambda after, length, **rest: ReadOptions(after=after, until=length and min(after + length, 2**53 - 1), **rest),
        INDEXES,
        st.none() | st.integers(1, 10**6),
        partitions=st.none() | st.integers(1, 10_000),
        snapshot=st.sampled_from(SnapshotPolicy),
    ),
    st.floats(0.001, 1e6),
    st.text("ab ,é").filter(lambda t: t == t.strip()),
)
def test_options_survive_the_way_through_spark(read: ReadOptions, timeout: float, cluster: str) -> None:
    """Options written as texts are read back as the same."""
    settings = RaftSettings(seeds=SEEDS, cluster=cluster, request_timeout=timeout)
    assert parse_options(to_options(settings, read), {}, kind=ReadOptions) == (settings, read)


def test_the_secret_key_hides_under_a_name_that_spark_redacts() -> None:
    """The secret key has an option name that Spark redacts in its plans and logs."""
    key = "x" * 40
    settings = RaftSettings(
        seeds=SEEDS,
        curve_server_key=key,
        curve_public_key=key,
        curve_secret_key=key,
        curve_peer_keys={SEEDS.split(",")[0]: key},
    )
    options = to_options(settings, ReadOptions())
    assert [name for name, text in options.items() if text == key and "secret" in name.lower()] == ["curveSecretKey"]
    assert parse_options(options, {}, kind=ReadOptions) == (settings, ReadOptions())


# -- the plan ----------------------------------------------------------------------------------------------------------


@given(st.data())
def test_ranges_cover_what_was_asked_for(data: st.DataObject) -> None:
    """Ranges cover what was asked for without gap or overlap, in nearly equal parts, as many as wanted if there are
    entries."""
    last = data.draw(st.integers(0, 10**7))
    after = data.draw(st.integers(0, last))
    until = data.draw(st.none() | st.integers(after, last))
    wanted = data.draw(st.none() | st.integers(1, 20))
    parts = plan(info(last), ReadOptions(after=after, until=until, partitions=wanted))
    end = last if until is None else until
    assert (parts[0].after.index, parts[-1].until) == (after, end)
    ranges = [part for part in parts if isinstance(part, EntryRange)]
    assert all(a.until == b.after.index for a, b in pairwise(ranges))
    lengths = {part.until - part.after.index for part in ranges}
    assert max(lengths) - min(lengths) <= 1
    if wanted is not None:
        assert len(parts) == max(1, min(wanted, end - after))


@pytest.mark.parametrize(
    ("entries", "expected"), [(0, 1), (1, 1), (100_000, 1), (100_001, 2), (800_000, 8), (10**9, 8)]
)
def test_small_logs_are_read_by_few_tasks(entries: int, expected: int) -> None:
    """A log is read by one task for every 100,000 entries, eight at most, because a single peer serves them all."""
    assert len(plan(info(entries), ReadOptions())) == expected


@pytest.mark.parametrize(("after", "until"), [(101, None), (0, 101), (101, 102)])
def test_a_log_that_is_too_short_is_an_error(after: int, until: int | None) -> None:
    """An index beyond the log is an error, because it may belong to another cluster."""
    with pytest.raises(OutOfDateLogError, match=f"the log ends at 100, before {max(after, until or 0)}"):
        plan(info(100), ReadOptions(after=after, until=until))


COMPACTED = info(100, first=41, snapshot_bytes=9)


def test_a_compacted_log_is_refused() -> None:
    """A range in a compacted log is refused, the error knows where the snapshot ends, and reading after it works."""
    with pytest.raises(HistoryOutrunError, match="the entries from 40 to 40 exist only as a snapshot") as caught:
        plan(COMPACTED, ReadOptions(after=39))
    assert caught.value.snapshot_index == 40
    assert plan(COMPACTED, ReadOptions(after=40)) == [EntryRange(Position(40), 100)]


def test_a_snapshot_is_skipped() -> None:
    """With "skip", a range begins after the snapshot, and one within it is empty."""
    assert plan(COMPACTED, ReadOptions(snapshot="skip")) == [EntryRange(Position(40), 100, skip=True)]
    assert plan(COMPACTED, ReadOptions(until=30, snapshot="skip")) == [EntryRange(Position(30), 30, skip=True)]


def test_a_snapshot_is_delivered() -> None:
    """With "deliver", the snapshot comes before the entries, unless it reaches beyond the range or is too large for a
    row."""
    deliver = ReadOptions(partitions=2, snapshot="deliver")
    assert plan(COMPACTED, deliver) == [SnapshotPart(40), EntryRange(Position(40), 70), EntryRange(Position(70), 100)]
    with pytest.raises(HistoryOutrunError, match="up to 40, beyond until=30"):
        plan(COMPACTED, ReadOptions(until=30, snapshot="deliver"))
    with pytest.raises(HistoryOutrunError, match="too large for a row"):
        plan(info(100, first=41, snapshot_bytes=MAX_SNAPSHOT_BYTES + 1), deliver)


def test_an_empty_snapshot_is_not_asked_for() -> None:
    """An empty snapshot is not requested, because a peer never answers that (facts 1.4, RequestEntries)."""
    assert plan(info(100, first=41), ReadOptions(snapshot="deliver")) == [EntryRange(Position(40), 100)]

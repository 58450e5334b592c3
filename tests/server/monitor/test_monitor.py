"""The lock timeline: what it says of a lock, and how much it remembers. Text of strangers, times, changes of keys."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.server.monitor import ChangeLog, Latencies, LockTimeline, RefusedWrite, shown
from statestore_client.wire.hlc import HlcTimestamp

LOCK = b"jobs/compact"


def version(number: int) -> HlcTimestamp:
    return HlcTimestamp(1_700_000_000_000, number, "StateStore")


def grant(timeline: LockTimeline, holder: bytes, number: int, now: int, key: bytes = LOCK) -> None:
    timeline.granted(key, holder, f"client of {holder.decode()}", 1_000, version(number), now)


def holdings(timeline: LockTimeline) -> list[tuple[Any, ...]]:
    """Of the only lock: holder, from, to, how, renewals."""
    (lock,) = timeline.all()["locks"]
    return [(each["holder"], each["began"], each["ended"], each["how"], each["renewals"]) for each in lock["holdings"]]


def test_a_renewal_goes_on_with_the_holding_and_keeps_its_token() -> None:
    """A claim by the present holder is a renewal: the holding and its fencing token stay the same."""
    timeline = LockTimeline()
    grant(timeline, b"a", 1, 0)
    grant(timeline, b"a", 2, 900)
    timeline.tick(1_500)
    assert holdings(timeline) == [("a", 0, None, None, 1)]
    assert timeline.all()["locks"][0]["holdings"][0]["token"] == str(version(1))


def test_a_lease_that_nobody_renews_ends_by_itself_when_it_is_over() -> None:
    """A holding ends at the end of its lease, not when somebody notices it or takes the lock."""
    timeline = LockTimeline()
    grant(timeline, b"a", 1, 0)
    grant(timeline, b"b", 2, 3_000)
    assert holdings(timeline) == [("a", 0, 1_000, "expired", 0), ("b", 3_000, None, None, 0)]


def test_the_same_holder_after_its_lease_was_over_is_a_new_holding() -> None:
    """After the end of the lease another one could have held the lock: the same name has another token now."""
    timeline = LockTimeline()
    grant(timeline, b"a", 1, 0)
    grant(timeline, b"a", 2, 1_000)
    assert [each[:4] for each in holdings(timeline)] == [("a", 0, 1_000, "expired"), ("a", 1_000, None, None)]


def test_how_a_holding_ends() -> None:
    """A lock is released, deleted by somebody that does not know whose it is, or overwritten."""
    timeline = LockTimeline()
    for number, (end, how) in enumerate(
        (
            (lambda at: timeline.removed(LOCK, at, by_holder=True), "released"),
            (lambda at: timeline.removed(LOCK, at, by_holder=False), "deleted"),
            (lambda at: timeline.overwritten(LOCK, at), "overwritten"),
        )
    ):
        grant(timeline, b"a", number, 100 * number)
        end(100 * number + 50)
        assert holdings(timeline)[-1][2:4] == (100 * number + 50, how)
    timeline.removed(b"another key", 900, by_holder=True)
    assert len(timeline.all()["locks"]) == 1


def test_a_holder_from_before_is_there_as_soon_as_somebody_claims_its_lock() -> None:
    """A lock that was held before the timeline began is known from the first claim that fails."""
    timeline = LockTimeline()
    timeline.missed(LOCK, b"b", "client of b", 500, (b"a", version(1), 900))
    (lock,) = timeline.all()["locks"]
    assert lock["waiting"] == [{"holder": "b", "client": "client of b", "since": 500}]
    assert [(each["holder"], each["until"]) for each in lock["holdings"]] == [("a", 900)]


def test_a_contender_waits_until_it_has_the_lock_or_gives_up() -> None:
    """A contender is listed until it holds the lock, leaves, or does not try when the lock changes hands."""
    timeline = LockTimeline()
    grant(timeline, b"a", 1, 0)
    for name in (b"b", b"c", b"d"):
        timeline.missed(LOCK, name, f"client of {name.decode()}", 10, (b"a", version(1), 1_000))
    timeline.removed(LOCK, 20, by_holder=True)
    grant(timeline, b"b", 2, 30)
    timeline.left("client of c", 40)
    waiting = [each["holder"] for each in timeline.all()["locks"][0]["waiting"]]
    assert waiting == ["d"]
    timeline.tick(30_000)
    assert timeline.all()["locks"][0]["waiting"] == []


def test_a_refused_write_says_whose_tokens_they_are() -> None:
    """A refusal names the lock and the holder of the late token, and of the token that protects the key."""
    timeline = LockTimeline()
    grant(timeline, b"a", 1, 0)
    grant(timeline, b"b", 2, 2_000)
    timeline.refused(RefusedWrite(2_500, "client of a", "SET", "state", "older token"), version(1), version(2))
    timeline.refused(RefusedWrite(2_600, "c", "SET", "state", "older token"), version(9), None)
    known, unknown = timeline.all()["refusals"]
    assert known["holding"][:2] == ("jobs/compact", "a")
    assert known["marked_by"][:2] == ("jobs/compact", "b")
    assert (known["token"], known["mark"]) == (str(version(1)), str(version(2)))
    assert (unknown["holding"], unknown["marked_by"], unknown["mark"]) == (None, None, None)


def test_a_holder_whose_client_is_gone_is_marked_until_it_is_back() -> None:
    """While the client of a holder is not connected, the holding says since when."""
    timeline = LockTimeline()
    grant(timeline, b"a", 1, 0)
    timeline.left("client of a", 300)
    assert timeline.all()["locks"][0]["holdings"][0]["gone"] == 300
    timeline.came("client of a")
    assert timeline.all()["locks"][0]["holdings"][0]["gone"] is None


def test_changes_are_told_once() -> None:
    """A viewer that is there hears of each change once: of a lock, only the holdings that have changed."""
    timeline = LockTimeline()
    grant(timeline, b"a", 1, 0)
    grant(timeline, b"b", 2, 2_000)
    assert [len(lock["holdings"]) for lock in timeline.take_changes()["locks"]] == [2]
    assert timeline.take_changes() == {"locks": [], "refusals": []}
    timeline.wrote(version(2))
    ((only,),) = [lock["holdings"] for lock in timeline.take_changes()["locks"]]
    assert (only["holder"], only["writes"]) == ("b", 1)


def test_what_is_remembered_is_bounded() -> None:
    """Whatever clients do, there are at most a hundred locks, fifty holdings of each, and 200 refusals."""
    timeline = LockTimeline()
    for number in range(300):
        grant(timeline, b"%d" % number, number, 2_000 * number)
        grant(timeline, b"x", 1_000 + number, 2_000 * number, key=b"lock %d" % number)
        timeline.missed(LOCK, b"w%d" % number, "w", 2_000 * number, (b"", version(0), 0))
        timeline.refused(RefusedWrite(0, "c", "SET", "k", "older token"), None, None)
    everything = timeline.all()
    assert len(everything["locks"]) == 100
    assert len(everything["refusals"]) == 200
    assert "jobs/compact" in {lock["key"] for lock in everything["locks"]}
    assert max(len(lock["holdings"]) for lock in everything["locks"]) == 50
    assert max(len(lock["waiting"]) for lock in everything["locks"]) <= 50
    assert len(timeline._by_token) == sum(len(lock["holdings"]) for lock in everything["locks"])
    told = timeline.take_changes()
    assert max(len(lock["holdings"]) for lock in told["locks"]) <= 50


def test_who_comes_and_goes_is_found_without_looking_at_all_locks() -> None:
    """The clients of each lock are known, those that claimed it last, and forgotten with it."""
    timeline = LockTimeline()
    for number in range(300):
        grant(timeline, b"x", number, number, key=b"lock %d" % (number % 150))
        timeline.missed(
            b"lock %d" % (number % 150), b"w%d" % number, f"w{number}", number, (b"x", version(number), 9_999)
        )
        timeline.missed(LOCK, b"w", f"many {number}", number, (b"x", version(number), 9_999))
    pairs = {(client, lock.key) for client, locks in timeline._by_client.items() for lock in locks}
    assert pairs == {(client, key) for key, lock in timeline._locks.items() for client in lock.clients}
    assert max(len(lock.clients) for lock in timeline._locks.values()) == 100
    assert len(pairs) <= 100 * 100
    timeline.left("client of x", 400)
    held = [(lock.key, lock.current) for lock in timeline._locks.values() if lock.current is not None]
    gone = {key for key, holding in held if holding.gone == 400}
    assert gone == {key for key, holding in held if holding.client == "client of x"} != set()


def test_locks_that_are_held_outlive_those_that_nobody_holds() -> None:
    """A lock that is held is not forgotten for new ones while there are others that nobody holds."""
    timeline = LockTimeline()
    timeline.granted(LOCK, b"a", "a", 10_000_000, version(1), 0)
    for number in range(300):
        grant(timeline, b"x", 1_000 + number, number, key=b"lock %d" % number)
        timeline.removed(b"lock %d" % number, number, by_holder=True)
    assert "jobs/compact" in {lock["key"] for lock in timeline.all()["locks"]}


# -- text, times and changes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"pump/7", "pump/7"),
        ("pümpe".encode(), "pümpe"),
        (b"\xff\x00a", r"\xff\x00a"),
        ("a\nb\u202ec".encode(), r"a\nb\u202ec"),
        (b"<script>alert(1)</script>", "<script>alert(1)</script>"),
        (b"x" * 500, "x" * 160 + "…"),
        ("a\ud800", r"a\ud800"),
    ],
)
def test_bytes_are_shown_as_text_that_hides_nothing(data: bytes | str, text: str) -> None:
    """What cannot be seen is written out, and what is long is cut."""
    assert shown(data) == text


@given(st.binary(max_size=2_000))
def test_whatever_comes_is_printable_and_short(data: bytes) -> None:
    """Any bytes become printable text that UTF-8 can write, of bounded length."""
    text = shown(data)
    assert text.isprintable()
    assert len(text.encode()) <= 160 * 10 + 3


@given(st.lists(st.floats(1e-6, 100.0), min_size=1, max_size=200))
def test_percentiles_are_right_to_a_tenth(seconds: list[float]) -> None:
    """The percentiles differ from those of the sorted list by less than a tenth, and the longest time is exact."""
    latencies = Latencies()
    for each in seconds:
        latencies.add(each)
    taken = latencies.take()
    assert taken is not None
    assert taken["count"] == len(seconds)
    assert taken["max"] == pytest.approx(1000 * max(seconds), abs=1e-4)
    assert taken["p50"] == pytest.approx(1000 * statistics.median_low(seconds), rel=0.1, abs=1e-3)
    assert latencies.take() is None


def test_a_time_beyond_all_bounds_counts_as_the_longest() -> None:
    """Nothing is too short or too long to be counted."""
    latencies = Latencies()
    latencies.add(0.0)
    latencies.add(1e9)
    assert latencies.take() == {"count": 2, "p50": 0.001, "p99": pytest.approx(8e6, rel=0.2), "max": 1e12}


def test_the_changes_of_a_key_come_latest_first_and_are_bounded() -> None:
    """Of the last 5,000 changes, those of one key; of a value, the beginning. Enormous keys are left out."""
    changes = ChangeLog()
    for number in range(6_000):
        changes.add(number, b"k%d" % (number % 2), "c", "SET", f"v{number}", b"x" * 1_000)
    changes.add(0, b"k" * 5_000, "c", "SET", "v", b"")
    found = changes.of(b"k1")
    assert [found[0].at, found[-1].at, len(found)] == [5_999, 1_001, 2_500]
    assert found[0].encoded() == {
        "at": 5_999, "client": "c", "action": "SET", "version": "v5999", "size": 1_000, "value": "x" * 64,
    }  # fmt: skip
    assert changes.of(b"k" * 5_000) == []

"""Text of strangers, times that requests took, and the last changes of keys."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.server.monitor.changes import ChangeLog
from statestore_client.server.monitor.latencies import Latencies
from statestore_client.server.monitor.text import shown


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

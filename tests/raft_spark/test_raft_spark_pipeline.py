"""Markers in the log, what they mean for a batch, and ids of rows: decisions without Spark and without a cluster."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft_client import LogEntry, PipelineError, ProtocolError, RequestId
from raft_client.spark.appending import hashed_tails, indexed_tails
from raft_client.spark.pipeline import Attempt, Begin, Commit, Marker, PipelineState, is_marker, marker_in

#: MessagePack, put together by hand: an array of 8; texts of 13, 5 (6), 1 and 2 bytes; seconds as uint 32.
BEGIN = b"\x98\xadzmqraft-spark\x01\xa5begin\xa1p\xa2q1\x07\xce" + (0x5956DC88).to_bytes(4, "big") + b"\xc0"
AGAIN = BEGIN[:-5] + (0x5956DC99).to_bytes(4, "big") + b"\xce" + (0x5956DC88).to_bytes(4, "big")
COMMIT = b"\x98\xadzmqraft-spark\x01\xa6commit\xa1p\xa2q1\x07\xce" + (0x5956DC88).to_bytes(4, "big") + b"\xcd\x01\x00"


def entry(data: bytes, index: int = 1) -> LogEntry:
    return LogEntry.of(data, term=1, index=index)


# -- markers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "marker"),
    [
        (BEGIN, Begin("p", "q1", 7, 0x5956DC88)),
        (AGAIN, Begin("p", "q1", 7, 0x5956DC99, 0x5956DC88)),
        (COMMIT, Commit("p", "q1", 7, 0x5956DC88, 256)),
    ],
)
def test_the_bytes_of_markers(data: bytes, marker: Marker) -> None:
    """Markers have these bytes in the log for ever, and are read from them, by their own pipeline only."""
    assert marker.encode() == data
    assert marker_in(entry(data), "p") == marker
    assert marker_in(entry(data), "another") is None
    assert marker.request_id.seconds == marker.seconds


def test_other_entries_are_no_markers() -> None:
    """Entries of users, and those of the key/value codec, are no markers; broken and later ones are errors."""
    for data in (b"x", b"\x93\xa2kv", b"zmqraft-spark", b"\x98\xadzmqraft-sparx"):
        assert not is_marker(entry(data))
        assert marker_in(entry(data), "p") is None
    with pytest.raises(ProtocolError, match="entry 9 begins like a marker and is none"):
        marker_in(entry(BEGIN[:-1], 9), "p")
    with pytest.raises(ProtocolError, match="entry 9 begins like a marker and is none"):
        marker_in(entry(BEGIN.replace(b"begin", b"began"), 9), "p")
    with pytest.raises(ProtocolError, match="entry 9 is of a later version of this package: 2"):
        marker_in(entry(BEGIN.replace(b"spark\x01", b"spark\x02"), 9), "p")


def test_ids_of_markers_tell_them_apart() -> None:
    """What a marker says is in its id, except for what all tasks of the batch say only together."""
    begin = Begin("p", "q", 7, 100)
    others = [
        Begin("p2", "q", 7, 100), Begin("p", "q2", 7, 100), Begin("p", "q", 8, 100), Begin("p", "q", 7, 101),
        Begin("p", "q", 7, 100, 99), Commit("p", "q", 7, 100),
    ]  # fmt: skip
    assert len({begin.request_id, *(other.request_id for other in others)}) == 7
    assert Commit("p", "q", 7, 100, 5).request_id == Commit("p", "q", 7, 100, 6).request_id


# -- what they mean ----------------------------------------------------------------------------------------------------


def folded(*markers: Marker) -> PipelineState:
    return PipelineState("p").fold(list(enumerate(markers, 1)), len(markers))


NEW = PipelineState("p")
OPEN = folded(Begin("p", "q", 0, 100))
DONE = folded(Begin("p", "q", 0, 100), Commit("p", "q", 0, 100, 41))


def test_a_batch_is_written_until_it_is_committed() -> None:
    """A new batch and one that began are written, a committed one is not, and the next one is."""
    assert NEW.wants("q", 0)
    assert NEW.wants("q", 5, first_batch=5)
    assert OPEN.wants("q", 0)
    assert not DONE.wants("q", 0)
    assert DONE.wants("q", 1)


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (lambda: NEW.wants("q", 3), "the log knows no pipeline 'p', and the checkpoint comes to batch 3.*firstBatch=3"),
        (lambda: PipelineState("p", since=9).wants("q", 3), "the log begins at 9, and may have been trimmed"),
        (lambda: DONE.wants("q2", 0), "belongs to the query q, and this is another one.*startingIndex=42"),
        (lambda: OPEN.wants("q2", 0), "choose another pipelineId[.] The batch 0 was begun .* after the entry 1"),
        (lambda: DONE.wants("q", 2), "comes to the batch 1 next, and the checkpoint to 2: the checkpoint was changed"),
        (lambda: OPEN.wants("q", 1), "comes to the batch 0 next, and the checkpoint to 1"),
    ],
)
def test_what_does_not_fit_is_refused_with_advice(ask: Callable[[], bool], complaint: str) -> None:
    """A lost, changed or old checkpoint, and a log that knows nothing, are errors that say what to do."""
    with pytest.raises(PipelineError, match=complaint):
        ask()


def test_the_first_begin_counts() -> None:
    """Of several BEGINs of a batch the first one counts, whoever wrote it, and of those that replace it, too."""
    state = folded(Begin("p", "q", 0, 100), Begin("p", "q", 0, 101), Begin("p", "other", 0, 102))
    assert state.attempt == Attempt(0, 100, 1)
    state = folded(Begin("p", "q", 0, 100), Begin("p", "q", 0, 500, 100), Begin("p", "q", 0, 501, 100))
    assert state.attempt == Attempt(0, 500, 1, (100,))
    state = folded(Begin("p", "q", 0, 100), Begin("p", "q", 0, 500, 100), Begin("p", "q", 0, 900, 500))
    assert state.attempt == Attempt(0, 900, 1, (100, 500))


def test_a_log_that_was_trimmed_within_a_batch() -> None:
    """Where only the second attempt of a batch is left in the log, it is known that rows before it are not."""
    assert folded(Begin("p", "q", 3, 500, 100)).attempt == Attempt(3, 500, 0, (100,))


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.integers(0, 3), st.booleans()), max_size=40))
def test_writers_that_obey_the_log_agree(steps: list[tuple[int, str, int, bool]]) -> None:
    """However three writers of two queries act on views that may be old, one batch after the other is committed, each
    under the seconds of its first BEGIN, and all of one query.

    The oracle is what was said: for each batch, the first BEGIN after the last COMMIT.
    """
    log: list[Marker] = []
    views = [NEW, NEW, NEW]
    for clock, (writer, query, back, commits) in enumerate(steps, 1000):
        state = views[writer]
        batch = state.attempt.batch if state.attempt else 0 if state.committed is None else state.committed + 1
        try:
            wanted = state.wants(query, batch)
        except PipelineError:
            wanted = False
        if wanted and state.attempt is None:
            log.append(Begin("p", query, batch, clock))
        # The writer reads on, at least to its own entry, before it does anything else.
        seen = log if wanted else log[: max(state.upto, len(log) - back)]
        views[writer] = state = NEW.fold(list(enumerate(seen, 1)), len(seen))
        if commits and wanted and state.attempt and state.query == query and state.attempt.batch == batch:
            log.append(Commit("p", query, batch, state.attempt.seconds))
    committed = [marker for marker in log if isinstance(marker, Commit)]
    assert [marker.batch for marker in committed] == list(range(len(committed)))
    assert len({marker.query for marker in committed}) <= 1
    for marker in committed:
        first = next(each for each in log if isinstance(each, Begin) and each.batch == marker.batch)
        assert marker.seconds == first.seconds


# -- ids of rows -------------------------------------------------------------------------------------------------------


def test_ids_of_indexed_rows_follow_each_other() -> None:
    """The ids of rows with an index are those of RequestId.derive, and never meet within a batch."""
    expected = [RequestId.derive("index/p/7", n, seconds=9).raw for n in (0, 5, 2**53)]
    assert [b"\0\0\0\x09" + tail for tail in indexed_tails("p/7", [0, 5, 2**53])] == expected


def test_ids_of_hashed_rows() -> None:
    """The ids of rows with an identity or of content are a hash of the batch and the value, by another way here."""
    key = hashlib.sha256(b"p/7").digest()
    expected = [
        hashlib.blake2b(key + value, digest_size=8, person=b"zmqraft row id").digest() for value in (b"a", b"b", b"17")
    ]
    assert hashed_tails("p/7", [b"a", "b", 17]) == expected
    assert hashed_tails("p/8", [b"a"]) != expected[:1]


@given(st.lists(st.binary(max_size=20), unique=True), st.integers(0, 5))
def test_ids_do_not_depend_on_the_company(values: list[bytes], cut: int) -> None:
    """A row has the same id in whatever partition, and different rows have different ids."""
    whole = hashed_tails("p/1", values)
    assert hashed_tails("p/1", values[:cut]) + hashed_tails("p/1", values[cut:]) == whole
    assert len(set(whole)) == len(values)

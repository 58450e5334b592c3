"""Positions: what a reader stores, and what becomes of it when it comes back."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_peer import IDENT, Log
from model_shell import log_of, subscribe
from model_watches import history, seen, start, take, watch, write

from raft_client.core.calls import Failed, FollowUps
from raft_client.core.entries_stream import Cursor, EntriesStream, SnapshotPolicy
from raft_client.core.selectors import Prefix
from raft_client.core.subscription import Subscription
from raft_client.errors import HistoryOutrunError, InvalidArgumentError, TermMismatchError
from raft_client.wire.log_entry import LogEntry, Position, SnapshotChunk

# -- the value --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**53 - 1), st.integers(0, 2**53 - 1))
def test_a_position_survives_being_stored(index: int, term: int) -> None:
    """A position survives as text and as a pickle, with and without a term."""
    position = Position(index, term)
    assert Position.parse(str(position)) == position
    assert pickle.loads(pickle.dumps(position)) == position  # noqa: S301 - our own bytes


def test_a_position_is_written_as_index_and_term() -> None:
    """A position is written as index and term, and without the term while that is unknown."""
    assert (str(Position(41, 3)), str(Position(41))) == ("41@3", "41")
    assert Position(41) < Position(41, 3) < Position(42, 1)


@pytest.mark.parametrize("text", ["", "41@", "@3", "-1", "41@x", " 41", "٤", "9007199254740992", 41, None])
def test_what_is_no_position_is_refused(text: Any) -> None:
    """A text that is not a position is refused with a typed error that shows it."""
    with pytest.raises(InvalidArgumentError, match="position"):
        Position.parse(text)


@pytest.mark.parametrize("after", [-1, 2**53, "41", "", True, False, None, 1.5])
def test_what_is_no_place_in_a_log_is_refused(after: Any) -> None:
    """Entries, subscriptions and watches refuse an impossible place to begin."""
    with pytest.raises(InvalidArgumentError, match="after is"):
        EntriesStream(IDENT, after)
    if after is not None:  # which means "now" to those that go on for ever
        with pytest.raises(InvalidArgumentError, match="after is"):
            Subscription(IDENT, after)
        with pytest.raises(InvalidArgumentError, match="after is"):
            start().machine.watch(Prefix(b""), after=after)


# -- entries ----------------------------------------------------------------------------------------------------------


def reply(status: int, first: int, last: int, *, term: int = 1) -> list[bytes]:
    """A message of RequestEntries with these entries, by hand."""
    frames = [n.to_bytes(12, "big") + b"\x00" + bytes([term]) + bytes(6) + b"x" for n in range(first, last + 1)]
    return [bytes([status]), b"\xc0", bytes([last]), *frames]


def chunk(index: int, offset: int, size: int, data: bytes, *, term: int = 1) -> list[bytes]:
    return [b"\x03", bytes([0x93, offset, size, term]), bytes([index]), data]


def asked(after: Position | int, **options: Any) -> EntriesStream:
    """A stream whose first request is on its way."""
    call = EntriesStream(IDENT, after, **options)
    call.frames()
    return call


def test_the_position_is_behind_what_was_taken() -> None:
    """The position is that of the last item taken, since items received and still queued would be lost at a resume
    there."""
    call = asked(0)
    call.receive(reply(2, 1, 3))
    call.receive(reply(1, 4, 5))
    assert (call.position, call.taken) == (5, Position(0))
    call.next_batch(0.0)
    assert call.taken == Position(3, 1)
    call.next_batch(0.0)
    assert call.taken == Position(5, 1)


def test_half_a_snapshot_is_no_position() -> None:
    """A position within a snapshot is not given, because the state is whole only after its last chunk."""
    call = asked(2)
    call.receive(chunk(9, 0, 6, b"abc"))
    call.receive(chunk(9, 3, 6, b"def", term=4))
    call.receive(chunk(9, 0, 6, b"abcdef", term=4))
    while not call.taken.term:
        assert call.taken == Position(2)
        assert call.next_batch(0.0) is not None
    assert call.taken == Position(9, 4)


def test_the_entry_at_a_position_is_asked_for_as_well() -> None:
    """The entry at a position is requested to check its term; it is not handed out and does not count."""
    call = EntriesStream(IDENT, Position(5, 1), count=2)
    assert call.frames() == [b"\x3c", IDENT, b"\x04", b"\x03"]
    call.receive(reply(1, 5, 7))
    batch = call.next_batch(0.0)
    assert [entry.index for entry in batch] == [6, 7]
    assert call.taken == Position(7, 1)
    assert EntriesStream(IDENT, 5).frames() == [b"\x3c", IDENT, b"\x05"]
    assert EntriesStream(IDENT, Position(0, 0)).frames() == [b"\x3c", IDENT, b"\x00"]


def test_another_term_is_another_log() -> None:
    """When the entry at a position has another term, nothing is handed out, the peer is told to stop, and the error
    tells the term."""
    call = asked(Position(5, 2))
    verdict = call.receive(reply(2, 5, 7))
    assert isinstance(verdict, Failed)
    assert isinstance(verdict.error, TermMismatchError)
    assert (verdict.error.index, verdict.error.term, verdict.error.found_term) == (5, 2, 1)
    assert verdict.last == call.stop()
    assert call.next_batch(0.0) is None


def test_the_end_of_the_log_confirms_a_position() -> None:
    """When the position is the last entry of the log, it is confirmed and nothing follows."""
    call = asked(Position(5, 1))
    assert call.receive(reply(1, 5, 5)).result == 5
    assert call.next_batch(0.0) is None
    assert call.taken == Position(5, 1)


def test_a_position_is_confirmed_anew_after_a_break() -> None:
    """After a break a position that was not confirmed yet is confirmed with the next peer."""
    call = EntriesStream(IDENT, Position(5, 1))
    assert call.frames() == call.frames() == [b"\x3c", IDENT, b"\x04"]
    call.receive(reply(2, 5, 6))
    assert call.frames() == [b"\x3c", IDENT, b"\x06"]


@pytest.mark.parametrize(("term", "fails"), [(3, False), (4, True), (2, True)])
def test_a_log_that_was_compacted_right_there_still_has_what_follows(term: int, fails: bool) -> None:
    """If the log was compacted at the position, the snapshot's term confirms it, and the entries after it follow."""
    call = asked(Position(5, term), snapshot=SnapshotPolicy.REFUSE)
    verdict = call.receive(chunk(5, 0, 6, b"abc", term=3))
    assert isinstance(verdict, Failed) is fails
    if not fails:
        assert call.frames() == [b"\x3c", IDENT, b"\x05"]
        call.receive(reply(1, 6, 6, term=3))
        assert call.taken == Position(5, 3)


def test_a_snapshot_of_an_older_term_is_of_another_log() -> None:
    """A snapshot of an older term is of another log, since terms never fall; a newer term is accepted as the whole
    state."""
    call = asked(Position(5, 4))
    assert isinstance(call.receive(chunk(9, 0, 6, b"abc", term=3)).error, TermMismatchError)
    call = asked(Position(5, 2))
    assert isinstance(call.receive(chunk(9, 0, 6, b"abc", term=3)), FollowUps)


def test_the_follow_ups_of_a_snapshot_say_what_was_asked() -> None:
    """Follow-ups of a snapshot repeat the requested index, because a peer takes another one for a new request."""
    call = EntriesStream(IDENT, Position(5, 2))
    assert call.frames()[2] == b"\x04"
    (follow_up,) = call.receive(chunk(9, 0, 6, b"abc", term=3)).frames
    assert follow_up == [b"\x3c", IDENT, b"\x04"]


def test_history_that_was_outrun_says_what_there_is() -> None:
    """Before the error that history was compacted is raised, the leader is asked for its oldest entry and its end
    (R5)."""
    call = asked(2, snapshot=SnapshotPolicy.REFUSE)
    verdict = call.receive(chunk(9, 0, 6, b"abc"))
    assert verdict.frames == (call.stop(), [b"\x25", IDENT])
    call.receive(chunk(9, 3, 6, b"def"))  # it was on its way
    verdict = call.receive([b"\x01", b"\xa11", *(bytes([n]) for n in (1, 10, 14, 14, 15, 6, 0))])
    assert isinstance(verdict.error, HistoryOutrunError)
    assert (verdict.error.snapshot_index, verdict.error.oldest_index, verdict.error.current_index) == (9, 10, 14)


# -- iterators --------------------------------------------------------------------------------------------------------


def test_a_cursor_counts_what_an_iterator_handed_out() -> None:
    """A cursor counts each entry of an iterator; a batch takes the rest, and then the iterator has nothing more."""
    entries = [LogEntry.of(b"x", term=2, index=n) for n in (4, 5, 6)]
    cursor = Cursor()
    cursor.enter(entries, Position(3, 1))
    rest, taken = cursor.rest, Position(6, 2)
    assert cursor.position(taken) == Position(3, 1)
    next(rest)
    assert cursor.position(taken) == Position(4, 2)
    assert cursor.take_rest() == entries[1:]
    assert cursor.position(taken) == taken
    assert list(rest) == []
    assert cursor.take_rest() is None


def test_a_cursor_knows_snapshots() -> None:
    """A cursor counts a chunk of a snapshot when it was handed out."""
    piece = SnapshotChunk(9, 2, 0, 3, b"abc")
    cursor = Cursor()
    cursor.enter(piece, Position(3, 1))
    assert cursor.position(Position(9, 2)) == Position(3, 1)
    assert cursor.take_rest() is piece
    assert cursor.position(Position(9, 2)) == Position(9, 2)


# -- subscriptions ----------------------------------------------------------------------------------------------------


def test_the_position_of_a_subscription_is_behind_what_was_taken() -> None:
    """The position of a subscription is that of the last item taken, whether read or broadcast."""
    shell = subscribe(log_of(20), 0)
    shell.settle()
    assert (shell.machine.position, shell.machine.taken) == (20, Position(0))
    at = 0
    while (batch := shell.machine.next_batch(0.0)) is not None:
        at = batch[-1].index
        assert shell.machine.taken == Position(at, 1)
    assert at == 20
    for _ in range(3):
        shell.leader.log.append()
    shell.hear(shell.broadcast(21, 23))
    assert (shell.machine.position, shell.machine.taken) == (23, Position(20, 1))
    shell.machine.close()
    assert shell.machine.taken == Position(20, 1)


@pytest.mark.parametrize("term", [1, 2])
def test_a_subscription_confirms_where_it_begins(term: int) -> None:
    """A subscription confirms its start before it hands anything out, broadcasts included."""
    shell = subscribe(log_of(20), Position(15, term))
    taken = shell.take_all()
    if term == 1:
        assert [entry.index for batch in taken for entry in batch] == [16, 17, 18, 19, 20]
    else:
        assert taken == []
        assert isinstance(shell.machine.error, TermMismatchError)


# -- watches ----------------------------------------------------------------------------------------------------------


def other_terms(log: Log, term: int, first: int = 1) -> Log:
    """The same entries, from ``first`` on of another term."""
    log.frames[first - 1 :] = [f[:13] + bytes([term]) + f[14:] for f in log.frames[first - 1 :]]
    return log


def test_a_watch_resumes_in_its_own_log_only() -> None:
    """A watch resumes in its own log only: from memory, from the log, or at its very end (R4 with the term)."""
    shell = start(history(9))
    for other in (None, watch(shell, Prefix(b""))):  # with a subscription and without
        for index in (3, 9):
            good = watch(shell, Prefix(b""), after=Position(index, 1))
            assert [i for i, _ in seen(take(shell, good))] == list(range(index + 1, shell.leader.log.end + 1)), other
            assert good.is_live
            bad = watch(shell, Prefix(b""), after=Position(index, 2))
            assert take(shell, bad) == []
            assert isinstance(bad.error, TermMismatchError)
        write(shell, b"a=1", b"a=2")


def test_the_place_to_resume_has_a_term_even_on_a_quiet_log() -> None:
    """On a quiet log the position of a watch gets its term from the entry at the end of the log."""
    shell = start(other_terms(history(5), 7, 4))
    w = watch(shell, Prefix(b""))
    assert shell.machine.resume_after(w) == Position(5, 7)

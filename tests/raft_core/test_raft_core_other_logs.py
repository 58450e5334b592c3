"""Thousands of logs that are not the one a reader has read: it is refused, and in its own it misses nothing.

A cluster is wiped, or put back to what a backup had, and written again: as many entries, in the same terms, with the
marks of its leaders at the same places. What readers stored in the first log is then given to each kind of reader.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from model_peer import IDENT, Log, ModelPeer
from model_shell import subscribe
from model_watches import start, take, watch
from support.schedules import scaled

from raft_client.core import entries_stream, subscription
from raft_client.core.calls import Again, Failed, Finished, FollowUps
from raft_client.core.entries_stream import Cursor, EntriesStream
from raft_client.core.selectors import Prefix
from raft_client.core.watch_events import WatchEvent
from raft_client.errors import OutOfDateLogError, RaftError, TermMismatchError
from raft_client.wire.log_entry import LogEntry, Position

NO_ID = bytes(12)
#: What becomes of a log next: an entry of a client, or a new leader, which marks the beginning of its term.
STEPS = st.lists(st.sampled_from("aal"), min_size=1, max_size=12).map(lambda steps: ["a", *steps])


def grow(log: Log, steps: list[str], written: int) -> None:
    """One entry for each step. ``written`` entries were written before, anywhere: no two have one id."""
    term = log.frames[-1][13] if log.frames else 1
    for step in steps:
        written += 1
        term += step == "l"
        kind, raw, data = (b"\x00", written.to_bytes(12, "big"), b"k=1") if step == "a" else (b"\x02", NO_ID, b"\xc0")
        log.frames.append(raw + kind + bytes([term]) + bytes(6) + data)


# -- three kinds of readers: how far one is after so many items, and what one finds that goes on there -----------------


def read(log: Log, after: Position | int, batch: int) -> tuple[EntriesStream, RaftError | None]:
    """A stream that has received all that the peer has for it."""
    call, peer, number = EntriesStream(IDENT, after), ModelPeer(log, batch=batch), 0
    inbox: list[list[bytes]] = []

    def ask() -> None:
        nonlocal number
        number += 1
        inbox.extend(peer.receive(b"%d" % number, call.frames()))

    ask()
    while True:
        request_id, *frames = inbox.pop(0)
        if request_id != b"%d" % number:
            continue
        match call.receive(frames):
            case Finished():
                return call, None
            case Failed(error=error):
                return call, error
            case Again(last=last):
                peer.receive(request_id, last)
                ask()
            case FollowUps(frames=follow_ups):
                for each in follow_ups:
                    inbox.extend(peer.receive(request_id, each))
            case _:  # it lags, and would ask again and again
                return call, OutOfDateLogError("the log is shorter")


def stop_entries(log: Log, count: int, batch: int) -> Position:
    call, _ = read(log, 0, batch)
    cursor = Cursor()
    for _ in range(count):
        if next(cursor.rest, None) is None:
            before = call.taken
            cursor.enter(call.next_batch(0.0) or (), before)
            next(cursor.rest)
    return cursor.position(call.taken)


def resume_entries(log: Log, after: Position, batch: int) -> tuple[list[int], Exception | None]:
    call, error = read(log, after, batch)
    found: list[int] = []
    while (items := call.next_batch(0.0)) is not None:
        found += [entry.index for entry in items if isinstance(entry, LogEntry)]
    return found, error


def stop_subscriber(log: Log, count: int, _batch: int) -> Position:
    """It gets them as they are broadcast, in one message or in two."""
    shell = subscribe(Log(), 0)
    shell.settle()
    half = count // 2
    for first, last in ((1, half), (half + 1, count)):
        shell.leader.log.frames = log.frames[:last]
        shell.hear(shell.broadcast(first, last))
    shell.take_all()
    taken: Position = shell.machine.taken
    return taken


def resume_subscriber(log: Log, after: Position, _batch: int) -> tuple[list[int], Exception | None]:
    shell = subscribe(log, after)
    found = [entry.index for batch in shell.take_all() for entry in batch]
    return found, shell.machine.error


def stop_watch(log: Log, count: int, _batch: int) -> Position:
    shell = start(Log(log.frames[:count]))
    watched = watch(shell, Prefix(b""), after=0)
    take(shell, watched)
    position: Position = shell.machine.resume_after(watched)
    return position


def resume_watch(log: Log, after: Position, _batch: int) -> tuple[list[int], Exception | None]:
    shell = start(log)
    watched = watch(shell, Prefix(b""), after=after)
    return [item.index for item in take(shell, watched) if isinstance(item, WatchEvent)], watched.error


def resume_late_watch(log: Log, after: Position, _batch: int) -> tuple[list[int], Exception | None]:
    """The log was broadcast for another watch and is remembered, so little is read."""
    shell = start(Log(log.frames[:1]))
    other = watch(shell, Prefix(b""))
    shell.leader.log = log
    shell.hear(shell.broadcast(2, log.end))
    take(shell, other)
    watched = watch(shell, Prefix(b""), after=after)
    return [item.index for item in take(shell, watched) if isinstance(item, WatchEvent)], watched.error


STOPS = [stop_entries, stop_subscriber, stop_watch]
RESUMES = [resume_entries, resume_subscriber, resume_watch, resume_late_watch]
STORED: list[Callable[[Position], Position]] = [
    lambda position: Position.parse(str(position)),
    lambda position: pickle.loads(pickle.dumps(position)),  # noqa: S301 - our own bytes
]


@attrs.frozen
class Story:
    """A reader stops in a log, of which ``kept`` entries remain; others are written instead of the rest."""

    first: list[str]
    count: int
    kept: int
    second: list[str]
    same_shape: bool
    batch: int
    stop: Any
    resume: Any
    store: Any

    def check(self) -> None:
        one = Log()
        grow(one, self.first, 0)
        position = self.store(self.stop(one, self.count, self.batch))
        assert position == Position(self.count, one.frames[self.count - 1][13])
        other = Log(one.frames[: self.kept])
        grow(other, self.first[self.kept :] if self.same_shape else self.second, one.end)
        found, error = self.resume(other, position, self.batch)
        if other.end < self.count:
            assert found == []
            assert self.resume is resume_subscriber or isinstance(error, OutOfDateLogError | TermMismatchError)
        elif other.frames[: self.count] != one.frames[: self.count]:
            assert found == []
            assert isinstance(error, TermMismatchError), error
        else:
            is_watch = self.resume in (resume_watch, resume_late_watch)
            wanted = [n for n in range(self.count + 1, other.end + 1) if not is_watch or not other.frames[n - 1][12]]
            assert (found, error) == (wanted, None)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    first = draw(STEPS)
    return Story(
        first,
        draw(st.integers(1, len(first))),
        draw(st.integers(0, len(first))),
        draw(STEPS),
        draw(st.booleans()),
        draw(st.integers(1, 4)),
        draw(st.sampled_from(STOPS)),
        draw(st.sampled_from(RESUMES)),
        draw(st.sampled_from(STORED)),
    )


@pytest.mark.scaled
@settings(max_examples=scaled(300, 5000), deadline=None, suppress_health_check=list(HealthCheck))
@given(stories())
def test_a_position_is_good_for_its_own_log_only(story: Story) -> None:
    """Whatever was written in place of what a reader has read, it hands nothing out; in its own log it misses
    nothing."""
    story.check()


# -- it is worth something: with any of these mistakes it fails --------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def _terms_alone_are_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogEntry, "entry_id", b"")


def _the_text_loses_the_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Position, "__str__", lambda self: f"{self.index}@{self.term}")


def _the_mark_of_a_leader_loses_the_id(patch: pytest.MonkeyPatch) -> None:
    def position_after(batch: Any, before: Position) -> Position:
        return batch[-1].position if batch else before

    for module in (entries_stream, subscription):
        patch.setattr(module, "position_after", position_after)


def _a_mark_of_a_leader_confirms(patch: pytest.MonkeyPatch) -> None:
    original = EntriesStream._confirm_by_entry

    def confirm(self: EntriesStream, entry: LogEntry) -> Any:
        if not entry.entry_id:
            self._entry_id = b""
            self._learns = False
        return original(self, entry)

    patch.setattr(EntriesStream, "_confirm_by_entry", confirm)


def _the_id_of_the_next_batch_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EntriesStream, "taken", EntriesStream.received)


def _what_is_remembered_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    original = Position.contradicts

    def contradicts(self: Position, found: Position) -> bool:
        return original(self, attrs.evolve(found, entry_id=b""))

    patch.setattr(Position, "contradicts", contradicts)


MUTANTS: list[Plant] = [
    _terms_alone_are_compared,
    _the_text_loses_the_id,
    _the_mark_of_a_leader_loses_the_id,
    _a_mark_of_a_leader_confirms,
    _the_id_of_the_next_batch_is_kept,
    _what_is_remembered_is_not_compared,
]


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_mistakes_are_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake is found within a fixed series of stories."""
    plant(monkeypatch)

    @settings(
        max_examples=400,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(stories())
    def tell(story: Story) -> None:
        story.check()

    with pytest.raises(AssertionError):
        tell()

"""What the watches of a peer hear of its state machine."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raft_client import KeyValueCodec, LogEntry
from raft_client.server.machines.change_history import LEAST_CHANGED_BYTES
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.machines.watch_server import WatchServerLimits
from raft_client.server.runtime.machine_runner import WatchService
from raft_client.wire.log_entry import CHECKPOINT_DATA, EntryKind, Position, position_after
from raft_client.wire.request_id import RequestId
from raft_client.wire.watch_messages import (
    BeginWatch,
    EndReason,
    Events,
    Seen,
    WatchEnded,
    Watching,
    WatchProgress,
    decode_watch_reply,
)

SET = KeyValueCodec.set(b"k", b"v")
ENTRIES = [
    LogEntry.of(SET, term=1, index=1),
    LogEntry.of(b"of another format", term=1, index=2),
    LogEntry.of(CHECKPOINT_DATA, term=2, kind=EntryKind.CHECKPOINT, index=3),
    LogEntry.of(SET, term=2, index=4),
    LogEntry.of(CHECKPOINT_DATA, term=4, kind=EntryKind.CHECKPOINT, index=5),
]
TERMS = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4}


def messages_of(service: WatchService) -> list[list[bytes]]:
    """The messages of a turn."""
    sent: list[list[bytes]] = []
    service.turn(0.0, lambda frames: sent.append(frames) is None)
    return sent


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_the_term_of_each_entry_is_known_however_they_come(at_once: int) -> None:
    """However many entries are applied at once, each position of the log is taken, and each other one is refused."""
    machine = KeyValueStateMachine()
    service = WatchService(machine)
    _apply(service, machine, ENTRIES, at_once)
    for index, right in TERMS.items():
        for term in (1, 2, 3, 4):
            service.request(b"r", b"1", BeginWatch(b"", b"k", False, Position(index, term)), 0.0)
            assert messages_of(service)[0][2] == (b"\x00" if term == right else b"\x03"), (index, term)


def test_after_a_refusal_nothing_more_is_sent() -> None:
    """When a message was refused, those after it are not sent: its client would take them for the next ones."""
    machine = KeyValueStateMachine()
    service = WatchService(machine)
    service.request(b"r", b"1", BeginWatch(b"", b"k"), 0.0)
    _apply(service, machine, ENTRIES)
    sent: list[list[bytes]] = []

    def refuse(frames: list[bytes]) -> bool:
        sent.append(frames)
        return False

    service.turn(0.0, refuse)
    service.turn(0.0, refuse)
    assert [frames[2:] for frames in sent] == [Watching(int.from_bytes(sent[0][3], "little"), Position(0)).to_frames()]
    assert service.server is not None
    assert (service.server.watch_count, service.server.session_count) == (0, 0)


def test_a_watch_that_ended_says_where_the_log_is() -> None:
    """The answer to a watch that cannot begin has the newest position, as the peer has applied it."""
    machine = KeyValueStateMachine()
    service = WatchService(machine)
    _apply(service, machine, ENTRIES)
    service.request(b"r", b"1", BeginWatch(b"", b"k", False, Position(4, 3)), 0.0)
    assert messages_of(service) == [[b"r", b"1", *WatchEnded(EndReason.OTHER_LOG, 1, Position(5, 4)).to_frames()]]


def _log(last: int, *, term: int = 1) -> list[LogEntry]:
    return [LogEntry.of(KeyValueCodec.set(b"k", b"%d" % index), term=term, index=index) for index in range(1, last + 1)]


def _apply(service: WatchService, machine: KeyValueStateMachine, entries: list[LogEntry], at_once: int = 7) -> None:
    for start in range(0, len(entries), at_once):
        machine.apply(entries[start : start + at_once])
        service.applied(entries[start : start + at_once])


#: There is room for ten entries that change something, if keys and values are empty.
SMALL = WatchServerLimits(history_bytes=10 * LEAST_CHANGED_BYTES)


def test_what_the_history_cannot_hold_is_not_written_into_it() -> None:
    """A log that is applied again leaves the same history as one that was applied while the peer ran."""
    machines = KeyValueStateMachine(), KeyValueStateMachine()
    again = WatchService(machines[0], SMALL, replayed=Position(100, 1))
    running = WatchService(machines[1], SMALL)
    for service, machine in zip((again, running), machines, strict=True):
        _apply(service, machine, _log(100))
    assert again.server is not None
    assert running.server is not None
    assert again.server.oldest == running.server.oldest > 90
    for after in range(80, 101):
        heard = []
        for service in (again, running):
            assert service.request(b"%d" % after, b"1", BeginWatch(b"", b"k", False, Position(after, 1)), 0.0)
            heard.append(
                [frames[2:] for frames in messages_of(service) if frames[2] != b"\x00"]
            )  # numbers of sessions differ
        assert heard[0] == heard[1], after


def test_nothing_is_watched_among_the_entries_that_are_not_written_into_the_history() -> None:
    """Watches cannot begin before the history does, and nothing is remembered until then."""
    machine = KeyValueStateMachine()
    service = WatchService(machine, SMALL, replayed=Position(100, 1))
    assert service.server is not None
    for entry in _log(90):
        assert not service.request(b"r", b"1", BeginWatch(b"", b"k"), 0.0)
        _apply(service, machine, [entry])
        assert service.server.history_bytes == 0
    assert service.request(b"r", b"1", BeginWatch(b"", b"k"), 0.0)


def test_the_history_begins_where_the_end_of_the_log_was_replaced() -> None:
    """A leader can take away what was at the end of the log at the start: its first entry is of a later term."""
    machine = KeyValueStateMachine()
    service = WatchService(machine, SMALL, replayed=Position(100, 3))
    _apply(service, machine, _log(5, term=2))
    assert not service.request(b"r", b"1", BeginWatch(b"", b"k"), 0.0)
    _apply(service, machine, [LogEntry.of(SET, term=4, index=6)])
    assert service.request(b"r", b"1", BeginWatch(b"", b"k", False, Position(6, 4)), 0.0)
    _apply(service, machine, [LogEntry.of(SET, term=4, index=7)])
    assert messages_of(service)[1][2:] == Events(Position(7, 4), tuple(KeyValueCodec().decode(SET))).to_frames()


@pytest.mark.parametrize(("index", "serves"), [(89, False), (90, True), (200, True)])
def test_the_history_begins_after_a_snapshot_of_what_it_would_leave_out(index: int, serves: bool) -> None:
    """A snapshot stands for the entries up to its own."""
    service = WatchService(KeyValueStateMachine(), SMALL, replayed=Position(100, 1))
    service.restored(Position(index, 1))
    assert service.request(b"r", b"1", BeginWatch(b"", b"k"), 0.0) is serves


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.sampled_from("cnl"), min_size=1, max_size=5), min_size=1, max_size=6))
def test_each_position_has_the_id_that_readers_of_the_log_know(batches: list[list[str]]) -> None:
    """What a peer tells of a place in the log is what one knows who has read the log up to there: entries that change
    nothing, and marks of leaders, are not told, but counted."""
    machine = KeyValueStateMachine()
    service = WatchService(machine)
    assert service.server is not None
    service.request(b"r", b"live", BeginWatch(b"", b"k"), 0.0)
    read, term, told = Position(0), 1, 0
    places = {0: read}
    for number, steps in enumerate(batches):
        entries = []
        for step in steps:
            term += step == "l"
            index = read.index + 1
            kind, data = (EntryKind.CHECKPOINT, CHECKPOINT_DATA) if step == "l" else (EntryKind.STATE, b"nothing")
            raw = RequestId(bytes(12) if step == "l" else index.to_bytes(12, "big"))
            entry = LogEntry.of(SET if step == "c" else data, term=term, kind=kind, request_id=raw, index=index)
            read = places[index] = position_after([entry], read)
            entries.append(entry)
        _apply(service, machine, entries)
        service.request(b"r", b"%d" % number, BeginWatch(b"", b"other"), 0.0)
        service.request(b"r", b"seen", Seen(b"", session_of(service), told), 0.0)
        for _route, _id, *frames in messages_of(service):
            reply = decode_watch_reply(frames)
            if isinstance(reply, Events):
                told += 1
                assert reply.position.entry_id == places[reply.position.index].entry_id
            if isinstance(reply, Watching | WatchProgress):
                assert reply.place.entry_id == places[reply.place.index].entry_id


def session_of(service: WatchService) -> int:
    """The number of the only session."""
    assert service.server is not None
    (session,) = service.server._sessions.values()
    return session.number

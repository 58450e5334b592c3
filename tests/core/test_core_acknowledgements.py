"""Acknowledgements that wait for a reader: in order, all or none, and never those of another connection."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from statestore_client.core.acknowledgements import HeldAcknowledgements


class Reader:
    """Stands for a watch; only its identity matters."""

    def push(self, event: object) -> bool:
        raise NotImplementedError(event)


def test_they_leave_at_once_while_everybody_has_room() -> None:
    """While every watch has room, each acknowledgement leaves at once, and nothing is kept."""
    acks = HeldAcknowledgements()
    assert acks.may_leave(1)
    assert acks.has_room(Reader()) == []


def test_a_full_watch_holds_up_those_of_all() -> None:
    """One full watch holds up the acknowledgements of all; once it has room they leave together, in the order of the
    messages."""
    acks, reader = HeldAcknowledgements(), Reader()
    acks.is_full(reader)
    assert not acks.may_leave(2)
    assert not acks.may_leave(3)
    assert acks.has_room(reader) == [2, 3]
    assert acks.may_leave(4)
    assert acks.has_room(reader) == []


def test_the_last_of_several_full_watches_lets_go() -> None:
    """Acknowledgements leave when the last of several full watches has room; a watch that is reported full twice counts
    once."""
    acks, one, other = HeldAcknowledgements(), Reader(), Reader()
    acks.is_full(one)
    acks.is_full(other)
    acks.is_full(one)
    assert not acks.may_leave(1)
    assert acks.has_room(one) == []
    assert not acks.may_leave(2)
    assert acks.has_room(other) == [1, 2]


def test_another_connection_owes_nothing_for_the_one_before() -> None:
    """After a reconnect the old messages are not acknowledged, since the broker sends them again; a full watch is still
    full."""
    acks, reader = HeldAcknowledgements(), Reader()
    acks.is_full(reader)
    assert not acks.may_leave(1)
    acks.reconnecting()
    assert not acks.may_leave(1)
    assert acks.has_room(reader) == [1]


@given(st.lists(st.tuples(st.sampled_from(["full", "room", "ack"]), st.integers(0, 2))))
def test_every_one_leaves_once_and_in_order(events: list[tuple[str, int]]) -> None:
    """In any order of events no acknowledgement is lost, none leaves twice, and none overtakes another."""
    acks, readers, left, given_out = HeldAcknowledgements(), [Reader() for _ in range(3)], [], 0
    for event, number in events:
        if event == "full":
            acks.is_full(readers[number])
        elif event == "room":
            left += acks.has_room(readers[number])
        else:
            given_out += 1
            left += [given_out] if acks.may_leave(given_out) else []
    for reader in readers:
        left += acks.has_room(reader)
    assert left == list(range(1, given_out + 1))

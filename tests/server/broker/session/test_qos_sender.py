"""QoS 1 and 2 by themselves: windows, packet identifiers, order."""

from __future__ import annotations

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from statestore_client.server.broker.session.qos_sender import Answer, Delivery, Outbound, Waiting


@attrs.define(eq=False)
class Numbered(Delivery):
    number: int


def delivery(number: int = 0, qos: int = 1) -> Numbered:
    return Numbered(qos, number)


def outbound(window: int = 10) -> Outbound[Numbered]:
    made: Outbound[Numbered] = Outbound(Waiting())
    made.resume(window)
    return made


def test_packet_identifiers_wrap_and_skip_those_in_use() -> None:
    """After 65535 comes 1, except for an identifier that is still in flight, and never 0."""
    sender = outbound(65_535)
    stuck = delivery()
    sender.start(stuck)
    assert stuck.packet_id == 1
    seen = []
    for _ in range(65_536):
        one = delivery()
        sender.start(one)
        seen.append(one.packet_id)
        assert sender.acknowledged(one.packet_id) is Answer.DONE
    assert seen[:2] == [2, 3]
    assert seen[-3:] == [65_535, 2, 3]


def test_the_window_closes_and_opens() -> None:
    """No more messages are in flight than the receiver takes, and each acknowledgement lets one more start."""
    sender = outbound(window=2)
    for number in range(2):
        sender.start(delivery(number))
    assert not sender.is_open
    sender.waiting.push(delivery(2))
    assert sender.next_ready() is None
    sender.acknowledged(1)
    ready = sender.next_ready()
    assert ready is not None
    assert ready.number == 2


def test_qos_2_keeps_its_place_until_pubcomp() -> None:
    """A QoS 2 message keeps its place in the window at PUBREC, and gives it back at PUBCOMP (MQTT 5.0, 4.9)."""
    sender = outbound(window=1)
    sender.start(delivery(qos=2))
    assert sender.received(1) is Answer.DONE
    assert not sender.is_open
    assert sender.completed(1) is Answer.DONE
    assert sender.is_open


def test_a_refused_qos_2_message_is_over_at_once() -> None:
    """PUBREC with an error code ends the exchange without PUBREL."""
    sender = outbound(window=1)
    sender.start(delivery(qos=2))
    assert sender.received(1, refused=True) is Answer.DONE
    assert sender.is_open
    assert sender.completed(1) is Answer.UNKNOWN


def test_acknowledgements_of_the_wrong_kind_are_noticed() -> None:
    """A PUBACK for QoS 2, a PUBREC for QoS 1 and a PUBCOMP before PUBREL change nothing."""
    sender = outbound()
    sender.start(delivery(qos=1))
    sender.start(delivery(qos=2))
    assert sender.received(1) is Answer.WRONG
    assert sender.acknowledged(2) is Answer.WRONG
    assert sender.completed(2) is Answer.WRONG
    assert len(sender.in_flight) == 2
    assert sender.acknowledged(77) is Answer.UNKNOWN


def test_a_new_connection_gets_what_the_old_one_did_not_finish() -> None:
    """A new connection gets PUBRELs in the order of their PUBRECs and PUBLISHes in theirs, within the new window."""
    sender = outbound()
    for number, qos in enumerate([1, 2, 2, 1]):
        sender.start(delivery(number, qos))
    sender.waiting.push(delivery(9))
    sender.received(3)
    sender.received(2)
    sender.suspend()
    assert sender.next_ready() is None
    assert sender.resume(window=2) == [3, 2]
    again = [sender.next_ready(), sender.next_ready(), sender.next_ready()]
    assert [one and one.packet_id for one in again] == [1, 4, None]
    sender.acknowledged(1)
    new = sender.next_ready()
    assert new is not None
    assert new.packet_id == 0  # the queue: to be started


def test_an_answer_to_the_last_connection_saves_the_repetition() -> None:
    """A message whose PUBACK arrives before it was sent again is not sent again."""
    sender = outbound()
    for number in range(3):
        sender.start(delivery(number))
    sender.resume(window=1)
    assert sender.acknowledged(2) is Answer.DONE
    first = sender.next_ready()
    assert first is not None
    sender.acknowledged(first.packet_id)
    second = sender.next_ready()
    assert second is not None
    assert second.packet_id == 3


def test_a_lost_session_takes_everything_along() -> None:
    """After a lost session nothing is sent again, and late acknowledgements are unknown."""
    sender = outbound()
    sender.start(delivery(qos=2))
    sender.waiting.push(delivery())
    sender.received(1)
    sender.reset()
    assert sender.resume(10) == []
    assert sender.next_ready() is None
    assert sender.completed(1) is Answer.UNKNOWN


class Sender(RuleBasedStateMachine):
    """Any sequence of offers, acknowledgements and reconnects against a list of what must still arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.sender = outbound(window=3)
        self.number = 0
        self.open: dict[int, tuple[int, int]] = {}  # packet identifier -> number, QoS; sent on this connection
        self.released: set[int] = set()
        self.offered: list[int] = []
        self.started: list[int] = []

    def pump(self) -> None:
        while (one := self.sender.next_ready()) is not None:
            number = one.number
            if one.packet_id == 0:
                self.sender.start(one)
                self.started.append(number)
            assert one.packet_id not in self.open
            self.open[one.packet_id] = (number, one.qos)

    @rule(qos=st.sampled_from([1, 2]))
    def offer(self, qos: int) -> None:
        one = delivery(self.number, qos)
        self.offered.append(self.number)
        self.number += 1
        if self.sender.is_open:
            self.sender.start(one)
            self.started.append(one.number)
            self.open[one.packet_id] = (one.number, qos)
        else:
            self.sender.waiting.push(one)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        packet_id = data.draw(st.sampled_from(sorted(self.open)))
        _, qos = self.open[packet_id]
        if qos == 1:
            assert self.sender.acknowledged(packet_id) is Answer.DONE
        elif packet_id not in self.released:
            assert self.sender.received(packet_id) is Answer.DONE
            self.released.add(packet_id)
            return
        else:
            assert self.sender.completed(packet_id) is Answer.DONE
            self.released.discard(packet_id)
        del self.open[packet_id]
        self.pump()

    @rule(window=st.integers(1, 4))
    def reconnect(self, window: int) -> None:
        self.sender.suspend()
        released = self.sender.resume(window)
        assert set(released) == self.released
        self.open = dict.fromkeys(released, (0, 2))
        self.pump()

    @invariant()
    def the_window_holds(self) -> None:
        assert self.sender.used <= self.sender.window
        assert 0 not in self.sender.in_flight

    @invariant()
    def starts_are_in_the_order_of_offers(self) -> None:
        assert self.started == self.offered[: len(self.started)]


TestSender = Sender.TestCase
TestSender.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

"""QoS 1 and 2 by themselves: windows, packet identifiers, order; and a sender and a receiver against each other, over a
link that dies at any moment.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from statestore_client.mqtt.packets import PublishProperties
from statestore_client.mqtt.qos import Inbound
from statestore_client.server.broker.memory import MemoryBudget
from statestore_client.server.broker.message import Delivery, Message
from statestore_client.server.broker.outbound import Answer, MessageQueue, Outbound

#: ("PUBLISH", packet identifier, number, QoS, DUP), or (name, packet identifier).
Frame: TypeAlias = tuple[str, int, int, int, bool] | tuple[str, int]


#: More than is ever held here.
PLENTY = 10**9


def delivery(number: int = 0, qos: int = 1) -> Delivery:
    """One of a message whose topic is a number."""
    return Delivery(Message(str(number), b"", qos, False, PublishProperties(), "", None), qos, False, ())


def number_of(one: Delivery) -> int:
    return int(one.message.topic)


def empty() -> Outbound:
    """Not connected yet."""
    budget = MemoryBudget(PLENTY, 0)
    return Outbound(MessageQueue(PLENTY, PLENTY, budget), budget, PLENTY)


def outbound(window: int = 10) -> Outbound:
    made = empty()
    made.resume(window)
    return made


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
            number = number_of(one)
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
            self.started.append(number_of(one))
            self.open[one.packet_id] = (number_of(one), qos)
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


# -- a sender and a receiver -------------------------------------------------------------------------------------------


class Pair:
    """Both halves of one session and the connection between them: two queues. A cut loses what is in them, each to any
    extent, as TCP delivers a prefix; the sender knows nothing of what arrived."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.outbound: Outbound = empty()
        self.inbound = Inbound()
        self.there: deque[Frame] = deque()
        self.back: deque[Frame] = deque()
        self.offered: list[int] = []
        self.delivered: list[int] = []
        self.finished: list[int] = []
        self.sent: dict[int, int] = {}  # number -> packet identifier
        self.connect()

    def connect(self) -> None:
        released = self.outbound.resume(self.window)
        self.inbound.resume(self.window)
        self.there.extend(("PUBREL", packet_id) for packet_id in released)
        self.pump()

    def cut(self, there: int, back: int) -> None:
        """Only so many frames of each direction still arrive; then a new connection."""
        for _ in range(min(there, len(self.there))):
            self.receive()
        for _ in range(min(back, len(self.back))):
            self.answer()
        self.there.clear()
        self.back.clear()
        self.outbound.suspend()
        self.connect()

    def offer(self, qos: int) -> None:
        one = delivery(len(self.offered), qos)
        self.offered.append(number_of(one))
        if self.outbound.is_open:
            self.outbound.start(one)
            self.put(one, dup=False)
        else:
            self.outbound.waiting.push(one)

    def put(self, one: Delivery, *, dup: bool) -> None:
        assert self.sent.setdefault(number_of(one), one.packet_id) == one.packet_id
        self.there.append(("PUBLISH", one.packet_id, number_of(one), one.qos, dup))

    def pump(self) -> None:
        while (delivery := self.outbound.next_ready()) is not None:
            dup = delivery.packet_id != 0
            if not dup:
                self.outbound.start(delivery)
            self.put(delivery, dup=dup)

    def receive(self) -> None:
        """The receiver reads one frame."""
        frame = self.there.popleft()
        if len(frame) == 2:
            self.inbound.release(frame[1])
            self.back.append(("PUBCOMP", frame[1]))
            return
        _, packet_id, number, qos, dup = frame
        if qos == 1:
            self.delivered.append(number)
            self.back.append(("PUBACK", packet_id))
            return
        is_new = self.inbound.publish(packet_id)
        assert is_new or dup, "only a duplicate may meet a known identifier"
        assert self.inbound.used <= self.window
        if is_new:
            self.delivered.append(number)
        self.back.append(("PUBREC", packet_id))

    def answer(self) -> None:
        """The sender reads one frame."""
        name, packet_id = self.back.popleft()[:2]
        delivery = self.outbound.in_flight.get(packet_id)
        if name == "PUBREC":
            answer = self.outbound.received(packet_id)
            self.there.append(("PUBREL", packet_id))
        else:
            answer = self.outbound.acknowledged(packet_id) if name == "PUBACK" else self.outbound.completed(packet_id)
            if answer is Answer.DONE and delivery is not None:
                self.finished.append(number_of(delivery))
        assert answer is Answer.DONE
        self.pump()

    def run_dry(self) -> None:
        while self.there or self.back:
            while self.there:
                self.receive()
            while self.back:
                self.answer()


def _play(pair: Pair, schedule: list[tuple[str, int, int]]) -> None:
    for name, first, second in schedule:
        if name == "offer":
            pair.offer(1 + first % 2)
        elif name == "receive" and pair.there:
            pair.receive()
        elif name == "answer" and pair.back:
            pair.answer()
        elif name == "cut":
            pair.cut(first, second)
        assert pair.outbound.used <= pair.outbound.window
    pair.run_dry()


_steps = st.tuples(
    st.sampled_from(["offer", "offer", "receive", "answer", "cut"]), st.integers(0, 5), st.integers(0, 5)
)


@settings(deadline=None, max_examples=400)  # shared machines pause
@given(st.lists(_steps, max_size=80), st.integers(1, 4))
def test_nothing_is_lost_and_qos_2_comes_once(schedule: list[tuple[str, int, int]], window: int) -> None:
    """QoS 1 arrives at least once, QoS 2 exactly once, and each exchange is finished once."""
    pair = Pair(window)
    qos = [1 + first % 2 for name, first, _ in schedule if name == "offer"]
    _play(pair, schedule)
    assert sorted(set(pair.delivered)) == pair.offered
    assert all(pair.delivered.count(number) == 1 for number in pair.offered if qos[number] == 2)
    assert sorted(pair.finished) == pair.offered
    assert not pair.outbound.in_flight
    assert not pair.inbound.unreleased
    assert pair.outbound.used == pair.inbound.used == 0


@settings(deadline=None, max_examples=200)  # shared machines pause
@given(st.lists(_steps, max_size=80), st.integers(1, 4), st.sampled_from([1, 2]))
def test_each_quality_arrives_in_order(schedule: list[tuple[str, int, int]], window: int, qos: int) -> None:
    """Apart from repetitions, messages of one QoS arrive in the order in which they were offered (MQTT 5.0, 4.6)."""
    pair = Pair(window)
    _play(pair, [(name, qos - 1 if name == "offer" else first, second) for name, first, second in schedule])
    firsts = list(dict.fromkeys(pair.delivered))
    assert firsts == pair.offered

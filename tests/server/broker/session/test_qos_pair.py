"""A sender and a receiver of QoS 1 and 2 against each other, over a link that dies at any moment.

The link is two queues. A cut loses what is in them, each to any extent: TCP delivers a prefix. The sender knows nothing
of what arrived.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore_client.mqtt.qos import Inbound
from statestore_client.server.broker.session.qos_sender import Answer, Delivery, Outbound, Waiting

#: ("PUBLISH", packet identifier, number, QoS, DUP), or (name, packet identifier).
Frame: TypeAlias = tuple[str, int, int, int, bool] | tuple[str, int]


@attrs.define(eq=False)
class Numbered(Delivery):
    number: int


class Pair:
    """Both halves of one session and the connection between them."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.outbound: Outbound[Numbered] = Outbound(Waiting())
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
        delivery = Numbered(qos, len(self.offered))
        self.offered.append(delivery.number)
        if self.outbound.is_open:
            self.outbound.start(delivery)
            self.put(delivery, dup=False)
        else:
            self.outbound.waiting.push(delivery)

    def put(self, delivery: Numbered, *, dup: bool) -> None:
        assert self.sent.setdefault(delivery.number, delivery.packet_id) == delivery.packet_id
        self.there.append(("PUBLISH", delivery.packet_id, delivery.number, delivery.qos, dup))

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
                self.finished.append(delivery.number)
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

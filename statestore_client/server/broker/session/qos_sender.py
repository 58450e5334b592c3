"""QoS 1 and QoS 2, the sender's half of a session (MQTT 5.0, 4.3, 4.4, 4.9): what waits, what is in flight and under
which packet identifier. It outlives connections, and knows neither packets nor messages: the caller sends what it says,
at once and in that order.

Order (4.6): deliveries start in the order in which they were offered. After a reconnect the unacknowledged ones go
first, in their original order, PUBRELs in the order in which the PUBRECs came.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Generic, TypeVar

import attrs

from statestore_client.mqtt.qos import LAST_PACKET_ID, next_packet_id

__all__ = ["Answer", "Delivery", "Outbound", "Waiting"]


class Answer(Enum):
    """What became of an acknowledgement."""

    DONE = auto()  # as expected
    UNKNOWN = auto()  # no such packet identifier in flight: a late duplicate, or from a session that was lost
    WRONG = auto()  # the identifier belongs to an exchange that this packet has no place in


@attrs.define(eq=False)
class Delivery:
    """One message on its way to the peer; what the message is, a subclass says.

    The fields below ``qos`` are :class:`Outbound`'s. ``packet_id`` is 0 until the delivery starts.
    """

    qos: int
    packet_id: int = attrs.field(default=0, init=False)
    is_released: bool = attrs.field(default=False, init=False)  # PUBREC came, PUBREL was sent
    is_counted: bool = attrs.field(default=False, init=False)  # takes a place of this connection's receive maximum


D = TypeVar("D", bound=Delivery)


@attrs.define(eq=False)
class Waiting(Generic[D]):
    """Deliveries that did not start yet, in order. Its owner bounds it."""

    items: deque[D] = attrs.field(factory=deque, init=False)

    def __len__(self) -> int:
        return len(self.items)

    def push(self, delivery: D) -> None:
        self.items.append(delivery)

    def pop(self) -> D:
        return self.items.popleft()

    def clear(self) -> None:
        self.items.clear()


@attrs.define(eq=False)
class Outbound(Generic[D]):
    """The sender's half of a session.

    Invariants: packet identifiers in flight are unique and not 0. ``used`` is the number of PUBLISHes that this
    connection has seen and not finished; it never exceeds ``window``. ``resend`` holds deliveries in flight that it has
    not seen and is to see.
    """

    waiting: Waiting[D]
    window: int = attrs.field(default=0, init=False)
    used: int = attrs.field(default=0, init=False)
    in_flight: dict[int, D] = attrs.field(factory=dict, init=False)
    resend: deque[D] = attrs.field(factory=deque, init=False)
    _last_id: int = attrs.field(default=0, init=False)

    # -- what goes out ------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a new delivery may start now without overtaking another one."""
        return (
            self.used < self.window
            and not self.waiting.items
            and not self.resend
            and len(self.in_flight) < LAST_PACKET_ID
        )

    def next_id(self) -> int:
        """Use up the next packet identifier. One has to be free."""
        self._last_id = packet_id = next_packet_id(self._last_id, self.in_flight)
        return packet_id

    def start(self, delivery: D) -> None:
        """Put a delivery in flight and give it a packet identifier. The caller sends it."""
        packet_id = self._last_id + 1
        if packet_id > LAST_PACKET_ID or packet_id in self.in_flight:
            packet_id = self.next_id()
        self._last_id = delivery.packet_id = packet_id
        delivery.is_counted = True
        self.in_flight[packet_id] = delivery
        self.used += 1

    def restore(self, delivery: D) -> None:
        """Put back what was in flight in an earlier life of the session, with its packet identifier, in order."""
        self._last_id = delivery.packet_id
        self.in_flight[delivery.packet_id] = delivery

    def next_ready(self) -> D | None:
        """The next PUBLISH to send (again), None while the window is closed or nothing waits.

        A delivery that has been in flight comes with its old packet identifier; a new one has 0 and must be
        :meth:`start`\\ ed by the caller, or dropped when it expired.
        """
        if self.used >= self.window:
            return None
        if self.resend:
            delivery = self.resend.popleft()
            delivery.is_counted = True
            self.used += 1
            return delivery
        if not self.waiting.items or len(self.in_flight) >= LAST_PACKET_ID:
            return None
        return self.waiting.pop()

    # -- connections come and go --------------------------------------------------------------------------------------

    def resume(self, window: int) -> list[int]:
        """A new connection that takes ``window`` PUBLISHes at a time. Returns the PUBRELs to send again, in order.

        The PUBLISHes to send again come from :meth:`next_ready`.
        """
        self.suspend()
        self.window = window
        released = []
        for packet_id, delivery in self.in_flight.items():
            if delivery.is_released:
                released.append(packet_id)
            else:
                self.resend.append(delivery)
        return released

    def suspend(self) -> None:
        """The connection is gone: nothing may start, and nothing counts any more."""
        self.window = self.used = 0
        self.resend.clear()
        for delivery in self.in_flight.values():
            delivery.is_counted = False

    def reset(self) -> None:
        """The session is gone, with all that was in flight and all that waited."""
        self.suspend()
        self.in_flight.clear()
        self.waiting.clear()

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def acknowledged(self, packet_id: int) -> Answer:
        """PUBACK, whatever its reason code: the exchange is over."""
        delivery = self.in_flight.get(packet_id)
        if delivery is None:
            return Answer.UNKNOWN
        if delivery.qos != 1:
            return Answer.WRONG
        self.forget(delivery)
        return Answer.DONE

    def received(self, packet_id: int, *, refused: bool = False) -> Answer:
        """PUBREC. Answer it with PUBREL, unless it ``refused`` the message: then the exchange is over."""
        delivery = self.in_flight.get(packet_id)
        if delivery is None:
            return Answer.UNKNOWN
        if delivery.qos != 2:
            return Answer.WRONG
        if refused:
            self.forget(delivery)
        elif not delivery.is_released:
            delivery.is_released = True
            # To the end of the dictionary: PUBRELs are sent again in the order of their PUBRECs (MQTT-4.6.0-4).
            del self.in_flight[packet_id]
            self.in_flight[packet_id] = delivery
            if not delivery.is_counted and delivery in self.resend:
                self.resend.remove(delivery)
        return Answer.DONE

    def completed(self, packet_id: int) -> Answer:
        """PUBCOMP: the exchange is over."""
        delivery = self.in_flight.get(packet_id)
        if delivery is None:
            return Answer.UNKNOWN
        if not delivery.is_released:
            return Answer.WRONG
        self.forget(delivery)
        return Answer.DONE

    def forget(self, delivery: D) -> None:
        """A started delivery is over: acknowledged, or too large for the peer (MQTT 5.0, 3.1.2.11.4)."""
        del self.in_flight[delivery.packet_id]
        if delivery.is_counted:
            self.used -= 1
        elif self.resend and delivery in self.resend:
            # Acknowledged before this connection sent it again: an answer to the last one's PUBLISH.
            self.resend.remove(delivery)

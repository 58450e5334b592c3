"""QoS 1 and QoS 2, sender and receiver, for either end of a connection (MQTT 5.0, 4.3, 4.4, 4.9).

:class:`Outbound` is the sender's half of a session: what waits, what is in flight and under which packet identifier. It
outlives connections. :class:`Inbound` is the receiver's half: the QoS 2 identifiers that must not be delivered twice.
Neither knows packets or connections: the caller sends what they tell it to send, at once and in that order.

Order (4.6): deliveries start in the order in which they were offered. After a reconnect the unacknowledged ones go
first, in their original order, PUBRELs in the order in which the PUBRECs came.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from statestore_client.server.broker.messages import Message
    from statestore_client.wire.instant import Instant

__all__ = ["Answer", "Delivery", "Inbound", "Outbound", "Waiting"]

_LAST_ID: Final = 65_535


class Answer(Enum):
    """What became of an acknowledgement."""

    DONE = auto()  # as expected
    UNKNOWN = auto()  # no such packet identifier in flight: a late duplicate, or from a session that was lost
    WRONG = auto()  # the identifier belongs to an exchange that this packet has no place in


@attrs.define(eq=False)
class Delivery:
    """One message on its way to one client. ``packet_id`` is 0 until it starts."""

    message: Message
    qos: int
    retain: bool
    subscription_ids: tuple[int, ...]
    packet_id: int = 0
    is_released: bool = False  # PUBREC came, PUBREL was sent
    is_counted: bool = False  # takes a place of this connection's receive maximum


@attrs.define(eq=False)
class Waiting:
    """Deliveries that did not start yet, in order, bounded by number and bytes."""

    max_messages: int
    max_bytes: int
    items: deque[Delivery] = attrs.Factory(deque)
    bytes: int = 0

    def __len__(self) -> int:
        return len(self.items)

    def is_full(self, message: Message) -> bool:
        """Whether there is no room for a message. An empty queue takes one of any size."""
        items = self.items
        return bool(items) and (len(items) >= self.max_messages or self.bytes + message.size > self.max_bytes)

    def push(self, delivery: Delivery) -> None:
        """Let a delivery wait. The caller asked :meth:`is_full` first."""
        self.items.append(delivery)
        self.bytes += delivery.message.size

    def pop(self) -> Delivery:
        delivery = self.items.popleft()
        self.bytes -= delivery.message.size
        return delivery

    def clear(self) -> None:
        self.items.clear()
        self.bytes = 0

    def drop_expired(self, now: Instant) -> int:
        """Remove messages whose time is over; how many there were (MQTT-3.3.2-5)."""
        alive = deque(delivery for delivery in self.items if not delivery.message.is_expired(now))
        dropped = len(self.items) - len(alive)
        if dropped:
            self.items = alive
            self.bytes = sum(delivery.message.size for delivery in alive)
        return dropped


@attrs.define(eq=False)
class Outbound:
    """The sender's half of a session.

    Invariants: packet identifiers in flight are unique and not 0. ``used`` is the number of PUBLISHes that this
    connection has seen and not finished; it never exceeds ``window``. ``resend`` holds deliveries in flight that it has
    not seen.
    """

    waiting: Waiting
    window: int = 0
    used: int = 0
    in_flight: dict[int, Delivery] = attrs.Factory(dict)
    resend: deque[Delivery] = attrs.Factory(deque)
    _last_id: int = 0

    # -- what goes out ------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a new delivery may start now without overtaking another one."""
        return self.used < self.window and not self.waiting.items and not self.resend and len(self.in_flight) < _LAST_ID

    def start(self, delivery: Delivery) -> None:
        """Put a delivery in flight and give it a packet identifier. The caller sends it."""
        in_flight = self.in_flight
        packet_id = self._last_id
        while True:
            packet_id = packet_id + 1 if packet_id < _LAST_ID else 1
            if packet_id not in in_flight:
                break
        self._last_id = delivery.packet_id = packet_id
        delivery.is_counted = True
        in_flight[packet_id] = delivery
        self.used += 1

    def next_ready(self) -> Delivery | None:
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
        if not self.waiting.items or len(self.in_flight) >= _LAST_ID:
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

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def acknowledged(self, packet_id: int) -> Answer:
        """PUBACK, whatever its reason code: the exchange is over."""
        delivery = self.in_flight.get(packet_id)
        if delivery is None:
            return Answer.UNKNOWN
        if delivery.qos != 1:
            return Answer.WRONG
        self._finish(delivery)
        return Answer.DONE

    def received(self, packet_id: int, *, refused: bool = False) -> Answer:
        """PUBREC. Answer it with PUBREL, unless it ``refused`` the message: then the exchange is over."""
        delivery = self.in_flight.get(packet_id)
        if delivery is None:
            return Answer.UNKNOWN
        if delivery.qos != 2:
            return Answer.WRONG
        if refused:
            self._finish(delivery)
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
        self._finish(delivery)
        return Answer.DONE

    def forget(self, delivery: Delivery) -> None:
        """Behave as if a started delivery had been completed (too large for the client: MQTT 5.0, 3.1.2.11.4)."""
        self._finish(delivery)

    def _finish(self, delivery: Delivery) -> None:
        del self.in_flight[delivery.packet_id]
        if delivery.is_counted:
            self.used -= 1
        elif self.resend and delivery in self.resend:
            # Acknowledged before this connection sent it again: an answer to the last one's PUBLISH.
            self.resend.remove(delivery)


@attrs.define(eq=False)
class Inbound:
    """The receiver's half of a session: QoS 2 messages that were taken over and not released yet.

    The message itself is delivered at once (the first of the two methods of MQTT 5.0, 4.3.3: no stored message, only
    its identifier).
    """

    unreleased: set[int] = attrs.Factory(set)

    def publish(self, packet_id: int) -> bool:
        """A QoS 2 PUBLISH: True if it is new and must be delivered; answer PUBREC in either case."""
        if packet_id in self.unreleased:
            return False
        self.unreleased.add(packet_id)
        return True

    def release(self, packet_id: int) -> bool:
        """PUBREL: False when the identifier is not known. Answer PUBCOMP in either case."""
        if packet_id not in self.unreleased:
            return False
        self.unreleased.discard(packet_id)
        return True

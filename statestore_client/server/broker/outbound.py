"""QoS 1 and QoS 2, the sender's half of a session: what waits, what is in flight, what is delivered again.

It outlives connections, and knows no packets: the caller sends what it says, at once and in that order.
:class:`Outbound` is that half, with the packet identifiers in use, and :class:`MessageQueue` what waits in it; both
count what they hold. Source: MQTT 5.0, 4.3, 4.4 and 4.9.

Order (4.6): deliveries start in the order in which they were offered. After a reconnect the unacknowledged ones go
first, in their original order, PUBRELs in the order in which the PUBRECs came.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.qos import LAST_PACKET_ID, next_packet_id
from statestore_client.server.broker.memory import LARGE_QUEUE_BYTES
from statestore_client.server.broker.message import LARGE_BYTES

if TYPE_CHECKING:
    from statestore_client.server.broker.journal_writer import SessionPersister
    from statestore_client.server.broker.memory import MemoryBudget
    from statestore_client.server.broker.message import Delivery, Message
    from statestore_client.wire.instant import Instant


class Answer(Enum):
    """What became of an acknowledgement."""

    DONE = auto()  # as expected
    UNKNOWN = auto()  # no such packet identifier in flight: a late duplicate, or from a session that was lost
    WRONG = auto()  # the identifier belongs to an exchange that this packet has no place in


#: A full queue is looked through for expired messages, but not for each message that finds it full.
_SWEEP_PAUSE_S: Final = 1.0

#: Messages that are looked at to find one that may be dropped.
_LOOKS: Final = 64

_DONE: Final = Answer.DONE


@attrs.define(eq=False)
class MessageQueue:
    """Deliveries that did not start yet, in order, bounded by number and bytes.

    ``owner`` is set by the maker of the session. ``promote_at`` is for :class:`.LargestQueues`. ``persister`` hears of
    what waits: what is taken out again either starts, of which it hears, or is :meth:`dropped`.
    """

    max_messages: int
    max_bytes: int
    budget: MemoryBudget
    items: deque[Delivery] = attrs.field(factory=deque, init=False)
    persister: SessionPersister | None = attrs.field(default=None, init=False)
    owner: str = attrs.field(init=False)  # the client identifier of its session
    bytes: int = attrs.field(default=0, init=False)
    promote_at: int = attrs.field(default=LARGE_QUEUE_BYTES, init=False)
    _swept: int = attrs.field(default=0, init=False)  # how many of the first ones were looked at for their expiry
    _sweep_again_at: float = attrs.field(default=0.0, init=False)

    def is_full(self, message: Message) -> bool:
        """Whether there is no room for a message. An empty queue takes one of any size."""
        items = self.items
        return bool(items) and (len(items) >= self.max_messages or self.bytes + message.size > self.max_bytes)

    def push(self, delivery: Delivery) -> None:
        """Let a delivery wait. The caller asked :meth:`is_full` first."""
        self.items.append(delivery)
        self.bytes += delivery.message.size
        self.budget.hold(delivery.message)
        if self.bytes >= self.promote_at:
            self.budget.largest_queues.promote(self)
        if self.persister is not None:
            self.persister.queued(delivery)

    def pop(self) -> Delivery:
        delivery = self.items.popleft()
        self.bytes -= delivery.message.size
        self.budget.release(delivery.message)
        return delivery

    def dropped(self, delivery: Delivery) -> None:
        """What was taken out will not start."""
        if self.persister is not None:
            self.persister.done(delivery)

    def evict(self, *, newest: bool) -> Delivery | None:
        """Take out the newest or oldest message that a client published; None if none is near that end. What the
        server itself says stays: replies, notifications.
        """
        items = self.items
        for index in range(min(len(items), _LOOKS)):
            at = -1 - index if newest else index
            delivery = items[at]
            if delivery.message.publisher:
                del items[at]
                self.bytes -= delivery.message.size
                self.budget.release(delivery.message)
                self.dropped(delivery)
                return delivery
        return None

    def clear(self) -> None:
        self.budget.largest_queues.discard(self)
        for delivery in self.items:
            self.budget.release(delivery.message)
        self.items.clear()
        self.bytes = 0

    def drop_expired(self, now: Instant, at_most: int) -> tuple[int, int]:
        """Remove messages whose time is over (MQTT-3.3.2-5), looking at some, and at others the next time. How many
        were looked at, and how many removed.
        """
        if now.monotonic < self._sweep_again_at:
            return 0, 0
        items, start = self.items, self._swept
        if start >= len(items):
            start = 0
        items.rotate(-start)
        kept: list[Delivery] = []
        expired: list[Delivery] = []
        for _ in range(min(at_most, len(items) - start)):
            delivery = items.popleft()
            (expired if delivery.message.is_expired(now) else kept).append(delivery)
        items.extendleft(reversed(kept))
        items.rotate(start)
        self._swept = start + len(kept)
        if self._swept >= len(items):
            self._swept, self._sweep_again_at = 0, now.monotonic + _SWEEP_PAUSE_S
        for delivery in expired:
            self.bytes -= delivery.message.size
            self.budget.release(delivery.message)
            self.dropped(delivery)
        return len(kept) + len(expired), len(expired)


@attrs.define(eq=False)
class Outbound:
    """The sender's half of a session. In flight are at most ``max_bytes``, and one message more.

    Invariants: packet identifiers in flight are unique and not 0. ``used`` is the number of PUBLISHes that this
    connection has seen and not finished; it never exceeds ``window``. ``resend`` holds deliveries in flight that it has
    not seen and is to see. ``bytes`` is the sum of the sizes in flight, and all of them are in the budget.
    ``persister`` hears of what starts, is released and is over.

    A message to one client, acknowledged in time, is what the broker does most. Its account is written out here, which
    saves a fourteenth of the broker's part of a request. (docs/decisions/speed-of-the-server.md)
    """

    waiting: MessageQueue
    budget: MemoryBudget
    max_bytes: int
    persister: SessionPersister | None = attrs.field(default=None, init=False)
    window: int = attrs.field(default=0, init=False)
    used: int = attrs.field(default=0, init=False)
    bytes: int = attrs.field(default=0, init=False)
    in_flight: dict[int, Delivery] = attrs.field(factory=dict, init=False)
    resend: deque[Delivery] = attrs.field(factory=deque, init=False)
    _last_id: int = attrs.field(default=0, init=False)

    # -- what goes out ------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a new delivery may start now without overtaking another one."""
        return (
            self.used < self.window
            and self.bytes < self.max_bytes
            and not self.waiting.items
            and not self.resend
            and len(self.in_flight) < LAST_PACKET_ID
        )

    @property
    def has_window(self) -> bool:
        """Whether a delivery may start that comes before those that wait."""
        return (
            self.used < self.window
            and self.bytes < self.max_bytes
            and not self.resend
            and len(self.in_flight) < LAST_PACKET_ID
        )

    def next_id(self) -> int:
        """Use up the next packet identifier. One has to be free."""
        self._last_id = packet_id = next_packet_id(self._last_id, self.in_flight)
        return packet_id

    def start(self, delivery: Delivery) -> None:
        """Put a delivery in flight and give it a packet identifier. The caller sends it."""
        packet_id = self._last_id + 1
        if packet_id > LAST_PACKET_ID or packet_id in self.in_flight:
            packet_id = self.next_id()
        self._last_id = delivery.packet_id = packet_id
        delivery.is_counted = True
        self.in_flight[packet_id] = delivery
        self.used += 1
        message = delivery.message
        self.bytes += message.size
        if message.holders or len(message.payload) >= LARGE_BYTES:
            self.budget.hold(message)
        else:  # as hold() does: see the class
            message.holders = 1
            self.budget.total += message.size
        if self.persister is not None:
            self.persister.started(delivery)

    def restore(self, delivery: Delivery) -> None:
        """Put back what was in flight in an earlier life of the session, with its packet identifier, in order."""
        self._last_id = delivery.packet_id
        self.in_flight[delivery.packet_id] = delivery

    def next_ready(self) -> Delivery | None:
        """The next PUBLISH to send (again), None while the window is closed or nothing waits.

        A delivery that has been in flight comes with its old packet identifier; a new one has 0 and must be
        :meth:`start`\\ ed by the caller, or dropped when it expired.
        """
        if self.used >= self.window or (self.bytes >= self.max_bytes and not self.resend):
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
        for delivery in self.in_flight.values():
            self.budget.release(delivery.message)
        self.bytes = 0
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
        if not delivery.is_counted:
            self.forget(delivery)
            return _DONE
        # As forget() and release() do: see the class.
        del self.in_flight[packet_id]
        self.used -= 1
        message = delivery.message
        self.bytes -= message.size
        if message.holders > 1 or len(message.payload) >= LARGE_BYTES:
            self.budget.release(message)
        else:
            message.holders = 0
            self.budget.total -= message.size
        if self.persister is not None:
            self.persister.done(delivery)
        return _DONE

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
        if not refused and self.persister is not None:
            self.persister.released(delivery)
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

    def forget(self, delivery: Delivery) -> None:
        """A started delivery is over: acknowledged, or too large for the peer (MQTT 5.0, 3.1.2.11.4)."""
        del self.in_flight[delivery.packet_id]
        if delivery.is_counted:
            self.used -= 1
        elif self.resend and delivery in self.resend:
            # Acknowledged before this connection sent it again: an answer to the last one's PUBLISH.
            self.resend.remove(delivery)
        self.bytes -= delivery.message.size
        self.budget.release(delivery.message)
        if self.persister is not None:
            self.persister.done(delivery)

"""What the broker puts on its way to clients: one copy of a message, and the bounded queue where copies wait.

When they go and what is in flight is decided in :mod:`statestore_client.server.broker.session.qos_sender`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.qos import LAST_PACKET_ID
from statestore_client.server.broker.quotas.largest_queues import LARGE_QUEUE_BYTES
from statestore_client.server.broker.quotas.memory_budget import LARGE_BYTES
from statestore_client.server.broker.session import qos_sender

if TYPE_CHECKING:
    from statestore_client.server.broker.message import Message
    from statestore_client.server.broker.persistence.durable_session import SessionPersister
    from statestore_client.server.broker.quotas.memory_budget import MemoryBudget
    from statestore_client.server.broker.session.session import Session
    from statestore_client.wire.instant import Instant

__all__ = ["BoundedOutbound", "MessageDelivery", "MessageQueue"]

#: A full queue is looked through for expired messages, but not for each message that finds it full.
_SWEEP_PAUSE_S: Final = 1.0

#: Messages that are looked at to find one that may be dropped.
_LOOKS: Final = 64

_DONE: Final = qos_sender.Answer.DONE


@attrs.define(eq=False)
class MessageDelivery(qos_sender.Delivery):
    """One message on its way to one client."""

    message: Message
    qos: int  # again, to stand behind the message
    retain: bool
    subscription_ids: tuple[int, ...]


@attrs.define(eq=False)
class MessageQueue(qos_sender.Waiting[MessageDelivery]):
    """Deliveries that did not start yet, in order, bounded by number and bytes.

    ``owner`` is set by the maker of the session. ``promote_at`` is for :class:`.LargestQueues`. ``persister`` hears of
    what waits: what is taken out again either starts, of which it hears, or is :meth:`dropped`.
    """

    max_messages: int
    max_bytes: int
    budget: MemoryBudget
    persister: SessionPersister | None = attrs.field(default=None, init=False)
    owner: Session = attrs.field(init=False)
    bytes: int = attrs.field(default=0, init=False)
    promote_at: int = attrs.field(default=LARGE_QUEUE_BYTES, init=False)
    _swept: int = attrs.field(default=0, init=False)  # how many of the first ones were looked at for their expiry
    _sweep_again_at: float = attrs.field(default=0.0, init=False)

    def is_full(self, message: Message) -> bool:
        """Whether there is no room for a message. An empty queue takes one of any size."""
        items = self.items
        return bool(items) and (len(items) >= self.max_messages or self.bytes + message.size > self.max_bytes)

    def push(self, delivery: MessageDelivery) -> None:
        """Let a delivery wait. The caller asked :meth:`is_full` first."""
        self.items.append(delivery)
        self.bytes += delivery.message.size
        self.budget.hold(delivery.message)
        if self.bytes >= self.promote_at:
            self.budget.largest_queues.promote(self)
        if self.persister is not None:
            self.persister.queued(delivery)

    def pop(self) -> MessageDelivery:
        delivery = self.items.popleft()
        self.bytes -= delivery.message.size
        self.budget.release(delivery.message)
        return delivery

    def dropped(self, delivery: MessageDelivery) -> None:
        """What was taken out will not start."""
        if self.persister is not None:
            self.persister.done(delivery)

    def evict(self, *, newest: bool) -> MessageDelivery | None:
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
        kept: list[MessageDelivery] = []
        expired: list[MessageDelivery] = []
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
class BoundedOutbound(qos_sender.Outbound[MessageDelivery]):
    """The sender's half of a session, with a bounded queue, and in flight at most ``max_bytes`` and one message more.

    ``persister`` hears of what starts, is released and is over.
    Invariant: ``bytes`` is the sum of the sizes in flight, and all of them are in the budget.

    A message to one client, acknowledged in time, is what the broker does most. Its account is written out here, which
    saves a fourteenth of the broker's part of a request. (docs/decisions, 36)
    """

    waiting: MessageQueue
    budget: MemoryBudget
    max_bytes: int
    persister: SessionPersister | None = attrs.field(default=None, init=False)
    used: int = attrs.field(default=0, init=False)  # the base class's: this one counts it down, too
    bytes: int = attrs.field(default=0, init=False)

    @property
    def is_open(self) -> bool:
        return not self.waiting.items and self.has_window

    @property
    def has_window(self) -> bool:
        """Whether a delivery may start that comes before those that wait."""
        return (
            self.used < self.window
            and self.bytes < self.max_bytes
            and not self.resend
            and len(self.in_flight) < LAST_PACKET_ID
        )

    def start(self, delivery: MessageDelivery) -> None:
        qos_sender.Outbound.start(self, delivery)  # super() takes as long as the rest
        message = delivery.message
        self.bytes += message.size
        if message.holders or len(message.payload) >= LARGE_BYTES:
            self.budget.hold(message)
        else:  # as hold() does: see the class
            message.holders = 1
            self.budget.total += message.size
        if self.persister is not None:
            self.persister.started(delivery)

    def next_ready(self) -> MessageDelivery | None:
        if self.bytes >= self.max_bytes and not self.resend:
            return None
        return super().next_ready()

    def acknowledged(self, packet_id: int) -> qos_sender.Answer:
        delivery = self.in_flight.get(packet_id)
        if delivery is None or delivery.qos != 1 or not delivery.is_counted:
            return super().acknowledged(packet_id)
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

    def received(self, packet_id: int, *, refused: bool = False) -> qos_sender.Answer:
        answer = super().received(packet_id, refused=refused)
        if answer is qos_sender.Answer.DONE and not refused and self.persister is not None:
            self.persister.released(self.in_flight[packet_id])
        return answer

    def forget(self, delivery: MessageDelivery) -> None:
        super().forget(delivery)
        self.bytes -= delivery.message.size
        self.budget.release(delivery.message)
        if self.persister is not None:
            self.persister.done(delivery)

    def reset(self) -> None:
        for delivery in self.in_flight.values():
            self.budget.release(delivery.message)
        self.bytes = 0
        super().reset()

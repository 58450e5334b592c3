"""What the broker puts on its way to clients: one copy of a message, and the bounded queue where copies wait.

When they go and what is in flight is decided in :mod:`statestore_client.mqtt.qos`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

from statestore_client.mqtt import qos

if TYPE_CHECKING:
    from statestore_client.server.broker.messages import Message
    from statestore_client.wire.instant import Instant

__all__ = ["Delivery", "Outbound", "Waiting"]


@attrs.define(eq=False)
class Delivery(qos.Delivery):
    """One message on its way to one client."""

    message: Message
    qos: int  # again, to stand behind the message
    retain: bool
    subscription_ids: tuple[int, ...]


@attrs.define(eq=False)
class Waiting(qos.Waiting[Delivery]):
    """Deliveries that did not start yet, in order, bounded by number and bytes."""

    max_messages: int
    max_bytes: int
    bytes: int = attrs.field(default=0, init=False)

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
class Outbound(qos.Outbound[Delivery]):
    """The sender's half of a session, with a bounded queue."""

    waiting: Waiting

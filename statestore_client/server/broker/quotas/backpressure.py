"""Requests that wait because there may be no room for their answers: those to earlier ones have not been taken yet.

An answer has to reach its client, so there is nothing to drop when its queue is full; see :mod:`.overflow`. A request
is small and its answer may be large, so it is the request that waits, with all that its client publishes behind it: in
the order in which it came, and without an acknowledgement. All else goes on: what the client acknowledges makes room.

Invariant: a request waits only while its client has something to acknowledge, or its socket something to take. So a
client that reads and acknowledges is served in the end, and whoever does neither stops nobody but itself. What waits is
bounded as messages for the client are (``queued_bytes``, ``held_bytes``): a client with more is disconnected (0x97).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.packets import Publish
from statestore_client.server.broker.message import OVERHEAD_BYTES, forwarded_properties, property_bytes

if TYPE_CHECKING:
    from statestore_client.server.broker.connection import Connection
    from statestore_client.server.broker.quotas.overflow import OverflowPolicy
    from statestore_client.server.broker.session.session import Session
    from statestore_client.server.broker.state import State
    from statestore_client.wire.instant import Instant

__all__ = ["Backpressure", "waiting_bytes"]

#: What one request can cause for its own client: an answer, and a notification.
_MESSAGES: Final = 2

#: What a message counts for beside the bytes of its packet: the object, and its properties.
_MESSAGE_BYTES: Final = 2048


@attrs.define(eq=False)
class Backpressure:
    """Decides which requests wait, and keeps them with their connection."""

    _state: State
    _overflow: OverflowPolicy

    def has_to_wait(self, session: Session) -> bool:
        """Whether there may be no room for what one more request causes."""
        outbound, budget, limits = session.outbound, self._state.budget, self._state.limits
        most = _MESSAGES * (limits.packet_bytes + _MESSAGE_BYTES)
        for queue in (outbound.waiting, session.waiting0):
            waiting = len(queue.items)
            if waiting and (
                queue.bytes + most > queue.max_bytes
                or waiting + _MESSAGES > queue.max_messages
                or 2 * budget.total > budget.limit  # what is in flight has to do, where many want much
            ):
                return True
        return bool(outbound.in_flight) and budget.total + most > budget.limit

    def hold(self, connection: Connection, packet: Publish, now: Instant) -> bool:
        """Let a packet wait; False if too much does."""
        size = waiting_bytes(packet)
        held = connection.held_bytes + size
        if held > self._state.limits.queued_bytes or not self._overflow.admits(size, connection.held_bytes, now):
            return False
        if connection.held is None:
            connection.held = deque()
        connection.held.append((packet, now.monotonic))
        connection.held_bytes = held
        self._state.budget.total += size
        return True

    def next(self, connection: Connection, now: Instant) -> Publish | None:
        """The packet that has waited longest, if there is room for what it causes. Its message expiry went on."""
        held, session = connection.held, connection.session
        if not held or session is None or connection.pending or self.has_to_wait(session):
            return None
        packet, since = held.popleft()
        if not held:
            connection.held = None
        size = waiting_bytes(packet)
        connection.held_bytes -= size
        self._state.budget.total -= size
        return _aged(packet, int(now.monotonic - since))


def waiting_bytes(packet: Publish) -> int:
    """What a packet holds while it waits, roughly."""
    return OVERHEAD_BYTES + len(packet.payload) + len(packet.topic) + property_bytes(packet.properties)


def _aged(packet: Publish, seconds: int) -> Publish:
    given = packet.properties
    expiry = given.message_expiry
    if not seconds or expiry is None:
        return packet
    ids, alias = given.subscription_ids, given.topic_alias
    return attrs.evolve(
        packet, properties=forwarded_properties(given, ids, max(0, expiry - seconds), alias), block=None
    )

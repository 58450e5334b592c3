"""What is lost when there is no room for a message: the subscriber that does not read loses it, never a bystander.

A queue is full, or the server as a whole is (``held_bytes``). ``BrokerLimits.when_full`` says what happens then to the
messages of clients, wills included:

``drop-new``     the subscriber does not get the new message
``drop-old``     the subscriber loses its oldest waiting messages instead
``end-session``  the session of the subscriber ends, with all that waits in it
``refuse``       the *publisher* is refused before anybody got a copy (PUBACK or PUBREC 0x97; in 3.1.1, which has no
                 word for it, a close), so that one subscriber can stop everybody: the strict choice

When the server is full, the first three take room from the queue that holds most: its newest messages, its oldest ones,
or its session. What was lost is counted, logged with the name of the session that lost it, and told to its client.

Replies, notifications and other messages of the server's own are never dropped in this way: a receiver with no room for
one loses its connection (0x97).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.packets import Publish, ReasonCode
from statestore_client.server.broker.memory import DELIVERY_BYTES
from statestore_client.server.broker.message import forwarded_properties, held_bytes
from statestore_client.server.broker.state import PendingDisconnect, State

if TYPE_CHECKING:
    from statestore_client.server.broker.memory import SizedQueue
    from statestore_client.server.broker.message import Message
    from statestore_client.server.broker.session import Connection, Session
    from statestore_client.wire.instant import Instant

#: Messages that make room for one other.
_AT_ONCE: Final = 64

#: Messages in full queues that are looked at in one turn, to find expired ones.
_LOOKS: Final = 1024

_SLOW: Final = "messages are not acknowledged fast enough"


@attrs.define(eq=False)
class OverflowPolicy:
    """Decides who gets a message that there may be no room for."""

    _state: State
    _when_full: str = attrs.field(init=False)
    _moment: float = attrs.field(default=0.0, init=False)
    _looks: int = attrs.field(default=0, init=False)  # what is left for this moment

    def __attrs_post_init__(self) -> None:
        self._when_full = self._state.limits.when_full

    @property
    def is_strict(self) -> bool:
        """Whether publishers are asked to wait: call :meth:`has_room` for each subscriber, and refuse."""
        return self._when_full == "refuse"

    # -- is there room ------------------------------------------------------------------------------------------------

    def has_room(self, session: Session, message: Message, now: Instant) -> bool:
        """Whether a session can take a message of QoS 1 or 2, now or in its queue. May make room in the server."""
        budget, waiting = self._state.budget, session.outbound.waiting
        more = DELIVERY_BYTES if message.holders else message.size
        if budget.total + more > budget.limit and not self.admits(more, session.held_bytes, now):
            return False
        return not waiting.items or not self._is_full(session, message, now)

    def has_room_in_queue(self, session: Session, message: Message) -> bool:
        """Whether there is room in its own queue; to be asked of several that could take a message."""
        return not session.outbound.waiting.is_full(message)

    def admits(self, more: int, held: int, now: Instant) -> bool:
        """Whether who holds ``held`` bytes may hold more; when the server is full, at the cost of who holds most."""
        return self._state.budget.admits(more, held) or self._relieve(more, held, now)

    def _is_full(self, session: Session, message: Message, now: Instant) -> bool:
        waiting = session.outbound.waiting
        if not waiting.is_full(message):
            return False
        if now.monotonic != self._moment:
            self._moment, self._looks = now.monotonic, _LOOKS
        looked, expired = waiting.drop_expired(now, self._looks)
        self._looks -= looked
        self._state.counters.dropped_expired += expired
        self._look_at(session)
        return waiting.is_full(message)

    def _look_at(self, session: Session) -> None:
        """Messages were taken out of its queue."""
        if not session.held_bytes:
            self._state.sessions.queue_emptied(session)

    # -- there is none ------------------------------------------------------------------------------------------------

    def accepts(self, session: Session, message: Message, now: Instant, *, is_promised: bool) -> bool:
        """Whether the session gets its copy; what it loses for that, or instead, is counted. ``is_promised``: all
        subscribers were asked, and the publisher was answered.
        """
        if self.has_room(session, message, now):
            return True
        if self._when_full == "refuse" and is_promised:
            return True  # somebody else was quicker, in between; there are no more of these than publishers
        if not message.publisher or self._when_full == "refuse":
            self.lose(session, now)
            return False
        if self._when_full == "drop-old" and self._drop_old(session, message, now):
            return True
        self._note(session, now)
        if self._when_full == "end-session":
            self._end(session, now)
        return False

    def lose(self, session: Session, now: Instant) -> None:
        """A message that nobody can be refused finds no room: its receiver has to come again."""
        self._state.counters.dropped_unowned += 1
        self._state.dropped_messages.note(session, now)
        if session.connection is not None:
            self._state.pending_disconnects.append(PendingDisconnect(session, ReasonCode.QUOTA_EXCEEDED, _SLOW))

    def _note(self, session: Session, now: Instant, count: int = 1) -> None:
        self._state.counters.dropped_full += count
        self._state.dropped_messages.note(session, now, count)

    def _drop_old(self, session: Session, message: Message, now: Instant) -> bool:
        """Make room in the session's own queue."""
        budget, waiting = self._state.budget, session.outbound.waiting
        more = DELIVERY_BYTES if message.holders else message.size
        for _ in range(_AT_ONCE):
            if not self._drop_one(session, waiting, now, newest=False):
                return False
            if not waiting.is_full(message) and budget.admits(more, session.held_bytes):
                return True
        return False

    def _drop_one(self, session: Session, waiting: SizedQueue, now: Instant, *, newest: bool) -> bool:
        """Take one message of a client out of a queue."""
        delivery = waiting.evict(newest=newest)
        if delivery is None:
            return False
        self._look_at(session)
        if delivery.qos:
            self._note(session, now)
        else:
            self._state.counters.dropped_qos0 += 1
        return True

    def _end(self, session: Session, now: Instant) -> None:
        """What waited is lost, too."""
        if any(pending.ends_session and pending.session is session for pending in self._state.pending_disconnects):
            return
        self._state.pending_disconnects.append(
            PendingDisconnect(session, ReasonCode.QUOTA_EXCEEDED, _SLOW, ends_session=True)
        )
        self._state.counters.ended_full += 1
        outbound = session.outbound
        lost = len(outbound.waiting.items) + len(outbound.in_flight)
        if lost:
            self._note(session, now, lost)

    # -- the server is full -------------------------------------------------------------------------------------------

    def _relieve(self, more: int, held: int, now: Instant) -> bool:
        """Make room in the server for somebody who holds ``held`` bytes: whoever holds most, and more, gives it."""
        if self._when_full == "refuse":
            return False
        budget = self._state.budget
        for _ in range(_AT_ONCE):
            waiting = budget.largest_queues.largest()
            session = None if waiting is None else self._state.sessions.get(waiting.owner)
            if waiting is None or session is None or waiting.bytes <= held:
                return False
            if self._when_full == "end-session":
                self._end(session, now)
                return True  # as soon as this packet is done; all packets together exceed the limit by one message
            if not self._drop_one(session, waiting, now, newest=self._when_full == "drop-new"):
                return False
            if budget.total + more <= budget.limit:
                return True
        return False


# -- backpressure ------------------------------------------------------------------------------------------------------
#
# Requests that wait because there may be no room for their answers: those to earlier ones have not been taken yet.
#
# An answer has to reach its client, so there is nothing to drop when its queue is full; see above. A request
# is small and its answer may be large, so it is the request that waits, with all that its client publishes behind it:
# in the order in which it came, and without an acknowledgement. All else goes on: what the client acknowledges makes
# room.
#
# Invariant: a request waits only while its client has something to acknowledge, or its socket something to take. So a
# client that reads and acknowledges is served in the end, and whoever does neither stops nobody but itself. What waits
# is bounded as messages for the client are (``queued_bytes``, ``held_bytes``): a client with more is disconnected
# (0x97).


#: What one request can cause for its own client: an answer, and a notification.
_MESSAGES: Final = 2

#: What a message counts for beside the bytes of its packet: the object, and its properties.
_MESSAGE_BYTES: Final = 2048


@attrs.define(eq=False)
class Backpressure:
    """Decides which requests wait, and keeps them with their connection."""

    _state: State
    _overflow: OverflowPolicy
    #: Bytes that one request can cause to be held for its client.
    most: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.most = _MESSAGES * (self._state.limits.packet_bytes + _MESSAGE_BYTES)

    def has_to_wait(self, session: Session) -> bool:
        """Whether there may be no room for what one more request causes."""
        outbound, budget, most = session.outbound, self._state.budget, self.most
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
    return held_bytes(packet) - len(packet.block or b"")


def _aged(packet: Publish, seconds: int) -> Publish:
    given = packet.properties
    expiry = given.message_expiry
    if not seconds or expiry is None:
        return packet
    ids, alias = given.subscription_ids, given.topic_alias
    return attrs.evolve(
        packet, properties=forwarded_properties(given, ids, max(0, expiry - seconds), alias), block=None
    )

"""The invariants of a broker, counted again from what it remembers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from statestore_client.mqtt.packets import Publish
from statestore_client.server.broker.memory import DELIVERY_BYTES, UNRELEASED_BYTES
from statestore_client.server.broker.message import LARGE_BYTES, message_of, will_bytes
from statestore_client.server.broker.overflow import waiting_bytes
from statestore_client.server.broker.router import MergedCopies, copies
from statestore_client.server.broker.session import name_bytes
from statestore_client.server.broker.subscriptions import subscription_cost
from statestore_client.wire.instant import Instant

if TYPE_CHECKING:
    from statestore_client.server.broker import Broker
    from statestore_client.server.broker.message import Message
    from statestore_client.server.broker.outbound import MessageQueue, Outbound
    from statestore_client.server.broker.session import Connection, Session
    from statestore_client.server.broker.state import State

_ANY_TIME: Final = Instant(0.0, 0)


def audit(broker: Broker) -> tuple[str, ...]:
    """One text for each invariant that does not hold between two calls of the broker."""
    return tuple(_violations(broker._state))


def _violations(state: State) -> Iterator[str]:
    sessions = state.sessions.all()
    for session in sessions:
        yield from (f"session {session.client_id!r}: {problem}" for problem in _of_session(state, session))
    connected = [session.connection for session in sessions if session.connection is not None]
    yield from _equal("clients", state.clients, len(connected))
    yield from _at_most("sessions", len(sessions), state.sessions.shares.most)
    yield from _of_subscriptions(state, sessions)
    yield from state.sessions.violations()
    yield from state.retained.violations()
    yield from state.connection_quotas.violations(connected)
    yield from state.budget.violations()
    yield from _equal("bytes held for clients", state.budget.total, _held_bytes(state, sessions))
    if state.pending_disconnects:
        yield "somebody is still to be disconnected"
    if state.throttle.held and state.timers.next_deadline() is None:
        yield "a CONNECT is held for ever"


def _equal(what: str, noted: int, counted: int) -> Iterator[str]:
    if noted != counted:
        yield f"{what}: {noted} noted, {counted} counted"


def _at_most(what: str, number: int, limit: int) -> Iterator[str]:
    if number > limit:
        yield f"{what}: {number}, {limit} are allowed"


# -- sessions ---------------------------------------------------------------------------------------------------------


def _of_session(state: State, session: Session) -> Iterator[str]:
    connection, limits = session.connection, state.limits
    if session.is_over:
        yield "it has ended and is still known"
    if connection is not None:
        if connection.session is not session:
            yield "its connection has another session"
        if connection.ending is not None:
            yield "its connection has ended"
        if connection not in state.connections:
            yield "its connection is gone"
        if session.expiry_timer is not None or session.left_at is not None:
            yield "it expires with its client here"
    elif session.left_at is None and session not in state.awaited.sessions:
        yield "it never expires although its client is away"
    if session.permissions is not None:
        forbidden = [name for name in session.subscriptions if not session.permissions.may_subscribe(name)]
        yield from (f"the subscription to {name!r} is not permitted" for name in forbidden)
    yield from _at_most("subscriptions", len(session.subscriptions), limits.subscriptions_per_session)
    yield from _at_most("QoS 2 messages of this connection", session.inbound.used, session.inbound.window)
    yield from _of_outbound(session.outbound)
    for queue in (session.waiting0, session.outbound.waiting):
        yield from _of_queue(queue, session)


def _of_outbound(outbound: Outbound) -> Iterator[str]:
    in_flight = outbound.in_flight
    yield from _at_most("messages in flight on this connection", outbound.used, outbound.window)
    counted = sum(delivery.is_counted for delivery in in_flight.values())
    yield from _equal("messages in flight on this connection", outbound.used, counted)
    yield from _equal("bytes in flight", outbound.bytes, sum(d.message.size for d in in_flight.values()))
    if 0 in in_flight or any(packet_id != delivery.packet_id for packet_id, delivery in in_flight.items()):
        yield "a packet identifier is not that of its message"


def _of_queue(queue: MessageQueue, session: Session) -> Iterator[str]:
    if queue.owner != session.client_id:
        yield "a queue belongs to another session"
    yield from _at_most("queued messages", len(queue.items), queue.max_messages)
    yield from _equal("queued bytes", queue.bytes, sum(delivery.message.size for delivery in queue.items))
    if queue.bytes >= queue.promote_at:
        yield f"a queue of {queue.bytes} bytes counts among smaller ones"


# -- subscriptions ----------------------------------------------------------------------------------------------------


def _of_subscriptions(state: State, sessions: Iterable[Session]) -> Iterator[str]:
    subscriptions = state.subscriptions
    costs = {session: sum(map(subscription_cost, session.subscriptions)) for session in sessions}
    for session, cost in costs.items():
        yield from _equal(f"subscription bytes of {session.client_id!r}", session.subscription_bytes, cost)
        for topic_filter, grant in session.subscriptions.items():
            if subscriptions.find(session, topic_filter) is not grant:
                yield f"{session.client_id!r} is not found at {topic_filter!r}"
    yield from _equal("subscription bytes", subscriptions.bytes, sum(costs.values()))
    yield from _equal("subscriptions", subscriptions.count, sum(len(session.subscriptions) for session in costs))
    for topic, targets in subscriptions.answer_plans.items():
        matches, answer = subscriptions.match(topic), message_of(Publish(topic, qos=1), "", _ANY_TIME)
        merged = MergedCopies()
        for subscribers in matches:
            for block in subscribers.direct.blocks:
                merged.add(copies(block, answer))
        if [*merged.targets()] != [*targets] or any(subscribers.shared for subscribers in matches):
            yield f"answers on {topic!r} go to those who were subscribed"


# -- memory -----------------------------------------------------------------------------------------------------------


def _held_bytes(state: State, sessions: Iterable[Session]) -> int:
    holders: Counter[Message] = Counter()
    total = state.awaited.held_bytes
    for session in sessions:
        held = (*session.waiting0.items, *session.outbound.waiting.items, *session.outbound.in_flight.values())
        holders.update(delivery.message for delivery in held)
        total += name_bytes(session.client_id) + will_bytes(session.will)
        total += UNRELEASED_BYTES * len(session.inbound.unreleased)
    payloads: dict[int, int] = {}
    for message, count in holders.items():
        total += message.size + (count - 1) * DELIVERY_BYTES
        if len(message.payload) >= LARGE_BYTES:
            total -= len(message.payload)
            payloads[id(message.payload)] = len(message.payload)
    for connection in state.connections:
        total += connection.alias_bytes + sum(waiting_bytes(packet) for packet, _ in connection.held or ())
        payloads |= {id(piece.obj): len(bytes(piece.obj)) for piece in _shared_pieces(connection)}
    return total + sum(payloads.values())


def _shared_pieces(connection: Connection) -> Iterator[memoryview]:
    return (piece for piece in connection.pieces() if isinstance(piece, memoryview))

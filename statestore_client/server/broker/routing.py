"""From a message to its subscribers: who gets it and how.

A subscriber with QoS 1 or 2 whose queue is full is the business of :mod:`.room`. QoS 0 is dropped and counted.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from statestore_client.server.broker.delivery import Delivery
from statestore_client.server.broker.ledger import DELIVERY_BYTES
from statestore_client.server.broker.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore_client.server.broker.connection import Connection
    from statestore_client.server.broker.messages import Message
    from statestore_client.server.broker.room import Room
    from statestore_client.server.broker.state import State
    from statestore_client.server.broker.subscriptions import Grant, Subscribers
    from statestore_client.wire.instant import Instant

__all__ = ["Router", "Spreading", "Target"]

#: Session, QoS, RETAIN flag and subscription identifiers of one copy.
Target: TypeAlias = tuple[Session, int, bool, tuple[int, ...]]

#: Copies, or looks at retained messages, in one turn: about a millisecond.
_AT_ONCE: Final = 64

#: Less of large messages: each copy is encoded.
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024


@attrs.frozen
class Spreading:
    """How a message is spread. ``is_owned``: its publisher asked :meth:`Router.admits` and was answered. ``cause`` is
    not served before the message has gone to all.
    """

    is_owned: bool
    cause: Connection | None = None


@attrs.define(eq=False)
class Router:
    """Plans copies of a message and puts them on their way."""

    _state: State
    room: Room

    # -- who gets it --------------------------------------------------------------------------------------------------

    def plan(self, message: Message) -> list[Target]:
        """One copy for each subscribed client, and one for each share."""
        matches = self._state.subscriptions.match(message.topic)
        if not matches:
            return []
        if len(matches) == 1 and not matches[0].shared:
            return _copies(matches[0], message)
        return _merged(matches, message)

    def admits(self, targets: Sequence[Target], message: Message, now: Instant) -> bool:
        """Whether every subscriber can take its copy, now or in its queue; where publishers are never refused, yes."""
        return not self.room.is_strict or all(not qos or self.room.has(s, message, now) for s, qos, _, _ in targets)

    # -- on its way ---------------------------------------------------------------------------------------------------

    def deliver(self, targets: Sequence[Target], message: Message, now: Instant, *, is_promised: bool) -> None:
        """Start or queue every copy. ``is_promised``: the caller asked :meth:`admits`, and its publisher was answered;
        otherwise nobody can be refused.
        """
        ledger = self._state.ledger
        for session, qos, retain, ids in targets:
            if not qos:
                self._deliver0(session, message, retain, ids, now)
            elif (
                ledger.total + message.size <= ledger.limit and not session.outbound.waiting.items
            ) or self.room.takes(session, message, now, is_promised=is_promised):
                self._deliver(session, Delivery(message, qos, retain, ids), now)

    def spread(self, targets: Sequence[Target], message: Message, now: Instant, spreading: Spreading) -> None:
        """Deliver to any number of subscribers: to a few at once, to thousands in slices. Messages of one topic keep
        their order.
        """
        chores = self._state.chores
        deliver = partial(self.deliver, is_promised=spreading.is_owned)
        if len(targets) <= _AT_ONCE and message.topic not in chores.queues:
            deliver(targets, message, now)
            return
        at_once = max(1, min(_AT_ONCE, _BYTES_AT_ONCE // message.size))
        if self._state.keeping is not None:
            queued, targets = self._queue_kept(targets, message, now, spreading)
            self._pump_in_slices(queued, message.topic, spreading.cause)
        left = iter(targets)

        def go_on(now: Instant) -> bool:
            some = list(islice(left, at_once))
            deliver([target for target in some if not target[0].is_over], message, now)
            return len(some) == at_once

        chores.add(message.topic, go_on, spreading.cause)

    def _pump_in_slices(self, sessions: Sequence[Session], topic: str, cause: Connection | None) -> None:
        left = iter(sessions)

        def go_on(now: Instant) -> bool:
            some = list(islice(left, _AT_ONCE))
            for session in some:
                self.pump(session, now)
            return len(some) == _AT_ONCE

        self._state.chores.add(topic, go_on, cause)

    def _queue_kept(
        self, targets: Sequence[Target], message: Message, now: Instant, spreading: Spreading
    ) -> tuple[list[Session], list[Target]]:
        """Queue the copies that must survive, all at once: the publisher is answered before the slices are through.

        Returns the sessions whose queues are to be looked at, in slices, and the other targets.
        """
        queued: list[Session] = []
        others: list[Target] = []
        for target in targets:
            session, qos, retain, ids = target
            if not qos or session.keeper is None:
                others.append(target)
            elif self.room.takes(session, message, now, is_promised=spreading.is_owned):
                session.outbound.waiting.push(Delivery(message, qos, retain, ids))
                queued.append(session)
        return queued, others

    def _deliver(self, session: Session, delivery: Delivery, now: Instant) -> None:
        outbound = session.outbound
        connection = session.connection
        if connection is None or session.walks or not outbound.is_open or connection.is_full:
            outbound.waiting.push(delivery)
            return
        outbound.start(delivery)
        self._put(session, connection, delivery, now)

    def _put(self, session: Session, connection: Connection, delivery: Delivery, now: Instant) -> None:
        """Send a delivery that is in flight or of QoS 0. One that cannot be sent counts as done."""
        try:
            was_sent = connection.publish(delivery, now)
        except Exception as error:  # noqa: BLE001 - a message of the application that MQTT has no form for
            self._state.note_fault(error)
            was_sent = False
        if was_sent:
            self._state.counters.sent_messages += 1
        else:
            self._state.counters.dropped_too_large += 1
            if delivery.qos:
                session.outbound.forget(delivery)

    def _deliver0(self, session: Session, message: Message, retain: bool, ids: tuple[int, ...], now: Instant) -> None:
        connection = session.connection
        if connection is None:
            return
        waiting = session.waiting0
        delivery = Delivery(message, 0, retain, ids)
        # Behind the retained messages, unless those wait for acknowledgements.
        has_to_wait = waiting.items or connection.is_full or (session.walks and session.outbound.has_window)
        if not has_to_wait and (not message.is_large or self._admits0(session, message, now)):
            self._put(session, connection, delivery, now)
        elif waiting.is_full(message) or not self._admits0(session, message, now):
            self._state.counters.dropped_qos0 += 1
        else:
            waiting.push(delivery)

    def _admits0(self, session: Session, message: Message, now: Instant) -> bool:
        return self.room.admits(DELIVERY_BYTES if message.holders else message.size, session.held_bytes, now)

    # -- what waited --------------------------------------------------------------------------------------------------

    def pump(self, session: Session, now: Instant) -> None:
        """Send what waits, as far as the client's window and its socket allow."""
        connection = session.connection
        if connection is None:
            return
        outbound = session.outbound
        while outbound.resend and not connection.is_full and (delivery := outbound.next_ready()) is not None:
            self._put_again(session, connection, delivery, now)
        if not session.walks or not self._walks_on(session, now):
            self._send_waiting(session, now)

    def _send_waiting(self, session: Session, now: Instant) -> None:
        connection, outbound = session.connection, session.outbound
        if connection is None:
            return
        while session.waiting0.items and not connection.is_full:
            self._start(session, connection, session.waiting0.pop(), now)
        while not connection.is_full and not session.walks and (delivery := outbound.next_ready()) is not None:
            self._start(session, connection, delivery, now)

    # -- retained messages --------------------------------------------------------------------------------------------

    def _walks_on(self, session: Session, now: Instant) -> bool:
        """Give out retained messages. New messages wait behind them; True if those of QoS 0 have to, as well: the rest
        follows in slices. Where it has to wait for acknowledgements or for the socket, QoS 0 does not.
        """
        chores = self._state.chores
        if session in chores.queues:
            return True
        if not self._walk(session, now):
            return False
        chores.add(session, partial(self._walk_slice, session))
        return True

    def _walk_slice(self, session: Session, now: Instant) -> bool:
        has_more = self._walk(session, now)
        if not has_more:
            self._send_waiting(session, now)
        return has_more

    def _walk(self, session: Session, now: Instant) -> bool:
        """Give out some retained messages, as far as the client takes them; True if it takes more. Otherwise
        :meth:`pump` goes on when it does.
        """
        for _ in range(_AT_ONCE):
            connection = session.connection
            if not session.walks or connection is None or connection.is_full or not session.outbound.has_window:
                return False
            if self._state.expulsions:
                return True  # perhaps its own: look again when they are carried out
            walk = next(iter(session.walks.values()))
            message = self._state.retained.advance(walk, now)
            if walk.at is None:
                del session.walks[walk.topic_filter]
            if session.keeper is not None:
                session.keeper.walked(walk)
            if message is None or (walk.no_local and message.publisher == session.client_id):
                continue
            self._give(session, connection, Delivery(message, min(message.qos, walk.qos), True, walk.ids), now)
        return bool(session.walks)

    def _give(self, session: Session, connection: Connection, delivery: Delivery, now: Instant) -> None:
        """Send a retained message to a client whose window is open, before what waits."""
        message = delivery.message
        if self._admits0(session, message, now):
            if delivery.qos:
                session.outbound.start(delivery)
            self._put(session, connection, delivery, now)
        elif delivery.qos:
            self.room.lose(session, now)
        else:
            self._state.counters.dropped_qos0 += 1

    def _start(self, session: Session, connection: Connection, delivery: Delivery, now: Instant) -> None:
        if delivery.message.is_expired(now):
            self._state.counters.dropped_expired += 1
            session.outbound.waiting.dropped(delivery)
            if delivery.qos:
                # Its packet identifier goes with it, as if it had got one in the queue: clients' own tests count so.
                session.outbound.next_id()
            return
        if delivery.qos:
            session.outbound.start(delivery)
        self._put(session, connection, delivery, now)

    def _put_again(self, session: Session, connection: Connection, delivery: Delivery, now: Instant) -> None:
        """A new connection may take smaller packets than the last one did."""
        if connection.publish_again(delivery, now):
            self._state.counters.sent_messages += 1
        else:
            self._state.counters.dropped_too_large += 1
            session.outbound.forget(delivery)


def _copies(subscribers: Subscribers, message: Message) -> list[Target]:
    """One filter matched: the usual case, and the quick one."""
    qos, retain, publisher = message.qos, message.retain, message.publisher
    targets: list[Target] = []
    for session, grant in subscribers.direct.items():
        if grant.no_local and session.client_id == publisher:
            continue
        granted = grant.qos
        targets.append((session, qos if qos < granted else granted, retain and grant.retain_as_published, grant.ids))
    return targets


def _merged(matches: Sequence[Subscribers], message: Message) -> list[Target]:
    """Overlapping filters: one copy per client at the highest QoS with all identifiers (MQTT 5.0, 3.3.4)."""
    merged: dict[Session, Target] = {}
    all_ids: dict[Session, list[int]] = {}  # adding tuples would take quadratic time
    for subscribers in matches:
        for target in _copies(subscribers, message):
            session = target[0]
            other = merged.get(session)
            if other is None:
                merged[session] = target
                continue
            all_ids.setdefault(session, [*other[3]]).extend(target[3])
            merged[session] = (session, max(other[1], target[1]), other[2] or target[2], ())
    targets = [
        (session, qos, retain, tuple(all_ids[session]) if session in all_ids else ids)
        for session, qos, retain, ids in merged.values()
    ]
    for subscribers in matches:
        for group in subscribers.shared.values():
            session = group.pick()
            targets.append(_copy(session, group.grants[session], message))
    return targets


def _copy(session: Session, grant: Grant, message: Message) -> Target:
    return (session, min(message.qos, grant.qos), message.retain and grant.retain_as_published, grant.ids)

"""From a message to its subscribers: who gets it and how.

A subscriber with QoS 1 or 2 whose queue is full is the business of ``quotas.overflow``. QoS 0 is dropped and counted.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.server.broker.quotas.memory_budget import DELIVERY_BYTES
from statestore_client.server.broker.routing.copies import MergedCopies, copies, copy
from statestore_client.server.broker.routing.fan_out import FanOut, are_many
from statestore_client.server.broker.routing.shared import caught_up
from statestore_client.server.broker.session.inflight import MessageDelivery
from statestore_client.server.broker.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore_client.server.broker.connection import Connection
    from statestore_client.server.broker.message import Message
    from statestore_client.server.broker.quotas.overflow import OverflowPolicy
    from statestore_client.server.broker.routing.copies import Target
    from statestore_client.server.broker.routing.fan_out import Acceptance
    from statestore_client.server.broker.routing.subscriptions import Subscribers
    from statestore_client.server.broker.state import State
    from statestore_client.wire.instant import Instant

__all__ = ["Router"]

#: Looks at retained messages in one turn: about a millisecond.
_AT_ONCE: Final = 64


@attrs.define(eq=False)
class Router:
    """Plans copies of a message and puts them on their way."""

    _state: State
    overflow: OverflowPolicy

    # -- who gets it --------------------------------------------------------------------------------------------------

    def has_to_wait(self, matches: Sequence[Subscribers], topic: str) -> bool:
        """Whether a message is one for :meth:`fan_out`: for many, or behind one for many."""
        return topic in self._state.background.queues or are_many(matches)

    def plan(self, message: Message, matches: Sequence[Subscribers]) -> list[Target]:
        """One copy for each subscribed client, and one for each share."""
        if not matches:
            return []
        if len(matches) == 1 and not matches[0].shared.blocks:
            return [target for block in matches[0].direct.blocks for target in copies(block, message)]
        merging = MergedCopies()
        for subscribers in matches:
            for block in subscribers.direct.blocks:
                merging.add(copies(block, message))
        targets = [*merging.targets()]
        has_room = partial(self.overflow.has_room_in_queue, message=message)
        for subscribers in matches:
            for shares in subscribers.shared.blocks:
                for _, group in shares:
                    session = group.pick(has_room)
                    if session is not None:
                        targets.append(copy(session, group.grants[session], message))
        return targets

    def admits(self, targets: Sequence[Target], message: Message, now: Instant) -> bool:
        """Whether every subscriber can take its copy, now or in its queue; where publishers are never refused, yes."""
        if not self.overflow.is_strict:
            return True
        for session, qos, _, _ in targets:
            if qos and not self.overflow.has_room(session, message, now):
                self._state.dropped_messages.note_refusal(session, now)
                return False
        return True

    # -- on its way ---------------------------------------------------------------------------------------------------

    def deliver(self, targets: Sequence[Target], message: Message, now: Instant, *, is_promised: bool) -> None:
        """Start or queue every copy. ``is_promised``: the caller asked :meth:`admits`, and its publisher was answered;
        otherwise nobody can be refused.
        """
        budget = self._state.budget
        for session, qos, retain, ids in targets:
            if not qos:
                self._deliver0(session, message, retain, ids, now)
            elif (
                budget.total + message.size <= budget.limit and not session.outbound.waiting.items
            ) or self.overflow.accepts(session, message, now, is_promised=is_promised):
                self._deliver(session, MessageDelivery(message, qos, retain, ids), now)

    def fan_out(
        self,
        matches: Sequence[Subscribers],
        message: Message,
        acceptance: Acceptance,
        cause: Connection | None,
    ) -> None:
        """Deliver to any number of subscribers, in slices; messages of one topic keep their order. ``cause`` is not
        served before that is done.
        """
        fan_out = FanOut(self, self._state.persistence, message, matches, acceptance)
        self._state.background.add(message.topic, fan_out, cause)

    def retain(self, message: Message, now: Instant) -> bool:
        """Keep a message for later subscribers; False if there is no room for it."""
        retained = self._state.retained
        if not retained.has_room(message, now):
            self._state.counters.not_retained += 1
            return False
        retained.put(message)
        return True

    def _deliver(self, session: Session, delivery: MessageDelivery, now: Instant) -> None:
        outbound = session.outbound
        connection = session.connection
        if connection is None or session.walks or not outbound.is_open or connection.is_full:
            if connection is None and not outbound.waiting.items:
                self._state.sessions.queue_filled(session)
            outbound.waiting.push(delivery)
            return
        outbound.start(delivery)
        self._put(session, connection, delivery, now)

    def _put(self, session: Session, connection: Connection, delivery: MessageDelivery, now: Instant) -> None:
        """Send a delivery that is in flight or of QoS 0. One that cannot be sent counts as done."""
        try:
            was_sent = connection.publish(delivery, now)
        except Exception as error:  # noqa: BLE001 - a message of the application that MQTT has no form for
            self._state.reports.note_fault(error)
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
        delivery = MessageDelivery(message, 0, retain, ids)
        # Behind the retained messages, unless those wait for acknowledgements.
        has_to_wait = waiting.items or connection.is_full or (session.walks and session.outbound.has_window)
        if not has_to_wait and (not message.is_large or self._admits0(session, message, now)):
            self._put(session, connection, delivery, now)
        elif waiting.is_full(message) or not self._admits0(session, message, now):
            self._state.counters.dropped_qos0 += 1
        else:
            waiting.push(delivery)

    def _admits0(self, session: Session, message: Message, now: Instant) -> bool:
        return self.overflow.admits(DELIVERY_BYTES if message.holders else message.size, session.held_bytes, now)

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
        if session.waits_in and session.is_flowing:
            caught_up(session)

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
        background = self._state.background
        if session in background.queues:
            return True
        if not self._walk(session, now):
            return False
        background.add(session, partial(self._walk_slice, session))
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
            if session.persister is not None:
                session.persister.walked(walk)
            if message is None or (walk.no_local and message.publisher == session.client_id):
                continue
            self._give(session, connection, MessageDelivery(message, min(message.qos, walk.qos), True, walk.ids), now)
        return bool(session.walks)

    def _give(self, session: Session, connection: Connection, delivery: MessageDelivery, now: Instant) -> None:
        """Send a retained message to a client whose window is open, before what waits."""
        message = delivery.message
        if self._admits0(session, message, now):
            if delivery.qos:
                session.outbound.start(delivery)
            self._put(session, connection, delivery, now)
        elif delivery.qos:
            self.overflow.lose(session, now)
        else:
            self._state.counters.dropped_qos0 += 1

    def _start(self, session: Session, connection: Connection, delivery: MessageDelivery, now: Instant) -> None:
        is_expired = delivery.message.is_expired(now)
        if is_expired or not session.may_get(delivery.message.topic):
            if is_expired:
                self._state.counters.dropped_expired += 1
            else:
                self._state.counters.dropped_forbidden += 1
            session.outbound.waiting.dropped(delivery)
            if delivery.qos:
                # Its packet identifier goes with it, as if it had got one in the queue: clients' own tests count so.
                session.outbound.next_id()
            return
        if delivery.qos:
            session.outbound.start(delivery)
        self._put(session, connection, delivery, now)

    def _put_again(self, session: Session, connection: Connection, delivery: MessageDelivery, now: Instant) -> None:
        """A new connection may take smaller packets than the last one did, and have lost rights."""
        if not session.may_get(delivery.message.topic):
            self._state.counters.dropped_forbidden += 1
            session.outbound.forget(delivery)
        elif connection.publish_again(delivery, now):
            self._state.counters.sent_messages += 1
        else:
            self._state.counters.dropped_too_large += 1
            session.outbound.forget(delivery)

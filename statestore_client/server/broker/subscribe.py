"""SUBSCRIBE and UNSUBSCRIBE (MQTT 5.0, 3.8 to 3.11). SUBACK goes out before the retained messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.packets import (
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    topic_filter_problem,
)
from statestore_client.server.broker.admission import Refusal
from statestore_client.server.broker.reports import DENIALS
from statestore_client.server.broker.retained import RetainedCursor
from statestore_client.server.broker.state import PendingDisconnect
from statestore_client.server.broker.subscriptions import subscription_cost
from statestore_client.server.broker.topic_tree import share_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore_client.server.broker.router import Router
    from statestore_client.server.broker.session import Connection, Session
    from statestore_client.server.broker.state import State
    from statestore_client.server.broker.sys_topics import SysTopics
    from statestore_client.wire.instant import Instant

#: A topic or filter that only somebody sends who wants to do harm: as good as malformed.
TOO_MANY_LEVELS: Final = "the topic has too many levels"

_REFUSED: Final = 0x80
_SEND_RETAINED_ALWAYS: Final = 0
_SEND_RETAINED_TO_NEW: Final = 1


@attrs.define(eq=False)
class SubscribeHandler:
    """Changes what a session is subscribed to."""

    _state: State
    _router: Router
    _sys_topics: SysTopics

    def subscribe(self, connection: Connection, session: Session, packet: Subscribe, now: Instant) -> None:
        refusal = self._state.capabilities.refuse_subscribe(packet, connection.version)
        levels = self._state.limits.topic_levels
        if any(asked.topic_filter.count("/") >= levels for asked in packet.subscriptions):
            refusal = Refusal(ReasonCode.MALFORMED_PACKET, TOO_MANY_LEVELS)
        if refusal is not None:
            self._state.pending_disconnects.append(PendingDisconnect(session, refusal.reason_code, refusal.reason))
            self._notify(session, packet, [refusal.reason_code] * len(packet.subscriptions))
            return
        identifier = packet.properties.subscription_id
        ids = () if identifier is None else (identifier,)
        codes: list[int] = []
        for asked in packet.subscriptions:
            code = self._refusal(session, asked)
            if code in DENIALS:
                self._state.reports.note_denial(session, code, "subscribe", asked.topic_filter)
            if code < _REFUSED:
                self._sys_topics.subscribed(asked.topic_filter, now)
                subscription = asked if code == asked.qos else attrs.evolve(asked, qos=code)
                is_new = self._state.subscriptions.add(session, subscription, ids)
                if _wants_retained(subscription, is_new=is_new):
                    self._begin_retained(session, subscription, ids)
            codes.append(code)
        connection.send(Suback(packet.packet_id, tuple(codes)))
        self._router.send_pending(session, now)
        self._notify(session, packet, codes)

    def _notify(self, session: Session, packet: Subscribe, codes: Sequence[int]) -> None:
        if self._state.events is not None:
            for asked, code in zip(packet.subscriptions, codes, strict=True):
                self._state.events.subscribed(session.client_id, asked.topic_filter, code if code < _REFUSED else None)

    def _refusal(self, session: Session, subscription: Subscription) -> int:
        """The reason code of SUBACK: the granted QoS, or why not."""
        limits = self._state.limits
        topic_filter = subscription.topic_filter
        if topic_filter_problem(topic_filter) is not None:
            # Only an incomplete $share/... of a 3.1.1 client, where the codec takes it for an ordinary filter. Shares
            # work in 3.1.1 as well, as other brokers have it, so it cannot be one.
            return ReasonCode.TOPIC_FILTER_INVALID
        refused = self._state.capabilities.refuse_filter(subscription)
        if refused is not None:
            return refused
        permissions = session.permissions
        if permissions is not None and not permissions.may_subscribe(topic_filter):
            return ReasonCode.NOT_AUTHORIZED
        if topic_filter not in session.subscriptions and not self._has_room(session, topic_filter):
            return ReasonCode.QUOTA_EXCEEDED
        return min(subscription.qos, limits.maximum_qos)

    def _has_room(self, session: Session, topic_filter: str) -> bool:
        limits, cost = self._state.limits, subscription_cost(topic_filter)
        own, all_bytes = session.subscription_bytes + cost, self._state.subscriptions.bytes + cost
        return (
            len(session.subscriptions) < limits.subscriptions_per_session
            and own <= limits.subscription_bytes_per_session
            and (all_bytes <= limits.subscription_bytes or own <= limits.reserved_bytes)
        )

    def _begin_retained(self, session: Session, subscription: Subscription, ids: tuple[int, ...]) -> None:
        """The retained messages follow when the session has time for them. A repeated filter begins anew."""
        name = subscription.topic_filter
        session.cursors.pop(name, None)
        session.cursors[name] = cursor = RetainedCursor(name, subscription.qos, no_local=subscription.no_local, ids=ids)
        if session.persister is not None:
            session.persister.cursor_moved(cursor)

    def unsubscribe(self, connection: Connection, session: Session, packet: Unsubscribe, now: Instant) -> None:
        """What is in flight or queued is still delivered (MQTT 5.0, 3.10.4)."""
        del now
        codes: list[int] = []
        for topic_filter in packet.topic_filters:
            session.cursors.pop(topic_filter, None)
            existed = self._state.subscriptions.remove(session, topic_filter)
            codes.append(ReasonCode.SUCCESS if existed else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        connection.send(Unsuback(packet.packet_id, tuple(codes)))
        if self._state.events is not None:
            for topic_filter in packet.topic_filters:
                self._state.events.unsubscribed(session.client_id, topic_filter)


def _wants_retained(subscription: Subscription, *, is_new: bool) -> bool:
    """MQTT 5.0, 3.8.3.1. A share gets no retained messages (4.8.2)."""
    if share_of(subscription.topic_filter)[0]:
        return False
    handling = subscription.retain_handling
    return handling == _SEND_RETAINED_ALWAYS or (handling == _SEND_RETAINED_TO_NEW and is_new)

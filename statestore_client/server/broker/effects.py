"""What the application wants done: its messages, notifications and disconnects, in order, some at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.packets import Disconnect, Publish, ReasonCode, encode
from statestore_client.server.broker.application import Application, Deliver, Deny, Drop, Effect, Kick, Route, Series
from statestore_client.server.broker.message import message_of
from statestore_client.server.broker.router import Acceptance
from statestore_client.server.broker.state import PendingDisconnect, State

if TYPE_CHECKING:
    from statestore_client.server.broker.message import Message
    from statestore_client.server.broker.router import Router
    from statestore_client.server.broker.session import Connection
    from statestore_client.wire.instant import Instant

__all__ = ["EffectRunner", "is_reserved"]

#: What servers say of themselves (MQTT 5.0, 4.7.2), and what is a filter, not a topic.
_RESERVED: Final = ("$SYS/", "$share/")

#: Where a bridge of another broker tells whether it is connected: the one topic below $SYS that is its clients'.
_BRIDGE_STATE: Final = re.compile(r"\$SYS/broker/connection/[^/]+/state")

#: Effects of a series in one turn.
_AT_ONCE: Final = 64


@attrs.define(eq=False)
class EffectRunner:
    """Carries out effects, and sends messages that nobody can be refused."""

    _state: State
    _router: Router

    def perform(self, effects: Iterable[Effect], now: Instant, cause: Connection | None = None) -> None:
        """Carry out what the application wants, in order. A fault in one effect does not stop the others. ``cause`` is
        not served before all of it is done.
        """
        for effect in effects:
            try:
                if isinstance(effect, Route):
                    self.send(effect.message, "", now, cause, is_fleeting=effect.is_fleeting)
                elif isinstance(effect, Deliver):
                    self._push(effect, now)
                elif isinstance(effect, Series):
                    self._begin(effect, now, cause)
                elif isinstance(effect, Deny):
                    self._deny(effect.client_id, effect.reason_code, effect.action, effect.what)
                elif isinstance(effect, Drop):
                    self._deny(effect.client_id, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "publish", effect.why)
                else:
                    self._kick(effect)
            except Exception as error:  # noqa: BLE001 - e.g. a topic that cannot be encoded
                self._state.reports.note_fault(error)

    def _begin(self, series: Series, now: Instant, cause: Connection | None) -> None:
        effects = iter(series.effects)

        def go_on(now: Instant) -> bool:
            try:
                some = list(islice(effects, _AT_ONCE))
            except Exception as error:  # noqa: BLE001 - a fault of the application must not take the broker down
                self._state.reports.note_fault(error)
                return False
            self.perform(some, now)
            return len(some) == _AT_ONCE

        background = self._state.background
        # Mostly there are a few effects, and nothing before them: then nothing has to wait.
        if series.subject in background.queues or go_on(now):
            background.add(series.subject, go_on, cause)

    def send(
        self,
        packet: Publish,
        publisher: str,
        now: Instant,
        cause: Connection | None = None,
        *,
        is_fleeting: bool = False,
    ) -> None:
        """To subscribers, and to the retained messages: a message whose publisher cannot be refused."""
        state, router, topic = self._state, self._router, packet.topic
        message = message_of(packet, publisher, now, is_fleeting=is_fleeting)
        is_answer = packet.qos == 1 and not (packet.retain or publisher)
        targets = state.subscriptions.answer_plans.get(topic) if is_answer else None
        if targets is not None and topic not in state.background.queues:
            router.deliver(targets, message, now, is_promised=False)
            return
        matches = state.subscriptions.match(topic)
        if router.has_to_wait(matches, topic):
            router.fan_out(matches, message, Acceptance(partial(self._kept, message)), cause)
            return
        if message.retain:
            router.retain(message, now)
        targets = router.plan(message, matches)
        if is_answer and not any(subscribers.shared for subscribers in matches):
            state.subscriptions.remember_plan(topic, targets)
        router.deliver(targets, message, now, is_promised=False)

    def _kept(self, message: Message, now: Instant) -> bool:
        if message.retain:
            self._router.retain(message, now)
        return True

    def _push(self, effect: Deliver, now: Instant) -> None:
        """To the owner's connection only, with the identifiers of its own subscriptions that match. Nobody else is
        looked at: a share's turn is for messages that its members get.
        """
        session = self._state.sessions.get(effect.client_id)
        if session is None or session.connection is None:
            return
        message = message_of(effect.message, "", now, is_fleeting=effect.is_fleeting)
        ids = self._state.subscriptions.ids_of(session, message.topic) if session.has_ids else ()
        self._router.deliver(((session, message.qos, False, ids),), message, now, is_promised=False)

    def _deny(self, client_id: str, reason_code: int, action: str, what: str) -> None:
        session = self._state.sessions.get(client_id)
        if session is not None:
            self._state.reports.note_denial(session, reason_code, action, what)

    def _kick(self, effect: Kick) -> None:
        encode(Disconnect(effect.reason_code))  # raises now for a code that DISCONNECT has not, not in the middle of it
        session = self._state.sessions.get(effect.client_id)
        if session is not None and session.connection is not None:
            self._state.pending_disconnects.append(PendingDisconnect(session, effect.reason_code, effect.reason))

    # -- from clients --------------------------------------------------------------------------------------------------

    def handled(
        self, application: Application, client_id: str, packet: Publish, now: Instant
    ) -> Sequence[Effect] | None:
        """What the application wants done after a will; None if it failed."""
        try:
            return application.handle(client_id, packet, now)
        except Exception as error:  # noqa: BLE001 - a fault of the application must not take the broker down
            self._state.reports.note_fault(error)
            return None

    def tick(self, application: Application, now: Instant) -> None:
        """Have done what an application does by itself."""
        try:
            effects = application.tick(now)
        except Exception as error:  # noqa: BLE001 - a fault of the application must not take the broker down
            self._state.reports.note_fault(error)
            return
        self.perform(effects, now)

    # -- wills --------------------------------------------------------------------------------------------------------

    def publish_will(self, packet: Publish, client_id: str, now: Instant) -> None:
        """A will is an ordinary message of its client, but nobody waits for its acknowledgement."""
        application = self._state.applications.find(packet.topic)
        if application is not None:
            effects = self.handled(application, client_id, packet, now)
            if effects is not None:
                self.perform(effects, now)
                self._published(client_id, packet)
            return
        session = self._state.sessions.get(client_id)
        is_permitted = session is None or session.permissions is None or session.permissions.may_publish(packet.topic)
        if is_permitted and not is_reserved(packet.topic):
            self.send(packet, client_id, now)
            self._published(client_id, packet)
        elif session is not None:
            self._state.reports.note_denial(session, ReasonCode.NOT_AUTHORIZED, "publish", packet.topic)

    def _published(self, client_id: str, packet: Publish) -> None:
        if self._state.events is not None:
            self._state.events.published(client_id, packet)


def is_reserved(topic: str) -> bool:
    return topic.startswith(_RESERVED) and not _BRIDGE_STATE.fullmatch(topic)

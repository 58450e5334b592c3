"""What the monitor hears of a server while it runs: requests to the state store, clients that come and go.

It takes notes, and nothing waits for it. A server without a monitor has no tap, and pays nothing.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from statestore_client.errors import (
    FencingTokenRequiredError,
    FencingTokenTooOldError,
    ServerError,
)
from statestore_client.server.monitor import ChangeLog, Latencies, LockTimeline, RefusedWrite, shown
from statestore_client.wire.commands import Del, Set, VDel
from statestore_client.wire.replies import COUNT_0, NOT_APPLIED, ErrorReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore_client.mqtt.packets import Publish
    from statestore_client.server.broker import BrokerEvents, Connection
    from statestore_client.server.broker.application import Application, Effect
    from statestore_client.server.host.host import HostedApplication
    from statestore_client.server.store import Outcome, RequestContext, StateStore
    from statestore_client.wire.commands import Command
    from statestore_client.wire.instant import Instant

_EVENTS: Final = 300

#: Why a write was refused, as the page tells it apart.
_WHY: Final[dict[type[ServerError], str]] = {
    FencingTokenTooOldError: "older token",
    FencingTokenRequiredError: "no token",
}
_ACTIONS: Final[dict[type, str]] = {Set: "SET", Del: "DEL", VDel: "VDEL"}


class Tap:
    """Belongs to the thread of the event loop. Hears the broker's events, and hands them on to ``others``."""

    def __init__(self, others: BrokerEvents | None) -> None:
        self._others = others
        self.timeline: LockTimeline = LockTimeline()
        self.changes: ChangeLog = ChangeLog()
        self.latencies: Latencies = Latencies()
        self._events: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
        self._unsent: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
        self._now = 0

    def tick(self, now_ms: int) -> None:
        """The time, for what happens without one."""
        self._now = now_ms
        self.timeline.tick(now_ms)

    def sent_events(self) -> list[dict[str, Any]]:
        """Those that :meth:`take_events` has given, the last of them."""
        return list(self._events)[: len(self._events) - len(self._unsent)]

    def take_events(self) -> list[dict[str, Any]]:
        """Those since the last time."""
        events = list(self._unsent)
        self._unsent.clear()
        return events

    def note(self, kind: str, **fields: object) -> None:
        """Something that a person may want to know of."""
        event = {"at": self._now, "kind": kind} | {
            name: shown(value) if isinstance(value, str) else value for name, value in fields.items()
        }
        self._events.append(event)
        self._unsent.append(event)

    def timed(self, application: Application) -> Application:
        """The application, whose requests are timed."""
        return _TimedApplication(application, self.latencies)

    def timed_host(self, application: HostedApplication) -> HostedApplication:
        """The same of one that is hosted on another broker."""
        return _TimedHostedApplication(application, self.latencies)

    # -- the store ----------------------------------------------------------------------------------------------------

    def observe(self, store: StateStore, command: Command, request: RequestContext, outcome: Outcome) -> None:
        """A command was carried out; see :data:`~statestore_client.server.store.StoreObserver`."""
        action = _ACTIONS.get(type(command))
        if action is None:
            return
        self._now = now = request.now.wall_ms
        reply = outcome.reply
        if isinstance(reply, ErrorReply):
            self._refused(store, command, request, action, reply.error)
        elif isinstance(command, Set):
            self._set(store, command, request, outcome)
        elif isinstance(command, Del | VDel) and reply is not COUNT_0 and reply is not NOT_APPLIED:
            self.timeline.removed(command.key, now, by_holder=isinstance(command, VDel))
            self.changes.add(now, command.key, request.client_id, action, str(outcome.version))

    def _set(self, store: StateStore, command: Set, request: RequestContext, outcome: Outcome) -> None:
        now, timeline = request.now.wall_ms, self.timeline
        is_claim = command.condition is not None and command.expiry_ms is not None
        if outcome.reply is NOT_APPLIED:
            entry = store.entry(command.key, request.now)
            if is_claim and entry is not None and entry.expires_at is not None:
                until = now + round(1000 * (entry.expires_at - request.now.monotonic))
                timeline.missed(command.key, command.value, request.client_id, now, (entry.value, entry.version, until))
            return
        version = outcome.version
        if version is None:
            return
        if is_claim and command.expiry_ms is not None:
            timeline.granted(command.key, command.value, request.client_id, command.expiry_ms, version, now)
        else:
            timeline.overwritten(command.key, now)
        if request.fencing_token is not None:
            timeline.wrote(request.fencing_token)
        self.changes.add(now, command.key, request.client_id, "SET", str(version), command.value)

    def _refused(
        self, store: StateStore, command: Command, request: RequestContext, action: str, error: ServerError
    ) -> None:
        if not isinstance(command, Set | Del | VDel):
            return
        why = _WHY.get(type(error), error.message)
        entry = store.entry(command.key, request.now)
        refusal = RefusedWrite(request.now.wall_ms, shown(request.client_id), action, shown(command.key), why)
        self.timeline.refused(refusal, request.fencing_token, None if entry is None else entry.fence)

    # -- the broker ---------------------------------------------------------------------------------------------------

    def connected(self, connection: Connection, client_id: str) -> None:
        user = None if connection.session is None else connection.session.user
        self.note("connected", client=client_id, user=user, peer=connection.peer)
        self.timeline.came(client_id)
        if self._others is not None:
            self._others.connected(connection, client_id)

    def disconnected(self, connection: Connection, client_id: str) -> None:
        ending = connection.ending
        by_peer = ending is not None and ending.by_peer
        code, reason = (0x80, "") if ending is None else (int(ending.reason_code), ending.reason)
        self.note("disconnected", client=client_id, code=code, text=reason, by="peer" if by_peer else "server")
        self.timeline.left(client_id, self._now)
        if self._others is not None:
            self._others.disconnected(connection, client_id)

    def subscribed(self, client_id: str, topic_filter: str, qos: int | None) -> None:
        if self._others is not None:
            self._others.subscribed(client_id, topic_filter, qos)

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        if self._others is not None:
            self._others.unsubscribed(client_id, topic_filter)

    def published(self, client_id: str, packet: Publish) -> None:
        if self._others is not None:
            self._others.published(client_id, packet)


class _TimedApplication:
    """An application of the broker, and how long each of its requests takes."""

    def __init__(self, application: Application, latencies: Latencies) -> None:
        self._application = application
        self._latencies = latencies
        self.topics = application.topics
        self.prefixes = application.prefixes
        self.tick = application.tick
        self.next_deadline = application.next_deadline
        self.client_disconnected = application.client_disconnected

    def handle(self, client_id: str, message: Publish, now: Instant) -> Sequence[Effect]:
        """Carry it out."""
        began = perf_counter()
        try:
            return self._application.handle(client_id, message, now)
        finally:
            self._latencies.add(perf_counter() - began)


class _TimedHostedApplication(_TimedApplication):
    def __init__(self, application: HostedApplication, latencies: Latencies) -> None:
        super().__init__(application, latencies)
        self.tell_again = application.tell_again

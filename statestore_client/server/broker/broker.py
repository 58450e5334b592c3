"""The broker: a machine that is driven with packets and moments, and leaves bytes in the outboxes of its connections.

::

    connection = broker.connection_opened(now)
    broker.receive(connection, packets, now)
    for connection in broker.take_dirty(): ...write connection.take(), close it if connection.ending
    broker.connection_lost(connection, now)
    broker.tick(now)            when broker.next_deadline() is over

Nothing a client sends raises: what the standard forbids is answered with its reason code and the end of the connection.
Source: MQTT 5.0 and MQTT 3.1.1; where the standard leaves a choice, it is the one that real clients lean on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from statestore_client.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Subscribe,
    Unsubscribe,
)
from statestore_client.mqtt.packets.types import DISCONNECT_CODES
from statestore_client.server.broker.administration import Control
from statestore_client.server.broker.application import Route
from statestore_client.server.broker.connect import ConnectHandler
from statestore_client.server.broker.lifecycle import (
    ReconnectGrace,
    SessionLifecycle,
    SessionPermissions,
)
from statestore_client.server.broker.limits import BrokerLimits
from statestore_client.server.broker.overflow import Backpressure, OverflowPolicy
from statestore_client.server.broker.publish import PublishHandler
from statestore_client.server.broker.recovery import Recovery
from statestore_client.server.broker.reports import BrokerUsage
from statestore_client.server.broker.router import EffectRunner, Router
from statestore_client.server.broker.session import (
    CloseReason,
    Connection,
    Session,
    SessionView,
    view_of,
)
from statestore_client.server.broker.state import State
from statestore_client.server.broker.subscribe import SubscribeHandler
from statestore_client.server.broker.sys_topics import SysTopics
from statestore_client.wire.instant import Instant
from statestore_client.wire.protocol import MAX_PACKET_SIZE

if TYPE_CHECKING:
    from random import Random

    from statestore_client.server.broker.admission import Gatekeeper, Permissions, Verdict
    from statestore_client.server.broker.application import Application, Effect
    from statestore_client.server.broker.reports import BrokerEvents
    from statestore_client.server.broker.session import PendingAuth
    from statestore_client.server.journal import Journal, Row, StoredRecords, Timeline, WriteBatch
    from statestore_client.server.shares import Shares

#: With more work than this undone, the application's ticks, which may make more of it, have to wait.
_MOST_JOBS: Final = 64

#: Packets that waited, in one slice: about a millisecond of requests.
_AT_ONCE: Final = 16

_Handler: TypeAlias = Callable[[Connection, Session, Any, Instant], None]


class Broker:
    """An MQTT 5.0 and 3.1.1 server without sockets, clocks and threads. One thread at a time may call it."""

    def __init__(
        self,
        *,
        random: Random,
        applications: Iterable[Application] = (),
        limits: BrokerLimits | None = None,
        gatekeeper: Gatekeeper | None = None,
        journal: Journal | None = None,
        events: BrokerEvents | None = None,
    ) -> None:
        """``random`` makes the client identifiers that the server assigns; seed it for repeatable runs. Without a
        ``gatekeeper`` everybody may do everything. ``journal`` takes what must survive, ``events`` hears of clients.
        """
        self._journal = journal
        self._state = state = State.empty(limits or BrokerLimits(), journal)
        self.limits: Final = state.limits
        self.counters: Final = state.counters
        self.control: Final = Control(state)
        self.reports: Final = state.reports
        #: Connections to look at: see :meth:`take_dirty`. To be looked at only.
        self.dirty: Final[Sequence[Connection]] = state.dirty
        #: Work that was begun, by its subject; to be looked at only. See :meth:`work`.
        self.unfinished: Final[Collection[object]] = state.background.queues
        #: CONNECTs that were refused, by the name of the quota.
        self.quota_refusals: Final[Mapping[str, int]] = state.quota_refusals
        state.gatekeeper, state.events = gatekeeper, events
        self.install(*applications)
        overflow = OverflowPolicy(state)
        self._router = Router(state, overflow)
        self._effects = EffectRunner(state, self._router)
        self._sys_topics = SysTopics(state, self._effects)
        self._lifecycle = lifecycle = SessionLifecycle(state, self._router, self._effects)
        self._permissions = SessionPermissions(state, lifecycle)
        self._awaited = ReconnectGrace(state, lifecycle, self._permissions)
        self._recovery = Recovery(state, lifecycle, self._permissions, self._awaited)
        self._backpressure = Backpressure(state, overflow)
        self._connect_handler = ConnectHandler(state, overflow, lifecycle, self._awaited, random)
        self._publish_handler = PublishHandler(state, self._router, lifecycle, self._backpressure, self._effects)
        self._subscribe_handler = SubscribeHandler(state, self._router, self._sys_topics)
        self._handlers: dict[type[Packet], _Handler] = {
            Publish: self._publish_handler.handler,
            Puback: self._publish_handler.puback,
            Pubrec: self._publish_handler.pubrec,
            Pubrel: self._publish_handler.release,
            Pubcomp: self._publish_handler.pubcomp,
            Subscribe: self._subscribe_handler.subscribe,
            Unsubscribe: self._subscribe_handler.unsubscribe,
            Pingreq: self._on_pingreq,
            Disconnect: lifecycle.disconnect,
            Auth: self._connect_handler.renew,
        }

    def install(self, *applications: Application) -> None:
        """Have these answer what is published on their topics, before anything is."""
        for application in applications:
            self._state.applications.add(application)

    # -- what the runtime looks at ------------------------------------------------------------------------------------

    @property
    def usage(self) -> BrokerUsage:
        """What it holds now."""
        return self._state.usage

    @property
    def state_bytes(self) -> int:
        """Roughly, what its rows come to."""
        usage = self.usage
        return usage.held_bytes + usage.retained_bytes

    @property
    def shares(self) -> tuple[Shares, ...]:
        """Whose connections and sessions there are; to be looked at only."""
        return self._state.connection_quotas.shares, self._state.sessions.shares

    def take_dirty(self) -> list[Connection]:
        """The connections with something in their outbox or an ending, each once."""
        dirty, self._state.dirty[:] = self._state.dirty.copy(), ()
        return dirty

    def permissions(self, client_id: str) -> Permissions | None:
        """What the client of a session may do; None for everything, and for clients without a session."""
        session = self._state.sessions.get(client_id)
        return None if session is None else session.permissions

    def user(self, client_id: str) -> str | None:
        """Who the client of a session proved to be; None for nobody in particular."""
        session = self._state.sessions.get(client_id)
        return None if session is None else session.user

    def largest_packet(self, client_id: str) -> int:
        """How many bytes of a packet the client takes: its Maximum Packet Size."""
        connection = self.connection_of(client_id)
        return MAX_PACKET_SIZE if connection is None else connection.maximum_packet_size

    def connection_of(self, client_id: str) -> Connection | None:
        """The connection of a client; None while it is away."""
        session = self._state.sessions.get(client_id)
        return None if session is None else session.connection

    def sessions(self) -> tuple[SessionView, ...]:
        """All sessions, as they are now."""
        return tuple(map(view_of, self._state.sessions.all()))

    def started(self, now: Instant, *, version: Callable[[], str] = str) -> None:
        """What ``$SYS`` tells: since when it runs, and which version of which program."""
        self._state.started_at, self._state.version = now.monotonic, version

    # -- after a restart ----------------------------------------------------------------------------------------------

    def absorb(self, batch: WriteBatch, timeline: Timeline) -> None:
        """Follow another broker, which wrote this: its sessions and retained messages. Raises DamagedRecordError."""
        self._recovery.absorb(batch, timeline)

    def rows(self) -> Iterator[Row]:
        """What is written of each retained message, as it is when the iterator comes to it."""
        return self._recovery.rows()

    def restore(self, storage: StoredRecords, now: Instant, *, is_warm: bool = False) -> None:
        """Fill it with what its journal wrote in an earlier life, or was not absorbed. Raises DamagedRecordError."""
        self._recovery.run(storage, now, is_warm=is_warm)
        self._sys_topics.restored(now)
        # An earlier release may have taken requests for messages.
        self._state.retained.discard_where(lambda topic: self._state.applications.find(topic) is not None)
        self._run_disconnects(now)

    # -- connections --------------------------------------------------------------------------------------------------

    def connection_opened(
        self, now: Instant, *, peer: str = "", certificate: str | None = None, since: float | None = None
    ) -> Connection:
        """A socket was accepted. It has ``connect_timeout_s`` to say CONNECT, from ``since`` on (monotonic seconds;
        None for now): a handshake of TLS may have come before, which has verified the name in its ``certificate``.
        """
        begin = now if since is None else Instant(since, now.wall_ms)
        state = self._state
        limit, budget = state.limits.outbox_bytes, state.budget
        connection = Connection(peer, state.dirty, limit, budget, begin.monotonic, journal=self._journal)
        connection.certificate = certificate
        state.connections[connection] = None
        self._lifecycle.watch(connection, state.limits.connect_timeout_s, begin)
        return connection

    def connection_lost(self, connection: Connection, now: Instant) -> None:
        """The socket is gone, whoever closed it. Call it once for every opened connection."""
        self._state.connections.pop(connection, None)
        if connection.ending is None:
            connection.ending = CloseReason(ReasonCode.UNSPECIFIED_ERROR, "connection lost", by_peer=True)
        self._lifecycle.detach(connection, now, with_will=True)
        connection.discard()
        self._run_disconnects(now)

    def let_go(self, connections: Iterable[Connection], now: Instant) -> None:
        """Their clients were sent away, and not lost: they are expected back, as after a restart of the server."""
        for connection in connections:
            self._lifecycle.detach(connection, now, with_will=True, lost=self._awaited.let_go)
        self._awaited.begin(now)
        self._run_disconnects(now)

    def congested(self, connection: Connection) -> None:
        """The socket takes no more: messages wait in the session from now on."""
        connection.is_congested = True

    def drained(self, connection: Connection, now: Instant) -> None:
        """The socket took the outbox (and more): send what waited."""
        connection.is_congested = False
        session = connection.session
        if session is not None and session.connection is connection:
            self._router.send_pending(session, now)
            self._run_disconnects(now)
        if connection.held:
            self._receive_waiting(connection, now)

    def shut_down(self) -> None:
        """Say goodbye to everybody. Wills stay unsent: their receivers are leaving, too."""
        code, reason = ReasonCode.SERVER_SHUTTING_DOWN, "server shutting down"
        for connection in self._state.connections:
            if connection.session is None:
                connection.close(CloseReason(code, reason))
            else:
                connection.disconnect(code, reason)

    def disconnect_all(self, now: Instant) -> None:
        """As if the server went down and came back with all that it knew: connections end, sessions stay."""
        for connection in tuple(self._state.connections):
            self._lifecycle.expel(connection, ReasonCode.SERVER_SHUTTING_DOWN, "server restarting", now)
        self._run_disconnects(now)

    def restart_keep_alives(self, now: Instant) -> None:
        """Start the keep-alives of all clients anew."""
        for connection in self._state.connections:
            if connection.session is not None:
                connection.last_received = now.monotonic

    # -- packets ------------------------------------------------------------------------------------------------------

    def publish(self, packet: Publish, now: Instant) -> None:
        """Publish a message of the server's own, to whoever subscribed, and retain it if it says so."""
        self.perform((Route(packet),), now)

    def perform(self, effects: Iterable[Effect], now: Instant) -> None:
        """Carry out what follows from something that no client has asked for."""
        self._effects.perform(effects, now)
        self._run_disconnects(now)

    def receive(self, connection: Connection, packets: Iterable[Packet], now: Instant) -> None:
        """Handle packets of one connection in order. What comes after its ending is ignored."""
        if connection.session is not None:
            # Before, the time for CONNECT runs from the start: bytes that trickle in do not prolong it.
            connection.last_received = now.monotonic
        handlers, pending_disconnects = self._handlers, self._state.pending_disconnects
        for packet in packets:
            if connection.ending is not None:
                return
            session = connection.session
            if session is None:
                self._first(connection, packet, now)
                continue
            if connection.held and type(packet) is Publish:
                self._publish_handler.wait(connection, packet, now)
                continue
            handler = handlers.get(type(packet))
            if handler is None:
                # CONNECT again, or a packet that only servers send.
                reason = f"a client must not send {type(packet).__name__.upper()} here"
                self._lifecycle.expel(connection, ReasonCode.PROTOCOL_ERROR, reason, now)
            else:
                handler(connection, session, packet, now)
            if pending_disconnects:
                self._run_disconnects(now)
        if connection.held:
            self._receive_waiting(connection, now)

    def _receive_waiting(self, connection: Connection, now: Instant) -> None:
        """Packets that waited, as far as there is room for what they cause; many, in slices."""
        if connection not in self._state.background.queues and self._receive_some(connection, now):
            self._state.background.add(connection, partial(self._receive_some, connection))

    def _receive_some(self, connection: Connection, now: Instant) -> bool:
        """True if there is more to do at once."""
        for _ in range(_AT_ONCE):
            packet = self._backpressure.next(connection, now)
            if packet is None or connection.session is None:
                return False
            self._publish_handler.handler(connection, connection.session, packet, now)
            if self._state.pending_disconnects:
                self._run_disconnects(now)
        return bool(connection.held)

    def receive_broken(
        self, connection: Connection, reason_code: int, reason: str, now: Instant, *, version: int | None
    ) -> None:
        """The decoder found malformed bytes. ``version`` is what it knows; None before a version was read."""
        if connection.ending is not None:
            return
        if connection.session is not None:
            if reason_code not in DISCONNECT_CODES:
                reason_code = ReasonCode.PROTOCOL_ERROR  # of a second CONNECT, which is one too many, whatever is in it
            self._lifecycle.expel(connection, reason_code, reason, now)
        else:
            connection.refuse_broken(reason_code, reason, version)
        self._run_disconnects(now)

    def verified(self, verification: PendingAuth, verdict: Verdict, now: Instant, *, was_held: bool = False) -> None:
        """A verdict that took time. Ignored when its connection has ended, or got tired of waiting."""
        if not verification.is_current:
            return
        connection, packet = verification.connection, verification.packet
        connection.verification = None
        if packet is None:
            if connection.session is not None:
                self._connect_handler.renewed(connection, connection.session, verdict, now)
        else:
            self._connect_handler.verified(connection, packet, verdict, now, was_held=was_held)
        self._run_disconnects(now)
        self._receive_held(connection, verification.held, now)

    def _receive_held(self, connection: Connection, packets: list[Packet], now: Instant) -> None:
        if connection.verification is None:
            self.receive(connection, packets, now)
        else:  # its CONNECT waits once more
            connection.verification.held.extend(packets)

    def review(self, now: Instant, *, gone: Collection[str] = ()) -> None:
        """The gatekeeper has other rules now. Clients that are affected are disconnected and may come again under them.
        Subscriptions of absent clients that are no longer permitted end. Of the users that are ``gone`` nothing stays:
        no connection, session, or will.
        """
        self._permissions.review(gone)
        self._awaited.users_gone(gone)
        self._run_disconnects(now)

    def _first(self, connection: Connection, packet: Packet, now: Instant) -> None:
        if connection.verification is not None:
            self._connect_handler.hold(connection, connection.verification, packet)
        elif isinstance(packet, Connect):
            self._connect_handler.connect(connection, packet, now)
            self._run_disconnects(now)
        else:
            connection.close(CloseReason(ReasonCode.PROTOCOL_ERROR, "the first packet is not a CONNECT"))

    def _on_pingreq(self, connection: Connection, session: Session, packet: Pingreq, now: Instant) -> None:
        del session, packet, now
        connection.send(Pingresp())

    # -- work that was begun -------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether :meth:`work` has something to do."""
        return bool(self._state.background.queues)

    @property
    def is_busy(self) -> bool:
        """Whether there is so much of it that what can wait shall cause no more."""
        return len(self._state.background) > _MOST_JOBS

    def work(self, now: Instant) -> None:
        """Go on with what was too much for one call, for about a millisecond."""
        self._state.background.work(now)
        self._run_disconnects(now)

    # -- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: Instant) -> None:
        """Do everything that is due: keep-alives, wills, session expiry, the application's own."""
        try:
            self._state.timers.run(now)
        finally:  # what they caused, also if one of them failed: nobody else would do it
            self._run_disconnects(now)
            self._release_held(now)
        for application in self._state.applications.timed:
            due = application.next_deadline()
            if due is not None and due <= now.monotonic and not self.is_busy:
                self._effects.tick(application, now)
        self._run_disconnects(now)

    def _release_held(self, now: Instant) -> None:
        """CONNECTs that have waited long enough; one that fails leaves the others to the next call."""
        released = self._state.released
        while released:
            verification, verdict = released.pop(0)
            self.verified(verification, verdict, now, was_held=True)

    def next_deadline(self) -> float | None:
        """When :meth:`tick` is due (monotonic seconds), None for never. It may turn out that nothing was."""
        earliest = self._state.timers.next_deadline()
        for application in self._state.applications.timed:
            deadline = application.next_deadline()
            if deadline is not None and (earliest is None or deadline < earliest):
                earliest = deadline
        return earliest

    def _run_disconnects(self, now: Instant) -> None:
        """Disconnect those whose time came during the last call; their wills may name more."""
        pending_disconnects = self._state.pending_disconnects
        while pending_disconnects:
            pending = pending_disconnects.pop(0)
            session = pending.session
            if session.connection is not None:
                self._lifecycle.expel(session.connection, pending.reason_code, pending.reason, now)
            if pending.ends_session and not session.is_over:
                self._lifecycle.end(session, now)

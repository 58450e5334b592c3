"""The hosted store: the machine of :mod:`statestore_client.server.host` on the native driver, a disk and a clock.

One connection to the broker at a time. When it is lost the next one is made, with a growing pause, until the store is
stopped; what waits meanwhile waits in the broker. Belongs to the event loop that started it.

Hosts that share a log have one client identifier, and so one session: the broker ends the connection of the one when
the next one connects, and brings that one what was not acknowledged.

Invariant: a host that shares a log connects only while it is the active one, and known to be. Otherwise one that was
cut off from the log would take the session away from its successor again and again. A CONNECT that was on its way for
too long does so once: the successor connects again. The active one hands over if it does not reach the broker for a
while: another one may.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, Final

import attrs

from raft_client._common.http_server import HttpEndpoint, Respond
from statestore_client.clocks import monotonic
from statestore_client.errors import ConnectionLostError, DataDirectoryError, StateStoreError
from statestore_client.mqtt.packets.types import Publish, ReasonCode
from statestore_client.mqtt.service_connection import ServiceConnector, ServiceDriver
from statestore_client.server.broker.application import ReportClock, ReportDenial
from statestore_client.server.broker.limits import BrokerLimits
from statestore_client.server.broker.quotas import network_of
from statestore_client.server.host.askers import NO_ID, is_nobody
from statestore_client.server.host.host import Acknowledge, Host
from statestore_client.server.runtime.clock import Alarm, Clock, system_clock
from statestore_client.server.runtime.fairness import RoundRobin
from statestore_client.server.runtime.host.other_stores import already_there, has_store
from statestore_client.server.runtime.observability.information import information, log_information
from statestore_client.server.runtime.observability.logs import LOGGER, RefusalLog, contained, log_event
from statestore_client.server.runtime.observability.metrics import (
    MetricsPages,
    log_figures,
    metric,
    process_figures,
    store_figures,
)
from statestore_client.server.runtime.process import package_version
from statestore_client.server.runtime.security.security import Security
from statestore_client.server.runtime.storage.disk_storage import Disk
from statestore_client.server.runtime.transport.peers import Peers
from statestore_client.server.service.response_cache import ResponseCacheLimits
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import StateStore, StoreLimits
from statestore_client.wire.hlc import HybridLogicalClock
from statestore_client.wire.messages import Closed, Connected, Published, Subscribed
from statestore_client.wire.protocol import COMMAND_TOPIC, FIRST_ERROR, MAX_PACKET_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from statestore_client.mqtt.driver import AioDriver
    from statestore_client.server.journal import Journal
    from statestore_client.server.runtime.host.settings import HostSettings
    from statestore_client.server.runtime.monitor.service import MonitorService
    from statestore_client.server.runtime.replication.replicated_server import ReplicatedServer
    from statestore_client.server.runtime.replication.settings import ReplicaSettings
    from statestore_client.server.runtime.storage import GroupCommit

#: The clock node in every version that the store gives out.
_NODE_ID: Final = "StateStore"
#: A connection that lasted this long (seconds) was a good one: the next attempt is made at once.
_LASTED_S: Final = 5.0
#: The active one of several hosts tries for so long (seconds) to reach the broker, before another one may; and twice as
#: long each time, because mostly nobody reaches it.
_REACHED_WITHIN_S: Final = 2.0
_LONGEST_ATTEMPT_S: Final = 64.0
#: Longer than requests wait in the broker: who may bring a request again finds its answer.
_ANSWERS_LAST_LONGER_S: Final = 300.0
_METRICS_CONNECTIONS: Final = 16
_MONITOR_CONNECTIONS: Final = 64
#: The monitor is for people on this machine: a host has no users who could show a password.
_MONITOR_HOST: Final = "127.0.0.1"
_SUBSCRIBE_ID: Final = 1
#: How long (seconds) the broker gets to take the DISCONNECT.
_GOODBYE_S: Final = 1.0


class HostedStore:
    """See the module. :meth:`start` returns at once; :meth:`wait_until_ready` when requests are taken."""

    def __init__(self, settings: HostSettings, *, clock: Clock = system_clock, random: Random | None = None) -> None:
        """``clock`` and ``random`` are for tests."""
        self._settings = settings
        #: With others, if they share a log.
        self.replication: ReplicatedServer[Host] | None = None if settings.log is None else _lives(settings.log, self)
        self._clock: Clock = clock if self.replication is None else self.replication.clock
        self._random = random or SystemRandom()
        self._monitor = self._new_monitor()
        self._tap = None if self._monitor is None else self._monitor.tap
        self._disk = None if settings.data is None else Disk(settings.data, clock, self._fail)
        self._broker_takes = MAX_PACKET_SIZE
        self._store: StateStore
        self.service: StateStoreService
        self.host: Host
        self.service, self.host = self.build_state(None if self._disk is None else self._disk.journal)
        self.failure: StateStoreError | None = None
        #: Since the start.
        self.connections: int = 0
        self.losses: int = 0
        self.metrics_url: str | None = None
        self.monitor_url: str | None = None
        self._connector = self._new_connector()
        self._driver: ServiceDriver | None = None
        self._was_up = False
        self._is_active = self.replication is None
        self._unreached_since: float | None = None
        self._most_unreached_s = _REACHED_WITHIN_S
        self.refusals: RefusalLog = RefusalLog(lambda: self._clock().monotonic)
        #: Of other servers' clients, which a host has none of.
        self.peers: Peers = Peers(BrokerLimits())
        self._started_at = monotonic()

    def build_state(self, journal: Journal | None) -> tuple[StateStoreService, Host]:
        """An empty store, and the host that carries it, which write into the journal."""
        settings = self._settings
        tap = self._tap
        store = self._store = StateStore(
            clock=HybridLogicalClock(_NODE_ID, guard=threading.RLock()),  # noqa: TID251 - of one thread
            limits=settings.store_limits or StoreLimits(),
            dialect=settings.dialect,
            journal=journal,
            persistence=settings.persistence,
            observer=None if tap is None else tap.observe,
        )
        service = StateStoreService(
            store,
            token_key=self._random.randbytes(TOKEN_KEY_BYTES),
            dialect=settings.dialect,
            cache_limits=ResponseCacheLimits(max_age_s=settings.connection.session_expiry + _ANSWERS_LAST_LONGER_S),
            largest_packet=lambda _: self._broker_takes,
            journal=journal,
            keeps_all=journal is None or settings.persistence.keeps_all,
            no_observer=lambda asker: NO_ID if is_nobody(asker) else None,
        )
        host = Host(
            service if tap is None else tap.timed_host(service),
            store.observers,
            client_id=settings.client_id,
            journal=journal,
            dialect=settings.dialect,
            id_property=settings.id_property,
        )
        return service, host

    def _new_monitor(self) -> MonitorService | None:
        if self._settings.monitor_port is None:
            return None
        from statestore_client.server.runtime.monitor.service import MonitorService  # most hosts do without

        return MonitorService(_MONITOR_HOST, Security.of(), None, None, has_actions=False)

    def _new_connector(self) -> ServiceConnector:
        settings = self._settings
        return ServiceConnector(
            settings.connection, client_id=settings.client_id, maximum_packet_size=settings.packet_bytes
        )

    @property
    def now(self) -> float:
        """Monotonic seconds of the clock that the store goes by."""
        return self._clock().monotonic

    def __len__(self) -> int:
        """How many connections there are: one or none."""
        return int(self.host.is_connected)

    # -- the beginning -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Restore the data, or begin to follow the log, answer probes, and begin to connect. Raises DataDirectoryError,
        SettingsError and OSError.
        """
        self._loop = loop = asyncio.get_running_loop()
        self._is_ready, self._has_failed, self._news = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._closed: asyncio.Future[Closed] = loop.create_future()
        self._alarm = Alarm(loop.call_at if self.replication is None else self.replication.clock.call_at, self._tick)
        self._group_commit: GroupCommit | None = None
        self._pages: list[asyncio.Server] = []
        self.turns: RoundRobin = RoundRobin(loop)
        try:
            await self._open_storage()
            await self._open_pages()
        except BaseException:
            await self._close_parts()
            raise
        self._task = loop.create_task(self._run(), name="statestore host")
        self._flush()

    async def _open_storage(self) -> None:
        if self.replication is not None:
            await self.replication.open(self)
        elif self._disk is None:
            self.host.restore(None, self._clock())
        else:
            self._group_commit = self._disk.open(self.host, self.service, self._loop)
            self._group_commit.bind(self.host, self._released, self._go_on)

    async def _open_pages(self) -> None:
        settings, metrics = self._settings, HostMetrics(self, package_version)
        if settings.metrics_port is not None:
            pages = MetricsPages(metrics.render, self._why_not_ready, self._information)
            address = settings.metrics_host, settings.metrics_port
            self.metrics_url = f"{await self._listen(pages.respond, _METRICS_CONNECTIONS, *address)}/metrics"
        if settings.monitor_port is not None and self._monitor is not None:
            self._open_monitor(self._monitor, metrics)
            address = _MONITOR_HOST, settings.monitor_port
            self.monitor_url = await self._listen(self._monitor.respond, _MONITOR_CONNECTIONS, *address)

    async def _listen(self, respond: Respond, connections: int, host: str, port: int) -> str:
        """Returns the URL."""
        make = HttpEndpoint(respond, LOGGER, connections=connections, network_of=network_of)
        self._pages.append(await self._loop.create_server(make, host, port))
        chosen = self._pages[-1].sockets[0].getsockname()[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{chosen}"

    def _open_monitor(self, monitor: MonitorService, metrics: HostMetrics) -> None:
        from statestore_client.server.runtime.monitor.api import ServerParts  # as the monitor itself

        settings = self._settings
        about = {
            "is_hosted": True,
            "is_durable": self._disk is not None or self.replication is not None,
            "dialect": str(settings.dialect),
            "urls": [self.url],
        }
        parts = ServerParts(
            store=lambda: self._store,
            service=lambda: self.service,
            broker=lambda: None,
            site=lambda: None,
            replication=self.replication,
            clock=self._clock,
        )
        monitor.open(parts, metrics, commits=lambda: self._group_commit, about=lambda: about, inform=self._information)

    @property
    def url(self) -> str:
        """Of the broker."""
        return self._settings.connection.url

    @property
    def is_ready(self) -> bool:
        """Whether the broker brings requests."""
        return self._is_ready.is_set()

    def _why_not_ready(self) -> str:
        why = "" if self.replication is None else self.replication.why_not_ready
        return why or ("" if self.is_ready else "the broker is away")

    @property
    def uptime_s(self) -> float:
        return monotonic() - self._started_at

    def _information(self) -> dict[str, Any]:
        settings, replication = self._settings, self.replication
        peer = None if settings.log is None else settings.log.peer
        return information(
            settings,
            kind="hosted",
            role="alone" if replication is None else replication.role.value,
            directory=settings.data if peer is None else peer.data,
            urls=(self.url,),
            uptime_s=self.uptime_s,
            log=None if replication is None else log_information(replication),
        )

    async def wait_until_ready(self) -> None:
        """Until the broker brings requests. It may be away now."""
        await self._is_ready.wait()

    async def wait_for_failure(self) -> None:
        """Returns when the store cannot go on; :attr:`failure` tells why. Call :meth:`stop` then."""
        await self._has_failed.wait()

    # -- the connection ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._stay_connected()
        except Exception as error:  # noqa: BLE001 - a defect of our own: a host that does nothing is worse than none
            LOGGER.exception("the host failed")
            self.cannot_go_on(StateStoreError(f"the host failed: {error!r}"))

    async def _stay_connected(self) -> None:
        connection = self._settings.connection
        pause_s, was_told, is_alone = connection.reconnect_delay, False, await self._is_first_look_clear()
        while not self._has_failed.is_set():
            await self._may_connect()
            began = self._loop.time()
            if is_alone:
                closed = await self._be_connected()
            elif (found := await self._look_around()) is None:
                is_alone = True
                continue
            else:
                closed = found
            if closed.fatal and not self._has_successor(closed):
                self.cannot_go_on(closed.error)
                return
            was_up, lasted_s = self._was_up, self._loop.time() - began
            self._lost(closed, was_told=was_told)
            was_told = not was_up
            await self._note_unreached()
            if was_up and lasted_s >= _LASTED_S:
                pause_s = connection.reconnect_delay
                continue
            await asyncio.sleep(pause_s * (0.5 + self._random.random() / 2))
            pause_s = connection.reconnect_delay if was_up else min(2 * pause_s, connection.max_reconnect_delay)

    async def _be_connected(self) -> Closed:
        """One connection, from its beginning to its end."""
        self._closed, self._was_up = self._loop.create_future(), False
        driver = self._driver = self._connector.open(clean_start=False, on_events=self._on_events)
        await driver.connect()
        return await self._closed

    async def _may_connect(self) -> None:
        """Return when this host is the active one of its log, and known to be; alone, at once."""
        while self.replication is not None and not (self._is_active and self.replication.confirm_lease()):
            self._news.clear()
            await self._news.wait()

    async def _note_unreached(self) -> None:
        """An attempt to connect has failed: hand over, if it was not the first one and there is somebody."""
        lives, now = self.replication, self._loop.time()
        if lives is None or not (self._is_active and lives.listeners):
            self._unreached_since = None
        elif self._unreached_since is None:
            self._unreached_since = now
        elif now - self._unreached_since >= self._most_unreached_s:
            self._unreached_since = None
            self._most_unreached_s = min(2.0 * self._most_unreached_s, _LONGEST_ATTEMPT_S)
            log_event(logging.WARNING, "handing over", url=self.url, reason="this host does not reach the broker")
            await lives.hand_over()

    def _has_successor(self, closed: Closed) -> bool:
        """Whether another host of the log took the session over, which this one will read there."""
        return self.replication is not None and closed.reason_code == ReasonCode.SESSION_TAKEN_OVER

    async def _is_first_look_clear(self) -> bool:
        """Look around before this host is active, so that it does not cost the clients a second then. Returns False if
        it has to look again: there is something else, or what answers began after this host has read the log.
        """
        if self.replication is None:
            return False
        try:
            await self.replication.wait_until_known()
        except StateStoreError:  # and was told so
            return False
        return await self._look_around() is None

    async def _look_around(self) -> Closed | None:
        """None if there is no other store on the broker, or if the broker does not let us look: it may know clients
        by their names, and what else is wrong shows when the host itself connects.
        """
        settings, log = self._settings, self._settings.log
        name = settings.client_id if log is None else f"{settings.client_id}-{log.id}"
        found = await has_store(settings.connection, name, self._random.randbytes(16), self._is_own)
        if isinstance(found, Closed):
            return None if found.fatal else found
        return Closed(already_there(self.url), fatal=True) if found else None

    def _is_own(self, store_id: str) -> bool:
        """Whether the store of this name is the one that is in the log. In the document's dialect it has none."""
        return self.replication is not None and self.replication.store_id == store_id != ""

    def _lost(self, closed: Closed, *, was_told: bool) -> None:
        self._driver = None
        self._is_ready.clear()
        self.host.disconnected()
        if self._was_up:
            self._was_up = False
            self.losses += 1
            self._note("broker lost", closed.error.message)
            log_event(logging.WARNING, "broker lost", url=self.url, reason=closed.error.message)
        elif not was_told:
            log_event(logging.WARNING, "broker not reached", url=self.url, reason=closed.error.message)

    def _on_events(self, driver: AioDriver, events: Sequence[object]) -> None:
        if driver is not self._driver:
            return
        now, host = self._clock(), self.host
        for event in events:
            if isinstance(event, Publish):
                host.receive(event, now)
            elif isinstance(event, Published):
                host.published(event.delivery_id, event.reason_code, now)
            elif isinstance(event, Connected):
                self._connected(event)
            elif isinstance(event, Subscribed):
                self._subscribed(event)
            elif isinstance(event, Closed) and not self._closed.done():
                self._closed.set_result(event)
        self._flush()

    def _connected(self, event: Connected) -> None:
        self.connections += 1
        self._was_up, self._unreached_since, self._most_unreached_s = True, None, _REACHED_WITHIN_S
        self._broker_takes = event.maximum_packet_size or MAX_PACKET_SIZE
        if self._driver is not None:
            self._driver.subscribe(_SUBSCRIBE_ID, (COMMAND_TOPIC,))
        self.host.connected(self._clock(), session_present=event.session_present, receive_maximum=event.receive_maximum)
        self._note("broker connected", f"as {self._settings.client_id}")
        log_event(
            logging.WARNING if self.losses else logging.INFO,
            "broker connected",
            url=self.url,
            client=self._settings.client_id,
            session_present=event.session_present,
            receive_maximum=event.receive_maximum,
        )

    def _note(self, what: str, text: str) -> None:
        """For people who look at the monitor."""
        if self._tap is not None:
            self._tap.note(what, client=self.url, text=text)

    def _subscribed(self, event: Subscribed) -> None:
        code = event.reason_codes[0]
        if code < FIRST_ERROR:
            self._is_ready.set()
            return
        text = f"the broker at {self.url} does not let this host subscribe to {COMMAND_TOPIC} (0x{code:02X})"
        self.cannot_go_on(ConnectionLostError(text, fatal=True))

    # -- with other hosts on one log -----------------------------------------------------------------------------------

    def on_active(self, service: StateStoreService, broker: Host) -> None:
        """This host is active now, with these."""
        self.service, self.host = service, broker
        self._is_active = True
        self._news.set()

    def on_inactive(self) -> None:
        """It is not any more."""
        self._is_active = False

    def on_fatal_error(self, error: StateStoreError) -> None:
        """The log cannot be used."""
        self.cannot_go_on(error)

    def replace_broker(self, broker: Host, group_commit: GroupCommit | None = None) -> None:
        """Go on with another machine. Of what the former one has sent, nothing is repeated by this one."""
        self.host, self._group_commit = broker, group_commit
        if group_commit is not None:
            group_commit.bind(broker, self._released, self._go_on)
        self._alarm.cancel()
        self._connector.close()
        self._connector = self._new_connector()

    def dismiss(self, reason: str, *, awaits: bool = False) -> None:
        """End the connection. The broker keeps the session, and what was not acknowledged there, for the one who is
        active: another host, or this one, when it is known to be.
        """
        del awaits
        driver, self._driver = self._driver, None
        self._is_ready.clear()
        self.host.disconnected()
        if driver is not None:
            driver.abort()
            if not self._closed.done():
                self._closed.set_result(Closed(ConnectionLostError(reason)))

    def flush(self) -> None:
        """The lease is there again, perhaps: say what may be said, and connect."""
        self._news.set()
        self._flush()

    # -- out -----------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Hand out what the machine says, and what the disk lets it say."""
        host = self.host
        if self._group_commit is not None:
            self._group_commit.flush()
        else:
            while host.dirty:
                host.seal()
                host.release()
                host.caught_up(self._clock())
        self._carry_out()
        self._report()
        if (deadline := host.next_deadline()) is not None and deadline < self._alarm.latest:
            self._alarm.set(deadline)

    def _released(self, host: Host) -> None:
        self._carry_out()
        host.caught_up(self._clock())

    def _go_on(self) -> None:
        """The disk has caught up."""
        self.host.caught_up(self._clock())

    def _carry_out(self) -> None:
        driver, outbox = self._driver, self.host.outbox
        if driver is None:
            return
        publish, acknowledge = driver.publish_packet, driver.acknowledge
        for output in outbox:
            if isinstance(output, Acknowledge):
                acknowledge(output.packet_id)
            else:
                publish(output.delivery_id, output.message, again=output.is_again)
        outbox.clear()
        driver.flush()

    def _report(self) -> None:
        if not self.host.reports:
            return
        reports, self.host.reports = self.host.reports, []
        for report in reports:
            if isinstance(report, Exception):
                self.refusals.line("the application failed", None, level=logging.ERROR, error=report)
            elif isinstance(report, ReportDenial):
                event = "no room" if report.reason_code == 0x97 else "not authorized"
                self.refusals.line(event, None, client=report.client_id, action=report.action, what=report.what)
            elif isinstance(report, ReportClock):
                self.refusals.clock_ahead(None, report.client_id, report.ahead_s)
            else:
                why = report.reason if hasattr(report, "reason") else report.why
                self.refusals.seldom("request dropped", None, report.client_id, reason=why)

    def _tick(self) -> None:
        with contained("the host failed in a tick"):
            self.host.tick(self._clock())
        self._flush()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        """The disk cannot be written any more."""
        self.cannot_go_on(error if isinstance(error, DataDirectoryError) else DataDirectoryError(str(error)))

    def cannot_go_on(self, error: StateStoreError) -> None:
        """The owner of the store is to stop it."""
        if self.failure is None:
            self.failure = error
            log_event(logging.CRITICAL, "the host cannot go on", reason=error.message)
        if self._driver is not None:
            self._driver.abort()
        self._has_failed.set()

    async def stop(self) -> None:
        """Let another host go on, if there is one; say goodbye to the broker, which keeps what comes meanwhile."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._is_ready.clear()
        if self.replication is not None:
            await self.replication.close()
        self._alarm.cancel()
        if self._driver is not None:
            self._closed = self._loop.create_future()
            self.host.disconnected()
            self._driver.disconnect()
            self._driver.flush()
            with suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await self._closed
            self._driver = None
        await self._close_parts()

    async def _close_parts(self) -> None:
        if self.replication is not None:
            await self.replication.close()
        self._connector.close()
        for pages in self._pages:
            pages.close()
        if self._monitor is not None:
            self._monitor.close()
        if self._disk is not None:
            self._disk.close()


def _lives(log: ReplicaSettings, store: HostedStore) -> ReplicatedServer[Host]:
    # The client of the log takes a while to import, and most hosts do without.
    from statestore_client.server.runtime.replication.replicated_server import ReplicatedServer

    return ReplicatedServer(log, store)


@attrs.frozen(eq=False)
class HostMetrics:
    """The figures of a hosted store for Prometheus. ``version`` tells the package's."""

    store: HostedStore
    version: Callable[[], str]

    def render(self) -> bytes:
        """All of them, now."""
        store = self.store
        log = () if store.replication is None else log_figures(store.replication)
        lines = (*self._host(), *store_figures(store.service, store.now), *log, *process_figures(), "")
        figures = "\n".join(lines).encode()
        peer = None if store.replication is None else store.replication.peer
        return figures if peer is None else figures + peer.figures

    def _host(self) -> Iterable[str]:
        store, host = self.store, self.store.host
        yield from metric("build_info", "The version.", {f'version="{self.version()}"': 1})
        yield from metric("uptime_seconds", "Since the start.", store.uptime_s)
        for name, text, value in (
            ("connected", "1 while the broker brings requests.", int(store.is_ready)),
            ("in_flight", "Answers and notifications that the broker has not acknowledged.", host.in_flight),
            ("open_requests", "Requests that are not acknowledged to the broker.", host.open_requests),
            ("waiting_requests", "Of those, the ones that wait for room here.", host.waiting),
            ("lag_seconds", "How long the oldest of the open requests has been here.", host.lag_s(store.now)),
            ("registrations", "Keys that clients observe, each once for each client.", len(host.registrations)),
        ):
            yield from metric(f"host_{name}", text, value)
        for name, text, value in (
            ("connections", "Connections to the broker.", store.connections),
            ("losses", "Of those, the ones that were lost.", store.losses),
            ("requests", "Messages of the broker.", host.counters.requests),
            ("repeated_requests", "Of those, the ones that it has sent before.", host.counters.again),
            ("notifications", "Notifications that were sent.", host.counters.notifications),
            ("refused_messages", "Messages that the broker did not take.", host.counters.refused),
            ("ended_registrations", "Observers that were gone.", host.registrations.ended),
        ):
            yield from metric(f"host_{name}_total", text, value, kind="counter")

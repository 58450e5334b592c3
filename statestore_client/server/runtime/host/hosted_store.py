"""The hosted store: the machine of :mod:`statestore_client.server.host` on the native driver, a disk and a clock.

One connection to the broker at a time. When it is lost the next one is made, with a growing pause, until the store is
stopped; what waits meanwhile waits in the broker. Belongs to the event loop that started it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, Final

import attrs

from raft_client._common.http_server import HttpEndpoint
from statestore_client.errors import ConnectionLostError, DataDirectoryError, StateStoreError
from statestore_client.mqtt.packets.types import Publish
from statestore_client.mqtt.service_connection import ServiceConnector, ServiceDriver
from statestore_client.server.broker.application import ReportClock, ReportDenial
from statestore_client.server.broker.quotas import network_of
from statestore_client.server.host.askers import NO_ID, is_nobody
from statestore_client.server.host.host import Acknowledge, Host
from statestore_client.server.runtime.clock import Alarm, Clock, system_clock
from statestore_client.server.runtime.host.other_stores import already_there, has_store
from statestore_client.server.runtime.observability.information import information
from statestore_client.server.runtime.observability.logs import LOGGER, RefusalLog, contained, log_event
from statestore_client.server.runtime.observability.metrics import MetricsPages, metric, process_figures, store_figures
from statestore_client.server.runtime.process import package_version
from statestore_client.server.runtime.storage.disk_storage import Disk
from statestore_client.server.service.response_cache import ResponseCacheLimits
from statestore_client.server.service.service import TOKEN_KEY_BYTES, StateStoreService
from statestore_client.server.store import StateStore, StoreLimits
from statestore_client.wire.hlc import HybridLogicalClock
from statestore_client.wire.messages import Closed, Connected, Published, Subscribed
from statestore_client.wire.protocol import COMMAND_TOPIC, FIRST_ERROR, MAX_PACKET_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from statestore_client.mqtt.driver import AioDriver
    from statestore_client.server.runtime.host.settings import HostSettings
    from statestore_client.server.runtime.storage import GroupCommit

#: The clock node in every version that the store gives out.
_NODE_ID: Final = "StateStore"
#: A connection that lasted this long (seconds) was a good one: the next attempt is made at once.
_LASTED_S: Final = 5.0
#: Longer than requests wait in the broker: who may bring a request again finds its answer.
_ANSWERS_LAST_LONGER_S: Final = 300.0
_METRICS_CONNECTIONS: Final = 16
_SUBSCRIBE_ID: Final = 1
#: How long (seconds) the broker gets to take the DISCONNECT.
_GOODBYE_S: Final = 1.0


class HostedStore:
    """See the module. :meth:`start` returns at once; :meth:`wait_until_ready` when requests are taken."""

    def __init__(self, settings: HostSettings, *, clock: Clock = system_clock, random: Random | None = None) -> None:
        """``clock`` and ``random`` are for tests."""
        self._settings = settings
        self._clock = clock
        self._random = random or SystemRandom()
        self._disk = None if settings.data is None else Disk(settings.data, clock, self._fail)
        journal = None if self._disk is None else self._disk.journal
        store = StateStore(
            clock=HybridLogicalClock(_NODE_ID, guard=threading.RLock()),  # noqa: TID251 - of one thread
            limits=settings.store_limits or StoreLimits(),
            dialect=settings.dialect,
            journal=journal,
            persistence=settings.persistence,
        )
        self.service: StateStoreService = StateStoreService(
            store,
            token_key=self._random.randbytes(TOKEN_KEY_BYTES),
            dialect=settings.dialect,
            cache_limits=ResponseCacheLimits(max_age_s=settings.connection.session_expiry + _ANSWERS_LAST_LONGER_S),
            largest_packet=lambda _: self._broker_takes,
            journal=journal,
            keeps_all=journal is None or settings.persistence.keeps_all,
            no_observer=lambda asker: NO_ID if is_nobody(asker) else None,
        )
        self.host: Host = Host(
            self.service,
            store.observers,
            client_id=settings.client_id,
            journal=journal,
            dialect=settings.dialect,
            id_property=settings.id_property,
        )
        self.failure: StateStoreError | None = None
        #: Since the start.
        self.connections: int = 0
        self.losses: int = 0
        self.metrics_url: str | None = None
        self._connector = ServiceConnector(
            settings.connection, client_id=settings.client_id, maximum_packet_size=settings.packet_bytes
        )
        self._driver: ServiceDriver | None = None
        self._broker_takes = MAX_PACKET_SIZE
        self._refusals = RefusalLog(lambda: clock().monotonic)
        self._started_at = clock().monotonic

    @property
    def now(self) -> float:
        """Monotonic seconds of the clock that the store goes by."""
        return self._clock().monotonic

    # -- the beginning -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Restore the data, answer probes, and begin to connect. Raises DataDirectoryError and OSError."""
        self._loop = loop = asyncio.get_running_loop()
        self._is_ready, self._has_failed = asyncio.Event(), asyncio.Event()
        self._closed: asyncio.Future[Closed] = loop.create_future()
        self._alarm = Alarm(loop.call_at, self._tick)
        self._group_commit: GroupCommit | None = None
        self._pages: asyncio.Server | None = None
        try:
            if self._disk is None:
                self.host.restore(None, self._clock())
            else:
                self._group_commit = self._disk.open(self.host, self.service, loop)
                self._group_commit.bind(self.host, self._released, self._go_on)
            await self._open_pages()
        except BaseException:
            self._close_parts()
            raise
        self._task = loop.create_task(self._run(), name="statestore host")
        self._flush()

    async def _open_pages(self) -> None:
        settings = self._settings
        if settings.metrics_port is None:
            return
        pages = MetricsPages(HostMetrics(self, package_version).render, self._why_not_ready, self._information)
        make = HttpEndpoint(pages.respond, LOGGER, connections=_METRICS_CONNECTIONS, network_of=network_of)
        self._pages = await self._loop.create_server(make, settings.metrics_host, settings.metrics_port)
        port = self._pages.sockets[0].getsockname()[1]
        host = settings.metrics_host
        self.metrics_url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    @property
    def url(self) -> str:
        """Of the broker."""
        return self._settings.connection.url

    @property
    def is_ready(self) -> bool:
        """Whether the broker brings requests."""
        return self._is_ready.is_set()

    def _why_not_ready(self) -> str:
        return "" if self.is_ready else "the broker is away"

    @property
    def uptime_s(self) -> float:
        return self._clock().monotonic - self._started_at

    def _information(self) -> dict[str, Any]:
        return information(
            self._settings,
            kind="hosted",
            role="alone",
            directory=self._settings.data,
            urls=(self.url,),
            uptime_s=self.uptime_s,
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
        pause_s, was_told, is_alone = connection.reconnect_delay, False, False
        while not self._has_failed.is_set():
            began = self._loop.time()
            if is_alone:
                closed = await self._be_connected()
            elif (found := await self._look_around()) is None:
                is_alone = True
                continue
            else:
                closed = found
            if closed.fatal:
                self.cannot_go_on(closed.error)
                return
            was_up, lasted_s = self.host.is_connected, self._loop.time() - began
            self._lost(closed, was_told=was_told)
            was_told = not was_up
            if was_up and lasted_s >= _LASTED_S:
                pause_s = connection.reconnect_delay
                continue
            await asyncio.sleep(pause_s * (0.5 + self._random.random() / 2))
            pause_s = connection.reconnect_delay if was_up else min(2 * pause_s, connection.max_reconnect_delay)

    async def _be_connected(self) -> Closed:
        """One connection, from its beginning to its end."""
        self._closed = self._loop.create_future()
        self._driver = self._connector.open(clean_start=False, on_events=self._on_events)
        await self._driver.connect()
        return await self._closed

    async def _look_around(self) -> Closed | None:
        """None if there is no other store on the broker, or if the broker does not let us look: it may know clients
        by their names, and what else is wrong shows when the host itself connects.
        """
        settings = self._settings
        found = await has_store(settings.connection, settings.client_id, self._random.randbytes(16))
        if isinstance(found, Closed):
            return None if found.fatal else found
        return Closed(already_there(self.url), fatal=True) if found else None

    def _lost(self, closed: Closed, *, was_told: bool) -> None:
        self._driver = None
        self._is_ready.clear()
        if self.host.is_connected:
            self.losses += 1
            self.host.disconnected()
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
        self._broker_takes = event.maximum_packet_size or MAX_PACKET_SIZE
        if self._driver is not None:
            self._driver.subscribe(_SUBSCRIBE_ID, (COMMAND_TOPIC,))
        self.host.connected(self._clock(), session_present=event.session_present, receive_maximum=event.receive_maximum)
        log_event(
            logging.WARNING if self.losses else logging.INFO,
            "broker connected",
            url=self.url,
            client=self._settings.client_id,
            session_present=event.session_present,
            receive_maximum=event.receive_maximum,
        )

    def _subscribed(self, event: Subscribed) -> None:
        code = event.reason_codes[0]
        if code < FIRST_ERROR:
            self._is_ready.set()
            return
        text = f"the broker at {self.url} does not let this host subscribe to {COMMAND_TOPIC} (0x{code:02X})"
        self.cannot_go_on(ConnectionLostError(text, fatal=True))

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
                self._refusals.line("the application failed", None, level=logging.ERROR, error=report)
            elif isinstance(report, ReportDenial):
                event = "no room" if report.reason_code == 0x97 else "not authorized"
                self._refusals.line(event, None, client=report.client_id, action=report.action, what=report.what)
            elif isinstance(report, ReportClock):
                self._refusals.clock_ahead(None, report.client_id, report.ahead_s)
            else:
                why = report.reason if hasattr(report, "reason") else report.why
                self._refusals.seldom("request dropped", None, report.client_id, reason=why)

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
        """Say goodbye to the broker, which keeps what comes meanwhile, and close."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._is_ready.clear()
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
        self._connector.close()
        self._close_parts()

    def _close_parts(self) -> None:
        if self._pages is not None:
            self._pages.close()
        if self._disk is not None:
            self._disk.close()


# -- figures for Prometheus --------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class HostMetrics:
    """Renders. ``version`` tells the package's."""

    store: HostedStore
    version: Callable[[], str]

    def render(self) -> bytes:
        """All of them, now."""
        lines = (*self._host(), *store_figures(self.store.service, self.store.now), *process_figures(), "")
        return "\n".join(lines).encode()

    def _host(self) -> Iterable[str]:
        store, host = self.store, self.store.host
        yield from metric("build_info", "The version.", {f'version="{self.version()}"': 1})
        yield from metric("uptime_seconds", "Since the start.", store.uptime_s)
        for name, text, value in (
            ("connected", "1 while the broker brings requests.", int(store.is_ready)),
            ("in_flight", "Answers and notifications that the broker has not acknowledged.", host.in_flight),
            ("waiting_requests", "Requests that wait for room here.", host.waiting),
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

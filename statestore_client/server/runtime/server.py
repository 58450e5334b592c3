"""The server: the one file that puts the rooms together. Listeners, broker, state store, clock."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, Final

from statestore_client.errors import DataDirectoryError, SettingsError, StateStoreError
from statestore_client.server.access import ClientPermissions
from statestore_client.server.bridge import RESERVED_BYTES
from statestore_client.server.broker import Broker
from statestore_client.server.broker.administration import Administration
from statestore_client.server.cluster.interface import Role
from statestore_client.server.runtime.broker_driver import BrokerDriver
from statestore_client.server.runtime.clock import CallAt, Clock, system_clock
from statestore_client.server.runtime.observability.information import server_information
from statestore_client.server.runtime.observability.logs import contained, log_event
from statestore_client.server.runtime.observability.metrics import Metrics
from statestore_client.server.runtime.process import package_version
from statestore_client.server.runtime.security.security import Security
from statestore_client.server.runtime.settings import Endpoints, ServerSettings
from statestore_client.server.runtime.sites import SiteBridge, SitePeering
from statestore_client.server.runtime.storage.disk_storage import Disk
from statestore_client.server.runtime.transport.connection import ServerConnection
from statestore_client.server.runtime.transport.listeners import Listeners
from statestore_client.server.runtime.transport.tls import TlsFiles
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import SiteStore, StateStore, StoreLimits
from statestore_client.wire.hlc import HybridLogicalClock

if TYPE_CHECKING:
    from statestore_client.server.broker import BrokerEvents, Counters
    from statestore_client.server.journal import Journal
    from statestore_client.server.kvstore.own_keys import OwnEvent
    from statestore_client.server.kvstore.peers import SiteEvent
    from statestore_client.server.runtime.monitor.service import MonitorService
    from statestore_client.server.runtime.replication.replicated_server import ReplicatedServer
    from statestore_client.server.runtime.replication.settings import ReplicaSettings
    from statestore_client.server.runtime.storage import GroupCommit
    from statestore_client.wire.commands import Command
    from statestore_client.wire.kvstore.messages import LostKey

#: How often the files of certificates, passwords and access rules are looked at.
_LOOK_EVERY_S: Final = 1.0

#: How long clients get at the end to take their DISCONNECT.
_SHUTDOWN_GRACE_S: Final = 0.05

#: The clock node in every version that this server gives out.
_NODE_ID: Final = "StateStore"


class Server:
    """A broker with the state store inside. Belongs to the event loop that started it."""

    _grace_s = _SHUTDOWN_GRACE_S

    def __init__(
        self,
        settings: ServerSettings | None = None,
        *,
        clock: Clock = system_clock,
        random: Random | None = None,
        events: BrokerEvents | None = None,
    ) -> None:
        """:attr:`endpoints` tells after the start which ports the system chose. ``clock``, ``random`` and ``events``
        are for tests; with a log, ``clock`` is not used.

        Raises SettingsError for files that cannot be used, and for endpoints that need certificates without ``tls``.
        """
        settings = self._settings = settings or ServerSettings()
        self._endpoints = settings.endpoints
        self._endpoints.check(has_tls=settings.tls is not None)
        self.replication: ReplicatedServer[Broker] | None = None if settings.log is None else _lives(settings.log, self)
        self._clock: Clock = clock if self.replication is None else self.replication.clock
        # Keys and names that are made of it must not repeat from one process to the next, or be guessed.
        self._random = random or SystemRandom()
        self._tls = None if settings.tls is None else TlsFiles(settings.tls)
        self._security = Security.of(
            passwords=settings.passwords,
            acl=settings.acl,
            token_verifier=settings.token_verifier,
            allow_anonymous=settings.allow_anonymous,
        )
        self._monitor = self._new_monitor(events, has_actions=settings.monitor_actions)
        self._tap = None if self._monitor is None else self._monitor.tap
        self._events = self._tap or events
        self._disk = None if settings.data is None else Disk(settings.data, self._clock, self._fail)
        #: While it runs; None for a server that is not a site.
        self.site: SitePeering | None = None
        self._bridge: SiteBridge | None = None
        self._failed = asyncio.Event()
        self.failure: StateStoreError | None = None
        self._service, self._broker = self.build_state(None if self._disk is None else self._disk.journal)
        self._driver: BrokerDriver | None = None
        self._listeners: Listeners | None = None
        self._look: asyncio.TimerHandle | None = None

    def build_state(self, journal: Journal | None) -> tuple[StateStoreService, Broker]:
        """An empty broker with an empty store inside, which write into the journal."""
        has_bridge = self._settings.site is not None and self._settings.site.has_bridge
        guard = threading.RLock()  # noqa: TID251 - of one thread, which never waits for it
        store = self._store = (SiteStore if has_bridge else StateStore)(
            clock=HybridLogicalClock(_NODE_ID, guard=guard),
            limits=self._settings.store_limits or StoreLimits(),
            dialect=self._settings.dialect,
            journal=journal,
            persistence=self._settings.persistence,
            observer=None if self._tap is None else self._tap.observe,
        )
        broker = Broker(
            random=self._random,
            limits=self._settings.broker_limits,
            gatekeeper=self._security,
            journal=journal,
            events=self._events,
        )
        has_rules = self._security.has_rules
        service = StateStoreService(
            store,
            token_key=self._random.randbytes(TOKEN_KEY_BYTES),
            dialect=self._settings.dialect,
            authorize=self._may_run if has_rules else None if self._settings.authorize is None else self._asks,
            may_be_answered_on=self._may_be_answered_on if has_rules else None,
            user_of=broker.user,
            largest_packet=broker.largest_packet,
            journal=journal,
            keeps_all=journal is None or self._settings.persistence.keeps_all,
            read_only=RESERVED_BYTES if has_bridge else None,
        )
        administration = Administration(broker.control, self._obstacle)
        for application in (service, administration):
            broker.install(application if self._tap is None else self._tap.timed(application))
        return service, broker

    @property
    def endpoints(self) -> Endpoints:
        """Where it listens; before the start, what was asked for."""
        return self._endpoints

    @property
    def urls(self) -> list[str]:
        """Of all endpoints, the main one first; a Unix socket as ``unix:path``. Empty before the start."""
        return [] if self._listeners is None else self._listeners.urls

    @property
    def monitor_url(self) -> str | None:
        """Of the page for people, if it runs and has one."""
        return None if self._listeners is None else self._listeners.monitor_url

    @property
    def counters(self) -> Counters:
        return self._broker.counters

    def _served(self) -> int:
        return self.counters.received_messages

    async def start(self) -> None:
        """Listen. Raises OSError when an address cannot be had, SettingsError for an address of sites, and
        DataDirectoryError when the data cannot. With a log it waits until that is read, and raises ReplicatedLogError
        for one of something else.
        """
        loop = asyncio.get_running_loop()
        group_commit = None if self._disk is None else self._disk.open(self._broker, self._service, loop)
        try:
            if self.replication is None:
                self._open_site()
            await self._listen(loop, group_commit)
        except BaseException:
            self._driver = None
            await self._close_parts()
            raise

    async def _listen(self, loop: asyncio.AbstractEventLoop, group_commit: GroupCommit | None) -> None:
        driver = self._new_driver(loop, group_commit)
        replication = self.replication
        metrics = Metrics(
            driver,
            lambda: self._service,
            package_version,
            lambda: self.site,
            lambda: self._bridge,
            replication,
            self._tls,
        )
        if self._monitor is not None:
            self._open_monitor(self._monitor, driver, metrics)
        listeners = Listeners(
            driver,
            self._tls,
            partial(self._new_connection, driver),
            render=metrics.render,
            inform=self._information,
            why_not_ready=self._why_not_ready,
            monitor=self._monitor,
            guard=None if replication is None else replication.router.guard,
        )
        self._driver = driver
        if replication is None:
            self._open_bridge(driver)
        else:
            await replication.open(driver)
            await replication.wait_until_known()
        self._endpoints = await listeners.open(self._endpoints)
        self._listeners = listeners
        self._look_again()
        log_event(logging.INFO, "listening", urls=listeners.urls, dialect=str(self._settings.dialect))
        driver.flush()  # what was due while the server was away

    def _information(self) -> dict[str, Any]:
        uptime_s = 0.0 if self._driver is None else self._driver.uptime_s
        return server_information(self._settings, self.replication, self.urls, uptime_s)

    @property
    def is_active(self) -> bool:
        """Of several servers of a log one is."""
        return self.replication is None or self.replication.role is Role.ACTIVE

    def _open_site(self) -> None:
        """Be a site of the KvStore, if it is to be one. Of the servers of a log only the active one is."""
        if self._settings.site is not None:
            self.site = SitePeering.of(
                self._settings.site,
                self._random,
                self._clock().wall_ms,
                self._served,
                on_event=self._on_site_event,
                on_lost=self._on_lost_key,
            )

    def _on_site_event(self, event: SiteEvent | OwnEvent) -> None:
        """For a program that has the server inside."""

    def _on_lost_key(self, loss: LostKey) -> None:
        """The same for a key that was set at the site, and that another site has overridden."""

    def _why_not_ready(self) -> str:
        """The log first: a server that is not the active one has no site."""
        why = "" if self.replication is None else self.replication.why_not_ready
        return why or ("" if self.site is None else self.site.why_not_ready)

    def _close_site(self) -> None:
        if self._bridge is not None:
            self._bridge.close()
            self._bridge = None
        if self.site is not None:
            self.site.close()
            self.site = None

    def _open_bridge(self, driver: BrokerDriver) -> None:
        """To the present store. What the site exports is published again from it."""
        if self._bridge is not None:
            self._bridge.close()
        endpoints, site, store = self._settings.site, self.site, self._store
        if endpoints is not None and site is not None and isinstance(store, SiteStore):
            self._bridge = SiteBridge(store, self._service, driver, site, endpoints, self._clock)

    def _new_driver(self, loop: asyncio.AbstractEventLoop, group_commit: GroupCommit | None) -> BrokerDriver:
        return BrokerDriver(
            self._broker,
            self._clock,
            loop,
            verify=self._security.verify,
            group_commit=group_commit,
            call_at=self._call_at,
        )

    @property
    def _call_at(self) -> CallAt | None:
        """None if the clock is that of the event loop."""
        return None if self.replication is None else self.replication.clock.call_at

    def _new_monitor(self, events: BrokerEvents | None, *, has_actions: bool) -> MonitorService | None:
        if self._endpoints.monitor_port is None:
            return None
        # Most servers do without.
        from statestore_client.server.runtime.monitor.service import MonitorService

        host = self._endpoints.monitor_host
        return MonitorService(host, self._security, self._tls, events, has_actions=has_actions)

    def _open_monitor(self, monitor: MonitorService, driver: BrokerDriver, metrics: Metrics) -> None:
        from statestore_client.server.runtime.monitor.api import ServerParts  # as the monitor itself

        is_durable = self._disk is not None or self.replication is not None
        about = {"is_durable": is_durable, "dialect": str(self._settings.dialect)}
        parts = ServerParts(
            store=lambda: self._store,
            service=lambda: self._service,
            broker=lambda: driver.broker,
            site=lambda: self.site,
            replication=self.replication,
            clock=self._clock,
        )
        monitor.open(
            parts,
            metrics,
            commits=lambda: driver.group_commit,
            about=lambda: about | {"urls": self.urls},
            inform=self._information,
            driver=driver,
        )

    def _new_connection(self, driver: BrokerDriver) -> ServerConnection:
        return ServerConnection(driver)

    def reload(self) -> None:
        """Read certificates, passwords and access rules that have changed. Happens every second by itself."""
        if self._tls is not None:
            problem = self._tls.refresh()
            self._tls.warn_of_ends(self._clock().wall_ms / 1000)
            if self._driver is not None and problem is not None:
                self._driver.withdrawn(problem)
        gone = self._security.refresh()
        if gone is not None and self._driver is not None:
            self._driver.review(gone)
        if gone is not None and self._monitor is not None:
            self._monitor.review()

    def _look_again(self) -> None:
        with contained("reloading failed"):
            self.reload()
        self._look = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look_again)

    # -- access rules -------------------------------------------------------------------------------------------------

    def _may_run(self, client_id: str, command: Command) -> bool:
        permissions = self._broker.permissions(client_id)
        is_permitted = isinstance(permissions, ClientPermissions) and permissions.may_run(command)
        return is_permitted and self._asks(client_id, command)

    def _asks(self, client_id: str, command: Command) -> bool:
        """The program's own function, if there is one. What is not a bool permits nothing: a coroutine, for example."""
        verdict: object = True if self._settings.authorize is None else self._settings.authorize(client_id, command)
        if not isinstance(verdict, bool) and self._driver is not None:
            returned = type(verdict).__name__
            self._driver.refusals.line("authorize returned no bool", None, level=logging.ERROR, returned=returned)
        return verdict is True

    def _may_be_answered_on(self, client_id: str, topic: str) -> bool:
        permissions = self._broker.permissions(client_id)
        return isinstance(permissions, ClientPermissions) and permissions.may_be_answered_on(topic)

    def _obstacle(self, client_id: str) -> str | None:
        """Why this client may not administer the server; None if it may. Where nobody has to prove who he is, it
        depends on who can come here at all.
        """
        if not self._security.has_rules:
            knows_clients = self._security.requires_identity or (self._tls is not None and self._tls.requires_identity)
            is_open = self._endpoints.is_local and not knows_clients and self._settings.authorize is None
            return None if is_open else "the server has no access rules (--acl-file) that name who may do this"
        permissions = self._broker.permissions(client_id)
        if not isinstance(permissions, ClientPermissions):
            return "the access rules are new; connect again"
        if permissions.may_administer:
            return None
        if permissions.user is None:
            return "this takes a user, with an 'admin' line in the server's access rules"
        return f"the server's access rules have no 'admin' line for the user {permissions.user!r}"

    # -- what keeps the data ------------------------------------------------------------------------------------------

    def on_active(self, service: StateStoreService, broker: Broker) -> None:
        """This server is active now, with these."""
        self._service, self._broker = service, broker
        try:
            self._open_site()
        except SettingsError as error:
            self.on_fatal_error(error)
        if self._driver is not None:
            self._open_bridge(self._driver)

    def on_inactive(self) -> None:
        """It is not any more."""
        self._close_site()

    def _fail(self, error: Exception) -> None:
        """The disk cannot be written any more."""
        self.on_fatal_error(error if isinstance(error, DataDirectoryError) else DataDirectoryError(str(error)))

    def on_fatal_error(self, error: StateStoreError) -> None:
        """Nothing can be written any more. The owner of the server is to stop it."""
        self.failure = error
        log_event(logging.CRITICAL, "the server cannot go on", reason=error.message)
        if self._listeners is not None:
            self._listeners.close()
        if self._driver is not None:
            self._driver.give_up()
        self._failed.set()

    async def wait_for_failure(self) -> None:
        """Returns when the server cannot go on; :attr:`failure` tells why. Call :meth:`stop` then."""
        await self._failed.wait()

    # -- the end ------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop listening, tell every client, close. Safe to call twice."""
        listeners, self._listeners = self._listeners, None
        driver, self._driver = self._driver, None
        if listeners is None or driver is None:
            return
        if self._look is not None:
            self._look.cancel()
        await listeners.stop_accepting()
        if self.replication is not None:
            await self.replication.close()
        await driver.close(self._grace_s)
        await listeners.wait_closed()
        await self._close_parts()
        log_event(logging.INFO, "stopped", urls=listeners.urls)

    async def _close_parts(self) -> None:
        """What is not a listener."""
        if self.replication is not None:
            await self.replication.close()
        self._close_site()
        if self._monitor is not None:
            self._monitor.close()
        if self._disk is not None:
            self._disk.close()


def _lives(log: ReplicaSettings, server: Server) -> ReplicatedServer[Broker]:
    # The client of the log takes a while to import, and most servers do without.
    from statestore_client.server.runtime.replication.replicated_server import ReplicatedServer

    return ReplicatedServer(log, server)

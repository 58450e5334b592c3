"""The monitor of one server, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore_client.server.cluster.roles import Role
from statestore_client.server.runtime.monitor.access import MonitorAccess, check_monitor
from statestore_client.server.runtime.monitor.api import Actions, Questions, ServerParts
from statestore_client.server.runtime.monitor.monitor import Monitor
from statestore_client.server.runtime.monitor.pages import MonitorPages
from statestore_client.server.runtime.monitor.tap import Tap

if TYPE_CHECKING:
    from collections.abc import Callable

    from raft_client._common.http_server import HttpRequest, HttpResponse
    from statestore_client.server.broker import BrokerEvents
    from statestore_client.server.runtime.clock import Clock
    from statestore_client.server.runtime.observability.metrics import Metrics
    from statestore_client.server.runtime.security.security import Security
    from statestore_client.server.runtime.transport.tls import TlsFiles
    from statestore_client.server.store import StateStore

__all__ = ["MonitorService"]


class MonitorService:
    """From the making of a server to its end; after the end, it can be opened again."""

    def __init__(
        self,
        host: str,
        security: Security,
        tls: TlsFiles | None,
        events: BrokerEvents | None,
        *,
        has_actions: bool,
    ) -> None:
        """``events`` hears of the broker what the :attr:`tap` hears. Raises SettingsError for a monitor that nobody, or
        everybody, could see.
        """
        asks_for_certificates = tls is not None and tls.requires_identity
        check_monitor(host, security, asks_for_certificates=asks_for_certificates, has_actions=has_actions)
        self._has_actions = has_actions
        self._host = host
        self._security = security
        self.tap: Tap = Tap(events)
        self._monitor: Monitor | None = None
        self._pages: MonitorPages | None = None

    def open(
        self,
        metrics: Metrics,
        clock: Clock,
        store: Callable[[], StateStore],
        about: Callable[[], dict[str, object]],
    ) -> None:
        """Begin, in the running event loop. ``about`` is told to those that look, with what the figures do not say."""
        replication, driver = metrics.replication, metrics.driver
        parts = ServerParts(
            store,
            metrics.service,
            lambda: driver.broker,
            metrics.site,
            lambda: None if replication is None else replication.log_peers.known(),
            lambda: None if replication is None or replication.role is Role.ACTIVE else replication.active[1],
            driver.flush,
            clock,
        )
        known = {
            "version": metrics.version(),
            "is_replicated": replication is not None,
            "has_actions": self._has_actions,
        }
        self._monitor = Monitor(
            self.tap,
            metrics.render,
            lambda: known | about(),
            clock,
            lambda: None if driver.group_commit is None else driver.group_commit.times,
        )
        access = MonitorAccess(self._security, self._host, driver.broker.limits.failed_attempts)
        questions = Questions(parts, self.tap.changes).by_path()
        self._pages = MonitorPages(
            self._monitor, access, questions, Actions(parts, self.tap) if self._has_actions else None
        )

    @property
    def methods(self) -> tuple[str, ...]:
        """Of requests."""
        return ("GET", "HEAD", "POST") if self._has_actions else ("GET", "HEAD")

    @property
    def viewers(self) -> int:
        """How many look."""
        return 0 if self._monitor is None else self._monitor.viewers

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """Answer a request for a page."""
        if self._pages is None:
            raise RuntimeError("this monitor is not open")
        return await self._pages.respond(request)

    def review(self) -> None:
        """The passwords or the rules are others: people that look have to come in again."""
        if self._monitor is not None:
            self._monitor.dismiss()

    def close(self) -> None:
        """The server stops."""
        if self._monitor is not None:
            self._monitor.close()

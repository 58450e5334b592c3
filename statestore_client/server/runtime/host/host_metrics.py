"""The figures of a hosted store for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs

from statestore_client.server.runtime.observability.metrics import log_figures, metric, process_figures, store_figures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from statestore_client.server.host.host import Host
    from statestore_client.server.runtime.replication.replicated_server import ReplicatedServer
    from statestore_client.server.service.service import StateStoreService


class HasFigures(Protocol):
    """What the figures tell of a hosted store."""

    service: StateStoreService
    host: Host
    connections: int
    losses: int

    @property
    def replication(self) -> ReplicatedServer[Any] | None: ...

    @property
    def now(self) -> float: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def uptime_s(self) -> float: ...


@attrs.frozen(eq=False)
class HostMetrics:
    """Renders. ``version`` tells the package's."""

    store: HasFigures
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

"""The monitor of one server: what viewers see, everything when they come, and once a second what has changed.

One message is made for all viewers, so that ten of them cost hardly more than one; another one for who may not read all
keys, without the holders of those locks: they are values. A message is a JSON object, sent as a server-sent event:

``hello``   ``server``, ``now``, ``figures`` (those of the page for Prometheus), ``history`` of some of them, ``locks``,
            ``refusals``, ``events``, ``latency``
``tick``    ``now``; of ``figures``, ``locks``, ``refusals`` and ``events`` what is new; ``latency`` of the last second
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from raft_client._common.http_server import HttpResponse
from statestore_client.server.broker.limits import BrokerLimits
from statestore_client.server.monitor import without_holders
from statestore_client.server.runtime.monitor.access import MonitorAccess, check_monitor
from statestore_client.server.runtime.monitor.api import MonitorCommands, MonitorQueries
from statestore_client.server.runtime.monitor.pages import MonitorPages
from statestore_client.server.runtime.monitor.tap import Tap
from statestore_client.server.runtime.observability.logs import contained

if TYPE_CHECKING:
    from collections.abc import Callable

    from raft_client._common.http_server import HttpRequest, HttpResponse, HttpStream
    from statestore_client.server.broker import BrokerEvents
    from statestore_client.server.monitor import Latencies
    from statestore_client.server.runtime.broker_driver import BrokerDriver
    from statestore_client.server.runtime.clock import Clock
    from statestore_client.server.runtime.monitor.access import Viewer
    from statestore_client.server.runtime.monitor.api import ServerParts
    from statestore_client.server.runtime.monitor.tap import Tap
    from statestore_client.server.runtime.security.security import Security
    from statestore_client.server.runtime.storage import GroupCommit
    from statestore_client.server.runtime.transport.tls import TlsFiles

_EVERY_S: Final = 1.0

#: Seconds of the plots that a new viewer sees.
_HISTORY: Final = 300

#: What the plots show. Of totals, the page takes the differences.
PLOTTED: Final = (
    "statestore_received_messages_total",
    "statestore_sent_messages_total",
    "statestore_clients",
    "statestore_store_keys",
    "statestore_held_bytes",
    "statestore_host_lag_seconds",
    "statestore_host_in_flight",
    "process_resident_memory_bytes",
)
_REQUESTS: Final = "statestore_store_requests_total{"
_REFUSALS: Final = "statestore_store_refusals_total{"


class Monitor:
    """Of one server. Belongs to its event loop."""

    def __init__(
        self,
        tap: Tap,
        render: Callable[[], bytes],
        about: Callable[[], dict[str, Any]],
        clock: Clock,
        commit_times: Callable[[], Latencies | None],
    ) -> None:
        """``render`` gives the page for Prometheus, ``about`` what the server is, ``commit_times`` how long batches
        take to become durable.
        """
        self._commit_times = commit_times
        self._tap = tap
        self._render = render
        self._about = about
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._viewers: dict[HttpStream, Viewer] = {}
        self._figures: dict[str, float] = {}
        self._history: deque[dict[str, Any]] = deque(maxlen=_HISTORY)
        self._latency: dict[str, float] | None = None
        self._due = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._tick()

    @property
    def viewers(self) -> int:
        """How many look."""
        return len(self._viewers)

    def close(self) -> None:
        """No more ticks."""
        if self._timer is not None:
            self._timer.cancel()

    def dismiss(self) -> None:
        """End all streams. Browsers come again by themselves."""
        for viewer in tuple(self._viewers):
            viewer.abort()

    def stream(self, viewer: Viewer) -> HttpResponse:
        """For one viewer, from now on."""
        headers = (("X-Accel-Buffering", "no"),)  # proxies pass it on at once
        return HttpResponse(content_type="text/event-stream", headers=headers, opened=partial(self._open, viewer))

    def _open(self, viewer: Viewer, stream: HttpStream) -> Callable[[], object]:
        stream.send(b"retry: 2000\n\n" + _event("hello", self._for(viewer, self._hello())))
        self._viewers[stream] = viewer
        return lambda: self._viewers.pop(stream, None)

    def _for(self, viewer: Viewer, message: dict[str, Any]) -> dict[str, Any]:
        """What this one may see of it."""
        if viewer.permissions is None:
            return message
        return message | without_holders(message, self._tap.timeline.keys(), viewer.may_read)

    def _tick(self) -> None:
        late_s = max(0.0, self._loop.time() - self._due)
        self._due = self._loop.time() + _EVERY_S
        self._timer = self._loop.call_at(self._due, self._tick)
        with contained("the monitor failed"):
            self._send(late_s)

    def _send(self, late_s: float) -> None:
        """All viewers what is new."""
        message = self._news(late_s)
        if self._viewers:
            data = _event("tick", message)
            for stream, viewer in tuple(self._viewers.items()):
                stream.send(data if viewer.permissions is None else _event("tick", self._for(viewer, message)))

    def _news(self, late_s: float) -> dict[str, Any]:
        now, tap = self._clock().wall_ms, self._tap
        tap.tick(now)
        before, self._figures = self._figures, figures_of(self._render())
        changed = {name: value for name, value in self._figures.items() if before.get(name) != value}
        gone = [name for name in before if name not in self._figures]
        self._latency = (tap.latencies.take() or {"count": 0}) | {"late": round(1000 * late_s, 3)} | self._commits()
        self._history.append({"at": now, "latency": self._latency, **self._plotted()})
        news = {"now": now, "figures": changed, "latency": self._latency, "events": tap.take_events()}
        return news | ({"gone": gone} if gone else {}) | tap.timeline.take_changes()

    def _commits(self) -> dict[str, float]:
        """Of the last second; nothing if there were none."""
        times = self._commit_times()
        taken = None if times is None else times.take()
        return {} if taken is None else {"commit_p50": taken["p50"], "commit_p99": taken["p99"]}

    def _plotted(self) -> dict[str, float]:
        figures = self._figures
        chosen: dict[str, float] = {name: figures[name] for name in PLOTTED if name in figures}
        for prefix in (_REQUESTS, _REFUSALS):
            chosen[prefix[:-1]] = sum(value for name, value in figures.items() if name.startswith(prefix))
        return chosen

    def _hello(self) -> dict[str, Any]:
        """What the next tick tells everybody is not in it."""
        return {
            "server": self._about(),
            "now": self._clock().wall_ms,
            "figures": self._figures,
            "history": list(self._history),
            "latency": self._latency,
            "events": self._tap.sent_events(),
            **self._tap.timeline.all(unsent=False),
        }


def figures_of(page: bytes) -> dict[str, float]:
    """Of a page in the text format of Prometheus."""
    lines = (line.rpartition(" ") for line in page.decode().split("\n") if line and line[0] != "#")
    return {name: float(value) for name, _, value in lines}


def _event(name: str, message: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(message, separators=(',', ':'))}\n\n".encode()


# -- put together ------------------------------------------------------------------------------------------------------


class Figures(Protocol):
    """For Prometheus."""

    @property
    def version(self) -> Callable[[], str]:
        """Of the package."""

    def render(self) -> bytes:
        """All of them, now."""


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
        parts: ServerParts,
        figures: Figures,
        commits: Callable[[], GroupCommit | None],
        about: Callable[[], dict[str, object]],
        inform: Callable[[], dict[str, Any]],
        driver: BrokerDriver | None = None,
    ) -> None:
        """Begin, in the running event loop. ``about`` is told to those that look, with what the figures do not say;
        ``inform`` to those that ask, at ``/info``. A server without a broker has no ``driver``, and no actions.
        """
        known = {
            "version": figures.version(),
            "is_replicated": parts.replication is not None,
            "has_actions": self._has_actions,
        }
        self._monitor = Monitor(
            self.tap,
            figures.render,
            lambda: known | about(),
            parts.clock,
            lambda: None if (commit := commits()) is None else commit.times,
        )
        limits = BrokerLimits() if driver is None else driver.broker.limits
        access = MonitorAccess(self._security, self._host, limits.failed_attempts)
        questions = MonitorQueries(parts, self.tap.changes).by_path() | {"/info": lambda *_: inform()}
        actions = None if driver is None or not self._has_actions else MonitorCommands(parts, driver, self.tap)
        self._pages = MonitorPages(self._monitor.stream, access, questions, actions)

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

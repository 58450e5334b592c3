"""Where the server listens: TCP, TLS, WebSocket and Unix sockets, any number of them in front of one broker."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from raft_client._common import event_loops
from raft_client._common.hosts import is_local
from raft_client._common.http_server import HttpEndpoint, Respond
from statestore_client.server.broker.quotas import network_of
from statestore_client.server.runtime.observability.logs import LOGGER
from statestore_client.server.runtime.observability.metrics import MetricsPages
from statestore_client.server.runtime.transport.sockets import Acceptor, take_over
from statestore_client.server.runtime.transport.tls import TlsAcceptor, TlsFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.server.runtime.broker_driver import BrokerDriver
    from statestore_client.server.runtime.monitor.service import MonitorService
    from statestore_client.server.runtime.settings import Endpoints
    from statestore_client.server.runtime.transport.connection import ServerConnection

#: Sockets that the kernel keeps for us while we are busy: a burst of reconnecting clients must not be refused.
_BACKLOG: Final = 1024

#: What asyncio is told instead: it accepts so many at a time, and out of file descriptors it logs and sets a timer for
#: each of them, every second, instead of once.
_ACCEPTED_AT_ONCE: Final = 4

#: Of the URLs.
_PATHS: Final = {"ws": "/mqtt", "wss": "/mqtt", "http": "/metrics"}

#: At the same time. Someone who looks at the monitor has one for as long as the page is open, and others for a moment.
_METRICS_CONNECTIONS: Final = 16
_MONITOR_CONNECTIONS: Final = 64


class Listeners:
    """Open sockets that accept. Belongs to the event loop in which it was opened."""

    def __init__(
        self,
        driver: BrokerDriver,
        tls: TlsFiles | None,
        connect: Callable[[], ServerConnection],
        *,
        render: Callable[[], bytes],
        inform: Callable[[], dict[str, Any]],
        why_not_ready: Callable[[], str] = str,
        monitor: MonitorService | None = None,
        guard: Callable[[str, Callable[[], asyncio.Protocol]], Callable[[], asyncio.Protocol]] | None = None,
    ) -> None:
        """``connect`` makes the connection of a client, ``render`` the page of figures, ``inform`` says what the server
        is; ``why_not_ready`` says why clients had better go to another server of the same log, or nothing. ``monitor``
        answers the requests of its port. ``guard`` stands in front of the endpoint of a scheme, if another server may
        have to serve those who come in there.
        """
        self._guard = guard or _open_to_all
        self._driver = driver
        self._connect = connect
        self._render = render
        self._inform = inform
        self._why_not_ready = why_not_ready
        self._monitor = monitor
        self.monitor_url: str | None = None
        self._pages: list[HttpEndpoint] = []
        self._tls = tls
        self._servers: list[asyncio.Server] = []
        self._acceptors: list[Acceptor] = []  # in front of them
        self._tls_acceptors: list[TlsAcceptor] = []
        self._unix: tuple[Path, int] | None = None  # the path and its inode
        self.urls: list[str] = []  # of all endpoints, in the order in which they were opened

    async def open(self, endpoints: Endpoints) -> Endpoints:
        """All of them, or none: raises OSError. Returns them with the ports that the system chose."""
        try:
            return await self._open(endpoints)
        except BaseException:
            await self.stop_accepting()
            raise

    async def _open(self, endpoints: Endpoints) -> Endpoints:
        is_tls = self._tls is not None and endpoints.tls_port is None
        port = await self._tcp(endpoints.host, endpoints.port, "mqtts" if is_tls else "mqtt", self._connect)
        tls_port = await self._tcp_if(endpoints.host, endpoints.tls_port, "mqtts", self._connect)
        ws_port, wss_port = endpoints.ws_port, endpoints.wss_port
        if ws_port is not None or wss_port is not None:
            # Its library takes a while to import, and most servers do without.
            from statestore_client.server.runtime.transport.websocket import websocket_protocol

            make = websocket_protocol(self._driver, self._connect, origins=endpoints.ws_origins)
            ws_port = await self._tcp_if(endpoints.host, ws_port, "ws", make)
            wss_port = await self._tcp_if(endpoints.host, wss_port, "wss", make)
        if endpoints.unix_socket is not None:
            await self._unix_socket(endpoints.unix_socket)
        pages = MetricsPages(self._render, self._why_not_ready, self._inform)
        metrics = self._add_pages(pages.respond, _METRICS_CONNECTIONS)
        metrics_port = await self._tcp_if(endpoints.metrics_host, endpoints.metrics_port, "http", metrics)
        return attrs.evolve(
            endpoints,
            port=port,
            tls_port=tls_port,
            ws_port=ws_port,
            wss_port=wss_port,
            metrics_port=metrics_port,
            monitor_port=await self._monitor_if(endpoints),
        )

    def _add_pages(
        self, respond: Respond, connections: int, methods: tuple[str, ...] = ("GET", "HEAD")
    ) -> HttpEndpoint:
        self._pages.append(
            HttpEndpoint(respond, LOGGER, connections=connections, methods=methods, network_of=network_of)
        )
        return self._pages[-1]

    async def _monitor_if(self, endpoints: Endpoints) -> int | None:
        """With TLS if other machines reach it, and there is a certificate."""
        port, host, monitor = endpoints.monitor_port, endpoints.monitor_host, self._monitor
        if port is None or monitor is None:
            return None
        scheme = "https" if self._tls is not None and not is_local(host) else "http"
        chosen = await self._tcp(
            host, port, scheme, self._add_pages(monitor.respond, _MONITOR_CONNECTIONS, monitor.methods)
        )
        self.monitor_url = self.urls.pop().removesuffix(_PATHS["http"])
        return chosen

    async def _tcp_if(
        self, host: str, port: int | None, scheme: str, make: Callable[[], asyncio.Protocol]
    ) -> int | None:
        return None if port is None else await self._tcp(host, port, scheme, make)

    async def _tcp(self, host: str, port: int, scheme: str, make: Callable[[], asyncio.Protocol]) -> int:
        if scheme in ("mqtts", "wss", "https") and self._tls is not None:
            make = TlsAcceptor(self._tls, self._driver, make)
            self._tls_acceptors.append(make)
        loop = asyncio.get_running_loop()
        is_tls = isinstance(make, TlsAcceptor)
        if scheme not in ("http", "https"):
            make = self._guard(scheme, make)
        try:
            server = await loop.create_server(make, host, port, backlog=_ACCEPTED_AT_ONCE)
        except UnicodeError as error:
            raise OSError(errno.EINVAL, f"{host[:80]!r} is not a host name") from error
        except OSError as error:
            advice = _advice(error)
            if advice is None:
                raise
            # From Python 3.13 on, asyncio passes over addresses of others, and has no code when none is left.
            raise OSError(error.errno or errno.EADDRNOTAVAIL, f"{error.strerror or error}; {advice}") from error
        self._add(server, None if is_tls else make)
        chosen: int = server.sockets[0].getsockname()[1]
        path = _PATHS.get(scheme, "")
        self.urls.append(f"{scheme}://{f'[{host}]' if ':' in host else host}:{chosen}{path}")
        return chosen

    async def _unix_socket(self, name: str) -> None:
        path, loop = Path(name), asyncio.get_running_loop()
        try:
            _remove_stale(path)
            make = self._guard("unix", self._connect)
            server = await loop.create_unix_server(make, name, backlog=_ACCEPTED_AT_ONCE)
        except OSError as error:
            code = error.errno or errno.ENAMETOOLONG
            raise OSError(code, f"Unix socket {name}: {error.strerror or error}") from error
        self._add(server, make)
        self._unix = (path, _inode(path))
        self.urls.append(f"unix:{name}")

    def _add(self, server: asyncio.Server, make: Callable[[], asyncio.Protocol] | None) -> None:
        """``make`` for what needs no TLS: there is a quicker way to accept than that of asyncio."""
        self._servers.append(server)
        self._acceptors += take_over(server, make, backlog=_BACKLOG)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def stop_accepting(self) -> None:
        """Let sockets that were accepted a moment ago become connections, and accept no more."""
        for acceptor in self._acceptors:
            acceptor.close()
        await event_loops.stop_accepting(*self._servers)
        self.close()

    def close(self) -> None:
        """Listen no more, at once. Safe to call twice."""
        for acceptor in self._acceptors:
            acceptor.close()
        for server in self._servers:
            server.close()
        for endpoint in self._tls_acceptors:
            endpoint.close()
        for pages in self._pages:
            pages.close()
        if self._unix is not None:
            path, inode = self._unix
            with suppress(OSError):
                if _inode(path) == inode:  # not of a server that was started meanwhile
                    os.unlink(path)

    async def wait_closed(self) -> None:
        """When all connections are gone."""
        for server in self._servers:
            await server.wait_closed()


def _open_to_all(scheme: str, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
    del scheme
    return make


def _advice(error: OSError) -> str | None:
    """What the user may do about it; asyncio's own text names the address."""
    if error.errno == errno.EADDRINUSE:
        return "choose another port, or 0 for a free one, or stop what uses it"
    if error.errno in (errno.EADDRNOTAVAIL, None):
        return "this machine has no such address; 0.0.0.0 and :: are all that it has"
    return None


def _inode(path: Path) -> int:
    return path.stat().st_ino


def _remove_stale(path: Path) -> None:
    """A killed server leaves its socket behind. Raises OSError if somebody listens there.

    Anything else than a socket is left alone: binding fails.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise FileExistsError(errno.EEXIST, "it exists and is not a socket")
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                return
        raise OSError(errno.EADDRINUSE, "another server listens on it")

"""An HTTP server for pages about this server: figures for Prometheus, and the monitor.

It trusts nobody: a request of 8 KiB at most, five seconds for everything, a number of connections at a time (of more,
the oldest of the address with most goes), one request for each. A *stream* lasts as long as its reader takes what it is
sent: a reader that falls behind is cut off, and holds up nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from http import HTTPStatus
from typing import Final, Protocol, TypeAlias, cast

import attrs

from raft_client._common.http_requests import HttpRequest, RequestReader
from statestore_client.clocks import monotonic
from statestore_client.errors import PacketError
from statestore_client.server.runtime.observability.logs import LOGGER
from statestore_client.server.runtime.transport.peers import Group, Peer, peer_name

__all__ = ["HttpEndpoint", "HttpResponse", "HttpStream", "Respond"]

_MAX_REQUEST: Final = 8 * 1024
_TIMEOUT_S: Final = 5.0

#: What a stream may be behind, in bytes that its socket has not taken.
_MOST_BEHIND: Final = 4 * 1024 * 1024

_TEXT: Final = "text/plain; charset=utf-8"


class HttpStream(Protocol):
    """Where a response without an end goes on."""

    def send(self, data: bytes) -> None:
        """More of it."""

    def abort(self) -> None:
        """Close at once."""


#: Called when the head of the response is sent; what it returns is called when the reader is gone.
Opened: TypeAlias = Callable[[HttpStream], Callable[[], object]]


@attrs.frozen
class HttpResponse:
    """With ``opened`` it is a stream, and goes on after the ``body``."""

    body: bytes = b""
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = _TEXT
    headers: tuple[tuple[str, str], ...] = ()
    opened: Opened | None = None

    def head(self) -> bytes:
        """All before the body."""
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}", f"Content-Type: {self.content_type}"]
        if self.opened is None:
            lines.append(f"Content-Length: {len(self.body)}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1")


#: Answers a request.
Respond: TypeAlias = Callable[[HttpRequest], Coroutine[None, None, HttpResponse]]


class HttpEndpoint:
    """Makes the protocol of a new socket."""

    def __init__(self, respond: Respond, *, connections: int, methods: Collection[str] = ("GET", "HEAD")) -> None:
        """``respond`` answers requests with one of these ``methods``, and is waited for five seconds."""
        self.respond = respond
        self.methods = methods
        self._most = connections
        self._peers: dict[_Exchange, Peer] = {}
        self._group = Group()

    def __call__(self) -> asyncio.Protocol:
        return _Exchange(self)

    def came(self, exchange: _Exchange, transport: asyncio.Transport) -> None:
        """A new connection. Another one may have to go for it, or itself."""
        peer = self._peers[exchange] = Peer.of(transport, exchange, monotonic())
        self._group.add(peer)
        if self._group.count > self._most:
            leaving = self._group.oldest_of_most(peer)
            self._group.remove(leaving)
            leaving.link.drop(PacketError("too many connections"))

    def gone(self, exchange: _Exchange) -> None:
        peer = self._peers.pop(exchange, None)
        if peer is not None and peer.group is not None:
            self._group.remove(peer)

    def close(self) -> None:
        """Nobody is answered any more."""
        for exchange in tuple(self._peers):
            exchange.abort()


class _Exchange(asyncio.Protocol):
    """One request, one answer; then the peer is to close."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reader = RequestReader(endpoint.methods, _MAX_REQUEST)
        self._task: asyncio.Task[None] | None = None
        self._is_answered = False
        self._on_gone: Callable[[], object] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(_TIMEOUT_S, self._transport.abort)
        self._endpoint.came(self, self._transport)

    def data_received(self, data: bytes) -> None:
        if self._is_answered or self._task is not None:
            return
        request = self._reader.feed(data, "" if self._transport is None else peer_name(self._transport))
        if isinstance(request, HTTPStatus):
            self._answer(HttpResponse(status=request))
        elif request is not None:
            self._task = asyncio.get_running_loop().create_task(self._respond(request))

    async def _respond(self, request: HttpRequest) -> None:
        try:
            response = await self._endpoint.respond(request)
        except Exception:  # noqa: BLE001 - our own defect; the server goes on
            LOGGER.exception("a page failed")
            response = HttpResponse(status=HTTPStatus.INTERNAL_SERVER_ERROR)
        self._answer(response)

    def _answer(self, response: HttpResponse) -> None:
        self._is_answered = True
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        is_head = self._reader.is_head
        transport.write(response.head() if is_head else response.head() + response.body)
        if response.opened is not None and not is_head:
            if self._timer is not None:
                self._timer.cancel()
            self._on_gone = response.opened(self)
        elif transport.can_write_eof():
            transport.write_eof()
        else:  # TLS cannot close one direction only
            transport.close()

    def send(self, data: bytes) -> None:
        """More of a stream."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if transport.get_write_buffer_size() > _MOST_BEHIND:
            transport.abort()

    def drop(self, error: PacketError) -> None:
        """It was chosen to go."""
        del error
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._endpoint.gone(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._on_gone is not None:
            self._on_gone()

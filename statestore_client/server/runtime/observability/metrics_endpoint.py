"""An HTTP server that knows two pages: ``/metrics`` for Prometheus, and ``/ready`` for load balancers.

It trusts nobody: a request of 8 KiB at most, five seconds for everything, sixteen connections at a time (of more, the
oldest of the address with most goes), one request for each. Answers are small enough for the socket's own buffer.
"""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from statestore_client.errors import PacketError
from statestore_client.server.runtime.observability.metrics import CONTENT_TYPE
from statestore_client.server.runtime.transport.peers import Group, Peer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MetricsEndpoint"]

_MAX_REQUEST: Final = 8 * 1024
_TIMEOUT_S: Final = 5.0
_CONNECTIONS: Final = 16

#: An answer is as good as new for this long: asking all the time costs little.
_FRESH_S: Final = 0.05


class MetricsEndpoint:
    """Makes the protocol of a new socket."""

    def __init__(self, render: Callable[[], bytes], is_ready: Callable[[], bool]) -> None:
        """``is_ready``: whether clients had better come here than elsewhere."""
        self._render = render
        self.is_ready = is_ready
        self._page = b""
        self._rendered_at = float("-inf")
        self._peers: dict[_Request, Peer] = {}
        self._group = Group()

    def __call__(self) -> asyncio.Protocol:
        return _Request(self)

    def came(self, request: _Request, transport: asyncio.Transport) -> None:
        """A new connection. Another one may have to go for it, or itself."""
        peer = self._peers[request] = Peer.of(transport, request, time.monotonic())
        self._group.add(peer)
        if self._group.count > _CONNECTIONS:
            leaving = self._group.oldest_of_most(peer)
            self._group.remove(leaving)
            leaving.link.drop(PacketError("too many connections"))

    def gone(self, request: _Request) -> None:
        peer = self._peers.pop(request, None)
        if peer is not None and peer.group is not None:
            self._group.remove(peer)

    def page(self) -> bytes:
        """The figures, a moment old at most."""
        now = time.monotonic()
        if now - self._rendered_at > _FRESH_S:
            self._page, self._rendered_at = self._render(), now
        return self._page

    def close(self) -> None:
        """Nobody is answered any more."""
        for request in tuple(self._peers):
            request.abort()


class _Request(asyncio.Protocol):
    """One request, one answer; then the peer is to close."""

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head = bytearray()
        self._is_answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(_TIMEOUT_S, self._transport.abort)
        self._endpoint.came(self, self._transport)

    def data_received(self, data: bytes) -> None:
        if self._is_answered:
            return
        self._head += data
        if b"\r\n\r\n" in self._head or b"\n\n" in self._head:
            self._answer(*self._respond(bytes(self._head).split(None, 3)))
        elif len(self._head) > _MAX_REQUEST:
            self._answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"")

    def _respond(self, words: list[bytes]) -> tuple[HTTPStatus, bytes]:
        if len(words) < 3 or not words[2].startswith(b"HTTP/1."):
            return HTTPStatus.BAD_REQUEST, b""
        if words[0] not in (b"GET", b"HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, b""
        path = words[1].partition(b"?")[0]
        if path == b"/metrics":
            return HTTPStatus.OK, self._endpoint.page()
        if path != b"/ready":
            return HTTPStatus.NOT_FOUND, b"The figures are at /metrics\n"
        is_ready = self._endpoint.is_ready()
        return (HTTPStatus.OK, b"ready\n") if is_ready else (HTTPStatus.SERVICE_UNAVAILABLE, b"stands by\n")

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self._is_answered = True
        if self._transport is None:
            return
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {CONTENT_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode()
        self._transport.write(head if self._head.startswith(b"HEAD ") else head + body)
        if self._transport.can_write_eof():
            self._transport.write_eof()

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

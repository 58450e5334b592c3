"""An HTTP/1.1 server for pages about a server of either package: figures for Prometheus, its state, a monitor.

It trusts nobody: a request of 8 KiB at most, five seconds for everything, a number of connections at a time (of more,
the oldest of the network with most goes), one request for each. A *stream* lasts as long as its reader takes what it is
sent: a reader that falls behind is cut off, and holds up nobody.

A request is what RFC 9112 says, by the parser of h11, or it is refused: lines end where the RFC says (not where
``str.splitlines()`` would), there is one Host, and no header has control characters. What pages and proxies in front of
the server believe about a request, such as which page sent it, is then what the server reads.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from http import HTTPStatus
from typing import Final, Protocol, TypeAlias, cast
from urllib.parse import parse_qsl

import attrs
import h11

from raft_client._common.hosts import host_of

# -- requests ----------------------------------------------------------------------------------------------------------

#: C0 and DEL, but for the tab. h11 refuses some of them.
_CONTROLS: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


@attrs.frozen
class HttpRequest:
    """``headers`` have names in lower case; values of one name are joined with commas. ``peer`` is address and port."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    peer: str


class RequestReader:
    """Of one connection. Head and body have ``most`` bytes each."""

    def __init__(self, methods: Collection[str], most: int) -> None:
        self._methods = methods
        self._most = most
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=most)
        self._request: h11.Request | None = None
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._received = 0

    @property
    def is_head(self) -> bool:
        """Whether only the head of an answer is wanted."""
        return self._request is not None and self._request.method == b"HEAD"

    def feed(self, data: bytes, peer: str) -> HttpRequest | HTTPStatus | None:
        """The request, what is wrong with it, or None if more has to come. Call it no more after either."""
        room = 2 * self._most - self._received  # head and body; what comes behind them is not looked at
        self._received += len(data)
        found = self._read(data[:room], peer) if room > 0 else None
        if found is None and len(data) > room:
            has_head = self._request is not None
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if has_head else HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        return found

    def _read(self, data: bytes, peer: str) -> HttpRequest | HTTPStatus | None:
        try:
            self._parser.receive_data(data)
            while True:
                event = self._parser.next_event()
                if isinstance(event, h11.Request):
                    self._request = event
                    if (refusal := self._look_at(event)) is not None:
                        return refusal
                elif isinstance(event, h11.Data):
                    self._body += event.data
                    if len(self._body) > self._most:
                        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                elif isinstance(event, h11.EndOfMessage) and self._request is not None:
                    return self._whole(self._request, peer)
                else:
                    return None  # more has to come, or nothing will
        except h11.RemoteProtocolError as error:
            return HTTPStatus(error.error_status_hint)

    def _look_at(self, request: h11.Request) -> HTTPStatus | None:
        if request.method.decode("ascii") not in self._methods:
            return HTTPStatus.METHOD_NOT_ALLOWED
        for name, value in request.headers:
            if _CONTROLS.search(value):
                return HTTPStatus.BAD_REQUEST
            key, text = name.decode("ascii"), value.decode("latin-1")
            self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text
        if "host" in self._headers and host_of(self._headers["host"]) is None:
            return HTTPStatus.BAD_REQUEST
        length = self._headers.get("content-length", "0")
        is_too_large = len(length) > len(str(self._most)) or int(length) > self._most
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_too_large else None

    def _whole(self, request: h11.Request, peer: str) -> HttpRequest:
        path, _, query = request.target.decode("latin-1").partition("?")
        return HttpRequest(
            request.method.decode("ascii"), path, dict(parse_qsl(query)), self._headers, bytes(self._body), peer
        )


# -- answers -----------------------------------------------------------------------------------------------------------

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

    def __init__(
        self,
        respond: Respond,
        logger: logging.Logger,
        *,
        connections: int,
        methods: Collection[str] = ("GET", "HEAD"),
        network_of: Callable[[str], str | None] = lambda _name: None,
    ) -> None:
        """``respond`` answers requests with one of these ``methods``, and is waited for five seconds. ``network_of``
        takes the network out of an address and port; without it, all peers are of one.
        """
        self.respond = respond
        self.logger = logger
        self.methods = methods
        self._most = connections
        self._network_of = network_of
        self._open: dict[_Exchange, str] = {}  # in the order of their arrival

    def __call__(self) -> asyncio.Protocol:
        return _Exchange(self)

    def came(self, exchange: _Exchange, peer: str) -> None:
        """A new connection. Another one may have to go for it, or itself: of the network with most, the oldest."""
        newest = self._open[exchange] = self._network_of(peer) or ""
        if len(self._open) > self._most:
            counts = Counter(self._open.values())
            network = max(counts, key=lambda name: (counts[name], name == newest))
            leaving = next(each for each, name in self._open.items() if name == network)
            del self._open[leaving]
            leaving.abort()

    def gone(self, exchange: _Exchange) -> None:
        self._open.pop(exchange, None)

    def close(self) -> None:
        """Nobody is answered any more."""
        for exchange in tuple(self._open):
            exchange.abort()


class _Exchange(asyncio.Protocol):
    """One request, one answer; then the peer is to close."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._timer: asyncio.TimerHandle | None = None
        self._reader = RequestReader(endpoint.methods, _MAX_REQUEST)
        self._task: asyncio.Task[None] | None = None
        self._is_answered = False
        self._on_gone: Callable[[], object] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        self._peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) and len(address) >= 2 else str(address)
        self._timer = asyncio.get_running_loop().call_later(_TIMEOUT_S, self._transport.abort)
        self._endpoint.came(self, self._peer)

    def data_received(self, data: bytes) -> None:
        if self._is_answered or self._task is not None:
            return
        request = self._reader.feed(data, self._peer)
        if isinstance(request, HTTPStatus):
            self._answer(HttpResponse(status=request))
        elif request is not None:
            self._task = asyncio.get_running_loop().create_task(self._respond(request))

    async def _respond(self, request: HttpRequest) -> None:
        try:
            response = await self._endpoint.respond(request)
        except Exception:
            self._endpoint.logger.exception("a page failed")
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

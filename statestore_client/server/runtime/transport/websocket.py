"""MQTT over WebSocket, the server's side: frames around the bytes, by the sans-I/O half of the ``websockets`` library.

::

    socket (TCP or TLS)  <->  WebSocketConnection  <->  ServerConnection  <->  broker driver

MQTT 5.0, section 6: the subprotocol is "mqtt", data frames are binary, and a frame may hold half a packet or many.

What a hostile peer may try, and what bounds it. A handshake that is long or never ends: 16 KiB, and the time for
CONNECT, which runs from the first moment. Large frames: they count as unfinished packets do. Messages in fragments
without end: nothing of them is kept, and their sum is limited. Thousands of tiny frames, or of pings: they are looked
at for a turn, then others are served. Compression bombs: compression is not offered.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from raft_client._common.hosts import host_of
from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import ReasonCode
from statestore_client.server.runtime.fairness import SLICE_S
from statestore_client.server.runtime.transport.connection import ServerConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from statestore_client.server.runtime.broker_driver import BrokerDriver

#: Of the URL. What else a browser asks for is not found.
_PATH: Final = "/mqtt"

_SUBPROTOCOL: Final = Subprotocol("mqtt")

#: Request line and headers of the handshake; browsers send cookies.
_MAX_HANDSHAKE: Final = 16 * 1024

#: A message of frames may be larger than one packet: clients put many packets into it.
_LEAST_MESSAGE: Final = 1024 * 1024
_MESSAGE_OVERHEAD: Final = 64 * 1024

#: Bytes that are parsed at a time. The smallest frame has six bytes and takes ten microseconds.
_PIECE: Final = 4 * 1024

#: MQTT bytes that are handed on at a time.
_ENOUGH: Final = 64 * 1024

_END_OF_HANDSHAKE: Final = b"\r\n\r\n"

#: How HTTP begins. Other peers, of MQTT or TLS for example, are not answered in HTTP.
_METHOD: Final = re.compile(rb"([A-Z]{3,16}) [/*h]")
_LONGEST_METHOD: Final = 18

_NORMAL_CLOSURE: Final = 1000
_UNSUPPORTED_DATA: Final = 1003
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")

_LOGGER: Final = logging.getLogger("statestore_client.server.websocket")
_LOGGER.setLevel(logging.WARNING)  # the library has a line for every connection; so have we


def websocket_protocol(
    driver: BrokerDriver, connect: Callable[[], ServerConnection], *, origins: Collection[str] = ()
) -> Callable[[], WebSocketConnection]:
    """What makes the protocol of a new socket; ``connect`` makes the one behind it. ``origins``: the web pages that may
    come in, beside those of the same host; ``"*"`` for all.
    """
    limit = max(_LEAST_MESSAGE, driver.broker.limits.packet_bytes) + _MESSAGE_OVERHEAD
    return lambda: WebSocketConnection(driver, connect(), message_bytes=limit, origins=origins)


class WebSocketConnection(asyncio.Protocol, asyncio.Transport):
    """Towards the socket a protocol, towards the connection of the client a transport.

    Invariant: while the client's connection does not want to read, or something waits here, the socket is not read.
    """

    def __init__(
        self, driver: BrokerDriver, client: ServerConnection, *, message_bytes: int, origins: Collection[str] = ()
    ) -> None:
        super().__init__()
        self._driver = driver
        self._client = client
        self._origins = origins
        self._protocol = ServerProtocol(subprotocols=[_SUBPROTOCOL], max_size=message_bytes, logger=_LOGGER)
        self._socket: asyncio.Transport | None = None
        self._chunks: deque[memoryview] = deque()  # not parsed yet
        self._handshake_bytes = 0
        self._method = b""  # the first bytes of it
        self._handshake_end = b""  # the last bytes of it so far
        self._held_bytes = 0  # what of the driver's unfinished bytes is ours
        self._is_paused = False  # by the client's connection
        self._is_queued = False  # for a turn
        self._has_ended = False  # the WebSocket; the socket follows when everything was handed on
        self._violation: PacketError | None = None  # with which it ended
        self._is_lingering = False  # only the peer's goodbye is still waited for
        self._has_sent_close = False

    # -- towards the socket: asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)
        self._client.connection_made(self)

    def data_received(self, data: bytes) -> None:
        self._chunks.append(memoryview(data))
        if not self._is_queued:
            self._serve()

    def pause_writing(self) -> None:
        self._client.pause_writing()

    def resume_writing(self) -> None:
        self._client.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._client.connection_lost(exc)

    # -- frames -------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Parse for half a turn, hand on what came of it, answer; then read on, or queue for another turn."""
        ends = time.monotonic() + SLICE_S / 2
        parts: list[bytes] = []
        size = 0
        while self._chunks and not self._is_paused:
            size += self._parse(self._piece(), parts)
            if size >= _ENOUGH or time.monotonic() >= ends:
                break
        self._count()
        if parts:
            self._client.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        self._answer()
        self._go_on()

    def _piece(self) -> memoryview:
        chunk = self._chunks.popleft()
        is_handshake = self._protocol.state is State.CONNECTING
        size = min(len(chunk), self._rest_of_handshake(chunk) if is_handshake else _PIECE)
        if len(chunk) > size:
            self._chunks.appendleft(chunk[size:])
            return chunk[:size]
        return chunk

    def _rest_of_handshake(self, chunk: memoryview) -> int:
        """How many bytes to parse at most. The library goes on to the frames behind a handshake at once, and cannot
        answer a bad one, or a goodbye, before the handshake is.
        """
        before = len(self._handshake_end)
        known = self._handshake_end + bytes(chunk[:_PIECE])
        self._handshake_end = known[-3:]
        end = known.find(_END_OF_HANDSHAKE)
        return _PIECE if end < 0 else end + len(_END_OF_HANDSHAKE) - before

    def _parse(self, piece: memoryview, parts: list[bytes]) -> int:
        """Adds the MQTT bytes that this completes; returns how many."""
        protocol = self._protocol
        if protocol.state is State.CONNECTING:
            self._handshake_bytes += len(piece)
            self._method = (self._method + bytes(piece[:_LONGEST_METHOD]))[:_LONGEST_METHOD]
        protocol.receive_data(bytes(piece))
        size = 0
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._handshake(event)
            elif isinstance(event, Frame):
                if event.opcode is Opcode.TEXT:  # [MQTT-6.0.0-1]
                    protocol.fail(_UNSUPPORTED_DATA, "MQTT is carried in binary frames")
                    self._violated("a text frame")
                    break
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    parts.append(bytes(event.data))
                    size += len(event.data)
        if protocol.state is State.CONNECTING and self._handshake_bytes > _MAX_HANDSHAKE:
            self._violated("the handshake is too long")
        elif (error := protocol.parser_exc or protocol.handshake_exc) is not None and not self._has_ended:
            if protocol.state is State.CONNECTING:
                self._refuse_request()
            self._violated(str(error))
        return size

    def _refuse_request(self) -> None:
        """The library answers what it can parse. Of a request with a body, and before its version 17 of one
        that is not a GET, it says nothing.
        """
        method = _METHOD.match(self._method)
        if method is not None and self._socket is not None:
            status = HTTPStatus.BAD_REQUEST if method[1] == b"GET" else HTTPStatus.METHOD_NOT_ALLOWED
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\nAllow: GET\r\n"
            self._socket.write(f"{head}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())

    def _handshake(self, request: Request) -> None:
        protocol, headers = self._protocol, request.headers
        if _path(request.path) != _PATH:
            response = protocol.reject(HTTPStatus.NOT_FOUND, f"MQTT is at {_PATH}\n")
        elif not self._is_welcome(headers.get_all("Origin"), headers.get_all("Host")):
            response = protocol.reject(HTTPStatus.FORBIDDEN, "this origin may not come in\n")
        else:
            response = protocol.accept(request)
        protocol.send_response(response)
        if protocol.state is not State.OPEN:
            self._violated(f"HTTP {response.status_code}: {bytes(response.body or b'').decode().strip()}")

    def _is_welcome(self, origins: list[str], hosts: list[str]) -> bool:
        """Browsers say which page opens the WebSocket. Any page may try to, also one that wants to look into a server
        on the user's own machine.
        """
        if not origins or "*" in self._origins or origins == [o for o in origins if o in self._origins]:
            return True
        if len(origins) != 1 or len(hosts) != 1:
            return False
        try:
            page, host = urlsplit(origins[0]).hostname, (host_of(hosts[0]) or "").lower()
        except ValueError:
            return False
        # A name server of the attacker's may send its own name to this machine: locally, names must be local.
        return page is not None and page == host and (page in _LOOPBACK or not self._is_local())

    def _is_local(self) -> bool:
        address = self.get_extra_info("peername")
        return not isinstance(address, tuple) or str(address[0]) in _LOOPBACK

    def _violated(self, what: str) -> None:
        """The peer does not speak WebSocket, or not here. What it said before counts."""
        self._has_ended = True
        self._chunks.clear()
        self._violation = PacketError(f"WebSocket: {what}", reason_code=ReasonCode.MALFORMED_PACKET)

    def _count(self) -> None:
        """What waits here is unfinished."""
        if self._has_sent_close:
            return
        held = sum(map(len, self._chunks)) + len(self._protocol.reader.buffer)
        more, self._held_bytes = held - self._held_bytes, held
        self._client.hold(more)

    def _forget(self) -> None:
        self._has_ended = True
        self._chunks.clear()
        held, self._held_bytes = self._held_bytes, 0
        self._client.hold(-held)

    def _answer(self) -> None:
        """Write what WebSocket itself has to say: the handshake, pongs, closing."""
        writes = self._protocol.data_to_send()
        data = b"".join(writes)
        if data and self._socket is not None and not self._has_sent_close:
            self._socket.write(data)
        if b"" in writes:  # the library's sign for the end
            self._has_ended = True
            self._chunks.clear()

    def _go_on(self) -> None:
        socket = self._socket
        if socket is None or self._is_queued:
            return
        if self._has_ended and not self._is_paused and not self._is_lingering:
            self._end()
        elif self._is_lingering and self._protocol.close_rcvd is not None:
            socket.close()
        elif self._chunks and not self._is_paused:
            self._is_queued = True
            socket.pause_reading()
            self._driver.turns.add(self._turn)
        elif not self._is_paused:
            socket.resume_reading()

    def _end(self) -> None:
        """Everything was handed on."""
        violation, self._violation = self._violation, None
        if violation is not None:
            self._client.fail(violation)
        if not self._is_lingering:
            self.close()

    def _turn(self) -> bool:
        self._is_queued = False
        self._serve()
        return False  # queued again by itself

    # -- towards the client's connection: asyncio.Transport -----------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """One frame. What cannot be said any more, or not yet, is not said."""
        if self._protocol.state is State.OPEN and self._socket is not None:
            self._protocol.send_binary(data)
            self._socket.write(b"".join(self._protocol.data_to_send()))

    def pause_reading(self) -> None:
        self._is_paused = True
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        """In a turn of its own, if something waits."""
        self._is_paused = False
        self._go_on()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._socket is None else self._socket.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._socket is None or self._socket.is_closing()

    def can_write_eof(self) -> bool:
        """A WebSocket can always say goodbye and go on reading, also over TLS."""
        return True

    def write_eof(self) -> None:
        """Say goodbye. The peer answers with its own, or closes."""
        self._send_close()
        self._is_lingering = True
        if self._socket is not None and self._socket.can_write_eof():
            self._socket.write_eof()

    def close(self) -> None:
        self._send_close()
        self._forget()
        if self._socket is not None:
            self._socket.close()

    def abort(self) -> None:
        self._has_sent_close = True
        self._forget()
        if self._socket is not None:
            self._socket.abort()

    def _send_close(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(_NORMAL_CLOSURE)
        self._answer()
        self._has_sent_close = True


def _path(target: str) -> str | None:
    """Of a request, which may name the whole URL; None if it is not a URL."""
    try:
        return urlsplit(target).path
    except ValueError:
        return None

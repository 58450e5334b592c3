"""The driver on our own packet codec, as far as both shells share it: from the socket's bytes to events and back.

:class:`~statestore_client.mqtt.connection.ClientConnection` decides what is said; with ``ws://`` and ``wss://``, a
:class:`~statestore_client.mqtt.websocket.WebSocket` is wrapped around it. The two drivers in :mod:`native_sync` and
:mod:`native_aio` move the bytes: many packets per read, and all that was queued since the last flush in one write.
"""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from statestore_client.mqtt.connection import ClientConnection
from statestore_client.mqtt.service_account import LOOK_EVERY_S, ServiceAccountToken
from statestore_client.mqtt.session import ClientSession
from statestore_client.mqtt.tls import read_password
from statestore_client.settings import ConnectionSettings

if TYPE_CHECKING:
    from statestore_client.mqtt.messaging import PublishCall
    from statestore_client.mqtt.websocket import WebSocket

__all__ = ["HAS_SENDMSG", "PIECES_AT_ONCE", "NativeConnector", "NativeDriver", "drop_sent"]

#: A piece of this size is written as it is; smaller ones are joined, because each write is a call of the system.
_LARGE: Final = 64 * 1024
#: Read at once. Into a buffer that is used again and again: to let the system find a fresh block of this size takes
#: longer (12 µs) than to handle a small packet.
_READ_BYTES: Final = 256 * 1024
#: What the buffer is before it was full for the first time: most clients are idle most of the time.
_FIRST_READ_BYTES: Final = 16 * 1024
#: Pieces in one call of the system, which takes 16 at least (POSIX, IOV_MAX).
PIECES_AT_ONCE: Final = 16
HAS_SENDMSG: Final = hasattr(socket.socket, "sendmsg")  # Windows has none


class NativeConnector:
    """What lasts longer than one connection: with which credentials, and the session."""

    def __init__(self, settings: ConnectionSettings, *, client_id: str) -> None:
        self.settings = settings
        sat_file = settings.sat_file
        self.token: ServiceAccountToken | None = None if sat_file is None else ServiceAccountToken(sat_file)
        self._client_id = client_id
        self._session = ClientSession()

    def new_connection(self) -> ClientConnection:
        """The next connection of this client."""
        return ClientConnection(self.settings, self._client_id, session=self._session, authenticator=self.token)

    def complaint(self) -> None:
        """Nobody else has this connection."""


class NativeDriver:
    """One connection's bytes and calls; the two subclasses do the waiting."""

    def __init__(self, connector: NativeConnector, *, clean_start: bool) -> None:
        self._settings = connector.settings
        self._clean_start = clean_start
        self._connection = connector.new_connection()
        self._token = connector.token
        self._next_look = math.inf  # for another token
        self._unsent: deque[memoryview] = deque()  # what was taken from the connection, and by the system not yet
        self._leaving = False  # disconnect() was called
        self._websocket: WebSocket | None = None
        # Bound here: they are called for each message.
        self.publish: PublishCall = self._connection.publish
        self.acknowledge: Callable[[int], None] = self._connection.acknowledge
        self._buffer = memoryview(bytearray(_FIRST_READ_BYTES))
        #: Where the rest of a large value is received at once. Not through a WebSocket, which has to unpack its frames.
        self._room: Callable[[], memoryview | None] = self._connection.room
        self._receive: Callable[[bytes, float], None] = self._connection.receive

    def subscribe(self, subscribe_id: int, topic_filters: Sequence[str]) -> None:
        self._connection.subscribe(subscribe_id, topic_filters)

    @property
    def heard_at(self) -> float:
        return self._connection.heard_at

    @property
    def url(self) -> str:
        return self._connection.url

    def ping(self) -> None:
        self._connection.ping()

    def _use(self, settings: ConnectionSettings) -> None:
        """This address is open: errors name it."""
        self._settings = self._connection.settings = settings

    def _greet(self, began: float) -> None:
        """Queue what is said first. CONNACK is due ``connect_timeout`` after ``began``."""
        if self._settings.websocket:
            from statestore_client.mqtt.websocket import WebSocket  # only here is the library needed

            self._websocket = WebSocket(self._settings)
            self._receive = self._receive_frames
            self._room = _no_room
        if self._token is not None:
            self._token.load()
            self._next_look = began + LOOK_EVERY_S
        self._connection.connect(began, clean_start=self._clean_start, password=read_password(self._settings))

    def _tick(self, now: float) -> None:
        self._connection.tick(now)
        if self._token is not None and now >= self._next_look:
            self._next_look = now + LOOK_EVERY_S
            if self._token.load_changed():
                self._connection.reauthenticate()

    def _next_deadline(self) -> float:
        """When :meth:`_tick` has something to do; infinity for never."""
        deadline = self._connection.next_deadline()
        return self._next_look if deadline is None else min(deadline, self._next_look)

    def _take_in(self, size: int, now: float) -> None:
        """So many bytes were read into the buffer."""
        buffer = self._buffer
        if size == len(buffer) < _READ_BYTES:
            self._buffer = memoryview(bytearray(_READ_BYTES))
        self._receive(bytes(buffer[:size]), now)

    def _receive_frames(self, data: bytes, now: float) -> None:
        websocket = self._websocket
        if websocket is None:
            return
        self._connection.heard(now)
        inner = websocket.receive(data)
        if inner:
            self._connection.receive(inner, now)
        if (why := websocket.why_closed()) is not None:
            self._connection.end(why)

    def _receive_eof(self) -> None:
        if self._websocket is not None:
            self._websocket.receive_eof()
            if (why := self._websocket.why_closed()) is not None:
                self._connection.end(why)
        self._connection.receive_eof()

    def _take_output(self) -> list[bytes]:
        """What is to be written now: few pieces, in order."""
        outbox = self._connection.outbox
        websocket = self._websocket
        if websocket is None:
            pieces = _coalesced(outbox) if outbox else []
        elif websocket.is_open:
            pieces = websocket.wrap(_coalesced(outbox))
            if self._connection.has_ended:
                websocket.close()
                pieces += websocket.pending()
        else:
            return websocket.pending()  # CONNECT waits for the handshake
        outbox.clear()
        return pieces

    @property
    def _may_have_output(self) -> bool:
        return bool(self._connection.outbox) or self._websocket is not None  # which has frames of its own


def drop_sent(pieces: deque[memoryview], sent: int) -> None:
    """Drop this many bytes from the front."""
    while sent:
        piece = pieces[0]
        if sent < len(piece):
            pieces[0] = piece[sent:]
            return
        sent -= len(piece)
        pieces.popleft()


def _no_room() -> None: ...


def _coalesced(pieces: list[bytes]) -> list[bytes]:
    """The same bytes in fewer pieces. Large pieces are not copied."""
    if sum(map(len, pieces)) < _LARGE:
        return [b"".join(pieces)] if pieces else []
    joined: list[bytes] = []
    small: list[bytes] = []
    for piece in pieces:
        if len(piece) < _LARGE:
            small.append(piece)
            continue
        if small:
            joined.append(b"".join(small))
            small.clear()
        joined.append(piece)
    if small:
        joined.append(b"".join(small))
    return joined

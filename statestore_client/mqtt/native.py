"""The driver on our own packet codec: what both shells share, and the driver for a thread with a selector.

:class:`~statestore_client.mqtt.client_connection.ClientConnection` decides what is said; with ``ws://`` and
``wss://``, a :class:`~statestore_client.mqtt.websocket.WebSocket` is wrapped around it. The drivers, here for a
non-blocking socket and in :mod:`native_aio` for an event loop, move the bytes: many packets per read, and all that was
queued since the last flush in one write.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from statestore_client.clocks import monotonic
from statestore_client.errors import ConnectionLostError
from statestore_client.mqtt.addresses import Addresses
from statestore_client.mqtt.client_connection import ClientConnection, ClientSession, PublishCall
from statestore_client.mqtt.closing import connect_failed
from statestore_client.mqtt.credentials import LOOK_EVERY_S, ServiceAccountToken, client_context, read_password
from statestore_client.mqtt.dialing import Dialer, Line
from statestore_client.mqtt.driver import OpenSocket
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import Closed, Event

if TYPE_CHECKING:
    from statestore_client.mqtt.websocket import WebSocket

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

    def _send_connect(self, began: float) -> None:
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

    def _on_bytes(self, size: int, now: float) -> None:
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
            if not outbox:
                return []
            pieces = [b"".join(outbox)] if sum(map(len, outbox)) < _LARGE else _coalesce(outbox)
        elif websocket.is_open:
            pieces = websocket.wrap(_coalesce(outbox))
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


def _coalesce(pieces: list[bytes]) -> list[bytes]:
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


#: Bytes, and seconds, read per wake-up before timers and other callers get their turn. Bytes are a few large values or
#: a million packets.
_READ_BUDGET: Final = 2 * 1024 * 1024
_READ_TIME_S: Final = 0.05
_WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class NativeSyncConnector(NativeConnector):
    """See :class:`statestore_client.mqtt.driver.SyncConnector`."""

    def __init__(self, settings: ConnectionSettings, *, client_id: str, open_socket: OpenSocket | None = None) -> None:
        super().__init__(settings, client_id=client_id)
        self._open_socket = open_socket
        self._dialer = Dialer(settings, open_socket)

    @property
    def addresses(self) -> Addresses:
        return self._dialer.addresses

    def open(self, *, clean_start: bool, new_round: bool = True) -> NativeSyncDriver:
        return NativeSyncDriver(self, self._dialer, clean_start=clean_start, new_round=new_round)

    def settle(self, *, for_good: bool) -> None:
        self._dialer.settle(for_good=for_good)

    def close(self) -> None:
        self._dialer.settle(for_good=True)

    def reopen(self) -> None:
        self._dialer = Dialer(self.settings, self._open_socket)  # the former one may still be in use


class NativeSyncDriver(NativeDriver):
    """See :class:`statestore_client.mqtt.driver.SyncDriver`.

    Any thread may write, under the shell's lock; what happens to the connection is noticed by the thread that polls.
    """

    def __init__(self, connector: NativeConnector, dialer: Dialer, *, clean_start: bool, new_round: bool) -> None:
        super().__init__(connector, clean_start=clean_start)
        self._dialer = dialer
        self._new_round = new_round
        self._socket: socket.socket | None = None
        self._broken: OSError | None = None  # what a write met

    def connect(self) -> None:
        try:
            context = client_context(self._settings) if self._settings.tls else None
            line = self._dialer.open(new_round=self._new_round)
            if isinstance(line, Closed):
                self._end(line)
                return
            self._use(line.settings)
            self._socket = _shake_hands(line, context)
            self._send_connect(line.turn.began)
        except Exception as error:  # noqa: BLE001 - OSError, SettingsError
            self._end(connect_failed(self._settings, error))

    def fileno(self) -> int | None:
        return None if self._socket is None else self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether :meth:`poll` has something to do once the socket is writable: also to tell what a call caused."""
        return bool(self._unsent or self._connection.events or self._broken) and self._socket is not None

    def next_deadline(self) -> float:
        if self._socket is None:
            return 0.0 if self._connection.events else math.inf  # the end of an abort is to be taken
        return self._next_deadline()

    def flush(self) -> None:
        sock, unsent = self._socket, self._unsent
        if sock is None or self._broken is not None:
            return
        connection = self._connection
        if not unsent:
            unsent.extend(map(memoryview, self._take_output()))
        try:
            while unsent:
                sent = _send(sock, unsent)
                if len(unsent) == 1 and sent == len(unsent[0]):
                    unsent.clear()
                else:
                    drop_sent(unsent, sent)
                connection.keep_alive.last_sent = monotonic()
                if not unsent and (connection.outbox or self._websocket is not None):
                    # Not before: what a slow broker does not take stays in the connection, which sees how much it is.
                    unsent.extend(map(memoryview, self._take_output()))
        except _WOULD_BLOCK:
            return
        except OSError as error:
            self._broken = error
            return
        if self._leaving:
            self._say_goodbye(sock)

    def poll(self) -> Sequence[Event]:
        if self._socket is not None:
            self._read(self._socket)
            connection, now = self._connection, monotonic()
            alive = connection.keep_alive
            is_due = alive.pinged_at is not None or now - min(alive.last_sent, alive.last_received) >= alive.interval_s
            if is_due or not connection.is_open or self._token is not None:
                self._tick(now)
            if connection.outbox or self._unsent or self._leaving or self._websocket is not None:
                self.flush()
            if self._broken is not None:
                self._end(connect_failed(self._settings, self._broken))
            elif self._connection.has_ended and not self._leaving:
                self._close()  # the broker broke the protocol or fell silent: what it does not take at once is lost
        return self._connection.take_events()

    def disconnect(self) -> None:
        self._leaving = True
        self._connection.disconnect()
        self.flush()

    def abort(self) -> None:
        self._end(Closed(ConnectionLostError("the connection was given up")))

    def _read(self, sock: socket.socket) -> None:
        tls = sock if isinstance(sock, ssl.SSLSocket) else None
        budget, until = _READ_BUDGET, monotonic() + _READ_TIME_S
        try:
            # For bytes that TLS has decrypted already, the descriptor will not become readable.
            while budget > 0 or (tls is not None and tls.pending()):
                room = self._room()
                buffer = self._buffer if room is None else room
                size = sock.recv_into(buffer)
                if not size:
                    self._receive_eof()
                    self._close()
                    return
                if room is None:
                    self._on_bytes(size, monotonic())
                else:
                    self._connection.received(size, monotonic())
                budget -= size
                if size < len(buffer) and tls is None:
                    return
                if monotonic() >= until:
                    budget = 0
        except _WOULD_BLOCK:
            return
        except OSError as error:
            self._end(connect_failed(self._settings, error))

    def _say_goodbye(self, sock: socket.socket) -> None:
        if isinstance(sock, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                sock.unwrap()  # tells the end of the stream; the answer is not waited for
        self._close()

    def _end(self, why: Closed) -> None:
        self._connection.end(why)
        self._close()

    def _close(self) -> None:
        if self._socket is not None:
            # close() only gives up this process's descriptor. A shutdown would end the connection of a forked parent.
            self._socket.close()
            self._socket = None
            self._unsent.clear()


def _send(sock: socket.socket, pieces: deque[memoryview]) -> int:
    """Write the first of the pieces, or several at once where the system can: a large value and what is around it."""
    if len(pieces) == 1 or not HAS_SENDMSG or isinstance(sock, ssl.SSLSocket):
        return sock.send(pieces[0])
    return sock.sendmsg(islice(pieces, PIECES_AT_ONCE))


def _shake_hands(line: Line, context: ssl.SSLContext | None) -> socket.socket:
    """A non-blocking socket, with TLS if there is a context."""
    sock = line.sock
    try:
        if context is not None:
            sock.settimeout(max(0.001, line.turn.deadline - monotonic()))  # for the handshake as a whole
            sock = context.wrap_socket(sock, server_hostname=line.settings.host)
            sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock

"""The native driver for an event loop: an ``asyncio.BufferedProtocol``."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, cast

from statestore_client.clocks import monotonic
from statestore_client.errors import ConnectionLostError
from statestore_client.mqtt.addresses import Addresses
from statestore_client.mqtt.closing import connect_failed
from statestore_client.mqtt.credentials import client_context
from statestore_client.mqtt.dialing import AioDialer, Line, in_own_thread
from statestore_client.mqtt.driver import AioDriver, OpenSocket
from statestore_client.mqtt.native import (
    HAS_SENDMSG,
    PIECES_AT_ONCE,
    NativeConnector,
    NativeDriver,
    drop_sent,
)
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import Closed, Connected, Event

#: What the transport takes with TLS before it says that the peer is slow. Without TLS, it says so whenever the socket
#: does not take all: the rest stays with us, where it is not copied.
_TLS_WRITE_BUFFER: Final = 64 * 1024
#: Larger pieces are written in slices: what the socket does not take at once, the transport copies.
_SLICE: Final = 64 * 1024
#: How long TLS waits for the peer's goodbye.
_TLS_SHUTDOWN_S: Final = 2.0


class NativeAioConnector(NativeConnector):
    """See :class:`statestore_client.mqtt.driver.AioConnector`."""

    def __init__(self, settings: ConnectionSettings, *, client_id: str, open_socket: OpenSocket | None = None) -> None:
        super().__init__(settings, client_id=client_id)
        self._open_socket = open_socket
        self._dialer = AioDialer(settings, open_socket)
        self.connected: set[NativeAioDriver] = set()  # those whose sockets are open

    def check_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Its transports are made by any loop."""

    @property
    def addresses(self) -> Addresses:
        return self._dialer.addresses

    def open(
        self, *, clean_start: bool, new_round: bool = True, on_events: Callable[[AioDriver, Sequence[Event]], None]
    ) -> NativeAioDriver:
        return NativeAioDriver(self, self._dialer, clean_start=clean_start, new_round=new_round, on_events=on_events)

    def reopen(self) -> None:
        self._dialer = AioDialer(self.settings, self._open_socket)  # the former one may still be in use

    def settle(self, *, for_good: bool) -> None:
        self._dialer.settle(for_good=for_good)

    def close(self) -> None:
        self._dialer.settle(for_good=True)
        for driver in tuple(self.connected):
            driver.abort_tls_shutdown()


class NativeAioDriver(NativeDriver, asyncio.BufferedProtocol):
    """See :class:`statestore_client.mqtt.driver.AioDriver`."""

    def __init__(
        self,
        connector: NativeAioConnector,
        dialer: AioDialer,
        *,
        clean_start: bool,
        new_round: bool,
        on_events: Callable[[AioDriver, Sequence[Event]], None],
    ) -> None:
        super().__init__(connector, clean_start=clean_start)
        self._dialer = dialer
        self._new_round = new_round
        self._connected = connector.connected
        self._on_events = on_events
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._direct: socket.socket | None = None  # the transport's, where it may be written to directly
        self._reading_into: memoryview | None = None  # what get_buffer() gave away instead of the usual buffer

    @property
    def heard_at(self) -> float:
        # A loop may count from another moment than the client's clock does.
        return monotonic() - (self._loop.time() - self._connection.heard_at)

    async def connect(self) -> None:
        try:
            context = await self._context()
            line = await self._dialer.open(new_round=self._new_round)
            if isinstance(line, Closed):
                self._connection.end(line)
            else:
                await self._shake_hands(line, context)
        except Exception as error:  # noqa: BLE001 - OSError, SettingsError
            self._connection.end(connect_failed(self._settings, error))
        self._timed()
        self.flush()

    async def _context(self) -> ssl.SSLContext | None:
        if not self._settings.tls:
            return None
        async with asyncio.timeout(self._settings.connect_timeout):
            return await in_own_thread(client_context, self._settings)

    async def _shake_hands(self, line: Line, context: ssl.SSLContext | None) -> None:
        self._use(line.settings)
        began = self._loop.time() - (monotonic() - line.turn.began)
        self._socket = sock = line.sock
        async with asyncio.timeout(line.turn.deadline - monotonic()):
            await self._open(sock, context)
        if not self._connection.has_ended:  # aborted meanwhile
            self._send_connect(began)

    async def _open(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        try:
            await self._loop.create_connection(
                lambda: self,
                sock=sock,
                ssl=context,
                server_hostname=None if context is None else self._settings.host,
                ssl_shutdown_timeout=None if context is None else _TLS_SHUTDOWN_S,
            )
        except BaseException:
            sock.close()
            raise

    def flush(self) -> None:
        transport, unsent = self._transport, self._unsent
        if transport is None:
            if self._connection.has_ended:
                # Not from here: the caller is in the middle of carrying out actions.
                self._loop.call_soon(self._report_end)
            return
        if not self._paused and not transport.is_closing():
            pieces = self._take_output()
            if pieces or unsent:
                for piece in pieces:
                    unsent += (memoryview(piece),) if len(piece) <= _SLICE else _sliced(piece)
                if len(unsent) > 1 and self._direct is not None and not transport.get_write_buffer_size():
                    self._send_many(self._direct)
                while unsent and not self._paused:
                    transport.write(unsent.popleft())  # may call pause_writing()
                self._connection.keep_alive.last_sent = self._loop.time()
        if self._connection.has_ended:
            self._hang_up(transport)
        elif self._connection.events:
            self._loop.call_soon(self._report)  # a call caused one, without a packet from the broker

    def _send_many(self, sock: socket.socket) -> None:
        """Write a large value and what is around it past the transport, which would make a call for each piece."""
        with contextlib.suppress(OSError):  # it would block, or is broken: the transport finds out
            while self._unsent:
                drop_sent(self._unsent, sock.sendmsg(islice(self._unsent, PIECES_AT_ONCE)))

    def disconnect(self) -> None:
        self._leaving = True
        self._connection.disconnect()

    def abort(self) -> None:
        if os.getpid() != self._pid or self._loop.is_closed():
            # A forked child shares the loop's selector with its parent, which the transport would stop listening; and
            # a transport does nothing without its loop.
            if self._socket is not None:
                self._socket.close()
            return
        self._connection.end(Closed(ConnectionLostError("the connection was given up")))
        if self._transport is not None:
            self._transport.abort()  # connection_lost() reports

    def abort_tls_shutdown(self) -> None:
        """It has ended, but not by :meth:`disconnect`: TLS need not wait for the peer's goodbye any longer."""
        if self._connection.has_ended and not self._leaving and self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Of any loop: uvloop's transports inherit from none of asyncio's classes.
        self._transport = transport = cast("asyncio.Transport", transport)
        self._connected.add(self)
        transport.set_write_buffer_limits(_TLS_WRITE_BUFFER if self._settings.tls else 0)
        if HAS_SENDMSG and not self._settings.tls and isinstance(self._loop, asyncio.SelectorEventLoop):
            self._direct = self._socket
        if self._connection.has_ended:  # aborted while connecting
            transport.abort()

    def get_buffer(self, _sizehint: int) -> memoryview:
        self._reading_into = room = self._room()
        return self._buffer if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        if self._reading_into is None:
            self._on_bytes(nbytes, self._loop.time())
        else:
            self._connection.received(nbytes, self._loop.time())
        self._report()

    def eof_received(self) -> None:
        self._receive_eof()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._connection.has_ended:
            self._loop.call_soon(self.flush)  # it closes the transport, which would fail in the middle of its own write
        else:
            self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._connection.end(connect_failed(self._settings, exc))
        self._receive_eof()
        self._transport = None
        self._connected.discard(self)
        self._unsent.clear()
        self._report_end()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        if self._leaving:
            self.flush()
            return  # the end is told when the goodbye is written
        connection = self._connection
        events, connection.events = connection.events, []
        if events:
            if type(events[0]) is Connected:
                self._timed()  # from here on, the keep-alive counts
            self._on_events(self, events)  # its receiver flushes, once the callers that waited have run
        if not events or self._connection.has_ended:
            self.flush()

    def _hang_up(self, transport: asyncio.Transport) -> None:
        self._stop_timer()
        has_unsent = bool(self._unsent) or (self._paused and self._may_have_output)
        if not has_unsent and (self._leaving or not transport.get_write_buffer_size()):
            transport.close()
        elif not self._leaving:
            transport.abort()  # the broker broke the protocol or fell silent: what it does not take at once is lost

    def _timed(self) -> None:
        self._stop_timer()
        self._tick(self._loop.time())
        if self._connection.outbox or self._connection.has_ended:
            self._report()
        deadline = self._next_deadline()
        if deadline < math.inf and not self._connection.has_ended:
            self._timer = self._loop.call_at(deadline, self._timed)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report_end(self) -> None:
        self._stop_timer()
        events = self._connection.take_events()
        if events:
            self._on_events(self, events)


def _sliced(piece: bytes) -> list[memoryview]:
    whole = memoryview(piece)
    return [whole[start : start + _SLICE] for start in range(0, len(whole), _SLICE)]

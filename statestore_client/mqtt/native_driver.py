"""The driver on our own packet codec: an ``asyncio.Protocol`` for event loops, a non-blocking socket for threads.

Both feed the same pure :class:`~statestore_client.mqtt.connection.ClientConnection`: many packets per read, and all
that was queued since the last flush in one write.

No setting chooses this driver yet: first it has to pass the behaviour and fault tests that the paho driver passes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final

from statestore_client.errors import ConnectionLostError
from statestore_client.mqtt.closing import unreachable
from statestore_client.mqtt.connection import ClientConnection
from statestore_client.mqtt.tls import client_context, read_password
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import Closed, Event

__all__ = ["NativeAioDriver", "NativeSyncDriver"]

_READ_BYTES: Final = 256 * 1024
#: Bytes read per wake-up before timers and other callers get their turn.
_READ_ROUNDS: Final = 8


class _NativeCalls:
    """The calls of :class:`statestore_client.mqtt.driver.Driver`, handed to the pure connection."""

    def __init__(self, settings: ConnectionSettings, *, client_id: str, clean_start: bool) -> None:
        self._settings = settings
        self._clean_start = clean_start
        self._connection = ClientConnection(settings, client_id)
        self.publish = self._connection.publish
        self.acknowledge: Callable[[int], None] = self._connection.acknowledge

    def subscribe(self, subscribe_id: int, topic_filters: Sequence[str]) -> None:
        self._connection.subscribe(subscribe_id, topic_filters)

    def _greet(self) -> None:
        self._connection.connect(
            time.monotonic(), clean_start=self._clean_start, password=read_password(self._settings)
        )

    def _take_outbox(self) -> bytes:
        outbox = self._connection.outbox
        data = b"".join(outbox)
        outbox.clear()
        return data


class NativeSyncDriver(_NativeCalls):
    """For a thread with a selector; see :class:`statestore_client.mqtt.driver.SyncDriver`."""

    def __init__(self, settings: ConnectionSettings, *, client_id: str, clean_start: bool) -> None:
        super().__init__(settings, client_id=client_id, clean_start=clean_start)
        self._socket: socket.socket | None = None
        self._unsent = memoryview(b"")

    def connect(self) -> None:
        settings = self._settings
        try:
            sock = socket.create_connection((settings.host, settings.port), settings.connect_timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if settings.tls:
                sock = client_context(settings).wrap_socket(sock, server_hostname=settings.host)
            sock.setblocking(False)
            self._socket = sock
            self._greet()
        except (OSError, ValueError) as error:  # SettingsError and ssl.SSLError are among them
            self._end(unreachable(settings, error))

    def fileno(self) -> int | None:
        return None if self._socket is None else self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        return self._socket is not None and bool(self._unsent or self._connection.outbox)

    def next_deadline(self) -> float:
        deadline = self._connection.next_deadline()
        return float("inf") if deadline is None else deadline

    def flush(self) -> None:
        sock = self._socket
        if sock is None:
            return
        try:
            while True:
                if not self._unsent:
                    if not self._connection.outbox:
                        break
                    self._unsent = memoryview(self._take_outbox())
                self._unsent = self._unsent[sock.send(self._unsent) :]
                self._connection.written(time.monotonic())
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._end(unreachable(self._settings, error))
            return
        if self._connection.has_ended:
            self._close()

    def poll(self) -> Sequence[Event]:
        if self._socket is not None:
            self._read(self._socket)
            self._connection.tick(time.monotonic())
            self.flush()
        return self._connection.take_events()

    def disconnect(self) -> None:
        self._connection.disconnect()
        self.flush()

    def abort(self) -> None:
        self._end(Closed(ConnectionLostError("the connection was given up")))

    def _read(self, sock: socket.socket) -> None:
        try:
            for _ in range(_READ_ROUNDS):
                data = sock.recv(_READ_BYTES)
                if not data:
                    self._end(Closed(ConnectionLostError(f"{self._settings.url} closed the connection")))
                    return
                self._connection.receive(data, time.monotonic())
                if len(data) < _READ_BYTES and not (isinstance(sock, ssl.SSLSocket) and sock.pending()):
                    return
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._end(unreachable(self._settings, error))

    def _end(self, why: Closed) -> None:
        self._connection.end(why)
        self._close()

    def _close(self) -> None:
        if self._socket is not None:
            # close() only gives up this process's descriptor. A shutdown would end the connection of a forked parent.
            self._socket.close()
            self._socket = None


class NativeAioDriver(_NativeCalls, asyncio.Protocol):
    """For an event loop; see :class:`statestore_client.mqtt.driver.AioDriver`."""

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        client_id: str,
        clean_start: bool,
        on_events: Callable[[Sequence[Event]], None],
    ) -> None:
        super().__init__(settings, client_id=client_id, clean_start=clean_start)
        self._on_events = on_events
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._aborted = False

    async def connect(self) -> None:
        settings = self._settings
        try:
            async with asyncio.timeout(settings.connect_timeout):
                await self._loop.create_connection(
                    lambda: self,
                    settings.host,
                    settings.port,
                    ssl=client_context(settings) if settings.tls else None,
                )
            self._greet()
        except (OSError, ValueError) as error:  # TimeoutError, SettingsError and ssl.SSLError are among them
            self._connection.end(unreachable(settings, error))
        if self._aborted:
            self.abort()
        self._timed()

    def flush(self) -> None:
        transport = self._transport
        if transport is not None and self._connection.outbox:
            transport.write(self._take_outbox())
            self._connection.written(self._loop.time())
        if self._connection.has_ended:
            self._loop.call_soon(self._finish)

    def disconnect(self) -> None:
        self._connection.disconnect()

    def abort(self) -> None:
        self._aborted = True
        self._connection.end(Closed(ConnectionLostError("the connection was given up")))
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - create_connection makes nothing else
        self._transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._connection.receive(data, self._loop.time())
        self._report()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._connection.end(unreachable(self._settings, exc))
        self._connection.end(Closed(ConnectionLostError(f"{self._settings.url} closed the connection")))
        self._transport = None
        self._report()

    def _report(self) -> None:
        events = self._connection.take_events()
        if events:
            self._on_events(events)
        self.flush()

    def _timed(self) -> None:
        self._timer = None
        self._connection.tick(self._loop.time())
        self._report()
        deadline = self._connection.next_deadline()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._timed)

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.close()
        self._report_end()

    def _report_end(self) -> None:
        events = self._connection.take_events()
        if events:
            self._on_events(events)

"""The native driver for a thread with a selector: a non-blocking socket."""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from statestore_client.clocks import monotonic
from statestore_client.errors import ConnectionLostError
from statestore_client.mqtt.addresses import Addresses
from statestore_client.mqtt.closing import unreachable
from statestore_client.mqtt.dialing import Dialer, Line
from statestore_client.mqtt.native_driver import (
    HAS_SENDMSG,
    PIECES_AT_ONCE,
    NativeConnector,
    NativeDriver,
    drop_sent,
)
from statestore_client.mqtt.opening import OpenSocket
from statestore_client.mqtt.tls import client_context
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import Closed, Event

__all__ = ["NativeSyncConnector", "NativeSyncDriver"]

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
            self._greet(line.turn.began)
        except Exception as error:  # noqa: BLE001 - OSError, SettingsError
            self._end(unreachable(self._settings, error))

    def fileno(self) -> int | None:
        return None if self._socket is None else self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether :meth:`poll` has something to do once the socket is writable: also to tell what a call caused."""
        return bool(self._unsent or self._connection.has_events or self._broken) and self._socket is not None

    def next_deadline(self) -> float:
        if self._socket is None:
            return 0.0 if self._connection.has_events else math.inf  # the end of an abort is to be taken
        return self._next_deadline()

    def flush(self) -> None:
        sock, unsent = self._socket, self._unsent
        if sock is None or self._broken is not None or not (unsent or self._may_have_output or self._leaving):
            return
        if not unsent:
            unsent.extend(map(memoryview, self._take_output()))
        try:
            while unsent:
                drop_sent(unsent, _send(sock, unsent))
                self._connection.written(monotonic())
                if not unsent and self._may_have_output:
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
            self._tick(monotonic())
            self.flush()
            if self._broken is not None:
                self._end(unreachable(self._settings, self._broken))
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
                    self._take_in(size, monotonic())
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
            self._end(unreachable(self._settings, error))

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

"""A paho client whose memory, time and sockets a broker cannot use up.

paho itself keeps whatever comes, and whatever it has to answer. The handshake of a WebSocket it reads byte by byte,
with the whole time-out for each of them, and leaves the socket to the garbage collector when that fails.

What is overridden and read here is paho's own and not documented. Should a later paho have it otherwise, the tests of
hostile brokers tell.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any, Final

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from statestore_client import thread_locks
from statestore_client.clocks import monotonic
from statestore_client.errors import PacketError
from statestore_client.mqtt.client_connection import MOST_WAITING, RECEIVE_MAXIMUM
from statestore_client.mqtt.dialing import Line
from statestore_client.mqtt.driver import OpenSocket
from statestore_client.mqtt.packets.decoder import LONGEST_HEADER, check_header
from statestore_client.settings import ConnectionSettings

if TYPE_CHECKING:
    from paho.mqtt.client import SocketLike

#: Bytes that paho takes from the system at once. It would ask for all that a packet lacks: a block of memory of 268 MB
#: for each read, if a broker says so.
_READ_BYTES: Final = 256 * 1024


class FailureKeepingSocket(ssl.SSLSocket):
    """paho forgets its socket when the handshake fails, and leaves it to the garbage collector. It also forgets why a
    connection ended, and with TLS 1.3 a broker says only then that it does not accept our certificate.
    """

    failure: ssl.SSLError | None = None

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self.failure = error
            raise

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


def through_proxy(settings: ConnectionSettings) -> OpenSocket | None:
    """How paho connects where PySocks is installed and the environment names a proxy; None where it does not."""
    is_needed = any(_Stranger(host, port, 1.0).has_proxy for host, port in settings.addresses)
    return (lambda *target: _Stranger(*target).connected()) if is_needed else None


class _Stranger(Client):
    """What paho would do, on its way to a socket."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        super().__init__(CallbackAPIVersion.VERSION2)
        self._host, self._port, self._connect_timeout = host, port, timeout_s

    @property
    def has_proxy(self) -> bool:
        return bool(self._get_proxy())

    def connected(self) -> socket.socket:
        return self._create_socket_connection()


class BoundedClient(Client):
    """See the module."""

    _unacknowledged = 0  # messages that were handed over
    _tls: ssl.SSLSocket | None = None
    _dialed: socket.socket | None = None  # what connects, before it is handed over
    _connect_by = 0.0
    _watch: threading.Timer | None = None
    #: When the last byte came, or else when connecting began (monotonic seconds).
    heard_at: float = 0.0

    #: What the system said of a connection that stood and broke. paho forgets it.
    failure: OSError | None = None

    def _sock_recv(self, bufsize: int) -> bytes:
        try:
            data = super()._sock_recv(min(bufsize, _READ_BYTES))
        except BlockingIOError:
            raise
        except OSError as error:
            self.failure = error
            raise
        if data:
            self.heard_at = monotonic()
        return data

    def _sock_send(self, buf: bytes | bytearray) -> int:
        try:
            return super()._sock_send(buf)
        except BlockingIOError:
            raise
        except OSError as error:
            self.failure = error
            raise

    def ping(self) -> None:
        """Queue a PINGREQ, as paho's own keep-alive does."""
        self._send_pingreq()

    def _handle_on_message(self, message: MQTTMessage) -> None:
        if message.qos:
            self._unacknowledged += 1
        super()._handle_on_message(message)

    def ack(self, mid: int, qos: int) -> MQTTErrorCode:
        self._unacknowledged -= 1
        return super().ack(mid, qos)

    @property
    def tls_failure(self) -> ssl.SSLError | None:
        """What ended a TLS connection."""
        return self._tls.failure if isinstance(self._tls, FailureKeepingSocket) else None

    def excess(self) -> str | None:
        """What the broker does that no broker may, in words; None as long as paho's memory is safe."""
        packet = self._in_packet
        if packet["to_process"] > LONGEST_HEADER:
            try:
                check_header(packet["command"], packet["packet"], 0, packet["remaining_length"])
            except PacketError as error:
                return str(error)
        if len(self._out_packet) > MOST_WAITING:
            return f"{MOST_WAITING} packets wait to be written, because it does not read our answers"
        if self._unacknowledged + len(self._in_messages) > RECEIVE_MAXIMUM:
            return f"more than {RECEIVE_MAXIMUM} messages came without waiting for their acknowledgements"
        return None

    # -- the handshake of a WebSocket ----------------------------------------------------------------------------------

    def _create_socket(self) -> SocketLike:
        self.heard_at = monotonic()
        try:
            return super()._create_socket()
        except BaseException as error:
            self._end_watch()
            if self._dialed is not None:
                self._dialed.close()
            if isinstance(error, OSError) and monotonic() >= self._connect_by:
                raise TimeoutError from error  # it was cut off, and says something else
            raise
        finally:
            self._end_watch()
            self._dialed = None

    def take(self, line: Line) -> None:
        """What it is to connect over. The next call is ``connect()``."""
        self._dialed, self._connect_by = line.sock, line.turn.deadline
        self.connect_timeout = max(0.001, self._connect_by - monotonic())

    def leave(self) -> None:
        """It does not come to that call."""
        if self._dialed is not None:
            self._dialed.close()

    def _create_socket_connection(self) -> socket.socket:
        if self._dialed is None:
            raise ConnectionError("it has been closed")
        self._dialed.settimeout(self.connect_timeout)
        if self.transport == "websockets":
            watch = threading.Timer(max(0.0, self._connect_by - monotonic()), self._cut_off)
            watch.daemon = True
            try:
                thread_locks.start(watch)
            except BaseException:
                watch.cancel()  # it may run, and the next socket is not its own
                raise
            self._watch = watch
        return self._dialed

    def _ssl_wrap_socket(self, tcp_sock: Any) -> Any:
        self._dialed = self._tls = super()._ssl_wrap_socket(tcp_sock)
        return self._dialed

    def _cut_off(self) -> None:
        """In a thread of its own: who waits for the next byte finds the end of the stream."""
        sock = self._dialed
        if sock is not None:
            # Not by way of the socket object, which TLS would be taken off from.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(sock.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            watch.join()  # it may be about to use the descriptor

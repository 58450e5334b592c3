"""One TCP connection: bytes to packets, outboxes to bytes, and a decent end.

**Back-pressure.** When the socket takes no more, the peer is not read any longer either: a peer that does not take its
answers may not cause new ones. (Its keep-alive goes on: a peer that takes nothing at all for one and a half of them is
disconnected.) What is encoded for it is bounded by the outbox limit of the broker and the write buffer
here.

**Linger.** A close with unread bytes in the receive buffer makes the kernel send a reset, which destroys what the peer
has not read yet, first of all the DISCONNECT that tells it what it did wrong. So the write side is shut down, and for a
moment everything that still comes is read and thrown away.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final, cast

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import PacketDecoder, ReasonCode

if TYPE_CHECKING:
    from statestore_client.server.broker import Connection
    from statestore_client.server.runtime.hub import Hub

__all__ = ["LINGER_S", "ClientConnection", "peer_name"]

#: How long a disconnected peer may take to read why, in seconds.
LINGER_S: Final = 1.0

#: Bytes in the write buffer above which the peer counts as slow.
_WRITE_BUFFER: Final = 256 * 1024


class ClientConnection(asyncio.Protocol):
    """The asyncio side of one :class:`~statestore_client.server.broker.Connection`."""

    __slots__ = ("_connection", "_decoder", "_hub", "_is_closing", "_linger_s", "_linger_timer", "_transport")

    def __init__(self, hub: Hub, *, linger_s: float = LINGER_S) -> None:
        self._hub = hub
        self._linger_s = linger_s
        limits = hub.broker.limits
        self._decoder = PacketDecoder(
            version=None, max_packet_size=limits.packet_bytes, topic_alias_maximum=limits.topic_alias_maximum
        )
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._is_closing = False

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast("asyncio.Transport", transport)
        if self._hub.is_overcrowded:
            self._is_closing = True
            stream.abort()
            return
        _set_options(stream)
        stream.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._connection = self._hub.opened(self, peer_name(stream), certificate=_certified_name(stream))

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        if self._is_closing or connection is None:
            return
        decoder, hub = self._decoder, self._hub
        before = decoder.buffered
        try:
            packets = decoder.feed(data)
        except PacketError as error:
            hub.unfinished_bytes += decoder.buffered - before
            hub.received(connection, decoder.take())
            hub.broken(connection, error, decoder.version)
            return
        hub.unfinished_bytes += decoder.buffered - before
        hub.received(connection, packets)
        if connection.verification is not None and connection.session is None:
            self._pause_reading()  # until it is known who this is
        if decoder.buffered > before and hub.unfinished_bytes > hub.broker.limits.unfinished_bytes:
            hub.broken(connection, _too_many_unfinished(), decoder.version)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._hub.congested(self._connection)
        self._pause_reading()

    def resume_writing(self) -> None:
        self.resume_reading()
        if self._connection is not None:
            self._hub.drained(self._connection)
            self._hub.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._is_closing = True
        self._hub.unfinished_bytes -= self._decoder.buffered
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        if self._connection is not None:
            self._hub.lost(self._connection)

    # -- from the hub -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the outbox in one go; close if the connection has ended; let more out of the queue if there is room."""
        transport, connection = self._transport, self._connection
        if transport is None or connection is None or self._is_closing:
            return
        if connection.outbox:
            transport.write(connection.take())
        if connection.ending is not None:
            self._close(transport, lingering=not connection.ending.by_peer)
        elif connection.has_backlog and not connection.is_congested:
            self._hub.drained(connection)

    def resume_reading(self) -> None:
        """Go on after back-pressure, or when it is known who this is."""
        if self._transport is not None and not self._is_closing:
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._is_closing:
            self._transport.pause_reading()

    def abort(self) -> None:
        """Close without waiting for the peer to take what was written."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def _close(self, transport: asyncio.Transport, *, lingering: bool) -> None:
        self._is_closing = True
        loop = asyncio.get_running_loop()
        self._linger_timer = loop.call_later(self._linger_s, transport.abort)
        if lingering and transport.can_write_eof():
            transport.write_eof()
            transport.resume_reading()  # what was held back from a slow peer is to be thrown away, too
        else:
            transport.close()


def _too_many_unfinished() -> PacketError:
    return PacketError("too many bytes of unfinished packets", reason_code=ReasonCode.QUOTA_EXCEEDED)


def _set_options(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        # Nagle's algorithm and delayed acknowledgements together cost 40 ms for every request and response.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Peers without a keep-alive that vanish are found by the kernel, in its own time.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Address and port of the other end, for the log."""
    address = transport.get_extra_info("peername")
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) and len(address) >= 2 else str(address)


def _certified_name(transport: asyncio.BaseTransport) -> str | None:
    """The common name in the client's certificate. Only a verified certificate is there at all."""
    certificate = transport.get_extra_info("peercert") or {}
    names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    return names[-1] if names else None

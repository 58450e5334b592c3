"""One TCP connection: bytes to packets, outboxes to bytes, and a decent end.

**Back-pressure.** When the socket takes no more, the peer is not read any longer either: a peer that does not take its
answers may not cause new ones. (Its keep-alive goes on, so one that takes nothing is disconnected.) What is encoded for
it is bounded by the broker's outbox limit and the write buffer: a large payload is shared and sent piece by piece.

**Turns.** A chunk of 256 KiB holds thousands of packets, and some packets take milliseconds (a SCAN, a message to
thousands of subscriptions). When a connection has had its turn, the others get theirs before it goes on; meanwhile it
is not read. The same while something that it caused is not done yet.

**States.** A connection is in one of these; after each turn, :meth:`ServerConnection._after_turn` decides in which.

=============  =======================================================================================================
``READING``    the peer is read, and what comes is served at once
``SERVING``    a turn is going on
``QUEUED``     a turn is to come: for packets that wait, or for a large outbox; what comes waits for it
``HELD``       the peer is not read until :meth:`~ServerConnection.flush`, :meth:`~ServerConnection.resume_reading` or
               :meth:`~ServerConnection.resume_writing` finds nothing in the way any more
``THROTTLED``  the peer is not read until a timer says that it may send again
``CLOSED``     nothing that comes is looked at; the socket closes, perhaps after a moment (see below), or is closed
=============  =======================================================================================================

Invariant: while packets wait, the peer is not read.

**Linger.** A close with unread bytes in the receive buffer makes the kernel send a reset, which destroys what the peer
has not read yet, first of all the DISCONNECT that tells it what it did wrong. So the write side is shut down, and for a
moment everything that still comes is read and thrown away.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, cast

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import MQTT_5_0, PacketDecoder, Puback
from statestore_client.server.runtime.fairness import SLICE_S, RateLimiter
from statestore_client.server.runtime.transport.sockets import SocketTransport, set_options
from statestore_client.server.runtime.transport.tls import certificate_of, certified_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.mqtt.packets import Packet
    from statestore_client.server.broker import Connection
    from statestore_client.server.runtime.broker_driver import BrokerDriver
    from statestore_client.server.runtime.security.files import CertificateId
    from statestore_client.server.runtime.transport.peers import Peer

#: How long a disconnected peer may take to read why, in seconds.
LINGER_S: Final = 1.0

#: Bytes in the write buffer above which the peer counts as slow, and handed to it at a time.
_WRITE_BUFFER: Final = 64 * 1024

#: How many times that in one go.
_WRITES: Final = 2

#: Bytes that are decoded at a time: packets as objects take far more than their bytes.
_PIECE: Final = 64 * 1024

#: A peer that sends too fast rests for a while, and again; its keep-alive does not run out meanwhile.
_LONGEST_THROTTLE_S: Final = 1.0

#: What one decoded packet holds while it waits, roughly.
_PACKET_BYTES: Final = 320

#: Of all connections that are over.
_NO_DECODER: Final = PacketDecoder(version=None, max_packet_size=0)


class _State(Enum):
    """See the table above."""

    READING = auto()
    SERVING = auto()
    QUEUED = auto()
    HELD = auto()
    THROTTLED = auto()
    CLOSED = auto()


#: Looking a member up in its enumeration takes as long as a call.
_READING: Final = _State.READING
_SERVING: Final = _State.SERVING
_QUEUED: Final = _State.QUEUED
_CLOSED: Final = _State.CLOSED


class ServerConnection(asyncio.Protocol):
    """The asyncio side of one :class:`~statestore_client.server.broker.Connection`."""

    __slots__ = (
        "_backlog_bytes",
        "_chunks",
        "_connection",
        "_decoder",
        "_driver",
        "_error",
        "_held_bytes",
        "_is_client",
        "_is_paused",
        "_linger_s",
        "_linger_timer",
        "_peer",
        "_rate_limiter",
        "_state",
        "_throttle_timer",
        "_transport",
        "_unserved",
    )

    def __init__(self, driver: BrokerDriver, *, linger_s: float = LINGER_S) -> None:
        self._driver = driver
        self._linger_s = linger_s
        # Topic aliases are the broker's: what they hold is in its budget.
        limits = driver.broker.limits
        self._decoder = PacketDecoder(
            version=None, max_packet_size=limits.packet_bytes, max_connect_size=limits.connect_bytes
        )
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._peer: Peer | None = None
        self._is_client = False  # it has, or had, a session
        self._linger_timer: asyncio.TimerHandle | None = None
        self._state = _READING
        self._is_paused = False  # the transport does not read
        self._unserved: deque[Packet] = deque()
        self._chunks: deque[bytes | memoryview] = deque()  # behind those, not decoded yet
        self._error: PacketError | None = None  # what came behind the unserved packets; nothing is decoded after it
        self._backlog_bytes = 0  # what chunks and unserved packets hold, roughly
        self._held_bytes = 0  # that it is counted with: those, and an unfinished packet; of strangers, all that came
        self._rate_limiter = RateLimiter.of(limits)
        self._throttle_timer: asyncio.TimerHandle | None = None  # until it may send more

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast("asyncio.Transport", transport)
        driver = self._driver
        self._peer = peer = driver.peers.accepted(stream, self, driver.now)
        if driver.is_closing:
            self._state = _CLOSED
            stream.abort()
            return
        set_options(stream)
        stream.set_write_buffer_limits(high=_WRITE_BUFFER)
        certificate = certified_name(stream)
        self._connection = driver.opened(self, peer.name, certificate=certificate, since=peer.accepted_at)
        driver.peers.make_room(peer)

    def data_received(self, data: bytes) -> None:
        connection, state = self._connection, self._state
        if state is _CLOSED or connection is None:
            return
        self._chunks.append(data)
        self._driver.broker.counters.received_bytes += len(data)
        if self._rate_limiter is not None:
            self._rate_limiter.took_bytes(len(data), time.monotonic())
        if not self._is_client:
            self._count(self._held_bytes + len(data))
        if state is not _QUEUED:
            self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        """Hand packets to the broker for one turn."""
        driver, unserved = self._driver, self._unserved
        was_reading = self._state is _READING
        if self._state is not _QUEUED:
            self._state = _SERVING
        ends = time.monotonic() + SLICE_S
        while self._state is not _CLOSED and not connection.is_held and not connection.is_congested:
            if not unserved and not self._decode():
                break
            if connection.session is None and unserved:
                driver.read_earlier(unserved[0])
            if self._rate_limiter is not None:
                if self._is_throttled(self._rate_limiter):
                    break
                driver.received(connection, self._rate_limiter.count(self._until(ends, connection), time.monotonic()))
            elif len(unserved) == 1:
                driver.received(connection, (unserved.popleft(),))
            elif len(unserved) == 2 and type(unserved[0]) is Puback:
                # Of an answer, with the next request: it causes nothing that this would have to wait for.
                driver.received(connection, (unserved.popleft(), unserved.popleft()))
            elif unserved:
                driver.received(connection, self._until(ends, connection))
            if not (unserved or self._chunks) or time.monotonic() >= ends:
                break
        has_backlog = unserved or self._chunks or self._error or self._backlog_bytes
        if was_reading and self._state is _SERVING and not (has_backlog or self._is_paused):
            self._state = _READING  # as it mostly is
            if not connection.is_held:
                return
        self._after_turn(connection)

    def _decode(self) -> bool:
        """Decode some more; False if there is nothing."""
        chunks, decoder = self._chunks, self._decoder
        if self._error is not None or not chunks:
            return False
        chunk = chunks.popleft()
        if len(chunk) > _PIECE:
            view = memoryview(chunk)
            chunks.appendleft(view[_PIECE:])
            chunk = view[:_PIECE]
        before = decoder.buffered
        try:
            self._unserved += decoder.feed(chunk)
        except PacketError as error:
            self._error = error.with_traceback(None)  # that holds this object, too
            self._unserved += decoder.take()
        if self._is_client and decoder.buffered != before:
            self._count(decoder.buffered + self._backlog_bytes)
        return True

    def _count(self, held_bytes: int) -> None:
        """So much is held for this peer now. It may have to go for it, or another one that holds more."""
        more, self._held_bytes = held_bytes - self._held_bytes, held_bytes
        self.hold(more)

    def hold(self, more: int) -> None:
        """What carries the bytes holds so many more, or less."""
        if more and self._peer is not None:
            self._driver.peers.hold(self._peer, more)

    def _enter(self, connection: Connection) -> None:
        """It is known who this is: from now on only what is not carried out counts."""
        self._is_client = True
        if self._peer is not None:
            self._driver.peers.authenticated(self._peer)
        self._count(self._decoder.buffered + self._backlog_bytes)
        self._driver.entered(connection)

    def _until(self, ends: float, connection: Connection) -> Iterator[Packet]:
        """Packets as long as the turn lasts, at least one. A clock is read in a hundredth of the time of a packet."""
        unserved, clock = self._unserved, time.monotonic
        next_packet = unserved.popleft
        while unserved:
            yield next_packet()
            if connection.pending or clock() >= ends:
                return

    def _after_turn(self, connection: Connection) -> None:
        """Decide what is next."""
        driver, error = self._driver, self._error
        has_more = bool(self._unserved or self._chunks) and error is None
        if has_more or self._unserved or self._backlog_bytes:
            self._keep_backlog(has_more=has_more or bool(self._unserved))
        if self._state is _CLOSED or connection.ending is not None:
            return
        if error is not None and not self._unserved:
            driver.broken(connection, error, self._decoder.version)
        elif self._throttle_timer is not None:
            self._wait(_State.THROTTLED)
        elif connection.is_held or connection.is_congested:
            self._wait(_State.HELD)
        elif has_more or self._unserved:
            self._wait(_QUEUED)
        else:
            self._read_on()

    def _is_throttled(self, rate_limiter: RateLimiter) -> bool:
        """Whether the peer has sent more than it may for now. Then a timer goes on."""
        wait_s = rate_limiter.wait_s(time.monotonic())
        if wait_s > 0 and self._throttle_timer is None:
            self._throttle_timer = asyncio.get_running_loop().call_later(
                min(wait_s, _LONGEST_THROTTLE_S), self._throttle_over
            )
        return self._throttle_timer is not None

    def _throttle_over(self) -> None:
        self._throttle_timer = None
        if self._connection is not None and self._state is not _CLOSED:
            self._driver.waited(self._connection)
            if self._state is _State.THROTTLED:
                self._state = _State.HELD
            self._go_on(self._connection)

    def _queue(self) -> None:
        """Ask for another turn."""
        if self._state is not _QUEUED:
            self._state = _QUEUED
            self._driver.turns.add(self._turn)

    def _turn(self) -> bool:
        if self._state is _QUEUED:
            self._state = _SERVING
        self.flush()
        if self._connection is not None and self._state is not _CLOSED:
            self._serve(self._connection)
        return False  # queued again by itself

    def _keep_backlog(self, *, has_more: bool) -> None:
        """Count what waits to be served."""
        waits = has_more and self._state is not _CLOSED
        self._backlog_bytes = len(self._unserved) * _PACKET_BYTES + sum(map(len, self._chunks)) if waits else 0
        if self._is_client:
            self._count(self._decoder.buffered + self._backlog_bytes)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._driver.congested(self._connection)
        self._pause()
        if self._state is _READING:
            self._state = _State.HELD

    def resume_writing(self) -> None:
        connection = self._connection
        if connection is None:
            return
        self._driver.drained(connection)
        self.flush()
        self._driver.flush()
        self._go_on(connection)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._state = _CLOSED
        self._forget()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
        if self._peer is not None:
            self._driver.peers.gone(self._peer)
        if self._connection is not None:
            self._driver.lost(self._connection)

    def drop(self, error: PacketError) -> None:
        """It was chosen to go. It is told if it is known how; otherwise its place is free at once."""
        can_be_told = self._decoder.version is not None and self._state is not _CLOSED
        self.fail(error)
        if not can_be_told:
            self.abort()

    @property
    def certificate(self) -> CertificateId | None:
        """Which one the peer has shown."""
        return None if self._transport is None else certificate_of(self._transport)

    def fail(self, error: PacketError) -> None:
        """What carries the bytes has broken, a WebSocket for example."""
        if self._connection is not None and self._state is not _CLOSED:
            self._driver.broken(self._connection, error, self._decoder.version)

    # -- from the broker's driver --------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the outbox in one go; close if the connection has ended; let more out of the queue if there is room."""
        transport, connection = self._transport, self._connection
        if transport is None or connection is None or self._state is _CLOSED:
            return
        if not self._is_client and connection.session is not None:
            self._enter(connection)
        for _ in range(_WRITES):
            if not connection.outbox or connection.is_congested:
                break
            is_little = connection.outbox_bytes <= _WRITE_BUFFER
            data = connection.take() if is_little else connection.take_some(_WRITE_BUFFER)
            self._driver.broker.counters.sent_bytes += len(data)
            transport.write(data)
        if connection.outbox and not connection.is_congested:
            self._queue()  # large payloads for hundreds of receivers take as long as anything else
            return
        if connection.ending is not None:
            self._end(transport, connection)
            return
        if connection.has_backlog and not connection.is_congested:
            self._driver.drained(connection)
        if self._state is _State.HELD:
            self._go_on(connection)

    def _go_on(self, connection: Connection) -> None:
        """Serve what waited, in a turn of its own, if nothing is in the way any more."""
        if self._state is not _State.HELD or connection.is_held or connection.is_congested:
            return
        if self._unserved or self._chunks or self._error is not None:
            self._queue()
        else:
            self._read_on()

    def _forget(self) -> None:
        """Nothing that came is looked at any more."""
        self._backlog_bytes = 0
        self._unserved.clear()
        self._chunks.clear()
        self._decoder = _NO_DECODER
        self._count(0)

    def resume_reading(self) -> None:
        """Go on: it is known who this is."""
        if self._connection is not None:
            self._go_on(self._connection)

    def read_now(self) -> None:
        """Read what the socket has, before the event loop gets to it. TLS and WebSocket have to wait for that."""
        if isinstance(self._transport, SocketTransport):
            self._transport.read()

    def _read_on(self) -> None:
        """Nothing waits. A turn that was asked for meanwhile still comes."""
        if self._state is not _QUEUED:
            self._state = _READING
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def _wait(self, state: _State) -> None:
        """Do not read the peer before it is served further. A turn that was asked for meanwhile decides anew."""
        self._pause()
        if state is _QUEUED:
            self._queue()
        elif self._state is not _QUEUED:
            self._state = state

    def _pause(self) -> None:
        if not self._is_paused and self._transport is not None and self._state is not _CLOSED:
            self._is_paused = True
            self._transport.pause_reading()

    def abort(self) -> None:
        """Close without waiting for the peer to take what was written."""
        self._state = _CLOSED
        if self._transport is not None:
            self._transport.abort()

    def _end(self, transport: asyncio.Transport, connection: Connection) -> None:
        """Close when the peer has taken what is left, which it may take some time for, but not for ever."""
        if self._linger_timer is None:
            loop = asyncio.get_running_loop()
            self._linger_timer = loop.call_later(self._linger_s, transport.abort)
        if not connection.outbox_bytes and connection.ending is not None:
            is_told = connection.version == MQTT_5_0 or connection.was_refused
            self._close(transport, lingering=not connection.ending.by_peer, is_told=is_told)

    def _close(self, transport: asyncio.Transport, *, lingering: bool, is_told: bool) -> None:
        """``is_told``: the peer reads from us why, and closes when it has read it."""
        self._state = _CLOSED
        self._forget()
        if lingering and transport.can_write_eof():
            try:
                transport.write_eof()
            except OSError:  # reset by the peer, and not noticed yet
                transport.abort()
            transport.resume_reading()  # what was held back from a slow peer is to be thrown away, too
        elif lingering and is_told:
            transport.resume_reading()  # TLS cannot close one direction only: the other end is to close first
        else:
            transport.close()

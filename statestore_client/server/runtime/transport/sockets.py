"""Plain stream sockets as asyncio transports, in as few steps as a connection needs.

asyncio makes a task and several callbacks for each accepted socket, which take a third of the time of a client that
connects, and does a little more for each chunk as well. What is here does the same for a server's protocols, without
TLS (asyncio has that). :func:`take_over` puts it in place of asyncio's own, where sockets can be watched.

Invariant: as with asyncio, a protocol hears ``connection_made`` first and ``connection_lost`` last and once, and never
from inside one of its own calls to the transport.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from typing import TYPE_CHECKING, Any, Final

from statestore_client.server.runtime.observability.logs import LOGGER, log_event

if TYPE_CHECKING:
    from collections.abc import Callable

#: Read at a time, as asyncio does.
_CHUNK: Final = 256 * 1024

#: Bytes not yet taken by the socket at which the protocol is told to pause, unless it sets another limit.
_HIGH_WATER: Final = 64 * 1024

#: Sockets accepted before those that are connected get their turn.
_ACCEPTED_AT_ONCE: Final = 16

#: Out of file descriptors, trying again at once would take all the time there is. In seconds.
_ACCEPT_PAUSE_S: Final = 1.0

_NOBODY: Final = asyncio.BaseProtocol()

_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


def take_over(server: asyncio.Server, make: Callable[[], asyncio.Protocol] | None, *, backlog: int) -> list[Acceptor]:
    """Accept on the sockets of ``server`` in its place, and let the kernel keep up to ``backlog`` waiting.

    Not without ``make``, and not on event loops that cannot watch sockets (Windows' own) or have a quick way of theirs:
    then the list is empty, and ``server`` goes on itself. Close the acceptors before the server.
    """
    loop = server.get_loop()
    acceptors = []
    for watched in server.sockets:
        listening = socket.socket(fileno=os.dup(watched.fileno()))
        listening.listen(backlog)
        if make is None or not isinstance(loop, asyncio.SelectorEventLoop):
            listening.close()
            continue
        loop.remove_reader(watched.fileno())
        acceptors.append(Acceptor(loop, listening, make))
    return acceptors


class Acceptor:
    """Accepts on a listening socket, which it owns, until it is closed."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listening: socket.socket, make: Callable[[], asyncio.Protocol]
    ) -> None:
        self._loop = loop
        self._listening = listening
        self._make = make
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._watch()

    def close(self) -> None:
        """Accept no more. Safe to call twice."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()

    def _watch(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, address = self._listening.accept()
            except OSError as error:  # mostly: nobody is waiting any more
                if error.errno in _EXHAUSTED:
                    log_event(logging.ERROR, "accepting no more for a moment", reason=error.strerror)
                    self._loop.remove_reader(self._listening.fileno())
                    self._pause = self._loop.call_later(_ACCEPT_PAUSE_S, self._watch)
                return
            sock.setblocking(False)
            transport = SocketTransport(self._loop, sock, address, self._make())
            transport.read()  # a client that connects goes on at once: mostly, something is there already


class SocketTransport(asyncio.Transport):
    """One connected socket. See :class:`asyncio.Transport` for what the methods do."""

    __slots__ = (
        "_buffer",
        "_fd",
        "_high",
        "_is_at_end",
        "_is_closing",
        "_is_full",
        "_is_lost",
        "_is_reading",
        "_loop",
        "_protocol",
        "_sock",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, address: object, protocol: asyncio.Protocol
    ) -> None:
        super().__init__({"socket": sock, "peername": address})
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._protocol: asyncio.BaseProtocol = protocol
        self._buffer = bytearray()  # what the socket did not take yet
        self._high = _HIGH_WATER
        self._is_full = False  # the protocol was told to pause
        self._is_reading = False
        self._is_at_end = False  # no more is written: the write side is closed when the buffer is empty
        self._is_closing = False
        self._is_lost = False  # nothing is sent any more; the protocol hears of it, or has heard
        protocol.connection_made(self)
        self.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # -- reading ------------------------------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        if not self._is_reading and not self._is_closing:
            self._is_reading = True
            self._loop.add_reader(self._fd, self.read)

    def read(self) -> None:
        """Hand what has come to the protocol."""
        if not self._is_reading:
            return
        try:
            data = self._sock.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        protocol: Any = self._protocol
        try:
            if data:
                protocol.data_received(data)
                return
            stays_open = protocol.eof_received()
        except Exception as error:  # noqa: BLE001 - a defect of the protocol's ends its own connection only
            LOGGER.exception("a connection failed")
            self._lose(error)
            return
        self.pause_reading()  # what is at its end is always ready to be read
        if stays_open:
            return
        self._is_closing = True
        if not self._buffer and not self._is_lost:
            self._is_lost = True
            self._finish(None)  # nothing else is going on

    # -- writing ------------------------------------------------------------------------------------------------------

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """``low`` is not used: writing resumes when the socket has taken everything."""
        del low
        self._high = _HIGH_WATER if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._is_lost:
            return
        if not self._buffer:
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._lose(error)
                return
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
            self._loop.add_writer(self._fd, self._write_more)
        self._buffer += data
        if len(self._buffer) > self._high and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def _write_more(self) -> None:
        try:
            sent = self._sock.send(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        del self._buffer[:sent]
        if self._buffer:
            return
        self._loop.remove_writer(self._fd)
        if self._is_full:
            self._is_full = False
            self._protocol.resume_writing()  # may write again
        if not self._buffer:
            self._all_sent()

    def _all_sent(self) -> None:
        if self._is_closing:
            self._lose(None)
        elif self._is_at_end:
            self._shut_down()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._is_at_end or self._is_closing:
            return
        self._is_at_end = True
        if not self._buffer:
            self._shut_down()

    def _shut_down(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    # -- the end ------------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Read no more; the end comes when the socket has taken what was written."""
        if self._is_closing:
            return
        self.pause_reading()
        self._is_closing = True
        if not self._buffer:
            self._lose(None)

    def abort(self) -> None:
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        """Stop everything; the protocol hears of it when what is going on is over."""
        if self._is_lost:
            return
        self.pause_reading()
        if self._buffer:
            self._buffer.clear()
            self._loop.remove_writer(self._fd)
        self._is_closing = self._is_lost = True
        self._loop.call_soon(self._finish, error)

    def _finish(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._protocol = _NOBODY  # each knows the other: nothing is left for the garbage collector
            self._sock.close()


#: A client's machine that vanishes closes nothing, and a client may have no keep-alive of MQTT's. The kernel asks on a
#: line that was idle for a minute, and gives it up when nothing was acknowledged for two, in place of two hours if it
#: is idle, and a quarter of an hour if something is on its way. A client that takes nothing for so long is let go, too.
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 120_000}


def set_options(transport: asyncio.Transport) -> None:
    """Of a socket that was accepted."""
    sock = transport.get_extra_info("socket")
    family = None if sock is None else sock.family  # takes a while
    if family in (socket.AF_INET, socket.AF_INET6):
        # Nagle's algorithm and delayed acknowledgements together cost 40 ms for every request and response.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if (option := getattr(socket, name, None)) is not None:  # not all systems have all of them
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

"""A TCP proxy that breaks connections on demand. It runs in the test's event loop, between a client and a server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from types import TracebackType
from typing import Self

import attrs

__all__ = ["Proxy"]

_CHUNK = 65536


@attrs.define(eq=False)
class _Pair:
    """One connection: the client's side and the server's side."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    up: int = 0  # bytes forwarded to the server
    down: int = 0  # bytes forwarded to the client
    reachable: asyncio.Event = attrs.field(factory=asyncio.Event)

    def cut(self) -> None:
        self.reachable.set()
        for writer in (self.client, self.server):
            # A reset, as from a firewall or a dead machine, not an orderly end of the stream.
            sock = writer.get_extra_info("socket")
            if sock is not None:  # TLS transports that are gone have none
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


async def _gone(*writers: asyncio.StreamWriter) -> None:
    """Wait until these are closed, so that nothing is left to the garbage collector of another test."""
    for writer in writers:
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


class Proxy:
    """``async with Proxy(server.port) as proxy`` and connect to ``proxy.url``. Switch faults on and off at any time."""

    def __init__(self, target_port: int, *, tls: ssl.SSLContext | None = None, chunk: int | None = None) -> None:
        self.target_port = target_port
        self._chunk = chunk or _CHUNK  # bytes that are read, and written, at once
        self.delay_s = 0.0  # added to each chunk, in both directions
        #: For the next connections, in order: cut after this many bytes to the server, to the client.
        self.cuts: list[tuple[int | None, int | None]] = []
        self.connections = 0
        #: Forwarded, in both directions.
        self.bytes = 0
        self._tls = tls
        self._flows = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        #: Keeps the port while nobody listens: otherwise the kernel gives it to the next one that asks.
        self._place = socket.socket()
        self._port = 0
        self._closing = False
        self.flow("up", "down")

    @property
    def url(self) -> str:
        return f"mqtt{'s' if self._tls else ''}://127.0.0.1:{self._port}"

    # -- faults --------------------------------------------------------------------------------------------------------

    def hold(self, *directions: str) -> None:
        """Forward nothing any longer in these directions ("up", "down"); connections stay and new ones are accepted."""
        for direction in directions:
            self._flows[direction].clear()

    def flow(self, *directions: str) -> None:
        """End a hold; what was held back arrives."""
        for direction in directions:
            self._flows[direction].set()

    def cut(self) -> None:
        """Reset every connection; what was held back is lost."""
        for pair in tuple(self._pairs):
            pair.cut()

    def vanish(self) -> None:
        """The machine is gone, as far as these connections are concerned: their bytes go nowhere, and no end comes.
        New connections reach another machine.
        """
        for pair in self._pairs:
            pair.reachable.clear()

    def cut_server_side(self) -> None:
        """Half-open: the server sees the end, the client hears nothing, now or later."""
        self.hold("up", "down")
        for pair in tuple(self._pairs):
            pair.server.transport.abort()

    def say(self, data: bytes) -> None:
        """Send something to every client that the server never said."""
        for pair in self._pairs:
            pair.client.write(data)

    async def refuse(self) -> None:
        """Stop listening; connections stay."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def accept(self) -> None:
        """Listen, at the same address as before."""
        if not self._port:
            self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._place.bind(("127.0.0.1", 0))
            self._port = self._place.getsockname()[1]
        self._listener = await asyncio.start_server(
            self._accepted, "127.0.0.1", self._port, ssl=self._tls, reuse_port=True
        )

    # -- forwarding ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        await self.refuse()
        self.delay_s = 0.0
        self.flow("up", "down")
        while self._tasks:  # not cancelled: a connection in the making would be left to the garbage collector
            self.cut()
            await asyncio.wait(self._tasks, timeout=0.1)
        self._place.close()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            await _gone(writer)
            return
        pair = _Pair(writer, to_server)
        pair.reachable.set()
        if self._closing:
            pair.cut()
        limits = self.cuts.pop(0) if self.cuts else (None, None)
        self._pairs.add(pair)
        try:
            await asyncio.gather(
                self._pump("up", reader, to_server, pair, limits[0]),
                self._pump("down", from_server, writer, pair, limits[1]),
            )
        except OSError:
            pass
        finally:
            self._pairs.discard(pair)
            pair.cut()
            await _gone(writer, to_server)

    async def _pump(
        self, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: _Pair, limit: int | None
    ) -> None:
        sent = 0
        while True:
            await self._flows[direction].wait()
            data = await reader.read(self._chunk)
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await self._flows[direction].wait()
            await pair.reachable.wait()
            if not data:
                raise ConnectionResetError("one side is gone")
            if limit is not None and sent + len(data) >= limit:
                writer.write(data[: limit - sent])
                await writer.drain()
                raise ConnectionResetError("cut")
            sent += len(data)
            self.bytes += len(data)
            writer.write(data)
            await writer.drain()

"""The raw peers for values of megabytes, on a blocking socket and on asyncio; requests are built beforehand.

A request leaves without being copied, and a reply is received into memory of its own, which the caller could keep.
"""

from __future__ import annotations

import asyncio
import socket

from raw import request_packet

from statestore_client.mqtt.packets import Connect, Subscribe, Subscription, encode
from statestore_client.wire.commands import Get, Set
from statestore_client.wire.protocol import response_topic

__all__ = ["RawBulk", "RawBulkProtocol"]

_CLIENT_ID = "raw-bulk"


def _request(verb: str, value_bytes: int) -> bytes:
    command = Get(b"%d" % value_bytes) if verb == "GET" else Set(b"bench/1", b"v" * value_bytes)
    return request_packet(_CLIENT_ID, command.encode())


def _hello() -> bytes:
    return encode(Connect(_CLIENT_ID)) + encode(Subscribe(1, (Subscription(response_topic(_CLIENT_ID), 1),)))


class RawBulk:
    """SETs or GETs of one size, a few in flight."""

    def __init__(self, port: int, verb: str, value_bytes: int) -> None:
        self._packet = _request(verb, value_bytes)
        self._buffer = memoryview(bytearray(16_384))
        self._start = self._end = 0
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(_hello())
        while self._packet_body()[0] != 9:
            pass

    def close(self) -> None:
        self._socket.close()

    def run(self, operations: int, in_flight: int) -> None:
        """Send so many, and take as many replies, which are all kept until the end."""
        replies: list[memoryview] = []
        for number in range(operations + in_flight - 1):
            if number < operations:
                self._socket.sendall(self._packet)
            if number >= in_flight - 1:
                replies.append(self._reply())

    def _reply(self) -> memoryview:
        while True:
            kind, body = self._packet_body()
            if kind == 3:
                self._socket.sendall(b"\x40\x02\x00\x01")
                return body

    def _packet_body(self) -> tuple[int, memoryview]:
        kind = self._byte() >> 4
        length = shift = 0
        while True:
            byte = self._byte()
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        body = memoryview(bytearray(length))
        have = min(length, self._end - self._start)
        body[:have] = self._buffer[self._start : self._start + have]
        self._start += have
        while have < length:
            have += self._received(self._socket.recv_into(body[have:]))
        return kind, body

    def _byte(self) -> int:
        if self._start == self._end:
            self._start, self._end = 0, self._received(self._socket.recv_into(self._buffer))
        self._start += 1
        return self._buffer[self._start - 1]

    def _received(self, count: int) -> int:
        if not count:
            raise ConnectionError("the stub closed the connection")
        return count


class RawBulkProtocol(asyncio.Protocol):
    """The same with asyncio: a write per request, and the chunks of a reply joined."""

    def __init__(self, verb: str, value_bytes: int) -> None:
        self._packet = _request(verb, value_bytes)
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 2
        self._subscribed = asyncio.get_running_loop().create_future()
        self._left = self._to_send = 0
        self._done: asyncio.Future[None] | None = None
        self._replies: list[memoryview] = []

    async def open(self, port: int) -> RawBulkProtocol:
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", port)
        await self._subscribed
        return self

    def close(self) -> None:
        self._transport.abort()

    async def run(self, operations: int, in_flight: int) -> None:
        """Send so many, and take as many replies, which are all kept until the end."""
        self._done = asyncio.get_running_loop().create_future()
        self._left, self._to_send = operations, operations - in_flight
        for _ in range(in_flight):
            self._transport.write(self._packet)
        await self._done
        self._replies.clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.write(_hello())

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._have += len(data)
        while self._have >= self._need:
            data = b"".join(self._chunks)
            start = self._take(data)
            rest = data[start:]
            self._chunks = [rest]
            self._have = len(rest)
            if not start:
                return

    def _take(self, data: bytes) -> int:
        """Take the packet at the start of ``data``, if it is complete; returns where it ends."""
        length, shift, at = 0, 0, 1
        while True:
            if at == len(data):
                self._need = at + 1
                return 0
            length |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                break
        if at + length > len(data):
            self._need = at + length
            return 0
        self._need = 2
        self._packet_taken(data[0] >> 4, memoryview(data)[at : at + length])
        return at + length

    def _packet_taken(self, kind: int, body: memoryview) -> None:
        if kind == 9:
            self._subscribed.set_result(None)
        elif kind == 3:
            self._transport.write(b"\x40\x02\x00\x01")
            self._replies.append(body)
            self._left -= 1
            if self._to_send > 0:
                self._to_send -= 1
                self._transport.write(self._packet)
            if not self._left and self._done is not None:
                self._done.set_result(None)

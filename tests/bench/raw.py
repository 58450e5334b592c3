"""The raw peer of the benchmarks: SETs and GETs on bare asyncio sockets, hand-encoded, one future per request.

What any asyncio client must do and nothing else: build the packet, write it, find the reply's request, wake the caller.
Connections that break, deadlines and errors are not handled, and the reply is not even looked at.
"""

from __future__ import annotations

import asyncio
import socket
import time

from statestore_client.mqtt.packets import Connect, Publish, PublishProperties, Subscribe, Subscription, encode
from statestore_client.wire.commands import Get, Set
from statestore_client.wire.protocol import COMMAND_TOPIC, response_topic

__all__ = ["RawClient", "request_packet"]

_MARK = b"\xaa" * 16
_TIME = b"000000000000000"
_ID = 0x7A7A


def request_packet(client_id: str, payload: bytes) -> bytes:
    """A request as the official SDKs send it, with placeholders where requests differ."""
    properties = PublishProperties(
        payload_format=0,
        message_expiry=10,
        content_type="application/octet-stream",
        response_topic=response_topic(client_id),
        correlation_data=_MARK,
        user_properties=(
            ("__ts", f"{_TIME.decode()}:00000:{client_id}"),
            ("__srcId", client_id),
            ("__protVer", "1.0"),
            ("$partition", client_id),
            ("$high_priority", ""),
        ),
    )
    return encode(Publish(COMMAND_TOPIC, payload, 1, packet_id=_ID, properties=properties))


class RawClient(asyncio.Protocol):
    """Use :meth:`open`, then :meth:`request`. Every request is the same but for time, packet id and correlation."""

    def __init__(self, client_id: str, verb: str, value_bytes: int) -> None:
        self._client_id = client_id
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rest = b""
        self._out: list[bytes] = []
        self._number = 0
        key = b"bench/0001"
        command = Get(key) if verb == "GET" else Set(key, b"v" * value_bytes)
        packet = request_packet(client_id, command.encode())
        self._before_id, rest = packet.split(_ID.to_bytes(2, "big"), 1)
        self._before_mark, rest = rest.split(_MARK)
        self._before_time, self._end = rest.split(_TIME)

    async def open(self, port: int) -> RawClient:
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", port)
        await self._subscribed
        return self

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        subscription = Subscription(response_topic(self._client_id), 1)
        transport.write(encode(Connect(self._client_id)) + encode(Subscribe(1, (subscription,))))

    async def request(self) -> None:
        self._number += 1
        correlation = self._number.to_bytes(16, "big")
        self._waiting[correlation] = future = asyncio.get_running_loop().create_future()
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out += (
            self._before_id,
            (self._number % 65_535 + 1).to_bytes(2, "big"),
            self._before_mark,
            correlation,
            self._before_time,
            b"%015d" % (time.time_ns() // 1_000_000),
            self._end,
        )
        await future

    def _flush(self) -> None:
        self._transport.write(b"".join(self._out))
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        size, start = len(data), 0
        acks: list[bytes] = []
        while start + 2 <= size:
            length, body = data[start + 1], start + 2
            if length > 127:
                if body >= size:
                    break
                length = length & 127 | data[body] << 7  # replies are shorter than 16 KiB
                body += 1
            if body + length > size:
                break
            kind = data[start] >> 4
            if kind == 3:
                position = body + 2 + int.from_bytes(data[body : body + 2], "big")
                if data[start] & 6:
                    acks += (b"\x40\x02", data[position : position + 2])
                mark = data.index(b"\x09\x00\x10", position) + 3
                future = self._waiting.pop(data[mark : mark + 16])
                if not future.done():
                    future.set_result(None)
            elif kind == 9:
                self._subscribed.set_result(None)
            start = body + length
        self._rest = data[start:]
        if acks:
            if not self._out:
                asyncio.get_running_loop().call_soon(self._flush)
            self._out += acks

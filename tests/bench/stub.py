"""Peers for the benchmarks: two servers that only echo.

Both acknowledge every PUBLISH and answer it on its response topic with its correlation data. There is no session, no
subscription, no routing, no in-flight window and no store.

* :func:`streams_server` is what one writes first: ``asyncio.start_server``, one read per field, one write per packet.
* :func:`codec_server` is as quick as our codec allows: an ``asyncio.Protocol``, whole chunks decoded, one write per
  chunk. The difference to ``statestore serve`` is what broker and state store cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from statestore_client.mqtt.packets import (
    Connack,
    Connect,
    Packet,
    PacketDecoder,
    Puback,
    Publish,
    PublishProperties,
    Suback,
    Subscribe,
    encode,
)
from statestore_client.mqtt.packets.primitives import encode_variable

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["codec_server", "streams_server"]


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = PacketDecoder(version=None, max_packet_size=1 << 28)
        self._packet_id = 0

    def data_received(self, data: bytes) -> None:
        out: list[bytes] = []
        for packet in self._decoder.feed(data):
            out += map(encode, self._answers(packet))
        if out:
            self._transport.write(b"".join(out))

    def _answers(self, packet: Packet) -> tuple[Packet, ...]:
        match packet:
            case Publish():
                self._packet_id = self._packet_id % 65_535 + 1
                properties = PublishProperties(
                    content_type="application/octet-stream",
                    correlation_data=packet.properties.correlation_data,
                    user_properties=(("__stat", "200"), ("__protVer", "1.0"), packet.properties.user_properties[0]),
                )
                reply = Publish(
                    packet.properties.response_topic or "-",
                    b"+OK\r\n",
                    1,
                    packet_id=self._packet_id,
                    properties=properties,
                )
                return Puback(packet.packet_id), reply
            case Connect():
                return (Connack(),)
            case Subscribe():
                return (Suback(packet.packet_id, tuple(1 for _ in packet.subscriptions)),)
        return ()


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    packet_id = 0
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            kind = (await reader.readexactly(1))[0] >> 4
            length = shift = 0
            while True:
                byte = (await reader.readexactly(1))[0]
                length |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            body = await reader.readexactly(length)
            if kind == 3:
                packet_id = packet_id % 65_535 + 1
                at = 2 + int.from_bytes(body[:2], "big")
                topic = body.index(b"\x08\x00", at + 2) + 1
                topic_end = topic + 2 + int.from_bytes(body[topic : topic + 2], "big")
                mark = body.index(b"\x09\x00\x10", at + 2)
                properties = body[mark : mark + 19] + b"\x26\x00\x06__stat\x00\x03200"
                reply = b"".join(
                    (
                        body[topic:topic_end],
                        packet_id.to_bytes(2, "big"),
                        bytes((len(properties),)),
                        properties,
                        b"+OK\r\n",
                    )
                )
                writer.write(b"\x40\x02" + body[at : at + 2])
                writer.write(b"\x32" + encode_variable(len(reply)) + reply)
            elif kind == 1:
                writer.write(encode(Connack()))
            elif kind == 8:
                writer.write(encode(Suback(int.from_bytes(body[:2], "big"), (1,))))


async def _serve(ready: Connection, kind: str) -> None:
    if kind == "streams":
        server = await asyncio.start_server(_stream, "127.0.0.1", 0)
    else:
        server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", 0)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _run(ready: Connection, kind: str) -> None:
    asyncio.run(_serve(ready, kind))


@contextmanager
def _server(kind: str) -> Iterator[int]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_run, args=(there, kind), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


def streams_server() -> AbstractContextManager[int]:
    """The port of the simple echo server, in a process of its own."""
    return _server("streams")


def codec_server() -> AbstractContextManager[int]:
    """The port of the quick echo server, in a process of its own."""
    return _server("codec")

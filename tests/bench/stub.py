"""Peers for the benchmarks: a server on bare asyncio sockets that only echoes.

It decodes what arrives, acknowledges every PUBLISH and answers it on its response topic with its correlation data. There
is no session, no subscription, no routing, no in-flight window and no store: the difference to ``statestore serve`` is
what the broker and the state store cost.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import contextmanager
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

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["echo_server"]


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


async def _serve(ready: Connection) -> None:
    server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", 0)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _run(ready: Connection) -> None:
    asyncio.run(_serve(ready))


@contextmanager
def echo_server() -> Iterator[int]:
    """The port of an echo server in a process of its own."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_run, args=(there,), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()

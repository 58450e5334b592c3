"""A broker that is a good one, except in what a test takes over."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TypeAlias

from statestore_client.mqtt.packets import (
    Connack,
    ConnackProperties,
    Connect,
    Packet,
    PacketDecoder,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    PublishProperties,
    ReasonCode,
    Suback,
    Subscribe,
    encode,
)

__all__ = ["EvilBroker", "Say", "reply"]

Say: TypeAlias = Callable[[bytes], None]


class EvilBroker:
    """Accepts and acknowledges everything as a good broker does, except what ``behave(packet, say)`` takes over."""

    def __init__(
        self,
        behave: Callable[[Packet, Say], bool],
        *,
        connack: ConnackProperties | None = None,
        receive_buffer: int | None = None,
    ) -> None:
        self._behave = behave
        self._receive_buffer = receive_buffer
        self._connack = connack or ConnackProperties()
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[Any] | None] = []
        self.connections = 0

    async def __aenter__(self) -> Self:
        sock = socket.socket()
        if self._receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        sock.bind(("127.0.0.1", 0))
        self._listener = await asyncio.start_server(self._serve, sock=sock)
        self.url = f"mqtt://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    def stop_reading(self) -> None:
        """From the connections that are there now."""
        for writer in self._writers:
            transport = writer.transport
            assert isinstance(transport, asyncio.Transport)
            transport.pause_reading()

    def drop(self) -> None:
        """The connections that are there now."""
        for writer in self._writers:
            writer.transport.abort()

    async def __aexit__(self, *exception: object) -> None:
        self._listener.close()
        self.drop()
        await asyncio.gather(*filter(None, self._tasks), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        self._tasks.append(asyncio.current_task())
        decoder = PacketDecoder(version=None, max_packet_size=1 << 28)
        with suppress(ConnectionError):  # clients leave as they like
            while data := await reader.read(1 << 16):
                for packet in decoder.feed(data):
                    if not self._behave(packet, writer.write):
                        self._answer(packet, writer.write)
        writer.close()

    def _answer(self, packet: Packet, say: Say) -> None:
        if isinstance(packet, Connect):
            say(encode(Connack(False, ReasonCode.SUCCESS, self._connack), 5))
        elif isinstance(packet, Subscribe):
            say(encode(Suback(packet.packet_id, (1,) * len(packet.subscriptions)), 5))
        elif isinstance(packet, Pingreq):
            say(encode(Pingresp(), 5))
        elif isinstance(packet, Publish):
            say(encode(Puback(packet.packet_id), 5) + reply(packet))


def reply(to: Publish, payload: bytes = b"+OK\r\n", **options: Any) -> bytes:
    """What a state store would say, or not."""
    properties = PublishProperties(
        correlation_data=options.get("correlation", to.properties.correlation_data),
        user_properties=options.get("more", (("__stat", "200"), ("__ts", "1:0:store"))),
    )
    topic = to.properties.response_topic or ""
    qos = options.get("qos", 1)
    packet_id = options.get("packet_id", 1) if qos else 0
    return encode(Publish(topic, payload, qos, packet_id=packet_id, properties=properties), 5)

"""Peers for the benchmarks: servers in a process of their own that do as little as the protocol lets them.

Clients are measured against the same stub, so what it costs is in the numbers of all of them. All stubs acknowledge
every PUBLISH, and answer it on its response topic with its correlation data (state store protocol, "Responses"). There
is no session, no subscription, no routing and no store.

* :func:`streams_server` is what one writes first: ``asyncio.start_server``, one read per field, one write per packet.
* :func:`codec_server` is as quick as our codec allows: an ``asyncio.Protocol``, whole chunks decoded, one write per
  chunk. The difference to ``statestore serve`` is what broker and state store cost.
* :func:`silent_server` acknowledges and never answers: everything stays in flight.
* :func:`pushing_server` answers, and sends notifications as fast as the client acknowledges them (``stub_push.py``).
* :func:`bulk_server` is for values of megabytes (``stub_bulk.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
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

__all__ = [
    "Echo",
    "StubProcess",
    "bulk_server",
    "codec_server",
    "pushing_server",
    "silent_server",
    "streams_server",
]

_GET = b"*2\r\n$3\r\nGET"
_FOUND = b"$100\r\n" + b"v" * 100 + b"\r\n"
_OK = b"+OK\r\n"


class StubProcess:
    """A running stub."""

    def __init__(self, port: int, control: Connection) -> None:
        self.port = port
        self.url = f"mqtt://127.0.0.1:{port}"
        self._control = control

    def counts(self) -> tuple[float, int]:
        """Its processor seconds so far, and how many PUBLISH packets it has received."""
        self._control.send(None)
        cpu_s, published = self._control.recv()
        return cpu_s, published


class Echo(asyncio.Protocol):
    """One connection to the stub on our codec."""

    published = 0  # of all connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reset()

    def reset(self) -> None:
        self._decoder = PacketDecoder(version=None, max_packet_size=1 << 28)
        self._packet_id = 0

    def data_received(self, data: bytes) -> None:
        out: list[bytes] = []
        for packet in self._decoder.feed(data):
            out += map(encode, self.answers(packet))
        if out:
            self._transport.write(b"".join(out))

    def answers(self, packet: Packet) -> tuple[Packet, ...]:
        match packet:
            case Publish():
                Echo.published += 1
                return Puback(packet.packet_id), self.reply(packet)
            case Connect():
                return (Connack(),)
            case Subscribe():
                return (Suback(packet.packet_id, tuple(1 for _ in packet.subscriptions)),)
        return ()

    def reply(self, request: Publish) -> Publish:
        self._packet_id = packet_id = self._packet_id % 65_535 + 1
        # As the state store does: every reply has a version of its own, by the server's clock and name.
        version = f"{time.time_ns() // 1_000_000:015d}:{packet_id:05d}:stub"
        properties = PublishProperties(
            content_type="application/octet-stream",
            correlation_data=request.properties.correlation_data,
            user_properties=(("__stat", "200"), ("__protVer", "1.0"), ("__ts", version)),
        )
        payload = _FOUND if request.payload.startswith(_GET) else _OK
        return Publish(request.properties.response_topic or "-", payload, 1, packet_id=packet_id, properties=properties)


class _Silent(Echo):
    def answers(self, packet: Packet) -> tuple[Packet, ...]:
        return super().answers(packet)[:1]


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    packet_id = 0
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        # A load that has left is answered no more: what it sent last may still be in the reader.
        while not writer.is_closing():
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
                        _FOUND if _GET in body else _OK,
                    )
                )
                writer.write(b"\x40\x02" + body[at : at + 2])
                writer.write(b"\x32" + encode_variable(len(reply)) + reply)
            elif kind == 1:
                writer.write(encode(Connack()))
            elif kind == 8:
                writer.write(encode(Suback(int.from_bytes(body[:2], "big"), (1,))))


async def serve_loop(control: Connection, start: Callable[[], Echo] | None) -> None:
    """Serve with one protocol object per connection (None: with streams), and answer the benchmark's questions."""
    if start is None:
        server = await asyncio.start_server(_stream, "127.0.0.1", 0)
    else:
        server = await asyncio.get_running_loop().create_server(start, "127.0.0.1", 0)

    def tell() -> None:
        control.recv()
        control.send((time.process_time(), Echo.published))

    asyncio.get_running_loop().add_reader(control.fileno(), tell)
    control.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _run_streams(control: Connection) -> None:
    asyncio.run(serve_loop(control, None))


def _run_codec(control: Connection) -> None:
    asyncio.run(serve_loop(control, Echo))


def _run_silent(control: Connection) -> None:
    asyncio.run(serve_loop(control, _Silent))


def _run_pushing(control: Connection) -> None:
    from stub_push import Pusher

    asyncio.run(serve_loop(control, Pusher))


def _run_bulk(control: Connection) -> None:
    from stub_bulk import serve_bulk

    serve_bulk(control)


@contextmanager
def _server(run: Callable[[Connection], None]) -> Iterator[StubProcess]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=run, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        yield StubProcess(here.recv(), here)
    finally:
        process.kill()
        process.join()


def streams_server() -> AbstractContextManager[StubProcess]:
    """The simple echo server."""
    return _server(_run_streams)


def codec_server() -> AbstractContextManager[StubProcess]:
    """The quick echo server."""
    return _server(_run_codec)


def silent_server() -> AbstractContextManager[StubProcess]:
    """The server that never answers."""
    return _server(_run_silent)


def pushing_server() -> AbstractContextManager[StubProcess]:
    """The server that notifies without end once a key is observed and ``bench/go`` was set."""
    return _server(_run_pushing)


def bulk_server() -> AbstractContextManager[StubProcess]:
    """The server for values of megabytes."""
    return _server(_run_bulk)

"""A hostile client: a bare socket that sends packets, and requests to the state store made by hand."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any, Self

from statestore_client.mqtt.packets import (
    Connect,
    Disconnect,
    Packet,
    PacketDecoder,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    PublishProperties,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
    encode,
)
from statestore_client.server import EmbeddedServer
from statestore_client.wire.protocol import COMMAND_TOPIC

__all__ = ["TIMEOUT_S", "Peer", "request", "wall_ms"]

TIMEOUT_S = 10.0


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Peer:
    """A bare socket that speaks packets, in an order and with contents that no library would send."""

    def __init__(self, server: EmbeddedServer | int, client_id: str, **options: Any) -> None:
        """``server`` may be the port of one that is a process of its own."""
        version = options.get("version", 5)
        port = server if isinstance(server, int) else server.port
        self.sock = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._version = version
        self._decoder = PacketDecoder(version=version, max_packet_size=1 << 28)
        self._packets: list[Packet] = []
        self.send(Connect(client_id, version=version, **{k: v for k, v in options.items() if k != "version"}))
        self.connack = self.receive()

    def send(self, *packets: Packet | bytes) -> None:
        self.sock.sendall(b"".join(p if isinstance(p, bytes) else encode(p, self._version) for p in packets))

    def receive(self) -> Packet:
        while not self._packets:
            data = self.sock.recv(1 << 16)
            assert data, "the server closed the connection"
            self._packets += self._decoder.feed(data)
        return self._packets.pop(0)

    def last_words(self) -> int:
        """The reason code of the DISCONNECT with which the server ends the connection."""
        while not isinstance(packet := self.receive(), Disconnect):
            pass
        return packet.reason_code

    def subscribe(self, topic_filter: str) -> int:
        self.send(Subscribe(1, (Subscription(topic_filter, 1),)))
        suback = self.receive()
        assert isinstance(suback, Suback)
        return suback.reason_codes[0]

    def ask(self, payload: bytes, **options: Any) -> bytes:
        """One request to the state store; ``subscribe("answers")`` first."""
        return self.ask_with(request(payload, **options))

    def ask_with(self, packet: Publish) -> bytes:
        """The answer to this request."""
        self.send(packet)
        while not isinstance(answer := self.receive(), Publish):
            pass
        if answer.qos:
            self.send(Puback(answer.packet_id))
        return answer.payload

    def acknowledged(self, count: int) -> None:
        """Wait for this many PUBACKs or PUBRECs."""
        while count:
            count -= isinstance(self.receive(), (Puback, Pubrec))

    def answers(self) -> bool:
        """Whether the server serves this peer."""
        self.send(Pingreq())
        return isinstance(self.receive(), Pingresp)

    def reset(self) -> None:
        """Close as a crashing machine does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.sock.close()


def request(
    payload: bytes,
    *,
    correlation: bytes | None = b"0123456789abcdef",
    answers: str = "answers",
    ts: str | None = "now",
    ft: str | None = None,
    more: tuple[tuple[str, str], ...] = (),
) -> Publish:
    texts = (("__ts", f"{wall_ms()}:0:peer" if ts == "now" else ts), ("__ft", ft))
    properties = (*((name, text) for name, text in texts if text is not None), *more)
    return Publish(
        COMMAND_TOPIC,
        payload,
        1,
        packet_id=1,
        properties=PublishProperties(response_topic=answers, correlation_data=correlation, user_properties=properties),
    )

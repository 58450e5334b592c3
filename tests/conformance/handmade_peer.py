"""A client of the broker under test that speaks in packets made by hand.

The one part of :mod:`statestore_client.mqtt` in it is the decoder, which feeds the broker as the runtime does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from handmade import Filter, Property, Seen, connect, publish, read, split, subscribe, unsubscribe
from support.broker_driver import World

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import PacketDecoder

__all__ = ["Peer", "join"]

_PROBLEM_INFORMATION = 0x17


class Peer:
    """One connection to the pure broker, bytes in and bytes out, as the runtime has it."""

    def __init__(self, world: World, version: int = 5) -> None:
        self.world, self.version = world, version
        self.connection = world.broker.connection_opened(world.now, peer="hand")
        self._decoder = PacketDecoder(version=None, max_packet_size=world.broker.limits.packet_bytes)
        self._next_id = 0

    def send(self, *packets: bytes) -> None:
        """Bytes to the broker; what cannot be decoded ends the connection."""
        broker = self.world.broker
        if self.is_closed:
            return
        try:
            broker.receive(self.connection, self._decoder.feed(b"".join(packets)), self.world.now)
        except PacketError as error:
            broker.receive(self.connection, self._decoder.take(), self.world.now)
            version = self._decoder.version
            broker.receive_broken(self.connection, error.reason_code, error.message, self.world.now, version=version)

    def raw(self) -> bytes:
        """All bytes that the broker sent since the last time."""
        self.world.work()
        data = b""
        while self.connection.outbox:
            data += self.connection.take()
            if self.connection.has_backlog and not self.connection.is_congested:
                self.world.broker.drained(self.connection, self.world.now)
            self.world.work()
        return data

    def seen(self) -> list[Seen]:
        """The same as packets."""
        return [read(packet, self.version) for packet in split(self.raw())]

    def one(self, kind: str) -> Seen:
        """The only packet that came."""
        (packet,) = self.seen()
        assert packet.kind == kind, packet
        return packet

    def messages(self) -> list[Seen]:
        return [packet for packet in self.seen() if packet.kind == "PUBLISH"]

    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages()]

    def next_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def subscribe(self, *filters: Filter, props: Sequence[Property] = ()) -> list[Seen]:
        """Subscribe, and what came behind the SUBACK; the codes are in :attr:`granted`."""
        self.send(subscribe(self.next_id(), *filters, version=self.version, props=props))
        suback, *rest = self.seen()
        assert suback.kind == "SUBACK"
        self.granted = suback.codes
        return rest

    def unsubscribe(self, *filters: str) -> Seen:
        self.send(unsubscribe(self.next_id(), *filters, version=self.version))
        return self.one("UNSUBACK")

    def publish(self, topic: str | bytes = "t", payload: bytes = b"x", qos: int = 0, **options: Any) -> int:
        """Publish; the packet identifier."""
        packet_id = options.pop("packet_id", None) or (self.next_id() if qos else 0)
        self.send(publish(topic, payload, qos, packet_id, self.version, **options))
        return packet_id

    def lose(self) -> None:
        """The network connection breaks."""
        self.world.broker.connection_lost(self.connection, self.world.now)

    @property
    def is_closed(self) -> bool:
        """Whether the broker wants the connection closed, or it is."""
        return self.connection.ending is not None

    def ended(self, code: int | None) -> None:
        """Assert that the connection was ended with this reason code: DISCONNECT in 5.0, no word in 3.1.1."""
        assert self.is_closed
        if self.version == 5:
            last = self.seen()[-1]
            assert (last.kind, hex(last.code)) == ("DISCONNECT", hex(code or 0))
        else:
            assert "DISCONNECT" not in [packet.kind for packet in self.seen()]


def join(world: World, client_id: str = "c", version: int = 5, **options: Any) -> Peer:
    """A client that is in; its CONNACK is in ``connack``. ``expiry``: seconds, in 3.1.1 a session that is not clean.

    In 5.0 it asks for problem information, unless ``props`` say otherwise: the server has no details for the others.
    """
    peer = Peer(world, version)
    expiry = options.pop("expiry", None)
    if version == 5 and not any(identifier == _PROBLEM_INFORMATION for identifier, _ in options.get("props", ())):
        options["props"] = [*options.get("props", ()), (_PROBLEM_INFORMATION, 1)]
    if expiry is not None and version == 5:
        options["props"] = [(0x11, expiry), *options.get("props", ())]
    elif expiry is not None:
        options.setdefault("clean", False)
    peer.send(connect(client_id, version, **options))
    peer.connack, *peer.after = peer.seen()
    assert (peer.connack.kind, peer.connack.code) == ("CONNACK", 0)
    return peer

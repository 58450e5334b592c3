"""What several conformance tests do before they begin: let in, refuse, subscribe, come back, take everything."""

from __future__ import annotations

from typing import Any

from handmade import Seen, ack
from handmade_peer import Peer, join
from support.broker_driver import Allowed, World

from statestore_client.server.broker import Admitted, Credentials, Refusal

__all__ = [
    "PUBACK",
    "PUBCOMP",
    "PUBREC",
    "PUBREL",
    "RECEIVE_MAXIMUM",
    "Doorman",
    "OneTopic",
    "back",
    "finish",
    "kinds",
    "reader_of",
    "refused",
    "said",
]

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
RECEIVE_MAXIMUM = 0x21


class Doorman:
    """Lets in clients that know the password, and remembers what was shown."""

    def __init__(self) -> None:
        self.shown: list[Credentials] = []

    def authenticate(self, credentials: Credentials) -> Admitted | Refusal | None:
        self.shown.append(credentials)
        return (
            Admitted(credentials.username)
            if credentials.password in (None, b"word")
            else Refusal(0x86, "nobody of this name")
        )

    def permissions(self, user: str | None, client_id: str) -> Allowed | None:
        return None


class OneTopic:
    """Lets everybody in, and lets them publish and subscribe to ``mine``."""

    def authenticate(self, credentials: Credentials) -> Admitted:
        return Admitted()

    def permissions(self, user: str | None, client_id: str) -> Allowed:
        return Allowed(frozenset({"mine"}))


def said(world: World, packet: bytes, version: int = 5) -> tuple[Peer, list[Any]]:
    """A new connection, and what it gets for its first bytes."""
    peer = Peer(world, version)
    peer.send(packet)
    return peer, peer.seen()


def refused(packet: bytes, code: int | None, version: int = 5, **limits: Any) -> None:
    """A client that is in sends this, and its connection ends with this reason code."""
    peer = join(World(**limits), version=version)
    peer.send(packet)
    peer.ended(code)


def kinds(packets: list[Seen]) -> list[tuple[str, int]]:
    return [(packet.kind, packet.packet_id) for packet in packets]


def reader_of(world: World, version: int = 5, **options: object) -> Peer:
    """A client ``r`` that subscribed to everything with QoS 2 and whose session stays."""
    peer = join(world, "r", version, expiry=1000, **options)
    peer.subscribe(("#", 2))
    return peer


def back(world: World, version: int = 5, **options: object) -> Peer:
    """The same client again."""
    return join(world, "r", version, expiry=1000, clean=False, **options)


def finish(reader: Peer, found: list[bytes]) -> None:
    """Take and acknowledge all that comes."""
    while seen := reader.seen():
        for packet in seen:
            if packet.kind == "PUBREL":
                reader.send(ack(PUBCOMP, packet.packet_id))
            else:
                found.append(packet.payload)
            if packet.qos and packet.kind == "PUBLISH":
                reader.send(ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))

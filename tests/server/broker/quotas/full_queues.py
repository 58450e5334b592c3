"""Worlds in memory and on disk, clients that are away, and what they are told when they are back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.broker_driver import Client, World
from support.durable_broker import DAY, DurableWorld

from statestore_client.mqtt.packets import (
    Connack,
    Connect,
    ConnectProperties,
    Puback,
    Publish,
    Pubrec,
)
from statestore_client.server.broker import Application, Effect
from statestore_client.wire.instant import Instant

DROPS = ("drop-new", "drop-old", "end-session")


@pytest.fixture(name="make", params=[World, DurableWorld], ids=["in memory", "durable"])
def made_world(request: pytest.FixtureRequest) -> Any:
    """A world in memory, and one with a journal."""
    return request.param


class Desk(Application):
    """Answers each request with what the test says."""

    def __init__(self, *effects: Effect) -> None:
        self.effects = effects

    def handles(self, topic: str) -> bool:
        return topic == "desk"

    def handle(self, client_id: str, message: Publish, now: Instant) -> Sequence[Effect]:
        return self.effects

    def client_disconnected(self, client_id: str, now: Instant) -> None: ...

    def tick(self, now: Instant) -> Sequence[Effect]:
        return ()

    def next_deadline(self) -> float | None:
        return None


def away(world: World, client_id: str, *filters: str, qos: int = 1) -> None:
    """A client that subscribed and left."""
    client = world.client(client_id, session_expiry=DAY)
    client.subscribe(*(filters or ("t",)), qos=qos)
    client.lose()


def back(world: World, client_id: str, **connect: Any) -> tuple[str | None, list[bytes]]:
    """What CONNACK tells of losses, and the messages that waited, each acknowledged at once."""
    client = Client(world)
    properties = ConnectProperties(session_expiry=DAY)
    client.send(Connect(client_id, properties=properties, **{"clean_start": False, **connect}))
    connack, *packets = client.received()
    assert isinstance(connack, Connack)
    texts: list[bytes] = []
    while packets:
        for packet in packets:
            if isinstance(packet, Publish):
                texts.append(packet.payload)
                client.send(Pubrec(packet.packet_id) if packet.qos == 2 else Puback(packet.packet_id))
        packets = client.received()
    client.lose()
    return dict(connack.properties.user_properties).get("dropped-messages"), texts


def codes(sender: Client) -> list[int]:
    return [packet.reason_code for packet in sender.received() if isinstance(packet, (Puback, Pubrec))]

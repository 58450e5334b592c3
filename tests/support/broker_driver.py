"""Drives the pure broker as clients would: packets in, decoded packets out, and a clock that only moves when told."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs

from statestore_client.mqtt.packets import (
    MQTT_5_0,
    Connack,
    Connect,
    ConnectProperties,
    Packet,
    PacketDecoder,
    Publish,
    PublishProperties,
    Suback,
    Subscribe,
    SubscribeProperties,
    Subscription,
)
from statestore_client.server.broker import (
    Application,
    Broker,
    BrokerEvents,
    BrokerLimits,
    Connection,
    Effect,
    Gatekeeper,
    Refusal,
)
from statestore_client.wire.instant import Instant

_CONNECT_PROPERTIES = {field.name for field in attrs.fields(ConnectProperties)}
P = TypeVar("P")


@attrs.frozen
class Allowed:
    """Permissions that are a list of topics."""

    topics: frozenset[str]
    refusal: Refusal | None = None

    def may_publish(self, topic: str) -> bool:
        return topic in self.topics

    def may_subscribe(self, topic_filter: str) -> bool:
        return topic_filter in self.topics


class Desk(Application):
    """An application for one topic that answers each request with the same effects, or with an error."""

    def __init__(self, *effects: Effect, error: Exception | None = None) -> None:
        self.effects: Sequence[Effect] = effects
        self.error = error
        self.requests: list[tuple[str, Publish]] = []
        self.gone: list[str] = []
        self.deadline: float | None = None

    topics = ("desk",)
    prefixes = ()

    def handle(self, client_id: str, message: Publish, now: Instant) -> Sequence[Effect]:
        if self.error is not None:
            raise self.error
        self.requests.append((client_id, message))
        return self.effects

    def client_disconnected(self, client_id: str, now: Instant) -> None:
        self.gone.append(client_id)
        if self.error is not None:
            raise self.error

    def tick(self, now: Instant) -> Sequence[Effect]:
        self.deadline = None
        return self.handle("tick", Publish("desk"), now)

    def next_deadline(self) -> float | None:
        return self.deadline


class World:
    """A broker and its clock."""

    def __init__(
        self,
        *,
        application: Application | None = None,
        gatekeeper: Gatekeeper | None = None,
        events: BrokerEvents | None = None,
        **limits: Any,
    ) -> None:
        limits.setdefault("flapping_hold_s", 0)  # tests take sessions over as often as they like
        self.broker = Broker(
            random=random.Random(7),
            applications=() if application is None else (application,),
            limits=BrokerLimits(**{"keep_alive_s": 0, **limits}),  # silent clients, unless a test wants it otherwise
            gatekeeper=gatekeeper,
            events=events,
        )
        self.monotonic = 1000.0
        self.wall_ahead_ms = 0  # of the other clock

    @property
    def now(self) -> Instant:
        return Instant(self.monotonic, int(self.monotonic * 1000) + self.wall_ahead_ms)

    def sleep(self, seconds: float) -> None:
        """Let time pass, ticking at every deadline on the way, as the runtime does."""
        end = self.monotonic + seconds
        while (deadline := self.broker.next_deadline()) is not None and deadline <= end:
            self.monotonic = max(self.monotonic, deadline)
            self.broker.tick(self.now)
        self.monotonic = end

    def work(self) -> None:
        """Let the broker do all that it begun."""
        while self.broker.has_work:
            self.broker.work(self.now)

    def client(self, client_id: str = "c", **connect: Any) -> Client:
        """A connected client; its CONNACK is in ``client.connack``."""
        client = Client(self, connect.get("version", MQTT_5_0))
        properties = {name: connect.pop(name) for name in list(connect) if name in _CONNECT_PROPERTIES}
        client.send(Connect(client_id, properties=ConnectProperties(**properties), **connect))
        client.connack = client.one(Connack)
        return client


class Client:
    """One connection."""

    def __init__(self, world: World, version: int = MQTT_5_0) -> None:
        self.world = world
        self.connection: Connection = world.broker.connection_opened(world.now, peer="test")
        self.connack = Connack()
        self._decoder = PacketDecoder(version=version, max_packet_size=100_000_000)
        self._packet_id = 0

    def send(self, *packets: Packet) -> None:
        self.world.broker.receive(self.connection, packets, self.world.now)

    def received(self) -> list[Packet]:
        """Everything that came since the last call; the socket takes it all."""
        packets: list[Packet] = []
        self.world.work()
        while self.connection.outbox:
            packets += self._decoder.feed(self.connection.take())
            if self.connection.has_backlog and not self.connection.is_congested:
                self.world.broker.drained(self.connection, self.world.now)
            self.world.work()
        return packets

    def one(self, kind: type[P]) -> P:
        """The only packet that came."""
        (packet,) = self.received()
        assert isinstance(packet, kind)
        return packet

    def messages(self) -> list[Publish]:
        return [packet for packet in self.received() if isinstance(packet, Publish)]

    def next_id(self) -> int:
        self._packet_id += 1
        return self._packet_id

    def subscribe(self, *filters: str | Subscription, qos: int = 0, identifier: int | None = None) -> list[Packet]:
        """Subscribe; returns what came after the SUBACK."""
        subscriptions = tuple(Subscription(item, qos) if isinstance(item, str) else item for item in filters)
        self.send(Subscribe(self.next_id(), subscriptions, SubscribeProperties(subscription_id=identifier)))
        suback, *rest = self.received()
        assert isinstance(suback, Suback)
        self.granted = suback.reason_codes
        return rest

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, *, retain: bool = False, **properties: Any
    ) -> int:
        packet_id = self.next_id() if qos else 0
        self.send(Publish(topic, payload, qos, retain, False, packet_id, PublishProperties(**properties)))
        return packet_id

    def lose(self) -> None:
        """The network connection breaks."""
        self.world.broker.connection_lost(self.connection, self.world.now)

    @property
    def is_ended(self) -> bool:
        return self.connection.ending is not None


def calls_in(work: Callable[[], object]) -> int:
    """How many functions are called."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count

"""MQTT clients: a sender and a receiver with QoS 2, one that writes keys, and some with wills that come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
from machines_audit import LostWill
from replicas_host import WALL_MS

from statestore_client.mqtt.packets import (
    MQTT_5_0,
    Connack,
    Connect,
    ConnectProperties,
    Disconnect,
    Packet,
    PacketDecoder,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Will,
    encode,
)
from statestore_client.wire.commands import Get, Set
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.protocol import COMMAND_TOPIC, response_topic
from statestore_client.wire.replies import Found, Ok, decode_reply

if TYPE_CHECKING:
    from machines_audit import MachineAudit
    from machines_loop import SimulatedTransport
    from machines_process import MachineHost
    from replicas_world import World

_DAY: Final = 86_400
#: When a client takes a silent server for dead.
_TIMEOUT_S: Final = 1.5


@attrs.define(eq=False)
class Client:
    """It connects again whenever a connection ends."""

    world: World
    audit: MachineAudit
    name: str
    hosts: list[MachineHost]
    is_connected: bool = False
    #: Its session outlives its connections.
    is_lasting: bool = True
    #: It never comes back.
    is_gone: bool = False
    #: How much longer than others it stays away.
    patience: float = 1.0
    _transport: SimulatedTransport | None = None
    _decoder: PacketDecoder = attrs.field(init=False)
    _has_session: bool = False
    _connections: int = 0
    _waits_since: float | None = None

    # -- connections ---------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """To the server that is active."""
        host = self.world.random.choice(self.hosts)
        if self._transport is not None:
            return
        if not host.is_active:
            self.world.after(0.05, self.connect)
            return
        self._connections += 1
        number = self._connections
        self._decoder = PacketDecoder(version=MQTT_5_0, max_packet_size=1 << 20)
        self._transport = host.accept(lambda data: self._deliver(number, data), lambda: self._ended(number))
        self._waits_since = self.world.now
        self.send(self.hello())
        self.world.after(_TIMEOUT_S, self._look, number)

    def hello(self) -> Connect:
        """The first packet."""
        return Connect(self.name, clean_start=False, properties=self.session)

    @property
    def session(self) -> ConnectProperties:
        """How long it lasts."""
        return ConnectProperties(session_expiry=_DAY if self.is_lasting else 0)

    def send(self, packet: Packet) -> None:
        """It arrives if nothing happens to the connection."""
        transport = self._transport
        if transport is not None:
            self._waits_since = self._waits_since or self.world.now
            self.world.after(0.001, transport.run, transport.receive, encode(packet, MQTT_5_0))

    def _look(self, number: int) -> None:
        if number == self._connections and self._transport is not None:
            if self._waits_since is not None and self._waits_since <= self.world.now - _TIMEOUT_S + 0.001:
                self.hang_up("watchdog")
            else:
                self.send(Pingreq())
                self.world.after(_TIMEOUT_S, self._look, number)

    def hang_up(self, why: str) -> None:
        """Close the connection without a word."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self.world.after(0.001, transport.run, transport.cut)
            self._disconnected(why)

    def _ended(self, number: int) -> None:
        if number == self._connections and self._transport is not None:
            self._transport = None
            self._disconnected("server")

    def _disconnected(self, why: str) -> None:
        self._connections += 1
        self.is_connected = False
        self.lost(why)
        if not self.is_gone:
            self.world.after(self.world.random.uniform(0.005, 0.1) * self.patience, self.connect)

    def _deliver(self, number: int, data: bytes) -> None:
        if number != self._connections:
            return
        self._waits_since = None
        for packet in self._decoder.feed(data):
            if number == self._connections:
                self._take(packet)

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, Disconnect):
            if packet.reason_code != ReasonCode.SERVER_SHUTTING_DOWN:
                self.audit.complain(f"{self.name} is disconnected: {packet}")
        elif not isinstance(packet, Connack):
            self.receive(packet)
        elif packet.reason_code:
            self.audit.complain(f"{self.name} is refused: {packet}")
        else:
            if self.is_lasting and self._has_session and not packet.session_present:
                self.audit.complain(f"the session of {self.name} is lost")
            self._has_session = self.is_connected = True
            self.connected()

    # -- what kinds do differently -------------------------------------------------------------------------------------

    def connected(self) -> None:
        """The server has the session."""

    def lost(self, why: str) -> None:
        """The connection is over."""

    def receive(self, packet: Packet) -> None:
        """Anything but a CONNACK."""


@attrs.define(eq=False)
class Sender(Client):
    """Sends numbers with QoS 2, one after the other. ``phase``: what it waits for."""

    is_active: bool = False
    think_s: float = 0.05
    _packet_id: int = 1
    _phase: str = "idle"

    def begin(self) -> None:
        """The receiver is there."""
        self.is_active = True
        self.world.after(0.01, self._next)

    def _next(self) -> None:
        if self.is_active and self._phase == "idle":
            self.audit.sent += 1
            self._packet_id = self._packet_id % 20 + 1
            self._phase = "publish"
            self._repeat(is_copy=False)

    def _repeat(self, *, is_copy: bool) -> None:
        if not self.is_connected:
            return
        if self._phase == "publish":
            payload = b"%d" % self.audit.sent
            self.send(Publish("q/numbers", payload, qos=2, dup=is_copy, packet_id=self._packet_id))
        elif self._phase == "release":
            self.send(Pubrel(self._packet_id))

    def connected(self) -> None:
        self._repeat(is_copy=True)

    def receive(self, packet: Packet) -> None:
        if isinstance(packet, Pubrec) and packet.packet_id == self._packet_id and self._phase == "publish":
            self._phase = "release"
            self._repeat(is_copy=False)
        elif isinstance(packet, Pubcomp) and packet.packet_id == self._packet_id and self._phase == "release":
            self._phase = "idle"
            self.world.after(self.world.random.expovariate(1 / self.think_s), self._next)


@attrs.define(eq=False)
class Receiver(Client):
    """Of all numbers and wills, with QoS 2. ``others`` connect when it has subscribed."""

    sender: Sender = attrs.field(kw_only=True)
    others: list[Mortal] = attrs.field(kw_only=True)
    _is_subscribed: bool = False
    _held: set[int] = attrs.field(factory=set)

    def connected(self) -> None:
        if not self._is_subscribed:
            self.send(Subscribe(1, (Subscription("q/#", 2), Subscription("will/#", 2))))

    def receive(self, packet: Packet) -> None:
        if isinstance(packet, Suback):
            if not self._is_subscribed:
                self._is_subscribed = True
                self.sender.begin()
                for other in self.others:
                    other.connect()
        elif isinstance(packet, Publish):
            if packet.packet_id not in self._held:
                self._held.add(packet.packet_id or 0)
                self._note(packet)
            self.send(Pubrec(packet.packet_id or 0))
        elif isinstance(packet, Pubrel):
            self._held.discard(packet.packet_id)
            self.send(Pubcomp(packet.packet_id))

    def _note(self, packet: Publish) -> None:
        text = bytes(packet.payload).decode()
        if packet.topic.startswith("will/"):
            self.audit.will(text)
        else:
            self.audit.delivered(int(text))


@attrs.define(eq=False)
class Writer(Client):
    """Sets its own key and reads it, one request at a time."""

    is_active: bool = True
    think_s: float = 0.1
    _is_subscribed: bool = False
    _number: int = 0
    _packet_id: int = 1
    _packet: Publish | None = None
    _request: tuple[bytes, bool] | None = None  # its correlation data, and whether it writes
    _greatest_before: str = ""
    _value: bytes = b""

    def connected(self) -> None:
        if not self._is_subscribed:
            self.send(Subscribe(1, (Subscription(response_topic(self.name), 1),)))
        else:
            self._ask(is_copy=True)

    def receive(self, packet: Packet) -> None:
        if isinstance(packet, Suback):
            self._is_subscribed = True
            self._next()
        elif isinstance(packet, Publish):
            if packet.packet_id:
                self.send(Puback(packet.packet_id))
            self._answered(packet)

    def _next(self) -> None:
        if self.is_active and self._request is None:
            self._number += 1
            writes = self._number == 1 or self.world.random.random() < 0.6
            if writes:
                self._value = b"%d" % self._number
            self._packet_id = self._packet_id % 100 + 2
            self._request = b"%s-%d" % (self.name.encode(), self._number), writes
            self._packet = self._new_packet(self._request[0], writes=writes)
            self._greatest_before = self.audit.greatest_version
            self._ask(is_copy=False)

    def _new_packet(self, correlation: bytes, *, writes: bool) -> Publish:
        key = self.name.encode()
        stamp = str(HlcTimestamp(WALL_MS + int(self.world.now * 1000), 0, self.name))
        properties = PublishProperties(
            response_topic=response_topic(self.name), correlation_data=correlation, user_properties=(("__ts", stamp),)
        )
        payload = Set(key, self._value).encode() if writes else Get(key).encode()
        return Publish(COMMAND_TOPIC, payload, qos=1, packet_id=self._packet_id, properties=properties)

    def _ask(self, *, is_copy: bool) -> None:
        if self._request is not None and self._packet is not None and self.is_connected:
            self.send(attrs.evolve(self._packet, dup=is_copy))

    def _answered(self, packet: Publish) -> None:
        if self._request is None or packet.properties.correlation_data != self._request[0]:
            return
        (correlation, writes), self._request = self._request, None
        reply = decode_reply(packet.payload)
        version = dict(packet.properties.user_properties).get("__ts", "")
        if writes:
            if not isinstance(reply, Ok):
                self.audit.complain(f"{correlation!r} is answered with {reply}")
            self.audit.written(correlation, version, self._greatest_before)
        elif not isinstance(reply, Found) or bytes(reply.value) != self._value:
            self.audit.complain(f"{self.name} reads {reply}, and has written {self._value!r}")
        self.world.after(self.world.random.expovariate(1 / self.think_s), self._next)

    @property
    def waits(self) -> bool:
        """For an answer."""
        return self._request is not None


@attrs.define(eq=False)
class Mortal(Client):
    """With a will that names the connection. It leaves, vanishes, and mostly comes back."""

    is_active: bool = True
    _will: LostWill | None = None
    _former: list[LostWill] = attrs.field(factory=list)

    def hello(self) -> Connect:
        name = f"{self.name}-{self._connections}"
        if self._will is not None:
            self._will.is_followed = True
            self._former.append(self._will)
        self._will = self.audit.wills[name] = LostWill(self.world.now)
        will = Will("will/" + self.name, name.encode(), qos=2)
        return Connect(self.name, clean_start=False, will=will, properties=self.session)

    def connected(self) -> None:
        for will in self._former:
            will.back_at = self.world.now
        self._former.clear()
        self.world.after(self.world.random.uniform(0.2, 4.0), self._go, self._connections)

    def _go(self, number: int) -> None:
        if number != self._connections or not self.is_active:
            return
        if self.world.random.random() < 0.4:
            self.send(Disconnect())
            self.hang_up("goodbye")
        elif self.world.random.random() < 0.6:
            self.hang_up("client")

    def lost(self, why: str) -> None:
        if self._will is not None and self._will.ended_at is None:
            self._will.ended_at, self._will.ended_by = self.world.now, why
            if why == "client" and self.world.random.random() < 0.3:
                self.is_gone = True

"""The client's end of one MQTT 5 connection: bytes in, events out; calls in, bytes out. Pure: no socket, no clock.

Life of a connection::

    NEW --connect()--> WAITING --CONNACK--> OPEN --disconnect(), DISCONNECT, a broken packet, silence--> ENDED

What is sent is appended to :attr:`ClientConnection.outbox`; the driver takes and writes it. Sessions are ``core``'s: a
connection knows which of *its* publications are unacknowledged, and forgets them when it ends.

Only QoS 1 is published. What arrives with QoS 2 is taken over once per packet identifier and connection.
Source: MQTT 5.0 sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from statestore_client.errors import ConnectionLostError, PacketError, RemoteProtocolError, StateStoreError
from statestore_client.mqtt.closing import disconnected, no_connack, refused
from statestore_client.mqtt.packets import (
    MQTT_5_0,
    Connack,
    Connect,
    ConnectProperties,
    Disconnect,
    DisconnectProperties,
    Packet,
    PacketDecoder,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    encode,
)
from statestore_client.mqtt.packets.primitives import encode_text, encode_variable
from statestore_client.mqtt.publish_properties import encode_request_properties
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import (
    Closed,
    Connected,
    Event,
    IncomingMessage,
    OutgoingMessage,
    Published,
    Subscribed,
)

__all__ = ["ClientConnection"]

_PUBLISH_QOS_1: Final = b"\x32"
_PUBACK: Final = b"\x40\x02"
_PINGREQ: Final = encode(Pingreq())
_LAST_ID: Final = 65_535
#: What we accept from a broker: values have no limit of their own, so this is the protocol's (MQTT 5.0, 2.1.4).
_MAX_PACKET: Final = 268_435_460


class _State(Enum):
    NEW = "new"
    WAITING = "waiting"
    OPEN = "open"
    ENDED = "ended"


class ClientConnection:
    """See the module. Times are monotonic seconds."""

    __slots__ = (
        "_awaiting_ping",
        "_client_id",
        "_connack_deadline",
        "_decoder",
        "_deliveries",
        "_events",
        "_keep_alive",
        "_last_id",
        "_last_received",
        "_last_sent",
        "_received_qos2",
        "_settings",
        "_state",
        "_subscriptions",
        "_topic_headers",
        "outbox",
    )

    def __init__(self, settings: ConnectionSettings, client_id: str) -> None:
        self._settings = settings
        self._client_id = client_id
        self._state = _State.NEW
        self._decoder = PacketDecoder(version=MQTT_5_0, max_packet_size=_MAX_PACKET)
        self._events: list[Event] = []
        self._deliveries: dict[int, int] = {}  # packet identifier -> delivery id
        self._subscriptions: dict[int, int] = {}  # packet identifier -> subscribe id
        self._received_qos2: set[int] = set()
        self._topic_headers: dict[str, bytes] = {}
        self._last_id = 0
        self._keep_alive = settings.keep_alive
        self._connack_deadline: float | None = None
        self._last_sent = self._last_received = 0.0
        self._awaiting_ping: float | None = None
        #: Whole packets that wait to be written; the driver empties it.
        self.outbox: list[bytes] = []

    @property
    def has_ended(self) -> bool:
        """Whether ``Closed`` was reported: nothing more comes in or goes out."""
        return self._state is _State.ENDED

    # -- calls ---------------------------------------------------------------------------------------------------------

    def connect(self, now: float, *, clean_start: bool, password: str | None) -> None:
        """Queue CONNECT, which must be answered within the settings' ``connect_timeout``."""
        settings = self._settings
        self._state = _State.WAITING
        self._connack_deadline = now + settings.connect_timeout
        self._last_sent = self._last_received = now
        packet = Connect(
            self._client_id,
            clean_start=clean_start,
            keep_alive=int(settings.keep_alive),
            username=settings.username,
            password=None if password is None else password.encode(),
            properties=ConnectProperties(session_expiry=int(settings.session_expiry)),
        )
        self.outbox.append(encode(packet))

    def publish(self, delivery_id: int, message: OutgoingMessage, again: bool = False) -> None:  # noqa: ARG002
        """Queue a PUBLISH with QoS 1."""
        if self._state is not _State.OPEN:
            return
        packet_id = self._next_id()
        self._deliveries[packet_id] = delivery_id
        topic = self._topic_headers.get(message.envelope.topic)
        if topic is None:
            topic = self._topic_headers[message.envelope.topic] = encode_text(message.envelope.topic)
        properties = encode_request_properties(message)
        length = len(topic) + 2 + len(properties) + len(message.payload)
        self.outbox += (
            _PUBLISH_QOS_1 + encode_variable(length) + topic + packet_id.to_bytes(2, "big") + properties,
            message.payload,  # apart, so that a large value is not copied here
        )

    def subscribe(self, subscribe_id: int, topic_filters: Sequence[str]) -> None:
        """Queue a SUBSCRIBE with QoS 1."""
        if self._state is not _State.OPEN:
            return
        packet_id = self._next_id()
        self._subscriptions[packet_id] = subscribe_id
        self.outbox.append(encode(Subscribe(packet_id, tuple(Subscription(f, 1) for f in topic_filters))))

    def acknowledge(self, ack_id: int) -> None:
        """Queue the PUBACK of a message that was received with QoS 1."""
        if self._state is _State.OPEN:
            self.outbox.append(_PUBACK + ack_id.to_bytes(2, "big"))

    def disconnect(self) -> None:
        """Queue a DISCONNECT that ends the session at once; the driver closes when it is written."""
        if self._state is _State.OPEN:
            self.outbox.append(encode(Disconnect(0, DisconnectProperties(session_expiry=0))))
        self.end(Closed(ConnectionLostError("the connection was closed by this client")))

    def end(self, why: Closed) -> None:
        """Report the end, once."""
        if self._state is not _State.ENDED:
            self._state = _State.ENDED
            self._events.append(why)

    # -- what happens --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Bytes from the broker, in any portions."""
        self._last_received = now
        self._awaiting_ping = None
        try:
            packets: Sequence[Packet] = self._decoder.feed(data)
            broken = None
        except PacketError as error:
            packets, broken = self._decoder.take(), error
        for packet in packets:
            if self._state is _State.ENDED:
                return
            self._receive_packet(packet)
        if broken is not None:
            self._refuse(broken.reason_code, broken)

    def take_events(self) -> list[Event]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do."""
        if self._state is _State.WAITING:
            return self._connack_deadline
        if self._state is not _State.OPEN or not self._keep_alive:
            return None
        if self._awaiting_ping is not None:
            return self._awaiting_ping + self._keep_alive / 2
        return min(self._last_sent, self._last_received) + self._keep_alive

    def written(self, now: float) -> None:
        """The driver wrote something: keep-alive counts from here."""
        self._last_sent = now

    def tick(self, now: float) -> None:
        """Time has passed: give up on CONNACK, send PINGREQ, notice a dead link."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return
        if self._state is _State.WAITING:
            self.end(no_connack(self._settings))
        elif self._awaiting_ping is not None:
            text = f"{self._settings.url} did not answer a ping within {self._keep_alive / 2:g} s"
            self.end(Closed(ConnectionLostError(text)))
        else:
            self._awaiting_ping = now
            self.outbox.append(_PINGREQ)

    # -- packets -------------------------------------------------------------------------------------------------------

    def _receive_packet(self, packet: Packet) -> None:
        if self._state is _State.WAITING and not isinstance(packet, (Connack, Disconnect)):
            self._violated(f"a {type(packet).__name__.upper()} came before CONNACK")
            return
        match packet:
            case Publish():
                self._receive_publish(packet)
            case Puback():
                delivery_id = self._deliveries.pop(packet.packet_id, None)
                if delivery_id is not None:  # otherwise a duplicate: harmless
                    self._events.append(Published(delivery_id, packet.reason_code))
            case Pubrel():
                known = packet.packet_id in self._received_qos2
                self._received_qos2.discard(packet.packet_id)
                reason = ReasonCode.SUCCESS if known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
                self.outbox.append(encode(Pubcomp(packet.packet_id, reason)))
            case Suback():
                subscribe_id = self._subscriptions.pop(packet.packet_id, None)
                if subscribe_id is not None:
                    self._events.append(Subscribed(subscribe_id, packet.reason_codes))
            case Connack():
                self._receive_connack(packet)
            case Disconnect():
                self.end(disconnected(self._settings, packet.reason_code, packet.properties.reason_string))
            case Pingresp():
                pass
            case _:
                self._violated(f"a broker does not send {type(packet).__name__.upper()}")

    def _receive_publish(self, packet: Publish) -> None:
        if packet.qos == 2:
            self.outbox.append(encode(Pubrec(packet.packet_id)))
            if packet.packet_id in self._received_qos2:
                return
            self._received_qos2.add(packet.packet_id)
        properties = packet.properties
        self._events.append(
            IncomingMessage(
                packet.topic,
                packet.payload,
                properties.correlation_data,
                properties.user_properties,
                packet.packet_id if packet.qos == 1 else 0,
            )
        )

    def _receive_connack(self, packet: Connack) -> None:
        if self._state is not _State.WAITING:
            self._violated("a second CONNACK came")
        elif packet.reason_code:
            self.end(refused(self._settings, packet.reason_code, packet.properties.reason_string))
        else:
            properties = packet.properties
            self._state = _State.OPEN
            if properties.server_keep_alive is not None:
                self._keep_alive = float(properties.server_keep_alive)
            self._events.append(
                Connected(
                    packet.session_present,
                    properties.receive_maximum or _LAST_ID,
                    properties.maximum_packet_size,
                )
            )

    def _violated(self, text: str) -> None:
        self._refuse(ReasonCode.PROTOCOL_ERROR, RemoteProtocolError(text))

    def _refuse(self, reason_code: int, error: StateStoreError) -> None:
        """The broker broke the protocol: tell it and end. Nothing it says can be relied upon from here."""
        if self._state is _State.OPEN:
            self.outbox.append(encode(Disconnect(reason_code)))
        text = f"{self._settings.url} sent a packet that MQTT does not allow: {error}"
        self.end(Closed(ConnectionLostError(text)))

    def _next_id(self) -> int:
        """A packet identifier that is not in use. ``core`` keeps far fewer than 65,535 in flight."""
        packet_id = self._last_id
        while True:
            packet_id = packet_id % _LAST_ID + 1
            if packet_id not in self._deliveries and packet_id not in self._subscriptions:
                self._last_id = packet_id
                return packet_id

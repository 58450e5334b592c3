"""The messages of one open connection, both directions: publications, subscriptions, and what the broker delivers.

What is sent, how much at a time, and what again after a reconnect is decided in :mod:`statestore_client.core`. Here it
becomes packets: :class:`ClientSession` has the packet identifiers, :class:`PublishFrames` makes the bytes, and
:mod:`~statestore_client.mqtt.qos` has the rules for what comes in with QoS 2. Handlers raise :class:`PacketError` for
what a broker must not send.

**Flow.** Publications leave at once: ``core`` keeps to the Receive Maximum that ``Connected`` tells it. The broker in
turn may have :data:`RECEIVE_MAXIMUM` messages unacknowledged here.

**Topic aliases.** We send them and announce none to the broker: reading a topic that was read before takes a look-up,
as an alias would, and the brokers that people run seldom send any.

Invariant: packet identifiers in use are unique and not 0 (2.2.1).
Invariant: a session has at most one living connection. The broker's half may be gone when the next one stands; CONNACK
tells, and the session is emptied then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import attrs

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import (
    DEFAULT_RECEIVE_MAXIMUM,
    ConnackProperties,
    Packet,
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
    validate_topic_name,
)
from statestore_client.mqtt.packets.primitives import encode_text, encode_variable
from statestore_client.mqtt.packets.publish import (
    delivery_properties,
    encode_user_properties,
    leading_properties,
    property_block,
)
from statestore_client.mqtt.qos import LAST_PACKET_ID, PUBACK, Inbound, next_packet_id
from statestore_client.wire.messages import (
    Connected,
    Envelope,
    Event,
    IncomingMessage,
    OutgoingMessage,
    Published,
    Subscribed,
)
from statestore_client.wire.protocol import ANY_BYTES, CONTENT_TYPE, FIRST_ERROR, MAX_PACKET_SIZE, QOS


@attrs.define(eq=False)
class ClientSession:
    """What survives a connection (MQTT 5.0, 4.1): which publication has which packet identifier, and the QoS 2 messages
    that were taken over.
    """

    inbound: Inbound = attrs.field(factory=Inbound, init=False)
    #: Packet identifier to delivery id of each publication without PUBACK, in the order in which they left first.
    in_flight: dict[int, int] = attrs.field(factory=dict, init=False)
    #: Delivery id to packet identifier of those that an earlier connection left behind, and that were not repeated yet.
    repeatable: dict[int, int] = attrs.field(factory=dict, init=False)
    #: Packet identifier to subscribe id and number of filters, of this connection's SUBSCRIBEs without SUBACK.
    subscriptions: dict[int, tuple[int, int]] = attrs.field(factory=dict, init=False)
    _last_id: int = attrs.field(default=0, init=False)

    def resume(self, *, is_present: bool, receive_window: int) -> None:
        """A connection stands, and the broker has the session or not; ``receive_window`` is our Receive Maximum.

        One that an earlier process left behind goes on; this process has nothing in flight there. [MQTT-3.2.2-4] would
        have us close, but a user who sets ``clean_start=False`` wants the messages that wait there.
        """
        if not is_present:
            self.clear()
        self.subscriptions.clear()
        self.repeatable = {delivery_id: packet_id for packet_id, delivery_id in self.in_flight.items()}
        self.inbound.resume(receive_window)

    def clear(self) -> None:
        """The session is over: we ended it, or the broker has lost it."""
        self.in_flight.clear()
        self.repeatable.clear()
        self.inbound.unreleased.clear()

    def new_id(self) -> int:
        """A packet identifier that is not in use. ``core`` publishes no more than leaves some free."""
        self._last_id = packet_id = next_packet_id(self._last_id, self.in_flight, self.subscriptions)
        return packet_id

    def give_up_repeatable(self) -> None:
        """``core`` went on to new publications: nobody waits any longer for those that it did not repeat."""
        for packet_id in self.repeatable.values():
            del self.in_flight[packet_id]
        self.repeatable.clear()


#: Larger payloads go out as pieces of their own: joining them to their header would be one more copy.
_APART: Final = 8192
#: An alias costs three bytes in each message.
_SHORT_TOPIC: Final = 5
#: Stands where an alias says the topic.
_NO_TOPIC: Final = encode_text("")

#: The first byte of a PUBLISH.
QOS_1: Final = b"\x32"
#: With DUP: the broker may have seen it.
QOS_1_AGAIN: Final = b"\x3a"


class PublishFrames:
    """Makes the bytes of requests' PUBLISHes on one connection (MQTT 5.0, 3.3).

    All that the requests of an envelope share is encoded when the first of them passes, and again when the expiry
    changes. Its topic goes out in full once, together with an alias where the broker takes one, and as the alias from
    then on: that saves the broker, too, the reading of the topic. ``maximum_size`` is the broker's Maximum Packet Size,
    in bytes.
    """

    __slots__ = (
        "_alias",
        "_alias_maximum",
        "_aliases",
        "_envelope",
        "_expiry_s",
        "_leading",
        "_maximum_size",
        "_topic",
        "_trailing",
    )

    def __init__(self, *, alias_maximum: int, maximum_size: int) -> None:
        self._alias_maximum = alias_maximum
        self._maximum_size = maximum_size
        self._aliases: dict[str, int] = {}
        self._expiry_s = 0
        self._envelope: Envelope | None = None  # the last one; what follows belongs to it
        self._alias = 0
        self._topic = b""
        self._leading = b""
        self._trailing = b""

    def put(self, message: OutgoingMessage, outbox: list[bytes], packet_id: int, *, first: bytes = QOS_1) -> bool:
        """Append the PUBLISH to the outbox; ``first`` is its first byte.

        False: it is larger than the broker accepts, and was not appended.
        """
        envelope, payload, correlation = message.envelope, message.payload, message.correlation_data
        topic = self._topic if envelope is self._envelope else self._turn_to(envelope)
        if message.message_expiry_s != self._expiry_s:
            self._expire_in(message.message_expiry_s, envelope)
        users = encode_user_properties(message.user_properties)
        properties = property_block(self._leading, correlation, users + self._trailing)
        payload_size = len(payload) if isinstance(payload, bytes) else sum(map(len, payload))
        size = len(topic) + 2 + len(properties) + payload_size
        if size + 5 > self._maximum_size and size + 1 + len(encode_variable(size)) > self._maximum_size:
            self._forget_topic(topic, envelope)
            return False
        frame = (first, encode_variable(size), topic, packet_id.to_bytes(2, "big"), properties)
        if not isinstance(payload, bytes):
            outbox += (b"".join((*frame, payload[0])), *payload[1:])
        elif payload_size < _APART:
            outbox.append(b"".join((*frame, payload)))
        else:
            outbox += (b"".join(frame), payload)
        return True

    def _turn_to(self, envelope: Envelope) -> bytes:
        """Make ``envelope`` the present one. Returns the topic for this message; for later ones its alias may do."""
        name = envelope.topic
        validate_topic_name(name)
        topic = self._topic = encode_text(name)
        self._alias = self._aliases.get(name, 0)
        if self._alias:
            topic = self._topic = _NO_TOPIC
        elif len(topic) > _SHORT_TOPIC and len(self._aliases) < self._alias_maximum:
            self._alias = self._aliases[name] = len(self._aliases) + 1
            self._topic = _NO_TOPIC
        self._trailing = encode_user_properties(envelope.user_properties)
        self._expire_in(self._expiry_s, envelope)
        self._envelope = envelope
        return topic

    def _expire_in(self, expiry_s: int, envelope: Envelope) -> None:
        """Encode what stands before the correlation data; the topic alias, too, does not change within an envelope."""
        leading = leading_properties(ANY_BYTES, expiry_s, CONTENT_TYPE, envelope.response_topic)
        self._leading = leading + delivery_properties((), self._alias or None)
        self._expiry_s = expiry_s

    def _forget_topic(self, topic: bytes, envelope: Envelope) -> None:
        """A message that was not sent did not tell the broker its alias either."""
        if topic is not _NO_TOPIC:
            self._aliases.pop(envelope.topic, None)
        self._envelope = None


#: More than one read brings, so that a broker never waits for us; few enough that it cannot flood us.
RECEIVE_MAXIMUM: Final = 1024
#: Pieces that wait to be written. A broker takes 65,535 messages at a time, of three pieces each, and needs few answers
#: before it has to read them. If more pile up, it does not read.
MOST_WAITING: Final = 200_000


class PublishCall(Protocol):
    """See :meth:`Messaging.publish`, which the drivers hand on as it is."""

    def __call__(self, delivery_id: int, message: OutgoingMessage, again: bool = False) -> None: ...


class Messaging:
    """Appends to ``outbox`` what goes out and to ``events`` what happened. Does nothing while not :attr:`is_open`."""

    __slots__ = (
        "_frames",
        "_inbound",
        "_maximum_size",
        "_outbox",
        "_session",
        "events",
        "is_open",
    )

    def __init__(self, session: ClientSession, outbox: list[bytes]) -> None:
        self.events: list[Event] = []
        self.is_open: bool = False
        self._outbox = outbox
        self._session = session
        self._inbound = session.inbound
        self._frames = PublishFrames(alias_maximum=0, maximum_size=MAX_PACKET_SIZE)
        self._maximum_size = MAX_PACKET_SIZE

    def open(self, session_present: bool, properties: ConnackProperties) -> None:
        """CONNACK came, with these properties."""
        self.is_open = True
        self._maximum_size = properties.maximum_packet_size or MAX_PACKET_SIZE
        self._frames = PublishFrames(alias_maximum=properties.topic_alias_maximum or 0, maximum_size=self._maximum_size)
        self._session.resume(is_present=session_present, receive_window=RECEIVE_MAXIMUM)
        window = properties.receive_maximum or DEFAULT_RECEIVE_MAXIMUM
        self.events.append(Connected(session_present, window, properties.maximum_packet_size))

    @property
    def handlers(self) -> dict[type[Packet | IncomingMessage], Callable[[Any], None]]:
        """What to call for each kind of packet."""
        return {
            IncomingMessage: self._on_message,
            Puback: self._on_puback,
            Publish: self._on_publish,
            Pubrec: self._on_pubrec,
            Pubrel: self._on_pubrel,
            Pubcomp: self._check_not_ours,
            Suback: self._on_suback,
        }

    # -- calls ---------------------------------------------------------------------------------------------------------

    def publish(self, delivery_id: int, message: OutgoingMessage, again: bool = False) -> None:
        """Queue a PUBLISH with QoS 1; ``Published(delivery_id)`` follows with its PUBACK.

        ``again``: it was published on an earlier connection and not acknowledged there. It goes out as the same
        PUBLISH, with DUP, if the session has it still, and as a new one otherwise.
        """
        if not self.is_open:
            return
        session, first = self._session, QOS_1_AGAIN
        packet_id = session.repeatable.pop(delivery_id, None) if again else None
        if packet_id is None:
            if session.repeatable and not again:
                session.give_up_repeatable()
            packet_id, first = session.new_id(), QOS_1
            session.in_flight[packet_id] = delivery_id
        if not self._frames.put(message, self._outbox, packet_id, first=first):
            del session.in_flight[packet_id]
            self.events.append(Published(delivery_id, ReasonCode.PACKET_TOO_LARGE))

    def subscribe(self, subscribe_id: int, topic_filters: Sequence[str]) -> None:
        """Queue a SUBSCRIBE with QoS 1; ``Subscribed(subscribe_id)`` follows."""
        if not self.is_open:
            return
        session, count = self._session, len(topic_filters)
        if len(session.in_flight) + len(session.subscriptions) >= LAST_PACKET_ID:
            self.events.append(Subscribed(subscribe_id, (ReasonCode.PACKET_IDENTIFIER_IN_USE,) * count))
            return
        packet_id = session.new_id()
        frame = encode(Subscribe(packet_id, tuple(Subscription(f, QOS) for f in topic_filters)))
        if len(frame) > self._maximum_size:
            self.events.append(Subscribed(subscribe_id, (ReasonCode.PACKET_TOO_LARGE,) * count))
            return
        session.subscriptions[packet_id] = (subscribe_id, count)
        self._outbox.append(frame)

    def acknowledge(self, ack_id: int) -> None:
        """Queue the PUBACK of a message that was received with QoS 1."""
        if self.is_open:
            self._inbound.used -= 1
            self._outbox.append(PUBACK + ack_id.to_bytes(2, "big"))

    # -- what becomes of our publications and subscriptions ------------------------------------------------------------

    def _on_puback(self, packet: Puback) -> None:
        session = self._session
        delivery_id = session.in_flight.pop(packet.packet_id, None)
        if delivery_id is None:
            return  # a duplicate: harmless
        if session.repeatable:
            session.repeatable.pop(delivery_id, None)
        self.events.append(Published(delivery_id, packet.reason_code))

    def _on_pubrec(self, packet: Pubrec) -> None:
        self._check_not_ours(packet)
        if packet.reason_code < FIRST_ERROR:
            self._outbox.append(encode(Pubrel(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)))

    def _check_not_ours(self, packet: Pubrec | Pubcomp) -> None:
        """PUBREC and PUBCOMP are for QoS 2; nothing that we publish has that."""
        if packet.packet_id in self._session.in_flight:
            raise _violation(f"a {type(packet).__name__.upper()} came for a message of QoS 1")

    def _on_suback(self, packet: Suback) -> None:
        subscribe_id, count = self._session.subscriptions.pop(packet.packet_id, (0, 0))
        if not count:
            return  # a duplicate: harmless
        if len(packet.reason_codes) != count:
            raise _violation(
                f"SUBACK has {len(packet.reason_codes)} reason codes for {count} filters"
            )  # [MQTT-3.8.4-6]
        self.events.append(Subscribed(subscribe_id, packet.reason_codes))

    # -- the broker's messages -----------------------------------------------------------------------------------------

    def _on_message(self, message: IncomingMessage) -> None:
        if message.ack_id:
            inbound = self._inbound
            inbound.used += 1
            if inbound.used > inbound.window:
                raise _flooded(inbound.window)
        self.events.append(message)

    def _on_publish(self, packet: Publish) -> None:
        """QoS 2, or a topic alias."""
        properties, inbound = packet.properties, self._inbound
        if properties.topic_alias is not None:
            text = f"topic alias {properties.topic_alias} came and none is allowed"
            raise PacketError(text, reason_code=ReasonCode.TOPIC_ALIAS_INVALID)
        is_new = inbound.publish(packet.packet_id)
        if inbound.used > inbound.window:
            raise _flooded(inbound.window)
        self._outbox.append(encode(Pubrec(packet.packet_id)))
        if is_new:
            self.events.append(
                IncomingMessage(packet.topic, packet.payload, properties.correlation_data, properties.user_properties)
            )

    def _on_pubrel(self, packet: Pubrel) -> None:
        is_known = self._inbound.release(packet.packet_id)
        reason = ReasonCode.SUCCESS if is_known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        self._outbox.append(encode(Pubcomp(packet.packet_id, reason)))


def _violation(text: str) -> PacketError:
    return PacketError(text, reason_code=ReasonCode.PROTOCOL_ERROR)


def _flooded(window: int) -> PacketError:
    text = f"more than {window} messages came without waiting for their acknowledgements"
    return PacketError(text, reason_code=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)

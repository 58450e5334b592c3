"""The messages of one open connection, both directions: publications, subscriptions, and what the broker delivers.

What is sent, how much at a time, and what again after a reconnect is decided in ``core``. Here it becomes packets: the
packet identifiers are :mod:`~statestore_client.mqtt.session`'s, the bytes
:mod:`~statestore_client.mqtt.publish_frames`', the rules for what comes in with QoS 2
:mod:`~statestore_client.mqtt.qos`'. Handlers raise :class:`PacketError` for what a broker must not send.

**Flow.** Publications leave at once: ``core`` keeps to the Receive Maximum that ``Connected`` tells it. The broker in
turn may have :data:`RECEIVE_MAXIMUM` messages unacknowledged here.

**Topic aliases.** We send them and announce none to the broker: reading a topic that was read before takes a look-up,
as an alias would, and the brokers that people run seldom send any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

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
)
from statestore_client.mqtt.publish_frames import QOS_1, QOS_1_AGAIN, PublishFrames
from statestore_client.mqtt.qos import LAST_PACKET_ID, PUBACK
from statestore_client.mqtt.session import ClientSession
from statestore_client.wire.messages import (
    FIRST_ERROR,
    MAX_PACKET_SIZE,
    Connected,
    Event,
    IncomingMessage,
    OutgoingMessage,
    Published,
    Subscribed,
)
from statestore_client.wire.topics import QOS

__all__ = ["MOST_WAITING", "RECEIVE_MAXIMUM", "Messaging", "PublishCall"]

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

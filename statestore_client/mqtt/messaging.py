"""The messages of one open connection, both directions: publications, subscriptions, and what the broker delivers.

The QoS rules are :mod:`~statestore_client.mqtt.qos`'s, the bytes :mod:`~statestore_client.mqtt.publish_frames`'. Here
they meet the events and delivery ids of ``core``. Handlers raise :class:`PacketError` for what a broker must not send.

**Flow.** Publications beyond the broker's Receive Maximum wait inside, without a bound of their own: the caller's
window is the bound. The broker in turn may have :data:`RECEIVE_MAXIMUM` messages unacknowledged here.

**Topic aliases.** We send them and announce none to the broker: reading a topic that was read before takes a look-up,
as an alias would, and the brokers that people run seldom send any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

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
from statestore_client.mqtt.publish_frames import QOS_1, QOS_1_AGAIN, QOS_2, QOS_2_AGAIN, PublishFrames
from statestore_client.mqtt.qos import Answer
from statestore_client.mqtt.session import ClientSession, Publication
from statestore_client.wire.messages import Event, IncomingMessage, OutgoingMessage, Published, Subscribed
from statestore_client.wire.topics import QOS

__all__ = ["ANY_SIZE", "MOST_WAITING", "RECEIVE_MAXIMUM", "Messaging"]

#: The protocol's own bound for a packet (MQTT 5.0, 2.1.4), in bytes. Values have no other.
ANY_SIZE: Final = 268_435_460
#: More than one read brings, so that a broker never waits for us; few enough that it cannot flood us.
RECEIVE_MAXIMUM: Final = 1024
#: Pieces that wait to be written. A broker takes 65,535 messages at a time, of three pieces each, and needs few answers
#: before it has to read them. If more pile up, it does not read.
MOST_WAITING: Final = 200_000

#: The first byte of a PUBLISH by its QoS.
_FIRST: Final = (b"", QOS_1, QOS_2)
_FIRST_AGAIN: Final = (b"", QOS_1_AGAIN, QOS_2_AGAIN)
_PUBACK: Final = b"\x40\x02"
_FIRST_ERROR: Final = 0x80  # reason codes from here on are errors (MQTT 5.0, 2.4)


class Messaging:
    """Appends to ``outbox`` what goes out and to ``events`` what happened. Does nothing while not :attr:`is_open`."""

    __slots__ = (
        "_frames",
        "_inbound",
        "_maximum_qos",
        "_maximum_size",
        "_outbound",
        "_outbox",
        "_session",
        "_subscriptions",
        "events",
        "is_open",
    )

    def __init__(self, session: ClientSession, outbox: list[bytes]) -> None:
        self.events: list[Event] = []
        self.is_open = False
        self._outbox = outbox
        self._session = session
        self._outbound = session.outbound
        self._inbound = session.inbound
        self._frames = PublishFrames(alias_maximum=0, maximum_size=ANY_SIZE)
        self._maximum_qos = 2
        self._maximum_size = ANY_SIZE
        self._subscriptions: dict[int, tuple[int, int]] = {}  # packet identifier -> subscribe id, number of filters

    def open(self, properties: ConnackProperties) -> None:
        """CONNACK came, with these properties. Send the session's PUBRELs again."""
        self.is_open = True
        self._maximum_size = properties.maximum_packet_size or ANY_SIZE
        self._frames = PublishFrames(alias_maximum=properties.topic_alias_maximum or 0, maximum_size=self._maximum_size)
        self._maximum_qos = 2 if properties.maximum_qos is None else properties.maximum_qos
        window = properties.receive_maximum or DEFAULT_RECEIVE_MAXIMUM
        for packet_id in self._session.resume(send_window=window, receive_window=RECEIVE_MAXIMUM):
            self._outbox.append(encode(Pubrel(packet_id)))

    @property
    def handlers(self) -> dict[type[Packet | IncomingMessage], Callable[[Any], None]]:
        """What to call for each kind of packet."""
        return {
            IncomingMessage: self._on_message,
            Puback: self._on_puback,
            Publish: self._on_publish,
            Pubrec: self._on_pubrec,
            Pubrel: self._on_pubrel,
            Pubcomp: self._on_pubcomp,
            Suback: self._on_suback,
        }

    # -- calls ---------------------------------------------------------------------------------------------------------

    def publish(self, delivery_id: int, message: OutgoingMessage, again: bool = False, *, qos: int = QOS) -> None:
        """Queue a PUBLISH with QoS 1 or 2; ``Published(delivery_id)`` follows when the exchange is over.

        ``again``: it was published on an earlier connection and not acknowledged there. It goes out as the same
        PUBLISH, with DUP, if the session has it still, and as a new one otherwise.
        """
        if not self.is_open:
            return
        if (again or self._session.repeatable) and self._is_repetition(delivery_id, message, again):
            return
        if qos > self._maximum_qos:
            self.events.append(Published(delivery_id, ReasonCode.QOS_NOT_SUPPORTED))
            return
        publication = Publication(qos, delivery_id)
        if self._outbound.offer(publication):
            self._put(publication, message)
        else:
            publication.message = message

    def subscribe(self, subscribe_id: int, topic_filters: Sequence[str]) -> None:
        """Queue a SUBSCRIBE with QoS 1; ``Subscribed(subscribe_id)`` follows."""
        if not self.is_open:
            return
        packet_id = self._outbound.reserve()
        if packet_id is None:
            self.events.append(Subscribed(subscribe_id, (ReasonCode.PACKET_IDENTIFIER_IN_USE,) * len(topic_filters)))
            return
        frame = encode(Subscribe(packet_id, tuple(Subscription(f, QOS) for f in topic_filters)))
        if len(frame) > self._maximum_size:
            self._outbound.reserved.discard(packet_id)
            self.events.append(Subscribed(subscribe_id, (ReasonCode.PACKET_TOO_LARGE,) * len(topic_filters)))
            return
        self._subscriptions[packet_id] = (subscribe_id, len(topic_filters))
        self._outbox.append(frame)

    def acknowledge(self, ack_id: int) -> None:
        """Queue the PUBACK of a message that was received with QoS 1."""
        if self.is_open:
            self._inbound.used -= 1
            self._outbox.append(_PUBACK + ack_id.to_bytes(2, "big"))

    # -- our publications and subscriptions ----------------------------------------------------------------------------

    def _put(self, publication: Publication, message: OutgoingMessage, *, dup: bool = False) -> None:
        """Queue the PUBLISH of a publication that is in flight."""
        first = _FIRST_AGAIN[publication.qos] if dup else _FIRST[publication.qos]
        if not self._frames.put(message, self._outbox, publication.packet_id, first=first):
            self._outbound.forget(publication)
            self.events.append(Published(publication.delivery_id, ReasonCode.PACKET_TOO_LARGE))

    def _is_repetition(self, delivery_id: int, message: OutgoingMessage, again: bool) -> bool:
        """Send the publication again that the session has under this id. False if it is new to the session."""
        session = self._session
        if not again:
            session.give_up_repeatable()
            return False
        publication = session.repeatable.pop(delivery_id, None)
        if publication is None:
            # PUBRECed, and PUBREL is on its way; or never sent, or of a session that is no more.
            return session.is_released(delivery_id)
        if self._outbound.repeat(publication):
            self._put(publication, message, dup=True)
        else:
            publication.message = message
        return True

    def _pump(self) -> None:
        """Send what waits, as far as the broker's window allows."""
        while (publication := self._outbound.next_ready()) is not None:
            message, publication.message = publication.message, None
            is_repeated = publication.packet_id != 0
            if not is_repeated:
                self._outbound.start(publication)
            if message is not None:
                self._put(publication, message, dup=is_repeated)

    def _on_puback(self, packet: Puback) -> None:
        outbound = self._outbound
        publication = outbound.in_flight.get(packet.packet_id)
        if publication is None:
            return  # a duplicate: harmless
        if outbound.acknowledged(packet.packet_id) is Answer.WRONG:
            raise _violation("a PUBACK came for a message of QoS 2")
        self._finished(publication, packet.reason_code)

    def _on_pubrec(self, packet: Pubrec) -> None:
        outbound = self._outbound
        publication = outbound.in_flight.get(packet.packet_id)
        is_refused = packet.reason_code >= _FIRST_ERROR
        answer = outbound.received(packet.packet_id, refused=is_refused)
        if answer is Answer.WRONG:
            raise _violation("a PUBREC came for a message of QoS 1")
        if publication is None:
            if not is_refused:
                self._outbox.append(encode(Pubrel(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)))
        elif is_refused:
            self._finished(publication, packet.reason_code)
        else:
            self._session.repeatable.pop(publication.delivery_id, None)
            self._outbox.append(encode(Pubrel(packet.packet_id)))

    def _on_pubcomp(self, packet: Pubcomp) -> None:
        publication = self._outbound.in_flight.get(packet.packet_id)
        if publication is None:
            return
        if self._outbound.completed(packet.packet_id) is Answer.WRONG:
            raise _violation("a PUBCOMP came before PUBREC")
        # Whatever it says: with PUBREC, the broker has taken the message over.
        self._finished(publication, ReasonCode.SUCCESS)

    def _finished(self, publication: Publication, reason_code: int) -> None:
        self.events.append(Published(publication.delivery_id, reason_code))
        outbound, session = self._outbound, self._session
        if session.repeatable:
            session.repeatable.pop(publication.delivery_id, None)
        if outbound.waiting.items or outbound.resend:
            self._pump()

    def _on_suback(self, packet: Suback) -> None:
        subscribe_id, count = self._subscriptions.pop(packet.packet_id, (0, 0))
        if not count:
            return  # a duplicate: harmless
        self._outbound.reserved.discard(packet.packet_id)
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

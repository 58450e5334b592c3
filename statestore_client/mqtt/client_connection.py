"""The client's end of one MQTT 5 connection: bytes in, events out; calls in, bytes out. Pure: no socket, no clock.

Life of a connection::

    NEW --connect()--> WAITING --CONNACK--> OPEN --disconnect(), DISCONNECT, a broken packet, silence--> ENDED

What is sent is appended to :attr:`ClientConnection.outbox`; the driver takes and writes it. What outlives the
connection, packet identifiers above all, is in :class:`ClientSession`. What is sent, how much at a time, and what again
after a reconnect is decided in :mod:`statestore_client.core`: there ``publish(..., again=True)`` comes before any new
publication. :class:`PublishFrames` makes the bytes, and :mod:`~statestore_client.mqtt.qos` has the rules for what comes
in with QoS 2.

**Flow.** Publications leave at once: ``core`` keeps to the Receive Maximum that ``Connected`` tells it. The broker in
turn may have :data:`RECEIVE_MAXIMUM` messages unacknowledged here.

**Topic aliases.** We send them and announce none to the broker: reading a topic that was read before takes a look-up,
as an alias would, and the brokers that people run seldom send any.

Invariant: packet identifiers in use are unique and not 0 (2.2.1).
Invariant: a session has at most one living connection. The broker's half may be gone when the next one stands; CONNACK
tells, and the session is emptied then.

Source: MQTT 5.0 sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Final, Protocol

import attrs

from statestore_client.errors import (
    ConnectionLostError,
    ConnectRefusedError,
    PacketError,
    RemoteProtocolError,
    StateStoreError,
)
from statestore_client.mqtt.authentication import Authentication, Authenticator
from statestore_client.mqtt.closing import (
    disconnected,
    no_connack,
    no_pingresp,
    peer_closed,
    protocol_violated,
    refused,
)
from statestore_client.mqtt.packets import (
    DEFAULT_RECEIVE_MAXIMUM,
    MQTT_5_0,
    Auth,
    Connack,
    ConnackProperties,
    Connect,
    ConnectProperties,
    Disconnect,
    DisconnectProperties,
    MessageDecoder,
    Packet,
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
    validate_topic_name,
)
from statestore_client.mqtt.packets.forgiven import Forgiven
from statestore_client.mqtt.packets.primitives import encode_text, encode_variable
from statestore_client.mqtt.packets.properties import CORRELATION_DATA
from statestore_client.mqtt.packets.publish import (
    delivery_properties,
    encode_user_properties,
    leading_properties,
)
from statestore_client.mqtt.packets.types import DISCONNECT_CODES
from statestore_client.mqtt.qos import LAST_PACKET_ID, PUBACK, Inbound, next_packet_id
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import (
    BrokerMistakes,
    Closed,
    Connected,
    Event,
    IncomingMessage,
    OutgoingMessage,
    Published,
    RequestHeader,
    Subscribed,
)
from statestore_client.wire.protocol import (
    CONTENT_TYPE,
    FIRST_ERROR,
    MAX_PACKET_SIZE,
    METRIC_CATEGORY,
    PERSISTED,
    QOS,
    UNSPECIFIED_BYTES,
)

#: A SUBSCRIBE is sent so often, with other packet identifiers, to a broker that says that those are in use: with steps
#: of twice the width that is once around.
_MOST_TRIES: Final = 16


@attrs.frozen
class _Asked:
    """A SUBSCRIBE without SUBACK; ``tries`` counts those before it."""

    subscribe_id: int
    topic_filters: Sequence[str]
    tries: int = 0


@attrs.define(eq=False)
class ClientSession:
    """What survives a connection (MQTT 5.0, 4.1): which publication has which packet identifier, and the QoS 2 messages
    that were taken over.
    """

    inbound: Inbound = attrs.field(factory=Inbound, init=False)
    #: Packet identifier to delivery id of each publication without PUBACK, in the order in which they left first.
    in_flight: dict[int, int] = attrs.field(factory=dict, init=False)
    #: Delivery id to packet identifier of those that an earlier connection left behind, and that were not repeated yet.
    unacknowledged: dict[int, int] = attrs.field(factory=dict, init=False)
    #: Packet identifier to each of this connection's SUBSCRIBEs without SUBACK.
    subscriptions: dict[int, _Asked] = attrs.field(factory=dict, init=False)
    _last_id: int = attrs.field(default=0, init=False)

    def resume(self, *, is_present: bool, receive_window: int) -> None:
        """A connection stands, and the broker has the session or not; ``receive_window`` is our Receive Maximum.

        One that an earlier process left behind goes on; this process has nothing in flight there. [MQTT-3.2.2-4] would
        have us close, but a user who sets ``clean_start=False`` wants the messages that wait there.
        """
        if not is_present:
            self.clear()
        self.subscriptions.clear()
        self.unacknowledged = {delivery_id: packet_id for packet_id, delivery_id in self.in_flight.items()}
        self.inbound.resume(receive_window)

    def clear(self) -> None:
        """The session is over: we ended it, or the broker has lost it."""
        self.in_flight.clear()
        self.unacknowledged.clear()
        self.inbound.unreleased.clear()

    def new_id(self) -> int:
        """A packet identifier that is not in use. ``core`` publishes no more than leaves some free."""
        packet_id = self._last_id + 1
        if packet_id > LAST_PACKET_ID or packet_id in self.in_flight or packet_id in self.subscriptions:
            packet_id = next_packet_id(self._last_id, self.in_flight, self.subscriptions)
        self._last_id = packet_id
        return packet_id

    def skip_ids(self, count: int) -> None:
        """The next identifier is so many further."""
        self._last_id = (self._last_id + count) % LAST_PACKET_ID

    def drop_unacknowledged(self) -> None:
        """``core`` went on to new publications: nobody waits any longer for those that it did not repeat."""
        for packet_id in self.unacknowledged.values():
            del self.in_flight[packet_id]
        self.unacknowledged.clear()


#: Larger payloads go out as pieces of their own: joining them to their header would be one more copy.
_APART: Final = 8192
#: An alias costs three bytes in each message.
_SHORT_TOPIC: Final = 5
#: Stands where an alias says the topic.
_NO_TOPIC: Final = encode_text("")

#: The identifier of that property.
_CORRELATION_DATA: Final = bytes((CORRELATION_DATA,))

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
        self._envelope: RequestHeader | None = None  # the last one; what follows belongs to it
        self._alias = 0
        self._topic = b""
        self._leading = b""
        self._trailing = b""

    def put(self, message: OutgoingMessage, outbox: list[bytes], packet_id: int, *, first: bytes = QOS_1) -> bool:
        """Append the PUBLISH to the outbox; ``first`` is its first byte.

        False: it is larger than the broker accepts, and was not appended.
        """
        envelope, payload, correlation = message.envelope, message.payload, message.correlation_data
        topic = self._topic if envelope is self._envelope else self._select_envelope(envelope)
        if message.message_expiry_s != self._expiry_s:
            self._expire_in(message.message_expiry_s, envelope)
        leading, users, trailing = self._leading, encode_user_properties(message.user_properties), self._trailing
        size = len(leading) + 3 + len(correlation) + len(users) + len(trailing)
        before, length = encode_variable(size) + leading + _CORRELATION_DATA, len(correlation).to_bytes(2, "big")
        properties = b"".join((before, length, correlation, users, trailing))
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

    def _select_envelope(self, envelope: RequestHeader) -> bytes:
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

    def _expire_in(self, expiry_s: int, envelope: RequestHeader) -> None:
        """Encode what stands before the correlation data; the topic alias, too, does not change within an envelope."""
        leading = leading_properties(UNSPECIFIED_BYTES, expiry_s, CONTENT_TYPE, envelope.response_topic)
        self._leading = leading + delivery_properties((), self._alias or None)
        self._expiry_s = expiry_s

    def _forget_topic(self, topic: bytes, envelope: RequestHeader) -> None:
        """A message that was not sent did not tell the broker its alias either."""
        if topic is not _NO_TOPIC:
            self._aliases.pop(envelope.topic, None)
        self._envelope = None


#: More than one read brings, so that a broker never waits for us; few enough that it cannot flood us.
RECEIVE_MAXIMUM: Final = 1024
#: Pieces that wait to be written. A broker takes 65,535 messages at a time, of three pieces each, and needs few answers
#: before it has to read them. If more pile up, it does not read.
MOST_WAITING: Final = 200_000


def connect_user_properties(settings: ConnectionSettings) -> tuple[tuple[str, str], ...]:
    """The user properties of CONNECT, in the order of the official SDKs (state store facts, 1.1)."""
    category = settings.metric_category
    named = () if category is None else ((METRIC_CATEGORY, category),)
    return (*named, PERSISTED) if settings.persist_session else named


class KeepAliveAction(Enum):
    """What :meth:`KeepAlive.check` asks for."""

    NOTHING = auto()
    PING = auto()
    END = auto()


@attrs.define(eq=False)
class KeepAlive:
    """Says when to ping, and when the link is dead (MQTT 5.0, 3.1.2.10).

    Times are monotonic seconds; an ``interval_s`` of 0 switches it off.

    Silence of either side counts: a link that takes what we write may have lost its way back. A ping must be answered,
    by whatever comes in, within half an interval.
    """

    interval_s: float
    last_sent: float = 0.0
    last_received: float = 0.0
    pinged_at: float | None = None

    def begin(self, now: float) -> None:
        self.last_sent = self.last_received = now

    def heard(self, now: float) -> None:
        """Note that something came in."""
        self.last_received = now
        self.pinged_at = None

    def deadline(self) -> float | None:
        """When :meth:`check` has something to say."""
        if not self.interval_s:
            return None
        if self.pinged_at is not None:
            return self.pinged_at + self.interval_s / 2
        return min(self.last_sent, self.last_received) + self.interval_s

    def check(self, now: float) -> KeepAliveAction:
        """PING only once for each silence; END when no answer came."""
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return KeepAliveAction.NOTHING
        if self.pinged_at is not None:
            return KeepAliveAction.END
        self.pinged_at = now
        return KeepAliveAction.PING


_PINGREQ: Final = encode(Pingreq())


class _State(Enum):
    NEW = "new"
    WAITING = "waiting"
    OPEN = "open"
    ENDED = "ended"


class PublishCall(Protocol):
    """See :meth:`ClientConnection.publish`, which the drivers hand on as it is."""

    def __call__(self, delivery_id: int, message: OutgoingMessage, again: bool = False) -> None: ...


class ClientConnection:
    """See the module. Times are monotonic seconds. Nothing is sent while it is not :attr:`is_open`."""

    __slots__ = (
        "_authentication",
        "_clean_start",
        "_connack_deadline",
        "_decoder",
        "_forgiven",
        "_frames",
        "_handlers",
        "_inbound",
        "_maximum_packet_size",
        "_maximum_size",
        "_session",
        "_state",
        "client_id",
        "events",
        "has_ended",
        "is_open",
        "keep_alive",
        "outbox",
        "room",
        "settings",
    )

    def __init__(
        self,
        settings: ConnectionSettings,
        client_id: str,
        *,
        session: ClientSession | None = None,
        maximum_packet_size: int = MAX_PACKET_SIZE,
        authenticator: Authenticator | None = None,
    ) -> None:
        """``maximum_packet_size``: bytes that we take from the broker at most. Announced when it is a bound at all."""
        #: The driver may name the address until :meth:`connect`.
        self.settings: ConnectionSettings = settings
        #: Ours, or the one that the broker assigned in CONNACK.
        self.client_id: str = client_id
        self._session = session = session or ClientSession()
        self._inbound = session.inbound
        self._maximum_packet_size = maximum_packet_size
        self._authentication = Authentication(authenticator)
        self._state = _State.NEW
        self._clean_start = True
        self._connack_deadline = 0.0
        self._forgiven = forgiven = Forgiven()
        self._decoder = MessageDecoder(version=MQTT_5_0, max_packet_size=maximum_packet_size, forgiven=forgiven)
        #: Where the driver may receive the next bytes, if they are to stay there: then it calls :meth:`received`.
        self.room: Callable[[], memoryview | None] = self._decoder.room
        self._handlers: dict[type[Packet | IncomingMessage], Callable[[Any], None]] = {}
        #: The driver tells it when something was written.
        self.keep_alive: KeepAlive = KeepAlive(settings.keep_alive)
        #: Whole packets, large payloads apart, that wait to be written; the driver empties it.
        self.outbox: list[bytes] = []
        #: What happened since the last :meth:`take_events`. Calls can cause events, too.
        self.events: list[Event] = []
        #: Whether CONNACK came, and nothing has ended the connection.
        self.is_open: bool = False
        #: Whether ``Closed`` was reported: nothing more comes in or goes out.
        self.has_ended: bool = False
        self._frames = PublishFrames(alias_maximum=0, maximum_size=MAX_PACKET_SIZE)
        self._maximum_size = MAX_PACKET_SIZE  # that the broker takes

    @property
    def url(self) -> str:
        """Where the broker is, for messages."""
        return self.settings.url

    @property
    def heard_at(self) -> float:
        """When the last byte came, or else when connecting began."""
        return self.keep_alive.last_received

    # -- calls ---------------------------------------------------------------------------------------------------------

    def connect(self, now: float, *, clean_start: bool, password: str | None) -> None:
        """Queue CONNECT, which must be answered within the settings' ``connect_timeout``."""
        settings = self.settings
        self._state = _State.WAITING
        self._handlers = {Connack: self._on_connack, Disconnect: self._on_disconnect, Auth: self._on_auth}
        self._connack_deadline = now + settings.connect_timeout
        self.keep_alive.begin(now)
        self._clean_start = clean_start
        try:
            data = self._authentication.begin()
        except ConnectionLostError as error:
            self.end(Closed(error))
            return
        packet = Connect(
            self.client_id,
            clean_start=clean_start,
            keep_alive=int(settings.keep_alive),
            username=settings.username,
            password=None if password is None else password.encode(),
            properties=self._connect_properties(data),
        )
        self.outbox.append(encode(packet))

    def _connect_properties(self, authentication_data: bytes | None) -> ConnectProperties:
        """Our server tells its packet size, and its reasons in words, to those who ask for problem information."""
        size = self._maximum_packet_size
        return ConnectProperties(
            session_expiry=int(self.settings.session_expiry),
            receive_maximum=RECEIVE_MAXIMUM,
            maximum_packet_size=size if size < MAX_PACKET_SIZE else None,
            request_problem_information=1,
            user_properties=connect_user_properties(self.settings),
            authentication_method=self._authentication.method,
            authentication_data=authentication_data,
        )

    def reauthenticate(self) -> None:
        """Begin a new conversation with the authenticator, before a token expires. Not while one is running."""
        if self._state is not _State.OPEN:
            return
        try:
            packet = self._authentication.renew()
        except ConnectionLostError as error:
            self._leave(ReasonCode.UNSPECIFIED_ERROR, error)
            return
        if packet is not None:
            self.outbox.append(encode(packet))

    def publish(self, delivery_id: int, message: OutgoingMessage, again: bool = False) -> None:
        """Queue a PUBLISH with QoS 1; ``Published(delivery_id)`` follows with its PUBACK.

        ``again``: it was published on an earlier connection and not acknowledged there. It goes out as the same
        PUBLISH, with DUP, if the session has it still, and as a new one otherwise.
        """
        if not self.is_open:
            return
        session, first = self._session, QOS_1_AGAIN
        packet_id = session.unacknowledged.pop(delivery_id, None) if again else None
        if packet_id is None:
            if session.unacknowledged and not again:
                session.drop_unacknowledged()
            packet_id, first = session.new_id(), QOS_1
            session.in_flight[packet_id] = delivery_id
        if not self._frames.put(message, self.outbox, packet_id, first=first):
            del session.in_flight[packet_id]
            self.events.append(Published(delivery_id, ReasonCode.PACKET_TOO_LARGE))

    def subscribe(self, subscribe_id: int, topic_filters: Sequence[str]) -> None:
        """Queue a SUBSCRIBE with QoS 1; ``Subscribed(subscribe_id)`` follows."""
        if self.is_open:
            self._subscribe(_Asked(subscribe_id, topic_filters))

    def _subscribe(self, asked: _Asked) -> None:
        session, count = self._session, len(asked.topic_filters)
        if len(session.in_flight) + len(session.subscriptions) >= LAST_PACKET_ID:
            self.events.append(Subscribed(asked.subscribe_id, (ReasonCode.PACKET_IDENTIFIER_IN_USE,) * count))
            return
        packet_id = session.new_id()
        frame = encode(Subscribe(packet_id, tuple(Subscription(f, QOS) for f in asked.topic_filters)))
        if len(frame) > self._maximum_size:
            self.events.append(Subscribed(asked.subscribe_id, (ReasonCode.PACKET_TOO_LARGE,) * count))
            return
        session.subscriptions[packet_id] = asked
        self.outbox.append(frame)

    def acknowledge(self, ack_id: int) -> None:
        """Queue the PUBACK of a message that was received with QoS 1."""
        if self.is_open:
            self._inbound.used -= 1
            self.outbox.append(PUBACK + ack_id.to_bytes(2, "big"))

    def ping(self) -> None:
        """Queue a PINGREQ: does the broker answer anything?"""
        if self._state is _State.OPEN:
            self.outbox.append(_PINGREQ)

    def disconnect(self) -> None:
        """Queue a DISCONNECT that ends the session at once; the driver closes when it is written."""
        if self._state is _State.OPEN:
            self.outbox.append(encode(Disconnect(0, DisconnectProperties(session_expiry=0))))
            self._session.clear()
        self.end(Closed(ConnectionLostError("the connection was closed by this client")))

    def end(self, why: Closed) -> None:
        """Report the end, once."""
        if not self.has_ended:
            self._state, self.has_ended, self.is_open = _State.ENDED, True, False
            self._handlers.clear()
            self.events.append(why)

    # -- what happens --------------------------------------------------------------------------------------------------

    def heard(self, now: float) -> None:
        """Bytes came that are not for here yet: a part of a WebSocket's frame."""
        self.keep_alive.heard(now)

    def receive(self, data: bytes, now: float) -> None:
        """Bytes from the broker, in any portions."""
        keep_alive = self.keep_alive
        keep_alive.last_received, keep_alive.pinged_at = now, None
        try:
            packets = self._decoder.feed(data)
        except PacketError as error:
            self._handle(self._decoder.take(), error)
        else:
            self._handle(packets)

    def received(self, count: int, now: float) -> None:
        """So many bytes from the broker, in :attr:`room`."""
        keep_alive = self.keep_alive
        keep_alive.last_received, keep_alive.pinged_at = now, None
        try:
            packets = self._decoder.received(count)
        except PacketError as error:
            self._handle([], error)
        else:
            self._handle(packets)

    def _handle(self, packets: list[Packet | IncomingMessage], broken: PacketError | None = None) -> None:
        handlers = self._handlers
        try:
            for packet in packets:
                if self.is_open:  # the answers to requests, in line
                    if type(packet) is IncomingMessage:
                        if packet.ack_id:
                            self._inbound.used += 1
                            if self._inbound.used > self._inbound.window:
                                raise flooded(self._inbound.window)
                        self.events.append(packet)
                        continue
                    if type(packet) is Puback:
                        session = self._session
                        delivery_id = session.in_flight.pop(packet.packet_id, None)
                        if delivery_id is not None:  # otherwise it is a duplicate: harmless
                            session.unacknowledged.pop(delivery_id, None)
                            self.events.append(Published(delivery_id, packet.reason_code))
                        continue
                handler = handlers.get(type(packet))
                if handler is None:
                    self._receive_unexpected(packet)
                else:
                    handler(packet)
        except PacketError as error:
            broken = error
        if len(self.outbox) > MOST_WAITING:
            text = f"{MOST_WAITING} packets wait to be written, because it does not read our answers"
            broken = PacketError(text, reason_code=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
        if broken is not None:
            self._refuse(broken.reason_code, broken)
        forgiven = self._forgiven
        if forgiven.count and not self.has_ended:
            self.events.append(BrokerMistakes(forgiven.count, forgiven.first))
            forgiven.count = 0

    def take_events(self) -> list[Event]:
        """What happened since the last call, in order."""
        events, self.events = self.events, []
        return events

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do."""
        if self._state is _State.WAITING:
            return self._connack_deadline
        return self.keep_alive.deadline() if self._state is _State.OPEN else None

    def receive_eof(self) -> None:
        """The broker closed the stream."""
        self.end(peer_closed(self.settings, answered=self._state is not _State.WAITING))

    def tick(self, now: float) -> None:
        """Time has passed: give up on CONNACK, send PINGREQ, notice a dead link."""
        if self._state is _State.WAITING and now >= self._connack_deadline:
            self.end(no_connack(self.settings))
        elif self._state is _State.OPEN:
            due = self.keep_alive.check(now)
            if due is KeepAliveAction.PING:
                self.outbox.append(_PINGREQ)
            elif due is KeepAliveAction.END:
                self.end(no_pingresp(self.settings, now - self.keep_alive.last_received))

    # -- packets -------------------------------------------------------------------------------------------------------

    def _on_connack(self, packet: Connack) -> None:
        properties = packet.properties
        if packet.reason_code:
            self.end(refused(self.settings, packet.reason_code, properties.reason_string))
        elif packet.session_present and self._clean_start:
            self._violated("CONNACK names a session although a clean start was asked for")  # [MQTT-3.2.2-2]
        elif properties.maximum_qos == 0:
            text = f"the broker at {self.settings.url} takes QoS 0 only; the state store needs QoS 1"
            reason = ReasonCode.QOS_NOT_SUPPORTED
            self.end(Closed(ConnectRefusedError(text, reason_code=reason, fatal=True), fatal=True, reason_code=reason))
        elif self._is_accepted(properties):
            self._open(packet.session_present, properties)

    def _is_accepted(self, properties: ConnackProperties) -> bool:
        """Whether the authenticator accepts how the conversation ended."""
        try:
            self._authentication.accepted(properties.authentication_method, properties.authentication_data)
        except (ConnectionLostError, RemoteProtocolError) as error:
            self._give_up_authentication(error)
            return False
        return True

    def _open(self, session_present: bool, properties: ConnackProperties) -> None:
        self._state = _State.OPEN
        del self._handlers[Connack]
        self._handlers |= {
            Publish: self._on_publish,
            Pubrec: self._on_pubrec,
            Pubrel: self._on_pubrel,
            Pubcomp: self._check_not_ours,
            Suback: self._on_suback,
            Pingresp: self._on_pingresp,
        }
        if properties.server_keep_alive is not None:
            self.keep_alive.interval_s = float(properties.server_keep_alive)
        if properties.assigned_client_id is not None:
            self.client_id = properties.assigned_client_id
        self.is_open = True
        self._maximum_size = properties.maximum_packet_size or MAX_PACKET_SIZE
        self._frames = PublishFrames(alias_maximum=properties.topic_alias_maximum or 0, maximum_size=self._maximum_size)
        self._session.resume(is_present=session_present, receive_window=RECEIVE_MAXIMUM)
        window = properties.receive_maximum or DEFAULT_RECEIVE_MAXIMUM
        self.events.append(Connected(session_present, window, properties.maximum_packet_size))

    def _on_disconnect(self, packet: Disconnect) -> None:
        self.end(disconnected(self.settings, packet.reason_code, packet.properties.reason_string))

    def _on_auth(self, packet: Auth) -> None:
        try:
            answer = self._authentication.receive(packet)
        except (ConnectionLostError, RemoteProtocolError) as error:
            self._give_up_authentication(error)
            return
        if answer is not None:
            self.outbox.append(encode(answer))

    def _give_up_authentication(self, error: ConnectionLostError | RemoteProtocolError) -> None:
        if isinstance(error, RemoteProtocolError):
            self._refuse(ReasonCode.PROTOCOL_ERROR, error)
        else:
            self._leave(ReasonCode.UNSPECIFIED_ERROR, error)

    def _on_pingresp(self, packet: Pingresp) -> None:
        """Nothing to do: only its arrival counts."""

    def _receive_unexpected(self, packet: Packet | IncomingMessage) -> None:
        name = "PUBLISH" if isinstance(packet, IncomingMessage) else type(packet).__name__.upper()
        if self._state is _State.WAITING:
            self._violated(f"a {name} came before CONNACK")
        elif isinstance(packet, Connack):
            self._violated("a second CONNACK came")
        else:
            self._violated(f"a broker does not send {name}")

    # -- what becomes of our publications and subscriptions ------------------------------------------------------------

    def _on_pubrec(self, packet: Pubrec) -> None:
        self._check_not_ours(packet)
        if packet.reason_code < FIRST_ERROR:
            self.outbox.append(encode(Pubrel(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)))

    def _check_not_ours(self, packet: Pubrec | Pubcomp) -> None:
        """PUBREC and PUBCOMP are for QoS 2; nothing that we publish has that."""
        if packet.packet_id in self._session.in_flight:
            raise _violation(f"a {type(packet).__name__.upper()} came for a message of QoS 1")

    def _on_suback(self, packet: Suback) -> None:
        asked = self._session.subscriptions.pop(packet.packet_id, None)
        if asked is None:
            return  # a duplicate: harmless
        count = len(asked.topic_filters)
        if len(packet.reason_codes) != count:
            raise _violation(
                f"SUBACK has {len(packet.reason_codes)} reason codes for {count} filters"
            )  # [MQTT-3.8.4-6]
        if asked.tries < _MOST_TRIES and set(packet.reason_codes) == {ReasonCode.PACKET_IDENTIFIER_IN_USE}:
            # The identifier is in use for a message to us: mochi-mqtt keeps both directions in one list, where they
            # are apart [MQTT 5.0, 2.2.1]. What it has in use is mostly in a row, so each step is twice as wide.
            self._forgiven.note("reason code 0x91 in SUBACK, for an identifier that is free")
            self._session.skip_ids(2**asked.tries)
            self._subscribe(attrs.evolve(asked, tries=asked.tries + 1))
            return
        self.events.append(Subscribed(asked.subscribe_id, packet.reason_codes))

    # -- the broker's messages -----------------------------------------------------------------------------------------

    def _on_publish(self, packet: Publish) -> None:
        """QoS 2, or a topic alias."""
        properties, inbound = packet.properties, self._inbound
        if properties.topic_alias is not None:
            text = f"topic alias {properties.topic_alias} came and none is allowed"
            raise PacketError(text, reason_code=ReasonCode.TOPIC_ALIAS_INVALID)
        is_new = inbound.publish(packet.packet_id)
        if inbound.used > inbound.window:
            raise flooded(inbound.window)
        self.outbox.append(encode(Pubrec(packet.packet_id)))
        if is_new:
            self.events.append(
                IncomingMessage(packet.topic, packet.payload, properties.correlation_data, properties.user_properties)
            )

    def _on_pubrel(self, packet: Pubrel) -> None:
        is_known = self._inbound.release(packet.packet_id)
        reason = ReasonCode.SUCCESS if is_known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        self.outbox.append(encode(Pubcomp(packet.packet_id, reason)))

    # -- the broker's mistakes -----------------------------------------------------------------------------------------

    def _violated(self, text: str) -> None:
        self._refuse(ReasonCode.PROTOCOL_ERROR, RemoteProtocolError(text))

    def _refuse(self, reason_code: int, error: StateStoreError) -> None:
        """The broker broke the protocol: tell it and end. Nothing it says can be relied upon from here."""
        why = protocol_violated(self.settings, error, answered=self._state is not _State.WAITING)
        self._leave(reason_code, why.error)

    def _leave(self, reason_code: int, error: StateStoreError) -> None:
        if self._state is _State.OPEN:
            # Some codes of the decoder belong to other packets: 0x84 is what a server says to a CONNECT.
            code = reason_code if reason_code in DISCONNECT_CODES else ReasonCode.PROTOCOL_ERROR
            self.outbox.append(encode(Disconnect(code)))
        self.end(Closed(error))


def _violation(text: str) -> PacketError:
    return PacketError(text, reason_code=ReasonCode.PROTOCOL_ERROR)


def flooded(window: int) -> PacketError:
    text = f"more than {window} messages came without waiting for their acknowledgements"
    return PacketError(text, reason_code=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)

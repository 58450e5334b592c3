"""The client's end of one MQTT 5 connection: bytes in, events out; calls in, bytes out. Pure: no socket, no clock.

Life of a connection::

    NEW --connect()--> WAITING --CONNACK--> OPEN --disconnect(), DISCONNECT, a broken packet, silence--> ENDED

What is sent is appended to :attr:`ClientConnection.outbox`; the driver takes and writes it. What outlives the
connection is in :class:`~statestore_client.mqtt.messaging.ClientSession`. After a reconnect, ``core`` says which
publications are sent again (``publish(..., again=True)``), before any new one.

This module is the handshake, the keep-alive and the ends; messages are :mod:`~statestore_client.mqtt.messaging`'s.
Source: MQTT 5.0 sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Final

import attrs

from statestore_client.errors import (
    ConnectionLostError,
    ConnectRefusedError,
    PacketError,
    RemoteProtocolError,
    StateStoreError,
)
from statestore_client.mqtt.authentication import Authentication, Authenticator
from statestore_client.mqtt.closing import disconnected, hung_up, no_connack, no_mqtt, no_pingresp, refused
from statestore_client.mqtt.messaging import MOST_WAITING, RECEIVE_MAXIMUM, ClientSession, Messaging, PublishCall
from statestore_client.mqtt.packets import (
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
    ReasonCode,
    encode,
)
from statestore_client.mqtt.packets.types import DISCONNECT_CODES
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import Closed, Event, IncomingMessage
from statestore_client.wire.protocol import MAX_PACKET_SIZE, METRIC_CATEGORY, PERSISTED


def connect_user_properties(settings: ConnectionSettings) -> tuple[tuple[str, str], ...]:
    """The user properties of CONNECT, in the order of the official SDKs (state store facts, 1.1)."""
    category = settings.metric_category
    named = () if category is None else ((METRIC_CATEGORY, category),)
    return (*named, PERSISTED) if settings.persist_session else named


class Due(Enum):
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

    def check(self, now: float) -> Due:
        """PING only once for each silence; END when no answer came."""
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return Due.NOTHING
        if self.pinged_at is not None:
            return Due.END
        self.pinged_at = now
        return Due.PING


_PINGREQ: Final = encode(Pingreq())


class _State(Enum):
    NEW = "new"
    WAITING = "waiting"
    OPEN = "open"
    ENDED = "ended"


class ClientConnection:
    """See the module. Times are monotonic seconds.

    ``publish``, ``subscribe`` and ``acknowledge`` are :class:`~statestore_client.mqtt.messaging.Messaging`'s.
    """

    __slots__ = (
        "_authentication",
        "_clean_start",
        "_connack_deadline",
        "_decoder",
        "_handlers",
        "_keep_alive",
        "_maximum_packet_size",
        "_messaging",
        "_session",
        "_state",
        "acknowledge",
        "client_id",
        "outbox",
        "publish",
        "room",
        "settings",
        "subscribe",
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
        self._maximum_packet_size = maximum_packet_size
        self._authentication = Authentication(authenticator)
        self._state = _State.NEW
        self._clean_start = True
        self._connack_deadline = 0.0
        self._decoder = MessageDecoder(version=MQTT_5_0, max_packet_size=maximum_packet_size)
        #: Where the driver may receive the next bytes, if they are to stay there: then it calls :meth:`received`.
        self.room: Callable[[], memoryview | None] = self._decoder.room
        self._handlers: dict[type[Packet | IncomingMessage], Callable[[Any], None]] = {}
        self._keep_alive = KeepAlive(settings.keep_alive)
        #: Whole packets, large payloads apart, that wait to be written; the driver empties it.
        self.outbox: list[bytes] = []
        self._messaging = messaging = Messaging(session, self.outbox)
        self.publish: PublishCall = messaging.publish
        self.subscribe: Callable[[int, Sequence[str]], None] = messaging.subscribe
        self.acknowledge: Callable[[int], None] = messaging.acknowledge

    @property
    def has_ended(self) -> bool:
        """Whether ``Closed`` was reported: nothing more comes in or goes out."""
        return self._state is _State.ENDED

    @property
    def has_events(self) -> bool:
        """Whether :meth:`take_events` would return some. Calls can cause events, too."""
        return bool(self._messaging.events)

    @property
    def url(self) -> str:
        """Where the broker is, for messages."""
        return self.settings.url

    @property
    def heard_at(self) -> float:
        """When the last byte came, or else when connecting began."""
        return self._keep_alive.last_received

    # -- calls ---------------------------------------------------------------------------------------------------------

    def connect(self, now: float, *, clean_start: bool, password: str | None) -> None:
        """Queue CONNECT, which must be answered within the settings' ``connect_timeout``."""
        settings = self.settings
        self._state = _State.WAITING
        self._handlers = {Connack: self._on_connack, Disconnect: self._on_disconnect, Auth: self._on_auth}
        self._connack_deadline = now + settings.connect_timeout
        self._keep_alive.begin(now)
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
        if self._state is not _State.ENDED:
            self._state = _State.ENDED
            self._handlers.clear()
            self._messaging.is_open = False
            self._messaging.events.append(why)

    # -- what happens --------------------------------------------------------------------------------------------------

    def heard(self, now: float) -> None:
        """Bytes came that are not for here yet: a part of a WebSocket's frame."""
        self._keep_alive.heard(now)

    def receive(self, data: bytes, now: float) -> None:
        """Bytes from the broker, in any portions."""
        self._keep_alive.heard(now)
        try:
            packets = self._decoder.feed(data)
        except PacketError as error:
            self._handle(self._decoder.take(), error)
        else:
            self._handle(packets)

    def received(self, count: int, now: float) -> None:
        """So many bytes from the broker, in :attr:`room`."""
        self._keep_alive.heard(now)
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

    def take_events(self) -> list[Event]:
        """What happened since the last call, in order."""
        messaging = self._messaging
        events, messaging.events = messaging.events, []
        return events

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do."""
        if self._state is _State.WAITING:
            return self._connack_deadline
        return self._keep_alive.deadline() if self._state is _State.OPEN else None

    def written(self, now: float) -> None:
        """The driver wrote something: keep-alive counts from here."""
        self._keep_alive.last_sent = now

    def receive_eof(self) -> None:
        """The broker closed the stream."""
        self.end(hung_up(self.settings, answered=self._state is not _State.WAITING))

    def tick(self, now: float) -> None:
        """Time has passed: give up on CONNACK, send PINGREQ, notice a dead link."""
        if self._state is _State.WAITING and now >= self._connack_deadline:
            self.end(no_connack(self.settings))
        elif self._state is _State.OPEN:
            due = self._keep_alive.check(now)
            if due is Due.PING:
                self.outbox.append(_PINGREQ)
            elif due is Due.END:
                self.end(no_pingresp(self.settings, now - self._keep_alive.last_received))

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
        self._handlers |= {Pingresp: self._on_pingresp, **self._messaging.handlers}
        if properties.server_keep_alive is not None:
            self._keep_alive.interval_s = float(properties.server_keep_alive)
        if properties.assigned_client_id is not None:
            self.client_id = properties.assigned_client_id
        self._messaging.open(session_present, properties)

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

    # -- the broker's mistakes -----------------------------------------------------------------------------------------

    def _violated(self, text: str) -> None:
        self._refuse(ReasonCode.PROTOCOL_ERROR, RemoteProtocolError(text))

    def _refuse(self, reason_code: int, error: StateStoreError) -> None:
        """The broker broke the protocol: tell it and end. Nothing it says can be relied upon from here."""
        why = no_mqtt(self.settings, error, answered=self._state is not _State.WAITING)
        self._leave(reason_code, why.error)

    def _leave(self, reason_code: int, error: StateStoreError) -> None:
        if self._state is _State.OPEN:
            # Some codes of the decoder belong to other packets: 0x84 is what a server says to a CONNECT.
            code = reason_code if reason_code in DISCONNECT_CODES else ReasonCode.PROTOCOL_ERROR
            self.outbox.append(encode(Disconnect(code)))
        self.end(Closed(error))

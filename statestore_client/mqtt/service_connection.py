"""The native driver for a service that hosts itself on a broker: whole PUBLISH packets in both directions.

A client's requests are all alike, and its answers have little of interest beside the payload; a service needs the
response topic of each request, and answers each on another topic. Its session outlives the process: what the broker has
for it waits there, so that a DISCONNECT does not end it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, cast

from statestore_client.errors import ConnectionLostError
from statestore_client.mqtt.client_connection import ClientConnection, flooded
from statestore_client.mqtt.native_aio import NativeAioConnector, NativeAioDriver
from statestore_client.mqtt.packets import MQTT_5_0, Disconnect, PacketDecoder, Publish, ReasonCode, encode
from statestore_client.mqtt.packets.publish import encode_message
from statestore_client.wire.messages import Closed, Published
from statestore_client.wire.protocol import MAX_PACKET_SIZE, QOS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from statestore_client.mqtt.authentication import Authenticator
    from statestore_client.mqtt.client_connection import ClientSession
    from statestore_client.mqtt.dialing import AioDialer
    from statestore_client.mqtt.driver import AioDriver
    from statestore_client.settings import ConnectionSettings
    from statestore_client.wire.messages import Event

_FLAGS: Final = QOS << 1
_DUP: Final = 8


class ServiceConnection(ClientConnection):
    """Its events have :class:`.Publish` in place of ``IncomingMessage``. QoS 2 was not subscribed to."""

    __slots__ = ()

    def __init__(
        self,
        settings: ConnectionSettings,
        client_id: str,
        *,
        session: ClientSession,
        maximum_packet_size: int = MAX_PACKET_SIZE,
        authenticator: Authenticator | None = None,
    ) -> None:
        super().__init__(
            settings,
            client_id,
            session=session,
            maximum_packet_size=maximum_packet_size,
            authenticator=authenticator,
        )
        # In place of a client's decoder, which has IncomingMessage for most PUBLISHes; nothing else differs.
        self._decoder = PacketDecoder(  # type: ignore[assignment]
            version=MQTT_5_0, max_packet_size=maximum_packet_size, forgiven=self._forgiven
        )
        self.room = _nowhere

    def publish_packet(self, delivery_id: int, message: Publish, *, again: bool = False) -> None:
        """Queue a PUBLISH; see :meth:`ClientConnection.publish`."""
        if not self.is_open:
            return
        session, flags = self._session, _FLAGS
        packet_id = session.unacknowledged.pop(delivery_id, None) if again else None
        if packet_id is None:
            if session.unacknowledged and not again:
                session.drop_unacknowledged()
            packet_id = session.new_id()
            session.in_flight[packet_id] = delivery_id
        else:
            flags |= _DUP
        frame = encode_message(
            message.topic, message.payload, message.properties, MQTT_5_0, flags, packet_id, message.block
        )
        if len(frame) > self._maximum_size:
            del session.in_flight[packet_id]
            self.events.append(Published(delivery_id, ReasonCode.PACKET_TOO_LARGE))
        else:
            self.outbox.append(frame)

    def disconnect(self) -> None:
        """Queue a DISCONNECT that leaves the session with the broker."""
        if self.is_open:
            self.outbox.append(encode(Disconnect()))
        self.end(Closed(ConnectionLostError("the connection was closed by this service")))

    def _on_publish(self, packet: Publish) -> None:
        if packet.qos > QOS or packet.properties.topic_alias is not None:
            super()._on_publish(packet)
            return
        if packet.packet_id:
            inbound = self._inbound
            inbound.used += 1
            if inbound.used > inbound.window:
                raise flooded(inbound.window)
        self.events.append(cast("Event", packet))  # who made the connector expects it


class ServiceDriver(NativeAioDriver):
    """One connection of a :class:`ServiceConnector`."""

    def __init__(
        self,
        connector: ServiceConnector,
        dialer: AioDialer,
        *,
        clean_start: bool,
        new_round: bool,
        on_events: Callable[[AioDriver, Sequence[Event]], None],
    ) -> None:
        super().__init__(connector, dialer, clean_start=clean_start, new_round=new_round, on_events=on_events)
        self.publish_packet: PublishPacket = connector.latest.publish_packet


class PublishPacket(Protocol):
    """See :meth:`ServiceConnection.publish_packet`."""

    def __call__(self, delivery_id: int, message: Publish, *, again: bool = False) -> None: ...


class ServiceConnector(NativeAioConnector):
    """Makes the connections of one service, one after the other."""

    #: The one that was made last.
    latest: ServiceConnection

    def __init__(self, settings: ConnectionSettings, *, client_id: str, maximum_packet_size: int) -> None:
        """``maximum_packet_size``: bytes that the service takes from the broker at most."""
        super().__init__(settings, client_id=client_id)
        self._maximum_packet_size = maximum_packet_size

    def new_connection(self) -> ServiceConnection:
        self.latest = ServiceConnection(
            self.settings,
            self._client_id,
            session=self._session,
            maximum_packet_size=self._maximum_packet_size,
            authenticator=self.token,
        )
        return self.latest

    def open(
        self, *, clean_start: bool, new_round: bool = True, on_events: Callable[[AioDriver, Sequence[Event]], None]
    ) -> ServiceDriver:
        return ServiceDriver(self, self._dialer, clean_start=clean_start, new_round=new_round, on_events=on_events)


def _nowhere() -> None:
    """No large payload is received where it stays: the decoder is one of whole packets."""

"""One connection to look at a broker with: any packet goes out, and what comes back is kept whole.

For those who ask what a broker does, packet by packet. Clients have :mod:`~statestore_client.mqtt.client_connection`.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar

from statestore_client.errors import ConnectionLostError
from statestore_client.mqtt.client_connection import ClientConnection
from statestore_client.mqtt.native import NativeSyncConnector
from statestore_client.mqtt.packets import (
    MQTT_5_0,
    Connack,
    ConnackProperties,
    Packet,
    PacketDecoder,
    Puback,
    Publish,
    PublishProperties,
    Suback,
    Subscribe,
    Subscription,
    encode,
)
from statestore_client.wire.messages import Closed, Connected
from statestore_client.wire.protocol import QOS

if TYPE_CHECKING:
    from statestore_client.errors import PacketError
    from statestore_client.mqtt.driver import SyncDriver
    from statestore_client.settings import ConnectionSettings
    from statestore_client.wire.messages import Event, IncomingMessage

#: As in a CONNACK of MQTT 3.1.1, which has no properties.
_OLD_CONNACK: Final = b"\x20\x02"

P = TypeVar("P", bound=Packet)


def happenings(driver: SyncDriver, deadline: float, until: Callable[[], bool] = lambda: False) -> Iterator[Event]:
    """What happens on a connection until then, or ``until``. Raises what ended it."""
    with selectors.DefaultSelector() as selector:
        while True:
            driver.flush()
            events = driver.poll()
            for event in events:
                if isinstance(event, Closed):
                    raise event.error
                yield event
            now, fileno = time.monotonic(), driver.fileno()
            if now >= deadline or until():
                return
            if events or fileno is None:
                continue
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if driver.wants_write else 0)
            selector.register(fileno, wanted)
            selector.select(max(0.0, min(deadline, driver.next_deadline()) - now))
            selector.unregister(fileno)


class _Probe(ClientConnection):
    """Keeps the packets that other clients have no use for."""

    __slots__ = ("connack", "is_older", "packets")

    def __init__(self, settings: ConnectionSettings, client_id: str) -> None:
        super().__init__(settings, client_id)
        # In place of a client's decoder, which has IncomingMessage for most PUBLISHes; nothing else differs.
        self._decoder = PacketDecoder(  # type: ignore[assignment]
            version=MQTT_5_0, max_packet_size=1 << 20, forgiven=self._forgiven
        )
        self.room = _nowhere
        self.packets: list[Packet] = []
        self.connack: ConnackProperties = ConnackProperties()
        #: Whether it answers as MQTT 3.1.1 does.
        self.is_older: bool = False

    @property
    def mistakes(self) -> str:
        """The first of the broker's mistakes against MQTT 5."""
        return self._forgiven.first

    def receive(self, data: bytes, now: float) -> None:
        if not self.is_open and data.startswith(_OLD_CONNACK):
            self.is_older = True
        super().receive(data, now)

    def _handle(self, packets: list[Packet | IncomingMessage], broken: PacketError | None = None) -> None:
        known: list[Packet | IncomingMessage] = []
        for packet in packets:
            if isinstance(packet, Connack):
                self.connack = packet.properties
            if isinstance(packet, Publish | Puback | Suback):
                self.packets.append(packet)
            else:
                known.append(packet)
        super()._handle(known, broken)


def _nowhere() -> None:
    """Large messages have no place of their own here."""


class _Connector(NativeSyncConnector):
    """Makes one connection."""

    def __init__(self, settings: ConnectionSettings, client_id: str) -> None:
        super().__init__(settings, client_id=client_id)
        self.probe = _Probe(settings, client_id)

    def new_connection(self) -> ClientConnection:
        return self.probe


class BrokerProbe:
    """See the module. ``patience`` is how long an answer may take, in seconds."""

    def __init__(self, settings: ConnectionSettings, *, client_id: str, patience: float) -> None:
        self._settings = settings
        self._patience = patience
        self._connector = _Connector(settings, client_id)
        self._probe = self._connector.probe
        self._driver = self._connector.open(clean_start=True)
        self._ids = count(1)
        self._known = 0  # packets that were looked at

    @property
    def connack(self) -> ConnackProperties:
        """What the broker says of itself."""
        return self._probe.connack

    @property
    def mistakes(self) -> str:
        """The first of its mistakes against MQTT 5 that harm nobody."""
        return self._probe.mistakes

    @property
    def is_older(self) -> bool:
        """Whether it answers as MQTT 3.1.1 does."""
        return self._probe.is_older

    def connect(self) -> None:
        """Raises TransportError if the broker cannot be reached, or refuses."""
        try:
            self._driver.connect()
            timeout = self._settings.connect_timeout
            for event in happenings(self._driver, time.monotonic() + timeout):
                if isinstance(event, Connected):
                    return
        finally:
            self._connector.close()  # what else was dialled
        raise ConnectionLostError(f"not connected to {self._settings.url} within {timeout:g} s")

    def close(self) -> None:
        """The broker keeps nothing of the connection."""
        self._driver.disconnect()
        self._driver.abort()

    def subscribe(self, topic_filter: str) -> int | None:
        """The reason code of its SUBACK, None without one."""
        packet_id = next(self._ids)
        self._send(Subscribe(packet_id, (Subscription(topic_filter, QOS),)))
        answer = self._await(Suback, lambda packet: packet.packet_id == packet_id)
        return None if answer is None else answer.reason_codes[0]

    def publish(
        self, topic: str, properties: PublishProperties, *, payload: bytes = b"check", retain: bool = False
    ) -> int | None:
        """The reason code of its PUBACK, None without one."""
        packet_id = next(self._ids)
        self._send(Publish(topic, payload, QOS, retain, packet_id=packet_id, properties=properties))
        answer = self._await(Puback, lambda packet: packet.packet_id == packet_id)
        return None if answer is None else answer.reason_code

    def message(self, topic: str) -> Publish | None:
        """The next message of this topic; None if none comes."""
        got = self._await(Publish, lambda packet: packet.topic == topic)
        if got is not None and got.packet_id:
            self._send(Puback(got.packet_id))
        return got

    def _send(self, packet: Packet) -> None:
        self._probe.outbox.append(encode(packet))

    def _await(self, kind: type[P], is_it: Callable[[P], bool]) -> P | None:
        """The first packet of this kind that is the one; None if none comes in time."""
        packets = self._probe.packets
        deadline = time.monotonic() + self._patience
        while True:
            for packet in packets:
                if isinstance(packet, kind) and is_it(packet):
                    packets.remove(packet)
                    return packet
            if time.monotonic() >= deadline:
                return None
            self._known = len(packets)
            for _ in happenings(self._driver, deadline, until=self._has_news):
                pass  # what the connection itself tells

    def _has_news(self) -> bool:
        return len(self._probe.packets) > self._known

"""The stub that notifies: it answers requests as :class:`stub.Echo` does, and pushes when it is told to."""

from __future__ import annotations

from stub import Echo

from statestore_client.mqtt.packets import Connack, Connect, Packet, Puback, Publish, PublishProperties, encode
from statestore_client.wire.commands import KeyNotify, Set, decode_command
from statestore_client.wire.protocol import Dialect, notification_topic
from statestore_client.wire.replies import Notification, Operation, encode_notification

__all__ = ["GO_KEY", "Pusher"]

#: A SET of this key to a number pushes so many notifications, over the observed keys in turn.
GO_KEY = b"bench/go"
#: More does not make it faster: what lies unread in the socket waits for the client.
_MOST_UNACKNOWLEDGED = 2000
_ID = b"\x7a\x7a"
_TIME = b"001700000000000"


class Pusher(Echo):
    """Keeps as many QoS 1 messages unacknowledged as the client's Receive Maximum allows (MQTT 5.0, 4.9)."""

    def __init__(self) -> None:
        self._client_id = ""
        self._window = _MOST_UNACKNOWLEDGED
        self._unacknowledged = 0
        self._left = 0
        self._version = 0
        self._parts: list[tuple[bytes, bytes, bytes]] = []  # per key: before the id, up to the version, after it

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._left:
            self._push()

    def answers(self, packet: Packet) -> tuple[Packet, ...]:
        if isinstance(packet, Puback):
            self._unacknowledged -= 1
            return ()
        if isinstance(packet, Connect):
            self._client_id = packet.client_id
            self._window = min(packet.properties.receive_maximum or _MOST_UNACKNOWLEDGED, _MOST_UNACKNOWLEDGED)
            return (Connack(),)
        if isinstance(packet, Publish):
            self._unacknowledged += 1  # the reply
            self._note(packet.payload)
        return super().answers(packet)

    def _note(self, payload: bytes) -> None:
        match decode_command(payload, Dialect.SERVICE):
            case KeyNotify(key, stop=False):
                self._parts.append(self._packet_for(key))
            case Set(key, value) if key == GO_KEY:
                self._left = int(value)

    def _packet_for(self, key: bytes) -> tuple[bytes, bytes, bytes]:
        payload = encode_notification(Notification(Operation.SET, b"v" * 100))
        properties = PublishProperties(user_properties=(("__ts", f"{_TIME.decode()}:00000:stub"),))
        topic = notification_topic(self._client_id, key)
        packet = encode(Publish(topic, payload, 1, packet_id=int.from_bytes(_ID, "big"), properties=properties))
        before, rest = packet.split(_ID, 1)
        middle, end = rest.split(_TIME)
        return before, middle, end

    def _push(self) -> None:
        count = min(self._left, self._window - self._unacknowledged)
        out: list[bytes] = []
        for _ in range(count):
            self._version += 1
            self._packet_id = packet_id = self._packet_id % 65_535 + 1
            before, middle, end = self._parts[self._version % len(self._parts)]
            version = b"%015d" % (int(_TIME) + self._version)  # each later than the one before
            out += (before, packet_id.to_bytes(2, "big"), middle, version, end)
        self._left -= count
        self._unacknowledged += count
        if out:
            self._transport.write(b"".join(out))

"""Behaviours of a broker, seen on the wire: each is a function that talks to a port and says what it saw.

Every byte is written by hand from MQTT 5.0 and 3.1.1, so the observations are those of any client.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final, Self, TypeAlias

__all__ = ["BEHAVIOURS", "Behaviour"]

#: From a port to what was seen there.
Behaviour: TypeAlias = Callable[[int], str]

_WAIT_S: Final = 5.0
_NAMES: Final = (*[""] * 2, "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "", "SUBACK", *[""] * 6)
_PING: Final = bytes.fromhex("C0 00")


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def _packet(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    assert len(body) < 128
    return bytes((first, len(body))) + body


class _Client:
    """A connection that knows how to cut a stream into packets, and nothing else."""

    def __init__(self, port: int, name: str, *, flags: int = 2, properties: str = "", version: int = 5) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=_WAIT_S)
        given = bytes.fromhex(properties)
        head = _text("MQTT") + bytes((version, flags, 0, 30)) + (bytes((len(given),)) + given if version == 5 else b"")
        self.send(_packet(0x10, head, _text(name)))
        self.connack = self.next()

    def send(self, *packets: bytes) -> None:
        self.sock.sendall(b"".join(packets))

    def next(self) -> bytes:
        """The next packet, empty at the end of the stream."""
        head = self._take(2)
        return head + self._take(head[1]) if head else b""

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                return b""
            data += more
        return data

    def until_pong(self) -> list[bytes]:
        """What comes before the answer to a PINGREQ, or before the end of the stream."""
        self.send(_PING)
        found: list[bytes] = []
        try:
            while (packet := self.next()) and packet[0] != 0xD0:
                found.append(packet)
        except ConnectionResetError:
            found.append(b"")
        return found

    def end(self) -> str:
        """The last words of the broker; *nothing* if it goes on and answers a PINGREQ."""
        try:
            packet = self.next()
        except ConnectionResetError:
            packet = b""
        if packet[:1] == b"\xe0":
            return f"DISCONNECT {packet[2]:#04x}"
        return "nothing" if packet[:1] == b"\xd0" else _name(packet) or "a close"

    def subscribe(self, topic_filter: str, options: int = 1, properties: str = "") -> bytes:
        given = bytes.fromhex(properties)
        self.send(_packet(0x82, b"\0\1", bytes((len(given),)), given, _text(topic_filter), bytes((options,))))
        return self.next()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


def _publish(topic: str, qos: int = 0, *, payload: bytes = b"x", packet_id: int = 9, flags: int = 0) -> bytes:
    number = packet_id.to_bytes(2, "big") if qos else b""
    return _packet(0x30 | qos << 1 | flags, _text(topic), number, b"\0", payload)


def _name(packet: bytes) -> str:
    return _NAMES[packet[0] >> 4] if packet else ""


def _names(packets: list[bytes]) -> str:
    return ", ".join(map(_name, packets))


# -- the behaviours ----------------------------------------------------------------------------------------------------


def _welcome(port: int) -> str:
    """CONNACK of MQTT 5.0 to a client that asks for nothing."""
    with _Client(port, "welcome") as client:
        return client.connack[:5].hex(" ")


def _suback_first(port: int) -> str:
    """SUBACK and then the retained messages."""
    with _Client(port, "first") as client:
        client.send(_publish("two/first", flags=1))
        client.send(_packet(0x82, b"\0\1\0", _text("two/first"), b"\0"))
        found = _names(client.until_pong())
        client.send(_publish("two/first", flags=1, payload=b""))
        return found


def _puback_first(port: int) -> str:
    """PUBACK and then the copy for the publisher itself."""
    with _Client(port, "own") as client:
        client.subscribe("two/own")
        client.send(_publish("two/own", 1))
        return _names(client.until_pong())


def _nobody(port: int) -> str:
    """A QoS 1 message that nobody gets, and one of QoS 2."""
    with _Client(port, "nobody") as client:
        client.send(_publish("two/nobody", 1), _publish("two/nobody", 2))
        return " / ".join(packet.hex(" ") for packet in client.until_pong())


def _overlapping(port: int) -> str:
    """Two filters of one client match: one copy at the highest QoS (MQTT-3.3.5-1), or one for each."""
    with _Client(port, "overlap") as client:
        client.subscribe("two/overlap/#", 0)
        client.subscribe("two/overlap/+", 1)
        client.send(_publish("two/overlap/a", 1))
        copies = [packet for packet in client.until_pong() if packet[0] >> 4 == 3]
        return f"{len(copies)} at QoS {[packet[0] >> 1 & 3 for packet in copies]}"


def _share(port: int) -> str:
    """One copy for the group."""
    with _Client(port, "share1") as one, _Client(port, "share2") as two:
        one.subscribe("$share/g/two/share", 0)
        two.subscribe("$share/g/two/share", 0)
        one.send(_publish("two/share"))
        return str(len(one.until_pong()) + len(two.until_pong()))


def _dollar(port: int) -> str:
    """Wildcards do not match topics that begin with a dollar (MQTT-4.7.2-1)."""
    with _Client(port, "dollar") as client:
        client.subscribe("+/dollar", 0)
        client.send(_publish("$two/dollar"), _publish("two/dollar"))
        return _names(client.until_pong())


def _resumed(port: int) -> str:
    """What was not acknowledged comes again, with its packet identifier and DUP (MQTT-4.4.0-1)."""
    with _Client(port, "resumed", flags=0, properties="11 0000003C") as client:
        client.subscribe("two/resumed")
        client.send(_publish("two/resumed", 1))
        before = next(packet for packet in client.until_pong() if packet[0] >> 4 == 3)
    with _Client(port, "resumed", flags=0, properties="11 00000000") as client:
        after = client.next()
        return f"session present {client.connack[2]}, DUP {after[0] >> 3 & 1}, same {before[1:] == after[1:]}"


def _taken_over(port: int) -> str:
    """The older connection of a client identifier ends (MQTT-3.1.4-3)."""
    with _Client(port, "twice") as old, _Client(port, "twice"):
        return old.end()


def _flood(port: int) -> str:
    """More unreleased QoS 2 messages than the receive maximum of 20 (MQTT 5.0, 3.3.4)."""
    with _Client(port, "flood") as client:
        client.send(*(_publish("two/flood", 2, packet_id=number) for number in range(1, 22)))
        for _ in range(20):
            assert _name(client.next()) == "PUBREC"
        return client.end()


def _aliased(port: int) -> str:
    """Topic aliases to a client that allows them."""
    with _Client(port, "aliased", properties="22 0005") as client:
        client.subscribe("two/aliased", 0)
        client.send(_publish("two/aliased"), _publish("two/aliased"))
        return f"{[packet[3] for packet in client.until_pong()]} bytes of topic"


def _refused(packet: str) -> Behaviour:
    def observe(port: int) -> str:
        with _Client(port, "refused") as client:
            client.send(bytes.fromhex(packet), _PING)
            return client.end()

    return observe


def _old(port: int) -> str:
    """CONNECT of MQTT 3.1."""
    with socket.create_connection(("127.0.0.1", port), timeout=_WAIT_S) as sock:
        sock.sendall(bytes.fromhex("10 0F 0006 4D5149736470 03 02 000A 0001 70"))
        return sock.recv(4).hex(" ")


BEHAVIOURS: Final[dict[str, Behaviour]] = {
    "CONNACK": _welcome,
    "CONNECT of MQTT 3.1": _old,
    "SUBACK before retained messages": _suback_first,
    "PUBACK before the own copy": _puback_first,
    "a message that nobody gets": _nobody,
    "overlapping subscriptions": _overlapping,
    "shared subscription": _share,
    "topics with a dollar": _dollar,
    "redelivery on resumption": _resumed,
    "take-over": _taken_over,
    "receive maximum exceeded": _flood,
    "topic aliases to the client": _aliased,
    "a reserved flag": _refused("C1 00"),
    "a packet of servers": _refused("D0 00"),
    "SUBSCRIBE without a filter": _refused("82 03 0001 00"),
    "a wildcard in a topic": _refused("30 04 0001 2B 00"),
    "an unknown topic alias": _refused("30 06 0000 03 23 0001"),
    "no UTF-8 in a topic": _refused("30 06 0003 EDA080 00"),
}

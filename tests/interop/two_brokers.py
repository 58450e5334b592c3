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
        if packet[:1] == b"\x50":
            return f"PUBREC {packet[4]:#04x}"
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


def _retained(port: int) -> str:
    """The last retained message of a topic; after an empty one, none. With RETAIN set."""
    with _Client(port, "retained") as client:
        client.send(*(_publish("two/retained", flags=1, payload=data) for data in (b"1", b"2")))
        client.send(_packet(0x82, b"\0\1\0", _text("two/retained"), b"\0"))
        found = [packet for packet in client.until_pong() if packet[0] >> 4 == 3]
        client.send(_publish("two/retained", flags=1, payload=b""))
        client.until_pong()
        client.send(_packet(0x82, b"\0\2\0", _text("two/retained"), b"\0"))
        return f"{[packet[-1:] for packet in found]}, RETAIN {found[0][0] & 1}, then {_names(client.until_pong())}"


def _retain_handling(port: int) -> str:
    """0: with every SUBSCRIBE; 1: with the first; 2: never."""
    with _Client(port, "handling") as client:
        client.send(_publish("two/handling", flags=1))
        seen = []
        for handling in (0, 1, 2):
            for _ in range(2):
                client.send(_packet(0x82, b"\0\1\0", _text("two/handling"), bytes((handling << 4,))))
                seen.append(str(_names(client.until_pong()).count("PUBLISH")))
            client.send(_packet(0xA2, b"\0\2\0", _text("two/handling")))
            client.until_pong()
        client.send(_publish("two/handling", flags=1, payload=b""))
        return " ".join(seen)


def _no_local(port: int) -> str:
    """A client that wants nothing of its own, and one with retain as published."""
    with _Client(port, "local") as client, _Client(port, "published") as other:
        client.subscribe("two/local", 0b100)
        other.subscribe("two/local", 0b1000)
        client.send(_publish("two/local", flags=1))
        own = len(client.until_pong())
        (packet,) = other.until_pong()
        client.send(_publish("two/local", flags=1, payload=b""))
        return f"{own} own, RETAIN {packet[0] & 1}"


def _exactly_once(port: int) -> str:
    """QoS 2, with a PUBLISH that is sent again: one copy, and PUBREC twice."""
    with _Client(port, "once") as client, _Client(port, "twin") as other:
        other.subscribe("two/once", 2)
        message = _publish("two/once", 2)
        client.send(message, bytes((message[0] | 8,)) + message[1:], bytes.fromhex("62 02 0009"))
        answers = _names(client.until_pong())
        return f"{answers} / {len(other.until_pong())} copy"


def _window(port: int) -> str:
    """A client with a receive maximum of 2 that acknowledges nothing."""
    with _Client(port, "window", properties="21 0002") as client, _Client(port, "pusher") as other:
        client.subscribe("two/window")
        other.send(*(_publish("two/window", 1, packet_id=number) for number in range(1, 6)))
        other.until_pong()
        return str(len(client.until_pong()))


def _too_large(port: int) -> str:
    """A message beyond the maximum packet size of its receiver is left out; the next one comes."""
    with _Client(port, "small", properties="27 0000001E") as client:
        client.subscribe("two/small", 0)
        client.send(_publish("two/small", payload=b"x" * 60), _publish("two/small"))
        return str([packet[-1:] + b"%d" % len(packet) for packet in client.until_pong()])


def _forwarded(port: int) -> str:
    """Content type, response topic, correlation data and two user properties: all of them, unchanged."""
    given = bytes.fromhex("01 01  03 0001 63  08 0001 72  09 0001 64  26 0001 61 0001 31  26 0001 61 0001 32")
    with _Client(port, "forwarded") as client:
        client.subscribe("two/forwarded", 0)
        client.send(_packet(0x30, _text("two/forwarded"), bytes((len(given),)), given, b"x"))
        (packet,) = client.until_pong()
        return str(sorted(packet[18:-1]) == sorted(given) and packet.index(b"\0\x011") < packet.index(b"\0\x012"))


def _identified(port: int) -> str:
    """The subscription identifier is in the message."""
    with _Client(port, "identified") as client:
        client.subscribe("two/identified", 0, "0B 07")
        client.send(_publish("two/identified"))
        (packet,) = client.until_pong()
        return packet[-4:].hex(" ")


def _will(reason: str) -> Behaviour:
    def observe(port: int) -> str:
        with _Client(port, "heir") as heir:
            heir.subscribe("two/will", 0)
            sock = socket.create_connection(("127.0.0.1", port), timeout=_WAIT_S)
            will = b"\0" + _text("two/will") + _text("gone")
            sock.sendall(_packet(0x10, _text("MQTT") + bytes.fromhex("05 06 001E 00"), _text("testator"), will))
            assert sock.recv(100)[0] == 0x20
            sock.sendall(bytes.fromhex(reason))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(100):
                pass
            sock.close()
            return _names(heir.until_pong()) or "nothing"

    return observe


def _not_subscribed(port: int) -> str:
    """UNSUBSCRIBE from a filter that is there and from one that is not."""
    with _Client(port, "unsubscribes") as client:
        client.subscribe("two/a", 0)
        client.send(_packet(0xA2, b"\0\2\0", _text("two/a"), _text("two/b")))
        return client.next().hex(" ")


def _assigned(port: int) -> str:
    """A client without a name is given one."""
    with _Client(port, "") as client:
        return f"{client.connack[3]:#04x}, property {0x12 if b'auto-' in client.connack else 0:#04x}"


def _ended(port: int) -> str:
    """Without a session expiry, the session ends with the connection."""
    for _ in range(2):
        with _Client(port, "ended", flags=0) as client:
            client.subscribe("two/ended")
            present = client.connack[2]
            client.send(bytes.fromhex("E0 00"))
            client.next()
    return f"session present {present}"


def _old(port: int) -> str:
    """CONNECT of MQTT 3.1."""
    with socket.create_connection(("127.0.0.1", port), timeout=_WAIT_S) as sock:
        sock.sendall(bytes.fromhex("10 0F 0006 4D5149736470 03 02 000A 0001 70"))
        return sock.recv(4).hex(" ")


BEHAVIOURS: Final[dict[str, Behaviour]] = {
    "CONNACK": _welcome,
    "CONNECT of MQTT 3.1": _old,
    "SUBACK before retained messages": _suback_first,
    "PUBACK, when the publisher is a subscriber too": _puback_first,
    "a message that nobody gets": _nobody,
    "overlapping subscriptions": _overlapping,
    "shared subscription": _share,
    "topics with a dollar": _dollar,
    "redelivery on resumption": _resumed,
    "take-over": _taken_over,
    "receive maximum exceeded": _flood,
    "topic aliases to the client": _aliased,
    "retained messages": _retained,
    "retain handling": _retain_handling,
    "no local and retain as published": _no_local,
    "QoS 2 with a repetition": _exactly_once,
    "receive maximum of a client": _window,
    "a message too large for its receiver": _too_large,
    "properties of a message": _forwarded,
    "subscription identifiers": _identified,
    "will after a broken link": _will(""),
    "will after DISCONNECT": _will("E0 00"),
    "will after DISCONNECT 0x04": _will("E0 01 04"),
    "UNSUBACK": _not_subscribed,
    "an assigned client identifier": _assigned,
    "a session that ends with its connection": _ended,
    "a reserved flag": _refused("C1 00"),
    "a packet of servers": _refused("D0 00"),
    "SUBSCRIBE without a filter": _refused("82 03 0001 00"),
    "a wildcard in a topic": _refused("30 04 0001 2B 00"),
    "an unknown topic alias": _refused("30 06 0000 03 23 0001"),
    "no UTF-8 in a topic": _refused("30 06 0003 EDA080 00"),
}

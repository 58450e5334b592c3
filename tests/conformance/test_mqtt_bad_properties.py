"""Properties that do not belong where they are, come twice, or have impossible values (MQTT 5.0, 2.2.2.2)."""

from __future__ import annotations

import pytest
from handmade import frame, properties, text
from handmade_peer import Peer, join
from support.broker_driver import World

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82

#: No UTF-8: a lone continuation byte, a cut sequence, an overlong slash, surrogates, a code point beyond the last one.
# -- properties that do not belong -------------------------------------------------------------------------------------

#: Every property of the standard with a value that is right, and the packets from a client that may have it.
PROPERTIES = {
    0x01: (1, {"PUBLISH", "WILL"}),
    0x02: (1, {"PUBLISH", "WILL"}),
    0x03: ("c", {"PUBLISH", "WILL"}),
    0x08: ("r", {"PUBLISH", "WILL"}),
    0x09: (b"d", {"PUBLISH", "WILL"}),
    0x0B: (1, {"SUBSCRIBE"}),
    0x11: (1, {"CONNECT", "DISCONNECT"}),
    0x12: ("i", set()),
    0x13: (1, set()),
    0x15: ("m", {"CONNECT", "AUTH"}),
    0x16: (b"d", {"CONNECT", "AUTH"}),
    0x17: (1, {"CONNECT"}),
    0x18: (1, {"WILL"}),
    0x19: (1, {"CONNECT"}),
    0x1A: ("i", set()),
    0x1C: ("s", {"DISCONNECT"}),
    0x1F: ("why", {"PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "DISCONNECT", "AUTH"}),
    0x21: (1, {"CONNECT"}),
    0x22: (1, {"CONNECT"}),
    0x23: (1, {"PUBLISH"}),
    0x24: (1, set()),
    0x25: (1, set()),
    0x26: (("k", "v"), None),  # everywhere
    0x27: (100, {"CONNECT"}),
    0x28: (1, set()),
    0x29: (1, set()),
    0x2A: (1, set()),
}
PACKETS = ["CONNECT", "WILL", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"]
PACKETS += ["SUBSCRIBE", "UNSUBSCRIBE", "DISCONNECT", "AUTH"]


def with_properties(kind: str, block: bytes) -> bytes:
    """A packet that is in order but for its properties."""
    simple = {"PUBACK": 0x40, "PUBREC": 0x50, "PUBREL": 0x62, "PUBCOMP": 0x70}
    match kind:
        case "CONNECT":
            return frame(0x10, text("MQTT"), b"\x05\x02\0\0", block, text("c"))
        case "WILL":
            return frame(0x10, text("MQTT"), b"\x05\x06\0\0\0", text("c"), block, text("w"), text(b""))
        case "PUBLISH":
            return frame(0x30, text("t"), block)
        case "SUBSCRIBE":
            return frame(0x82, b"\0\1", block, text("t"), b"\0")
        case "UNSUBSCRIBE":
            return frame(0xA2, b"\0\1", block, text("t"))
        case "DISCONNECT":
            return frame(0xE0, b"\0", block)
        case "AUTH":
            return frame(0xF0, b"\x19", block)
        case _:
            return frame(simple[kind], b"\0\1\0", block)


def answer_to(kind: str, block: bytes) -> int | None:
    """The reason code that ends the connection; None if it goes on."""
    peer = Peer(World()) if kind in ("CONNECT", "WILL") else join(World())
    peer.send(with_properties(kind, block))
    if not peer.is_closed:
        return None
    seen = peer.seen()
    return seen[-1].code if seen else 0


@pytest.mark.parametrize("kind", PACKETS)
def test_properties_of_other_packets(kind: str) -> None:
    """A property of another packet is refused with 0x82, in SUBSCRIBE and UNSUBSCRIBE with 0x81, as by mosquitto; an
    unknown identifier is refused with 0x81. (The standard has 0x81 for a property of another packet as well.)"""
    code = MALFORMED if kind in ("SUBSCRIBE", "UNSUBSCRIBE") else PROTOCOL_ERROR
    for identifier, (value, places) in PROPERTIES.items():
        if places is not None and kind not in places and (kind, identifier) != ("PUBLISH", 0x0B):
            assert answer_to(kind, properties((identifier, value))) == code, hex(identifier)
    for identifier in (0x00, 0x04, 0x2B, 0x7F):
        assert answer_to(kind, bytes([2, identifier, 0])) == (PROTOCOL_ERROR if kind == "AUTH" else MALFORMED)


@pytest.mark.parametrize("kind", PACKETS)
def test_properties_that_come_twice(kind: str) -> None:
    """A property that comes twice, other than a user property, is refused with 0x82."""
    for identifier, (value, places) in PROPERTIES.items():
        if places is None:
            # AUTH is refused for another reason: nobody asked for it.
            assert answer_to(kind, properties((identifier, value), (identifier, value))) in (None, 0, 0x82)
        elif kind in places:
            twice = properties((identifier, value), (identifier, value))
            assert answer_to(kind, twice) == PROTOCOL_ERROR, hex(identifier)


@pytest.mark.parametrize(
    ("kind", "identifier", "value", "code"),
    [
        ("CONNECT", 0x17, 2, 0x82),
        ("CONNECT", 0x19, 2, 0x82),
        ("CONNECT", 0x21, 0, 0x82),
        ("CONNECT", 0x27, 0, 0x82),
        ("WILL", 0x01, 2, 0x82),
        ("PUBLISH", 0x01, 2, 0x82),
        ("PUBLISH", 0x23, 0, 0x94),
        ("SUBSCRIBE", 0x0B, 0, 0x81),  # the standard has 0x82; the public test suites look for this one
    ],
)
def test_property_values_that_are_not_allowed(kind: str, identifier: int, value: int, code: int) -> None:
    """Flags beyond 1, and 0 as receive maximum, packet size or subscription identifier, are refused; topic alias 0 with
    0x94."""
    assert answer_to(kind, properties((identifier, value))) == code


def test_authentication_data_without_a_method() -> None:
    """Authentication data without a method is refused with 0x82 (3.1.2.11.10)."""
    assert answer_to("CONNECT", properties((0x16, b"d"))) == PROTOCOL_ERROR

"""Bytes printed in the standards: their figures and examples, section by section."""

from __future__ import annotations

import pytest

from statestore_client.mqtt.packets import (
    Auth,
    AuthProperties,
    Connack,
    Connect,
    ConnectProperties,
    Disconnect,
    DisconnectProperties,
    Packet,
    PacketDecoder,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonProperties,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    encode,
)
from statestore_client.mqtt.packets.primitives import Reader, decode_variable, encode_text, encode_variable

# Client identifier; will properties, topic and payload; user name; password.
CONNECT_PAYLOAD = "0001 63" + "{}0001 77 0001 70" + "0001 75 0002 7077"

CASES: list[tuple[str, int, str, Packet]] = [
    (
        "5.0 figure 3-6, variable header of CONNECT",
        5,
        "10 21 0004 4D515454 05 CE 000A 05 11 0000000A" + CONNECT_PAYLOAD.format("00"),
        Connect(
            "c",
            keep_alive=10,
            username="u",
            password=b"pw",
            will=Will("w", b"p", qos=1),
            properties=ConnectProperties(session_expiry=10),
        ),
    ),
    (
        "3.1.1 figure 3.6, variable header of CONNECT",
        4,
        "10 1A 0004 4D515454 04 CE 000A" + CONNECT_PAYLOAD.format(""),
        Connect("c", version=4, keep_alive=10, username="u", password=b"pw", will=Will("w", b"p", qos=1)),
    ),
    ("3.1.1 figure 3.8, CONNACK", 4, "20 02 01 00", Connack(session_present=True)),
    ("3.1.1 table 3.1, not authorized", 4, "20 02 00 05", Connack(reason_code=0x87)),
    ("5.0 figure 3-9, variable header of PUBLISH", 5, "32 08 0003 612F62 000A 00", Publish("a/b", qos=1, packet_id=10)),
    ("3.1.1 figure 3.11, variable header of PUBLISH", 4, "32 07 0003 612F62 000A", Publish("a/b", qos=1, packet_id=10)),
    ("3.1.1 3.4, PUBACK", 4, "40 02 000A", Puback(10)),
    ("3.1.1 3.5, PUBREC", 4, "50 02 000A", Pubrec(10)),
    ("3.1.1 3.6, PUBREL", 4, "62 02 000A", Pubrel(10)),
    ("3.1.1 3.7, PUBCOMP", 4, "70 02 000A", Pubcomp(10)),
    (
        "5.0 figures 3-19 and 3-21, SUBSCRIBE",
        5,
        "82 0F 000A 00 0003 612F62 01 0003 632F64 02",
        Subscribe(10, (Subscription("a/b", 1), Subscription("c/d", 2))),
    ),
    (
        "3.1.1 figures 3.21 and 3.23, SUBSCRIBE",
        4,
        "82 0E 000A 0003 612F62 01 0003 632F64 02",
        Subscribe(10, (Subscription("a/b", 1), Subscription("c/d", 2))),
    ),
    ("3.1.1 figure 3.27, payload of SUBACK", 4, "90 05 000A 00 02 80", Suback(10, (0, 2, 0x80))),
    (
        "3.1.1 figure 3.30, payload of UNSUBSCRIBE",
        4,
        "A2 0C 000A 0003 612F62 0003 632F64",
        Unsubscribe(10, ("a/b", "c/d")),
    ),
    ("5.0 3.10.3, UNSUBSCRIBE", 5, "A2 0D 000A 00 0003 612F62 0003 632F64", Unsubscribe(10, ("a/b", "c/d"))),
    ("3.1.1 3.11, UNSUBACK", 4, "B0 02 000A", Unsuback(10)),
    ("3.12, PINGREQ", 5, "C0 00", Pingreq()),
    ("3.13, PINGRESP", 4, "D0 00", Pingresp()),
    ("3.14, DISCONNECT", 4, "E0 00", Disconnect()),
    (
        "5.0 figure 3-24, variable header of DISCONNECT",
        5,
        "E0 07 00 05 11 00000000",
        Disconnect(properties=DisconnectProperties(session_expiry=0)),
    ),
    # The shortest forms: 5.0, 3.4.2.1, 3.14.2.1 and 3.15.2.1.
    ("PUBACK of two bytes", 5, "40 02 000A", Puback(10)),
    ("PUBACK with a code", 5, "40 03 000A 10", Puback(10, 0x10)),
    ("PUBACK with a reason", 5, "40 08 000A 97 04 1F 0001 78", Puback(10, 0x97, ReasonProperties("x"))),
    ("PUBACK with a pair", 5, "40 0A 000A 00 06 26 0001 61 0000", Puback(10, 0, ReasonProperties(None, (("a", ""),)))),
    ("CONNACK of a session", 5, "20 03 01 00 00", Connack(session_present=True)),
    ("DISCONNECT of no bytes", 5, "E0 00", Disconnect()),
    ("DISCONNECT with a code", 5, "E0 01 8E", Disconnect(0x8E)),
    ("AUTH of no bytes", 5, "F0 00", Auth()),
    ("AUTH with a method", 5, "F0 0A 18 08 15 0001 6D 16 0001 64", Auth(0x18, AuthProperties("m", b"d"))),
]


@pytest.mark.parametrize(("version", "text", "packet"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_figures(version: int, text: str, packet: Packet) -> None:
    """The bytes in the standard decode to what its text says, and are what we write."""
    data = bytes.fromhex(text)
    assert PacketDecoder(version=version, max_packet_size=1000).feed(data) == [packet]
    assert encode(packet, version) == data


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "00"),
        (127, "7F"),
        (128, "80 01"),
        (16_383, "FF 7F"),
        (16_384, "80 80 01"),
        (2_097_151, "FF FF 7F"),
        (2_097_152, "80 80 80 01"),
        (268_435_455, "FF FF FF 7F"),
    ],
)
def test_variable_byte_integers(value: int, text: str) -> None:
    """The edges of table 1-1 (MQTT 5.0, 1.5.5) have the bytes that it gives them."""
    data = bytes.fromhex(text)
    assert encode_variable(value) == data
    assert decode_variable(data, 0, len(data)) == (value, len(data))


def test_utf_8_string() -> None:
    """The string of figure 1-2 (MQTT 5.0, 1.5.4), "A" and U+2A6D4, has the bytes shown there."""
    data = bytes.fromhex("0005 41 F0AA9B94")
    assert encode_text("A\U0002a6d4") == data
    assert Reader(data, 0, len(data)).text() == "A\U0002a6d4"


def test_byte_order_mark_is_kept() -> None:
    """EF BB BF is U+FEFF and is neither skipped nor stripped. [MQTT-1.5.4-3]"""
    assert Reader(bytes.fromhex("0003 EFBBBF"), 0, 5).text() == "\ufeff"

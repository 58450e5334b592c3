"""The codec of these tests against the examples that the standards print."""

from __future__ import annotations

import pytest
from handmade import Seen, Will, connect, number, properties, publish, read, split, subscribe, text, unsubscribe


@pytest.mark.parametrize(
    ("value", "written"),
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
def test_variable_byte_integers(value: int, written: str) -> None:
    """Variable byte integers at the borders of table 1-1 of MQTT 5.0 have its bytes."""
    assert number(value) == bytes.fromhex(written)


def test_a_string() -> None:
    """The string of an A and U+2A6D4 has the bytes of the example in MQTT 5.0, 1.5.4."""
    assert text("A\U0002a6d4") == bytes.fromhex("00 05 41 F0 AA 9B 94")


def test_the_variable_header_of_connect() -> None:
    """CONNECT's variable header has the bytes of the examples in MQTT 5.0, 3.1.2.12, and 3.1.1, 3.1.2."""
    will = Will("w", b"m", 1)
    options = {"keep_alive": 10, "will": will, "username": "u", "password": b"p"}
    newer = connect("", 5, props=[(0x11, 10)], **options)
    assert newer[2:18] == bytes.fromhex("00 04 4D 51 54 54 05 CE 00 0A 05 11 00 00 00 0A")
    assert connect("", 4, **options)[2:12] == bytes.fromhex("00 04 4D 51 54 54 04 CE 00 0A")


def test_subscribe_and_unsubscribe() -> None:
    """SUBSCRIBE and UNSUBSCRIBE have the bytes of the examples in 3.8.2, 3.8.3 and 3.10.3."""
    payload = bytes.fromhex("00 03 61 2F 62 01 00 03 63 2F 64 02")
    assert subscribe(10, ("a/b", 1), ("c/d", 2)) == bytes.fromhex("82 0F 00 0A 00") + payload
    assert subscribe(10, ("a/b", 1), ("c/d", 2), version=4) == bytes.fromhex("82 0E 00 0A") + payload
    assert unsubscribe(10, "a/b", "c/d", version=4) == bytes.fromhex("A2 0C 00 0A 00 03 61 2F 62 00 03 63 2F 64")


def test_publish() -> None:
    """PUBLISH has the bytes of the variable header in 3.3.2."""
    assert publish("a/b", b"", 1, 10) == bytes.fromhex("32 08 00 03 61 2F 62 00 0A 00")
    assert publish("a/b", b"", 1, 10, 4) == bytes.fromhex("32 07 00 03 61 2F 62 00 0A")


def test_properties() -> None:
    """Each kind of property value has the bytes that 2.2.2.2 describes."""
    written = properties((0x01, 1), (0x23, 2), (0x02, 3), (0x0B, 300), (0x03, "c"), (0x09, b"\xff"), (0x26, ("a", "b")))
    block = "01 01 23 00 02 02 00 00 00 03 0B AC 02 03 00 01 63 09 00 01 FF 26 00 01 61 00 01 62"
    assert written == bytes([len(bytes.fromhex(block))]) + bytes.fromhex(block)


def test_reading() -> None:
    """A stream is cut into packets, and each is read as its bytes say."""
    stream = bytes.fromhex("20 08 01 00 05 11 00 00 00 0A  32 09 00 03 61 2F 62 00 0A 00 78  E0 01 8E")
    connack, message, goodbye = split(stream)
    assert read(connack, 5) == Seen("CONNACK", 1, codes=(0,), props=((0x11, 10),), size=10)
    assert read(message, 5) == Seen("PUBLISH", 2, 10, topic="a/b", payload=b"x", size=11)
    assert read(goodbye, 5) == Seen("DISCONNECT", codes=(0x8E,), size=3)

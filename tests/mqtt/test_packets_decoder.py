"""The stream decoder: versions, limits, chunks, and what remains after an error."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import (
    Connect,
    Disconnect,
    PacketDecoder,
    Pingreq,
    Puback,
    Publish,
    PublishProperties,
)

CONNECT_5_0 = bytes.fromhex("100E 0004 4D515454 05 02 003C 00 0001 63")
CONNECT_3_1_1 = bytes.fromhex("100D 0004 4D515454 04 02 003C 0001 63")
PINGREQ = bytes.fromhex("C000")


def test_the_first_packet_tells_the_version() -> None:
    """A server learns the version from the CONNECT, and reads what follows accordingly."""
    for data, version in ((CONNECT_5_0, 5), (CONNECT_3_1_1, 4)):
        decoder = PacketDecoder(version=None, max_packet_size=100)
        assert decoder.version is None
        publish = bytes.fromhex("3004 000161 00")
        packets = decoder.feed(data + publish)
        assert packets[0] == Connect("c", version=version, keep_alive=60)
        assert packets[1] == Publish("a", b"" if version == 5 else b"\0")
        assert decoder.version == version


@pytest.mark.parametrize(
    ("packet", "block"),
    [
        ("30 0C 0001 61 07 01 01 03 0002 632F 78", "07 01 01 03 0002 632F"),
        ("32 0E 0001 61 0001 07 03 0002 632F 01 01 78", "07 03 0002 632F 01 01"),
        ("30 06 0001 61 00 7878", None),
        ("30 0A 0001 61 05 01 01 23 0001 78", None),
    ],
    ids=["as they stand", "in another order", "none", "with a topic alias"],
)
def test_a_publish_knows_the_bytes_of_its_properties(packet: str, block: str | None) -> None:
    """A PUBLISH keeps the bytes of its properties with their length, to forward them; not if it has an alias."""
    (read,) = PacketDecoder(version=5, max_packet_size=100).feed(bytes.fromhex(packet))
    assert isinstance(read, Publish)
    assert read.block == (None if block is None else bytes.fromhex(block))


def test_a_will_knows_the_bytes_of_its_properties() -> None:
    """A will keeps the bytes of its properties without the delay, which is not one of the PUBLISH that it
    becomes."""
    will = "0C 26 0000 0000 18 00000000 01 01   0001 77   0000"
    connect = bytes.fromhex("10 20 0004 4D515454 05 06 003C 00 0001 63" + will)
    (read,) = PacketDecoder(version=None, max_packet_size=100).feed(connect)
    assert isinstance(read, Connect)
    assert read.will is not None
    assert read.will.block == bytes.fromhex("07 26 0000 0000 01 01")


def test_anything_but_connect_is_refused_at_its_first_byte() -> None:
    """A server does not wait for the rest of what cannot be a CONNECT, such as an HTTP request."""
    with pytest.raises(PacketError) as caught:
        PacketDecoder(version=None, max_packet_size=100).feed(b"G")
    assert caught.value.reason_code == 0x82


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("100E 0004 4D515454 05 03 003C 00 0001 63", 5),  # reserved flag
        ("100D 0004 4D515454 04 03 003C 0001 63", 4),
        ("100E 0004 4D515454 06 02 003C 00 0001 63", None),
    ],
)
def test_the_version_of_a_bad_connect(text: str, version: int | None) -> None:
    """The version of a CONNECT is known as soon as it was read, so that a refusal can be written in it."""
    decoder = PacketDecoder(version=None, max_packet_size=100)
    with pytest.raises(PacketError):
        decoder.feed(bytes.fromhex(text))
    assert decoder.version == version


def test_packets_before_the_bad_one_are_kept() -> None:
    """The packets before a malformed one are there to be taken, once; the error stays."""
    decoder = PacketDecoder(version=5, max_packet_size=100)
    with pytest.raises(PacketError) as caught:
        decoder.feed(PINGREQ + b"\x40\x02\x00\x07" + b"\x40\x02\x00\x00" + PINGREQ)
    assert caught.value.reason_code == 0x82
    assert caught.value.offset == 2
    assert decoder.take() == [Pingreq(), Puback(7)]
    assert decoder.take() == []
    with pytest.raises(PacketError) as again:
        decoder.feed(PINGREQ)
    assert again.value is caught.value


def test_too_large_is_said_before_the_body_comes() -> None:
    """A packet above the limit is refused when its length is known; one byte less is accepted."""
    data = bytes.fromhex("3005 0001 61 00 78")
    assert PacketDecoder(version=5, max_packet_size=7).feed(data) == [Publish("a", b"x")]
    with pytest.raises(PacketError) as caught:
        PacketDecoder(version=5, max_packet_size=6).feed(data[:2])
    assert caught.value.reason_code == 0x95


def test_buffered_counts_the_unfinished_packet() -> None:
    """Only the bytes of the unfinished packet are kept."""
    decoder = PacketDecoder(version=5, max_packet_size=100)
    assert decoder.feed(PINGREQ + b"\x40\x02\x00") == [Pingreq()]
    assert decoder.buffered == 3
    assert decoder.feed(bytearray(b"\x07")) == [Puback(7)]
    assert decoder.buffered == 0
    assert decoder.feed(b"") == []


def test_payloads_are_bytes_of_their_own() -> None:
    """A payload is a bytes object, whatever was fed, and does not change with the caller's buffer."""
    buffer = bytearray.fromhex("3005 0001 61 00 78")
    decoder = PacketDecoder(version=5, max_packet_size=100)
    (packet,) = decoder.feed(memoryview(buffer))
    buffer[-1] = 0
    assert isinstance(packet, Publish)
    assert type(packet.payload) is bytes
    assert packet.payload == b"x"


def test_limits_on_counts() -> None:
    """A packet with too many user properties or topic filters is refused."""
    user = "26 0001 61 0000"
    data = bytes.fromhex("3010 0001 61 0C" + user * 2)
    assert len(PacketDecoder(version=5, max_packet_size=100, max_user_properties=2).feed(data)) == 1
    with pytest.raises(PacketError) as caught:
        PacketDecoder(version=5, max_packet_size=100, max_user_properties=1).feed(data)
    assert caught.value.reason_code == 0x97
    filters = bytes.fromhex("820B 000A 00 0001 61 00 0001 62 00")
    with pytest.raises(PacketError) as caught:
        PacketDecoder(version=5, max_packet_size=100, max_filters=1).feed(filters)
    assert (caught.value.reason_code, caught.value.offset) == (0x97, 9)


@pytest.mark.parametrize(
    ("text", "packet"),
    [("4004 000A 10 00", Puback(10, 0x10)), ("E002 04 00", Disconnect(4)), ("E001 8C", Disconnect(0x8C))],
)
def test_forms_that_are_longer_than_needed(text: str, packet: object) -> None:
    """Empty properties at the end of a packet need not be left out, and DISCONNECT may have the code 0x8C of AUTH."""
    assert PacketDecoder(version=5, max_packet_size=100).feed(bytes.fromhex(text)) == [packet]


def test_padded_remaining_length_is_allowed_in_3_1_1() -> None:
    """MQTT 3.1.1 does not ask for the shortest remaining length."""
    assert PacketDecoder(version=4, max_packet_size=100).feed(bytes.fromhex("C08000")) == [Pingreq()]


def test_long_property_blocks() -> None:
    """A property block beyond the size limit of the fast path gives the same values."""
    value = b"v" * 5000
    user = b"\x26\x00\x01k" + len(value).to_bytes(2, "big") + value
    block = (len(user) & 127 | 128).to_bytes(1, "big") + (len(user) >> 7).to_bytes(1, "big") + user
    body = b"\x00\x01a" + block
    data = b"\x30" + (len(body) & 127 | 128).to_bytes(1, "big") + (len(body) >> 7).to_bytes(1, "big") + body
    expected = Publish("a", properties=PublishProperties(user_properties=(("k", value.decode()),)))
    assert PacketDecoder(version=5, max_packet_size=10_000).feed(data) == [expected]


def test_a_big_packet_in_small_pieces_is_not_looked_at_again() -> None:
    """Feeding a packet byte by byte runs a number of interpreter steps that does not grow with what is buffered."""
    size = 20_000
    body = b"\x00\x01a\x00" + bytes(size)
    data = b"\x30" + bytes((len(body) & 127 | 128, len(body) >> 7 & 127 | 128, len(body) >> 14)) + body
    decoder = PacketDecoder(version=5, max_packet_size=100_000)
    decoder.feed(data[:10])
    calls: list[str] = []

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            calls.append(event)

    sys.setprofile(count)
    try:
        for byte in data[10:-1]:
            decoder.feed(bytes((byte,)))
    finally:
        sys.setprofile(None)
    assert len(calls) <= size  # one per byte: feed() itself, and nothing below it
    assert decoder.feed(data[-1:]) == [Publish("a", bytes(size))]

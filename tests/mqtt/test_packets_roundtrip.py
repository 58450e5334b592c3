"""What must hold for every packet and for every stream of bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packet_strategies import packets_3_1_1, packets_5_0, publish_5_0

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import Packet, PacketDecoder, Publish, encode
from statestore_client.mqtt.packets import properties as layouts
from statestore_client.mqtt.packets.publish import encode_properties

LIMIT = 1 << 20
PACKETS = {4: packets_3_1_1, 5: packets_5_0}


def error_of(decoder: PacketDecoder, data: bytes) -> PacketError | None:
    """The error that feeding ``data`` raises, if it does. Any other exception gets through."""
    try:
        decoder.feed(data)
    except PacketError as error:
        return error
    return None


@pytest.mark.parametrize("version", PACKETS)
@given(st.data())
def test_round_trip(version: int, data: st.DataObject) -> None:
    """Every packet of either version survives encoding and decoding, and its bytes are stable."""
    packet = data.draw(PACKETS[version])
    written = encode(packet, version)
    (found,) = PacketDecoder(version=version, max_packet_size=LIMIT).feed(written)
    assert found == packet
    assert encode(found, version) == written


@pytest.mark.parametrize("version", PACKETS)
@given(st.data(), st.lists(st.integers(0, 2000), max_size=12), st.booleans())
def test_chunks_do_not_matter(version: int, data: st.DataObject, cuts: list[int], one_by_one: bool) -> None:
    """A stream gives the same packets however it is cut, also byte by byte."""
    packets = data.draw(st.lists(PACKETS[version], max_size=5))
    stream = b"".join(encode(packet, version) for packet in packets)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    decoder = PacketDecoder(version=version, max_packet_size=LIMIT)
    found: list[Packet] = []
    for start, end in pairwise(range(len(stream) + 1) if one_by_one else edges):
        found += decoder.feed(memoryview(stream)[start:end])
    assert found == packets
    assert decoder.buffered == 0


@given(st.binary(max_size=60), st.sampled_from([None, 4, 5]))
@example(b"\x30\x00", 5)
@example(b"\x30\x01\x00", 5)
@example(b"\x32\x03\x00\x01a", 5)
def test_noise_only_raises_packet_error(data: bytes, version: int | None) -> None:
    """Arbitrary bytes give packets, wait for more, or raise PacketError with an offset; nothing else."""
    error = error_of(PacketDecoder(version=version, max_packet_size=LIMIT), data)
    if error is not None:
        assert error.reason_code in range(0x81, 0xA3)
        assert error.offset in range(len(data) + 1)


@given(packets_5_0, st.data())
def test_damaged_packets_only_raise_packet_error(packet: Packet, data: st.DataObject) -> None:
    """A real packet with a few bytes changed never raises anything but PacketError."""
    damaged = bytearray(encode(packet, 5))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    stream = bytes(damaged) + b"\xc0\x00" * 4
    error = error_of(PacketDecoder(version=5, max_packet_size=LIMIT), stream)
    if error is not None:
        assert error.offset in range(len(stream) + 1)


@given(publish_5_0)
def test_the_second_message_is_read_by_the_template_of_the_first(packet: Publish) -> None:
    """A second message with the same properties is read by the template of the first one, unless they are long."""
    data = encode(packet, 5)
    decoder = PacketDecoder(version=5, max_packet_size=LIMIT)
    templates = decoder._context.templates
    assert decoder.feed(data + data) == [packet, packet]
    block = encode_properties(packet.properties)
    size = len(block) - (1 if block[0] < 128 else 2)
    assert templates._misses == (0 if not size else 1 if size <= 512 else 2)


@given(publish_5_0)
def test_properties_are_written_in_the_order_of_the_table(packet: Publish) -> None:
    """The properties of a PUBLISH, put together from parts, have the bytes that the table writes as a whole."""
    block = bytes(layouts.PUBLISH.encode(packet.properties))
    assert encode_properties(packet.properties) == block


@pytest.mark.parametrize("version", [4, 5])
def test_every_length_of_the_remaining_length(version: int) -> None:
    """Packets whose remaining length takes one, two, three and four bytes survive being written and read."""
    for size in (0, 100, 130, 16_400, 2_097_200):
        packet = Publish("t", b"x" * size)
        data = encode(packet, version)
        decoder = PacketDecoder(version=version, max_packet_size=len(data))
        assert decoder.feed(data[:3]) == []
        assert decoder.feed(data[3:]) == [packet]

"""Large messages that a client receives where they stay, and large values that it sends as pieces of their own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packet_strategies import publish_5_0

from statestore_client.errors import PacketError
from statestore_client.mqtt.client_connection import PublishFrames
from statestore_client.mqtt.packets import MessageDecoder, Packet, PacketDecoder, Publish, encode
from statestore_client.wire.messages import IncomingMessage, OutgoingMessage, RequestHeader

LIMIT = 1 << 20
SMALL = bytes.fromhex("32 07 0001 61 000a 00 78")  # topic a, packet identifier 10, payload x (MQTT 5.0, 3.3)
#: The same with a payload of 131,064 bytes: remaining length 131,070 as 80 80 08 is 131,072 (1.5.5).
LARGE = bytes.fromhex("32 fe ff 07 0001 61 000b 00") + b"v" * 131_064


def read(decoder: MessageDecoder | PacketDecoder, stream: bytes, steps: list[int]) -> list[Packet | IncomingMessage]:
    """As a driver does: into the packet where the decoder has room, otherwise through a buffer."""
    packets: list[Packet | IncomingMessage] = []
    at = turn = 0
    while at < len(stream):
        step = steps[turn % len(steps)]
        turn += 1
        room = decoder.room() if isinstance(decoder, MessageDecoder) else None
        piece = stream[at : at + (step if room is None else min(step, len(room)))]
        at += len(piece)
        if room is None:
            packets += decoder.feed(piece)
        else:
            room[: len(piece)] = piece
            packets += decoder.received(len(piece))
    return packets


def test_a_large_message_is_received_where_it_stays() -> None:
    """Once its beginning is known, the rest of a large message is received into its own buffer; small packets around it
    are not."""
    decoder = MessageDecoder(version=5, max_packet_size=LIMIT)
    assert decoder.feed(SMALL + LARGE[:1000]) == [IncomingMessage("a", b"x", None, (), 10)]
    room = decoder.room()
    assert room is not None
    assert len(room) == len(LARGE) - 1000
    room[:] = LARGE[1000:]
    (message,) = decoder.received(len(room))
    assert isinstance(message, IncomingMessage)
    assert (message.topic, message.ack_id) == ("a", 11)
    assert isinstance(message.payload, memoryview)
    assert message.payload == b"v" * 131_064
    assert decoder.room() is None
    assert decoder.feed(SMALL) == [IncomingMessage("a", b"x", None, (), 10)]


@settings(max_examples=50)
@given(publish_5_0, st.integers(65_000, 200_000), st.lists(st.integers(1, 90_000), min_size=1, max_size=5))
def test_where_the_stream_is_cut_makes_no_difference(like: Publish, size: int, steps: list[int]) -> None:
    """Wherever the stream is cut, a message with any properties comes out the same from either decoder."""
    large = Publish("large", bytes(range(250)) * (size // 250), 1, packet_id=9, properties=like.properties)
    data = encode(large, 5)
    stream = SMALL + data + data + SMALL
    expected = MessageDecoder(version=5, max_packet_size=LIMIT).feed(stream)
    assert read(MessageDecoder(version=5, max_packet_size=LIMIT), stream, [*steps, 40_000]) == expected
    small = Publish("a", b"x", 1, packet_id=10)
    decoder = PacketDecoder(version=5, max_packet_size=LIMIT)
    assert read(decoder, stream, [*steps, 40_000]) == [small, large, large, small]
    assert decoder.buffered == 0


@pytest.mark.parametrize("decoder", [MessageDecoder, PacketDecoder])
@pytest.mark.parametrize("step", [1 << 20, 70_000])
def test_a_large_message_that_is_malformed(decoder: type[MessageDecoder | PacketDecoder], step: int) -> None:
    """A large message with two content types is refused (0x82) at its second one, in pieces or not."""
    raw = bytes.fromhex("30 8b80 08 0001 61 08 03 0001 78 03 0001 79") + bytes(131_072 - 1)
    with pytest.raises(PacketError) as caught:
        read(decoder(version=5, max_packet_size=LIMIT), raw, [step])
    assert (caught.value.reason_code, caught.value.offset) == (0x82, 12)


def test_only_messages_have_room() -> None:
    """A large packet of any type but PUBLISH is collected like a small one."""
    decoder = MessageDecoder(version=5, max_packet_size=LIMIT)
    assert decoder.feed(bytes.fromhex("90 ffff 07 0001 00") + bytes(1000)) == []
    assert decoder.room() is None


#: PUBLISH, remaining length and property length as large as they can be (MQTT 5.0, 2.1.4 and 1.5.5), then pairs (a, b).
ENDLESS = bytes.fromhex("32 ffffff7f 0001 61 000a f0ffff7f") + bytes.fromhex("26 0001 61 0001 62") * 100


@pytest.mark.parametrize("steps", [[1], [3], [9], [500]])
@pytest.mark.parametrize(
    ("raw", "refused_at"),
    [
        (ENDLESS, 14),
        (bytes.fromhex("30 ffffff7f 0001 61 f0ffff7f 26"), 12),  # QoS 0
        (bytes.fromhex("90 ffffff7f 0001 f0ffff7f 26"), 5),  # SUBACK
        (bytes.fromhex("20 ffffff7f 00 00 f0ffff7f 26"), 5),  # CONNACK
    ],
)
def test_endless_properties_are_refused_when_they_are_announced(raw: bytes, refused_at: int, steps: list[int]) -> None:
    """An oversized property length is refused (0x95) with its last byte, and not 268 MB later."""
    decoder = MessageDecoder(version=5, max_packet_size=268_435_460)
    with pytest.raises(PacketError, match=r"bytes of properties|that is not a message") as caught:
        read(decoder, raw, steps)
    assert caught.value.reason_code == 0x95
    within = MessageDecoder(version=5, max_packet_size=268_435_460)
    assert read(within, raw[: refused_at - 1], steps) == []


def test_a_large_value_under_a_long_topic_is_none_of_these() -> None:
    """A topic of 65,535 bytes with two megabytes of payload is read in any portions."""
    topic = "t" * 65_535
    stream = SMALL + encode(Publish(topic, b"v" * 2_000_000, 1, packet_id=9), 5) + LARGE + SMALL
    for steps in ([40_000], [1, 2, 3, 70_000, 5], [65_541, 3], [3_000_000]):
        small, large, middle, last = read(MessageDecoder(version=5, max_packet_size=1 << 28), stream, steps)
        assert isinstance(large, IncomingMessage)
        assert (large.topic, large.ack_id) == (topic, 9)
        assert large.payload == b"v" * 2_000_000
        assert isinstance(middle, IncomingMessage)
        assert middle.payload == b"v" * 131_064
        assert small == last


def test_memory_is_made_ready_as_the_message_comes() -> None:
    """A message that announces 256 MB with 13 bytes gets 16 MB of memory; one of 20 MB arrives whole in buffers that
    grow."""
    decoder = MessageDecoder(version=5, max_packet_size=268_435_460)
    decoder.feed(bytes.fromhex("32 ffffff7f 0001 61 000a 00"))
    room = decoder.room()
    assert room is not None
    assert len(room) < 17_000_000
    payload = bytes(range(250)) * 80_000
    stream = encode(Publish("a", payload, 1, packet_id=9), 5)
    (message,) = read(MessageDecoder(version=5, max_packet_size=1 << 28), stream, [100, 10_000_000])
    assert isinstance(message, IncomingMessage)
    assert message.payload == payload


def test_a_value_in_pieces_goes_out_uncopied() -> None:
    """The frame of a large value in pieces counts all of them, and the value itself is in the outbox, uncopied."""
    value = b"v" * 100_000
    request = OutgoingMessage(RequestHeader("t", "r"), (b"head", value, b"tail"), b"c", 10, ())
    outbox: list[bytes] = []
    assert PublishFrames(alias_maximum=0, maximum_size=LIMIT).put(request, outbox, 1)
    assert outbox[1] is value
    (packet,) = MessageDecoder(version=5, max_packet_size=LIMIT).feed(b"".join(outbox))
    assert isinstance(packet, IncomingMessage)
    assert packet.payload == b"head" + value + b"tail"
    assert packet.correlation_data == b"c"


def test_the_size_of_all_pieces_is_checked() -> None:
    """A value in pieces that is larger than the broker takes is not sent."""
    request = OutgoingMessage(RequestHeader("t", "r"), (b"head", b"v" * 100_000, b"tail"), b"c", 10, ())
    outbox: list[bytes] = []
    assert not PublishFrames(alias_maximum=0, maximum_size=100_000).put(request, outbox, 1)
    assert outbox == []

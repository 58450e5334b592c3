"""The bytes of requests on one connection. Expected bytes: MQTT 5.0, 3.3."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from packet_strategies import blobs, names, users

from statestore_client.mqtt.client_connection import PublishFrames
from statestore_client.mqtt.packets import Packet, PacketDecoder, Publish, PublishProperties
from statestore_client.wire.messages import OutgoingMessage, RequestHeader

ANY_SIZE = 268_435_460
ENVELOPE = RequestHeader("topic/a", "r", (("k", "v"),))
TYPE = bytes.fromhex("03 0018") + b"application/octet-stream"


def message(envelope: RequestHeader = ENVELOPE, payload: bytes = b"x", expiry_s: int = 10) -> OutgoingMessage:
    return OutgoingMessage(envelope, payload, b"c", expiry_s, (("n", "1"),))


def put(frames: PublishFrames, given: OutgoingMessage, packet_id: int = 1) -> bytes:
    outbox: list[bytes] = []
    frames.put(given, outbox, packet_id)
    return b"".join(outbox)


def rest(alias: str, expiry: str = "0000000a") -> bytes:
    """Everything behind the property length."""
    start = bytes.fromhex("01 00 02" + expiry) + TYPE + bytes.fromhex("08 0001 72" + alias)
    return start + bytes.fromhex("09 0001 63 26 0001 6e 0001 31 26 0001 6b 0001 76 78")


def test_the_topic_goes_out_once() -> None:
    """The first PUBLISH has the topic with its alias and later ones the alias alone, also with a new expiry."""
    frames = PublishFrames(alias_maximum=1, maximum_size=ANY_SIZE)
    assert put(frames, message()) == bytes.fromhex("32 48 0007 746f7069632f61 0001 3b") + rest("23 0001")
    assert put(frames, message(), 2) == bytes.fromhex("32 41 0000 0002 3b") + rest("23 0001")
    later = put(frames, message(expiry_s=11), 3)
    assert later == bytes.fromhex("32 41 0000 0003 3b") + rest("23 0001", "0000000b")


def test_no_more_aliases_than_the_broker_takes() -> None:
    """If the broker takes one alias, a second topic is sent in full, and so is a short one."""
    frames = PublishFrames(alias_maximum=1, maximum_size=ANY_SIZE)
    put(frames, message())
    other = RequestHeader("topic/b", "r", (("k", "v"),))
    for number in (1, 2):
        expected = bytes.fromhex("32 45 0007 746f7069632f62") + number.to_bytes(2, "big") + b"\x38" + rest("")
        assert put(frames, message(other), number) == expected
    assert put(frames, message(), 3)[:7] == bytes.fromhex("32 41 0000 0003 3b")
    short = RequestHeader("s", "r", (("k", "v"),))
    fresh = PublishFrames(alias_maximum=1, maximum_size=ANY_SIZE)
    assert put(fresh, message(short)) == bytes.fromhex("32 3f 0001 73 0001 38") + rest("")


def test_what_was_too_large_taught_the_broker_no_alias() -> None:
    """A message that was too large to send sets no alias, so the first one that the broker gets has the topic."""
    frames = PublishFrames(alias_maximum=1, maximum_size=100)
    assert not frames.put(message(payload=b"x" * 100), [], 1)
    assert b"topic/a" in put(frames, message())
    assert not frames.put(message(payload=b"x" * 100), [], 1)
    assert b"topic/a" not in put(frames, message())


def test_the_limit_is_exact() -> None:
    """A packet of exactly the maximum size is sent, and one byte more is refused."""
    size = len(put(PublishFrames(alias_maximum=0, maximum_size=ANY_SIZE), message()))
    assert put(PublishFrames(alias_maximum=0, maximum_size=size), message())
    assert not put(PublishFrames(alias_maximum=0, maximum_size=size - 1), message())


def test_large_payloads_are_not_copied() -> None:
    """A large payload goes into the outbox as the object that the caller gave."""
    payload = bytes(100_000)
    outbox: list[bytes] = []
    PublishFrames(alias_maximum=0, maximum_size=ANY_SIZE).put(message(payload=payload), outbox, 1)
    assert outbox[1] is payload


_envelopes = st.builds(RequestHeader, names, names, users)


@given(
    st.lists(_envelopes, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), blobs, blobs, st.integers(0, 2), users), max_size=8),
    st.integers(0, 2),
)
def test_a_broker_reads_what_was_meant(
    envelopes: list[RequestHeader],
    requests: list[tuple[int, bytes, bytes, int, tuple[tuple[str, str], ...]]],
    aliases: int,
) -> None:
    """Each message arrives with its own values, whatever the frames share and cache."""
    frames = PublishFrames(alias_maximum=aliases, maximum_size=ANY_SIZE)
    decoder = PacketDecoder(version=5, max_packet_size=ANY_SIZE, topic_alias_maximum=aliases)
    outbox: list[bytes] = []
    expected: list[Packet] = []
    for number, (which, payload, correlation, expiry_s, own) in enumerate(requests, 1):
        envelope = envelopes[which % len(envelopes)]
        frames.put(OutgoingMessage(envelope, payload, correlation, expiry_s, own), outbox, number)
        properties = PublishProperties(
            0,
            expiry_s,
            "application/octet-stream",
            envelope.response_topic,
            correlation,
            (*own, *envelope.user_properties),
        )
        expected.append(Publish(envelope.topic, payload, qos=1, packet_id=number, properties=properties))
    assert decoder.feed(b"".join(outbox)) == expected

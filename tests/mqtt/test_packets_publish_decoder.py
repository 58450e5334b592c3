"""PUBLISH as it is read against the strict way: whatever a peer sends, the outcome is the same.

What is remembered of the messages before must not change what the next one means.
"""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from packet_strategies import publish_5_0
from strict_publish import Outcome, by_the_letter, strict

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import MessageDecoder, Packet, PacketDecoder, Publish, PublishProperties, encode
from statestore_client.wire.messages import IncomingMessage

LIMIT = 1 << 20

values = st.sampled_from(["", "1", "2", "3", "é", "200", "001696374425000:00000:a", "001696374425000:00001:a"])
names = st.sampled_from(["__ts", "__ft", "__stat", "é"])
users = st.lists(st.tuples(names, values), max_size=4).map(tuple)
#: Messages that are much alike, as those of one peer are: this is what templates are made for.
alike = st.builds(
    lambda qos, **rest: Publish(qos=qos, packet_id=5 if qos else 0, **rest),
    qos=st.integers(0, 2),
    topic=st.sampled_from(["a", "b/c", "é"]),
    payload=st.sampled_from([b"", b"+OK\r\n"]),
    properties=st.builds(
        PublishProperties,
        payload_format=st.none() | st.integers(0, 1),
        message_expiry=st.sampled_from([None, 10, 11]),
        content_type=st.sampled_from([None, "x", "é"]),
        response_topic=st.sampled_from([None, "r", "s"]),
        correlation_data=st.sampled_from([None, b"", b"1234", b"4321", b"\0\xff\xff\xff"]),
        user_properties=users,
        subscription_ids=st.sampled_from([(), (), (), (3,)]),
        topic_alias=st.sampled_from([None, None, None, 1]),
    ),
)


def as_message(outcome: Outcome) -> Outcome:
    """What a client's decoder makes of it."""
    if not isinstance(outcome, Publish) or outcome.qos == 2 or outcome.properties.topic_alias is not None:
        return outcome
    given = outcome.properties
    return IncomingMessage(
        outcome.topic, outcome.payload, given.correlation_data, given.user_properties, outcome.packet_id
    )


#: Topic a, payload x.
NEXT = bytes.fromhex("30 05 0001 61 00 78")


def outcome_of(decoder: PacketDecoder | MessageDecoder, raw: bytes, following: bytes = b"") -> Outcome:
    packets: list[Packet] | list[Packet | IncomingMessage]
    try:
        packets = decoder.feed(raw + following)
    except PacketError as error:
        return (error.reason_code, error.offset, str(error))
    assert len(packets) == 1 + bool(following)
    return packets[0]


def damaged(raw: bytes, data: st.DataObject) -> bytes:
    """Up to two bytes behind the fixed header are something else."""
    start = 3 if raw[1] > 127 else 2
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(0, 2))):
        if len(raw) > start:
            changed[data.draw(st.integers(start, len(raw) - 1))] = data.draw(st.integers(0, 255))
    return bytes(changed)


def check_stream(packets: list[bytes]) -> None:
    whole, lean = PacketDecoder(version=5, max_packet_size=LIMIT), MessageDecoder(version=5, max_packet_size=LIMIT)
    for raw in packets:
        expected = strict(raw)
        assert outcome_of(whole, raw) == expected
        assert by_the_letter(raw) == (None if isinstance(expected, tuple) else expected)
        assert outcome_of(lean, raw) == as_message(expected)
        if isinstance(expected, tuple):
            break  # the streams are broken
    assert outcome_of(PacketDecoder(version=5, max_packet_size=LIMIT), raw, NEXT) == expected


@settings(max_examples=200)  # shared machines pause
@given(st.lists(alike, min_size=2, max_size=8))
@example([Publish("a", properties=PublishProperties(user_properties=(("k", v),))) for v in ("1", "2", "é", "3")])
def test_messages_of_one_peer_read_as_the_strict_way_reads_them(packets: list[Publish]) -> None:
    """Messages of one peer are read by the fast path, with a template of the last one, as by the strict path."""
    check_stream([encode(packet, 5) for packet in packets])


@settings(max_examples=200)  # shared machines pause
@given(st.lists(alike | publish_5_0, min_size=1, max_size=6), st.data())
def test_damaged_messages_are_refused_as_the_strict_way_refuses_them(
    packets: list[Publish], data: st.DataObject
) -> None:
    """A damaged message gets the strict path's reason code, offset and text; or its value, if it is still a message."""
    check_stream([damaged(encode(packet, 5), data) for packet in packets])


@settings(max_examples=200)  # shared machines pause
@given(alike, st.binary(min_size=1, max_size=12), st.data())
def test_noise_in_the_place_of_what_changes(packet: Publish, noise: bytes, data: st.DataObject) -> None:
    """A timestamp that is not UTF-8 or has U+0000 is refused, although the rest of the message is well known."""
    first, second = encode(packet, 5), encode(packet, 5)
    start = data.draw(st.integers(2, len(second)))
    third = second[:start] + noise[: len(second) - start] + second[start + len(noise) :]
    check_stream([first, second, third] if third[:3] == second[:3] else [first, second])


def test_the_ends_of_strings_are_checked_in_known_messages_too() -> None:
    """A third message with U+0000 where the first two had their changing value is refused."""
    packets = [
        encode(Publish("a", properties=PublishProperties(user_properties=(("__ts", value),))), 5)
        for value in ("11", "22", "33")
    ]
    for bad in (b"\0\0", b"\xff\xff", b"\xed\xa0"):
        check_stream([*packets, packets[0].replace(b"11", bad)])
        decoder = MessageDecoder(version=5, max_packet_size=LIMIT)
        for raw in packets:
            decoder.feed(raw)
        outcome = outcome_of(decoder, packets[0].replace(b"11", bad))
        assert isinstance(outcome, tuple)
        assert outcome[0] == 0x81


# -- topic aliases -----------------------------------------------------------------------------------------------------

#: Topic t with alias 1 and payload x; alias 1 alone; alias 2 alone; alias 3 with a topic. (MQTT 5.0, 3.3.2.3.4)
FIRST = bytes.fromhex("30 08 0001 74 03 23 0001 78")
AGAIN = bytes.fromhex("30 07 0000 03 23 0001 79")
UNKNOWN = bytes.fromhex("30 07 0000 03 23 0002 79")
TOO_HIGH = bytes.fromhex("30 08 0001 74 03 23 0003 78")


def test_aliases_are_replaced_by_their_topics() -> None:
    """An alias is replaced by the last topic that came with it, also beside properties that only servers send."""
    decoder = PacketDecoder(version=5, max_packet_size=LIMIT, topic_alias_maximum=2)
    odd = bytes.fromhex("30 0a 0001 76 05 23 0001 0b 05 78")
    found = decoder.feed(FIRST + AGAIN + FIRST.replace(b"t", b"u") + AGAIN + odd)
    pairs = [("t", b"x"), ("t", b"y"), ("u", b"x"), ("u", b"y")]
    served = Publish("v", b"x", properties=PublishProperties(subscription_ids=(5,)))
    assert found == [*(Publish(topic, payload) for topic, payload in pairs), served]


def test_wrong_aliases_are_refused() -> None:
    """An alias without a topic so far, or above the maximum, is refused with 0x94."""
    for raw in (UNKNOWN, TOO_HIGH):
        decoder = PacketDecoder(version=5, max_packet_size=LIMIT, topic_alias_maximum=2)
        outcome = outcome_of(decoder, raw)
        assert isinstance(outcome, tuple)
        assert outcome[0] == 0x94


# -- what a connection remembers of its peer ---------------------------------------------------------------------------


def stamped(number: int, source: str) -> bytes:
    given = (("__ts", f"{number:03d}"), ("__srcId", source))
    return encode(Publish("a", properties=PublishProperties(None, 10, user_properties=given)), 5)


def test_a_template_holds_all_but_what_changes() -> None:
    """After two messages the template knows that the timestamp changes; a peer that sends another form is learnt again
    later."""
    decoder = PacketDecoder(version=5, max_packet_size=LIMIT)
    for source in ("x", "y"):
        for number in range(64):
            decoder.feed(stamped(number, source))
        (template,) = decoder._context.templates.values()
        assert (template.name, template.users_after) == ("__ts", (("__srcId", source),))


def test_templates_are_few_and_short() -> None:
    """Templates are few and short, so that a peer with a thousand forms of message cannot fill our memory."""
    decoder = PacketDecoder(version=5, max_packet_size=LIMIT)
    for size in range(1000):
        decoder.feed(encode(Publish("a", properties=PublishProperties(content_type="x" * size)), 5))
    templates = decoder._context.templates
    assert len(templates) <= 8
    assert all(len(template.block) <= 512 for template in templates.values())

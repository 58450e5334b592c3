"""How properties are written: from parts, from templates and from what is remembered, always to the letter of the
standard; and what is remembered is bounded, whatever peers send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5_0,
    Publish,
    PublishProperties,
    encode,
    encode_message,
    publish,
)
from statestore_client.mqtt.packets import properties as layouts
from statestore_client.mqtt.packets.primitives import BoundedCache
from statestore_client.mqtt.packets.publish import (
    AnswerTemplate,
    delivery_properties,
    leading_properties,
    property_block,
)

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)
USERS = st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple)


def test_a_property_block_is_put_together_from_its_parts() -> None:
    """Parts with expiry 10, subscription identifier 300 and topic alias 258 have the bytes of MQTT 5.0, 2.2.2.2."""
    leading, trailing = leading_properties(0, 10, None, "r"), delivery_properties((300,), 258)
    assert leading == bytes.fromhex("01 00 02 0000000A 08 0001 72")
    assert trailing == bytes.fromhex("0B AC02 23 0102")
    assert property_block(leading, b"c", trailing) == bytes.fromhex("15") + leading + b"\x09\x00\x01c" + trailing
    assert property_block(leading, None, trailing) == bytes.fromhex("11") + leading + trailing
    assert property_block(b"", None, b"") == b"\0"


def test_spans_are_where_the_properties_are() -> None:
    """Each property lies where its span says, and a block without one of them has the length that fits."""
    parts = ["01 01", "02 0000000A", "03 0001 78", "09 0002 0102", "0B AC02", "23 0102", "26 0001 61 0002 6263"]
    block = bytes.fromhex("".join(parts))
    assert [block[start:stop] for _, start, stop in layouts.spans(block, 0, len(block))] == [
        bytes.fromhex(part) for part in parts
    ]
    for part in parts:
        rest = bytes.fromhex("".join(other for other in parts if other != part))
        whole = bytes((len(block),)) + block
        assert layouts.without(whole, bytes.fromhex(part)[0]) == bytes((len(rest),)) + rest


# -- templates of answers ----------------------------------------------------------------------------------------------

seconds = st.none() | st.integers(0, 2**32 - 1)

#: MQTT 5.0, 2.2.2.2: message expiry 10, content type, correlation data, two user properties.
BY_THE_LETTER = (
    b"\x02\x00\x00\x00\x0a"
    b"\x03\x00\x18application/octet-stream"
    b"\x09\x00\x04\x01\x02\x03\x04"
    b"\x26\x00\x06__stat\x00\x03200"
    b"\x26\x00\x04__ts\x00\x0412:3"
)


def test_a_template_is_filled_in() -> None:
    """Two answers made from one template have their properties as values, and their bytes to the letter of the
    standard."""
    template = AnswerTemplate(10, "application/octet-stream", (("__stat", "200"),), "__ts")
    for value in ("12:3", "9"):
        properties, block = template.fill(b"\x01\x02\x03\x04", value)
        expected = BY_THE_LETTER.replace(b"\x00\x0412:3", len(value).to_bytes(2, "big") + value.encode())
        assert block == bytes((len(expected),)) + expected
        assert properties == PublishProperties(
            message_expiry=10,
            content_type="application/octet-stream",
            correlation_data=b"\x01\x02\x03\x04",
            user_properties=(("__stat", "200"), ("__ts", value)),
        )


@given(seconds, st.none() | TEXTS, USERS, TEXTS, st.lists(st.tuples(st.binary(max_size=300), TEXTS), min_size=1))
def test_a_template_writes_what_the_encoder_writes(
    expiry: int | None,
    content_type: str | None,
    users: tuple[tuple[str, str], ...],
    name: str,
    blanks: list[tuple[bytes, str]],
) -> None:
    """Whatever a template is filled with, its bytes are those of the encoder; a 3.1.1 client gets the message without
    properties."""
    template = AnswerTemplate(expiry, content_type, users, name)
    for correlation_data, value in blanks:
        given, block = template.fill(correlation_data, value)
        assert given == PublishProperties(None, expiry, content_type, None, correlation_data, (*users, (name, value)))
        for version in (MQTT_5_0, MQTT_3_1_1):
            written = encode(Publish("a/b", b"payload", 1, packet_id=7, properties=given), version)
            assert encode_message("a/b", b"payload", given, version, 2, 7, block) == written


def test_what_mqtt_does_not_allow_is_refused() -> None:
    """Neither a template nor what it is filled with may break the limits of MQTT 5.0, 1.5."""
    with pytest.raises(InvalidArgumentError):
        AnswerTemplate(2**32, None, (), "a")
    with pytest.raises(InvalidArgumentError):
        AnswerTemplate(None, None, (), "a\0")
    template = AnswerTemplate(None, None, (), "a")
    for correlation_data, value in ((b"x" * 65_536, ""), (b"", "x" * 65_536), (b"", "\0"), (b"", "\ud800")):
        with pytest.raises(InvalidArgumentError):
            template.fill(correlation_data, value)


# -- user properties ---------------------------------------------------------------------------------------------------

#: MQTT 5.0, 2.2.2.2 and 1.5.7: identifier 0x26, then name and value, each with a two-byte length.
STATUS = b"\x26\x00\x06__stat\x00\x03200"
VERSION = b"\x26\x00\x09__protVer\x00\x031.0"


def written(name: str, value: str) -> bytes:
    """The same by the letter of the standard."""
    first, second = name.encode(), value.encode()
    return b"\x26" + len(first).to_bytes(2, "big") + first + len(second).to_bytes(2, "big") + second


def test_user_properties_are_written_in_their_order() -> None:
    """User properties are written in their order, also if the next message has them in another one."""
    one, other = ("__stat", "200"), ("__protVer", "1.0")
    assert publish.encode_user_properties((one, other)) == STATUS + VERSION
    assert publish.encode_user_properties((other, one)) == VERSION + STATUS
    assert publish.encode_user_properties((one,)) == STATUS
    assert publish.encode_user_properties((one, one, other)) == STATUS + STATUS + VERSION


@given(st.lists(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4).map(tuple), max_size=8))
def test_any_user_properties_are_written_by_the_letter(messages: list[tuple[tuple[str, str], ...]]) -> None:
    """Any user properties are written to the letter of the standard, whatever was written before."""
    for message in messages:
        assert publish.encode_user_properties(message) == b"".join([written(*pair) for pair in message])


def test_values_that_change_are_not_remembered_for_ever() -> None:
    """Values that change with every message, such as timestamps, and long values do not fill the cache."""
    for number in range(1000):
        value = f"{number:015d}:00000:node"
        assert publish.encode_user_properties((("__ts", value),)) == written("__ts", value)
        assert publish.encode_user_properties(((f"name-{number}", "x" * 1000),)) == written(
            f"name-{number}", "x" * 1000
        )
    assert len(publish._NAMES["__ts"]) <= 16
    assert len(publish._NAMES) <= 256
    assert not publish._NAMES["name-999"]


@pytest.mark.parametrize("pair", [("a\0", "b"), ("a", "\0"), ("a", "\ud800"), ("x" * 65_536, ""), ("", "x" * 65_536)])
def test_texts_that_mqtt_does_not_allow_are_refused(pair: tuple[str, str]) -> None:
    """A text that MQTT 5.0, 1.5.4 forbids is refused, the second time too."""
    for _ in range(2):
        with pytest.raises(InvalidArgumentError):
            publish.encode_user_properties((pair, ("a", "b")))
        with pytest.raises(InvalidArgumentError):
            publish.encode_user_properties((("a", "b"), pair))


def test_cache_is_bounded() -> None:
    """A cache of encoded strings keeps few of them and no long ones, whatever passes, and stays right."""
    cache: BoundedCache[bytes, int] = BoundedCache(len)
    for number in range(5000):
        assert cache[b"%d" % number] == len(str(number))
        assert len(cache) <= BoundedCache.ENTRIES
    before = len(cache)
    assert cache[b"x" * 1000] == 1000
    assert len(cache) == before

"""An answer template that was filled in says what the same properties say when they are written from the beginning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import MQTT_3_1_1, MQTT_5_0, Publish, PublishProperties, encode, encode_message
from statestore_client.mqtt.packets.answer_template import AnswerTemplate

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)
users = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)
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


@given(seconds, st.none() | texts, users, texts, st.lists(st.tuples(st.binary(max_size=300), texts), min_size=1))
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

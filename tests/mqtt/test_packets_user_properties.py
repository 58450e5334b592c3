"""User properties are written the same whether they were seen before or not, and what is remembered is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import user_properties

#: MQTT 5.0, 2.2.2.2 and 1.5.7: identifier 0x26, then name and value, each with a two-byte length.
STATUS = b"\x26\x00\x06__stat\x00\x03200"
VERSION = b"\x26\x00\x09__protVer\x00\x031.0"

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4)


def written(name: str, value: str) -> bytes:
    """The same by the letter of the standard."""
    first, second = name.encode(), value.encode()
    return b"\x26" + len(first).to_bytes(2, "big") + first + len(second).to_bytes(2, "big") + second


def test_user_properties_are_written_in_their_order() -> None:
    """User properties are written in their order, also if the next message has them in another one."""
    one, other = ("__stat", "200"), ("__protVer", "1.0")
    assert user_properties.encode_user_properties((one, other)) == STATUS + VERSION
    assert user_properties.encode_user_properties((other, one)) == VERSION + STATUS
    assert user_properties.encode_user_properties((one,)) == STATUS
    assert user_properties.encode_user_properties((one, one, other)) == STATUS + STATUS + VERSION


@given(st.lists(st.lists(st.tuples(texts, texts), min_size=1, max_size=4).map(tuple), max_size=8))
def test_any_user_properties_are_written_by_the_letter(messages: list[tuple[tuple[str, str], ...]]) -> None:
    """Any user properties are written to the letter of the standard, whatever was written before."""
    for message in messages:
        assert user_properties.encode_user_properties(message) == b"".join([written(*pair) for pair in message])


def test_values_that_change_are_not_remembered_for_ever() -> None:
    """Values that change with every message, such as timestamps, and long values do not fill the cache."""
    for number in range(1000):
        value = f"{number:015d}:00000:node"
        assert user_properties.encode_user_properties((("__ts", value),)) == written("__ts", value)
        assert user_properties.encode_user_properties(((f"name-{number}", "x" * 1000),)) == written(
            f"name-{number}", "x" * 1000
        )
    assert len(user_properties._NAMES["__ts"]) <= 16
    assert len(user_properties._NAMES) <= 256
    assert not user_properties._NAMES["name-999"]


@pytest.mark.parametrize("pair", [("a\0", "b"), ("a", "\0"), ("a", "\ud800"), ("x" * 65_536, ""), ("", "x" * 65_536)])
def test_texts_that_mqtt_does_not_allow_are_refused(pair: tuple[str, str]) -> None:
    """A text that MQTT 5.0, 1.5.4 forbids is refused, the second time too."""
    for _ in range(2):
        with pytest.raises(InvalidArgumentError):
            user_properties.encode_user_properties((pair, ("a", "b")))
        with pytest.raises(InvalidArgumentError):
            user_properties.encode_user_properties((("a", "b"), pair))

"""Notifications and topics."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.errors import Resp3Error
from statestore_client.wire.protocol import (
    COMMAND_TOPIC,
    Dialect,
    is_state_store_topic,
    notification_filter,
    notification_topic,
    parse_notification_topic,
    response_topic,
)
from statestore_client.wire.replies import (
    Notification,
    Operation,
    decode_notification,
    encode_notification,
)

SET_ABC = b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$3\r\nabc\r\n"
PREFIX = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"


@pytest.mark.parametrize("dialect", Dialect)
def test_the_documents_set_notification(dialect: Dialect) -> None:
    """The document's SET notification is read and written in both dialects."""
    notification = Notification(Operation.SET, b"abc")
    assert encode_notification(notification, dialect) == SET_ABC
    assert decode_notification(SET_ABC) == notification


@pytest.mark.parametrize(
    ("dialect", "data"),
    [
        (Dialect.SERVICE, b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"),  # compared byte for byte by the Rust SDK
        (Dialect.DOCUMENT, b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n"),
    ],
)
def test_deletions_have_a_word_in_each_dialect(dialect: Dialect, data: bytes) -> None:
    """A deletion is DELETE or DEL on the wire, depending on the dialect; both are read."""
    assert encode_notification(Notification(Operation.DELETE), dialect) == data
    assert decode_notification(data) == Notification(Operation.DELETE)


def test_a_set_notification_may_lack_its_value() -> None:
    """A SET notification without VALUE has the value None, not an empty one: the document sends VALUE only on
    request."""
    data = b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n"
    assert decode_notification(data) == Notification(Operation.SET, None)
    assert encode_notification(Notification(Operation.SET)) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"+OK\r\n",
        b"*0\r\n",
        b"*1\r\n$6\r\nNOTIFY\r\n",
        b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nset\r\n",
        b"*2\r\n$6\r\nNOTIFY\r\n$4\r\nMOVE\r\n",
        b"*2\r\n$6\r\nnotify\r\n$3\r\nSET\r\n",
        b"*3\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n",
        b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$-1\r\n",
        b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nvalue\r\n$3\r\nabc\r\n",
        b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n$5\r\nVALUE\r\n$3\r\nabc\r\n",
        SET_ABC + b"x",
    ],
)
def test_what_is_no_notification(data: bytes) -> None:
    """A payload with another operation, another shape or trailing bytes is refused as a notification."""
    with pytest.raises(Resp3Error):
        decode_notification(data)


@given(st.binary(max_size=60))
def test_any_payload_is_a_notification_or_a_resp3_error(data: bytes) -> None:
    """Any payload is read as a notification or refused with a RESP3 error."""
    with suppress(Resp3Error):
        decode_notification(data)


# -- topics -----------------------------------------------------------------------------------------------------------


def test_the_system_topic() -> None:
    """The topic of requests is the one that the document gives."""
    assert COMMAND_TOPIC == "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"


def test_the_response_topic_of_the_rust_sdk() -> None:
    """The response topic has the form of the Rust SDK's, and it is an allowed one."""
    topic = response_topic("client-id1")
    assert topic == (
        "clients/client-id1/services/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response"
    )
    assert not is_state_store_topic(topic)


def test_the_documents_notification_topic() -> None:
    """The notification topic of client-id1 and SOMEKEY has both in upper-case hexadecimal, as in the document."""
    topic = f"{PREFIX}/636C69656E742D696431/command/notify/534F4D454B4559"
    assert notification_topic("client-id1", b"SOMEKEY") == topic
    assert parse_notification_topic(topic) == ("client-id1", b"SOMEKEY")
    assert notification_filter("client-id1") == f"{PREFIX}/636C69656E742D696431/command/notify/+"


def test_hexadecimal_letters_are_upper_case() -> None:
    """Notification topics are written in upper-case hexadecimal, all that the Rust SDK reads, and read in either
    case."""
    assert notification_topic("é", b"\xab\xcd").endswith("/C3A9/command/notify/ABCD")
    assert parse_notification_topic(f"{PREFIX}/c3a9/command/notify/abcd") == ("é", b"\xab\xcd")


@pytest.mark.parametrize(
    "topic",
    [
        "",
        COMMAND_TOPIC,
        f"{PREFIX}/63/command/notify/",
        f"{PREFIX}//command/notify/53",
        f"{PREFIX}/6/command/notify/53",
        f"{PREFIX}/63/command/notify/5",
        f"{PREFIX}/63/command/notify/GG",
        f"{PREFIX}/63/command/notify/53/x",
        f"x/{PREFIX}/63/command/notify/53",
        f"{PREFIX}/FF/command/notify/53",  # not UTF-8, so not a client id
        f"{PREFIX}/63/command/invoke/53",
    ],
)
def test_other_topics_are_no_notification_topics(topic: str) -> None:
    """An empty, odd or foreign topic is not read as a notification topic."""
    assert parse_notification_topic(topic) is None


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), st.binary(min_size=1, max_size=40))
def test_any_key_has_a_notification_topic(client_id: str, key: bytes) -> None:
    """The notification topic of any client id and key gives both back."""
    assert parse_notification_topic(notification_topic(client_id, key)) == (client_id, key)


@pytest.mark.parametrize(
    ("topic", "forbidden"),
    [
        (COMMAND_TOPIC, True),
        (PREFIX, True),
        (f"{PREFIX}/63/command/notify/53", True),
        (f"{PREFIX}x", True),
        ("clients/c/services/statestore/_any_/command/invoke/response", False),
        (f"clients/63/{COMMAND_TOPIC}/response", False),  # the Go SDK's
        (f"clients/c/{COMMAND_TOPIC}", False),  # the .NET SDK's
        (f"{COMMAND_TOPIC}/response", False),
        ("anything", False),
    ],
)
def test_two_kinds_of_response_topics_are_forbidden(topic: str, *, forbidden: bool) -> None:
    """The request topic itself, and every topic under the notification prefix, is forbidden as a response topic."""
    assert is_state_store_topic(topic) is forbidden

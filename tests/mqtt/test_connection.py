"""The client's end of a connection, bytes for bytes. Expected bytes are written out from MQTT 5.0, section 3."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statestore_client.errors import ConnectionLostError, ConnectRefusedError
from statestore_client.mqtt.client_connection import ClientConnection, ClientSession
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import (
    Closed,
    Connected,
    Event,
    IncomingMessage,
    OutgoingMessage,
    Published,
    RequestHeader,
    Subscribed,
)

CONNACK = bytes.fromhex("20 03 00 00 00")
SUBACK = bytes.fromhex("90 04 0001 00 01")
PUBLISH_QOS_1 = bytes.fromhex("32 07 0001 61 000a 00 78")  # topic a, packet identifier 10, payload x
PUBLISH_QOS_2 = bytes.fromhex("34 07 0001 61 000b 00 79")  # topic a, packet identifier 11, payload y

REQUEST = OutgoingMessage(RequestHeader("t", "r", (("k", "v"),)), b"value", bytes(range(16)), 10, (("__ts", "1:0:n"),))
#: Topic t, identifier 1; payload format 0, expiry 10, content type, response topic, correlation data, user properties.
REQUEST_BYTES = (
    bytes.fromhex("32 59 0001 74 0001 4e 01 00 02 0000000a 03 0018")
    + b"application/octet-stream"
    + bytes.fromhex("08 0001 72 09 0010 000102030405060708090a0b0c0d0e0f 26 0004 5f5f7473 0005")
    + b"1:0:n"
    + bytes.fromhex("26 0001 6b 0001 76")
    + b"value"
)


def new(clean_start: bool = True, **settings: Any) -> ClientConnection:
    connection = ClientConnection(ConnectionSettings(host="h", **settings), "c")
    connection.connect(100.0, clean_start=clean_start, password=None)
    return connection


def opened(**settings: Any) -> ClientConnection:
    connection = new(**settings)
    connection.receive(CONNACK, 100.0)
    connection.take_events()
    connection.outbox.clear()
    return connection


def sent(connection: ClientConnection) -> bytes:
    data = b"".join(connection.outbox)
    connection.outbox.clear()
    return data


def closed(connection: ClientConnection) -> Closed:
    (event,) = [e for e in connection.take_events() if isinstance(e, Closed)]
    return event


def test_connect_says_who_and_for_how_long() -> None:
    """CONNECT has MQTT 5, clean start, keep-alive 60 s, session expiry 300 s, receive maximum 1024 and client id c."""
    plain = sent(new(metric_category=None))
    assert plain == bytes.fromhex("10 18 0004 4d515454 05 02 003c 0a 11 0000012c 17 01 21 0400 0001 63")


def test_connect_says_what_the_official_sdks_say() -> None:
    """CONNECT has ``metriccategory`` by default, and ``aio-persistence`` if that is asked for (state store facts,
    1.1)."""
    category = bytes.fromhex("26 000e") + b"metriccategory" + bytes.fromhex("000d") + b"aiosdk-python"
    persistence = bytes.fromhex("26 000f") + b"aio-persistence" + bytes.fromhex("0004") + b"true"
    assert category in sent(new())
    assert category + persistence in sent(new(persist_session=True))


def test_connack_opens_the_connection_with_the_limits_it_names() -> None:
    """Session present, receive maximum 20 and maximum packet size 4096 of CONNACK reach core."""
    connection = new(clean_start=False)
    connection.receive(bytes.fromhex("20 0b 01 00 08 21 0014 27 00001000"), 101.0)
    assert connection.take_events() == [Connected(session_present=True, receive_maximum=20, maximum_packet_size=4096)]


def test_a_refusal_ends_it() -> None:
    """CONNACK 0x87, not authorized, is final, and 0x88, server unavailable, is not."""
    for code, fatal in ((0x87, True), (0x88, False)):
        connection = new()
        connection.receive(bytes([0x20, 0x03, 0x00, code, 0x00]), 101.0)
        event = closed(connection)
        assert isinstance(event.error, ConnectRefusedError)
        assert (event.error.reason_code, event.fatal) == (code, fatal)


def test_silence_instead_of_connack_ends_it() -> None:
    """A connection ends when its peer does not answer in MQTT within the connect time-out."""
    connection = new(connect_timeout=3.0)
    assert connection.next_deadline() == 103.0
    connection.tick(102.9)
    assert connection.take_events() == []
    connection.tick(103.0)
    assert "is this an MQTT port?" in str(closed(connection).error)


def test_a_request_is_one_publish_with_everything_the_service_wants() -> None:
    """A request is one PUBLISH with QoS 1, properties in the order of their identifiers, and the payload untouched."""
    connection = opened()
    connection.publish(7, REQUEST)
    assert sent(connection) == REQUEST_BYTES


def test_puback_reports_the_delivery_once() -> None:
    """A repeated PUBACK, or one for nothing, is harmless."""
    connection = opened()
    connection.publish(7, REQUEST)
    connection.receive(bytes.fromhex("40 03 0001 10 40 02 0001 40 02 0009"), 101.0)
    assert connection.take_events() == [Published(7, 0x10)]


def test_packet_identifiers_in_use_are_skipped() -> None:
    """After identifier 65,535 comes 1 again, unless it is still in flight."""
    session = ClientSession()
    connection = ClientConnection(ConnectionSettings(host="h"), "c", session=session)
    connection.connect(100.0, clean_start=True, password=None)
    connection.receive(CONNACK, 100.0)
    connection.publish(1, REQUEST)
    connection.publish(2, REQUEST)
    session._last_id = 65_534
    for delivery_id, packet_id in ((98, b"\xff\xff"), (99, b"\x00\x03")):  # 1 and 2 are unacknowledged
        connection.outbox.clear()
        connection.publish(delivery_id, REQUEST)
        assert sent(connection)[5:7] == packet_id


def test_subscribe_and_suback() -> None:
    """SUBSCRIBE asks for QoS 1 for each filter, and the answer has one code for each."""
    connection = opened()
    connection.subscribe(3, ["a", "b/+"])
    assert sent(connection) == bytes.fromhex("82 0d 0001 00 0001 61 01 0003 622f2b 01")
    connection.receive(bytes.fromhex("90 05 0001 00 01 87"), 101.0)
    assert connection.take_events() == [Subscribed(3, (0x01, 0x87))]


def test_a_message_is_acknowledged_when_core_says_so() -> None:
    """PUBACK for a message is sent when core says so, and not before."""
    connection = opened()
    connection.receive(PUBLISH_QOS_1, 101.0)
    assert connection.take_events() == [IncomingMessage("a", b"x", None, (), 10)]
    assert sent(connection) == b""
    connection.acknowledge(10)
    assert sent(connection) == bytes.fromhex("40 02 000a")


def test_qos_2_is_taken_over_once() -> None:
    """A repeated QoS 2 PUBLISH gets PUBREC again and is delivered once; after PUBREL its identifier is free."""
    connection = opened()
    connection.receive(PUBLISH_QOS_2 + PUBLISH_QOS_2, 101.0)
    assert connection.take_events() == [IncomingMessage("a", b"y", None, (), 0)]
    assert sent(connection) == bytes.fromhex("50 02 000b 50 02 000b")
    connection.receive(bytes.fromhex("62 02 000b"), 101.0)
    assert sent(connection) == bytes.fromhex("70 02 000b")
    connection.receive(PUBLISH_QOS_2, 101.0)
    assert len(connection.take_events()) == 1


def test_ping_keeps_the_link_alive_and_finds_a_dead_one() -> None:
    """After the keep-alive without traffic PINGREQ is sent, and without an answer the link is dead."""
    connection = opened(keep_alive=10)
    connection.tick(109.9)
    assert sent(connection) == b""
    connection.tick(110.0)
    assert sent(connection) == bytes.fromhex("c0 00")
    connection.receive(bytes.fromhex("d0 00"), 110.5)
    connection.keep_alive.last_sent = 110.0
    assert connection.next_deadline() == 120.0
    connection.tick(120.0)
    connection.tick(125.0)
    assert "not even for a ping" in str(closed(connection).error)


def test_writing_alone_does_not_prove_that_the_link_lives() -> None:
    """A client that only sends still pings, because silence from the broker counts too."""
    connection = opened(keep_alive=10)
    connection.keep_alive.last_sent = 109.0
    connection.tick(110.0)
    assert sent(connection) == bytes.fromhex("c0 00")


def test_the_server_may_choose_the_keep_alive() -> None:
    """Server Keep Alive in CONNACK replaces the client's own (MQTT 5.0, 3.2.2.3.14)."""
    connection = new(keep_alive=60)
    connection.receive(bytes.fromhex("20 06 00 00 03 13 0005"), 100.0)
    assert connection.next_deadline() == 105.0


def test_disconnect_ends_the_session_too() -> None:
    """The client's DISCONNECT sets session expiry 0, so that the broker keeps nothing of a client that is gone for
    good."""
    connection = opened()
    connection.disconnect()
    assert sent(connection) == bytes.fromhex("e0 07 00 05 11 00000000")
    assert connection.has_ended


def test_the_brokers_disconnect_says_why() -> None:
    """A DISCONNECT with 0x8E is final, because another connection uses our client id."""
    connection = opened()
    connection.receive(bytes.fromhex("e0 01 8e"), 101.0)
    event = closed(connection)
    assert event.fatal
    assert "another connection uses the same client id" in str(event.error)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("no packet", b"HTTP/1.1 400 Bad Request\r\n"),
        ("a reserved packet type", bytes.fromhex("00 00")),
        ("an endless remaining length", bytes.fromhex("32 ff ff ff ff 01")),
        ("a CONNECT", bytes.fromhex("10 0e 0004 4d515454 05 02 003c 00 0001 63")),
        ("a PUBLISH to a wildcard", bytes.fromhex("30 05 0002 612b 00")),
        ("a second CONNACK", CONNACK),
    ],
)
def test_what_a_broker_must_not_send_ends_it_with_a_word(name: str, data: bytes) -> None:
    """A packet that a broker must not send ends the connection with an error that says so, and with a DISCONNECT."""
    connection = opened()
    connection.receive(data, 101.0)
    event = closed(connection)
    assert isinstance(event.error, ConnectionLostError), name
    assert not event.fatal
    assert sent(connection)[:1] == b"\xe0"
    connection.receive(PUBLISH_QOS_1, 102.0)
    assert connection.take_events() == []


def test_nothing_comes_before_connack() -> None:
    """A message before CONNACK is a breach of the protocol and is not delivered."""
    connection = new()
    connection.receive(PUBLISH_QOS_1, 101.0)
    assert "before CONNACK" in str(closed(connection).error)


def test_messages_before_a_broken_packet_are_not_lost() -> None:
    """Messages that came in the same read before garbage are delivered, and then comes the end."""
    connection = opened()
    connection.receive(PUBLISH_QOS_1 + b"\x00\x00", 101.0)
    first, second = connection.take_events()
    assert isinstance(first, IncomingMessage)
    assert isinstance(second, Closed)


#: What a broker says in a session of three publications (the last of QoS 2) and a subscription; the answers in between
#: come from us. Replies with properties, QoS 0, 1 and 2, a ping, a longer PUBACK, a DISCONNECT with a reason string.
SESSION = (
    SUBACK
    + bytes.fromhex("40 02 0002")
    + bytes.fromhex("32 21 0001 72 0001 16 09 0002 3131 26 0004 5f5f7473 0001 31 26 0001 61 0001 62 2b4f4b0d0a")
    + bytes.fromhex("40 04 0003 10 00 50 02 0009")
    + bytes.fromhex("32 21 0001 72 0002 16 09 0002 3132 26 0004 5f5f7473 0001 32 26 0001 61 0001 62 2b4f4b0d0a")
    + bytes.fromhex("d0 00 70 02 0009 40 02 0004")
    + bytes.fromhex("32 21 0001 72 0003 16 09 0002 3133 26 0004 5f5f7473 0001 33 26 0001 61 0001 62 2b4f4b0d0a")
    + PUBLISH_QOS_2
    + bytes.fromhex("62 02 000b 30 05 0001 61 00 7a e0 06 8b 04 1f 0001 78")
)


def busy() -> ClientConnection:
    """A connection with a subscription and three publications under way."""
    connection = opened()
    connection.subscribe(1, ["a"])
    for number in (5, 6, 7):
        connection.publish(number, REQUEST)
    return connection


def played(portions: list[int]) -> tuple[list[Event], bytes]:
    """Events and bytes of that session when it arrives in these portions, and the rest at once."""
    connection = busy()
    rest = SESSION
    for size in portions:
        connection.receive(rest[:size], 100.0)
        rest = rest[size:]
    connection.receive(rest, 100.0)
    return connection.take_events(), sent(connection)


def test_a_session_reads_as_the_standard_says() -> None:
    """A recorded session gives its events in order."""
    *events, end = played([])[0]
    users = (("a", "b"),)
    assert events == [
        Subscribed(1, (1,)),
        Published(5),
        IncomingMessage("r", b"+OK\r\n", b"11", (("__ts", "1"), *users), 1),
        Published(6, 0x10),
        IncomingMessage("r", b"+OK\r\n", b"12", (("__ts", "2"), *users), 2),
        Published(7),
        IncomingMessage("r", b"+OK\r\n", b"13", (("__ts", "3"), *users), 3),
        IncomingMessage("a", b"y"),
        IncomingMessage("a", b"z"),
    ]
    assert isinstance(end, Closed)
    assert "server shutting down (0x8B), x" in str(end.error)


@given(st.lists(st.integers(1, 40), max_size=60))
@example([1] * len(SESSION))
def test_any_portions_give_the_same_events(portions: list[int]) -> None:
    """A stream gives the same events however TCP cuts it."""
    (events, output), (expected, expected_output) = played(portions), played([])
    assert events[:-1] == expected[:-1]
    assert str(events[-1]) == str(expected[-1])
    assert output == expected_output


@pytest.mark.parametrize("cut", range(0, len(SESSION), 3))
def test_a_connection_may_die_anywhere(cut: int) -> None:
    """Wherever a connection dies, whole packets are reported, then its end once, and half a packet is not."""
    connection = busy()
    connection.receive(SESSION[:cut], 100.0)
    why = Closed(ConnectionLostError("gone"))
    connection.end(why)
    connection.end(Closed(ConnectionLostError("again")))
    events = connection.take_events()
    expected = played([])[0]
    assert events[:-1] == expected[: len(events) - 1]
    assert events[-1] is why


@given(st.binary(max_size=200))
def test_noise_never_escapes_as_an_exception(noise: bytes) -> None:
    """Whatever a broker sends, nothing is raised, and the connection is open or has ended with a Closed event."""
    connection = opened()
    connection.receive(noise, 101.0)
    ends = [e for e in connection.take_events() if isinstance(e, Closed)]
    assert len(ends) == (1 if connection.has_ended else 0)

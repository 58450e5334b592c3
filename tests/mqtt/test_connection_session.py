"""What survives a connection, and what is sent again on the next one. Expected bytes: MQTT 5.0, sections 3 and 4.4."""

from __future__ import annotations

from typing import Any

import pytest

from statestore_client.mqtt.client_connection import RECEIVE_MAXIMUM, ClientConnection, ClientSession
from statestore_client.mqtt.qos import next_packet_id
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import (
    Closed,
    Connected,
    IncomingMessage,
    OutgoingMessage,
    Published,
    RequestHeader,
    Subscribed,
)

RESUMED = bytes.fromhex("20 03 01 00 00")
NEW_SESSION = bytes.fromhex("20 03 00 00 00")
ENVELOPE = RequestHeader("t", "r")


def message(text: bytes = b"v") -> OutgoingMessage:
    return OutgoingMessage(ENVELOPE, text, b"c", 10, ())


def connected(session: ClientSession, connack: bytes = RESUMED, **options: Any) -> ClientConnection:
    connection = ClientConnection(ConnectionSettings(host="h"), "c", session=session, **options)
    connection.connect(100.0, clean_start=False, password=None)
    connection.outbox.clear()
    connection.receive(connack, 100.0)
    assert isinstance(connection.take_events()[0], Connected)
    return connection


def answered(connack: bytes, **options: Any) -> ClientConnection:
    """A first connection, with a clean start, that gets this CONNACK."""
    connection = ClientConnection(ConnectionSettings(host="h"), "c", **options)
    connection.connect(100.0, clean_start=True, password=None)
    connection.receive(connack, 100.0)
    return connection


def end_of(connection: ClientConnection) -> Closed:
    (event,) = connection.take_events()
    assert isinstance(event, Closed)
    return event


def frames(connection: ClientConnection) -> list[tuple[int, int, bytes]]:
    """First byte, packet identifier and last byte of each packet in the outbox."""
    data = b"".join(connection.outbox)
    connection.outbox.clear()
    found = []
    while data:
        end = 2 + data[1]
        start = 5 if data[0] & 0xF0 == 0x30 else 2
        found.append((data[0], int.from_bytes(data[start : start + 2], "big"), data[end - 1 : end]))
        data = data[end:]
    return found


def test_a_repetition_has_the_old_identifier_and_dup() -> None:
    """What was not acknowledged is sent again as the same PUBLISH with DUP, and PUBACK reports the old delivery id."""
    session = ClientSession()
    first = connected(session)
    for number in (7, 8, 9):
        first.publish(number, message(b"%d" % number))
    first.receive(bytes.fromhex("40 02 0002"), 100.0)
    second = connected(session)
    assert frames(second) == []  # core says what is repeated
    second.publish(7, message(b"7"), True)
    second.publish(9, message(b"9"), True)
    second.publish(10, message(b"0"))
    assert frames(second) == [(0x3A, 1, b"7"), (0x3A, 3, b"9"), (0x32, 4, b"0")]
    second.receive(bytes.fromhex("40 02 0003 40 02 0001"), 101.0)
    assert second.take_events() == [Published(9), Published(7)]


def test_what_is_not_repeated_is_given_up() -> None:
    """QoS 1 publications not repeated before the first new one are given up, and their identifiers are free."""
    session = ClientSession()
    first = connected(session)
    first.publish(1, message())
    first.publish(2, message())
    second = connected(session)
    second.publish(3, message())
    assert session.in_flight == {3: 3}
    second.receive(bytes.fromhex("40 02 0001"), 101.0)
    assert second.take_events() == []


def test_a_late_puback_saves_the_repetition() -> None:
    """After a PUBACK that comes before the repetition the exchange is over, and a later repetition is a new message."""
    session = ClientSession()
    connected(session).publish(1, message())
    second = connected(session)
    second.receive(bytes.fromhex("40 02 0001"), 100.0)
    assert second.take_events() == [Published(1)]
    second.publish(2, message())
    assert frames(second) == [(0x32, 2, b"v")]


@pytest.mark.parametrize("clean_start", [True, False])
def test_a_lost_session_repeats_nothing(clean_start: bool) -> None:
    """After a clean start, or a CONNACK without the session, a message with an old delivery id is new and has no
    DUP."""
    session = ClientSession()
    connected(session).publish(1, message())
    second = ClientConnection(ConnectionSettings(host="h"), "c", session=session)
    second.connect(100.0, clean_start=clean_start, password=None)
    second.outbox.clear()
    second.receive(NEW_SESSION, 100.0)
    second.publish(1, message(), True)
    assert frames(second) == [(0x32, 2, b"v")]


def test_pubrec_for_nothing_is_answered() -> None:
    """PUBREC for an unknown exchange gets PUBREL 0x92, and one with an error gets no answer."""
    connection = connected(ClientSession())
    connection.receive(bytes.fromhex("50 02 0009 50 03 0009 97"), 100.0)
    assert b"".join(connection.outbox) == bytes.fromhex("62 03 0009 92")


def test_incoming_qos_2_comes_once_per_session() -> None:
    """A QoS 2 message that was received on the last connection is answered on the next, and not delivered again."""
    session = ClientSession()
    publish = bytes.fromhex("34 07 0001 61 000b 00 79")
    first = connected(session)
    first.receive(publish, 100.0)
    assert first.take_events() == [IncomingMessage("a", b"y")]
    second = connected(session)
    second.receive(b"\x3c" + publish[1:], 100.0)
    assert second.take_events() == []
    assert frames(second) == [(0x50, 11, b"\x0b")]
    second.receive(bytes.fromhex("62 02 000b"), 100.0)
    assert frames(second) == [(0x70, 11, b"\x0b")]
    second.receive(publish, 100.0)
    assert second.take_events() == [IncomingMessage("a", b"y")]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_broker_that_floods_us_is_told(qos: int) -> None:
    """One message more than our Receive Maximum without an acknowledgement ends the connection with DISCONNECT 0x93."""
    connection = connected(ClientSession())
    first = b"\x32" if qos == 1 else b"\x34"
    for number in range(1, RECEIVE_MAXIMUM + 2):
        connection.receive(first + bytes.fromhex("07 0001 61") + number.to_bytes(2, "big") + b"\0y", 100.0)
    *messages, end = connection.take_events()
    assert len(messages) == RECEIVE_MAXIMUM
    assert isinstance(end, Closed)
    assert connection.outbox[-1] == bytes.fromhex("e0 01 93")


def test_answers_that_a_broker_does_not_read_are_not_kept_without_end() -> None:
    """When 200,000 packets wait to be written and the broker makes us add to them, the connection ends with DISCONNECT
    0x93."""
    connection = connected(ClientSession())
    connection.outbox += [b"\x70\x02\x00\x01"] * 199_999
    connection.receive(bytes.fromhex("62 02 0001"), 100.0)
    assert not connection.has_ended
    connection.receive(bytes.fromhex("62 02 0001"), 100.0)
    assert "does not read our answers" in str(end_of(connection).error)
    assert connection.outbox[-1] == bytes.fromhex("e0 01 93")


def test_acknowledgements_open_our_window() -> None:
    """PUBACK, and PUBCOMP, let the broker send one more message."""
    connection = connected(ClientSession())
    for number in range(1, RECEIVE_MAXIMUM + 100):
        connection.receive(bytes.fromhex("32 07 0001 61") + number.to_bytes(2, "big") + b"\0y", 100.0)
        connection.acknowledge(number)
        connection.receive(bytes.fromhex("34 07 0001 61 0001 00 79 62 02 0001"), 100.0)
    assert not connection.has_ended


def test_too_large_for_the_broker() -> None:
    """With Maximum Packet Size 80 a larger publication is not sent, core gets 0x95, and its identifier is free."""
    connection = connected(ClientSession(), bytes.fromhex("20 08 01 00 05 27 00000050"))
    connection.publish(1, message(b"v" * 100))
    connection.publish(2, message(b"v"))
    connection.subscribe(3, ["f" * 100])
    assert connection.take_events() == [Published(1, 0x95), Subscribed(3, (0x95,))]
    (frame,) = frames(connection)
    assert frame[:2] == (0x32, 2)


def test_too_large_for_us() -> None:
    """A packet above the Maximum Packet Size that we announced ends the connection with DISCONNECT 0x95."""
    connection = answered(NEW_SESSION, maximum_packet_size=20)
    assert bytes.fromhex("27 00000014") in connection.outbox[0]
    connection.outbox.clear()
    connection.receive(bytes.fromhex("30 20 0001 61"), 100.0)
    assert connection.outbox == [bytes.fromhex("e0 01 95")]


def test_maximum_qos() -> None:
    """A broker that takes QoS 0 only ends the connection; one without QoS 2 gets publications."""
    end = end_of(answered(bytes.fromhex("20 05 00 00 02 24 00")))
    assert (end.fatal, end.reason_code) == (True, 0x9B)
    limited = connected(ClientSession(), bytes.fromhex("20 05 01 00 02 24 01"))
    limited.publish(1, message())
    assert frames(limited) == [(0x32, 1, b"v")]


def test_the_broker_may_name_the_client() -> None:
    """The client takes the Assigned Client Identifier of CONNACK (MQTT 5.0, 3.2.2.3.7)."""
    connection = connected(ClientSession(), bytes.fromhex("20 07 01 00 04 12 0001 7a"))
    assert connection.client_id == "z"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("50 02 0001", id="PUBREC for QoS 1"),
        pytest.param("70 02 0002", id="PUBCOMP for QoS 1"),
        pytest.param("90 05 0003 00 01 01", id="SUBACK with a code too many"),
        pytest.param("b0 04 0003 00 00", id="UNSUBACK"),
        pytest.param("30 07 0000 03 23 0001 78", id="topic alias alone"),
        pytest.param("32 06 0001 61 0000 00", id="packet identifier 0"),
        pytest.param("40 08 0001 00 04 11 00000001", id="lengths that contradict each other"),
        pytest.param("f0 07 18 05 15 0002 6162", id="AUTH without a method in use"),
        pytest.param("c0 00", id="PINGREQ"),
        pytest.param("10 0c 0004 58585858 05 02 003c 0000", id="a CONNECT of another protocol"),
        pytest.param("30 8050 0001 61 fb4f" + "26 0000 0000" * 2047, id="an endless property list"),
    ],
)
def test_every_broken_rule_gives_one_end_with_a_reason(data: str) -> None:
    """Every breach of the protocol gives one Closed event and one DISCONNECT with an error, and nothing after it."""
    connection = connected(ClientSession())
    connection.publish(1, message())
    connection.publish(2, message())
    connection.subscribe(3, ["f"])
    connection.outbox.clear()
    connection.receive(bytes.fromhex(data) + bytes.fromhex("40 02 0001"), 100.0)
    end_of(connection)
    (farewell,) = connection.outbox
    assert farewell[0] == 0xE0
    assert farewell[2] >= 0x80
    connection.publish(4, message())
    assert len(connection.outbox) == 1


def test_a_session_for_a_clean_start_is_a_mistake() -> None:
    """Session present 1 after clean start 1 ends the connection (MQTT-3.2.2-2)."""
    end_of(answered(RESUMED))


def test_goodbye_ends_the_session_here_too() -> None:
    """After the client's DISCONNECT with session expiry 0 the next connection repeats nothing."""
    session = ClientSession()
    connection = connected(session)
    connection.publish(1, message())
    connection.disconnect()
    assert not session.in_flight


def test_packet_identifiers_go_round_and_skip_those_in_use() -> None:
    """After identifier 65,535 comes 1, and never 0; SUBSCRIBE and PUBLISH draw from the same numbers (MQTT 5.0,
    2.2.1)."""
    assert next_packet_id(0, {}) == 1
    assert next_packet_id(65_535, {}) == 1
    assert next_packet_id(65_534, {65_535: "publish", 2: "publish"}, {1: "subscribe"}) == 3


def test_subscriptions_and_publications_share_identifiers() -> None:
    """An identifier that a SUBSCRIBE uses is not used by a PUBLISH (MQTT 5.0, 2.2.1)."""
    session = ClientSession()
    connection = connected(session)
    connection.subscribe(1, ["f"])
    session._last_id = 0
    connection.publish(1, message())
    assert [frame[1] for frame in frames(connection)] == [1, 2]
    session.in_flight = {n: n for n in range(2, 65_536)}
    connection.subscribe(2, ["f", "g"])
    assert connection.take_events() == [Subscribed(2, (0x91, 0x91))]

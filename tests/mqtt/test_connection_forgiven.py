"""What a broker does wrong and a client lets pass, bytes for bytes. A server forgives its clients nothing."""

from __future__ import annotations

import pytest

from statestore_client.errors import PacketError
from statestore_client.mqtt.client_connection import ClientConnection
from statestore_client.mqtt.packets import MessageDecoder, PacketDecoder
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import (
    BrokerMistakes,
    Closed,
    Connected,
    Event,
    IncomingMessage,
    OutgoingMessage,
    Published,
    RequestHeader,
    Subscribed,
)

REQUEST = OutgoingMessage(RequestHeader("t", "r"), b"value", bytes(16), 10, ())
CONNACK = "20 03 00 00 00"


def events_of(data: str, connack: str = CONNACK) -> list[Event]:
    """What a connection tells of these bytes; publication 1 and subscription 2, of one filter, wait for an answer."""
    connection = ClientConnection(ConnectionSettings(host="h"), "c")
    connection.connect(100.0, clean_start=False, password=None)
    connection.receive(bytes.fromhex(connack), 100.0)
    connection.publish(1, REQUEST)
    connection.subscribe(2, ["f"])
    if data:
        connection.take_events()
        connection.receive(bytes.fromhex(data), 100.0)
    return connection.take_events()


@pytest.mark.parametrize(
    ("data", "told", "words"),
    [
        # mochi-mqtt 2.7.9 answers QoS 1 with the QoS that it granted
        ("40 03 0001 01", Published(1, 0x01), "reason code 0x01 in PUBACK"),
        ("40 04 0001 18 00", Published(1, 0x18), "reason code 0x18 in PUBACK"),
        ("40 03 0001 8f", Published(1, 0x8F), "reason code 0x8f in PUBACK"),
        ("40 09 0001 00 05 11 00000001", Published(1), "session_expiry: a property of other packets"),
        ("90 04 0002 00 03", Subscribed(2, (0x03,)), "reason code 0x03 in SUBACK"),
        ("90 04 0002 00 8d", Subscribed(2, (0x8D,)), "reason code 0x8d in SUBACK"),
        ("40 82 00 0001", Published(1), "a remaining length in more bytes than it needs"),
        ("38 05 0001 61 00 78", IncomingMessage("a", b"x"), "DUP with QoS 0"),
        ("30 08 0001 61 03 23 0001 78", IncomingMessage("a", b"x"), "a topic alias, although none was allowed"),
        ("30 08 0001 61 03 23 0000 78", IncomingMessage("a", b"x"), "topic_alias 0"),
        ("30 07 0001 61 02 0b00 78", IncomingMessage("a", b"x"), "subscription_ids 0"),
        ("30 07 0001 61 02 0107 78", IncomingMessage("a", b"x"), "payload_format is 0 or 1, not 7"),
        ("30 09 0001 61 04 08 0001 23 78", IncomingMessage("a", b"x"), "response_topic: "),
    ],
)
def test_what_harms_nobody_is_let_pass(data: str, told: Event, words: str) -> None:
    """The packet is taken for what it can only mean, and the mistake is told beside it."""
    first, mistakes = events_of(data)
    assert first == told
    assert isinstance(mistakes, BrokerMistakes)
    assert mistakes.count == 1
    assert mistakes.first.startswith(words)


def test_an_identifier_that_the_broker_takes_for_one_of_its_own_is_changed() -> None:
    """mochi-mqtt refuses a SUBSCRIBE if a message to the client has its identifier (0x91): others are tried, and the
    steps grow, so that a session full of messages is passed. A broker that says so for ever is believed.
    """
    connection = ClientConnection(ConnectionSettings(host="h"), "c")
    connection.connect(100.0, clean_start=False, password=None)
    connection.receive(bytes.fromhex(CONNACK), 100.0)
    connection.subscribe(2, ["f", "g"])
    tried = []
    while not any(isinstance(event, Subscribed) for event in connection.events):
        packet_id = int.from_bytes(connection.outbox[-1][2:4], "big")
        tried.append(packet_id)
        connection.receive(b"\x90\x05" + packet_id.to_bytes(2, "big") + b"\0\x91\x91", 100.0)
    assert tried[:5] == [1, 3, 6, 11, 20]
    assert len(tried) == len(set(tried)) == 17
    assert max(tried) > 30_000
    last = connection.take_events()[-1]
    assert last == Subscribed(2, (0x91, 0x91))


@pytest.mark.parametrize(
    ("connack", "words"),
    [
        ("20 03 02 00 00", "reserved flags of CONNACK"),
        ("20 05 00 00 02 24 02", "maximum_qos is 0 or 1, not 2"),
        ("20 06 00 00 03 21 0000", "receive_maximum 0"),
        ("20 08 00 00 05 27 00000000", "maximum_packet_size 0"),
    ],
)
def test_a_sloppy_connack(connack: str, words: str) -> None:
    """Limits that say nothing are no limits."""
    connected, mistakes = events_of("", connack)
    assert connected == Connected(session_present=False)
    assert mistakes == BrokerMistakes(1, words)


def test_a_refusal_with_an_unknown_code_is_a_refusal() -> None:
    """A later version of MQTT may have more of them."""
    (end,) = events_of("", "20 03 01 c0 00")
    assert isinstance(end, Closed)
    assert end.reason_code == 0xC0


def test_a_farewell_with_an_unknown_code_is_a_farewell() -> None:
    """The same of DISCONNECT: the broker says that it goes."""
    (end,) = events_of("e0 01 c0")
    assert isinstance(end, Closed)
    assert end.reason_code == 0xC0


def test_a_pubrel_without_its_flags() -> None:
    """It ends a QoS 2 exchange as any other."""
    (mistakes,) = events_of("60 02 0009")
    assert mistakes == BrokerMistakes(1, "PUBREL without its flags")


def test_each_mistake_is_counted_and_the_first_one_named() -> None:
    """One event for what came at once."""
    *_, mistakes = events_of("40 03 0001 01" + "40 03 0005 02" * 3)
    assert mistakes == BrokerMistakes(4, "reason code 0x01 in PUBACK")


def test_mistakes_in_equal_messages_are_counted_each() -> None:
    """What is remembered of a message's properties does not hide the mistake in the next one."""
    message = "30 07 0001 61 02 0107 78"
    *messages, mistakes = events_of(message * 5)
    assert messages == [IncomingMessage("a", b"x")] * 5
    assert mistakes == BrokerMistakes(5, "payload_format is 0 or 1, not 7")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("41 02 0001", id="reserved flags"),
        pytest.param("36 06 0001 61 0001 00", id="QoS 3"),
        pytest.param("40 03 0000 00", id="packet identifier 0"),
        pytest.param("40 04 0001 00 05", id="properties longer than their packet"),
        pytest.param("40 06 0001 00 02 7f00", id="a property that nobody knows"),
        pytest.param("40 05 0001 00 00 00", id="bytes behind the end"),
        pytest.param("30 08 0001 61 04 0101 0101", id="a property twice"),
        pytest.param("30 06 0001 ff 00 78 00", id="a topic that is not UTF-8"),
        pytest.param("30 05 0001 2b 00 78", id="a topic with a wildcard"),
        pytest.param("30 07 0000 03 23 0001 78", id="an alias alone"),
        pytest.param("f0 02 17 00", id="an unknown step of authentication"),
    ],
)
def test_what_is_ambiguous_ends_the_connection(data: str) -> None:
    """Nothing that such a broker says can be relied upon."""
    (end,) = events_of(data)
    assert isinstance(end, Closed)


def test_a_connack_of_an_older_version_is_no_connack() -> None:
    """The return codes of MQTT 3.1.1 look like success (MQTT 5.0, 2.4), and are refusals."""
    (end,) = events_of("", "20 02 00 01")
    assert isinstance(end, Closed)


@pytest.mark.parametrize(
    "data", ["40 03 0001 01", "90 04 0002 00 03", "38 05 0001 61 00 78", "60 02 0009", "40 82 00 0001", "e0 01 c0"]
)
def test_a_server_forgives_nothing(data: str) -> None:
    """MQTT 5 has it disconnect; so do decoders that were not told to forgive."""
    for decoder in (
        PacketDecoder(version=5, max_packet_size=1000),
        MessageDecoder(version=5, max_packet_size=1000),
    ):
        with pytest.raises(PacketError):
            decoder.feed(bytes.fromhex(data))

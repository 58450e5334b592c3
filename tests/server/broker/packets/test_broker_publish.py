"""PUBLISH from clients: QoS flows, properties, expiry, limits, slow subscribers."""

from __future__ import annotations

import pytest
from support.broker_driver import Client, World

from statestore_client.mqtt.packets import (
    MQTT_3_1_1,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    ReasonCode,
    Subscribe,
    Subscription,
)


def test_qos_1_is_acknowledged_before_the_copy_to_oneself() -> None:
    """PUBACK comes before the publisher's own copy, which real clients rely on."""
    client = World().client()
    client.subscribe("t", qos=1)
    packet_id = client.publish("t", b"x", 1)
    puback, message = client.received()
    assert puback == Puback(packet_id)
    assert isinstance(message, Publish)


def test_nobody_listens() -> None:
    """If nobody listens PUBACK has 0x10, PUBREC no code, and 3.1.1 none."""
    world = World()
    client, old = world.client("c"), world.client("o", version=MQTT_3_1_1)
    one, two, three = client.publish("t", b"", 1), client.publish("t", b"", 2), old.publish("t", b"", 1)
    assert client.received() == [Puback(one, ReasonCode.NO_MATCHING_SUBSCRIBERS), Pubrec(two)]
    assert old.received() == [Puback(three)]


def test_qos_2_is_delivered_once() -> None:
    """A repeated QoS 2 PUBLISH gets PUBREC and no second copy, also on the next connection; PUBREL frees the
    identifier."""
    world = World()
    reader = world.client("r")
    reader.subscribe("t")
    client = world.client("c", session_expiry=60)
    message = Publish("t", b"x", 2, packet_id=7)
    client.send(message)
    client.lose()
    again = world.client("c", clean_start=False, session_expiry=60)
    again.send(Publish("t", b"x", 2, dup=True, packet_id=7), Pubrel(7), Pubrel(7))
    assert again.received() == [Pubrec(7), Pubcomp(7), Pubcomp(7)]
    assert len(reader.messages()) == 1
    again.send(message)
    assert len(reader.messages()) == 1


def test_qos_2_to_a_subscriber() -> None:
    """QoS 2 to a subscriber is PUBLISH, PUBREC, PUBREL, PUBCOMP, and an unknown identifier is completed too."""
    world = World()
    client = world.client("c")
    client.subscribe("t", qos=2)
    world.client("p").publish("t", b"x", 2)
    (message,) = client.messages()
    client.send(Pubrec(message.packet_id))
    assert client.one(Pubrel) == Pubrel(message.packet_id)
    client.send(Pubcomp(message.packet_id), Pubrec(message.packet_id))
    assert client.one(Pubrel) == Pubrel(message.packet_id)


def test_who_asks_for_problem_information_is_told_of_unknown_identifiers() -> None:
    """PUBREL and PUBCOMP have 0x92 for unknown identifiers, if problem information was asked for (MQTT 5.0, 3.6.2.1,
    3.7.2.1)."""
    client = World().client("c", request_problem_information=1)
    client.send(Pubrec(9), Pubrel(9))
    unknown = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
    assert client.received() == [Pubrel(9, unknown), Pubcomp(9, unknown)]


@pytest.mark.parametrize(("qos", "answer"), [(1, Pubrec(1)), (2, Puback(1)), (2, Pubcomp(1))])
def test_acknowledgements_of_the_wrong_kind_are_protocol_errors(qos: int, answer: Pubrec | Puback | Pubcomp) -> None:
    """An acknowledgement of the wrong kind is a protocol error (0x82)."""
    world = World()
    client = world.client("c")
    client.subscribe("t", qos=2)
    world.client("p").publish("t", b"x", qos)
    assert [m.packet_id for m in client.messages()] == [1]
    client.send(answer)
    assert client.one(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


def test_receive_maximum_is_enforced() -> None:
    """More unreleased QoS 2 messages than announced get 0x93; repetitions do not count."""
    client = World(receive_maximum=2).client()
    for packet_id in (1, 2, 2):
        client.send(Publish("t", b"x", 2, packet_id=packet_id))
    assert len(client.received()) == 3
    client.send(Publish("t", b"x", 2, packet_id=3))
    assert client.one(Disconnect).reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_the_clients_receive_maximum_is_respected() -> None:
    """No more messages are in flight than the client's Receive Maximum, and each PUBACK brings the next in order."""
    world = World()
    client = world.client("c", receive_maximum=2)
    client.subscribe("t", qos=1)
    sender = world.client("p")
    for i in range(6):
        sender.publish("t", str(i).encode(), 1)
    seen = []
    while batch := client.messages():
        assert len(batch) <= 2
        for message in batch:
            seen.append(message.payload)
            client.send(Puback(message.packet_id))
    assert seen == [b"0", b"1", b"2", b"3", b"4", b"5"]


# -- properties -------------------------------------------------------------------------------------------------------


def test_properties_are_passed_on_unchanged() -> None:
    """Format, content type, response topic, correlation data and user properties are passed on in order (MQTT-3.3.2-17
    ff)."""
    given = PublishProperties(
        payload_format=1,
        content_type="text/plain",
        response_topic="reply/here",
        correlation_data=b"\x00\xff",
        user_properties=(("b", "1"), ("a", "2"), ("b", "3")),
    )
    world = World()
    client = world.client("c")
    client.subscribe("t", qos=2)
    world.client("p").send(Publish("t", b"x", 1, packet_id=1, properties=given))
    (message,) = client.messages()
    assert message.properties == given


def test_message_expiry_counts_down() -> None:
    """A message that waited has the remaining expiry (MQTT-3.3.2-6), or is not sent (MQTT-3.3.2-5)."""
    world = World()
    client = world.client("c", session_expiry=999)
    client.subscribe("t", qos=1)
    client.lose()
    sender = world.client("p")
    sender.publish("t", b"short", 1, message_expiry=5)
    sender.publish("t", b"long", 1, message_expiry=100)
    world.sleep(10.5)
    again = Client(world)
    again.send(Connect("c", clean_start=False))
    (message,) = again.messages()
    assert (message.payload, message.properties.message_expiry) == (b"long", 90)
    assert world.broker.counters.dropped_expired == 1


def test_the_longest_expiry_survives_the_clocks_rounding() -> None:
    """An expiry of 0xFFFFFFFF seconds is forwarded as such, never as one more than four bytes hold."""
    world = World()
    world.sleep(0.1)
    client = world.client("c")
    client.subscribe("t")
    for _ in range(20):
        world.sleep(0.37)
        world.client("p").publish("t", b"x", message_expiry=0xFFFF_FFFF)
    assert {m.properties.message_expiry for m in client.messages()} == {0xFFFF_FFFF}


def test_an_expiry_of_zero_is_passed_on() -> None:
    """A message with an expiry of zero is delivered to those who can have it at once."""
    world = World()
    client = world.client("c")
    client.subscribe("t")
    world.client("p").publish("t", b"x", message_expiry=0)
    (message,) = client.messages()
    assert message.properties.message_expiry == 0


def test_retained_messages_expire() -> None:
    """A retained message has the remaining expiry, and is gone after it."""
    world = World()
    world.client("p").publish("t", b"x", retain=True, message_expiry=10)
    world.sleep(4)
    (message,) = world.client("c").subscribe("t")
    assert isinstance(message, Publish)
    assert message.properties.message_expiry == 6
    world.sleep(6)
    assert world.client("d").subscribe("t") == []


def test_fan_out_encodes_for_everybody() -> None:
    """In a fan-out each client gets its own version, QoS, subscription identifiers and packet identifier."""
    world = World()
    clients = [world.client(f"c{i}", version=5 if i % 2 else 4) for i in range(6)]
    for i, client in enumerate(clients):
        client.subscribe("t", qos=i % 3, identifier=i + 1 if i % 2 else None)
    for i, client in enumerate(clients):  # packet identifiers drift apart
        client.subscribe(f"only/{i}", qos=1)
        for _ in range(i):
            world.client("p").publish(f"only/{i}", b"", 1)
        client.received()
    world.client("p").publish("t", b"payload" * 100, 2, user_properties=(("k", "v"),))
    for i, client in enumerate(clients):
        (message,) = client.messages()
        assert message.payload == b"payload" * 100
        assert message.qos == i % 3
        assert message.packet_id == (i + 1 if i % 3 else 0)
        assert message.properties.subscription_ids == ((i + 1,) if i % 2 else ())


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("size", [0, 119, 120, 20_000, 3_000_000])
def test_fan_out_patches_the_packet_identifier(version: int, size: int) -> None:
    """Equal subscribers share one encoding in which only the packet identifier differs, whatever the size of its length
    field."""
    world = World()
    clients = [world.client(f"c{i}", version=version) for i in range(3)]
    sender = world.client("p")
    for i, client in enumerate(clients):
        client.subscribe("t/é", f"only/{i}", qos=1)
        for _ in range(i):
            sender.publish(f"only/{i}", b"", 1)
        client.received()
    payload = b"x" * size
    sender.publish("t/é", payload, 1)
    for i, client in enumerate(clients):
        (message,) = client.messages()
        assert (message.topic, message.payload, message.packet_id) == ("t/é", payload, i + 1)


# -- topic aliases ----------------------------------------------------------------------------------------------------


def test_topic_aliases() -> None:
    """A topic alias stands for its topic, can be set anew, and is not forwarded (MQTT 5.0, 3.3.2.3.4)."""
    world = World()
    reader, client = world.client("r"), world.client("c")
    reader.subscribe("#")
    for topic, alias in [("a", 1), ("", 1), ("b", 1), ("", 1)]:
        client.send(Publish(topic, b"x", properties=PublishProperties(topic_alias=alias)))
    messages = reader.messages()
    assert [m.topic for m in messages] == ["a", "a", "b", "b"]
    assert all(m.properties.topic_alias is None for m in messages)


@pytest.mark.parametrize(("alias", "code"), [(1, ReasonCode.PROTOCOL_ERROR), (99, ReasonCode.TOPIC_ALIAS_INVALID)])
def test_unknown_topic_aliases(alias: int, code: int) -> None:
    """An alias that was never set gets 0x82 (MQTT 5.0, 3.3.4), one above the maximum 0x94, and it ends with its
    connection."""
    world = World(topic_alias_maximum=5)
    client = world.client("c", session_expiry=9)
    client.send(Publish("a", properties=PublishProperties(topic_alias=1)))
    client.lose()
    again = world.client("c", clean_start=False)
    again.send(Publish("", properties=PublishProperties(topic_alias=alias)))
    assert again.one(Disconnect).reason_code == code


# -- refused ----------------------------------------------------------------------------------------------------------


def test_subscription_identifiers_of_clients_are_refused() -> None:
    """A subscription identifier in a client's PUBLISH is refused, because only servers send it (MQTT-3.3.4-6)."""
    client = World().client()
    client.send(Publish("t", properties=PublishProperties(subscription_ids=(1,))))
    assert client.one(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_that_is_not_what_it_says(qos: int) -> None:
    """A payload that is marked as UTF-8 and is not gets 0x99 in an acknowledgement, or else a DISCONNECT."""
    client = World().client()
    packet_id = client.publish("t", b"\xff", qos, payload_format=1)
    (answer,) = client.received()
    assert getattr(answer, "reason_code", None) == ReasonCode.PAYLOAD_FORMAT_INVALID
    assert getattr(answer, "packet_id", 0) == packet_id
    assert client.is_ended is (qos == 0)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_topics_that_are_too_deep(qos: int) -> None:
    """A topic that is too deep is treated as malformed."""
    client = World(topic_levels=3).client()
    client.publish("a/b/c/d", b"", qos)
    assert client.one(Disconnect).reason_code == ReasonCode.MALFORMED_PACKET


def test_a_filter_of_a_share_is_no_topic() -> None:
    """A topic that looks like a shared filter gets 0x87, because a message there would reach nobody."""
    client = World().client("c")
    packet_id = client.publish("$share/g/t", b"x", 1)
    assert client.one(Puback) == Puback(packet_id, ReasonCode.NOT_AUTHORIZED)


def test_a_subscriber_that_wants_nothing_of_its_own_is_a_match() -> None:
    """A No Local subscriber that gets nothing of its own counts as a match, so PUBACK has no 0x10."""
    client = World().client()
    client.send(Subscribe(1, (Subscription("t", 1, no_local=True),)))
    client.received()
    packet_id = client.publish("t", b"x", 1)
    assert client.received() == [Puback(packet_id)]


def test_a_full_retained_store() -> None:
    """With a full retained store QoS 1 gets 0x97 and is not delivered; QoS 0 is delivered and counted as not
    retained."""
    world = World(retained_messages=1)
    reader, client = world.client("r"), world.client("c")
    reader.subscribe("#")
    client.publish("a", b"1", retain=True)
    packet_id = client.publish("b", b"2", 1, retain=True)
    assert client.one(Puback) == Puback(packet_id, ReasonCode.QUOTA_EXCEEDED)
    client.publish("c", b"3", retain=True)
    assert [m.payload for m in reader.messages()] == [b"1", b"3"]
    assert world.broker.counters.not_retained == 2


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_messages_too_large_for_a_client_are_skipped() -> None:
    """A message too large for a client counts as delivered (MQTT-3.1.2-25), takes no place in its window, and reaches
    others."""
    world = World()
    small, large = world.client("s", maximum_packet_size=50, receive_maximum=1), world.client("l")
    for client in (small, large):
        client.subscribe("t", qos=1)
    sender = world.client("p")
    for payload in (b"x" * 100, b"ok"):
        sender.publish("t", payload, 1)
    assert [m.payload for m in small.messages()] == [b"ok"]
    assert len(large.messages()) == 2
    assert world.broker.counters.dropped_too_large == 1

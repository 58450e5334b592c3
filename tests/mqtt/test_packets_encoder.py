"""What the encoder refuses, and what it says in MQTT 3.1.1."""

from __future__ import annotations

from typing import Any

import pytest

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import (
    Auth,
    AuthProperties,
    Connack,
    ConnackProperties,
    Connect,
    ConnectProperties,
    Disconnect,
    Packet,
    PacketDecoder,
    Puback,
    Publish,
    PublishProperties,
    Pubrel,
    ReasonProperties,
    Suback,
    Subscribe,
    SubscribeProperties,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    connack_return_code,
    encode,
)
from statestore_client.mqtt.packets.primitives import encode_variable


def publish(**properties: Any) -> Publish:
    return Publish("t", properties=PublishProperties(**properties))


REFUSED_5_0: list[Packet] = [
    Publish(""),
    Publish("a/+"),
    Publish("a\0"),
    Publish("\ud800"),
    Publish("x" * 65_536),
    Publish("t", qos=3, packet_id=1),
    Publish("t", qos=-1, packet_id=1),
    Publish("t", qos=1),
    Publish("t", qos=1, packet_id=65_536),
    Publish("t", packet_id=1),
    Publish("t", dup=True),
    publish(payload_format=2),
    publish(message_expiry=-1),
    publish(message_expiry=1 << 32),
    publish(content_type="\0"),
    publish(content_type="x" * 65_536),
    publish(response_topic=""),
    publish(response_topic="a/#"),
    publish(correlation_data=b"x" * 65_536),
    publish(user_properties=(("a", "\0"),)),
    publish(user_properties=(("\udfff", ""),)),
    publish(subscription_ids=(1, 0)),
    publish(subscription_ids=(268_435_456,)),
    publish(topic_alias=0),
    publish(topic_alias=65_536),
    Puback(0),
    Puback(65_536),
    Puback(1, 0x92),
    Pubrel(1, 0x10),
    Puback(1, properties=ReasonProperties(reason_string="\0")),
    Connect("c", version=3),
    Connect("c", keep_alive=65_536),
    Connect("c", keep_alive=-1),
    Connect("c", password=b"x" * 65_536),
    Connect("c", will=Will("a/#")),
    Connect("c", will=Will("a", qos=3)),
    Connect("c", properties=ConnectProperties(receive_maximum=0)),
    Connect("c", properties=ConnectProperties(maximum_packet_size=0)),
    Connect("c", properties=ConnectProperties(request_problem_information=2)),
    Connect("c", properties=ConnectProperties(authentication_data=b"x")),
    Connack(session_present=True, reason_code=0x80),
    Connack(reason_code=0x01),
    Connack(properties=ConnackProperties(maximum_qos=2)),
    Subscribe(1, ()),
    Subscribe(0, (Subscription("a"),)),
    Subscribe(1, (Subscription("a/#/b"),)),
    Subscribe(1, (Subscription("a", 3),)),
    Subscribe(1, (Subscription("a", retain_handling=3),)),
    Subscribe(1, (Subscription("$share/g/a", no_local=True),)),
    Subscribe(1, (Subscription("a"),), SubscribeProperties(subscription_id=0)),
    Suback(1, ()),
    Suback(1, (3,)),
    Unsubscribe(1, ()),
    Unsubscribe(1, ("",)),
    Unsubscribe(1, ("a",), SubscribeProperties(subscription_id=1)),
    Unsuback(1, ()),
    Unsuback(1, (1,)),
    Disconnect(0x84),
    Auth(0x18),
    Auth(0x01, AuthProperties("m")),
]

REFUSED_3_1_1: list[Packet] = [
    Auth(),
    Disconnect(0x04),
    Disconnect(0x8E),
    Connack(reason_code=0x82),
    Connect("", version=4, clean_start=False),
    Connect("c", version=4, password=b"p"),
    Publish("", properties=PublishProperties(topic_alias=1)),
]


@pytest.mark.parametrize("packet", REFUSED_5_0, ids=repr)
def test_refused_in_5_0(packet: Packet) -> None:
    """A packet that the standard does not allow is not written, the second time neither, although parts of packets are
    remembered."""
    for _ in range(2):
        with pytest.raises(InvalidArgumentError):
            encode(packet, 5)


@pytest.mark.parametrize("packet", REFUSED_3_1_1, ids=repr)
def test_refused_in_3_1_1(packet: Packet) -> None:
    """A packet whose meaning MQTT 3.1.1 cannot express, and that must not be left out, is not written."""
    with pytest.raises(InvalidArgumentError):
        encode(packet, 4)


def test_other_versions_and_other_objects() -> None:
    """Other versions than MQTT 3.1.1 and 5.0, and objects that are not packets, are refused."""
    no_packet: Any = "text"
    for make in (
        lambda: encode(Publish("t"), 3),
        lambda: encode(no_packet),
        lambda: encode_variable(268_435_456),
        lambda: PacketDecoder(version=3, max_packet_size=100),
    ):
        with pytest.raises(InvalidArgumentError):
            make()


@pytest.mark.parametrize(
    ("packet", "text"),
    [
        (Puback(10, 0x97, ReasonProperties("full")), "4002000A"),
        (Suback(10, (1, 0x87, 0x8F)), "9005000A018080"),
        (Unsuback(10, (0, 0x11)), "B002000A"),
        (
            Publish("t", b"x", properties=PublishProperties(content_type="c", user_properties=(("a", "b"),))),
            "300400017478",
        ),
        (Subscribe(10, (Subscription("a", 1, retain_as_published=True, retain_handling=2),)), "8206000A00016101"),
        (Connack(reason_code=0x89), "20020003"),
        (Connack(properties=ConnackProperties(server_keep_alive=5)), "20020000"),
    ],
    ids=repr,
)
def test_what_3_1_1_leaves_out(packet: Packet, text: str) -> None:
    """Properties and finer reason codes are left out for a 3.1.1 peer."""
    assert encode(packet, 4) == bytes.fromhex(text)


@pytest.mark.parametrize(
    ("reason_code", "return_code"),
    [(0x00, 0), (0x84, 1), (0x85, 2), (0x88, 3), (0x86, 4), (0x87, 5), (0x8A, 5), (0x81, None), (0x95, None)],
)
def test_connack_return_codes(reason_code: int, return_code: int | None) -> None:
    """CONNACK reason codes have the return codes of MQTT 3.1.1, table 3.1, where there is one."""
    assert connack_return_code(reason_code) == return_code


def test_topic_alias_with_and_without_subscription_identifier() -> None:
    """A message may have a topic alias in place of its topic, with and without a property that only servers send."""
    for block, ids in (("03 230102", ()), ("05 0B07 230102", (7,))):
        body = bytes.fromhex("0000" + block)
        packet = Publish("", properties=PublishProperties(topic_alias=258, subscription_ids=ids))
        data = bytes((0x30, len(body))) + body
        assert PacketDecoder(version=5, max_packet_size=100).feed(data) == [packet]
        assert encode(packet) == data

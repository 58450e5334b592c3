"""Sessions of paho-mqtt and mosquitto, recorded on the wire: ``captures/*.txt`` say how.

Each is decoded as a server and a client would do it, compared to values written by hand, and encoded again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore_client.mqtt.packets import (
    Connack,
    ConnackProperties,
    Connect,
    ConnectProperties,
    Disconnect,
    DisconnectProperties,
    Packet,
    PacketDecoder,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeProperties,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    WillProperties,
    encode,
)

CAPTURES = Path(__file__).parent / "captures"

NOISE = b"\x00\xff" * 100
USERS = (("__ts", "001696374425000:00000:CLIENT"), ("empty", ""), ("Größe", "10 µm"))
UNWANTED = ("plant/+/state", "never/subscribed")
NONE = PublishProperties()
LIMITS = ConnackProperties(topic_alias_maximum=10, receive_maximum=20)  # mosquitto's


def full(*subscription_ids: int) -> PublishProperties:
    return PublishProperties(
        payload_format=1,
        message_expiry=3600,
        content_type="application/json",
        response_topic="answers/recorder",
        correlation_data=bytes(range(16)),
        user_properties=USERS,
        subscription_ids=subscription_ids,
    )


def tool_message(*, topic_alias: int | None = None) -> PublishProperties:
    return PublishProperties(
        payload_format=1,
        message_expiry=9,
        content_type="text/plain",
        response_topic="m/answers",
        correlation_data=b"c-1",
        user_properties=(("k", "v"),),
        topic_alias=topic_alias,
    )


def asked(
    connect: Connect, subscribe: Subscribe, unsubscribe: Unsubscribe, bye: Disconnect, given: PublishProperties
) -> list[Packet]:
    """What the recorder in paho said: each kind of message in each quality, with these properties, and a pause."""
    return [
        *(connect, subscribe),
        Publish("plant/1/state", b"zero", properties=given),
        *(Publish("plant/1/state", b'{"on":true}', qos=1, packet_id=3, properties=given), Puback(1)),
        *(Publish("plant/2/state", NOISE, qos=2, packet_id=4, properties=given), Pubrel(4), Pubrec(2), Pubcomp(2)),
        *(Publish("plant/3/state", b"kept", qos=1, retain=True, packet_id=5), Puback(3)),
        *(Publish("plant/3/state", b"", qos=1, retain=True, packet_id=6), Puback(4)),
        *(Pingreq(), unsubscribe, bye),
    ]


def answered(
    connack: Connack, unsuback: Unsuback, given: PublishProperties, own: PublishProperties, *, retain: bool
) -> list[Packet]:
    """What mosquitto answered: its messages have these properties, the retained ones only its ``own``."""
    return [
        *(connack, Suback(1, (2, 1))),
        Publish("plant/1/state", b"zero", properties=given),
        *(Publish("plant/1/state", b'{"on":true}', qos=1, packet_id=1, properties=given), Puback(3), Pubrec(4)),
        *(Publish("plant/2/state", NOISE, qos=2, packet_id=2, properties=given), Pubcomp(4), Pubrel(2)),
        *(Publish("plant/3/state", b"kept", qos=1, retain=retain, packet_id=3, properties=own), Puback(5)),
        *(Publish("plant/3/state", b"", qos=1, retain=retain, packet_id=4, properties=own), Puback(6)),
        *(Pingresp(), unsuback),
    ]


def twin(version: int = 5, **properties: int) -> list[Packet]:
    """What ``mosquitto_sub`` says first."""
    given = ConnectProperties(**properties)
    connect = Connect("twin", version=version, clean_start=False, keep_alive=60, properties=given)
    return [connect, Subscribe(1, (Subscription("m/#", 1),))]


# (capture, connection, direction) -> packets. '>' went to the server.
EXPECTED: dict[tuple[str, int, str], list[Packet]] = {
    ("paho_5_0", 1, ">"): asked(
        Connect(
            "recorder",
            clean_start=False,
            keep_alive=2,
            username="ada",
            password=b"secret",
            will=Will(
                "wills/recorder",
                b"gone",
                qos=1,
                retain=True,
                properties=WillProperties(
                    will_delay=5,
                    payload_format=1,
                    message_expiry=60,
                    content_type="text/plain",
                    response_topic="wills/answers",
                    correlation_data=b"\x00\x01",
                    user_properties=(("will", "yes"),),
                ),
            ),
            properties=ConnectProperties(
                session_expiry=120,
                receive_maximum=10,
                maximum_packet_size=65_536,
                topic_alias_maximum=5,
                request_response_information=1,
                request_problem_information=1,
                user_properties=(("a", "1"), ("a", "2")),
            ),
        ),
        Subscribe(
            1,
            (
                Subscription("plant/+/state", 2, retain_as_published=True, retain_handling=1),
                Subscription("$share/g/jobs/#", 1),
            ),
            SubscribeProperties(subscription_id=300, user_properties=(("who", "recorder"),)),
        ),
        Unsubscribe(7, UNWANTED, SubscribeProperties(user_properties=(("who", "recorder"),))),
        Disconnect(4, DisconnectProperties(session_expiry=0)),
        full(),
    ),
    ("paho_5_0", 1, "<"): answered(
        Connack(properties=LIMITS),
        Unsuback(7, (0, 0x11)),
        full(300),
        PublishProperties(subscription_ids=(300,)),
        retain=True,
    ),
    ("paho_3_1_1", 1, ">"): asked(
        Connect(
            "recorder",
            version=4,
            clean_start=False,
            keep_alive=2,
            username="ada",
            password=b"secret",
            will=Will("wills/recorder", b"gone", qos=2, retain=True),
        ),
        Subscribe(1, (Subscription("plant/+/state", 2), Subscription("jobs/#", 1))),
        Unsubscribe(7, UNWANTED),
        Disconnect(),
        NONE,
    ),
    ("paho_3_1_1", 1, "<"): answered(Connack(), Unsuback(7), NONE, NONE, retain=False),
    ("paho_auth", 1, ">"): [
        Connect(
            "auth",
            keep_alive=60,
            properties=ConnectProperties(authentication_method="SCRAM-SHA-1", authentication_data=b"client-first"),
        ),
    ],
    ("paho_auth", 1, "<"): [Connack(reason_code=0x8C)],
    ("mosquitto_5_0", 1, ">"): twin(session_expiry=30, receive_maximum=20),
    ("mosquitto_5_0", 1, "<"): [Connack(properties=LIMITS), Suback(1, (1,))],
    ("mosquitto_5_0", 2, ">"): [*twin(session_expiry=30, receive_maximum=1), Puback(1), Disconnect()],
    ("mosquitto_5_0", 2, "<"): [
        *(Connack(session_present=True, properties=LIMITS), Suback(1, (1,))),
        Publish("m/1", b"first", qos=1, packet_id=1, properties=tool_message()),
    ],
    ("mosquitto_5_0", 3, ">"): [
        Connect("pub", keep_alive=60, properties=ConnectProperties(receive_maximum=20)),
        Publish("m/1", b"first", qos=1, packet_id=1, properties=tool_message(topic_alias=1)),
        Publish("", b"second", qos=1, packet_id=2, properties=tool_message(topic_alias=1)),
        Disconnect(),
    ],
    ("mosquitto_5_0", 3, "<"): [Connack(properties=LIMITS), Puback(1), Puback(2)],
    ("mosquitto_3_1_1", 1, ">"): [*twin(4), Puback(2)],
    ("mosquitto_3_1_1", 1, "<"): [
        *(Connack(session_present=True), Publish("m/1", b"second", qos=1, packet_id=2), Suback(1, (1,))),
    ],
    ("mosquitto_3_1_1", 2, ">"): [*twin(4), Puback(3)],
    ("mosquitto_3_1_1", 2, "<"): [
        *(Connack(session_present=True), Suback(1, (1,))),
        *(Publish("m/1", b"first", qos=1, packet_id=3), Publish("m/1", b"second", qos=1, packet_id=4)),
    ],
    ("mosquitto_3_1_1", 3, ">"): [
        Connect("pub", version=4, keep_alive=60),
        *(Publish("m/1", b"first", qos=1, packet_id=1), Publish("m/1", b"second", qos=1, packet_id=2)),
        Disconnect(),
    ],
    ("mosquitto_3_1_1", 3, "<"): [Connack(), Puback(1), Puback(2)],
}

#: mosquitto orders the properties of these packets otherwise than by identifier.
REORDERED = {
    ("paho_5_0", 1, "<"): 3,
    ("mosquitto_5_0", 2, "<"): 1,
    ("mosquitto_5_0", 3, ">"): 2,
}

STREAMS = pytest.mark.parametrize("where", EXPECTED, ids=str)


def recorded(where: tuple[str, int, str]) -> bytes:
    """The bytes that went in one direction of one connection."""
    name, connection, direction = where
    lines = (CAPTURES / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    start = lines.index(f"[connection {connection}]") + 1
    stream = b""
    for line in lines[start:]:
        if line.startswith("["):
            break
        if line.startswith(direction):
            stream += bytes.fromhex(line[1:])
    return stream


def version_of(where: tuple[str, int, str]) -> int:
    return 4 if where[0].endswith("3_1_1") else 5


def decoder_for(where: tuple[str, int, str]) -> PacketDecoder:
    return PacketDecoder(version=None if where[2] == ">" else version_of(where), max_packet_size=100_000)


@STREAMS
def test_decoded(where: tuple[str, int, str]) -> None:
    """A recorded stream decodes to the packets that its session was made of."""
    decoder = decoder_for(where)
    assert decoder.feed(recorded(where)) == EXPECTED[where]
    assert decoder.version == version_of(where)
    assert decoder.buffered == 0


@STREAMS
def test_encoded_again(where: tuple[str, int, str]) -> None:
    """Each packet encodes to the recorded bytes, or to the same bytes with its properties in order."""
    decoder, raw, reordered = decoder_for(where), b"", 0
    for byte in recorded(where):
        raw += bytes((byte,))
        for packet in decoder.feed(raw[-1:]):
            again = encode(packet, version_of(where))
            if again != raw:
                reordered += 1
                assert sorted(again) == sorted(raw)
            raw = b""
    assert reordered == REORDERED.get(where, 0)

"""MQTT 3.1.1 and 5.0 packets: values, and the codec between them and bytes. Pure; both directions.

::

    decoder = PacketDecoder(version=None, max_packet_size=1_048_576)
    for packet in decoder.feed(data): ...
    data = encode(Connack(session_present=False), version)
"""

from __future__ import annotations

from statestore_client.mqtt.packets.decoder import (
    DEFAULT_MAX_FILTERS,
    DEFAULT_MAX_USER_PROPERTIES,
    MessageDecoder,
    PacketDecoder,
)
from statestore_client.mqtt.packets.encoder import encode
from statestore_client.mqtt.packets.publish import encode_message
from statestore_client.mqtt.packets.topics import (
    SHARE_PREFIX,
    split_shared_filter,
    topic_filter_problem,
    topic_name_problem,
    validate_topic_filter,
    validate_topic_name,
)
from statestore_client.mqtt.packets.types import (
    DEFAULT_RECEIVE_MAXIMUM,
    MQTT_3_1_1,
    MQTT_5_0,
    Auth,
    AuthProperties,
    Connack,
    ConnackProperties,
    Connect,
    ConnectProperties,
    Disconnect,
    DisconnectProperties,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    ReasonCode,
    ReasonProperties,
    Suback,
    Subscribe,
    SubscribeProperties,
    Subscription,
    Unsuback,
    Unsubscribe,
    UserProperties,
    Will,
    WillProperties,
    connack_return_code,
)

__all__ = [
    "DEFAULT_MAX_FILTERS",
    "DEFAULT_MAX_USER_PROPERTIES",
    "DEFAULT_RECEIVE_MAXIMUM",
    "MQTT_3_1_1",
    "MQTT_5_0",
    "SHARE_PREFIX",
    "Auth",
    "AuthProperties",
    "Connack",
    "ConnackProperties",
    "Connect",
    "ConnectProperties",
    "Disconnect",
    "DisconnectProperties",
    "MessageDecoder",
    "Packet",
    "PacketDecoder",
    "Pingreq",
    "Pingresp",
    "Puback",
    "Pubcomp",
    "Publish",
    "PublishProperties",
    "Pubrec",
    "Pubrel",
    "ReasonCode",
    "ReasonProperties",
    "Suback",
    "Subscribe",
    "SubscribeProperties",
    "Subscription",
    "Unsuback",
    "Unsubscribe",
    "UserProperties",
    "Will",
    "WillProperties",
    "connack_return_code",
    "encode",
    "encode_message",
    "split_shared_filter",
    "topic_filter_problem",
    "topic_name_problem",
    "validate_topic_filter",
    "validate_topic_name",
]

"""From packets to bytes.

What 3.1.1 cannot say is left out where that is what serving an old client means (properties, reason codes of
acknowledgements), and refused where leaving it out would say something else (AUTH, a DISCONNECT with a reason).
Source: MQTT 5.0 section 3, MQTT 3.1.1 section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import properties as layouts
from statestore_client.mqtt.packets import types
from statestore_client.mqtt.packets.connect import encode_connect_body
from statestore_client.mqtt.packets.primitives import encode_text, encode_variable
from statestore_client.mqtt.packets.publish import encode_publish
from statestore_client.mqtt.packets.topics import SHARE_PREFIX, validate_topic_filter
from statestore_client.mqtt.packets.types import (
    MQTT_3_1_1,
    MQTT_5_0,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)

_Encoder: TypeAlias = Callable[[Any, int], bytes]
_ReasonPacket: TypeAlias = Puback | Pubrec | Pubrel | Pubcomp


def encode(packet: Packet, version: int = MQTT_5_0) -> bytes:
    """The bytes of ``packet`` on a connection of this protocol version. A CONNECT is written in the version it names.

    :raises InvalidArgumentError: MQTT has no such packet: a value out of range, a topic with wildcards, an AUTH in
        3.1.1, a CONNACK reason code without a 3.1.1 return code (see :func:`connack_return_code`).
    """
    if version != MQTT_5_0 and version != MQTT_3_1_1:
        raise InvalidArgumentError(f"protocol version {version}")
    try:
        encoder = _ENCODERS[type(packet)]
    except KeyError:
        raise InvalidArgumentError(f"{type(packet).__name__} is not an MQTT packet") from None
    return encoder(packet, version)


def _framed(first: int, body: bytes) -> bytes:
    return bytes((first,)) + encode_variable(len(body)) + body


def _packet_id(packet_id: int) -> bytes:
    if not 0 < packet_id < 65_536:
        raise InvalidArgumentError(f"packet identifier {packet_id}")
    return packet_id.to_bytes(2, "big")


def _checked(code: int, allowed: frozenset[int], packet: Packet) -> int:
    if code not in allowed:
        raise InvalidArgumentError(f"reason code {code:#04x} does not belong to {type(packet).__name__}")
    return code


# -- the connection ---------------------------------------------------------------------------------------------------


def _connect(packet: Connect, _version: int) -> bytes:
    return _framed(0x10, encode_connect_body(packet))


def _connack(packet: Connack, version: int) -> bytes:
    code = _checked(packet.reason_code, types.CONNACK_CODES, packet)
    if packet.session_present and code:
        raise InvalidArgumentError("session present with a refusal")
    if version == MQTT_5_0:
        body = bytes((bool(packet.session_present), code)) + layouts.CONNACK.encode(packet.properties)
        return _framed(0x20, body)
    return_code = types.connack_return_code(code)
    if return_code is None:
        raise InvalidArgumentError(f"MQTT 3.1.1 has no return code for {code:#04x}: close without a CONNACK")
    return bytes((0x20, 2, bool(packet.session_present), return_code))


def _disconnect(packet: Disconnect, version: int) -> bytes:
    code = _checked(packet.reason_code, types.DISCONNECT_CODES, packet)
    if version == MQTT_3_1_1:
        if code:
            # A will that should go out would not: in 3.1.1 every DISCONNECT deletes it.
            raise InvalidArgumentError("a DISCONNECT of MQTT 3.1.1 has no reason: just close")
        return b"\xe0\x00"
    properties = layouts.DISCONNECT.encode(packet.properties)
    if properties != b"\0":
        return _framed(0xE0, bytes((code,)) + properties)
    return bytes((0xE0, 1, code)) if code else b"\xe0\x00"


def _auth(packet: Auth, version: int) -> bytes:
    if version == MQTT_3_1_1:
        raise InvalidArgumentError("MQTT 3.1.1 has no AUTH")
    code = _checked(packet.reason_code, types.AUTH_CODES, packet)
    properties = layouts.AUTH.encode(packet.properties)
    if not code and properties == b"\0":
        return b"\xf0\x00"
    if packet.properties.authentication_method is None:
        raise InvalidArgumentError("AUTH without its authentication method")
    return _framed(0xF0, bytes((code,)) + properties)


def _pingreq(_packet: Pingreq, _version: int) -> bytes:
    return b"\xc0\x00"


def _pingresp(_packet: Pingresp, _version: int) -> bytes:
    return b"\xd0\x00"


# -- acknowledgements of PUBLISH --------------------------------------------------------------------------------------


def _acknowledgement(first: int, codes: frozenset[int]) -> _Encoder:
    """PUBACK and its like, in the shortest of their three forms. (MQTT 5.0, 3.4.2.1)"""
    short = bytes((first, 2))
    with_code = bytes((first, 3))

    def encode_acknowledgement(packet: _ReasonPacket, version: int) -> bytes:
        packet_id, code, properties = packet.packet_id, packet.reason_code, packet.properties
        if not 0 < packet_id < 65_536:
            raise InvalidArgumentError(f"packet identifier {packet_id}")
        if not code and properties.reason_string is None and not properties.user_properties:
            return short + packet_id.to_bytes(2, "big")
        _checked(code, codes, packet)
        if version == MQTT_3_1_1:
            return short + packet_id.to_bytes(2, "big")
        block = layouts.REASON.encode(properties)
        if block == b"\0":
            return with_code + packet_id.to_bytes(2, "big") + bytes((code,))
        return _framed(first, packet_id.to_bytes(2, "big") + bytes((code,)) + block)

    return encode_acknowledgement


# -- subscribing ------------------------------------------------------------------------------------------------------


def _subscribe(packet: Subscribe, version: int) -> bytes:
    out = bytearray(_packet_id(packet.packet_id))
    if version == MQTT_5_0:
        out += layouts.SUBSCRIBE.encode(packet.properties)
    if not packet.subscriptions:
        raise InvalidArgumentError("SUBSCRIBE without a topic filter")
    for subscription in packet.subscriptions:
        validate_topic_filter(subscription.topic_filter)
        out += encode_text(subscription.topic_filter)
        out.append(_options(subscription, version))
    return _framed(0x82, bytes(out))


def _options(subscription: Subscription, version: int) -> int:
    if subscription.qos not in (0, 1, 2) or subscription.retain_handling not in (0, 1, 2):
        raise InvalidArgumentError(f"QoS {subscription.qos}, retain handling {subscription.retain_handling}")
    if version == MQTT_3_1_1:
        return subscription.qos
    if subscription.no_local and subscription.topic_filter.startswith(SHARE_PREFIX):
        raise InvalidArgumentError("no local on a shared subscription")
    no_local = 4 if subscription.no_local else 0
    as_published = 8 if subscription.retain_as_published else 0
    return subscription.qos | no_local | as_published | subscription.retain_handling << 4


def _unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    out = bytearray(_packet_id(packet.packet_id))
    if packet.properties.subscription_id is not None:
        raise InvalidArgumentError("UNSUBSCRIBE has no subscription identifier")
    if version == MQTT_5_0:
        out += layouts.UNSUBSCRIBE.encode(packet.properties)
    if not packet.topic_filters:
        raise InvalidArgumentError("UNSUBSCRIBE without a topic filter")
    for topic_filter in packet.topic_filters:
        validate_topic_filter(topic_filter)
        out += encode_text(topic_filter)
    return _framed(0xA2, bytes(out))


def _suback(packet: Suback, version: int) -> bytes:
    packet_id = _packet_id(packet.packet_id)
    codes = bytes([_checked(code, types.SUBACK_CODES, packet) for code in packet.reason_codes])
    if not codes:
        raise InvalidArgumentError("SUBACK without a reason code")
    if version == MQTT_5_0:
        return _framed(0x90, packet_id + layouts.REASON.encode(packet.properties) + codes)
    return _framed(0x90, packet_id + bytes([min(code, 0x80) for code in codes]))


def _unsuback(packet: Unsuback, version: int) -> bytes:
    packet_id = _packet_id(packet.packet_id)
    codes = bytes([_checked(code, types.UNSUBACK_CODES, packet) for code in packet.reason_codes])
    if version == MQTT_3_1_1:
        return b"\xb0\x02" + packet_id
    if not codes:
        raise InvalidArgumentError("UNSUBACK without a reason code")
    return _framed(0xB0, packet_id + layouts.REASON.encode(packet.properties) + codes)


_ENCODERS: Final[dict[type[Packet], _Encoder]] = {
    Connect: _connect,
    Connack: _connack,
    Publish: encode_publish,
    Puback: _acknowledgement(0x40, types.PUBACK_CODES),
    Pubrec: _acknowledgement(0x50, types.PUBACK_CODES),
    Pubrel: _acknowledgement(0x62, types.PUBREL_CODES),
    Pubcomp: _acknowledgement(0x70, types.PUBREL_CODES),
    Subscribe: _subscribe,
    Suback: _suback,
    Unsubscribe: _unsubscribe,
    Unsuback: _unsuback,
    Pingreq: _pingreq,
    Pingresp: _pingresp,
    Disconnect: _disconnect,
    Auth: _auth,
}

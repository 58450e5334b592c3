"""MQTT control packets as values: one frozen class per packet, the same for MQTT 3.1.1 and 5.0.

Nothing here knows bytes: :mod:`.encoder` and :mod:`.decoder` do. In MQTT 3.1.1 the properties are empty and reason
codes are the ones that 5.0 would use; the codec translates (CONNACK return codes, SUBACK 0x80).
Which reason code belongs to which packet stands at the end, with the return codes of MQTT 3.1.1.

Source: MQTT 5.0 section 3, and 2.4 (the table of reason codes); MQTT 3.1.1 section 3, with 3.2.2.3 (CONNACK) and 3.9.3
(SUBACK).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeAlias

import attrs

from statestore_client.wire.hot_value import hot_value

MQTT_3_1_1: Final = 4
MQTT_5_0: Final = 5

#: What a peer accepts in flight when it names no Receive Maximum (MQTT 5.0, 3.1.2.11.3).
DEFAULT_RECEIVE_MAXIMUM: Final = 65_535

#: Name and value pairs in wire order; a name may repeat.
UserProperties: TypeAlias = tuple[tuple[str, str], ...]


class ReasonCode(IntEnum):
    """MQTT 5.0, 2.4. Codes below 0x80 are success. 0x00 is also *normal disconnection* and *granted QoS 0*."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


# In all property classes None means "not on the wire", which for some properties differs from every value.


@hot_value
class PublishProperties:
    """MQTT 5.0, 3.3.2.3."""

    payload_format: int | None = None
    message_expiry: int | None = None  # seconds
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: UserProperties = ()
    subscription_ids: tuple[int, ...] = ()
    topic_alias: int | None = None


@attrs.frozen
class WillProperties:
    """MQTT 5.0, 3.1.3.2."""

    will_delay: int | None = None  # seconds
    payload_format: int | None = None
    message_expiry: int | None = None  # seconds
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: UserProperties = ()


@attrs.frozen
class ConnectProperties:
    """MQTT 5.0, 3.1.2.11."""

    session_expiry: int | None = None  # seconds; 0xFFFFFFFF never expires
    receive_maximum: int | None = None
    maximum_packet_size: int | None = None
    topic_alias_maximum: int | None = None
    request_response_information: int | None = None
    request_problem_information: int | None = None
    user_properties: UserProperties = ()
    authentication_method: str | None = None
    authentication_data: bytes | None = None


@attrs.frozen
class ConnackProperties:
    """MQTT 5.0, 3.2.2.3."""

    session_expiry: int | None = None  # seconds
    receive_maximum: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    maximum_packet_size: int | None = None
    assigned_client_id: str | None = None
    topic_alias_maximum: int | None = None
    reason_string: str | None = None
    user_properties: UserProperties = ()
    wildcard_subscription_available: int | None = None
    subscription_ids_available: int | None = None
    shared_subscription_available: int | None = None
    server_keep_alive: int | None = None  # seconds
    response_information: str | None = None
    server_reference: str | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None


@attrs.frozen
class ReasonProperties:
    """Of PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK."""

    reason_string: str | None = None
    user_properties: UserProperties = ()


@attrs.frozen
class SubscribeProperties:
    """Of SUBSCRIBE; UNSUBSCRIBE has the user properties only."""

    subscription_id: int | None = None
    user_properties: UserProperties = ()


@attrs.frozen
class DisconnectProperties:
    """MQTT 5.0, 3.14.2.2."""

    session_expiry: int | None = None  # seconds
    reason_string: str | None = None
    user_properties: UserProperties = ()
    server_reference: str | None = None


@attrs.frozen
class AuthProperties:
    """MQTT 5.0, 3.15.2.2."""

    authentication_method: str | None = None
    authentication_data: bytes | None = None
    reason_string: str | None = None
    user_properties: UserProperties = ()


@attrs.frozen
class Will:
    """The message a server publishes for a client that goes without DISCONNECT.

    ``block`` is that of its PUBLISH: what ``properties`` was read from, without the will delay.
    """

    topic: str
    payload: bytes = attrs.field(default=b"", repr=False)
    qos: int = 0
    retain: bool = False
    properties: WillProperties = WillProperties()
    block: bytes | None = attrs.field(default=None, eq=False, repr=False)


@attrs.frozen
class Connect:
    """The first packet of a client. ``clean_start`` is *clean session* in 3.1.1."""

    client_id: str
    version: int = MQTT_5_0
    clean_start: bool = True
    keep_alive: int = 0  # seconds; 0 means none
    username: str | None = None
    password: bytes | None = attrs.field(default=None, repr=False)
    will: Will | None = None
    properties: ConnectProperties = ConnectProperties()
    is_3_1: bool = False  # of MQTT 3.1, which is read as 3.1.1, and never written


@attrs.frozen
class Connack:
    session_present: bool = False
    reason_code: int = 0
    properties: ConnackProperties = ConnackProperties()


@hot_value
class Publish:
    """``packet_id`` is 0 for QoS 0. ``topic`` is empty when a topic alias stands for it.

    ``block`` is what ``properties`` was read from, its length included, for those who forward all of it unchanged; None
    where there is no such thing. It is not written: :func:`encode` goes by ``properties``.
    """

    topic: str
    payload: bytes = attrs.field(default=b"", repr=False)
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: PublishProperties = PublishProperties()
    block: bytes | None = attrs.field(default=None, eq=False, repr=False)


@hot_value
class Puback:
    packet_id: int
    reason_code: int = 0
    properties: ReasonProperties = ReasonProperties()


@attrs.frozen
class Pubrec:
    packet_id: int
    reason_code: int = 0
    properties: ReasonProperties = ReasonProperties()


@attrs.frozen
class Pubrel:
    packet_id: int
    reason_code: int = 0
    properties: ReasonProperties = ReasonProperties()


@attrs.frozen
class Pubcomp:
    packet_id: int
    reason_code: int = 0
    properties: ReasonProperties = ReasonProperties()


@attrs.frozen
class Subscription:
    """One topic filter with its options (MQTT 5.0, 3.8.3.1)."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@attrs.frozen
class Subscribe:
    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: SubscribeProperties = SubscribeProperties()


@attrs.frozen
class Suback:
    packet_id: int
    reason_codes: tuple[int, ...]
    properties: ReasonProperties = ReasonProperties()


@attrs.frozen
class Unsubscribe:
    packet_id: int
    topic_filters: tuple[str, ...]
    properties: SubscribeProperties = SubscribeProperties()


@attrs.frozen
class Unsuback:
    """``reason_codes`` is empty in 3.1.1."""

    packet_id: int
    reason_codes: tuple[int, ...] = ()
    properties: ReasonProperties = ReasonProperties()


@attrs.frozen
class Pingreq:
    pass


@attrs.frozen
class Pingresp:
    pass


@attrs.frozen
class Disconnect:
    reason_code: int = 0
    properties: DisconnectProperties = DisconnectProperties()


@attrs.frozen
class Auth:
    reason_code: int = 0
    properties: AuthProperties = AuthProperties()


Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)


CONNACK_CODES: Final = frozenset(
    {ReasonCode.SUCCESS, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F}
)
#: PUBACK and PUBREC.
PUBACK_CODES: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
#: PUBREL and PUBCOMP.
PUBREL_CODES: Final = frozenset({ReasonCode.SUCCESS, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND})
SUBACK_CODES: Final = frozenset({0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2})
SUBACK_CODES_3_1_1: Final = frozenset({0x00, 0x01, 0x02, 0x80})
UNSUBACK_CODES: Final = frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91})
# 0x8C stands in the table of 2.4 and is missing in that of 3.14.2.1.
DISCONNECT_CODES: Final = frozenset(
    {0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, 0x8C, *range(0x8D, 0x91), *range(0x93, 0xA3)}
)
AUTH_CODES: Final = frozenset({ReasonCode.SUCCESS, ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.REAUTHENTICATE})

#: CONNACK return code of 3.1.1 (the index) -> reason code.
CONNACK_FROM_3_1_1: Final = (
    ReasonCode.SUCCESS,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED,
)

# The exact counterparts, then codes that only 5.0 tells apart, under the one that makes a client do the same.
_CONNACK_TO_3_1_1: Final[dict[int, int]] = {
    **{code: number for number, code in enumerate(CONNACK_FROM_3_1_1)},
    ReasonCode.SERVER_BUSY: 3,
    ReasonCode.QUOTA_EXCEEDED: 3,
    ReasonCode.USE_ANOTHER_SERVER: 3,
    ReasonCode.SERVER_MOVED: 3,
    ReasonCode.CONNECTION_RATE_EXCEEDED: 3,
    ReasonCode.BAD_AUTHENTICATION_METHOD: 4,
    ReasonCode.BANNED: 5,
}


def connack_return_code(reason_code: int) -> int | None:
    """The 3.1.1 return code for a CONNACK reason code.

    None when 3.1.1 has no code for it: then the server closes without a CONNACK (MQTT 3.1.1, 3.2.2.3).
    """
    return _CONNACK_TO_3_1_1.get(reason_code)

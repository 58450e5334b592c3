"""CONNECT, both directions. It is the only packet that says its own version.

Source: MQTT 5.0 section 3.1, MQTT 3.1.1 section 3.1.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from statestore_client.errors import InvalidArgumentError, PacketError
from statestore_client.mqtt.packets import properties as layouts
from statestore_client.mqtt.packets.primitives import (
    Reader,
    encode_binary,
    encode_text,
    encode_unsigned,
    has_control,
    malformed,
    protocol_error,
)
from statestore_client.mqtt.packets.publish import Context
from statestore_client.mqtt.packets.topics import topic_name_problem, validate_topic_name
from statestore_client.mqtt.packets.types import MQTT_3_1_1, MQTT_5_0, Connect, ReasonCode, Will

_VERSIONS: Final = (MQTT_3_1_1, MQTT_5_0)
_PROTOCOL_NAME: Final = b"\x00\x04MQTT"

# MQTT 3.1, as clients spoke it before the standard.
_OLD_NAME: Final = b"MQIsdp"
_OLD_VERSION: Final = 3

#: CONNECT's user properties are read and forgotten; there may be this many times as many of them as elsewhere.
_MORE_USER_PROPERTIES: Final = 8

# Connect flags (MQTT 5.0, 3.1.2.3).
_RESERVED: Final = 0x01
_CLEAN_START: Final = 0x02
_WILL: Final = 0x04
_WILL_QOS: Final = 0x18
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USERNAME: Final = 0x80


# -- reading ----------------------------------------------------------------------------------------------------------


def parse_connect(first: int, data: bytes, pos: int, end: int, context: Context) -> Connect:
    """The CONNECT between ``pos`` and ``end``. Sets ``context.version`` as soon as it is known, if it was not.

    :raises PacketError: 0x84 for another version than 3.1, 3.1.1 and 5.0, 0x90 for a will topic with wildcards, 0x81
        and 0x82 as for every packet.
    """
    reader = Reader(data, pos, end)
    is_old, version = _version(reader)
    if first & 0x0F and not is_old:  # "not used" in 3.1, reserved since [MQTT-2.1.3-1]
        raise malformed("reserved flags", pos)
    if context.version is None:
        context.version = version
    flags = _flags(reader, version, is_old=is_old)
    keep_alive = reader.two_bytes()
    properties = layouts.CONNECT.empty
    if version == MQTT_5_0:
        start = reader.pos
        properties = layouts.CONNECT.decode(reader, max_repeats=_MORE_USER_PROPERTIES * context.max_user_properties)
        if properties.authentication_data is not None and properties.authentication_method is None:
            raise protocol_error("authentication data without a method", start)  # MQTT 5.0, 3.1.2.11.10
    client_id = _name(reader, context, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "the client identifier")
    if is_old and not client_id:
        raise PacketError("no client identifier", reason_code=ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, offset=reader.pos)
    will = _will(reader, flags, version, context) if flags & _WILL else None
    username = (
        _name(reader, context, ReasonCode.BAD_USER_NAME_OR_PASSWORD, "the user name") if flags & _USERNAME else None
    )
    password = reader.binary() if flags & _PASSWORD else None
    reader.finish()
    return Connect(
        client_id=client_id,
        version=version,
        clean_start=flags & _CLEAN_START != 0,
        keep_alive=keep_alive,
        username=username,
        password=password,
        will=will,
        properties=properties,
        is_3_1=is_old,
    )


def learn_version(data: bytes, pos: int, context: Context) -> None:
    """Set ``context.version`` from the beginning of a CONNECT that is not read any further; not if it is cut too early
    or asks for a version that does not exist.
    """
    with suppress(PacketError):
        context.version = _version(Reader(data, pos, len(data)))[1]


def _name(reader: Reader, context: Context, code: ReasonCode, what: str) -> str:
    """A string without control characters (MQTT 5.0, 1.5.4). A client that has some in a name is told so."""
    text = reader.text()
    if has_control(text) and context.is_from_client:
        raise PacketError(f"{what} has a control character", reason_code=code, offset=reader.pos)
    return text


def _version(reader: Reader) -> tuple[bool, int]:
    """Whether it is MQTT 3.1, and the version whose rules hold: 3.1 differs from 3.1.1 in CONNECT only."""
    start = reader.pos
    name = reader.binary()
    if name not in (_PROTOCOL_NAME[2:], _OLD_NAME):
        raise malformed(f"protocol {name[:16]!r}", start)  # perhaps no MQTT at all [MQTT-3.1.2-1]
    version = reader.byte()
    if name == _OLD_NAME and version == _OLD_VERSION:
        return True, MQTT_3_1_1
    if name == _OLD_NAME or version not in _VERSIONS:
        raise PacketError(
            f"protocol version {version}", reason_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, offset=reader.pos - 1
        )
    return False, version


def _flags(reader: Reader, version: int, *, is_old: bool) -> int:
    flags = reader.byte()
    start = reader.pos - 1
    if flags & _RESERVED and not is_old:  # MQTT 3.1 does not use the bit, and says nothing about it
        raise malformed("the reserved connect flag is set", start)  # [MQTT-3.1.2-3]
    if flags & _WILL_QOS == _WILL_QOS:
        raise malformed("will QoS 3", start)  # [MQTT-3.1.2-12]
    if not flags & _WILL and flags & (_WILL_QOS | _WILL_RETAIN):
        raise malformed("will QoS or will retain without a will", start)  # [MQTT-3.1.2-11], [MQTT-3.1.2-13]
    if version == MQTT_3_1_1 and flags & _PASSWORD and not flags & _USERNAME:
        raise malformed("a password without a user name", start)  # [MQTT-3.1.2-22] of 3.1.1
    return flags


def _will(reader: Reader, flags: int, version: int, context: Context) -> Will:
    properties, block = layouts.WILL.empty, None
    start = reader.pos
    if version == MQTT_5_0:
        properties = layouts.WILL.decode(reader, max_repeats=context.max_user_properties)
    if properties is not layouts.WILL.empty:
        block = layouts.without(reader.data[start : reader.pos], layouts.WILL_DELAY)
    start = reader.pos
    topic = _name(reader, context, ReasonCode.TOPIC_NAME_INVALID, "the topic of the will")
    if not topic and context.is_from_client:
        raise malformed("a topic has at least one character", start)  # [MQTT-4.7.3-1]
    problem = topic_name_problem(topic)
    if problem is not None:
        raise PacketError(f"will topic: {problem}", reason_code=ReasonCode.TOPIC_NAME_INVALID, offset=start)
    return Will(topic, reader.binary(), flags >> 3 & 3, flags & _WILL_RETAIN != 0, properties, block)


# -- writing ----------------------------------------------------------------------------------------------------------


def encode_connect_body(packet: Connect) -> bytes:
    """Variable header and payload of ``packet``, in the version that it names.

    :raises InvalidArgumentError: a value that this version does not allow.
    """
    if packet.version not in _VERSIONS:
        raise InvalidArgumentError(f"protocol version {packet.version}")
    out = bytearray(_PROTOCOL_NAME)
    out += bytes((packet.version, _connect_flags(packet)))
    out += encode_unsigned(packet.keep_alive, 2)
    if packet.version == MQTT_5_0:
        if packet.properties.authentication_data is not None and packet.properties.authentication_method is None:
            raise InvalidArgumentError("authentication data without a method")
        out += layouts.CONNECT.encode(packet.properties)
    out += encode_text(packet.client_id)
    if packet.will is not None:
        out += _encode_will(packet.will, packet.version)
    if packet.username is not None:
        out += encode_text(packet.username)
    if packet.password is not None:
        out += encode_binary(packet.password)
    return bytes(out)


def _connect_flags(packet: Connect) -> int:
    if packet.version == MQTT_3_1_1:
        if packet.password is not None and packet.username is None:
            raise InvalidArgumentError("MQTT 3.1.1 has no password without a user name")
        if not packet.client_id and not packet.clean_start:
            raise InvalidArgumentError("MQTT 3.1.1 has no session without a client identifier")  # [MQTT-3.1.3-7]
    flags = _CLEAN_START if packet.clean_start else 0
    if packet.username is not None:
        flags |= _USERNAME
    if packet.password is not None:
        flags |= _PASSWORD
    if packet.will is not None:
        if packet.will.qos not in (0, 1, 2):
            raise InvalidArgumentError(f"will QoS {packet.will.qos}")
        flags |= _WILL | packet.will.qos << 3 | (_WILL_RETAIN if packet.will.retain else 0)
    return flags


def _encode_will(will: Will, version: int) -> bytes:
    validate_topic_name(will.topic)
    properties = layouts.WILL.encode(will.properties) if version == MQTT_5_0 else b""
    return properties + encode_text(will.topic) + encode_binary(will.payload)

"""From a stream of bytes, cut anywhere, to packets.

The rules of this file:

* A chunk that holds whole packets is parsed where it lies; a payload is copied once, out of the chunk.
* Only what belongs to an unfinished packet is kept, in pieces that are not looked at again before the packet is
  complete: a stream that arrives byte by byte costs linear time. The payload of a large PUBLISH is put together from
  the pieces, and so is copied once as well; or it is received where it stays, and not copied at all.
* The size of a packet is checked when its length is known, before its body is waited for.
* After an error there is no next packet: the stream has lost its structure.
* Each packet but CONNECT and PUBLISH, which have modules of their own, has a parser here; one table for each version
  and side names them by the first byte.

Source: MQTT 5.0 sections 2.1, 1.5.5 and 3, MQTT 3.1.1 sections 2.2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeAlias, TypeVar

import attrs

from statestore_client.errors import InvalidArgumentError, PacketError
from statestore_client.mqtt.packets import properties as layouts
from statestore_client.mqtt.packets import types
from statestore_client.mqtt.packets.connect import learn_version, parse_connect
from statestore_client.mqtt.packets.forgiven import Forgiven
from statestore_client.mqtt.packets.primitives import Reader, decode_variable, malformed, protocol_error
from statestore_client.mqtt.packets.publish import Context, TopicAliases, decode_publish, decode_publish_3_1_1
from statestore_client.mqtt.packets.topics import SHARE_PREFIX, topic_filter_problem
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
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from statestore_client.wire.messages import IncomingMessage
from statestore_client.wire.protocol import FIRST_ERROR

#: Returns a :data:`Packet`, or an ``IncomingMessage`` where the context wants one.
Parser: TypeAlias = Callable[[int, bytes, int, int, Context], Any]

_ReasonPacket: TypeAlias = Puback | Pubrec | Pubrel | Pubcomp


def _reason_code(reader: Reader, allowed: frozenset[int], context: Context, kind: type[Packet]) -> int:
    start = reader.pos
    code = reader.byte()
    if code not in allowed:
        _unknown_code(code, context, kind, start)
    return code


def _unknown_code(code: int, context: Context, kind: type[Packet], offset: int) -> None:
    """A code below 0x80 that is not 0 is a refusal in a CONNACK of MQTT 3.1.1; an unknown step of authentication has no
    meaning. Of all other packets it is known which half of the codes is success.
    """
    means_something = kind is not Auth and (kind is not Connack or code >= FIRST_ERROR)
    if not (means_something and context.forgives(f"reason code {code:#04x} in {kind.__name__.upper()}")):
        raise protocol_error(f"reason code {code:#04x} does not belong here", offset)


# -- CONNACK, AUTH, DISCONNECT ----------------------------------------------------------------------------------------


def _connack(_first: int, data: bytes, pos: int, end: int, context: Context) -> Connack:
    reader = Reader(data, pos, end)
    session_present = _session_present(reader, context)
    code = _reason_code(reader, types.CONNACK_CODES, context, Connack)
    if session_present and code and not context.forgives("session present with a refusal"):
        raise protocol_error("session present with a refusal", pos)  # [MQTT-3.2.2-6]
    properties = layouts.CONNACK.decode(reader, max_repeats=context.max_user_properties, forgiven=context.forgiven)
    reader.finish()
    return Connack(session_present, code, properties)


def _connack_3_1_1(_first: int, data: bytes, pos: int, end: int, context: Context) -> Connack:
    reader = Reader(data, pos, end)
    session_present = _session_present(reader, context)
    code = reader.byte()
    if code >= len(types.CONNACK_FROM_3_1_1):
        raise protocol_error(f"return code {code}", pos + 1)
    if session_present and code:
        raise protocol_error("session present with a refusal", pos)  # [MQTT-3.2.2-4] of 3.1.1
    reader.finish()
    return Connack(session_present, types.CONNACK_FROM_3_1_1[code])


def _session_present(reader: Reader, context: Context) -> bool:
    flags = reader.byte()
    if flags > 1 and not context.forgives("reserved flags of CONNACK"):
        raise malformed("reserved flags of CONNACK", reader.pos - 1)
    return flags & 1 == 1


def _disconnect(_first: int, data: bytes, pos: int, end: int, context: Context) -> Disconnect:
    if pos == end:
        return Disconnect()
    reader = Reader(data, pos, end)
    code = _reason_code(reader, types.DISCONNECT_CODES, context, Disconnect)
    if end - pos == 1:
        return Disconnect(code)
    properties = layouts.DISCONNECT.decode(reader, max_repeats=context.max_user_properties, forgiven=context.forgiven)
    reader.finish()
    return Disconnect(code, properties)


def _auth(_first: int, data: bytes, pos: int, end: int, context: Context) -> Auth:
    if pos == end:
        return Auth()
    reader = Reader(data, pos, end)
    code = _reason_code(reader, types.AUTH_CODES, context, Auth)
    properties = layouts.AUTH.decode(reader, max_repeats=context.max_user_properties)
    reader.finish()
    if properties.authentication_method is None:
        raise protocol_error("AUTH without its authentication method", pos)  # MQTT 5.0, 3.15.2.2.2
    return Auth(code, properties)


def _disconnect_3_1_1(_first: int, _data: bytes, pos: int, end: int, _context: Context) -> Disconnect:
    _empty(pos, end)
    return Disconnect()


# -- acknowledgements of PUBLISH --------------------------------------------------------------------------------------


def _acknowledgement(cls: type[_ReasonPacket], codes: frozenset[int]) -> Parser:
    """A parser for PUBACK and its like. (MQTT 5.0, 3.4 to 3.7)"""

    def parse(_first: int, data: bytes, pos: int, end: int, context: Context) -> Packet:
        if end - pos == 2:
            packet_id = data[pos] << 8 | data[pos + 1]
            if packet_id:
                return cls(packet_id)
        reader = Reader(data, pos, end)
        packet_id = reader.packet_id()
        code = _reason_code(reader, codes, context, cls)
        if end - pos == 3:
            return cls(packet_id, code)
        properties = layouts.REASON.decode(reader, max_repeats=context.max_user_properties, forgiven=context.forgiven)
        reader.finish()
        return cls(packet_id, code, properties)

    return parse


def _acknowledgement_3_1_1(cls: type[_ReasonPacket | Unsuback]) -> Parser:
    def parse(_first: int, data: bytes, pos: int, end: int, _context: Context) -> Packet:
        if end - pos == 2:
            packet_id = data[pos] << 8 | data[pos + 1]
            if packet_id:
                return cls(packet_id)
        reader = Reader(data, pos, end)
        packet_id = reader.packet_id()
        reader.finish()
        return cls(packet_id)

    return parse


# -- subscribing ------------------------------------------------------------------------------------------------------
#
# The standard calls some mistakes in SUBSCRIBE and UNSUBSCRIBE malformed and some protocol errors. Brokers in use call
# all but those of shares malformed, and so do we: the connection is closed in any case.


def _subscribe(_first: int, data: bytes, pos: int, end: int, context: Context) -> Subscribe:
    reader = Reader(data, pos, end)
    packet_id = _subscription_packet_id(reader)
    properties = layouts.SUBSCRIBE.decode(reader, max_repeats=context.max_user_properties)
    subscriptions: list[Subscription] = []
    while reader.pos < end:
        topic_filter = _filter(reader, context, len(subscriptions))
        subscriptions.append(_with_options(topic_filter, reader))
    _has_filters(subscriptions, reader)
    return Subscribe(packet_id, tuple(subscriptions), properties)


def _with_options(topic_filter: str, reader: Reader) -> Subscription:
    start = reader.pos
    options = reader.byte()
    if options & 0xC0:
        raise malformed("reserved subscription options", start)  # [MQTT-3.8.3-5]
    qos, no_local, retain_handling = options & 3, bool(options & 4), options >> 4
    if qos == 3 or retain_handling == 3:
        raise malformed("QoS 3 or retain handling 3", start)
    if no_local and topic_filter.startswith(SHARE_PREFIX):
        raise protocol_error("no local on a shared subscription", start)  # [MQTT-3.8.3-4]
    return Subscription(topic_filter, qos, no_local, bool(options & 8), retain_handling)


def _subscribe_3_1_1(_first: int, data: bytes, pos: int, end: int, context: Context) -> Subscribe:
    reader = Reader(data, pos, end)
    packet_id = _subscription_packet_id(reader)
    subscriptions: list[Subscription] = []
    while reader.pos < end:
        topic_filter = _filter(reader, context, len(subscriptions))
        qos = reader.byte()
        if qos > 2:
            raise malformed(f"requested QoS {qos}", reader.pos - 1)  # [MQTT-3-8.3-4] of 3.1.1
        subscriptions.append(Subscription(topic_filter, qos))
    _has_filters(subscriptions, reader)
    return Subscribe(packet_id, tuple(subscriptions))


def _unsubscribe(_first: int, data: bytes, pos: int, end: int, context: Context) -> Unsubscribe:
    reader = Reader(data, pos, end)
    packet_id = _subscription_packet_id(reader)
    properties = layouts.UNSUBSCRIBE.empty
    if context.version == MQTT_5_0:
        properties = layouts.UNSUBSCRIBE.decode(reader, max_repeats=context.max_user_properties)
    filters: list[str] = []
    while reader.pos < end:
        filters.append(_filter(reader, context, len(filters)))
    _has_filters(filters, reader)
    return Unsubscribe(packet_id, tuple(filters), properties)


def _filter(reader: Reader, context: Context, count: int) -> str:
    """The next topic filter; ``count`` were read before it."""
    start = reader.pos
    if count >= context.max_filters:
        raise PacketError("too many topic filters", reason_code=ReasonCode.QUOTA_EXCEEDED, offset=start)
    topic_filter = reader.name() if context.is_from_client else reader.text()
    problem = topic_filter_problem(topic_filter, shared=context.version == MQTT_5_0)
    if problem is not None and topic_filter.startswith(SHARE_PREFIX):
        raise protocol_error(problem, start)  # [MQTT-4.8.2-1], [MQTT-4.8.2-2]
    if problem is not None:
        raise malformed(problem, start)  # 0x8F is for filters that are correctly formed, and not accepted
    return topic_filter


def _subscription_packet_id(reader: Reader) -> int:
    packet_id = reader.two_bytes()
    if packet_id == 0:
        raise malformed("packet identifier 0", reader.pos - 2)  # [MQTT-2.2.1-3]
    return packet_id


def _has_filters(items: object, reader: Reader) -> None:
    if not items:
        raise malformed("not one topic filter", reader.pos)  # [MQTT-3.8.3-2], [MQTT-3.10.3-2]


def _not_empty(codes: object, reader: Reader) -> None:
    if not codes:
        raise protocol_error("not one reason code", reader.pos)


def _reason_list(cls: type[Suback | Unsuback], codes: frozenset[int]) -> Parser:
    """A parser for SUBACK and UNSUBACK of MQTT 5.0. (3.9, 3.11)"""

    def parse(_first: int, data: bytes, pos: int, end: int, context: Context) -> Packet:
        reader = Reader(data, pos, end)
        packet_id = reader.packet_id()
        properties = layouts.REASON.decode(reader, max_repeats=context.max_user_properties, forgiven=context.forgiven)
        return cls(packet_id, _reason_codes(reader, codes, context, cls), properties)

    return parse


def _suback_3_1_1(_first: int, data: bytes, pos: int, end: int, context: Context) -> Suback:
    reader = Reader(data, pos, end)
    return Suback(reader.packet_id(), _reason_codes(reader, types.SUBACK_CODES_3_1_1, context, Suback))


def _reason_codes(
    reader: Reader, allowed: frozenset[int], context: Context, kind: type[Suback | Unsuback]
) -> tuple[int, ...]:
    start = reader.pos
    codes = reader.rest()
    _not_empty(codes, reader)
    for offset, code in enumerate(codes):
        if code not in allowed:
            _unknown_code(code, context, kind, start + offset)
    return tuple(codes)


# -- PINGREQ and PINGRESP ---------------------------------------------------------------------------------------------

_PINGREQ: Final = Pingreq()
_PINGRESP: Final = Pingresp()


def _pingreq(_first: int, _data: bytes, pos: int, end: int, _context: Context) -> Pingreq:
    _empty(pos, end)
    return _PINGREQ


def _pingresp(_first: int, _data: bytes, pos: int, end: int, _context: Context) -> Pingresp:
    _empty(pos, end)
    return _PINGRESP


def _empty(pos: int, end: int) -> None:
    if pos != end:
        raise malformed("this packet has no body", pos)


# -- the tables -------------------------------------------------------------------------------------------------------

#: QoS 3 does not exist, and a QoS 0 message is no duplicate. [MQTT-3.3.1-4], [MQTT-3.3.1-2]
_PUBLISH_FIRST_BYTES: Final = (*range(0x30, 0x36), *range(0x3A, 0x3E))


def _table(parsers: dict[int, Parser], publish: Parser) -> tuple[Parser | None, ...]:
    every = parsers | dict.fromkeys(_PUBLISH_FIRST_BYTES, publish)
    return tuple(every.get(first) for first in range(256))


PARSERS: Final = {
    MQTT_5_0: _table(
        {
            0x10: parse_connect,
            0x20: _connack,
            0x40: _acknowledgement(Puback, types.PUBACK_CODES),
            0x50: _acknowledgement(Pubrec, types.PUBACK_CODES),
            0x62: _acknowledgement(Pubrel, types.PUBREL_CODES),
            0x70: _acknowledgement(Pubcomp, types.PUBREL_CODES),
            0x82: _subscribe,
            0x90: _reason_list(Suback, types.SUBACK_CODES),
            0xA2: _unsubscribe,
            0xB0: _reason_list(Unsuback, types.UNSUBACK_CODES),
            0xC0: _pingreq,
            0xD0: _pingresp,
            0xE0: _disconnect,
            0xF0: _auth,
        },
        decode_publish,
    ),
    MQTT_3_1_1: _table(
        {
            0x10: parse_connect,
            0x20: _connack_3_1_1,
            0x40: _acknowledgement_3_1_1(Puback),
            0x50: _acknowledgement_3_1_1(Pubrec),
            0x62: _acknowledgement_3_1_1(Pubrel),
            0x70: _acknowledgement_3_1_1(Pubcomp),
            0x82: _subscribe_3_1_1,
            0x90: _suback_3_1_1,
            0xA2: _unsubscribe,
            0xB0: _acknowledgement_3_1_1(Unsuback),
            0xC0: _pingreq,
            0xD0: _pingresp,
            0xE0: _disconnect_3_1_1,
        },
        decode_publish_3_1_1,
    ),
}


def _from_clients(version: int, *, auth: bool) -> tuple[Parser | None, ...]:
    only_servers = (0x2, 0x9, 0xB, 0xD) if auth else (0x2, 0x9, 0xB, 0xD, 0xF)
    return tuple(None if first >> 4 in only_servers else parser for first, parser in enumerate(PARSERS[version]))


#: What a server reads, by version and whether CONNECT named a method of authentication: without one there is no AUTH
#: (MQTT-4.12.0-6). Packets that only servers send are not looked into.
CLIENT_PARSERS: Final = {
    (version, auth): _from_clients(version, auth=auth) for version in PARSERS for auth in (False, True)
}

_OF_3_1_1: Final = CLIENT_PARSERS[MQTT_3_1_1, False]


def _other_first(parser: Parser, proper: int, what: str) -> Parser:
    """A parser for packets whose first byte should be ``proper``."""

    def parse(_first: int, data: bytes, pos: int, end: int, context: Context) -> Packet | IncomingMessage:
        context.forgives(what)
        packet: Packet | IncomingMessage = parser(proper, data, pos, end, context)
        return packet

    return parse


_FORGIVEN_FIRST: Final = {
    0x38: _other_first(decode_publish, 0x30, "DUP with QoS 0"),
    0x39: _other_first(decode_publish, 0x31, "DUP with QoS 0"),
    0x60: _other_first(_acknowledgement(Pubrel, types.PUBREL_CODES), 0x62, "PUBREL without its flags"),
}
#: What a client reads that forgives (see :mod:`.forgiven`).
FORGIVING_PARSERS: Final = tuple(_FORGIVEN_FIRST.get(first, parser) for first, parser in enumerate(PARSERS[MQTT_5_0]))

#: MQTT 3.1 sends PUBREL, SUBSCRIBE and UNSUBSCRIBE again with DUP set (its section 2.1); the later versions forbid it.
CLIENT_PARSERS_3_1: Final = tuple(
    _OF_3_1_1[first & ~0x08] if first in (0x6A, 0x8A, 0xAA) else parser for first, parser in enumerate(_OF_3_1_1)
)


#: Bytes of a packet of a broker beside the payload of a message. Smaller packets need no look.
LONGEST_HEADER: Final = 1024 * 1024
_PUBLISH: Final = 0x30


def check_header(first: int, data: bytes | bytearray, body: int, end: int) -> int | None:
    """Look at an unfinished packet, of which ``data`` has the beginning; its body is from ``body`` to ``end``.

    A broker's packet may be large by its payload only. Whatever else is in it becomes objects, and whatever a state
    store says about a message takes a few hundred bytes. An endless list of properties would be collected to its end,
    268 MB, only to be refused for their number then.

    None when its header is small; otherwise how far ``data`` has to reach until that can be said.

    :raises PacketError: too large (0x95), or a property length of too many bytes. The offset counts in ``data``.
    """
    if first & 0xF0 != _PUBLISH:
        raise _too_large(f"a packet of {end - body} bytes that is not a message", body)
    at = body + 2  # after the topic and the packet identifier, where the length of the properties is
    if at <= len(data):
        at += (data[body] << 8 | data[body + 1]) + (2 if first & 6 else 0)
        found = decode_variable(bytes(data[at : at + 4]), 0, min(4, len(data) - at)) if at < len(data) else None
        if found is not None and found[0] > LONGEST_HEADER:
            raise _too_large(f"a message with {found[0]} bytes of properties", at)
        if found is not None:
            return None
    return min(max(at, len(data)) + 1, end)


def _too_large(text: str, offset: int) -> PacketError:
    return PacketError(text, reason_code=ReasonCode.PACKET_TOO_LARGE, offset=offset)


P = TypeVar("P")

#: One property is five bytes on the wire and about 200 as objects; a packet of a megabyte may not become forty.
DEFAULT_MAX_USER_PROPERTIES: Final = 1024
#: Each filter of a packet is work in the subscription tree. Clients that restore thousands send several packets.
DEFAULT_MAX_FILTERS: Final = 4096

#: What a server reads first. Flags in its first byte are for :func:`parse_connect` to judge: MQTT 3.1 ignores them.
_CONNECT_ONLY: Final[tuple[Parser | None, ...]] = (*(None,) * 0x10, *(parse_connect,) * 0x10, *(None,) * 0xE0)

#: Types that a client never sends, whatever is in them: none at all, CONNACK, SUBACK, UNSUBACK, PINGRESP, and AUTH,
#: which it may send after it has named its method in CONNECT only.
_FROM_SERVERS: Final = frozenset(
    (*range(0x10), *range(0x20, 0x30), 0x90, 0xB0, *range(0xD0, 0xE0), *range(0xF0, 0x100))
)

#: Pieces of an unfinished packet are joined up to this size: a piece is an object, and may be a single byte.
_SMALLEST_PIECE: Final = 4096
#: From this size on, the payload of a PUBLISH is put together by itself.
_LARGE: Final = 64 * 1024
#: Memory (bytes) is made ready for as much of a message; for more when that much has come, not when it was announced.
_AT_ONCE: Final = 16 * 1024 * 1024


class _Decoder(Generic[P]):
    """Decodes one direction of one connection, of either side.

    ``version`` is :data:`MQTT_3_1_1`, :data:`MQTT_5_0`, or None in a server: then the first packet has to be a CONNECT
    and says the version. ``max_packet_size`` bounds whole packets, in bytes, fixed header included, and
    ``max_connect_size``, if it is smaller, that CONNECT. One packet may carry ``max_user_properties`` of each
    repeatable property, and ``max_filters`` topic filters. With a ``topic_alias_maximum``, topic aliases are replaced
    by their topics, and wrong ones are refused (0x94). A client gives ``forgiven``: mistakes of a broker of MQTT 5 that
    harm nobody are let pass, and noted there.

    Which side may send a packet, and in which state, is not decided here.
    """

    __slots__ = (
        "_context",
        "_error",
        "_max_connect_size",
        "_max_packet_size",
        "_needed",
        "_parsers",
        "_pieces",
        "_seeks_header",
        "_taken",
        "buffered",
    )

    #: Whether messages come out as :class:`IncomingMessage` where that is enough.
    _WANTS_MESSAGES = False

    def __init__(
        self,
        *,
        version: int | None,
        max_packet_size: int,
        max_user_properties: int = DEFAULT_MAX_USER_PROPERTIES,
        max_filters: int = DEFAULT_MAX_FILTERS,
        topic_alias_maximum: int | None = None,
        max_connect_size: int | None = None,
        forgiven: Forgiven | None = None,
    ) -> None:
        if version is not None and version not in PARSERS:
            raise InvalidArgumentError(f"protocol version {version}")
        self._context = Context(version, max_user_properties, max_filters, version is None, self._WANTS_MESSAGES)
        if topic_alias_maximum is not None:
            self._context.aliases = TopicAliases(topic_alias_maximum)
        self._parsers = _CONNECT_ONLY if version is None else PARSERS[version]
        if forgiven is not None:
            self._context.forgiven = forgiven
            self._parsers = FORGIVING_PARSERS
        self._max_packet_size = max_packet_size
        self._max_connect_size = max_packet_size if max_connect_size is None else min(max_connect_size, max_packet_size)
        self._pieces: list[bytes] = []  # of an unfinished packet
        #: How many bytes of an unfinished packet wait for the rest: those. To be looked at only.
        self.buffered: int = 0
        self._needed = 0  # do not look at them before there are this many bytes
        self._seeks_header = False  # these are not the whole packet, but what stands before the payload
        self._taken: list[P] = []
        self._error: PacketError | None = None

    @property
    def version(self) -> int | None:
        """None until a CONNECT told. It is set before the rest of the CONNECT is read, so a refusal can speak it."""
        return self._context.version

    def take(self) -> list[P]:
        """After an error: the packets of that :meth:`feed` that came before the bad one. Empty the second time."""
        taken, self._taken = self._taken, []
        return taken

    def feed(self, data: bytes | bytearray | memoryview) -> list[P]:
        """The packets that ``data`` completes, in order; what is left over is kept.

        :raises PacketError: the stream is broken. The reason code is the one to answer with in MQTT 5.0; the offset
            counts from the first byte of the bad packet. Packets before it, in the same chunk, are in :meth:`take`.
            Every later call raises the same error.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        chunk = data if type(data) is bytes else bytes(data)
        if not self.buffered:
            return self._parse(chunk)
        pieces = self._pieces
        if len(chunk) < _SMALLEST_PIECE and len(pieces[-1]) < _SMALLEST_PIECE:
            pieces[-1] += chunk
        else:
            pieces.append(chunk)
        self.buffered += len(chunk)
        if self.buffered < self._needed:
            return []
        self._pieces, self.buffered = [], 0
        if self._needed >= _LARGE and pieces[0][0] & 0xF0 == _PUBLISH and not self._seeks_header:
            return self._parse_large(pieces, self._needed)
        self._seeks_header = False
        return self._parse(b"".join(pieces))

    def _parse(self, chunk: bytes, taken: list[P] | None = None) -> list[P]:
        """The packets of a chunk, after those that were ``taken`` before."""
        packets: list[P] = taken or []
        parsers, context = self._parsers, self._context
        limit = self._max_connect_size if parsers is _CONNECT_ONLY else self._max_packet_size
        pos, size = 0, len(chunk)
        try:
            while pos < size:
                first = chunk[pos]
                parser = parsers[first]
                if parser is None:
                    raise self._refuse_first(first, pos)
                body = pos + 2
                if body > size:
                    self._needed = 2
                    break
                length = chunk[body - 1]
                if length > 127 and body < size and 0 < chunk[body] < 128:  # a call takes a fifth of it all
                    length += (chunk[body] - 1) << 7
                    body += 1
                elif length > 127:
                    found = self._remaining_length(chunk, pos)
                    if found is None:
                        self._needed = size - pos + 1
                        break
                    length, body = found
                end = body + length
                if end - pos > limit:
                    if parsers is _CONNECT_ONLY:
                        learn_version(chunk, body, context)  # to say so in
                    raise PacketError(
                        f"a packet of {end - pos} bytes", reason_code=ReasonCode.PACKET_TOO_LARGE, offset=pos + 1
                    )
                if end > size:
                    self._needed = end - pos if end - pos < LONGEST_HEADER else self._wanted(chunk, pos, body, end)
                    break
                packet = parser(first, chunk, body, end, context)
                if parsers is _CONNECT_ONLY and isinstance(packet, Connect):
                    if packet.version == MQTT_5_0 and not _is_shortest(chunk, pos, body):
                        _refuse_length(context, pos)
                    has_method = packet.properties.authentication_method is not None
                    known = CLIENT_PARSERS_3_1 if packet.is_3_1 else CLIENT_PARSERS[packet.version, has_method]
                    parsers, limit = known, self._max_packet_size
                    self._parsers = known
                packets.append(packet)
                pos = end
        except PacketError as error:
            raise self._broken(error, packets, pos) from None
        if pos < size:
            self._pieces = [chunk[pos:]]
            self.buffered = size - pos
        return packets

    def _wanted(self, chunk: bytes, pos: int, body: int, end: int) -> int:  # noqa: ARG002 - a subclass looks into it
        """How many bytes of this unfinished, large packet to wait for before it is looked at again."""
        return end - pos

    def _parse_large(self, pieces: list[bytes], size: int) -> list[P]:
        """A PUBLISH of ``size`` bytes in several pieces, and what follows it in the last one."""
        first, last = pieces[0], pieces[-1]
        behind = len(last) - sum(map(len, pieces)) + size
        packet = self._beginning(first)
        if packet is None:
            return self._parse(b"".join(pieces))
        payload = b"".join((packet.payload, *pieces[1:-1], memoryview(last)[:behind]))
        packets: list[Any] = [attrs.evolve(packet, payload=payload)]
        return self._parse(last[behind:], packets)

    def _beginning(self, piece: bytes) -> Publish | IncomingMessage | None:
        """The PUBLISH that begins in ``piece``, as if its payload ended there.

        None when its properties go beyond the piece, or when it is malformed: the whole of it has to be looked at.
        """
        found = decode_variable(piece, 1, len(piece))
        parser = self._parsers[piece[0]]
        if found is None or parser is None:
            return None
        try:
            packet = parser(piece[0], piece, found[1], len(piece), self._context)
        except PacketError:
            return None
        return packet if isinstance(packet, (Publish, IncomingMessage)) else None

    def _remaining_length(self, chunk: bytes, pos: int) -> tuple[int, int] | None:
        """(remaining length, position of the body) of a length of several bytes; None when more are needed."""
        found = decode_variable(chunk, pos + 1, len(chunk))
        if found is not None and self._context.version == MQTT_5_0 and not _is_shortest(chunk, pos, found[1]):
            _refuse_length(self._context, pos)
        return found

    def _refuse_first(self, first: int, offset: int) -> PacketError:
        if self._context.version is None:
            return protocol_error("the first packet is not a CONNECT", offset)  # [MQTT-3.1.0-1]
        if first in _FROM_SERVERS:
            return protocol_error(f"first byte {first:#04x}: not a packet that may be sent here", offset)
        return malformed(f"first byte {first:#04x}: reserved flags", offset)

    def _broken(self, error: PacketError, packets: list[P], start: int) -> PacketError:
        """Close for good; the error with its offset counted from the packet that starts at ``start``."""
        if error.offset is not None:
            error.offset -= start
        self._taken = packets
        self._error = error
        return error


class PacketDecoder(_Decoder[Packet]):
    """Every packet comes out as its class in :mod:`.types`."""

    __slots__ = ()


class MessageDecoder(_Decoder[Packet | IncomingMessage]):
    """For clients: a PUBLISH of QoS 0 or 1 that has no topic alias comes out as :class:`IncomingMessage`."""

    __slots__ = ("_whole",)

    _WANTS_MESSAGES = True

    def __init__(self, *, version: int | None, max_packet_size: int, forgiven: Forgiven | None = None) -> None:
        super().__init__(version=version, max_packet_size=max_packet_size, forgiven=forgiven)
        self._whole: memoryview | None = None  # where an unfinished PUBLISH is received, its beginning included

    def _wanted(self, chunk: bytes, pos: int, body: int, end: int) -> int:
        reach = check_header(chunk[pos], chunk, body, end)
        self._seeks_header = reach is not None
        return (end if reach is None else reach) - pos

    def room(self) -> memoryview | None:
        """Where to receive the rest of a large PUBLISH; then call :meth:`received` instead of :meth:`feed`.

        None while no such packet is unfinished.
        """
        if self._needed < _LARGE or not self.buffered or self._seeks_header:
            return None
        whole = self._whole
        if whole is None:
            if self._pieces[0][0] & 0xF0 != _PUBLISH:
                return None
            whole = self._whole = memoryview(bytearray(min(self._needed, _AT_ONCE)))
            whole[: self.buffered] = b"".join(self._pieces)
            self._pieces = []
        elif self.buffered == len(whole):
            filled = whole
            whole = self._whole = memoryview(bytearray(min(self._needed, 2 * len(filled))))
            whole[: len(filled)] = filled
        return whole[self.buffered :]

    def received(self, count: int) -> list[Packet | IncomingMessage]:
        """The packet that ``count`` bytes in :meth:`room` complete, as :meth:`feed`. Its payload is a view."""
        self.buffered += count
        whole = self._whole
        if whole is None or self.buffered < self._needed:
            return []
        self._whole, self.buffered = None, 0
        packet = self._beginning(bytes(whole[:_SMALLEST_PIECE]))
        if not isinstance(packet, IncomingMessage):
            return self._parse(bytes(whole))  # QoS 2, malformed, or with properties that go on and on
        payload = whole[_SMALLEST_PIECE - len(packet.payload) :]
        return [attrs.evolve(packet, payload=payload)]


def _is_shortest(chunk: bytes, pos: int, body: int) -> bool:
    """MQTT 5.0 wants the remaining length in as few bytes as possible; 3.1.1 says nothing. [MQTT-1.5.5-1]"""
    return body - pos <= 2 or chunk[body - 1] != 0


def _refuse_length(context: Context, pos: int) -> None:
    text = "the remaining length uses as few bytes as it can"
    if not context.forgives("a remaining length in more bytes than it needs"):
        raise malformed(text, pos + 1)

"""From a stream of bytes, cut anywhere, to packets.

The rules of this file:

* A chunk that holds whole packets is parsed where it lies; a payload is copied once, out of the chunk.
* Only what belongs to an unfinished packet is kept, in pieces that are not looked at again before the packet is
  complete: a stream that arrives byte by byte costs linear time. The payload of a large PUBLISH is put together from
  the pieces, and so is copied once as well; or it is received where it stays, and not copied at all.
* The size of a packet is checked when its length is known, before its body is waited for.
* After an error there is no next packet: the stream has lost its structure.

Source: MQTT 5.0 section 2.1 and 1.5.5, MQTT 3.1.1 section 2.2.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

import attrs

from statestore_client.errors import InvalidArgumentError, PacketError
from statestore_client.mqtt.packets.connect import learn_version, parse_connect
from statestore_client.mqtt.packets.parsers import CLIENT_PARSERS, CLIENT_PARSERS_3_1, PARSERS, Parser
from statestore_client.mqtt.packets.primitives import decode_variable, malformed, protocol_error
from statestore_client.mqtt.packets.publish import Context, TopicAliases
from statestore_client.mqtt.packets.types import MQTT_5_0, Connect, Packet, Publish, ReasonCode
from statestore_client.wire.messages import IncomingMessage

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
    by their topics, and wrong ones are refused (0x94).

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
    ) -> None:
        if version is not None and version not in PARSERS:
            raise InvalidArgumentError(f"protocol version {version}")
        self._context = Context(version, max_user_properties, max_filters, version is None, self._WANTS_MESSAGES)
        if topic_alias_maximum is not None:
            self._context.aliases = TopicAliases(topic_alias_maximum)
        self._parsers = _CONNECT_ONLY if version is None else PARSERS[version]
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
                    if packet.version == MQTT_5_0:
                        _check_shortest(chunk, pos, body)
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
        if found is not None and self._context.version == MQTT_5_0:
            _check_shortest(chunk, pos, found[1])
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

    def __init__(self, *, version: int | None, max_packet_size: int) -> None:
        super().__init__(version=version, max_packet_size=max_packet_size)
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


def _check_shortest(chunk: bytes, pos: int, body: int) -> None:
    """MQTT 5.0 wants the remaining length in as few bytes as possible; 3.1.1 says nothing. [MQTT-1.5.5-1]"""
    if body - pos > 2 and chunk[body - 1] == 0:
        raise malformed("the remaining length uses as few bytes as it can", pos + 1)

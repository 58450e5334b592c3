"""Watches that a peer serves: frames <-> values.

They go through the connection that requests go through, with the type ``00 57``, to a peer that has said ``watch`` in
its hello. The request id of a BeginWatch names the watch on its connection: what the peer says of it carries that id.
A *session* is all watches of one connection, from the first one until the peer forgets the connection after a time of
silence; its number is never used again. The frames after type and ident, and those of the replies:

===========  ===========================================  ==========================================================
request      its frames                                   what it does
===========  ===========================================  ==========================================================
BeginWatch   ``00``, prefix bool, key, index nuint, term  begin: entries after that position; an empty index: those to
             uint                                         come; the term 0: it is not compared
CancelWatch  ``01``                                       end; answered by WatchEnded, also without such a watch
Seen         ``02``, session uint, messages uint          still here, and how many messages with events have arrived
                                                          in this session; answered by WatchProgress, or NoSession
===========  ===========================================  ==========================================================

=============  =======================================  ==========================================================
reply          its frames                               what it says
=============  =======================================  ==========================================================
Watching       ``00``, session uint, index uint,        it has begun, in this session; the peer has applied that
               term uint                                position
Events         ``01``, index uint, term uint, changes   one entry: all of its changes that the watch wants, in its
                                                        order; MessagePack ``[key, value or nil, key, ...]``, nil for
                                                        a key that was deleted
WatchProgress  ``02``, session uint, index uint,        of no watch of the session anything up to there is missing,
               term uint, leads bool                    and all of it was sent before; whether the peer leads
WatchEnded     ``03``, reason uint, oldest uint,        the watch is over, and nothing follows: 0 cancelled, 1 history
               index uint, term uint                    outrun, 2 too slow, 3 too many, 4 another log. Entries from
                                                        ``oldest`` on are known; the peer has applied that position
NoSession      ``04``, session uint                     no watch of that session is left: begin them again
=============  =======================================  ==========================================================

Source: ours, after the State Watch pattern; ``docs/decisions/0041-watches-of-the-peers.md``.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import attrs
import msgpack

from raft_client.errors import ProtocolError
from raft_client.wire.fields import FrameReader, check_bytes, check_uint
from raft_client.wire.frames import encode_bool, encode_nuint, encode_uint, hot_value
from raft_client.wire.key_changes import Change, ChangeKind
from raft_client.wire.log_entry import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

WATCH_TYPE: Final = b"\x00\x57"

_BEGIN, _CANCEL, _SEEN = range(3)
_WATCHING, _EVENTS, _PROGRESS, _ENDED, _NO_SESSION = range(5)


# -- requests ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class BeginWatch:
    """Tell me what happens to ``key``, or to all keys that begin with it, after the position ``after``.

    None: from now on. A key need not exist; the prefix ``b""`` is every key. If the entry at ``after`` has another term
    than that, the watch ends.
    """

    TYPE: ClassVar[bytes] = WATCH_TYPE

    ident: bytes = attrs.field(validator=check_bytes)
    key: bytes = attrs.field(validator=check_bytes)
    is_prefix: bool = False
    after: Position | None = None

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        head = [self.TYPE, self.ident, encode_uint(_BEGIN), encode_bool(self.is_prefix), self.key]
        if self.after is None:
            return [*head, encode_nuint(None), encode_uint(0)]
        return [*head, *_encode(self.after)]

    def wants(self, key: bytes) -> bool:
        """Whether a change of this key is to be told."""
        return key.startswith(self.key) if self.is_prefix else key == self.key


@attrs.frozen
class CancelWatch:
    """End the watch of this request id."""

    TYPE: ClassVar[bytes] = WATCH_TYPE

    ident: bytes = attrs.field(validator=check_bytes)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident, encode_uint(_CANCEL)]


@attrs.frozen
class Seen:
    """I am still here; so many ``messages`` with events have arrived since this session began."""

    TYPE: ClassVar[bytes] = WATCH_TYPE

    ident: bytes = attrs.field(validator=check_bytes)
    session: int = attrs.field(validator=check_uint)
    messages: int = attrs.field(validator=check_uint)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        numbers = map(encode_uint, (_SEEN, self.session, self.messages))
        return [self.TYPE, self.ident, *numbers]


WatchRequest: TypeAlias = BeginWatch | CancelWatch | Seen


def decode_watch_request(frames: Sequence[bytes]) -> WatchRequest:
    """Raises ProtocolError."""
    reader = FrameReader.of_request(frames, WATCH_TYPE)
    ident, action = reader.raw(), reader.uint()
    if action == _BEGIN:
        is_prefix, key, index, term = reader.flag(), reader.raw(), reader.optional_nuint(), reader.optional_uint()
        after = None if index is None else Position(index, term or 0)
        return BeginWatch(ident, key, is_prefix, after)
    if action == _CANCEL:
        return CancelWatch(ident)
    if action == _SEEN:
        return Seen(ident, reader.uint(), reader.uint())
    raise ProtocolError(f"an unknown request about watches: {action}", frame=2)


# -- replies -----------------------------------------------------------------------------------------------------------


class EndReason(IntEnum):
    """Why a watch is over."""

    CANCELLED = 0
    HISTORY_OUTRUN = 1  # what came after ``after`` is not known any more: read the keys again
    TOO_SLOW = 2  # what was not told yet is not known any more: read the keys again
    TOO_MANY = 3  # watches, or bytes of their keys, of this connection or of this peer
    OTHER_LOG = 4  # ``after`` is no position of this log: read the keys again


@attrs.frozen
class Watching:
    """It has begun, in the session of this number. ``applied``: what the peer has applied.

    With ``after=None``, entries after ``applied`` are told.
    """

    TYPE: ClassVar[bytes] = WATCH_TYPE

    session: int = attrs.field(validator=check_uint)
    applied: Position

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [encode_uint(_WATCHING), encode_uint(self.session), *_encode(self.applied)]


@hot_value
class Events:
    """What the entry at ``position`` did to keys that are watched: all of it, in the entry's order."""

    TYPE: ClassVar[bytes] = WATCH_TYPE

    position: Position
    changes: tuple[Change, ...] = attrs.field(repr=False)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [encode_uint(_EVENTS), *_encode(self.position), _encode_changes(self.changes)]


@attrs.frozen
class WatchProgress:
    """Answers Seen: to resume any watch of the session, watch after ``position``, or its own one if that is later.

    Everything up to there was sent before. While one of the watches is behind, the position may stand still.
    """

    TYPE: ClassVar[bytes] = WATCH_TYPE

    session: int = attrs.field(validator=check_uint)
    position: Position
    leads: bool

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        head = [encode_uint(_PROGRESS), encode_uint(self.session)]
        return [*head, *_encode(self.position), encode_bool(self.leads)]


@attrs.frozen
class WatchEnded:
    """The watch is over. Changes from the entry ``oldest`` on are known; the peer has applied ``applied``."""

    TYPE: ClassVar[bytes] = WATCH_TYPE

    reason: EndReason
    oldest: int = attrs.field(validator=check_uint)
    applied: Position

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [*map(encode_uint, (_ENDED, self.reason.value, self.oldest)), *_encode(self.applied)]


@attrs.frozen
class NoSession:
    """Answers Seen: the peer does not know this session. Its watches are over, and have to be begun again."""

    TYPE: ClassVar[bytes] = WATCH_TYPE

    session: int = attrs.field(validator=check_uint)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [encode_uint(_NO_SESSION), encode_uint(self.session)]


WatchReply: TypeAlias = Watching | Events | WatchProgress | WatchEnded | NoSession


def decode_watch_reply(frames: Sequence[bytes]) -> WatchReply:
    """Raises ProtocolError."""
    reader = FrameReader(frames)
    kind = reader.uint()
    if kind == _WATCHING:
        return Watching(reader.uint(), _position(reader))
    if kind == _EVENTS:
        return Events(_position(reader), _decode_changes(reader.raw()))
    if kind == _PROGRESS:
        return WatchProgress(reader.uint(), _position(reader), reader.flag())
    if kind == _ENDED:
        return WatchEnded(_reason(reader.uint()), reader.uint(), _position(reader))
    if kind == _NO_SESSION:
        return NoSession(reader.uint())
    raise ProtocolError(f"an unknown reply about a watch: {kind}", frame=0)


def _encode(position: Position) -> tuple[bytes, bytes]:
    return encode_uint(position.index), encode_uint(position.term)


def _position(reader: FrameReader) -> Position:
    return Position(reader.uint(), reader.uint())


def _encode_changes(changes: tuple[Change, ...]) -> bytes:
    packed: bytes = msgpack.packb([item for change in changes for item in (change.key, change.value)])
    return packed


def _decode_changes(frame: bytes) -> tuple[Change, ...]:
    try:
        items = msgpack.unpackb(frame)
    # As in frames.decode_json: more than ValueErrors escapes from what is broken.
    except (ValueError, TypeError, OverflowError, RecursionError, struct.error, msgpack.UnpackException) as error:
        raise ProtocolError(f"changes that are not MessagePack: {type(error).__name__}", frame=3) from None
    if not isinstance(items, list) or not items or len(items) % 2:
        raise ProtocolError("changes that are not keys and values in turn", frame=3)
    return tuple(map(_change, items[::2], items[1::2]))


def _change(key: object, value: object) -> Change:
    if type(key) is bytes:
        if value is None:
            return Change(ChangeKind.DELETE, key)
        if type(value) is bytes:
            return Change(ChangeKind.SET, key, value)
    raise ProtocolError("a change of a key without a key, or without a value", frame=3)


def _reason(number: int) -> EndReason:
    try:
        return EndReason(number)
    except ValueError:
        raise ProtocolError(f"a watch that ended for an unknown reason: {number}", frame=1) from None

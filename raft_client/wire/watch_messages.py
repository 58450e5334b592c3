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
               term uint, id                            position
Events         ``01``, index uint, term uint, changes,  one entry: all of its changes that the watch wants, in its
               id                                       order; MessagePack ``[key, value or nil, key, ...]``, nil for
                                                        a key that was deleted
WatchProgress  ``02``, session uint, index uint,        of no watch of the session anything up to there is missing,
               term uint, leads bool, id                and all of it was sent before; whether the peer leads
WatchEnded     ``03``, reason uint, oldest uint,        the watch is over, and nothing follows: 0 cancelled, 1 history
               index uint, term uint                    outrun, 2 too slow, 3 too many, 4 another log. Entries from
                                                        ``oldest`` on are known; the peer has applied that position
NoSession      ``04``, session uint                     no watch of that session is left: begin them again
=============  =======================================  ==========================================================

``id`` belongs to the position: the request id of the newest entry up to there that has one. It is left out if it is not
known.

Source: ours, after the State Watch pattern; ``docs/decisions/raft-watches.md``.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import attrs
import msgpack

from raft_client.errors import ProtocolError
from raft_client.wire.fields import (
    FLAG,
    NUINT,
    UINT,
    FieldMessage,
    FrameReader,
    FrameType,
    check_bytes,
    check_uint,
    frame,
    group,
    numbered,
    reply,
)
from raft_client.wire.frames import encode_bool, encode_nuint, encode_uint, hot_value
from raft_client.wire.key_changes import Change, ChangeKind
from raft_client.wire.log_entry import Position
from raft_client.wire.request_id import REQUEST_ID_BYTES

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
        return [self.TYPE, self.ident, *map(encode_uint, (_SEEN, self.session, self.messages))]


WatchRequest: TypeAlias = BeginWatch | CancelWatch | Seen


def decode_watch_request(frames: Sequence[bytes]) -> WatchRequest:
    """Raises ProtocolError."""
    reader = FrameReader.of_request(frames, WATCH_TYPE)
    ident, action = reader.raw(), reader.uint()
    if action == _BEGIN:
        is_prefix, key = reader.read(FLAG), reader.raw()
        index, term = reader.read(NUINT) if reader.more else None, reader.uint() if reader.more else 0
        return BeginWatch(ident, key, is_prefix, None if index is None else Position(index, term))
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


def _decode_entry_id(frame: bytes) -> bytes:
    if len(frame) not in (0, REQUEST_ID_BYTES):
        raise ProtocolError(f"the id of an entry has {REQUEST_ID_BYTES} bytes, not {len(frame)}")
    return bytes(frame)


_ENTRY_ID: Final = FrameType("", bytes, _decode_entry_id, check_bytes)
_REASON: Final = numbered({reason: reason.value for reason in EndReason}, "the end of a watch")


@reply(WATCH_TYPE, kind=_WATCHING)
class Watching(FieldMessage):
    """It has begun, in the session of this number. ``applied``: what the peer has applied.

    With ``after=None``, entries after ``applied`` are told.
    """

    session: int = frame(UINT)
    applied: Position = group(Position, index=UINT, term=UINT)
    entry_id: bytes = frame(_ENTRY_ID, default=b"", optional=True)

    @property
    def place(self) -> Position:
        """``applied``, with its id."""
        return attrs.evolve(self.applied, entry_id=self.entry_id)


@hot_value
class Events:
    """What the entry at ``position`` did to keys that are watched: all of it, in the entry's order."""

    TYPE: ClassVar[bytes] = WATCH_TYPE

    position: Position
    changes: tuple[Change, ...] = attrs.field(repr=False)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        frames = [encode_uint(_EVENTS), *_encode(self.position), _encode_changes(self.changes)]
        return [*frames, self.position.entry_id] if self.position.entry_id else frames

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> Events:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        reader.raw()
        index, term, changes = reader.uint(), reader.uint(), _decode_changes(reader.raw())
        return cls(Position(index, term, reader.read(_ENTRY_ID) if reader.more else b""), changes)


@reply(WATCH_TYPE, kind=_PROGRESS)
class WatchProgress(FieldMessage):
    """Answers Seen: to resume any watch of the session, watch after ``position``, or its own one if that is later.

    Everything up to there was sent before. While one of the watches is behind, the position may stand still.
    """

    session: int = frame(UINT)
    position: Position = group(Position, index=UINT, term=UINT)
    leads: bool = frame(FLAG)
    entry_id: bytes = frame(_ENTRY_ID, default=b"", optional=True)

    @property
    def place(self) -> Position:
        """``position``, with its id."""
        return attrs.evolve(self.position, entry_id=self.entry_id)


@reply(WATCH_TYPE, kind=_ENDED)
class WatchEnded(FieldMessage):
    """The watch is over. Changes from the entry ``oldest`` on are known; the peer has applied ``applied``."""

    reason: EndReason = frame(_REASON)
    oldest: int = frame(UINT)
    applied: Position = group(Position, index=UINT, term=UINT)


@reply(WATCH_TYPE, kind=_NO_SESSION)
class NoSession(FieldMessage):
    """Answers Seen: the peer does not know this session. Its watches are over, and have to be begun again."""

    session: int = frame(UINT)


WatchReply: TypeAlias = Watching | Events | WatchProgress | WatchEnded | NoSession


def decode_watch_reply(frames: Sequence[bytes]) -> WatchReply:
    """Raises ProtocolError."""
    number = FrameReader(frames).uint()
    kind = _REPLIES.get(number)
    if kind is None:
        raise ProtocolError(f"an unknown reply about a watch: {number}", frame=0)
    return kind.from_frames([encode_uint(number), *frames[1:]])  # the peers read numbers with zeros behind them


_REPLIES: Final[dict[int, type[WatchReply]]] = {
    _WATCHING: Watching,
    _EVENTS: Events,
    _PROGRESS: WatchProgress,
    _ENDED: WatchEnded,
    _NO_SESSION: NoSession,
}


def _encode(position: Position) -> tuple[bytes, bytes]:
    return encode_uint(position.index), encode_uint(position.term)


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

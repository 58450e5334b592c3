"""Watches that a peer serves: frames <-> values.

They go through the connection that requests go through. A client that said hello and was told ``watch`` sends them,
with the type ``00 57``. The request id names the watch on its connection: everything about it carries that id. The
frames after type and ident, and those of the replies:

=============  =====================================  ==============================================================
request        its frames                             what it does
=============  =====================================  ==============================================================
BeginWatch     ``00``, prefix bool, key, after nuint  begin: entries after the index ``after``; empty: those to come
CancelWatch    ``01``                                 end; answered by WatchEnded once, also without such a watch
Seen           ``02``, messages uint                  of all watches of the connection: still here, and how many
                                                      more messages with events have arrived since the last Seen
=============  =====================================  ==============================================================

=============  =====================================  ==============================================================
reply          its frames                             what it says
=============  =====================================  ==============================================================
Watching       ``00``, index uint                     it has begun; the peer has applied ``index``
Events         ``01``, index uint, (key, exists       one entry, all of its changes that the watch wants
               bool, value)...
WatchProgress  ``02``, index uint                     nothing up to ``index`` is missing; what came before was sent
WatchEnded     ``03``, reason uint, index uint,       the watch is over, and nothing follows: 0 cancelled; 1 history
               oldest uint                            outrun, the first index that is kept is ``oldest``; 2 too
                                                      slow, all up to ``index`` was sent; 3 too many watches
=============  =====================================  ==============================================================

Source: ours, after the State Watch pattern; ``docs/decisions/0031-the-wire-of-our-peers.md``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import attrs

from raft_client.errors import ProtocolError
from raft_client.wire.fields import FrameReader, build, check_bytes, check_optional_uint, check_uint
from raft_client.wire.frames import encode_bool, encode_nuint, encode_uint
from raft_client.wire.key_changes import Change, ChangeKind

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "WATCH_TYPE",
    "BeginWatch",
    "CancelWatch",
    "EndReason",
    "Events",
    "Seen",
    "WatchEnded",
    "WatchProgress",
    "WatchReply",
    "WatchRequest",
    "Watching",
    "decode_watch_reply",
    "decode_watch_request",
]

WATCH_TYPE: Final = b"\x00\x57"

_BEGIN, _CANCEL, _SEEN = range(3)
_WATCHING, _EVENTS, _PROGRESS, _ENDED = range(4)
_FRAMES_OF_A_CHANGE: Final = 3


# -- requests ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class BeginWatch:
    """Tell me what happens to ``key``, or to all keys that begin with it, after the index ``after``.

    None: from now on. A key need not exist; the prefix ``b""`` is every key.
    """

    TYPE: ClassVar[bytes] = WATCH_TYPE

    ident: bytes = attrs.field(validator=check_bytes)
    key: bytes = attrs.field(validator=check_bytes)
    is_prefix: bool = False
    after: int | None = attrs.field(default=None, validator=check_optional_uint)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        head = [self.TYPE, self.ident, encode_uint(_BEGIN)]
        return [*head, encode_bool(self.is_prefix), self.key, encode_nuint(self.after)]

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
    """I am still here; this many more ``messages`` with events have arrived on this connection."""

    TYPE: ClassVar[bytes] = WATCH_TYPE

    ident: bytes = attrs.field(validator=check_bytes)
    messages: int = attrs.field(validator=check_uint)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident, encode_uint(_SEEN), encode_uint(self.messages)]


WatchRequest: TypeAlias = BeginWatch | CancelWatch | Seen


def decode_watch_request(frames: Sequence[bytes]) -> WatchRequest:
    """Raises ProtocolError."""
    reader = FrameReader.of_request(frames, WATCH_TYPE)
    ident, action = reader.raw(), reader.uint()
    if action == _BEGIN:
        is_prefix, key = reader.flag(), reader.raw()
        return build(BeginWatch, ident, key, is_prefix, reader.optional_nuint())
    if action == _CANCEL:
        return CancelWatch(ident)
    if action == _SEEN:
        return build(Seen, ident, reader.uint())
    raise ProtocolError(f"an unknown request about watches: {action}", frame=2)


# -- replies -----------------------------------------------------------------------------------------------------------


class EndReason(IntEnum):
    """Why a watch is over."""

    CANCELLED = 0
    HISTORY_OUTRUN = 1  # read the keys again, and watch after the index that they are of
    TOO_SLOW = 2  # watch again after the index that was sent last
    TOO_MANY = 3  # of this connection, or of this peer


@attrs.frozen
class Watching:
    """It has begun. ``index`` is what the peer has applied: with ``after=None``, entries after it are told."""

    TYPE: ClassVar[bytes] = WATCH_TYPE

    index: int = attrs.field(validator=check_uint)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [encode_uint(_WATCHING), encode_uint(self.index)]


@attrs.frozen
class Events:
    """What the entry at ``index`` did to keys that are watched: all of it, in the entry's order."""

    TYPE: ClassVar[bytes] = WATCH_TYPE

    index: int = attrs.field(validator=check_uint)
    changes: tuple[Change, ...] = attrs.field(repr=False)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        frames = [encode_uint(_EVENTS), encode_uint(self.index)]
        for change in self.changes:
            frames += (change.key, encode_bool(change.value is not None), change.value or b"")
        return frames

    @property
    def size(self) -> int:
        """Bytes of its keys and values, and a little for each message and change."""
        return 50 + sum(50 + len(change.key) + len(change.value or b"") for change in self.changes)


@attrs.frozen
class WatchProgress:
    """Everything up to ``index`` has been told: to resume, watch after it."""

    TYPE: ClassVar[bytes] = WATCH_TYPE

    index: int = attrs.field(validator=check_uint)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [encode_uint(_PROGRESS), encode_uint(self.index)]


@attrs.frozen
class WatchEnded:
    """The watch is over. Everything up to ``index`` was told; entries from ``oldest`` on are still known here."""

    TYPE: ClassVar[bytes] = WATCH_TYPE

    reason: EndReason
    index: int = attrs.field(validator=check_uint)
    oldest: int = attrs.field(validator=check_uint)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [encode_uint(number) for number in (_ENDED, self.reason.value, self.index, self.oldest)]


WatchReply: TypeAlias = Watching | Events | WatchProgress | WatchEnded


def decode_watch_reply(frames: Sequence[bytes]) -> WatchReply:
    """Raises ProtocolError."""
    reader = FrameReader(frames)
    kind = reader.uint()
    if kind == _WATCHING:
        return build(Watching, reader.uint())
    if kind == _EVENTS:
        return build(Events, reader.uint(), _changes(reader))
    if kind == _PROGRESS:
        return build(WatchProgress, reader.uint())
    if kind == _ENDED:
        return build(WatchEnded, _reason(reader.uint()), reader.uint(), reader.uint())
    raise ProtocolError(f"an unknown reply about a watch: {kind}", frame=0)


def _changes(reader: FrameReader) -> tuple[Change, ...]:
    if reader.more % _FRAMES_OF_A_CHANGE:
        raise ProtocolError("a change of a key without key, flag and value")
    changes = []
    while reader.more:
        key, exists, value = reader.raw(), reader.flag(), reader.raw()
        changes.append(Change(ChangeKind.SET, key, value) if exists else Change(ChangeKind.DELETE, key))
    return tuple(changes)


def _reason(number: int) -> EndReason:
    try:
        return EndReason(number)
    except ValueError:
        raise ProtocolError(f"a watch that ended for an unknown reason: {number}", frame=1) from None

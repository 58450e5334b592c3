"""Questions to the key/value state machine, and the answers: frames <-> values.

They are ClientDispatch messages. An answer that begins with an empty frame is a refusal, and says why: no other answer
begins so.

Of the simple questions the answers begin with the index of the last applied entry:

============  ==============================  =================================================================
type          frames                          frames of the answer
============  ==============================  =================================================================
``kv.get``    key                             index, found, value
``kv.range``  prefix, after key, limit        index, more, key, value, key, value, ...
``kv.done``   index of an entry               index, status: 0 not known, 1 done, 2 a comparison failed
============  ==============================  =================================================================

The clients of this package ask ``kv.read`` and ``kv.outcome``: pages that belong together show the keys as they were
when the same entry had been applied, and may come from different peers. Of leases they ask ``kv.leases`` and
``kv.lease``.

Source: ours; ØMQ Raft protocol, "ClientDispatch RPC".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, Final, TypeAlias

import attrs

from raft_client.errors import ProtocolError
from raft_client.wire.fields import (
    FLAG,
    NUINT,
    RAW,
    TEXT,
    UINT,
    FieldMessage,
    FrameReader,
    FrameType,
    frame,
    numbered,
    reply,
    request,
)
from raft_client.wire.frames import decode_json, encode_json, encode_uint
from raft_client.wire.log_entry import Position

_PAGE: Final = 0
_OUTRUN: Final = 1
_NOT_YET: Final = 2


class TransactionStatus(Enum):
    """What became of an entry."""

    UNKNOWN = 0
    DONE = 1
    COMPARISON_FAILED = 2
    NO_LEASE = 3  # its lease had ended
    TOO_MANY = 4  # leases, or keys of a lease


# -- questions ---------------------------------------------------------------------------------------------------------


@request(b"kv.read")
class ReadKeys(FieldMessage):
    """The keys from ``first`` on and before ``end``, as they were when the entry ``at`` had been applied.

    An empty ``end`` is that of the keyspace; without ``at`` it is the newest entry. ``stale``: the peer answers with
    what it has applied, whatever the leader has.
    """

    ident: bytes = frame(RAW)
    first: bytes = frame(RAW)
    end: bytes = frame(RAW)
    limit: int = frame(UINT)
    at: int | None = frame(NUINT, default=None)
    keys_only: bool = frame(FLAG, default=False)
    stale: bool = frame(FLAG, default=False)


@request(b"kv.outcome")
class AskOutcome(FieldMessage):
    """What became of the entry ``index``, which the cluster has taken?"""

    ident: bytes = frame(RAW)
    index: int = frame(UINT)


@request(b"kv.leases")
class AskLeases(FieldMessage):
    """May leases be granted? For the leader, after it has said hello."""

    ident: bytes = frame(RAW)


@request(b"kv.lease")
class AskLease(FieldMessage):
    """What is the lease ``lease``?"""

    ident: bytes = frame(RAW)
    lease: bytes = frame(RAW)


# -- answers -----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Page:
    """Keys in their order as they were at ``position``. ``following`` is where the next page begins; empty: complete.

    A term of 0 is not known. If keys alone were asked for, the values are empty.
    """

    TYPE: ClassVar[bytes] = ReadKeys.TYPE

    position: Position
    following: bytes
    items: tuple[tuple[bytes, bytes], ...] = attrs.field(repr=False)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        head = (_PAGE, self.position.index, self.position.term)
        return [*map(encode_uint, head), self.following, *(part for item in self.items for part in item)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> Page:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        reader.uint()
        position, following, rest = Position(reader.uint(), reader.uint()), reader.raw(), reader.rest()
        if len(rest) % 2:
            raise ProtocolError("a key without a value", frame=len(frames) - 1)
        return cls(position, following, tuple(zip(rest[::2], rest[1::2], strict=True)))


@reply(ReadKeys.TYPE, kind=_OUTRUN)
class Outrun(FieldMessage):
    """What the keys were then is not remembered: it is from the entry ``oldest`` on. ``newest`` was applied last."""

    oldest: int = frame(UINT)
    newest: int = frame(UINT)


@reply(ReadKeys.TYPE, kind=_NOT_YET)
class NotYet(FieldMessage):
    """The entry was not applied here; ``newest`` was applied last."""

    newest: int = frame(UINT)


_STATUS: Final = numbered({status: status.value for status in TransactionStatus}, "an entry")


@reply(AskOutcome.TYPE)
class OutcomeReply(FieldMessage):
    """``status`` of an entry that compares, deletes or has to do with a lease, its ``term``, and how many keys it
    ``deleted``."""

    status: TransactionStatus = frame(_STATUS)
    term: int = frame(UINT, default=0)
    deleted: int = frame(UINT, default=0)


def _names_of(frame: bytes) -> tuple[str, ...]:
    names = decode_json(frame)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ProtocolError("a list of names that is none")
    return tuple(map(str, names))


_NAMES: Final = FrameType("json", lambda names: encode_json(list(names)), _names_of)


@reply(AskLeases.TYPE)
class LeasesReply(FieldMessage):
    """``unaware``: the ids of members that know no leases; ``unheard``: of those that have not said yet what they know.

    If there are none of both, leases may be granted.
    """

    unaware: tuple[str, ...] = frame(_NAMES)
    unheard: tuple[str, ...] = frame(_NAMES)


@attrs.frozen
class LeaseReply:
    """The lease at ``position``: how many milliseconds it lasts, None if there is none; and its keys in order."""

    TYPE: ClassVar[bytes] = AskLease.TYPE

    position: Position
    ttl_ms: int | None
    keys: tuple[bytes, ...] = ()

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [
            encode_uint(self.position.index),
            encode_uint(self.position.term),
            NUINT.encode(self.ttl_ms),
            *self.keys,
        ]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> LeaseReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return cls(Position(reader.uint(), reader.uint()), reader.read(NUINT), tuple(reader.rest()))


@attrs.frozen
class Refused:
    """The question cannot be answered, whoever is asked; ``reason`` says what is wrong with it."""

    reason: str

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [b"", TEXT.encode(self.reason)]


ReadReply: TypeAlias = Page | Outrun | NotYet | Refused


def decode_read_reply(frames: Sequence[bytes]) -> ReadReply:
    """Raises ProtocolError."""
    if refused := _refusal(frames):
        return refused
    number = FrameReader(frames).uint()
    kind: type[Page | Outrun | NotYet] | None = {_PAGE: Page, _OUTRUN: Outrun, _NOT_YET: NotYet}.get(number)
    if kind is None:
        raise ProtocolError(f"an unknown answer about keys: {number}", frame=0)
    return kind.from_frames(frames)


def decode_outcome_reply(frames: Sequence[bytes]) -> OutcomeReply | Refused:
    """Raises ProtocolError."""
    return _refusal(frames) or OutcomeReply.from_frames(frames)


def decode_lease_reply(frames: Sequence[bytes]) -> LeaseReply | Refused:
    """Raises ProtocolError."""
    return _refusal(frames) or LeaseReply.from_frames(frames)


def _refusal(frames: Sequence[bytes]) -> Refused | None:
    reader = FrameReader(frames)
    return None if reader.raw() else Refused(reader.read(TEXT))

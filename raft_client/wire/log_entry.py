"""Log entries: bytes <-> values.

::

    entry  =  request id (12 bytes)  kind (1 byte)  term (7 bytes, little endian)  data

An entry in hand is its frame: nothing is copied or parsed until somebody asks. Half a million of them pass per second.

Source: ØMQ Raft protocol, "entry"; facts §1.2.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

import attrs

from raft_client.errors import InvalidArgumentError, InvalidDataError, ProtocolError
from raft_client.wire.frames import MAX_UINT, Buffer
from raft_client.wire.hot_value import hot_value
from raft_client.wire.positions import Position
from raft_client.wire.request_id import REQUEST_ID_BYTES, ZERO_REQUEST_ID, RequestId

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CHECKPOINT_DATA",
    "ENTRY_HEADER_BYTES",
    "MAX_ENTRY_DATA_BYTES",
    "EntryKind",
    "LogEntry",
    "decode_entries",
    "first_index_of",
]

ENTRY_HEADER_BYTES: Final = 20
#: A peer silently ignores updates with more (``maxLogEntryDataSize``), and so never answers them.
MAX_ENTRY_DATA_BYTES: Final = 10 * 1024 * 1024
#: The data of a checkpoint: MessagePack nil.
CHECKPOINT_DATA: Final = b"\xc0"

_KIND_OFFSET: Final = REQUEST_ID_BYTES
_TERM_OFFSET: Final = _KIND_OFFSET + 1
_TERM_BYTES: Final = 7
_LAST_TERM_BYTE: Final = ENTRY_HEADER_BYTES - 1
_MAX_TERM_BYTE: Final = MAX_UINT >> 8 * (_TERM_BYTES - 1)


class EntryKind(IntEnum):
    """What wrote the entry, and what for."""

    STATE = 0  # a client's data
    CONFIG = 1  # the peers of the cluster, see decode_config()
    CHECKPOINT = 2  # a new leader's mark; no content


_KINDS: Final = tuple(EntryKind)
_MAX_KIND: Final = max(EntryKind)


@hot_value
class LogEntry:
    """One entry of the replicated log.

    ``index`` is its place in the log, from 1; 0 where it is not known (an entry on the wire does not carry it).
    Properties are cut out of the frame at each access: keep ``data`` in a variable when it is needed twice.
    """

    index: int
    frame: bytes = attrs.field(repr=False)

    @classmethod
    def of(
        cls,
        data: bytes,
        *,
        term: int,
        kind: EntryKind = EntryKind.STATE,
        request_id: RequestId = ZERO_REQUEST_ID,
        index: int = 0,
    ) -> LogEntry:
        """Put an entry together. Raises InvalidDataError when ``term`` is out of range, or there is no data."""
        if not 0 <= term <= MAX_UINT:
            raise InvalidArgumentError("a term lies between 0 and 2^53 - 1")
        if not data:
            raise InvalidDataError("an entry has at least one byte of data")
        return cls(index, b"%b%c%b%b" % (request_id.raw, kind, term.to_bytes(_TERM_BYTES, "little"), data))

    @classmethod
    def from_frame(cls, frame: Buffer, index: int = 0) -> LogEntry:
        """Raises ProtocolError when the header is too short or holds an unknown kind or an impossible term."""
        _check_frame(frame)
        return cls(index, bytes(frame))

    @property
    def request_id(self) -> RequestId:
        """The id of the update that wrote the entry; all zeros when no client did."""
        return RequestId(self.frame[:_KIND_OFFSET])

    @property
    def kind(self) -> EntryKind:
        """STATE for the entries that clients append."""
        return _KINDS[self.frame[_KIND_OFFSET]]

    @property
    def is_state(self) -> bool:
        """Whether a client appended it; quicker than asking for the kind."""
        return not self.frame[_KIND_OFFSET]

    @property
    def term(self) -> int:
        """The term of the leader that appended it."""
        return int.from_bytes(self.frame[_TERM_OFFSET:ENTRY_HEADER_BYTES], "little")

    @property
    def position(self) -> Position:
        """The place of the entry: store it when the entry is dealt with, and come back after it."""
        return Position(self.index, self.term)

    @property
    def data(self) -> bytes:
        """What the client appended."""
        return self.frame[ENTRY_HEADER_BYTES:]

    @property
    def data_view(self) -> memoryview:
        """The same without a copy; for large data."""
        return memoryview(self.frame)[ENTRY_HEADER_BYTES:]

    @property
    def size(self) -> int:
        """Bytes on the wire: header and data."""
        return len(self.frame)

    def encode(self) -> bytes:
        """The frame."""
        return self.frame


def decode_entries(frames: Sequence[bytes], first_index: int) -> list[LogEntry]:
    """Consecutive entries, the first with ``first_index``. Raises ProtocolError. The hot path of streaming."""
    for frame in frames:
        if (
            len(frame) < ENTRY_HEADER_BYTES
            or frame[_KIND_OFFSET] > _MAX_KIND
            or frame[_LAST_TERM_BYTE] > _MAX_TERM_BYTE
        ):
            _check_frame(frame)
    return [LogEntry(index, frame) for index, frame in enumerate(frames, first_index)]


def first_index_of(last_index: int, count: int) -> int:
    if count > last_index:
        raise ProtocolError(f"{count} entries that end with the index {last_index}")
    return last_index - count + 1


def _check_frame(frame: Buffer) -> None:
    if len(frame) < ENTRY_HEADER_BYTES:
        raise ProtocolError(f"a log entry of {len(frame)} bytes; its header alone has {ENTRY_HEADER_BYTES}")
    if frame[_KIND_OFFSET] > _MAX_KIND:
        raise ProtocolError(f"a log entry of the unknown kind {frame[_KIND_OFFSET]}", offset=_KIND_OFFSET)
    if frame[_LAST_TERM_BYTE] > _MAX_TERM_BYTE:
        raise ProtocolError("a log entry with a term of more than 53 bits", offset=_TERM_OFFSET)

"""Segments of the log: bytes <-> values. All integers are little endian.

::

    segment  =  header, records                                             file <sequence, 16 hex digits>.log
    header   =  "zmqraftL"  version u16  flags u16  sequence u64  salt 8 bytes
                index u64  term u64  checksum u32                           48 bytes
    record   =  word u32  check u32  checksum u32  body
    word     =  kind (4 bits, the highest)  length of the body (28 bits)
    check    =  word, inverted  xor  seed
    checksum =  CRC-32 of the body, begun with the seed
    mark     =  salt 8 bytes  synced u8  index u64  term u64  vote          kind 1; seed: its offset in the file
    entry    =  as on the wire                                              kind 2; seed: its index

The header says after which entry (index, term) the segment begins; with flag 1 nothing counts that earlier segments
hold: a snapshot replaced it. A mark begins each job: the log ends at ``index`` there, so what follows it in earlier
records is void; the entries of the job come next. ``term`` and ``vote`` are the hard state. ``synced`` says that
everything before the mark had been synced when it was written. Nothing is ever overwritten.

The salt is random, so that no data of a client can be taken for a mark. The seeds are the low 32 bits: a record in
another place is no record.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable
from typing import Final

import attrs

from raft_client.errors import StorageDamagedError, StorageVersionError
from raft_client.server.node.ready import HardState
from raft_client.wire.log_entry import LogEntry

FORMAT_VERSION: Final = 1
SALT_BYTES: Final = 8
_MAGIC: Final = b"zmqraftL"
_HEADER: Final = struct.Struct("<8sHHQ8sQQ")
_U32: Final = struct.Struct("<I")
HEADER_BYTES: Final = _HEADER.size + _U32.size
_REPLACES_ALL: Final = 1

_RECORD: Final = struct.Struct("<III")
RECORD_HEADER_BYTES: Final = _RECORD.size
_KIND_SHIFT: Final = 28
#: The longest body of a record.
MAX_BODY_BYTES: Final = (1 << _KIND_SHIFT) - 1
_MASK: Final = 0xFFFFFFFF
_MARK_KIND: Final = 1
_ENTRY_KIND: Final = 2
_ENTRY_WORD: Final = _ENTRY_KIND << _KIND_SHIFT
_MARK: Final = struct.Struct("<8sBQQ")

#: The unit that a disk writes whole or not at all.
_SECTOR: Final = 512


@attrs.frozen
class SegmentHeader:
    """What a segment begins with. ``replaces_all``: it begins after a snapshot that replaced the whole log."""

    sequence: int
    salt: bytes
    index: int
    term: int
    replaces_all: bool = False

    @property
    def name(self) -> str:
        """Of the file."""
        return f"{self.sequence:016x}.log"

    def encode(self) -> bytes:
        """48 bytes."""
        flags = _REPLACES_ALL if self.replaces_all else 0
        data = _HEADER.pack(_MAGIC, FORMAT_VERSION, flags, self.sequence, self.salt, self.index, self.term)
        return data + _U32.pack(zlib.crc32(data))

    @classmethod
    def decode(cls, name: str, data: bytes) -> SegmentHeader:
        """Raises StorageVersionError, and StorageDamagedError if it is none, or that of another file."""
        if len(data) < HEADER_BYTES or not data.startswith(_MAGIC):
            raise StorageDamagedError(f"{name} does not begin as a segment", file=name)
        _, version, flags, sequence, salt, index, term = _HEADER.unpack_from(data)
        if version > FORMAT_VERSION:
            raise StorageVersionError(f"{name} has version {version}; this package knows {FORMAT_VERSION}")
        header = cls(sequence, salt, index, term, bool(flags & _REPLACES_ALL))
        if _U32.unpack_from(data, _HEADER.size)[0] != zlib.crc32(data[: _HEADER.size]) or header.name != name:
            raise StorageDamagedError(f"{name} has a damaged header", file=name)
        return header


@attrs.frozen
class Mark:
    """The begin of a job: where the log ends there, and the hard state."""

    index: int
    hard_state: HardState
    #: Whether all before it had been synced.
    synced: bool


def encode_mark(mark: Mark, salt: bytes, offset: int) -> bytes:
    """The record of a mark at this offset of a segment."""
    body = _MARK.pack(salt, mark.synced, mark.index, mark.hard_state.term) + mark.hard_state.voted_for.encode()
    word = _MARK_KIND << _KIND_SHIFT | len(body)
    seed = offset & _MASK
    return _RECORD.pack(word, ~word & _MASK ^ seed, zlib.crc32(body, seed)) + body


def decode_mark(body: bytes, salt: bytes) -> Mark | None:
    """None if it is none of this segment."""
    if len(body) < _MARK.size or not body.startswith(salt):
        return None
    _, synced, index, term = _MARK.unpack_from(body)
    return Mark(index, HardState(term, body[_MARK.size :].decode()), bool(synced))


def encode_entries(entries: Iterable[LogEntry], offset: int, parts: list[bytes], offsets: array[int]) -> int:
    """Append the records of entries to ``parts`` and their places to ``offsets``; returns the offset behind them."""
    pack, crc32 = _RECORD.pack, zlib.crc32
    for entry in entries:
        frame = entry.frame
        seed = entry.index & _MASK
        word = _ENTRY_WORD | len(frame)
        parts.append(pack(word, ~word & _MASK ^ seed, crc32(frame, seed)))
        parts.append(frame)
        offsets.append(offset)
        offset += RECORD_HEADER_BYTES + len(frame)
    return offset


def read_record(data: bytes | memoryview, at: int, index: int, offset: int) -> tuple[bool, int, int] | None:
    """Whether the record at ``at`` is a mark, where its body begins and where it ends; None if there is none.

    ``index`` is that of the entry that it would be, ``offset`` where in its file ``at`` is.
    """
    if at + RECORD_HEADER_BYTES > len(data):
        return None
    word, check, crc = _RECORD.unpack_from(data, at)
    is_mark = word >> _KIND_SHIFT == _MARK_KIND
    seed = (offset if is_mark else index) & _MASK
    begin = at + RECORD_HEADER_BYTES
    end = begin + (word & MAX_BODY_BYTES)
    is_known = is_mark or word >> _KIND_SHIFT == _ENTRY_KIND
    if not is_known or ~word & _MASK ^ seed != check or end > len(data) or zlib.crc32(data[begin:end], seed) != crc:
        return None
    return is_mark, begin, end


def read_entry(data: bytes, at: int, index: int) -> LogEntry | None:
    """The entry with this index, whose record begins at ``at``; None if it is not there whole."""
    found = read_record(data, at, index, -1)
    if found is None or found[0]:
        return None
    return LogEntry(index, data[found[1] : found[2]])


def record_end(data: bytes, at: int, index: int, offset: int) -> int:
    """Where the record at ``at`` would end by its header; the end of its header if that is none."""
    header_end = at + RECORD_HEADER_BYTES
    if header_end > len(data):
        return header_end
    word, check, _ = _RECORD.unpack_from(data, at)
    seed = (offset if word >> _KIND_SHIFT == _MARK_KIND else index) & _MASK
    return header_end + (word & MAX_BODY_BYTES) if ~word & _MASK ^ seed == check else header_end


def is_power_loss(data: bytes, begin: int, end: int) -> bool:
    """Whether these bytes, which are not what was written, can be so because they were never synced.

    A sector reaches the disk or does not. Files only grow, so one that did not reads as zeros, or the file ends. Bytes
    that are all there and say something else are damage.
    """
    if end > len(data):
        return True
    at = begin
    while at < end:
        sector_end = min((at // _SECTOR + 1) * _SECTOR, end)
        if not any(data[at:sector_end]):
            return True
        at = sector_end
    return False

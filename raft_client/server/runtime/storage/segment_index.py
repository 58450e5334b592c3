"""What is known of a segment that is written no more: where its entries are, and which request ids they have.

It spares reading the segment at the next start, and outlives it, so that request ids are remembered after their entries
went into a snapshot. All integers are little endian, but those in records of ids.

::

    index    =  "zmqraftI"  version u16  0 u16  length of summary u32  checksum of summary and fences u32  summary,
                fences, offsets, blocks                                     file <sequence, 16 hex digits>.index
    summary  =  MessagePack [sequence, index, term, replaces all, first index, size of the segment, term, vote,
                min seconds, max seconds, number of offsets, checksum of offsets, number of ids, [[index, CONFIG data]]]
    fences   =  the first id of each block, 12 bytes each
    offsets  =  u32 for each entry from the first index on: where its record begins in the segment
    block    =  records, up to 204; checksum u32 over the block's number (u32) and the records
    record   =  request id, its bytes in reverse order (12 bytes)  index u64, big endian

Records are sorted. In reverse order ids that differ only in their counters differ at once, so that they are sorted in
many short steps: one long one would hold up the other threads.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import attrs
import msgpack

from raft_client.errors import StorageDamagedError, StorageVersionError
from raft_client.server.node.ready import HardState
from raft_client.server.runtime.storage.segment_format import SegmentHeader
from raft_client.wire.request_id import REQUEST_ID_BYTES

if TYPE_CHECKING:
    from raft_client._common.durable_files import File, Folder

# -- is the id there? --------------------------------------------------------------------------------------------------
# Clients that repeat what they append give many entries ids of one and the same second, and each segment that has ids
# of that second is asked for each of them.


_BITS_PER_ID: Final = 8


class RequestFilter:
    """A Bloom filter with two hashes and 8 to 16 bits for each id: of ids that are not there, 1 to 5 % may be.

    For this process only: Python's hashes differ from one to the next, so that nobody can choose ids that collide.
    """

    __slots__ = ("_bytes", "_mask")

    def __init__(self, ids: Collection[bytes]) -> None:
        size = 1 << (_BITS_PER_ID * len(ids) // 8).bit_length()
        self._mask = mask = size - 1
        self._bytes = data = bytearray(size)
        for raw in ids:
            value = hash(raw)
            data[value >> 3 & mask] |= 1 << (value & 7)
            data[value >> 35 & mask] |= 1 << (value >> 32 & 7)

    def may_have(self, raw: bytes) -> bool:
        """False for most ids that are not there, and for none that is."""
        value, data, mask = hash(raw), self._bytes, self._mask
        return bool(data[value >> 3 & mask] >> (value & 7) & data[value >> 35 & mask] >> (value >> 32 & 7) & 1)


# -- segment index -----------------------------------------------------------------------------------------------------


_VERSION: Final = 1
_MAGIC: Final = b"zmqraftI"
_HEAD: Final = struct.Struct("<8sHHII")
_U32: Final = struct.Struct("<I")
_RECORD: Final = struct.Struct(f">{REQUEST_ID_BYTES}sQ")
_PER_BLOCK: Final = 204  # and its checksum: less than a page
_BLOCK_BYTES: Final = _PER_BLOCK * _RECORD.size + _U32.size
_FIRST_READ: Final = 16_384


def index_name(sequence: int) -> str:
    """Of the file that belongs to this segment."""
    return f"{sequence:016x}.index"


@attrs.frozen
class Summary:
    """A segment as it was when the next one began."""

    header: SegmentHeader
    #: Of its first entry; a segment whose first job cuts the log begins before ``header.index + 1``.
    first: int
    count: int
    size: int
    hard_state: HardState
    #: Index and data of its CONFIG entries.
    configs: tuple[tuple[int, bytes], ...] = ()


def encode_index(summary: Summary, offsets: array[int], ids: Iterable[tuple[bytes, int]]) -> bytes:
    """The whole file."""
    records = _sorted_records(ids)
    blocks = [records[at : at + _PER_BLOCK] for at in range(0, len(records), _PER_BLOCK)]
    places = _little_endian(offsets)
    seconds = [int.from_bytes(record[REQUEST_ID_BYTES - 4 : REQUEST_ID_BYTES], "little") for record in records]
    header, state = summary.header, summary.hard_state
    packed: bytes = msgpack.packb(
        [
            header.sequence, header.index, header.term, header.replaces_all, summary.first, summary.size,
            state.term, state.voted_for, min(seconds, default=0), max(seconds, default=0), summary.count,
            zlib.crc32(places), len(records), summary.configs,
        ]
    )  # fmt: skip
    fences = b"".join(block[0][:REQUEST_ID_BYTES] for block in blocks)
    head = _HEAD.pack(_MAGIC, _VERSION, 0, len(packed), zlib.crc32(fences, zlib.crc32(packed)))
    return b"".join((head, packed, fences, places, *map(_encode_block, range(len(blocks)), blocks)))


def _sorted_records(ids: Iterable[tuple[bytes, int]]) -> list[bytes]:
    buckets: list[list[bytes]] = [[] for _ in range(256)]
    for raw, index in ids:
        buckets[raw[-1]].append(_RECORD.pack(raw[::-1], index))
    records: list[bytes] = []
    for bucket in buckets:
        bucket.sort()
        records += bucket
    return records


def _encode_block(number: int, records: Sequence[bytes]) -> bytes:
    data = b"".join(records)
    return data + _U32.pack(zlib.crc32(data, number))


def _little_endian(offsets: array[int]) -> bytes:
    if sys.byteorder == "little":
        return offsets.tobytes()
    swapped = array("I", offsets)
    swapped.byteswap()
    return swapped.tobytes()


@attrs.define(eq=False)
class SegmentIndex:
    """An index file whose head was read. The rest is read, and checked, when it is asked for."""

    name: str
    summary: Summary
    #: Of the ids, as seconds since 1970; meaningless without ids.
    min_seconds: int
    max_seconds: int
    id_count: int
    _fences: bytes = attrs.field(repr=False)
    _offsets_checksum: int
    _offsets_at: int
    #: Of one that was written by this process, and lately.
    filter: RequestFilter | None = attrs.field(default=None, repr=False)

    @classmethod
    def read(cls, name: str, file: File) -> SegmentIndex:
        """Raises StorageDamagedError and StorageVersionError."""
        start = file.read(_FIRST_READ, 0)
        if len(start) < _HEAD.size or not start.startswith(_MAGIC):
            raise StorageDamagedError(f"{name} does not begin as an index", file=name)
        _, version, _, length, checksum = _HEAD.unpack_from(start)
        if version > _VERSION:
            raise StorageVersionError(f"{name} has version {version}; this package knows {_VERSION}")
        size = file.size
        try:
            return cls._decode(name, file, size, start, length, checksum)
        except (ValueError, TypeError, msgpack.UnpackException):
            raise StorageDamagedError(f"{name} has a damaged head", file=name) from None

    @classmethod
    def _decode(cls, name: str, file: File, size: int, start: bytes, length: int, checksum: int) -> SegmentIndex:
        if length > size:
            raise ValueError
        packed = start[_HEAD.size : _HEAD.size + length]
        if len(packed) < length:
            packed = file.read(length, _HEAD.size)
        (
            sequence, index, term, replaces_all, first, segment_size, state_term, vote, min_seconds, max_seconds,
            count, offsets_checksum, id_count, configs,
        ) = msgpack.unpackb(packed)  # fmt: skip
        block_count = -(-id_count // _PER_BLOCK)
        fences = file.read(block_count * REQUEST_ID_BYTES, _HEAD.size + length)
        header = SegmentHeader(sequence, b"", index, term, replaces_all)
        offsets_at = _HEAD.size + length + len(fences)
        expected = offsets_at + count * 4 + id_count * _RECORD.size + block_count * _U32.size
        is_whole = zlib.crc32(fences, zlib.crc32(packed)) == checksum and size == expected
        if not is_whole or name != index_name(sequence):
            raise ValueError
        state = HardState(state_term, vote)
        summary = Summary(header, first, count, segment_size, state, tuple((at, data) for at, data in configs))
        return cls(name, summary, min_seconds, max_seconds, id_count, fences, offsets_checksum, offsets_at)

    @property
    def offsets_place(self) -> tuple[int, int]:
        """How many bytes the offsets are, and where they begin."""
        return self.summary.count * 4, self._offsets_at

    def read_offsets(self, file: File) -> array[int]:
        """Where each entry begins in the segment. Raises StorageDamagedError."""
        data = file.read(self.summary.count * 4, self._offsets_at)
        if zlib.crc32(data) != self._offsets_checksum:
            raise StorageDamagedError(f"{self.name} has damaged offsets", file=self.name, offset=self._offsets_at)
        offsets = array("I", data)
        if sys.byteorder != "little":
            offsets.byteswap()
        return offsets

    def may_have(self, raw: bytes, seconds: int) -> bool:
        """Whether it is worth to :meth:`find` this request id, which was made at that time."""
        is_of_the_time = self.id_count > 0 and self.min_seconds <= seconds <= self.max_seconds
        return is_of_the_time and (self.filter is None or self.filter.may_have(raw))

    def find(self, raw: bytes, last: int, file: File) -> int | None:
        """The newest entry with this request id that is not behind ``last``. Raises StorageDamagedError."""
        wanted = raw[::-1]
        number = self._block_of(wanted)
        found: int | None = None
        while number >= 0:
            records = self.read_block(number, file)
            at = records.find(wanted)
            while at >= 0:
                if at % _RECORD.size == 0:
                    index = int.from_bytes(records[at + REQUEST_ID_BYTES : at + _RECORD.size], "big")
                    if index <= last and (found is None or index > found):
                        found = index
                at = records.find(wanted, at + 1)
            if found is not None or not records.startswith(wanted):
                return found
            number -= 1
        return found

    def _block_of(self, wanted: bytes) -> int:
        """The last block that can hold it; -1 if none can."""
        fences, size = self._fences, REQUEST_ID_BYTES
        return bisect_right(range(self.block_count), wanted, key=lambda at: fences[at * size : at * size + size]) - 1

    @property
    def block_count(self) -> int:
        """How many blocks of ids there are."""
        return len(self._fences) // REQUEST_ID_BYTES

    def read_block(self, number: int, file: File) -> bytes:
        """The records of a block. Raises StorageDamagedError."""
        blocks_at = self._offsets_at + self.summary.count * 4
        at = number * _BLOCK_BYTES
        size = min(_BLOCK_BYTES, self.id_count * _RECORD.size + self.block_count * _U32.size - at)
        data = file.read(size, blocks_at + at)
        records = data[: -_U32.size]
        if len(data) < size or _U32.unpack(data[-_U32.size :])[0] != zlib.crc32(records, number):
            raise StorageDamagedError(f"{self.name} has a damaged block of ids", file=self.name, offset=blocks_at + at)
        return records


def write_index(folder: Folder, name: str, data: bytes, ids: Collection[bytes]) -> SegmentIndex:
    """The file is durable under its name when this returns, and it is there as a whole or not at all."""
    file = folder.open(f"{name}.tmp", create=True)
    try:
        file.write(data, 0)
        file.sync()
        folder.replace(name, f"{name}.tmp")
        folder.sync()
        index = SegmentIndex.read(name, file)
        index.filter = RequestFilter(ids)
        return index
    finally:
        file.close()

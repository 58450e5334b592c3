"""Snapshots on disk: written piece by piece, read from any offset. All integers are little endian.

::

    snapshot =  "zmqraftS"  version u16  0 u16                              file snapshot-<index, 16 hex digits>
                blocks of 65,536 bytes, the last one shorter, each followed by its checksum
                summary  length of summary u32  checksum u32  "Sfarqmz."
    summary  =  MessagePack [index, term, size, may_be_ahead, index of the configuration, CONFIG data, members known]
    checksum =  CRC-32; of a block, begun with its number

Until it is whole the file has a name that ends in ``.tmp``. ``may_be_ahead`` says that it
may stand for entries that the log does not have: it came from another peer, or the log is not synced.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

import attrs
import msgpack

from raft_client.errors import ProtocolError, StorageDamagedError, StorageVersionError
from raft_client.server.node.stored_log import Configuration, SnapshotMeta
from raft_client.wire.configuration import decode_config, encode_config

if TYPE_CHECKING:
    from raft_client.server.runtime.storage.filesystem import File, Folder

_VERSION: Final = 1
_MAGIC: Final = b"zmqraftS"
_END: Final = b"Sfarqmz."
_HEAD: Final = struct.Struct("<8sHH")
_TAIL: Final = struct.Struct("<II8s")
_U32: Final = struct.Struct("<I")
_BLOCK_DATA: Final = 65_536  # as much as a chunk on the wire
_BLOCK: Final = _BLOCK_DATA + _U32.size
#: So that the end of a long snapshot does not wait for all of it to be synced.
_SYNC_AFTER_BYTES: Final = 8 * 1024 * 1024


def snapshot_name(index: int) -> str:
    """Of the file."""
    return f"snapshot-{index:016x}"


class SnapshotFileWriter:
    """A snapshot that is being written. Belongs to one thread at a time. Its calls raise OSError."""

    def __init__(self, folder: Folder, name: str) -> None:
        self.name = name
        self._file = folder.open(name, create=True)
        self._file.write(_HEAD.pack(_MAGIC, _VERSION, 0), 0)
        self._begun: list[bytes] = []  # of the block that is not whole
        self._begun_bytes = 0
        self._blocks = 0
        self._unsynced = 0

    @property
    def size(self) -> int:
        """Bytes of the snapshot so far."""
        return self._blocks * _BLOCK_DATA + self._begun_bytes

    def write(self, data: bytes) -> None:
        """The next bytes, any number of them."""
        view = memoryview(data)
        while view:
            piece = view[: _BLOCK_DATA - self._begun_bytes]
            self._begun.append(bytes(piece))
            self._begun_bytes += len(piece)
            view = view[len(piece) :]
            if self._begun_bytes == _BLOCK_DATA:
                self._end_block()

    def finish(self, meta: SnapshotMeta, *, may_be_ahead: bool) -> None:
        """Write the summary, and sync it all. ``meta.size`` must be :attr:`size`."""
        if self._begun_bytes:
            self._end_block()
        change = encode_config(meta.configuration.change)
        summary = [meta.index, meta.term, meta.size, may_be_ahead, meta.configuration.index, change, meta.members_known]
        packed: bytes = msgpack.packb(summary)
        end = packed + _TAIL.pack(len(packed), zlib.crc32(packed), _END)
        self._file.write(end, _HEAD.size + meta.size + -(-meta.size // _BLOCK_DATA) * _U32.size)
        self._file.sync()

    def close(self) -> None:
        """Of the file; it stays."""
        self._file.close()

    def _end_block(self) -> None:
        data = b"".join(self._begun)
        self._file.write(data + _U32.pack(zlib.crc32(data, self._blocks)), _HEAD.size + self._blocks * _BLOCK)
        self._begun.clear()
        self._blocks += 1
        self._unsynced += self._begun_bytes
        self._begun_bytes = 0
        if self._unsynced >= _SYNC_AFTER_BYTES:
            self._file.sync()
            self._unsynced = 0


@attrs.define(eq=False)
class StoredSnapshot:
    """A snapshot whose summary was read. Its blocks are read, and checked, when they are asked for."""

    name: str
    meta: SnapshotMeta
    #: Known of those that were read at the start; nobody asks later.
    may_be_ahead: bool = False

    @classmethod
    def read(cls, name: str, file: File) -> StoredSnapshot:
        """Raises StorageDamagedError and StorageVersionError."""
        size = file.size
        head = file.read(_HEAD.size, 0)
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise StorageDamagedError(f"{name} does not begin as a snapshot", file=name)
        if (version := _HEAD.unpack(head)[1]) > _VERSION:
            raise StorageVersionError(f"{name} has version {version}; this package knows {_VERSION}")
        try:
            meta, may_be_ahead = _read_summary(file, size)
        except (ValueError, TypeError, struct.error, msgpack.UnpackException, ProtocolError):
            raise StorageDamagedError(f"{name} has a damaged summary", file=name, offset=size) from None
        if name != snapshot_name(meta.index):
            raise StorageDamagedError(f"{name} is the snapshot of {meta.index}", file=name)
        return cls(name, meta, may_be_ahead)

    def read_data(self, file: File, offset: int, size: int) -> bytes:
        """At most ``size`` bytes from there on. Raises StorageDamagedError."""
        end = min(offset + size, self.meta.size)
        if offset >= end:
            return b""
        first = offset // _BLOCK_DATA
        data = b"".join(self.read_block(file, number) for number in range(first, -(-end // _BLOCK_DATA)))
        return data[offset - first * _BLOCK_DATA : end - first * _BLOCK_DATA]

    @property
    def block_count(self) -> int:
        """How many there are."""
        return -(-self.meta.size // _BLOCK_DATA)

    def read_block(self, file: File, number: int) -> bytes:
        """Up to 65,536 bytes. Raises StorageDamagedError."""
        at = _HEAD.size + number * _BLOCK
        expected = min(_BLOCK_DATA, self.meta.size - number * _BLOCK_DATA)
        found = file.read(expected + _U32.size, at)
        data = found[:expected]
        if found[expected:] != _U32.pack(zlib.crc32(data, number)):
            raise StorageDamagedError(f"{self.name} has a damaged block", file=self.name, offset=at)
        return data


def _read_summary(file: File, size: int) -> tuple[SnapshotMeta, bool]:
    length, checksum, end = _TAIL.unpack(file.read(_TAIL.size, max(0, size - _TAIL.size)))
    packed = file.read(min(length, size), max(0, size - _TAIL.size - length))
    if end != _END or zlib.crc32(packed) != checksum:
        raise ValueError
    index, term, data_bytes, may_be_ahead, config_index, config, members_known = msgpack.unpackb(packed)
    expected = _HEAD.size + data_bytes + -(-data_bytes // _BLOCK_DATA) * _U32.size + len(packed) + _TAIL.size
    if expected != size:
        raise ValueError
    configuration = Configuration(config_index, decode_config(config))
    return SnapshotMeta(index, term, data_bytes, configuration, members_known=members_known), may_be_ahead

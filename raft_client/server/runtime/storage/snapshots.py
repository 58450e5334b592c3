"""The newest snapshot of a log, one that arrives in chunks, and one that this peer makes itself."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final, Self

import attrs
import msgpack

from raft_client.errors import (
    BusyError,
    InvalidArgumentError,
    ProtocolError,
    StorageDamagedError,
    StorageError,
    StorageVersionError,
)
from raft_client.server.node.ready import Configuration, SnapshotMeta
from raft_client.server.runtime.storage.directory import storage_error
from raft_client.wire.configuration import decode_config, encode_config

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from raft_client._common.durable_files import File, Folder
    from raft_client.server.runtime.storage.read_ahead import ReadAhead
    from raft_client.wire.log_entry import SnapshotChunk

# -- one file ----------------------------------------------------------------------------------------------------------
# ::
#
#     snapshot =  "zmqraftS"  version u16  0 u16                              file snapshot-<index, 16 hex digits>
#                 blocks of 65,536 bytes, the last one shorter, each followed by its checksum
#                 summary  length of summary u32  checksum u32  "Sfarqmz."
#     summary  =  MessagePack [index, term, size, may_be_ahead, index of the configuration, CONFIG data, members known]
#     checksum =  CRC-32; of a block, begun with its number
#
# Until it is whole the file has a name that ends in ``.tmp``. ``may_be_ahead`` says that it
# may stand for entries that the log does not have: it came from another peer, or the log is not synced.


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

    def place_of(self, offset: int, size: int) -> tuple[int, int]:
        """How many bytes :meth:`read_data` reads of the file, and from where on."""
        first, end = offset // _BLOCK_DATA, min(offset + size, self.meta.size)
        blocks = max(0, -(-end // _BLOCK_DATA) - first)
        data_end = min((first + blocks) * _BLOCK_DATA, self.meta.size)
        return max(0, data_end - first * _BLOCK_DATA + blocks * _U32.size), _HEAD.size + first * _BLOCK

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


# -- snapshots ---------------------------------------------------------------------------------------------------------


_INCOMING_NAME: Final = "incoming.tmp"
_LOCAL_NAME: Final = "local.tmp"
#: What is read of one at a time to restore it.
_PIECE: Final = 256 * 1024


class SnapshotStore:
    """All but :meth:`write_chunk` and :meth:`install` belongs to the loop's thread."""

    def __init__(self, folder: Folder, current: StoredSnapshot | None, *, is_log_synced: bool) -> None:
        self._folder = folder
        self._is_log_synced = is_log_synced
        self.current = current
        self._file: File | None = None  # of the current one
        self._expected: tuple[int, int, int] | None = None  # index, term, size of the one that arrives
        self._position = 0
        self._incoming: SnapshotFileWriter | None = None
        self._is_installing = False
        self.local: SnapshotWriter | None = None

    @property
    def index(self) -> int:
        """Of the last entry that the newest snapshot replaces; 0 if there is none."""
        return 0 if self.current is None else self.current.meta.index

    def read(self, offset: int, size: int) -> bytes:
        """Of the newest one. Raises StorageError; BusyError while it is being installed."""
        if self.current is None:
            return b""
        if self._is_installing:
            raise BusyError("the snapshot is being installed")
        try:
            return self.current.read_data(self._opened(self.current), offset, size)
        except OSError as error:
            raise storage_error(error, f"reading {self.current.name}") from error

    def is_at_hand(self, offset: int, size: int, ahead: ReadAhead) -> bool:
        """Whether :meth:`read` waits for no disk. If it does, that part of the file is wanted. Raises StorageError."""
        if self.current is None or self._is_installing:
            return True
        try:
            place = (self.current.name, self._opened(self.current), *self.current.place_of(offset, size))
            return ahead.are_at_hand([place])
        except OSError as error:
            raise storage_error(error, f"reading {self.current.name}") from error

    def _opened(self, current: StoredSnapshot) -> File:
        if self._file is None:
            self._file = self._folder.open(current.name)
        return self._file

    def pieces(self) -> Generator[bytes]:
        """All of the newest one, also if another one takes its place meanwhile. Raises StorageError.

        Its file is open from now on until it was read to its end, or is closed.
        """
        reader = self._pieces()
        next(reader)
        return reader

    def _pieces(self) -> Generator[bytes]:
        current = self.current
        if current is None or self._is_installing:
            raise BusyError("there is no snapshot to be read")
        try:
            file = self._folder.open(current.name)
            try:
                yield b""
                for offset in range(0, current.meta.size, _PIECE):
                    yield current.read_data(file, offset, _PIECE)
            finally:
                file.close()
        except OSError as error:
            raise storage_error(error, f"reading {current.name}") from error

    # -- from another peer ---------------------------------------------------------------------------------------------

    def check(self, chunk: SnapshotChunk | None, meta: SnapshotMeta | None) -> None:
        """Raises InvalidArgumentError unless the chunk is the next one, and the snapshot whole when it is to end."""
        expected, position = self._expected, self._position
        if chunk is not None:
            is_next = chunk.is_first or ((chunk.index, chunk.term, chunk.size) == expected and chunk.offset == position)
            if not is_next:
                raise InvalidArgumentError(f"a chunk at {chunk.offset} of a snapshot instead of one at {position}")
            expected, position = (chunk.index, chunk.term, chunk.size), chunk.end
        if meta is not None and ((meta.index, meta.term, meta.size) != expected or position != meta.size):
            raise InvalidArgumentError("a snapshot to be installed that has not arrived whole")

    def take(self, chunk: SnapshotChunk) -> None:
        """It will be written."""
        self._expected = (chunk.index, chunk.term, chunk.size)
        self._position = chunk.end

    def write_chunk(self, chunk: SnapshotChunk) -> None:
        """The thread of the jobs. Not durable before :meth:`install`: a snapshot that is not whole is not kept."""
        if chunk.is_first and self._incoming is not None:
            self._incoming.close()
            self._incoming = None
        self._writer().write(chunk.data)

    def _writer(self) -> SnapshotFileWriter:
        """Of the one that arrives."""
        if self._incoming is None:
            self._incoming = SnapshotFileWriter(self._folder, _INCOMING_NAME)
        return self._incoming

    def begin_install(self, meta: SnapshotMeta) -> list[str]:
        """What arrived is the newest one from now on. Returns what may be removed then."""
        self._expected = None
        self._is_installing = True
        return self._use(StoredSnapshot(snapshot_name(meta.index), meta))

    def install(self, meta: SnapshotMeta, replaces: bool) -> None:
        """The thread of the jobs. It is durable, and has its name, when this returns."""
        writer, self._incoming = self._writer(), None
        try:
            writer.finish(meta, may_be_ahead=replaces or not self._is_log_synced)
        finally:
            writer.close()
        self._folder.replace(snapshot_name(meta.index), writer.name)
        self._folder.sync()
        self._is_installing = False

    # -- its own -------------------------------------------------------------------------------------------------------

    def begin_local(self, fail: Callable[[OSError, str], StorageError]) -> SnapshotWriter:
        """Raises BusyError if one is being made already."""
        if self.local is not None:
            raise BusyError("a snapshot is being made already")
        self.local = SnapshotWriter(self._folder, fail, is_log_synced=self._is_log_synced)
        return self.local

    def use_local(self, meta: SnapshotMeta) -> list[str]:
        """The one that was finished is the newest one. Returns what may be removed."""
        if self.local is None or self.local.finished != meta:
            raise InvalidArgumentError("a snapshot that was not finished")
        self.local = None
        return self._use(StoredSnapshot(snapshot_name(meta.index), meta))

    def _use(self, snapshot: StoredSnapshot) -> list[str]:
        before, self.current = self.current, snapshot
        self.close()
        return [before.name] if before is not None and before.name != snapshot.name else []

    def close(self) -> None:
        """Of the file that is read."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def end_local(self) -> None:
        """The one that is being made is given up."""
        self.local = None


class SnapshotWriter:
    """A snapshot that this peer makes of its state machine. Belongs to one thread at a time; its calls block.

    Write all of it, :meth:`finish` it, then call :meth:`.disk_log.DiskLog.compact` in the loop's thread.
    """

    def __init__(self, folder: Folder, fail: Callable[[OSError, str], StorageError], *, is_log_synced: bool) -> None:
        self._folder = folder
        self._is_log_synced = is_log_synced
        self._fail = fail
        self._file: SnapshotFileWriter | None = None  # made with the first bytes: until then nothing waits for a disk
        #: What it was finished as; None before.
        self.finished: SnapshotMeta | None = None

    @property
    def size(self) -> int:
        """Bytes so far."""
        return 0 if self._file is None else self._file.size

    def write(self, data: bytes) -> None:
        """The next bytes. Raises StorageError; the log is not touched by that: abort the snapshot."""
        try:
            self._writer().write(data)
        except OSError as error:
            raise storage_error(error, "writing a snapshot") from error

    def finish(self, meta: SnapshotMeta) -> None:
        """It is durable, and found at the next start, when this returns. ``meta.size`` must be :attr:`size`.

        Raises InvalidArgumentError, StorageError; after the latter the log is unusable until it is opened again.
        """
        if meta.size != self.size:
            raise InvalidArgumentError(f"a snapshot of {self.size} bytes is called one of {meta.size}")
        try:
            self._writer().finish(meta, may_be_ahead=not self._is_log_synced)
            self.close()
            self._folder.replace(snapshot_name(meta.index), _LOCAL_NAME)
            self._folder.sync()
        except OSError as error:
            raise self._fail(error, "ending a snapshot") from error
        self.finished = meta

    def close(self) -> None:
        """Of the file. What is not finished is removed at the next start, or by the next snapshot."""
        if self._file is not None:
            self._file.close()

    def _writer(self) -> SnapshotFileWriter:
        if self._file is None:
            self._file = SnapshotFileWriter(self._folder, _LOCAL_NAME)
        return self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

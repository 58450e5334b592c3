"""The directory of a peer: made, used by one process at a time, and marked with whose it is.

The lock is the operating system's, on a file of its own: it ends with the process at the latest. Whose directory it is
says a file that is written once, when everything else is ready::

    owner  =  "zmqraftM"  version u16  0 u16  length u32  checksum u32  MessagePack [peer id, ident, CONFIG data]
                                                                                file meta; little endian

In a backup the file has another name, so that no peer starts with it.
The configuration is the list of peers that the peer was started with: the log and the snapshots have the later ones.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import msgpack

from raft_client._common.durable_files import SystemFile, SystemFolder, is_full, sync_folder, try_lock, unlock
from raft_client.errors import (
    ProtocolError,
    StorageDamagedError,
    StorageError,
    StorageFullError,
    StorageInUseError,
    StorageOwnerError,
    StorageVersionError,
)
from raft_client.wire.configuration import ConfigChange, decode_config, encode_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raft_client._common.durable_files import Folder

_LOCK_NAME: Final = "lock"
OWNER_NAME: Final = "meta"
BACKUP_NAME: Final = "meta.backup"
_TMP_NAME: Final = "meta.tmp"
_VERSION: Final = 1
_MAGIC: Final = b"zmqraftM"
_HEAD: Final = struct.Struct("<8sHHII")


def storage_error(error: OSError, doing: str) -> StorageError:
    """What the operating system says, as an error of this package."""
    if is_full(error):
        return StorageFullError(f"no room {doing}: {error.strerror}")
    return StorageError(f"the disk failed {doing}: {error}")


def open_folder(path: str | os.PathLike[str], *, read_only: bool = False) -> SystemFolder:
    """The files of a peer; its lock is none of them."""
    return SystemFolder(path, read_only=read_only, hidden={_LOCK_NAME})


def make_directory(path: str | os.PathLike[str]) -> None:
    """With all above it; their names survive a power failure. Nothing happens if it is there. Raises OSError."""
    path = Path(path)
    if not path.is_dir():
        make_directory(path.absolute().parent)
        path.mkdir(mode=0o700, exist_ok=True)
        sync_folder(path.absolute().parent)


class DirectoryLock:
    """The peer that holds it may use the directory; it ends with its process at the latest. The file itself stays."""

    def __init__(self, path: str | os.PathLike[str], *, for_reading: bool = False) -> None:
        """Take the lock. Raises StorageInUseError if another peer has it, OSError where there is no such directory.

        ``for_reading``: nothing is created, so FileNotFoundError says that nobody ever held it.
        """
        access = os.O_RDONLY if for_reading else os.O_RDWR | os.O_CREAT
        self._file = SystemFile(os.open(Path(path) / _LOCK_NAME, access, 0o600))
        if not try_lock(self._file):
            self._file.close()
            raise StorageInUseError(f"another peer has {os.fspath(path)} open")

    def release(self) -> None:
        """Safe to call twice."""
        if self._file.descriptor >= 0:
            unlock(self._file)
            self._file.close()


@attrs.frozen
class Owner:
    """The peer, its cluster, and the members of the cluster at the start."""

    peer_id: str
    ident: bytes
    change: ConfigChange

    def encode(self) -> bytes:
        """The whole file."""
        packed: bytes = msgpack.packb([self.peer_id, self.ident, encode_config(self.change)])
        return _HEAD.pack(_MAGIC, _VERSION, 0, len(packed), zlib.crc32(packed)) + packed

    def write(self, folder: Folder) -> None:
        """All that is in the folder survives a power failure before the name is there, and the name after it."""
        file = folder.open(_TMP_NAME, create=True)
        try:
            file.write(self.encode(), 0)
            file.sync()
        finally:
            file.close()
        folder.sync()
        folder.replace(OWNER_NAME, _TMP_NAME)
        folder.sync()

    @classmethod
    def read(cls, folder: Folder, name: str = OWNER_NAME) -> Owner:
        """Raises StorageDamagedError and StorageVersionError, and OSError."""
        file = folder.open(name)
        try:
            data = file.read(file.size, 0)
        finally:
            file.close()
        if len(data) < _HEAD.size or not data.startswith(_MAGIC):
            raise StorageDamagedError(f"{name} does not say whose directory it is", file=name)
        _, version, _, length, checksum = _HEAD.unpack_from(data)
        if version > _VERSION:
            raise StorageVersionError(f"{name} has version {version}; this package knows {_VERSION}")
        packed = data[_HEAD.size :]
        try:
            if len(packed) != length or zlib.crc32(packed) != checksum:
                raise ValueError
            peer_id, ident, config = msgpack.unpackb(packed)
            return cls(peer_id, ident, decode_config(config))
        except (ValueError, TypeError, msgpack.UnpackException, ProtocolError):
            raise StorageDamagedError(f"{name} is damaged", file=name, offset=_HEAD.size) from None

    def check(self, peer_id: str, ident: bytes) -> None:
        """Raises StorageOwnerError unless it is this one."""
        if self.peer_id != peer_id:
            raise StorageOwnerError(f"the directory belongs to the peer {self.peer_id!r}, not to {peer_id!r}")
        if self.ident != ident:
            raise StorageOwnerError(f"the directory belongs to the cluster {self.ident!r}, not to {ident!r}")


# -- a directory that is not there yet ---------------------------------------------------------------------------------


@contextmanager
def new_directory(path: str | os.PathLike[str], doing: str) -> Iterator[Path]:
    """A directory to fill; it gets the name ``path`` when the block has ended well, and is removed otherwise.

    A process that is killed leaves it beside ``path``, with a name that ends in ``.part``. The files in it are synced
    in the block. Raises StorageError if something other than an empty directory is there already, or the disk fails.
    """
    target = Path(path).absolute()
    try:
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise StorageError(f"{os.fspath(path)} exists already: name a new directory")
        make_directory(target.parent)
        place = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".part", dir=target.parent))
        try:
            yield place
            sync_folder(place)
            if target.is_dir():
                target.rmdir()
            place = place.rename(target)
            sync_folder(target.parent)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
    except OSError as error:
        raise storage_error(error, doing) from error

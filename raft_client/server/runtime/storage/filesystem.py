"""The disk as this room sees it: a folder of files with offsets, and when what was written is there to stay.

All that this room does to a disk passes here: tests put one under it that loses, tears, changes, fills and fails.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Final, Protocol

from raft_client._common.durable_files import sync_file, sync_folder
from raft_client.errors import StorageError, StorageFullError, StorageInUseError
from raft_client.thread_locks import Mutex

_BINARY: Final = getattr(os, "O_BINARY", 0)  # of Windows
_LOCK_NAME: Final = "lock"


def storage_error(error: OSError, doing: str) -> StorageError:
    """What the operating system says, as an error of this package."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageFullError(f"no room {doing}: {error.strerror}")
    return StorageError(f"the disk failed {doing}: {error}")


def make_directory(path: str | os.PathLike[str]) -> None:
    """With all above it; their names survive a power failure. Nothing happens if it is there. Raises OSError."""
    path = Path(path)
    if not path.is_dir():
        make_directory(path.absolute().parent)
        path.mkdir(mode=0o700, exist_ok=True)
        SystemFolder(path.absolute().parent).sync()


class File(Protocol):
    """Reading may happen in one thread while another one writes. All of it raises OSError."""

    @property
    def size(self) -> int: ...

    def read(self, count: int, offset: int) -> bytes:
        """Fewer bytes at the end of the file only."""

    def write(self, data: bytes, offset: int) -> None:
        """All of it. It is in the file for everybody, and perhaps gone after a power failure."""

    def sync(self) -> None:
        """What was written survives a power failure. After an error nobody knows what does."""

    def truncate(self, size: int) -> None:
        """Cut it off."""

    def close(self) -> None: ...


class Folder(Protocol):
    """All of it raises OSError."""

    def names(self) -> set[str]: ...

    def open(self, name: str, *, create: bool = False) -> File:
        """``create``: a new, empty one, also in place of another."""

    def replace(self, name: str, by: str) -> None:
        """The file ``by`` gets the name of another, at once."""

    def remove(self, name: str) -> None:
        """Nothing happens if there is none."""

    def sync(self) -> None:
        """Names that came, went or changed survive a power failure."""


class SystemFile:
    """A file of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int = descriptor
        self._seeking = Mutex()  # where the system has no pread: position and access are two calls

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def read(self, count: int, offset: int) -> bytes:
        data = self._read_some(count, offset)
        if len(data) in (0, count):
            return data
        parts = [data]
        there = len(data)
        while there < count and (more := self._read_some(count - there, offset + there)):
            parts.append(more)
            there += len(more)
        return b"".join(parts)

    def write(self, data: bytes, offset: int) -> None:
        written = self._write_some(data, offset)
        while written < len(data):
            written += self._write_some(memoryview(data)[written:], offset + written)

    def sync(self) -> None:
        sync_file(self.descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)

    def close(self) -> None:
        """Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    if sys.platform == "win32":

        def _read_some(self, count: int, offset: int) -> bytes:
            with self._seeking:
                os.lseek(self.descriptor, offset, os.SEEK_SET)
                return os.read(self.descriptor, count)

        def _write_some(self, data: bytes | memoryview, offset: int) -> int:
            with self._seeking:
                os.lseek(self.descriptor, offset, os.SEEK_SET)
                return os.write(self.descriptor, data)

    else:

        def _read_some(self, count: int, offset: int) -> bytes:
            return os.pread(self.descriptor, count, offset)

        def _write_some(self, data: bytes | memoryview, offset: int) -> int:
            return os.pwrite(self.descriptor, data, offset)


class SystemFolder:
    """A directory of the operating system. Its files are for their owner's eyes only."""

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self._path = Path(path)
        self._access = os.O_RDONLY if read_only else os.O_RDWR

    def names(self) -> set[str]:
        return set(os.listdir(self._path)) - {_LOCK_NAME}

    def open(self, name: str, *, create: bool = False) -> SystemFile:
        flags = self._access | _BINARY | (os.O_CREAT | os.O_TRUNC if create else 0)
        return SystemFile(os.open(self._path / name, flags, 0o600))

    def replace(self, name: str, by: str) -> None:
        (self._path / by).replace(self._path / name)

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)

    def sync(self) -> None:
        sync_folder(self._path)


class DirectoryLock:
    """The peer that holds it may use the directory; it ends with its process at the latest. The file itself stays."""

    def __init__(self, path: str | os.PathLike[str], *, for_reading: bool = False) -> None:
        """Raises StorageInUseError if somebody holds it, OSError where there is no such directory.

        ``for_reading``: nothing is created, so FileNotFoundError says that nobody ever held it.
        """
        access = os.O_RDONLY if for_reading else os.O_RDWR | os.O_CREAT
        self._file = SystemFile(os.open(Path(path) / _LOCK_NAME, access | _BINARY, 0o600))
        if not _lock(self._file):
            self._file.close()
            raise StorageInUseError(f"another peer has {os.fspath(path)} open")

    def release(self) -> None:
        """Safe to call twice."""
        if self._file.descriptor >= 0:
            _unlock(self._file)
            self._file.close()


if sys.platform == "win32":
    import msvcrt

    def _lock(file: SystemFile) -> bool:
        os.lseek(file.descriptor, 0, os.SEEK_SET)  # it locks from there on
        try:
            msvcrt.locking(file.descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(file: SystemFile) -> None:
        os.lseek(file.descriptor, 0, os.SEEK_SET)
        msvcrt.locking(file.descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: SystemFile) -> bool:
        """Also against others in this process."""
        try:
            fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(file: SystemFile) -> None:
        """Also that of processes which were forked meanwhile."""
        fcntl.flock(file.descriptor, fcntl.LOCK_UN)

"""A folder of files with offsets, and when what was written is there to stay: the disk below the logs of both packages.

The rooms above decide what is written in which order. All that they do to a disk passes here, so tests put one under
them that loses, tears, changes, fills and fails.

Invariant: "on the disk" means the medium, not a cache of the drive's. On macOS fsync() leaves the data there
(fsync(2) of macOS: F_FULLFSYNC), as nothing else does.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from raft_client.thread_locks import Mutex

if sys.platform == "win32":
    import msvcrt

    fcntl = None
else:
    import fcntl

_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
#: Of file systems that have no such call, as those of networks: there fsync() is all that there is.
_UNKNOWN: Final = (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY)
#: Without what a file's dates would cost. macOS and Windows do not have it.
_sync: Final = getattr(os, "fdatasync", os.fsync)
#: Of a new file, for its owner's eyes only: hashes can be guessed at.
_NEW_MODE: Final = 0o600
_BINARY: Final = getattr(os, "O_BINARY", 0)  # of Windows
#: Of Linux: a read that finds something not in memory fails, and does not wait.
_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)


def is_full(error: OSError) -> bool:
    """Whether there was no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def sync_file(descriptor: int) -> None:
    """Wait until the medium has all that was written. Raises OSError; what the medium has is not known then."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
        else:
            return
    _sync(descriptor)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Return when names that came, went or changed in it are there to stay. Raises OSError."""
    if os.name == "nt":  # which has no such thing
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write a new file and rename it, so that readers see the old one or the new one; on the disk when this returns.

    Owner, group and mode are those of the file before, as far as this user may give them. Raises OSError.
    """
    path = path.resolve()  # a link goes on to point there
    before = path.stat() if path.exists() else None
    written = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _NEW_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if before is not None:
            for owner, group in ((-1, before.st_gid), (before.st_uid, -1)):
                with suppress(PermissionError):  # not everybody may give a file away
                    os.chown(written, owner, group)
            written.chmod(before.st_mode & 0o777)
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


class File(Protocol):
    """Reading may happen in one thread while another one writes. All of it raises OSError."""

    @property
    def size(self) -> int: ...

    def read(self, count: int, offset: int) -> bytes:
        """Fewer bytes at the end of the file only."""

    def is_in_memory(self, count: int, offset: int) -> bool:
        """Whether all of that can be read without waiting for the disk; False where the system does not say."""

    def write(self, data: bytes, offset: int) -> None:
        """All of it. It is in the file for everybody, and perhaps gone after a power failure."""

    def sync(self) -> None:
        """Wait until what was written survives a power failure. After an error any part of it may be lost."""

    def truncate(self, size: int) -> None:
        """Cut it off."""

    def close(self) -> None: ...


class Folder(Protocol):
    """All of it raises OSError."""

    def names(self) -> set[str]: ...

    def open(self, name: str, *, create: bool = False) -> File:
        """``create``: a new, empty one, also in place of another."""

    def is_current(self, name: str, file: File) -> bool:
        """Whether the name still leads to this file."""

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
        status = os.fstat(descriptor)
        self.identity: tuple[int, int] = (status.st_dev, status.st_ino)
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

    def is_in_memory(self, count: int, offset: int) -> bool:
        if _NOWAIT is None:
            return False
        try:
            return os.preadv(self.descriptor, [bytearray(count)], offset, _NOWAIT) == count
        except OSError:  # BlockingIOError; or this file system has no such reads
            return False

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
    """A directory of the operating system. Its files are for their owner's eyes only.

    ``hidden`` are names that :meth:`names` leaves out.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, hidden: Collection[str] = ()) -> None:
        self._path = Path(path)
        self._hidden = frozenset(hidden)
        self._access = os.O_RDONLY if read_only else os.O_RDWR

    def names(self) -> set[str]:
        return set(os.listdir(self._path)) - self._hidden

    def open(self, name: str, *, create: bool = False) -> SystemFile:
        flags = self._access | _BINARY | (os.O_CREAT | os.O_TRUNC if create else 0)
        return SystemFile(os.open(self._path / name, flags, 0o600))

    def is_current(self, name: str, file: File) -> bool:
        try:
            status = os.stat(self._path / name)
        except FileNotFoundError:
            return False
        return isinstance(file, SystemFile) and file.identity == (status.st_dev, status.st_ino)

    def replace(self, name: str, by: str) -> None:
        (self._path / by).replace(self._path / name)

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)

    def sync(self) -> None:
        sync_folder(self._path)


if sys.platform == "win32":

    def try_lock(file: SystemFile) -> bool:
        """Take the lock of the file for this process, if no other has it."""
        os.lseek(file.descriptor, 0, os.SEEK_SET)  # it locks from there on
        try:
            msvcrt.locking(file.descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def unlock(file: SystemFile) -> None:
        """Give it back."""
        os.lseek(file.descriptor, 0, os.SEEK_SET)
        msvcrt.locking(file.descriptor, msvcrt.LK_UNLCK, 1)

else:

    def try_lock(file: SystemFile) -> bool:
        """Take the lock of the file, unless another process, or another part of this one, has it."""
        try:
            fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(file: SystemFile) -> None:
        """Give it back, also for processes that were forked meanwhile."""
        fcntl.flock(file.descriptor, fcntl.LOCK_UN)

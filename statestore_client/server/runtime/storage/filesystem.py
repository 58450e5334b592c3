"""The disk as this room sees it: a folder of files with offsets, and when what was written is there to stay.

The rooms above decide what is written in which order; tests put a disk under them that loses, tears and changes it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, Protocol

from raft_client._common.durable_files import sync_file, sync_folder

__all__ = ["File", "Folder", "SystemFile", "SystemFolder", "is_full"]

_BINARY: Final = getattr(os, "O_BINARY", 0)  # of Windows


def is_full(error: OSError) -> bool:
    """Whether there was no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class File(Protocol):
    """Belongs to one thread at a time. All of it raises OSError."""

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

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def read(self, count: int, offset: int) -> bytes:
        os.lseek(self.descriptor, offset, os.SEEK_SET)
        data = os.read(self.descriptor, count)
        if len(data) in (0, count):
            return data
        parts = [data]
        while count > (there := sum(map(len, parts))) and (more := os.read(self.descriptor, count - there)):
            parts.append(more)
        return b"".join(parts)

    def write(self, data: bytes, offset: int) -> None:
        os.lseek(self.descriptor, offset, os.SEEK_SET)
        written = os.write(self.descriptor, data)
        while written < len(data):
            written += os.write(self.descriptor, memoryview(data)[written:])

    def sync(self) -> None:
        sync_file(self.descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)

    def close(self) -> None:
        """Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class SystemFolder:
    """A directory of the operating system. Its files are for their owner's eyes only."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        self._access = os.O_RDONLY if read_only else os.O_RDWR

    def names(self) -> set[str]:
        return set(os.listdir(self._path))

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

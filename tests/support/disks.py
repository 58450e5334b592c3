"""Simulated disks in memory: one that forgets, tears, fails and is full, and one that counts what is done to it and
fails at the n-th operation.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable

# -- sim disk ----------------------------------------------------------------------------------------------------------

# A disk in memory that does what disks do: it forgets what was not synced, tears it, fails, is full, changes bits.
#
# What a program reads is the cache. What a power failure leaves is on the disk: what was synced, and of the rest any
# sectors, with zeros where a file grew and its content did not follow. Names behave alike: those that came, went or
# changed since the last sync of the directory are there up to a point, in order.
#
# After a sync that failed, the cache says that everything is there, and the disk never hears of it again (as on
# Linux).


_SECTOR = 512


class SimulatedFile:
    """Implements File. ``cache`` is what is read, ``content`` what is on the disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self.cache = bytearray()
        self.content = bytearray()
        self.waiting: list[tuple[int, bytes] | int] = []  # writes and truncations

    @property
    def size(self) -> int:
        return len(self.cache)

    def read(self, count: int, offset: int) -> bytes:
        return bytes(self.cache[offset : offset + count])

    def is_in_memory(self, count: int, offset: int) -> bool:
        return False  # and does not say

    def write(self, data: bytes, offset: int) -> None:
        room = self._disk.take_room(max(0, offset + len(data) - len(self.cache)))
        is_full = len(self.cache) + room < offset + len(data)
        written = data[: max(0, len(self.cache) + room - offset)] if is_full else data
        _put(self.cache, offset, written)
        self.waiting.append((offset, written))
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        waiting, self.waiting = self.waiting, []
        if self._disk.sync_fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        for each in waiting:
            _apply(self.content, each)

    def truncate(self, size: int) -> None:
        del self.cache[size:]
        self.waiting.append(size)

    def close(self) -> None:
        """Nothing more."""

    def lose_power(self, random: random.Random) -> None:
        """Of what was not synced, any sectors survive; mostly the first ones, or none."""
        share = random.choice((0.0, 0.3, 0.7, 1.0))
        for each in self.waiting:
            if isinstance(each, int):
                if random.random() < share:
                    _apply(self.content, each)
                continue
            offset, data = each
            at = offset
            while at < offset + len(data):
                end = min((at // _SECTOR + 1) * _SECTOR, offset + len(data))
                if random.random() < share:
                    _apply(self.content, (at, data[at - offset : end - offset]))
                at = end
        self.waiting.clear()
        self.cache = bytearray(self.content)


def _put(content: bytearray, offset: int, data: bytes) -> None:
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


def _apply(content: bytearray, change: tuple[int, bytes] | int) -> None:
    if isinstance(change, int):
        del content[change:]
    else:
        _put(content, *change)


class SimulatedDisk:
    """Implements Folder. ``room`` is how many bytes files may still grow by; None for no end."""

    def __init__(self) -> None:
        self.files: dict[str, SimulatedFile] = {}
        self._kept: dict[str, SimulatedFile] = {}
        self._waiting: list[Callable[[dict[str, SimulatedFile]], object]] = []
        self.room: int | None = None
        self.syncs_until_failure: int | None = None

    # -- the folder ---------------------------------------------------------------------------------------------------

    def names(self) -> set[str]:
        return set(self.files)

    def open(self, name: str, *, create: bool = False) -> SimulatedFile:
        if not create:
            if name not in self.files:
                raise FileNotFoundError(errno.ENOENT, name)
            return self.files[name]
        if name in self.files:
            self.files[name].truncate(0)
            return self.files[name]
        file = SimulatedFile(self)
        self._change(lambda names: names.__setitem__(name, file))
        return file

    def is_current(self, name: str, file: object) -> bool:
        return self.files.get(name) is file

    def replace(self, name: str, by: str) -> None:
        self._change(lambda names: names.__setitem__(name, names.pop(by)))

    def remove(self, name: str) -> None:
        self._change(lambda names: names.pop(name, None))

    def sync(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self.sync_fails():
            self._waiting = waiting  # names are in the file system's own journal
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        for change in waiting:
            change(self._kept)

    def _change(self, change: Callable[[dict[str, SimulatedFile]], object]) -> None:
        change(self.files)
        self._waiting.append(change)

    # -- what happens to it -------------------------------------------------------------------------------------------

    def take_room(self, count: int) -> int:
        """How much of it there is."""
        if self.room is None:
            return count
        given = min(self.room, count)
        self.room -= given
        return given

    def sync_fails(self) -> bool:
        if self.syncs_until_failure is None:
            return False
        self.syncs_until_failure -= 1
        return self.syncs_until_failure < 0

    def lose_power(self, random: random.Random) -> None:
        """What was not synced is lost in part."""
        for change in self._waiting[: random.randint(0, len(self._waiting))]:
            change(self._kept)
        self._waiting.clear()
        for file in {id(file): file for file in [*self.files.values(), *self._kept.values()]}.values():
            file.lose_power(random)
        self.files = dict(self._kept)

    def flip(self, name: str, position: int, bit: int) -> None:
        """One bit changes, on the disk and for whoever reads it."""
        file = self.files[name]
        file.cache[position] ^= 1 << bit
        if position < len(file.content):
            file.content[position] ^= 1 << bit

    def copy(self) -> SimulatedDisk:
        """Another disk with the same files, all of it synced."""
        other = SimulatedDisk()
        for name, file in self.files.items():
            copied = SimulatedFile(other)
            copied.cache, copied.content = bytearray(file.cache), bytearray(file.cache)
            other.files[name] = copied
        other._kept = dict(other.files)
        return other


# -- faulty disk -------------------------------------------------------------------------------------------------------

# The simulated disk, counting what is done to it: before any single operation the process may end, or it fails.


class CrashError(BaseException):
    """The process is gone: no handler of exceptions sees it."""


class FaultyDisk(SimulatedDisk):
    """``operations`` counts changes, syncs, and reads. The one with the number ``crash_at`` does not come to pass, nor
    does any behind it; that with the number ``fail_at`` raises ``error``, after half of it was done.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.crash_at: int | None = None
        self.fail_at: int | None = None
        self.error = 0
        self.log: list[str] = []

    def step(self, what: str) -> bool:
        """Note an operation; whether it is to fail."""
        self.log.append(what)
        number, self.operations = self.operations, self.operations + 1
        if self.crash_at is not None and number >= self.crash_at:
            raise CrashError
        return number == self.fail_at

    def check(self, what: str) -> None:
        if self.step(what):
            self.fail()

    def fail(self) -> None:
        raise OSError(self.error, os.strerror(self.error))

    def heal(self) -> None:
        """The machine starts again."""
        self.crash_at = self.fail_at = None

    def names(self) -> set[str]:
        self.check("names")
        return super().names()

    def open(self, name: str, *, create: bool = False) -> SimulatedFile:
        self.check(f"{'create' if create else 'open'} {name}")
        file = super().open(name, create=create)
        file.__class__ = _FaultyFile
        file.name = name  # type: ignore[attr-defined]
        return file

    def replace(self, name: str, by: str) -> None:
        self.check(f"replace {name}")
        super().replace(name, by)

    def remove(self, name: str) -> None:
        self.check(f"remove {name}")
        super().remove(name)

    def sync(self) -> None:
        self.check("sync of the directory")
        super().sync()

    def image(self) -> dict[str, bytes]:
        """All files as a program reads them."""
        return {name: bytes(file.cache) for name, file in self.files.items()}


class _FaultyFile(SimulatedFile):
    _disk: FaultyDisk
    name: str

    def read(self, count: int, offset: int) -> bytes:
        self._disk.check(f"read {self.name}")
        return super().read(count, offset)

    def write(self, data: bytes, offset: int) -> None:
        if self._disk.step(f"write {self.name}"):
            super().write(data[: len(data) // 2], offset)
            self._disk.fail()
        super().write(data, offset)

    def sync(self) -> None:
        if self._disk.step(f"sync {self.name}"):
            self.waiting.clear()
            self._disk.fail()
        super().sync()

    def truncate(self, size: int) -> None:
        self._disk.check(f"truncate {self.name}")
        super().truncate(size)

"""The simulated disk, counting what is done to it: before any single operation the process may end, or it fails."""

from __future__ import annotations

import os

from sim_disk import SimulatedDisk, SimulatedFile

__all__ = ["CrashError", "FaultyDisk"]


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

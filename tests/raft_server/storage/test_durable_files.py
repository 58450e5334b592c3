"""What is synced to the medium, on systems that have a call of their own for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from raft_client._common import durable_files

FULL_SYNC = 51  # F_FULLFSYNC of macOS


class Calls:
    """In place of the module fcntl: what macOS would be asked."""

    def __init__(self, error: int | None = None) -> None:
        self.asked: list[tuple[int, int]] = []
        self._error = error

    def fcntl(self, descriptor: int, command: int) -> int:
        self.asked.append((descriptor, command))
        if self._error is not None:
            raise OSError(self._error, os.strerror(self._error))
        return 0


def _sync(path: Path, monkeypatch: pytest.MonkeyPatch, calls: Calls) -> list[int]:
    """The descriptors that the ordinary call was made for."""
    others: list[int] = []
    monkeypatch.setattr(durable_files, "fcntl", calls)
    monkeypatch.setattr(durable_files, "_FULL_SYNC", FULL_SYNC)
    monkeypatch.setattr(durable_files, "_sync", others.append)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        durable_files.sync_file(descriptor)
    finally:
        os.close(descriptor)
    assert calls.asked == [(descriptor, FULL_SYNC)]
    return others


def test_macos_is_asked_for_the_medium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There fsync() leaves the data in the drive's cache."""
    assert _sync(tmp_path, monkeypatch, Calls()) == []


def test_a_file_system_without_that_call_is_synced_by_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of networks have none."""
    assert len(_sync(tmp_path, monkeypatch, Calls(errno.ENOTSUP))) == 1


def test_an_error_of_the_disk_is_none_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised, and the ordinary call is not tried in its place: that could succeed, and say nothing."""
    with pytest.raises(OSError, match="Input/output"):
        _sync(tmp_path, monkeypatch, Calls(errno.EIO))

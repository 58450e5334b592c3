"""A cluster of three processes under load for long: what it keeps on the disk, and in memory, has a bound.

Ten minutes in the long run; otherwise until more was written than a directory may hold.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from support.schedules import SCALE
from support.server_processes import ReplicatedServers

from statestore_client import AsyncStateStoreClient

pytestmark = [pytest.mark.scaled, pytest.mark.turns(3)]

_SOAK_S = 600.0 if SCALE >= 10 else 0.0
#: So often as much is written as a directory may hold.
_TIMES = 2.0 if SCALE >= 10 else 1.3
_MIB = 1 << 20
_VALUE_BYTES = 64 * 1024
_KEYS = 64
_AT_ONCE = 16
#: Of a directory, beside what is written in ten seconds: docs/how-to/run-two-servers.md.
_MOST_ON_DISK = 100 * _MIB + 5 * _KEYS * _VALUE_BYTES
_WINDOW_S = 10.0


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # it is dropped at this moment
            total += file.stat().st_size
    return total


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Written:
    """How much, and how much of it in ten seconds at most."""

    def __init__(self) -> None:
        self.bytes = self.most = 0
        self.began = time.monotonic()
        self._recent = deque([(self.began, 0)])

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def add(self, size: int) -> None:
        self.bytes += size
        now = time.monotonic()
        self._recent.append((now, self.bytes))
        while self._recent[0][0] < now - _WINDOW_S:
            self._recent.popleft()
        self.most = max(self.most, self.bytes - self._recent[0][1])


@pytest.mark.timeout(300 + 2 * _SOAK_S)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of another process is read")
async def test_a_cluster_keeps_what_it_needs(tmp_path: Path, figures: Callable[[str], None]) -> None:
    """However much is written, each directory stays below its bound, because servers write snapshots and peers drop
    what precedes them; memory does not grow with what was written; and everything is there in the end.
    """
    servers = ReplicatedServers.with_own_peers(tmp_path, "a", "b", "c")
    folders = [tmp_path / name for name in servers.servers]
    value = os.urandom(_VALUE_BYTES // 2).hex()
    written, bound, on_disk, resident = _Written(), 0, list[int](), list[int]()
    try:
        await servers.start_all()
        async with AsyncStateStoreClient(servers.url) as store:
            for number in count():
                if written.bytes > _TIMES * bound > 0 and written.seconds > max(_WINDOW_S, _SOAK_S):
                    break
                keys = [f"key/{(number * _AT_ONCE + each) % _KEYS}" for each in range(_AT_ONCE)]
                await store.set_many([(key, value) for key in keys], timeout=60)
                written.add(_AT_ONCE * _VALUE_BYTES)
                bound = _MOST_ON_DISK + written.most
                on_disk.append(max(map(_bytes_in, folders)))
                resident.append(max(_resident(s.process.pid) for s in servers.servers.values() if s.process))
                assert on_disk[-1] < bound
            found = await store.get_many([f"key/{each}" for each in range(_KEYS)], timeout=60)
            assert all(each is not None and each.value == value.encode() for each in found)
    finally:
        await servers.end_all()
    half = len(resident) // 2
    figures(
        f"{written.bytes / _MIB:.0f} MiB in {written.seconds:.0f} s, {written.most / _MIB:.0f} in ten seconds at most; "
        f"a directory had {max(on_disk) / _MIB:.0f} MiB at most, a process {max(resident[:half]) / _MIB:.0f} in the "
        f"first half and {max(resident[half:]) / _MIB:.0f} in the second"
    )
    assert max(resident[half:]) < 1.5 * max(resident[:half])

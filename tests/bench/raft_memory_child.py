"""What bench_raft.py runs in a process of its own: ``raft_memory_child.py SHELL SEEDS AFTER COUNT TIMES``; prints JSON.

Streams the same entries this many times and tells how much memory that took at most, above that of a connected client.
Linux only: the kernel keeps the peak of resident memory, and forgets it on demand.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path

from raft_client import AsyncRaftClient, LogEntry, RaftClient


def resident_bytes(name: str) -> int:
    """``VmRSS`` is now, ``VmHWM`` the most since :func:`forget_peak`."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def forget_peak() -> int:
    """Returns what is resident now."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return resident_bytes("VmRSS")


def stream_sync(seeds: str, after: int, count: int, times: int) -> tuple[int, int]:
    streamed = 0
    with RaftClient(seeds) as client:
        client.log_info()
        idle = forget_peak()
        for _ in range(times):
            for entry in client.entries(after, count):
                assert isinstance(entry, LogEntry)
                streamed += entry.size
    return idle, streamed


def stream_aio(seeds: str, after: int, count: int, times: int) -> tuple[int, int]:
    async def run() -> tuple[int, int]:
        streamed = 0
        async with AsyncRaftClient(seeds) as client:
            await client.log_info()
            idle = forget_peak()
            for _ in range(times):
                async for entry in client.entries(after, count):
                    assert isinstance(entry, LogEntry)
                    streamed += entry.size
        return idle, streamed

    return asyncio.run(run())


def main() -> None:
    shell, seeds, *numbers = sys.argv[1:]
    works: dict[str, Callable[..., tuple[int, int]]] = {"sync": stream_sync, "aio": stream_aio}
    idle, streamed = works[shell](seeds, *map(int, numbers))
    print(json.dumps({"above_idle": resident_bytes("VmHWM") - idle, "streamed": streamed}))


if __name__ == "__main__":
    main()

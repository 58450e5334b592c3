"""Memory that was freed goes back to the system."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, repeat

import pytest

from statestore_client.server.runtime.memory_release import memory_given_back

_PROGRAM = """
import re
from statestore_client.server.runtime.memory_release import trim_memory
def resident_kb():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1])
kept = []
large = []
for number in range(60_000):
    large.append(bytes(1000))
    if not number % 100:
        kept.append(bytes(1000))  # in between
full = resident_kb()
del large
trim_memory()
print(full - resident_kb())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say how much there is")
def test_what_was_freed_in_between_goes_back() -> None:
    """Of 60 MB of freed messages, with some kept among them, most goes back to the system (glibc), or all (musl)."""
    found = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, check=True, timeout=60)
    freed_kb = int(re.fullmatch(rb"(-?\d+)\n", found.stdout)[1])  # type: ignore[index]  # it is one number
    assert freed_kb > 40_000


@pytest.mark.parametrize(
    ("blocks", "count"),
    [
        ((100_000, 90_000, 100_000, 85_000), 0),  # it comes and goes
        ((100_000, 500_000, 490_000, 100_000, 100_000), 1),  # a queue was drained
        ((100_000, 95_000, 90_000, 85_000, 80_000, 79_000), 1),  # in small steps, too
        ((500_000, 100_000, 500_000, 100_000), 2),
    ],
)
async def test_when_it_is_given_back(blocks: tuple[int, ...], count: int) -> None:
    """Memory is given back once after much was freed."""
    loop, is_over, trims = asyncio.get_running_loop(), asyncio.Event(), list[None]()

    def numbers() -> Iterator[int]:
        yield from blocks
        is_over.set()
        yield from repeat(blocks[-1])

    counts = chain(numbers())
    with memory_given_back(loop, pause_s=0.001, blocks=lambda: next(counts), trim=lambda: trims.append(None)):
        await is_over.wait()
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop))
    await loop.shutdown_default_executor()
    assert len(trims) == count

"""Load at a fixed rate, whatever the answers do, and the latencies under it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable

__all__ = ["open_loop"]


async def open_loop(call: Callable[[], Awaitable[object]], rate: float, seconds: float) -> list[float]:
    """Latencies in seconds of ``rate`` requests a second, each from the moment when it was due.

    From when it was due, not from when it was sent: a client that sends late because earlier answers came late must
    not look better for it. The generator never sleeps: a timer of the event loop is a millisecond late, which would
    hide everything else.
    """
    total = int(rate * seconds)
    latencies: list[float] = []

    async def one(due: float) -> None:
        await call()
        latencies.append(time.perf_counter() - due)

    for _ in range(20):
        await call()
    gc.collect()  # as timed() does
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()
    start = time.perf_counter()
    begun = 0
    while begun < total:
        wanted = min(total, int((time.perf_counter() - start) * rate) + 1)
        for number in range(begun, wanted):
            task = loop.create_task(one(start + number / rate))
            running.add(task)
            task.add_done_callback(running.discard)
        begun = wanted
        await asyncio.sleep(0)
    await asyncio.gather(*running)
    return latencies

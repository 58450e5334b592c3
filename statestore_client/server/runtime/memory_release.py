"""Memory goes back to the system when queues are drained, in a process that belongs to the server alone.

The C library keeps what was freed, in between of what was not: a server that once held 80 MB of messages stays as large
for ever. glibc gives whole pages back when it is told to, which takes a tenth of a millisecond for each MB: so it is
told soon after much was freed, and in a thread. Others (musl, macOS, Windows) do it by themselves or not at all.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

__all__ = ["memory_given_back", "trim_memory"]

#: How often to look, in seconds: what is freed in between goes back at once.
_PAUSE_S: Final = 1.0

#: Memory blocks of the interpreter that must have been freed to make it worth while; each message takes some.
_FREED_BLOCKS: Final = 20_000


def trim_memory() -> None:
    """Let the C library give back what it does not need, if it can."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def memory_given_back(
    loop: asyncio.AbstractEventLoop,
    *,
    pause_s: float = _PAUSE_S,
    blocks: Callable[[], int] = sys.getallocatedblocks,
    trim: Callable[[], None] = trim_memory,
) -> Iterator[None]:
    """As long as the context lasts. Call it in the thread of the loop."""
    most = blocks()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal most, timer
        now = blocks()
        if most - now >= _FREED_BLOCKS:
            most = now
            loop.run_in_executor(None, trim)
        most = max(most, now)
        timer = loop.call_later(pause_s, look)

    timer = loop.call_later(pause_s, look)
    try:
        yield
    finally:
        timer.cancel()

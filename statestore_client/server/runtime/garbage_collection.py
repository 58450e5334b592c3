"""No long pauses for garbage, in a process that belongs to the server alone.

Python's collector looks at every object now and then, for cycles. With a gigabyte of queued messages, that is half a
second in which nobody is served, at a moment that a client can bring about. Requests leave no cycles behind,
connections leave a few (asyncio's). So the full collection is switched off, and done at set times while there is little
to look at; when there is much, once an hour, or when there is twice as much as after the last one: it may be garbage.
Not for a server that is embedded: there, the collector is the host's.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["short_pauses"]

#: How often to look, in seconds.
_PAUSE_S: Final = 10.0

#: Memory blocks of the interpreter up to which a full collection takes a few hundredths of a second.
_FEW_BLOCKS: Final = 1_000_000

#: With more of them, in seconds.
_LONG_PAUSE_S: Final = 3600.0

_NEVER: Final = 1_000_000_000


@contextmanager
def short_pauses(
    loop: asyncio.AbstractEventLoop, *, pause_s: float = _PAUSE_S, blocks: Callable[[], int] = sys.getallocatedblocks
) -> Iterator[None]:
    """Collect garbage in this way as long as the context lasts. Call it in the thread of the loop."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()  # modules, classes, functions: they stay
    gc.set_threshold(thresholds[0], thresholds[1], _NEVER)
    last, left = time.monotonic(), blocks()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal last, left, timer
        now = blocks()
        if now < _FEW_BLOCKS or now >= 2 * left or time.monotonic() - last >= _LONG_PAUSE_S:
            gc.collect()
            last, left = time.monotonic(), blocks()
        timer = loop.call_later(pause_s, look)

    timer = loop.call_later(pause_s, look)
    try:
        yield
    finally:
        timer.cancel()
        gc.set_threshold(*thresholds)
        gc.freeze()  # the process ends: nobody has to look through all of it once more

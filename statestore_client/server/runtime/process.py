"""The process: which version runs; and, where it is only a server, garbage collection and memory that goes back.

Every connection is an open file.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Final

from statestore_client.clocks import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def file_limit() -> int | None:
    """How many it may have open now. None if nobody knows, or any number."""
    try:
        import resource
    except ImportError:  # not a Unix system
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


# -- garbage collection ------------------------------------------------------------------------------------------------
#
# No long pauses for garbage, in a process that belongs to the server alone.
#
# Python's collector looks at every object now and then, for cycles. With a gigabyte of queued messages, that is half a
# second in which nobody is served, at a moment that a client can bring about. Requests leave no cycles behind,
# connections leave a few (asyncio's). So the full collection is switched off, and done at set times while there is
# little to look at; when there is much, once an hour, or when there is twice as much as after the last one: it may be
# garbage.
#
# Of new objects, Python counts those that were made, less those that went. Values that replace others leave that count
# as it was, however many they are, and the first step that adds a few pays for all: 40 ms after 100,000 of them. So new
# objects are counted here, more often the more there are.
#
# Not for a server that is embedded: there, the collector is the host's. Nor on PyPy, which collects in small steps by
# itself, and counts neither objects nor blocks.


#: How often to look whether all is to be looked through, in seconds.
_LOOK_S: Final = 10.0

#: Memory blocks of the interpreter up to which a full collection takes a few hundredths of a second.
_FEW_BLOCKS: Final = 250_000

#: With more of them, in seconds.
_LONG_PAUSE_S: Final = 3600.0

_NEVER: Final = 1_000_000_000

#: New objects that are looked through at once, in less than a millisecond.
_NEW_OBJECTS: Final = 1000

#: How often they are counted, in seconds: at most, and on an idle server.
_COUNT_S: Final = (0.005, 0.1)

#: One in so many collections of new objects is also of those that have outlived one, as Python's own.
_OLDER: Final = 10

#: Count the blocks of memory that the interpreter has handed out. None: it does not count them.
_BLOCKS: Final[Callable[[], int] | None] = getattr(sys, "getallocatedblocks", None)


@contextmanager
def short_pauses(
    loop: asyncio.AbstractEventLoop, *, pause_s: float = _LOOK_S, blocks: Callable[[], int] | None = _BLOCKS
) -> Iterator[None]:
    """Collect garbage in this way as long as the context lasts. Call it in the thread of the loop."""
    if blocks is None:
        yield
        return
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()  # modules, classes, functions: they stay
    gc.set_threshold(thresholds[0], thresholds[1], _NEVER)
    timers = (_FullCollections(loop, pause_s, blocks), _NewObjects(loop))
    try:
        yield
    finally:
        for each in timers:
            each.timer.cancel()
        gc.set_threshold(*thresholds)
        gc.freeze()  # the process ends: nobody has to look through all of it once more


class _FullCollections:
    def __init__(self, loop: asyncio.AbstractEventLoop, pause_s: float, blocks: Callable[[], int]) -> None:
        self._loop, self._pause_s, self._blocks = loop, pause_s, blocks
        self._last, self._left = monotonic(), blocks()
        self.timer = loop.call_later(pause_s, self._look)

    def _look(self) -> None:
        now = self._blocks()
        if now < _FEW_BLOCKS or now >= 2 * self._left or monotonic() - self._last >= _LONG_PAUSE_S:
            gc.collect()
            self._last, self._left = monotonic(), self._blocks()
        self.timer = self._loop.call_later(self._pause_s, self._look)


class _NewObjects:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pause_s = _COUNT_S[1]
        self._collections = 0
        self.timer = loop.call_later(self._pause_s, self._count)

    def _count(self) -> None:
        shortest, longest = _COUNT_S
        if len(gc.get_objects(generation=0)) >= _NEW_OBJECTS:
            self._collections += 1
            gc.collect(0 if self._collections % _OLDER else 1)
            self._pause_s = max(self._pause_s / 2, shortest)
        else:
            self._pause_s = min(self._pause_s * 2, longest)
        self.timer = self._loop.call_later(self._pause_s, self._count)


# -- memory release ----------------------------------------------------------------------------------------------------
#
# Memory goes back to the system when queues are drained, in a process that belongs to the server alone.
#
# The C library keeps what was freed, in between of what was not: a server that once held 80 MB of messages stays as
# large for ever. glibc gives whole pages back when it is told to, which takes a tenth of a millisecond for each MB: so
# it is told soon after much was freed, and in a thread. Others (musl, macOS, Windows) do it by themselves or not at
# all.


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
    blocks: Callable[[], int] | None = _BLOCKS,
    trim: Callable[[], None] = trim_memory,
) -> Iterator[None]:
    """As long as the context lasts. Call it in the thread of the loop."""
    if blocks is None:
        yield
        return
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


# -- which version it is -----------------------------------------------------------------------------------------------


@cache
def package_version() -> str:
    """Of the installed package, "unknown" for a checkout. Looking it up takes a while: not at the start."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("statestore-client")
    except PackageNotFoundError:
        return "unknown"

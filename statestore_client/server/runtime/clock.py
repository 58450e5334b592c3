"""The one place of the server that reads clocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import attrs

from statestore_client.clocks import monotonic, wall_ns
from statestore_client.wire.instant import Instant

#: Tests that need another time pass another function.
Clock: TypeAlias = Callable[[], Instant]


class TimerHandle(Protocol):
    """What the event loop gives for a timer, or a clock that is not the event loop's."""

    def when(self) -> float:
        """When it is due, in seconds of its clock."""

    def cancel(self) -> None:
        """Not any more."""


#: Do something at a time (monotonic seconds of the clock).
CallAt: TypeAlias = Callable[[float, Callable[[], object]], TimerHandle]


#: A timer that is this early costs one look at what is due; moving it costs more.
_SLACK_S: Final = 0.001


class Alarm:
    """One timer for whatever is due next. Invariant: it rings at the earliest time that it was set to since it rang
    last, or up to ``slack_s`` later. Whoever it calls finds out what is due.
    """

    __slots__ = ("_call_at", "_ring", "_slack_s", "_timer", "latest")

    def __init__(self, call_at: CallAt, ring: Callable[[], object], *, slack_s: float = _SLACK_S) -> None:
        self._call_at = call_at
        self._ring = ring
        self._slack_s = slack_s
        self._timer: TimerHandle | None = None
        #: Setting it to this time or a later one changes nothing.
        self.latest: float = inf

    def set(self, when: float) -> None:
        """Ring at this time, unless it rings earlier."""
        if when >= self.latest:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.latest = when - self._slack_s
        self._timer = self._call_at(when, self._rings)

    def cancel(self) -> None:
        """Do not ring before it is set again. Safe to call twice."""
        self.latest = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rings(self) -> None:
        self._timer, self.latest = None, inf
        self._ring()


def system_clock() -> Instant:
    """Both clocks at once. The monotonic one is the one of the event loop, so deadlines can be given to it as they
    are.
    """
    return Instant(monotonic(), wall_ns() // 1_000_000)


#: Also while the machine sleeps, where the system has such a clock.
_ELAPSED: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


class ElapsedClock:
    """A clock that goes on while the machine sleeps, with timers for an event loop whose own clock does not."""

    def __init__(self) -> None:
        #: By how much its monotonic time is ahead of the system's.
        self.ahead_s: float = 0.0

    def __call__(self) -> Instant:
        elapsed = monotonic() if _ELAPSED is None else time.clock_gettime(_ELAPSED)
        return Instant(elapsed + self.ahead_s, wall_ns() // 1_000_000)

    def call_at(self, when: float, action: Callable[[], object]) -> TimerHandle:
        """In the running event loop. Late by the time that the machine sleeps meanwhile."""
        delay = max(0.0, when - self().monotonic)
        return _Timer(when, asyncio.get_running_loop().call_later(delay, action))


@attrs.frozen
class _Timer:
    _when: float
    _handle: asyncio.TimerHandle

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self._handle.cancel()


#: On Linux: which start of the machine this is, and what a container adds to its clocks (if the kernel can do that).
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_OFFSETS: Final = Path("/proc/self/timens_offsets")


def monotonic_origin() -> int | None:
    """What tells monotonic clocks apart: two processes with the same number read the same clock, which goes on while
    neither runs. None where the system does not tell, that is on others than Linux.
    """
    try:
        origin = _BOOT_ID.read_bytes() + (_OFFSETS.read_bytes() if _OFFSETS.exists() else b"")
    except OSError:
        return None
    return int.from_bytes(blake2b(origin, digest_size=8).digest(), "big")

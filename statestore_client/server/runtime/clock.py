"""The one place of the server that reads clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from statestore_client.wire.instant import Instant

__all__ = ["CallAt", "Clock", "TimerHandle", "monotonic_origin", "system_clock"]

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


def system_clock() -> Instant:
    """Both clocks at once. The monotonic one is the one of the event loop, so deadlines can be given to it as they
    are.
    """
    return Instant(time.monotonic(), time.time_ns() // 1_000_000)


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

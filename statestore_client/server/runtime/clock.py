"""The one place of the server that reads clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

from statestore_client.wire.instant import Instant

__all__ = ["CallAt", "Clock", "Timer", "system_clock"]

#: Whoever tests with another time passes another function.
Clock: TypeAlias = Callable[[], Instant]


class Timer(Protocol):
    """What the event loop gives for a timer, or a clock that is not the event loop's."""

    def when(self) -> float:
        """When it is due, in seconds of its clock."""

    def cancel(self) -> None:
        """Not any more."""


#: Do something at a time (monotonic seconds of the clock).
CallAt: TypeAlias = Callable[[float, Callable[[], object]], Timer]


def system_clock() -> Instant:
    """Both clocks at once. The monotonic one is the one of the event loop, so deadlines can be given to it as they
    are.
    """
    return Instant(time.monotonic(), time.time_ns() // 1_000_000)

"""The one place of the server that reads clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from statestore_client.wire.instant import Instant

__all__ = ["Clock", "system_clock"]

#: Whoever tests with another time passes another function.
Clock: TypeAlias = Callable[[], Instant]


def system_clock() -> Instant:
    """Both clocks at once. The monotonic one is the one of the event loop, so deadlines can be given to it as they
    are.
    """
    return Instant(time.monotonic(), time.time_ns() // 1_000_000)

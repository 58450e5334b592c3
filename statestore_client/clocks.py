"""The two clocks of this machine, read where shells need a moment to hand to the pure rooms."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from statestore_client.wire.instant import Instant

__all__ = ["Clock", "now"]

#: Tests that need another time pass another function. Its monotonic part has to be that of ``time.monotonic()``: the
#: shells really wait by it.
Clock: TypeAlias = Callable[[], Instant]


def now() -> Instant:
    """Both clocks, read now."""
    return Instant(time.monotonic(), time.time_ns() // 1_000_000)

"""The clocks of this machine, read where shells wait, or need a moment to hand to the pure rooms."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from statestore_client.wire.instant import Instant

#: Read the machine's own ``time.monotonic()``, since time-outs, versions and request ids are of the real world.
#: freezegun lets ``time.monotonic()`` and ``time.time()`` stand still, also where a module has them by name, and not in
#: all threads alike: a wait that goes by them never ends, and versions differ by years. It replaces neither
#: ``clock_gettime()`` nor what is inside a ``partial``.
monotonic: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_MONOTONIC)
    if time.get_clock_info("monotonic").implementation == "clock_gettime(CLOCK_MONOTONIC)"
    else partial(time.monotonic)
)
#: The same for ``time.time_ns()``.
wall_ns: Final[Callable[[], int]] = (
    partial(time.clock_gettime_ns, time.CLOCK_REALTIME)
    if time.get_clock_info("time").implementation == "clock_gettime(CLOCK_REALTIME)"
    else partial(time.time_ns)
)

#: Tests that need another time pass another function. Its monotonic part has to be that of ``time.monotonic()``: the
#: shells really wait by it.
Clock: TypeAlias = Callable[[], Instant]


def now() -> Instant:
    """Both clocks, read now."""
    return Instant(monotonic(), wall_ns() // 1_000_000)

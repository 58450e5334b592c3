"""The clocks of this machine, read where shells wait or make request ids.

The twin of ``statestore_client.clocks``: the two packages import nothing of each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

#: Read the machine's own ``time.monotonic()``, since time-outs, versions and request ids are of the real world.
#: freezegun lets ``time.monotonic()`` and ``time.time()`` stand still, also where a module has them by name, and not in
#: all threads alike: a wait that goes by them never ends, and versions differ by years. It replaces neither
#: ``clock_gettime()`` nor what is inside a ``partial``.
monotonic: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_MONOTONIC)
    if time.get_clock_info("monotonic").implementation == "clock_gettime(CLOCK_MONOTONIC)"
    else partial(time.monotonic)
)
#: Read seconds since some moment, while the machine sleeps, too. ``time.monotonic()`` stands still then on Linux and
#: macOS; macOS's CLOCK_MONOTONIC goes on. Whoever promises something for a while goes by this: a leader that answers
#: without asking the others, an owner of a lease. Others have gone on without them while they slept. (clock_gettime(2),
#: CLOCK_BOOTTIME)
boot_s: Final[Callable[[], float]] = (
    partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    if hasattr(time, "CLOCK_MONOTONIC")
    else monotonic
)
#: The same for ``time.time_ns()``.
wall_ns: Final[Callable[[], int]] = (
    partial(time.clock_gettime_ns, time.CLOCK_REALTIME)
    if time.get_clock_info("time").implementation == "clock_gettime(CLOCK_REALTIME)"
    else partial(time.time_ns)
)

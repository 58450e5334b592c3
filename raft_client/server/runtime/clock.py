"""The clock of a peer. It goes on while the machine is suspended, where the system has such a clock.

A leader answers reads for a while without asking the others. If its clock stood still with the machine, that while
would go on when the machine wakes up, and by then the others have a new leader.

Source: clock_gettime(2), CLOCK_BOOTTIME. ``time.monotonic()`` stands still on Linux and macOS; macOS's CLOCK_MONOTONIC
goes on.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


def _clock() -> Callable[[], float]:
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        if hasattr(time, name):
            return partial(time.clock_gettime, getattr(time, name))
    return time.monotonic


#: Seconds since some moment; never goes back, and is not to be compared with ``time.monotonic()``.
monotonic_s: Final = _clock()

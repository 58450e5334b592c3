"""The two clocks of this machine, read where shells need a moment to hand to the pure rooms."""

from __future__ import annotations

import time

from statestore_client.wire.instant import Instant

__all__ = ["now"]


def now() -> Instant:
    """Both clocks, read now."""
    return Instant(time.monotonic(), time.time_ns() // 1_000_000)

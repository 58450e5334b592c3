"""A moment, read once from both clocks and handed to the pure rooms as ``now``."""

from __future__ import annotations

import attrs

__all__ = ["Instant"]


@attrs.frozen
class Instant:
    """Deadlines, leases and expiries use ``monotonic``; hybrid logical clocks use ``wall_ms``, which may step."""

    monotonic: float  # seconds, origin arbitrary, never goes back
    wall_ms: int  # milliseconds since the Unix epoch

"""A moment, read once from both clocks and handed to the pure rooms as ``now``."""

from __future__ import annotations

from statestore_client.wire.hot_value import hot_value


@hot_value
class Instant:
    """Deadlines, leases and expiries use ``monotonic``; hybrid logical clocks use ``wall_ms``, which may step."""

    monotonic: float  # seconds, origin arbitrary, never goes back
    wall_ms: int  # milliseconds since the Unix epoch

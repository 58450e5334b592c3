"""How long to wait before the next connection attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from random import Random

__all__ = ["Backoff"]


@attrs.frozen
class Backoff:
    """Exponential back-off with jitter: ``first`` · 2^n, capped, minus up to ``jitter`` of itself. Seconds.

    Jitter keeps a thousand clients from returning in the same instant after a broker restarts.
    """

    first: float = 0.1
    cap: float = 30.0
    jitter: float = 0.5

    def delay(self, attempt: int, random: Random) -> float:
        """Seconds before attempt number ``attempt`` (the first retry is 0)."""
        # 2**attempt would grow without bound over a long outage; above 2**32 the cap wins in any case.
        full: float = min(self.cap, self.first * 2 ** min(attempt, 32))
        return full * (1.0 - self.jitter * random.random())

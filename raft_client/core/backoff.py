"""How long to wait before the next question."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from random import Random


@attrs.frozen
class Backoff:
    """``first`` · ``factor``^n, capped, minus up to ``jitter`` of itself. Seconds.

    Jitter keeps a thousand clients, who all saw the leader die in the same instant, from asking in the same instants.
    """

    first: float = 0.025
    factor: float = 1.25
    cap: float = 0.3
    jitter: float = 0.4

    def delay(self, attempt: int, random: Random) -> float:
        """Seconds before attempt number ``attempt``; the first repetition is 0."""
        # Beyond a hundred attempts the cap has long won, and the power of a float would overflow.
        full = min(self.cap, self.first * self.factor ** min(attempt, 100))
        return full * (1.0 - self.jitter * random.random())

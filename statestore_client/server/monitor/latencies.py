"""How long requests took, in a few numbers for each second.

A histogram whose bounds grow by a tenth: a percentile is right to 5 %, and a million requests need no more room than
one.
"""

from __future__ import annotations

from math import log
from typing import Final

import attrs

__all__ = ["Latencies"]

_SMALLEST_S: Final = 1e-6
_GROWTH: Final = 1.1
_BUCKETS: Final = 240  # up to 8,000 s
_LOG_GROWTH: Final = log(_GROWTH)


@attrs.define(eq=False)
class Latencies:
    """Those since the last :meth:`take`."""

    _counts: list[int] = attrs.Factory(lambda: [0] * _BUCKETS)
    _total: int = 0
    _longest: float = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        bucket = 0 if seconds <= _SMALLEST_S else min(int(log(seconds / _SMALLEST_S) / _LOG_GROWTH) + 1, _BUCKETS - 1)
        self._counts[bucket] += 1
        self._total += 1
        self._longest = max(self._longest, seconds)

    def take(self) -> dict[str, float] | None:
        """``p50``, ``p99`` and ``max`` in milliseconds and their ``count``, and begin anew; None if there were none."""
        if not self._total:
            return None
        taken = {
            "count": self._total,
            "p50": round(1000 * self._percentile(0.5), 4),
            "p99": round(1000 * self._percentile(0.99), 4),
            "max": round(1000 * self._longest, 4),
        }
        self._counts, self._total, self._longest = [0] * _BUCKETS, 0, 0.0
        return taken

    def _percentile(self, part: float) -> float:
        """Never more than the longest."""
        wanted, seen = part * self._total, 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                return min(self._longest, _SMALLEST_S * _GROWTH ** (bucket - 0.5) if bucket else _SMALLEST_S)
        return self._longest

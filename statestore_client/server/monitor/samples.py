"""The last changes of keys, how long requests took, and how keys and values are shown."""

from __future__ import annotations

from collections import deque
from math import log
from typing import Any, Final

import attrs

#: Changes of all keys together. They are small: of a value the beginning is kept.
_CHANGES: Final = 5_000
_VALUE_BYTES: Final = 64
#: A longer key is not remembered: a few thousand of them would be much.
_KEY_BYTES: Final = 1_024


@attrs.frozen
class KeyChange:
    """A SET or a deletion that was applied."""

    at: int  # milliseconds of the wall clock
    key: bytes
    client: str
    action: str
    version: str
    size: int
    value: bytes  # its beginning

    def encoded(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "at": self.at,
            "client": self.client,
            "action": self.action,
            "version": self.version,
            "size": self.size,
            "value": shown(self.value),
        }


@attrs.define(eq=False)
class ChangeLog:
    """Of one server, the last ones."""

    _changes: deque[KeyChange] = attrs.field(factory=lambda: deque(maxlen=_CHANGES))

    def add(self, at: int, key: bytes, client: str, action: str, version: str, value: bytes = b"") -> None:
        """One more; an older one may be forgotten for it."""
        if len(key) <= _KEY_BYTES:
            kept = bytes(value[:_VALUE_BYTES])
            self._changes.append(KeyChange(at, key, shown(client), action, version, len(value), kept))

    def of(self, key: bytes) -> list[KeyChange]:
        """Those of one key, the latest first."""
        return [change for change in reversed(self._changes) if change.key == key]


# -- latencies ---------------------------------------------------------------------------------------------------------
#
# How long requests took, in a few numbers for each second.
#
# A histogram whose bounds grow by a tenth: a percentile is right to 5 %, and a million requests need no more room than
# one.


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


# -- text --------------------------------------------------------------------------------------------------------------
#
# Bytes and names that strangers have sent, as text that shows what it is.


#: Characters. Keys may have 64 KiB, and a line of a page has room for less.
_LONGEST: Final = 160


def shown(data: bytes | str, longest: int = _LONGEST) -> str:
    r"""At most ``longest`` characters and an ellipsis. What is not UTF-8, and what has no shape of its own (line
    breaks, controls, changes of direction), is written as ``\x07`` or ``\u202e``, so that it can
    neither hide nor disguise.
    """
    text = data if isinstance(data, str) else data[: 4 * longest + 4].decode(errors="backslashreplace")
    if len(text) > longest:
        text = text[:longest] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)

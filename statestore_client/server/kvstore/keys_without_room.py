"""Keys that an area had no room for: their refreshes begin no sync.

A key that was refused is not stored, so each refresh of it looks like something that was missed.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from statestore_client.wire.kvstore.value import NoMergeReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["FULL_S", "KeysWithoutRoom"]

#: So long, in seconds, an area counts as full, and nothing is made of refreshes, after something had no room.
FULL_S: Final = 300.0
#: Keys that are remembered. If there are more, nothing is made of any refresh of what is not there.
_MOST: Final = 4_096


class KeysWithoutRoom:
    """Of one area. Moments are monotonic seconds."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._full_until = float("-inf")

    def is_full(self, now: float) -> bool:
        """Whether something had no room, within the last FULL_S."""
        return now < self._full_until

    def add(self, keys: Iterable[str], now: float) -> bool:
        """These were refused. Returns whether the area has become full."""
        has_become = not self.is_full(now)
        if has_become or len(self._until) >= _MOST:
            self._until = {key: until for key, until in self._until.items() if now < until}
        self._full_until = now + FULL_S
        self._until.update(dict.fromkeys(islice(keys, _MOST - len(self._until)), self._full_until))
        return has_become

    def explain(self, reasons: Mapping[str, NoMergeReason], now: float) -> bool:
        """Whether all refreshes that did not fit are of keys that had no room."""
        if not self.is_full(now):
            return False
        return len(self._until) >= _MOST or all(
            now < self._until.get(key, now)
            for key, reason in reasons.items()
            if reason is NoMergeReason.INCONSISTENCY_DETECTED
        )

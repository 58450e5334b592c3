"""Something that peers do, by address: some are free, then they come one by one, slowly. Attempts to log in that
fail, and lines of the log about one peer, for example.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

__all__ = ["PAUSE_S", "Throttle"]

#: After this many seconds an address that tried wrong passwords has one attempt more.
PAUSE_S: Final = 5.0

#: Addresses that are remembered. An attacker with more of them is not stopped by counting them.
_MOST: Final = 10_000


class Throttle:
    """Knows which addresses have used up their attempts. ``free`` is how many they have at once, 0 for any number;
    after ``pause_s`` there is one more.

    Each address has a moment up to which its attempts are used; it is forgotten when that moment is over. Invariant:
    there are at most ``_MOST``, those that used one longest ago in front.
    """

    def __init__(self, free: int, pause_s: float = PAUSE_S) -> None:
        self._free = free
        self._pause_s = pause_s
        self._used_until: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """How many addresses are remembered."""
        return len(self._used_until)

    def is_used_up(self, address: str, now: float) -> bool:
        """Whether the next attempt is one too many. ``now`` is monotonic seconds."""
        return bool(self._free) and self._used_until.get(address, now) - now > (self._free - 1) * self._pause_s

    def used(self, address: str, now: float) -> None:
        """One attempt more."""
        if not self._free:
            return
        used_until = self._used_until
        used_until[address] = max(used_until.pop(address, now), now) + self._pause_s
        while used_until:
            oldest = next(iter(used_until))
            if used_until[oldest] > now and len(used_until) <= _MOST:
                return
            del used_until[oldest]

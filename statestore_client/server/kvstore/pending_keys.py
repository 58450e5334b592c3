"""Keys that wait to be sent, each of them once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statestore_client.server.kvstore.range_sums import position

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PendingKeys"]

#: A table that grows is copied, and a site that lacks everything has all keys pended: a single table of 50,000 keys
#: would take milliseconds for that. Positions are spread evenly, so each of these has a small share of the keys.
_TABLE_BITS: Final = 8


class PendingKeys:
    """Empty at first. Keys that come later do not keep others waiting for ever."""

    __slots__ = ("_count", "_current", "_tables", "_taken")

    def __init__(self) -> None:
        self._tables: list[dict[str, None]] = [{} for _ in range(1 << _TABLE_BITS)]
        #: The table that keys are taken from; another one has its place, and the place after it is next.
        self._taken: dict[str, None] = {}
        self._current = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, keys: Iterable[str]) -> None:
        """Those that wait already do not wait twice."""
        for key in keys:
            table = self._tables[position(key) >> 64 - _TABLE_BITS]
            if key not in table and key not in self._taken:
                table[key] = None
                self._count += 1

    def take(self) -> str:
        """One that waits no more. Raises IndexError if there is none."""
        if not self._count:
            raise IndexError("no key waits")
        while not self._taken:
            self._taken, self._tables[self._current] = self._tables[self._current], self._taken
            self._current = (self._current + 1) % len(self._tables)
        self._count -= 1
        return self._taken.popitem()[0]

"""One moment for each of some keys: when it expires, when it is refreshed, when it is advertised."""

from __future__ import annotations

from statestore_client.server.timer_heap import TimerHeap

__all__ = ["KeyDeadlines"]


class KeyDeadlines:
    """Moments are monotonic seconds. A key has one at most."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: TimerHeap[tuple[float, str]] = TimerHeap(lambda item: self._at.get(item[1]) == item[0])

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: str) -> bool:
        return key in self._at

    def at(self, key: str) -> float | None:
        """The moment of a key."""
        return self._at.get(key)

    def put(self, key: str, at: float) -> None:
        """In place of the moment that the key has."""
        before = self._at.get(key)
        if before == at:
            return
        self._at[key] = at
        if before is not None:
            self._heap.forget_one()
        self._heap.add((at, key))

    def drop(self, key: str) -> None:
        """The key has none any more."""
        if self._at.pop(key, None) is not None:
            self._heap.forget_one()

    def pop_due(self, now: float, limit: int) -> list[str]:
        """Keys whose moment has come, in order; they have none any more. ``limit`` bounds the work."""
        found = []
        for _ in range(limit):
            due = self._heap.pop_due(now)
            if due is None:
                break
            (_, key), holds = due
            if holds:
                del self._at[key]
                found.append(key)
        return found

    def next(self) -> float | None:
        """The earliest moment, or an earlier one; None if there is none."""
        return self._heap.next_deadline()

"""One moment for each of some keys: when it expires, when it is refreshed, when it is advertised.

A key that is refreshed has its moment put off again and again. Its item in the heap stays where it is; only when that
one comes up, the key is queued anew. So putting off costs next to nothing, and the heap has one item for each key.
"""

from __future__ import annotations

from typing import Final

from statestore_client.server.timer_heap import TimerHeap

__all__ = ["KeyDeadlines"]

#: Items that were put off and come up in search for the next moment: some dozen microseconds.
_LOOKS: Final = 16


class KeyDeadlines:
    """Moments are monotonic seconds. A key has one at most.

    Invariant: each key has one item in the heap that counts. It is for the key's moment, or, if the key was put off,
    for the earlier one in ``_queued``.
    """

    __slots__ = ("_at", "_heap", "_queued")

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._queued: dict[str, float] = {}
        self._heap: TimerHeap[tuple[float, str]] = TimerHeap(self._counts)

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
        self._at[key] = at
        if before is not None:
            queued = self._queued.get(key)
            if queued is None and before < at:
                self._queued[key] = before
            if at >= (before if queued is None else queued):
                return
            self._queued.pop(key, None)
            self._heap.forget_one()
        self._heap.add((at, key))

    def drop(self, key: str) -> None:
        """The key has none any more."""
        if self._at.pop(key, None) is not None:
            self._queued.pop(key, None)
            self._heap.forget_one()

    def pop_due(self, now: float, limit: int) -> list[str]:
        """Keys whose moment has come, in order; they have none any more. ``limit`` bounds the work."""
        found = []
        for _ in range(limit):
            due = self._heap.pop_due(now)
            if due is None:
                break
            (_, key), holds = due
            if holds and not self._was_put_off(key):
                del self._at[key]
                found.append(key)
        return found

    def next(self) -> float | None:
        """The earliest moment. After many keys that were put off, an earlier one. None if there is none."""
        if not self._at:
            return None
        for _ in range(_LOOKS):
            first = self._heap.first()
            if first is None:
                return None
            at, key = first
            if key not in self._queued:
                return at
            self._heap.pop_due(at)
            self._was_put_off(key)
        return self._heap.next_deadline()

    def _was_put_off(self, key: str) -> bool:
        """The item of a key has come up: queue the key anew if its moment is later. Returns whether it is."""
        if self._queued.pop(key, None) is None:
            return False
        self._heap.add((self._at[key], key))
        return True

    def _counts(self, item: tuple[float, str]) -> bool:
        queued, key = item
        return self._queued.get(key, self._at.get(key)) == queued

"""What has become of a watch, and the events that its reader has not taken yet.

Invariant: a closed watch hands out nothing, and never starts again.
Invariant: a watch is started once. An attempt that failed leaves nothing behind, so the next one begins anew.
"""

from __future__ import annotations

import attrs

from statestore_client.core.actions import WatchEvent, WatchOptions
from statestore_client.core.event_queue import EventQueue, Overflow
from statestore_client.errors import BusyError, ClosedError, StateStoreError

__all__ = ["WatchState", "WatchTerms"]


@attrs.frozen
class WatchTerms:
    """What is watched, and what becomes of events that its reader does not take."""

    key: bytes  # or prefix of keys
    options: WatchOptions
    limit: int  # the number of events that may wait for the reader
    overflow: Overflow = "latest"


class WatchState:
    """With threads, one at a time may change it; all may look."""

    __slots__ = ("_is_full", "_limit", "_overflow", "_queue", "is_closed", "is_started")

    def __init__(self, *, limit: int, overflow: Overflow) -> None:
        self._limit = limit
        self._overflow: Overflow = overflow
        self.is_started: bool = False
        self.is_closed: bool = False
        self.begin()

    def begin(self) -> None:
        """An attempt to start."""
        self._queue = EventQueue(limit=self._limit, overflow=self._overflow)
        self._is_full = False

    def check_open(self) -> None:
        """Raise :class:`ClosedError` once it is closed."""
        if self.is_closed:
            raise ClosedError("the watch is closed")

    def check_started(self) -> None:
        """Raise :class:`BusyError` for a reader that comes too early."""
        if not self.is_started and not self.is_closed:
            raise BusyError("the watch was not started; use it as a context manager")

    def push(self, event: WatchEvent | StateStoreError) -> bool:
        """Take an event, or what ended the watch. Whether there is room for more."""
        self._queue.push(event)
        self._is_full = not self._queue.has_room
        return not self._is_full

    def pop(self) -> WatchEvent | None:
        """The next event; None while there is none. Raises what ended the watch, after the last one."""
        if self.is_closed:  # once for each event: not worth a call
            self.check_open()
        return self._queue.pop()

    def has_room_again(self) -> bool:
        """Whether whoever was told that it is full has to hear the opposite; says so once."""
        if not self._is_full or not self._queue.has_room:
            return False
        self._is_full = False
        return True

    @property
    def error(self) -> StateStoreError | None:
        """What ended it, if it was not closed; the last events may still wait."""
        return self._queue.error

    def describe(self) -> str:
        """The state in words, for a repr."""
        if self.is_closed:
            return "closed"
        if self.error is not None:
            return f"ended: {self.error}"
        return "started" if self.is_started else "not started"

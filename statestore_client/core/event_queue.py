"""The state of a watch, and the events that its reader has not taken yet.

Invariant: a closed watch hands out nothing, and never starts again.
Invariant: a watch is started once. An attempt that failed leaves nothing behind, so the next one begins anew.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from itertools import count
from typing import Final, Literal

import attrs

from statestore_client.core.actions import WatchEvent, WatchOptions
from statestore_client.errors import BusyError, ClosedError, StateStoreError, WatchOverflowError

Overflow = Literal["latest", "error", "block"]
#: Packet identifiers are two bytes: no broker may have more messages unacknowledged (MQTT 5.0, 2.2.1).
_MOST_UNACKNOWLEDGED: Final = 65_535


class EventQueue:
    """The events that one watch has not handed out yet, never more than ``limit``.

    Overflow ``"latest"`` drops an event that a newer one of the same key follows in the queue, the longest outdated one
    first, and marks the next one of that key as ``missed``: the latest state of each key always gets through. (If there
    is no such event, because all that wait are of different keys, a watch on a prefix ends as with ``"error"``.)
    ``"error"`` ends the watch with :class:`WatchOverflowError`. ``"block"`` takes every event and says when it is full;
    the engine then stops acknowledging, so that at most the Receive Maximum of events follows. If more follow, as from
    a broker that sends with QoS 0, it ends as with ``"error"``.
    """

    __slots__ = ("_events", "_limit", "_newest", "_numbers", "_outdated", "_overflow", "error")

    def __init__(self, *, limit: int, overflow: Overflow) -> None:
        self._events: OrderedDict[int, WatchEvent] = OrderedDict()  # by number, which ascends
        self._numbers = count()
        self._newest: dict[bytes, int] = {}  # of each key that has an event here, the number of the last one
        self._outdated: OrderedDict[int, int] = OrderedDict()  # number -> that of the key's next event
        self._limit = limit
        self._overflow = overflow
        self.error: StateStoreError | None = None

    def __len__(self) -> int:
        return len(self._events)

    @property
    def has_room(self) -> bool:
        """False while a full queue wants no more events: its overflow is ``"block"``."""
        return self._overflow != "block" or len(self._events) < self._limit or self.error is not None

    def push(self, event: WatchEvent | StateStoreError) -> None:
        """Append an event; an error is the last thing that is handed out."""
        if self.error is not None:
            return
        if isinstance(event, StateStoreError):
            self.error = event
        elif len(self._events) < self._limit + (_MOST_UNACKNOWLEDGED if self._overflow == "block" else 0):
            self._append(event)
        elif self._overflow == "latest" and (self._outdated or event.key in self._newest):
            self._append(event)
            number, following = self._outdated.popitem(last=False)
            del self._events[number]
            self._events[following] = attrs.evolve(self._events[following], missed=True)
        else:
            self.error = WatchOverflowError(f"the reader of the watch is more than {self._limit} events behind")

    def _append(self, event: WatchEvent) -> None:
        number = next(self._numbers)
        self._events[number] = event
        if (before := self._newest.get(event.key)) is not None:
            self._outdated[before] = number
        self._newest[event.key] = number

    def pop(self) -> WatchEvent | None:
        """The oldest event, or None when there is none. Raises the error once the events before it are handed out."""
        if self._events:
            number, event = self._events.popitem(last=False)
            if self._outdated.pop(number, None) is None:
                del self._newest[event.key]
            return event
        if self.error is not None:
            raise copy.copy(self.error)  # raising the same one again would make its traceback longer each time
        return None


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

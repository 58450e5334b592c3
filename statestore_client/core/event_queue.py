"""The events of a watch that its reader has not taken yet."""

from __future__ import annotations

import copy
from collections import OrderedDict
from itertools import count
from typing import Final, Literal

import attrs

from statestore_client.core.actions import WatchEvent
from statestore_client.errors import StateStoreError, WatchOverflowError

__all__ = ["EventQueue", "Overflow"]

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

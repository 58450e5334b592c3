"""Which client is served next. One client, or one message to thousands, must not stop everybody else.

The event loop hands over whatever the sockets have, all of them in one round. What arrives is served at once, but only
for a moment (:data:`TURN_S`); who has more to do then queues here, and in each round of the event loop the queue gets
about as long as one of them. So whoever sends little waits for little, however many others send a lot.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import asyncio

__all__ = ["TURN_S", "ConcurrencyProbe", "Turn", "Turns"]

#: How long one is served before the others get their turn, in seconds. Longer only by the last packet.
TURN_S: Final = 0.002

#: What all that queue get together, in one round of the event loop.
_ROUND_S: Final = 0.004

#: So many clients within such a moment (in seconds) are many.
_CONCURRENT: Final = 4
_MOMENT_S: Final = 0.001

#: Works for one turn; True if there is more that can be done now.
Turn: TypeAlias = Callable[[], bool]


class Turns:
    """A queue of those who have more to do. Invariant: nobody is in it twice; whoever adds sees to it."""

    __slots__ = ("_is_scheduled", "_loop", "_queue")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[Turn] = deque()
        self._is_scheduled = False

    def add(self, turn: Turn) -> None:
        """Queue."""
        self._queue.append(turn)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        queue = self._queue
        ends = time.monotonic() + _ROUND_S
        try:
            while queue:
                turn = queue.popleft()
                if turn():
                    queue.append(turn)
                if time.monotonic() >= ends:
                    break
        finally:
            self._is_scheduled = bool(queue)
            if queue:
                self._loop.call_soon(self._round)


class ConcurrencyProbe:
    """Whether several clients are served in the same moment, so that waiting for the others pays."""

    __slots__ = ("_ends", "_is_there", "_served")

    def __init__(self) -> None:
        self._served: set[int] = set()
        self._ends = 0.0
        self._is_there = False

    def is_high(self, client: int, now: float) -> bool:
        """Called for each one that is served; ``client`` is the identity of its connection."""
        if now >= self._ends:
            self._is_there = len(self._served) >= _CONCURRENT
            self._served.clear()
            self._ends = now + _MOMENT_S
        self._served.add(client)
        return self._is_there

"""Long answers to clients that may not read them.

libzmq counts the messages that wait for a connection, not their bytes: a client that asks a thousand times for a value
of 10 MiB, and reads nothing, would have a peer keep 10 GiB. What libzmq still holds of long answers is known from their
last frames, which it hands back when they are sent; so what waits has bounds, and more is dropped.

Invariant: what waits has ``_MOST_BYTES`` in all and one answer more; twice that, if many wait for one answer each.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from raft_client.zmq_messages import send_message, send_tracked_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    import zmq

#: Shorter ones are bounded by their number alone.
_LONG_BYTES: Final = 16 * 1024
#: What waits for one connection, and for all. A connection for which nothing waits may have an answer all the same.
_MOST_BYTES_OF_ONE: Final = 32 * 1024 * 1024
_MOST_BYTES: Final = 256 * 1024 * 1024
#: Connections that are looked at with each long answer, whether they have read theirs.
_LOOKED_AT: Final = 4


class LongAnswers:
    """What waits of them in libzmq, by route; those that were not looked at for longest are the first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[bytes, deque[tuple[int, zmq.MessageTracker]]] = OrderedDict()
        self._bytes: dict[bytes, int] = {}
        self._total = 0

    def send(self, router: zmq.Socket[bytes], frames: Sequence[bytes]) -> bool:
        """Send an answer, long or short; the first frame is the route. False if it was dropped."""
        size = sum(map(len, frames))
        if size < _LONG_BYTES:
            return send_message(router, frames)
        route = frames[0]
        for each in [route, *islice(self._waiting, _LOOKED_AT)]:
            self._look_at(each)
        if not self._has_room(route, size):
            return False
        tracker = send_tracked_message(router, frames)
        if tracker is None:
            return False
        self._waiting.setdefault(route, deque()).append((size, tracker))
        self._bytes[route] = self._bytes.get(route, 0) + size
        self._total += size
        return True

    def _has_room(self, route: bytes, size: int) -> bool:
        waiting = self._bytes.get(route, 0)
        if not waiting:
            return self._total + size <= 2 * _MOST_BYTES
        return waiting + size <= _MOST_BYTES_OF_ONE and self._total + size <= _MOST_BYTES

    def _look_at(self, route: bytes) -> None:
        """What is sent waits no longer. Answers of one connection are sent in their order."""
        waiting = self._waiting.get(route)
        if waiting is None:
            return
        while waiting and waiting[0][1].done:
            size = waiting.popleft()[0]
            self._bytes[route] -= size
            self._total -= size
        if waiting:
            self._waiting.move_to_end(route)
        else:
            del self._waiting[route], self._bytes[route]

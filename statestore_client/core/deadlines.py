"""Requests by deadline. Answered ones stay until their time comes, because to find them would take longer than that."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from operator import attrgetter
from typing import Final

from statestore_client.core.request import Request, Stage

__all__ = ["Deadlines"]

#: Answered requests are dropped when there are more of them than this and the live ones.
_STALE: Final = 1024

_deadline = attrgetter("deadline")


class Deadlines:
    """Those of one client's requests; a request without one is not kept."""

    __slots__ = ("_most", "_requests")

    def __init__(self) -> None:
        self._requests: list[Request] = []  # by deadline; also answered ones
        self._most = _STALE  # with more, answered ones are dropped

    def __len__(self) -> int:
        """How many requests are kept, answered ones among them."""
        return len(self._requests)

    def add(self, request: Request) -> None:
        """Most requests of a client have the same timeout, so that a new deadline nearly always is the last one."""
        if request.deadline == math.inf:
            return
        requests = self._requests
        if requests and request.deadline < requests[-1].deadline:
            insort(requests, request, key=_deadline)
        else:
            requests.append(request)
        if len(requests) > self._most:
            # Answered ones behind one that is not: a client with a long timeout would hold them until then.
            self._requests = [kept for kept in requests if kept.stage is not Stage.DONE]
            self._most = _STALE + 2 * len(self._requests)

    def first(self) -> float | None:
        """The earliest deadline of a request without an answer (monotonic seconds)."""
        requests = self._requests
        if requests and requests[0].stage is Stage.DONE:
            self._drop_stale()
        return requests[0].deadline if requests else None

    def take_due(self, now: float) -> list[Request]:
        """The requests without an answer whose time has come, in order. They are not kept any longer."""
        due = bisect_right(self._requests, now, key=_deadline)
        expired = [request for request in self._requests[:due] if request.stage is not Stage.DONE]
        del self._requests[:due]
        return expired

    def clear(self) -> None:
        """Nobody waits any longer."""
        self._requests.clear()

    def _drop_stale(self) -> None:
        stale = 0
        for request in self._requests:
            if request.stage is not Stage.DONE:
                break
            stale += 1
        del self._requests[:stale]

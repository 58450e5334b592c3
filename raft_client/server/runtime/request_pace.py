"""The pace at which requests are taken: one client that floods a peer leaves room for the others.

A ROUTER hands out what waits on its connections in turn, and none of them can be left alone. So when one has had more
than its share, nothing is taken from any for a moment. Its messages then wait in libzmq and, when its queue is full, in
TCP, which slows it down; those of the others wait for a few milliseconds.

Invariant: in any time of ``t`` seconds no connection has more than ``_BURST + t * _A_SECOND`` requests taken, and one.
"""

from __future__ import annotations

from typing import Final

#: Requests of one connection that are taken in a second: more than a peer can answer. To receive and drop as many takes
#: less than half of a processor.
_A_SECOND: Final = 50_000
#: So many at once count as nothing: a client sends what it has in flight in one go.
_BURST: Final = 500
_PAUSE_S: Final = 0.001
#: Connections that are remembered before those are forgotten that have been quiet since.
_REMEMBERED: Final = 4_096

_EACH_S: Final = 1 / _A_SECOND
_BURST_S: Final = _BURST / _A_SECOND


class RequestPace:
    """Of one ROUTER; ``now`` is monotonic seconds."""

    def __init__(self) -> None:
        #: Nothing is to be taken before.
        self.pauses_until: float = 0.0
        self._paid_until: dict[bytes, float] = {}  # by route: when it would be done at the pace of a second

    def may_go_on(self, route: bytes, now: float) -> bool:
        """One request of this connection was taken; whether another one, of whichever connection, may follow."""
        paid_until = self._paid_until[route] = max(self._paid_until.get(route, 0.0), now) + _EACH_S
        if len(self._paid_until) > _REMEMBERED:
            self._paid_until = {each: until for each, until in self._paid_until.items() if until > now}
        if paid_until <= now + _BURST_S:
            return True
        self.pauses_until = now + _PAUSE_S
        return False

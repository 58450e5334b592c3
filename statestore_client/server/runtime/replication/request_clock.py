"""Request ids of a server whose wall clock is wrong.

The log's peers take an id only if its time is not more than a quarter of an hour in their future, or hours in their
past. A server with such a clock could append nothing, and would never take over. So once an id was refused, its ids
have the time of the log: that of the newest id in it, and what has passed since.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from raft_client import RequestId

if TYPE_CHECKING:
    from statestore_client.wire.instant import Instant

__all__ = ["RequestClock"]

_NAMESPACE_BYTES = 16


class RequestClock:
    """Of one life."""

    def __init__(self) -> None:
        self._namespace = secrets.token_bytes(_NAMESPACE_BYTES)
        self._is_off = False
        self._newest: tuple[int, float] | None = None  # the time of an id, and when its entry came

    def observe(self, made_s: int, now: Instant) -> None:
        """An entry has arrived whose id has this time, in seconds since 1970."""
        self._newest = made_s, now.monotonic

    def refused(self, now: Instant) -> str:
        """An id was. Returns what to tell people, at the first time."""
        if self._is_off:
            return ""
        self._is_off = True
        known = self._seconds(now)
        if known is None:
            return "the log's peers refuse this server's clock, and there is nothing in the log to go by: set it right"
        off_s = now.wall_ms // 1000 - known
        direction = "ahead of" if off_s > 0 else "behind"
        return f"the wall clock is {abs(off_s)} s {direction} that of the log, which this server goes by: set it right"

    def new_id(self, number: int, now: Instant) -> RequestId | None:
        """For the append of this number, which no other has; None for one by the wall clock."""
        seconds = self._seconds(now) if self._is_off else None
        return None if seconds is None else RequestId.derive(self._namespace, number, seconds=seconds)

    def _seconds(self, now: Instant) -> int | None:
        if self._newest is None:
            return None
        made_s, came_at = self._newest
        return int(made_s + now.monotonic - came_at)

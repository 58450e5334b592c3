"""What time does to requests: deadlines, silence, and pauses that the cluster asked for.

Invariant: without requests nothing is asked and no time passes.
"""

from __future__ import annotations

import math
from typing import Final

from raft_client.core.arguments import within
from raft_client.core.leader_routing import LeaderRouting
from raft_client.core.request import Request
from raft_client.core.request_table import RequestTable
from raft_client.errors import NoLeaderError, RaftError, RequestTimeoutError

#: A busy peer's silence is tolerated twice as long each time, up to this many response time-outs.
_MAX_SILENCE_FACTOR: Final = 8.0


class Deadlines:
    """What happens to requests as time passes: call :meth:`look` when ``check_at`` of the table has come."""

    def __init__(self, table: RequestTable, routing: LeaderRouting) -> None:
        self._table = table
        self._routing = routing

    def look(self, now: float) -> None:
        """Look at every request: deadlines, silence, pauses. As rare as the shortest of these times."""
        self._table.check_at = math.inf
        silent = []
        held_back = self._routing.held_back()
        for request in [*self._table.requests.values(), *held_back]:
            if request.is_done:
                continue
            if request.deadline <= now:
                self._expire(request, now)
            elif self._look_at(request, now):
                silent.append(request)
        if silent:
            self._resend_or_search(silent, now)
        held_back = self._routing.held_back()
        for request in [*self._table.requests.values(), *held_back]:
            self._table.check_at = min(self._table.check_at, request.deadline, self.attention_at(request))

    def attention_at(self, request: Request) -> float:
        """When something is to be done about it, its deadline apart."""
        if request.sent_to is None:
            return request.not_before or math.inf
        time_out = self._table.response_timeout
        if not request.call.repeatable:
            return request.heard_at + time_out if request.has_slot else math.inf
        if request.call.paused:
            return math.inf
        silent_at = request.heard_at + time_out * request.silence_factor
        if request.target is not None:
            return silent_at
        if not request.was_missed:
            return request.heard_at + time_out * request.silence_factor / 2.0
        # The leader has as much time to show that it lives.
        return (
            silent_at if self._routing.doubted_at is None else max(silent_at, self._routing.doubted_at + time_out / 2.0)
        )

    def _look_at(self, request: Request, now: float) -> bool:
        """See whether its time has come; True when no answer came to it."""
        if now < self.attention_at(request):
            return False
        if request.sent_to is None:
            self._resume(request, now)
        elif not request.call.repeatable:
            self._table.free_slot(request)  # its answer may take long, without keeping others from a slot
            self._routing.flush(now)
        elif request.target is None and not request.was_missed:
            request.was_missed = True
            if not request.call.keeps_slot:
                self._table.free_slot(request)
                self._routing.flush(now)
            self._routing.doubt_leader(now)
            return now >= self.attention_at(request)
        else:
            return True
        return False

    def _resume(self, request: Request, now: float) -> None:
        """Its pause is over."""
        request.not_before = 0.0
        self._routing.start(request, now)

    def _resend_or_search(self, silent: list[Request], now: float) -> None:
        """A leader that says anything is alive: only the one answer is missing. One that says nothing is given up.

        The link to a silent leader stays: if it was merely slow, its answers to what it was asked still count.
        """
        for request in silent:
            request.silence_factor = min(_MAX_SILENCE_FACTOR, 2.0 * request.silence_factor)
        for request in silent:
            if request.target is not None:
                self._table.send(request, request.target, now)
        to_leader = [r for r in silent if r.target is None]
        if not to_leader or self._routing.leader is None:
            return
        if self._routing.doubted_at is None:
            for request in to_leader:
                self._table.send(request, self._routing.leader, now)
            self._routing.check_leader(now)
            return
        self._routing.suspects.add(self._routing.leader)
        self._routing.suspend(
            RequestTimeoutError(
                f"the leader at {self._routing.leader} said nothing {within(self._table.response_timeout)}"
            )
        )
        self._routing.take_back()
        self._routing.need_leader(now)

    def _expire(self, request: Request, now: float) -> None:
        refused = request.sent_to is None and request.pause_error is not None
        error = self._timed_out(request)
        self._routing.reject(request, error, now, refused=refused)

    def _timed_out(self, request: Request) -> RaftError:
        limit = within(request.timeout or 0.0)
        if request.pause_error is not None:
            return request.pause_error
        if request.target is not None:
            return RequestTimeoutError(f"no answer from {request.target} {limit}")
        if self._routing.leader is None and request.sent_to is None:
            return NoLeaderError(f"no leader {limit}: {self._routing.told()}")
        return RequestTimeoutError(
            f"no final answer from the leader at {request.sent_to or self._routing.leader} {limit}"
        )

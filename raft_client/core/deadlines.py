"""What time does to requests: deadlines, silence, and pauses that the cluster asked for.

Invariant: without requests nothing is asked and no time passes.
"""

from __future__ import annotations

import math
from typing import Final

from raft_client.core.leader_routing import LeaderRouting
from raft_client.core.request import Request
from raft_client.errors import NoLeaderError, RaftError, RequestTimeoutError

__all__ = ["Deadlines"]

#: A busy peer's silence is borne twice as long each time, up to so many response time-outs.
_MAX_SILENCE_FACTOR: Final = 8.0


class Deadlines(LeaderRouting):
    """What is due to requests as time passes: call :meth:`tick` at :meth:`next_deadline`."""

    def next_deadline(self) -> float | None:
        """The next moment (monotonic seconds) at which :meth:`tick` has something to do."""
        if not self._requests:
            return None
        deadline = min(self.check_at, self._search.next_deadline()) if self.is_searching else self.check_at
        return None if deadline == math.inf else deadline

    def tick(self, now: float) -> None:
        """Time has passed."""
        if now >= self.check_at:
            self._look(now)
        if self.is_searching:
            self._go_on_searching(now)

    def _look(self, now: float) -> None:
        """Look at every request: deadlines, silence, pauses. As rare as the shortest of these times."""
        self.check_at = math.inf
        silent = []
        behind = [r for queue in self._behind.values() for r in queue]
        for request in [*self._requests.values(), *behind]:
            if request.is_done:
                continue
            if request.deadline <= now:
                self._expire(request, now)
            elif self._look_at(request, now):
                silent.append(request)
        if silent:
            self._resend_or_search(silent, now)
        behind = [r for queue in self._behind.values() for r in queue]
        for request in [*self._requests.values(), *behind]:
            self.check_at = min(self.check_at, request.deadline, self._attention_at(request))

    def _attention_at(self, request: Request) -> float:
        """When something is to be done about it, its deadline apart."""
        if request.sent_to is None:
            return request.not_before or math.inf
        time_out = self._response_timeout
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
        return silent_at if self._doubted_at is None else max(silent_at, self._doubted_at + time_out / 2.0)

    def _look_at(self, request: Request, now: float) -> bool:
        """Its time may have come; True when it is silent."""
        if now < self._attention_at(request):
            return False
        if request.sent_to is None:
            self._resume(request, now)
        elif not request.call.repeatable:
            self._free_slot(request)  # its answer takes what time it takes, and nobody else's
            self._flush(now)
        elif request.target is None and not request.was_missed:
            request.was_missed = True
            if not request.call.keeps_slot:
                self._free_slot(request)
                self._flush(now)
            self._doubt_leader(now)
            return now >= self._attention_at(request)
        else:
            return True
        return False

    def _resume(self, request: Request, now: float) -> None:
        """Its pause is over."""
        request.not_before = 0.0
        self._start(request, now)

    def _resend_or_search(self, silent: list[Request], now: float) -> None:
        """A leader that says anything is alive: only the one answer is missing. One that says nothing is given up.

        The link to a silent leader stays: if it was merely slow, its answers to what it was asked still count.
        """
        for request in silent:
            request.silence_factor = min(_MAX_SILENCE_FACTOR, 2.0 * request.silence_factor)
        for request in silent:
            if request.target is not None:
                self._send(request, request.target, now)
        to_leader = [r for r in silent if r.target is None]
        if not to_leader or self._leader is None:
            return
        if self._doubted_at is None:
            for request in to_leader:
                self._send(request, self._leader, now)
            self._check_leader(now)
            return
        self._suspects.add(self._leader)
        within = f"{self._response_timeout:g} s"
        self._suspend(RequestTimeoutError(f"the leader at {self._leader} said nothing within {within}"))
        self._take_back()
        self._need_leader(now)

    def _expire(self, request: Request, now: float) -> None:
        refused = request.sent_to is None and request.pause_error is not None
        error = self._timed_out(request)
        self._reject(request, error, now, refused=refused)

    def _timed_out(self, request: Request) -> RaftError:
        within = f"within {request.timeout:g} s"
        if request.pause_error is not None:
            return request.pause_error
        if request.target is not None:
            return RequestTimeoutError(f"no answer from {request.target} {within}")
        if self._leader is None and request.sent_to is None:
            return NoLeaderError(f"no leader {within}: {self._search}")
        return RequestTimeoutError(f"no final answer from the leader at {request.sent_to or self._leader} {within}")

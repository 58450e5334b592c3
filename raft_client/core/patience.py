"""What time does to requests: deadlines, silence, and pauses that the cluster asked for.

Invariant: without requests nothing is asked and no time passes.
"""

from __future__ import annotations

import math
from typing import Final

from raft_client.core.actions import Reject
from raft_client.core.dispatch import Dispatch
from raft_client.core.request import Request, about
from raft_client.errors import NoLeaderError, RaftError, RequestTimeoutError

__all__ = ["Patience"]

#: A busy peer's silence is borne twice as long each time, up to so many response time-outs.
_MAX_PATIENCE: Final = 8.0


class Patience(Dispatch):
    """A dispatch that loses patience: call :meth:`tick` at :meth:`next_deadline`."""

    def next_deadline(self) -> float | None:
        """The next moment (monotonic seconds) at which :meth:`tick` has something to do."""
        if not self._requests:
            return None
        deadline = min(self.check_at, self._search.next_deadline()) if self.is_searching else self.check_at
        return None if deadline == math.inf else deadline

    def tick(self, now: float) -> None:
        """Time has passed."""
        if now >= self.check_at:
            self._check(now)
        if self.is_searching:
            self._go_on_searching(now)

    def _check(self, now: float) -> None:
        """Look at every request: deadlines, silence, pauses. As rare as the shortest of these times."""
        self.check_at = math.inf
        silent = []
        behind = [r for queue in self._behind.values() for r in queue]
        for request in [*self._requests.values(), *behind]:
            if request.is_done:
                continue
            if request.deadline <= now:
                self._expire(request, now)
            elif request.sent_to is not None:
                if self._is_silent(request, now):
                    silent.append(request)
            elif request.not_before > 0.0 and now >= request.not_before:
                self._resume(request, now)
        if silent:
            self._bear_or_search(silent, now)
        behind = [r for queue in self._behind.values() for r in queue]
        for request in [*self._requests.values(), *behind]:
            self.check_at = min(self.check_at, request.deadline, self._attention_at(request))

    def _attention_at(self, request: Request) -> float:
        if request.sent_to is not None:
            if request.call.paused or not request.call.repeatable:
                return math.inf
            return request.heard_at + self._response_timeout * request.patience
        return request.not_before or math.inf

    def _is_silent(self, request: Request, now: float) -> bool:
        return now >= self._attention_at(request)

    def _resume(self, request: Request, now: float) -> None:
        """Its pause is over."""
        request.not_before = 0.0
        if request.target is not None:
            self._send(request, request.target, now)
        else:
            self._queue.append(request)
            self._need_leader(now)
            self._flush(now)

    def _bear_or_search(self, silent: list[Request], now: float) -> None:
        """A leader that answered others since is alive, and only the one answer was lost; else it is not to be trusted.

        The link to a silent leader stays: if it was merely slow, its answers to what it was asked still count.
        """
        for request in silent:
            request.patience = min(_MAX_PATIENCE, 2.0 * request.patience)
        to_leader = [r for r in silent if r.target is None]
        for request in silent:
            if request.target is not None:
                self._send(request, request.target, now)
        if not to_leader or self._leader is None:
            return
        if self._leader_heard_at > min(r.heard_at for r in to_leader):
            for request in to_leader:
                self._send(request, self._leader, now)
            return
        self._suspects.add(self._leader)
        self._leader = None
        self._take_back(now)
        self._need_leader(now)

    def _expire(self, request: Request, now: float) -> None:
        self._finish(request, now)
        self.actions.append(Reject(request.waiter, about(request, self._timed_out(request))))

    def _timed_out(self, request: Request) -> RaftError:
        within = f"within {request.timeout:g} s"
        if request.pause_error is not None:
            return request.pause_error
        unknown = request.was_sent and request.call.changes
        if request.target is not None:
            return RequestTimeoutError(f"no answer from {request.target} {within}", may_have_been_applied=unknown)
        if self._leader is None:
            return NoLeaderError(f"no leader {within}: {self._search}", may_have_been_applied=unknown)
        return RequestTimeoutError(
            f"no final answer from the leader at {self._leader} {within}", may_have_been_applied=unknown
        )

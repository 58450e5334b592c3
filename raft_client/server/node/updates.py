"""RequestUpdate: a client's data into the log, once.

A leader says *committed at index* when its state machine has applied the entry. *Accepted*, which only keeps clients
from asking again, it says to those who still wait after a while: where disks are quick nobody does, and an append costs
one answer. A repetition of an id is accepted at once, and the last word goes to the newest: the connection of an
earlier one may be gone, and who still waits for it asks again. A leader that steps down tells all who wait who leads
now, if it knows, and that it had accepted their entries: they may be in the log all the same. (ØMQ Raft protocol,
"RequestUpdate RPC"; facts §1.4)

While the leadership is handed over, new updates wait for the outcome: they are appended if this peer goes on, and sent
to the new leader as soon as it is known.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

from raft_client.wire.client_requests import Outcome, RequestUpdate, UpdateReply
from raft_client.wire.log_entry import LogEntry
from raft_client.wire.request_id import REQUEST_ID_BYTES, RequestId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raft_client.server.node.ready import Request
    from raft_client.server.node.state import NodeState

_ACCEPTED: Final = UpdateReply(Outcome.ACCEPTED)
#: Those who have waited for this time hear that their entry was accepted, and before twice this time. A Node client
#: asks again after 0.5 s, ours after the same time unless it is set.
_ACCEPT_S: Final = 0.025
#: Updates that are not committed, or held back. What each one costs here does not depend on its data.
_MAX_UPDATES: Final = 100_000


class Updates:
    """Clients that wait for their entries."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._waiting: dict[int, Request] = {}  # by the index of the entry
        self._told = state.applied_index  # everybody up to here was told
        self._accepted = 0  # those who wait for entries up to here were told that they are accepted
        self._accept_next = 0  # and those up to here are, unless they are committed by then
        self._accept_at = math.inf
        self._uncommitted: deque[tuple[int, int]] = deque()  # index and size of what this leader appended
        self._uncommitted_bytes = 0
        self._held: list[Request] = []
        self._held_bytes = 0
        self._is_handing_over = False
        #: When those who wait for a new leader are told that none is known.
        self.give_up_at: float = math.inf

    # -- requests ------------------------------------------------------------------------------------------------------

    def on_update(self, request: Request, message: RequestUpdate) -> None:
        """Append it, unless it is in the log. What cannot be an entry is ignored, as the Node peers do."""
        state = self._state
        raw = request.request_id
        if len(raw) != REQUEST_ID_BYTES or not 0 < len(message.data) <= state.settings.max_entry_bytes:
            return
        if not state.is_leader:
            self._refer(request)
        elif self._is_handing_over:
            self._hold(request, message)
        else:
            self._append(request, message)

    def _append(self, request: Request, message: RequestUpdate) -> None:
        state, log = self._state, self._state.log
        request_id = RequestId(request.request_id)
        index = log.index_of_request(request_id.raw)
        if index is None:
            if not state.is_fresh(request_id):
                state.answer(request, UpdateReply(Outcome.EXPIRED))
                return
            if self._is_full(len(message.data)):
                return  # not a word: the client repeats it later
            index = self._append_entry(message.data, request_id)
            self._waiting[index] = request
            if self._accept_at == math.inf:
                self._accept_next, self._accept_at = index, state.now + _ACCEPT_S
        elif index <= state.applied_index:
            state.answer(request, UpdateReply(Outcome.COMMITTED, index))
        else:
            self._waiting[index] = request
            state.answer(request, _ACCEPTED)

    def propose(self, data: bytes, request_id: RequestId) -> None:
        """Append an entry of the peer's own, whose outcome no client waits for, unless that cannot be done now."""
        if self._state.is_leader and not self._is_handing_over and not self._is_full(len(data)):
            self._append_entry(data, request_id)

    def _append_entry(self, data: bytes, request_id: RequestId) -> int:
        """Return its index."""
        log = self._state.log
        entry = LogEntry.of(data, term=self._state.term, request_id=request_id, index=log.last_index + 1)
        log.append((entry,))
        self._uncommitted.append((entry.index, entry.size))
        self._uncommitted_bytes += entry.size
        return entry.index

    def _is_full(self, size: int) -> bool:
        """Whether the entry has to wait. One fits always, however long it is."""
        too_many_bytes = self._uncommitted_bytes + size > self._state.settings.max_uncommitted_bytes
        return len(self._uncommitted) >= _MAX_UPDATES or (too_many_bytes and bool(self._uncommitted))

    def _refer(self, request: Request) -> None:
        self._state.answer(request, UpdateReply(Outcome.NOT_LEADER, leader_id=self._state.leader_id))

    # -- handing over --------------------------------------------------------------------------------------------------

    def _hold(self, request: Request, message: RequestUpdate) -> None:
        has_room = self._held_bytes + len(message.data) <= self._state.settings.max_uncommitted_bytes
        if has_room and len(self._held) < _MAX_UPDATES:
            self._held.append(request)
            self._held_bytes += len(message.data)

    def hand_over(self, *, begins: bool) -> None:
        """A transfer begins, or has ended."""
        self._is_handing_over = begins
        if begins:
            self.give_up_at = self._state.now + 2 * self._state.timing.election_s(self._state.now)
        elif self._state.is_leader:
            held, self._held, self._held_bytes = self._held, [], 0
            self.give_up_at = math.inf
            for request in held:
                if isinstance(request.message, RequestUpdate):
                    self._append(request, request.message)

    # -- answers -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Tell those who wait for long that their entries are accepted."""
        state = self._state
        if state.now >= self._accept_at:
            self._accept(self._accept_next)
            self._accept_next = state.log.last_index
            self._accept_at = state.now + _ACCEPT_S if self._accept_next > self._accepted else math.inf

    def _accept(self, upto: int) -> None:
        """Those who wait for entries up to there, and were not told."""
        for index, request in self._waiting.items():
            if self._accepted < index <= upto:
                self._state.answer(request, _ACCEPTED)
        self._accepted = upto

    def settle(self) -> None:
        """Tell those whose entry is applied, or all of them that this peer does not lead any more."""
        state = self._state
        if state.is_leader:
            while self._uncommitted and self._uncommitted[0][0] <= state.commit_index:
                self._uncommitted_bytes -= self._uncommitted.popleft()[1]
            for index in self._applied_since():
                waiting = self._waiting.pop(index, None)
                if waiting is not None:
                    state.answer(waiting, UpdateReply(Outcome.COMMITTED, index))
        else:
            self._refer_all()
        self._told = state.applied_index

    def _applied_since(self) -> Iterable[int]:
        """The indexes for which somebody may wait. A snapshot that was restored steps over millions of them."""
        first, last = self._told + 1, self._state.applied_index
        if last - first < len(self._waiting):
            return range(first, last + 1)
        return sorted(index for index in self._waiting if first <= index <= last)

    def _refer_all(self) -> None:
        self._uncommitted.clear()
        self._uncommitted_bytes = 0
        if not self._waiting and not self._held:
            self._forget_times()
            return
        if self._state.leader_id is None and self._state.now < self.give_up_at < math.inf:
            return  # the one who takes over will say so in a moment
        self._accept(max(self._waiting, default=0))
        for request in (*self._waiting.values(), *self._held):
            self._refer(request)
        self._waiting.clear()
        self._held.clear()
        self._held_bytes = 0
        self._forget_times()

    def _forget_times(self) -> None:
        self.give_up_at = self._accept_at = math.inf
        self._accepted = self._accept_next = 0

    @property
    def next_deadline(self) -> float:
        """When to say that entries are accepted, or to stop waiting for a new leader."""
        return self._accept_at if self._state.is_leader else min(self._accept_at, self.give_up_at)

    @property
    def uncommitted_bytes(self) -> int:
        """Of the entries that this leader appended and did not commit yet."""
        return self._uncommitted_bytes

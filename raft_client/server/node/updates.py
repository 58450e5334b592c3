"""RequestUpdate: a client's data into the log, once.

A leader says *accepted* as soon as the entry is in its log, before any disk has it, and *committed at index* when its
state machine has applied it. Repetitions of an id are accepted again; the last word goes to the first one who asked. A
leader that steps down tells all who wait who leads now, if it knows. (ØMQ Raft protocol, "RequestUpdate RPC";
facts §1.4)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft_client.server.node.request_ids import is_fresh
from raft_client.wire.log_entry import LogEntry
from raft_client.wire.messages import Outcome, UpdateReply
from raft_client.wire.request_id import REQUEST_ID_BYTES, RequestId

if TYPE_CHECKING:
    from raft_client.server.node.ready import Request
    from raft_client.server.node.state import NodeState
    from raft_client.wire.messages import RequestUpdate

__all__ = ["Updates"]


class Updates:
    """Who waits for which entry."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._waiting: dict[int, Request] = {}  # by the index of the entry
        self._told = state.applied_index  # everybody up to here was told
        self.uncommitted_bytes = 0

    def on_update(self, request: Request, message: RequestUpdate) -> None:
        """Append it, unless it is in the log."""
        state, log = self._state, self._state.log
        raw = request.request_id
        if len(raw) != REQUEST_ID_BYTES or not 0 < len(message.data) <= state.settings.max_entry_bytes:
            return
        if not state.is_leader:
            state.answer(request, UpdateReply(Outcome.NOT_LEADER, leader_id=state.leader_id))
            return
        index = log.index_of_request(raw)
        if index is None:
            request_id = RequestId(raw)
            if not is_fresh(request_id, state):
                state.answer(request, UpdateReply(Outcome.EXPIRED))
                return
            index = log.last_index + 1
            log.append([LogEntry.of(message.data, term=state.term, request_id=request_id, index=index)])
        elif index <= state.applied_index:
            state.answer(request, UpdateReply(Outcome.COMMITTED, index))
            return
        self._waiting.setdefault(index, request)
        state.answer(request, UpdateReply(Outcome.ACCEPTED))

    def settle(self) -> None:
        """Tell those whose entry is applied, or everybody that this peer does not lead any more."""
        state = self._state
        if not state.is_leader and self._waiting:
            for request in self._waiting.values():
                state.answer(request, UpdateReply(Outcome.NOT_LEADER, leader_id=state.leader_id))
            self._waiting.clear()
        for index in range(self._told + 1, state.applied_index + 1) if self._waiting else ():
            waiting = self._waiting.pop(index, None)
            if waiting is not None:
                state.answer(waiting, UpdateReply(Outcome.COMMITTED, index))
        self._told = state.applied_index

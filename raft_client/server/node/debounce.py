"""Repeated AppendEntries and InstallSnapshot of the same peer: the last one of both is remembered.

A repetition is answered as the first one was; while that is still in work it is dropped. Without this, an old copy of a
question could be taken for a new one. (facts §1.1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from raft_client.server.node.ready import Answer

if TYPE_CHECKING:
    from raft_client.server.node.ready import Request
    from raft_client.server.node.state import NodeState
    from raft_client.wire.frames import Message


@attrs.define(eq=False)
class _Last:
    route: bytes
    request_id: bytes
    answer: Answer | None = None
    job: int = 0


class Debounce:
    """One memory for each peer that leads, or did: as many as there are peers in the configuration."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._last: dict[str, _Last] = {}

    def is_repeated(self, peer_id: str, request: Request) -> bool:
        """Whether it is, and then answer it if the answer is known."""
        last = self._last.get(peer_id)
        if last is not None and last.route == request.route and last.request_id == request.request_id:
            if last.answer is not None and self._state.outbox.is_durable(last.job):
                self._state.send(last.answer)
            return True
        if last is None and len(self._last) > len(self._state.others):
            self._last.pop(next(iter(self._last)))  # peers that are gone; names cost nothing to invent
        self._last[peer_id] = _Last(request.route, request.request_id)
        return False

    def answer(self, peer_id: str, request: Request, message: Message, up_to: int | None = None) -> None:
        """Answer, once the entries up to an index, by default all that was changed, are durable; and remember it."""
        answer = Answer(request.route, request.request_id, message)
        job = self._state.send_durable(answer, up_to)
        last = self._last.get(peer_id)
        if last is not None and last.request_id == request.request_id:
            last.answer, last.job = answer, job

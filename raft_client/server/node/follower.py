"""The follower's half of AppendEntries and InstallSnapshot.

Entries that are there already stay; a conflict cuts the log. What lies at or below the commit index is as the leader
has it, so a question that stands there is answered, where a Node peer would exit. Everything is answered when it is
durable, entries with the job of the disk that has them: a heartbeat waits for none.

Source: Raft, §3.5; facts §1.4 (AppendEntries).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from raft_client.errors import ProtocolError
from raft_client.server.node.ready import Answer
from raft_client.wire.configuration import decode_config
from raft_client.wire.log_entry import EntryKind
from raft_client.wire.peer_messages import AppendEntries, AppendReply, InstallSnapshot, SnapshotReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raft_client.server.node.ready import Request
    from raft_client.server.node.snapshots import SnapshotReceiver
    from raft_client.server.node.state import NodeState
    from raft_client.wire.frames import Message
    from raft_client.wire.log_entry import LogEntry

# -- one question at a time --------------------------------------------------------------------------------------------
# A repetition is answered as the first one was; while that is still in work it is dropped. Without this, an old copy of
# a question could be taken for a new one. (facts §1.1)


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


# -- what the leader says ----------------------------------------------------------------------------------------------


#: How far a follower looks for the start of a term that conflicts.
_MAX_BACK: Final = 1024


class Follower:
    """Appends, and installs, what the leader sends, and answers it when that is durable."""

    def __init__(self, state: NodeState, receiver: SnapshotReceiver) -> None:
        self._state, self._receiver = state, receiver
        self._debounce = Debounce(state)
        #: AppendEntries that no correct leader sends. They are not answered: what is appended is appended for good.
        self.unsound = 0

    def on_append(self, request: Request, message: AppendEntries) -> None:
        """Entries, or a heartbeat."""
        if self._is_repeated(request, message):
            return
        reply: AppendReply | None = AppendReply(self._state.term, False)
        if self._follow(message.leader_id, message.term):
            reply = _append_to_log(self._state, message)
            self.unsound += reply is None
        elif message.term >= self._state.term:
            return
        if reply is not None:
            has = message.prev_index + len(message.entries) if reply.success else 0
            self._debounce.answer(message.leader_id, request, reply, up_to=has)

    def on_install(self, request: Request, message: InstallSnapshot) -> None:
        """A chunk of a snapshot."""
        if self._is_repeated(request, message):
            return
        reply = SnapshotReply(self._state.term)
        if self._follow(message.leader_id, message.term):
            reply = self._receiver.take(message.leader_id, message.chunk)
        elif message.term >= self._state.term:
            return
        self._debounce.answer(message.leader_id, request, reply)

    def _is_repeated(self, request: Request, message: AppendEntries | InstallSnapshot) -> bool:
        """A repetition is answered again, or is in work; it says that the leader is there all the same."""
        if not self._debounce.is_repeated(message.leader_id, request):
            return False
        if (message.leader_id, message.term) == (self._state.leader_id, self._state.term):
            self._state.timing.hear_leader(self._state.now, is_the_same=True)
        return True

    def _follow(self, leader_id: str, term: int) -> bool:
        """Whether this is the leader of the newest term; then follow it."""
        state = self._state
        if term < state.term or (state.is_leader and term == state.term) or leader_id == state.id:
            return False
        state.hear_leader(leader_id, term)
        return True


def _append_to_log(state: NodeState, message: AppendEntries) -> AppendReply | None:
    """Do what the leader of this term says; None if it cannot be, and is not to be answered."""
    log = state.log
    if not are_sound(message.entries, message.prev_term, message.term):
        return None
    prev_index, entries = message.prev_index, message.entries
    match_index = prev_index + len(entries)
    if prev_index < state.commit_index:
        entries = entries[state.commit_index - prev_index :]
        prev_index = state.commit_index
    elif log.term_at(prev_index) != message.prev_term:
        return AppendReply(state.term, False, _conflict_index(state, prev_index))
    for place, entry in enumerate(entries):
        if log.term_at(entry.index) != entry.term:
            log.truncate_after(entry.index - 1)
            log.append(entries[place:])
            break
    state.commit_index = max(state.commit_index, min(message.commit_index, match_index))
    return AppendReply(state.term, True)


def _conflict_index(state: NodeState, prev_index: int) -> int | None:
    """Where the leader should go on: behind the log's end, or, if it has another term there, at that term's start."""
    log = state.log
    if log.last_index < prev_index:
        return log.last_index + 1
    return log.first_index_of_term(prev_index, max(state.commit_index + 1, prev_index - _MAX_BACK))


def are_sound(entries: Sequence[LogEntry], term: int, max_term: float) -> bool:
    """Whether they can follow an entry of ``term``: peers can be wrong, and what is appended once stays."""
    for entry in entries:
        if not term <= entry.term <= max_term or (entry.kind is EntryKind.CONFIG and not _is_configuration(entry)):
            return False
        term = entry.term
    return True


def _is_configuration(entry: LogEntry) -> bool:
    """Whether it can be read, and names somebody."""
    try:
        change = decode_config(entry.data)
    except ProtocolError:
        return False
    return bool(change.new) and change.old != ()

"""A Node peer that also stands for election and leads: what Python peers meet in a mixed cluster.

As the Node peers do: no pre-vote, no check-quorum; a candidate that no majority has answered stays in its term, repeats
its question and refuses every vote; a leader sends one empty AppendEntries at first, goes back one by one after a
refusal, and commits through entries of its own term and a CHECKPOINT. It does not change the cluster here.

Source: facts §1.1 (ids, repetition, reset of links), §1.4 (AppendEntries, RequestVote, RequestUpdate) and §3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
from peers_audit import TermAt
from peers_network import Connection, Frames
from peers_node_follower import NodeFollower
from peers_profile import IDENT
from peers_world import WALL_START_S

from raft_client.server.node.ready import HardState, Persist
from raft_client.wire.client_requests import Outcome, RequestUpdate, UpdateReply
from raft_client.wire.configuration import ConfigChange
from raft_client.wire.frames import encode_uint
from raft_client.wire.log_entry import CHECKPOINT_DATA, EntryKind, LogEntry, SnapshotChunk
from raft_client.wire.peer_messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    RequestVote,
    SnapshotReply,
    VoteReply,
)
from raft_client.wire.request_id import DEFAULT_TTL_S, IdFreshness, RequestId

__all__ = ["NodePeer"]

_ELECTION_S: Final = (0.2, 0.3)
_FIRST_S: Final = 0.3
_VOTE_TIMEOUT_S: Final = 0.05
_HEARTBEAT_S: Final = 0.07
_APPEND_TIMEOUT_S: Final = 0.14
_CHUNK_BYTES: Final = 200
_MASK: Final = 2**24 - 1
_REPLIES: Final[dict[type[Any], type[Any]]] = {
    RequestVote: VoteReply,
    AppendEntries: AppendReply,
    InstallSnapshot: SnapshotReply,
}


@attrs.define(eq=False)
class _Link:
    """To one other peer. The same question is repeated until it is answered."""

    connection: Connection
    last_id: int = 0
    question: Any = None
    frames: Frames = attrs.field(factory=list)
    next_index: int = 1
    match_index: int = 0
    one_by_one: bool = True
    offset: int = 0
    answered: bool = False  # as a candidate: it said something
    granted: bool = False


class NodePeer(NodeFollower):
    """``role`` is follower, candidate or leader."""

    #: Set by the cluster, which knows all disks.
    on_commit: Callable[[str, int, int, TermAt, ConfigChange], None]
    wall_rate = 1.0
    ttl_s = DEFAULT_TTL_S

    def start(self) -> None:
        self.role = "follower"
        self._random = self._world.stream("node peer", self.name, self._lives)
        self._links: dict[str, _Link] = {}
        self._requesters: dict[int, tuple[bytes, bytes]] = {}
        self._election_at = 0.0
        super().start()
        self._wait_for_election(_FIRST_S)
        self._on_deadline(self._lives)

    def crash(self) -> None:
        if self.is_up:
            self._reset_links()
        super().crash()

    @property
    def is_leader(self) -> bool:
        return self.is_up and self.role == "leader"

    # -- time ----------------------------------------------------------------------------------------------------------

    def _wait_for_election(self, more: float = 0.0) -> None:
        self._election_at = self._world.now + self._random.uniform(*_ELECTION_S) + more

    def _on_deadline(self, life: int) -> None:
        if life != self._lives or not self.is_up:
            return
        if self._world.now >= self._election_at and self.role != "leader":
            self._wait_for_election()
            self._when_idle(self._campaign)
        self._world.at(max(self._election_at, self._world.now + 0.01), self._on_deadline, life)

    def _hears_leader(self, term: int) -> None:
        if self.role != "follower":
            self._become("follower")
        self._wait_for_election()

    def _hears_of_term(self, term: int) -> None:
        if self.role != "follower" and term > self.log.hard_state.term:
            self._become("follower")

    # -- elections -----------------------------------------------------------------------------------------------------

    def _others(self) -> list[str]:
        return [peer.id for peer in self.log.configurations[-1].change.new if peer.id != self.name]

    def _majority(self, counts: Callable[[_Link], bool]) -> bool:
        return (1 + sum(map(counts, self._links.values()))) * 2 > len(self._others()) + 1

    @property
    def _is_unheard(self) -> bool:
        return self.role == "candidate" and not self._majority(lambda link: link.answered)

    def _campaign(self) -> None:
        if self.role == "leader" or not self._knows(self.name) or (self._is_unheard and self._others()):
            return
        self._become("candidate")
        term = self.log.hard_state.term + 1
        self._write_job(Persist(HardState(term, self.name)), self._ask_for_votes)

    def _ask_for_votes(self) -> None:
        if self.role != "candidate":
            return
        log = self.log
        last = log.last_index
        for peer, link in self._links.items():
            message = RequestVote(IDENT, self.name, log.hard_state.term, last, log.term_at(last) or 0)
            self._ask(peer, link, message, _VOTE_TIMEOUT_S)
        self._look_at_votes()

    def _look_at_votes(self) -> None:
        if self.role != "candidate" or not self._majority(lambda link: link.granted):
            return
        self._become("leader")
        log, term = self.log, self.log.hard_state.term
        self.leader = None
        self._audit.elected(self.name, term, log.configurations[-1], self._has)
        for link in self._links.values():
            link.next_index = log.last_index + 1
        if log.term_at(log.last_index) != term and self.commit < log.last_index:
            checkpoint = LogEntry.of(CHECKPOINT_DATA, term=term, kind=EntryKind.CHECKPOINT, index=log.last_index + 1)
            self._write_job(Persist(entries=(checkpoint,)), self._lead)
        else:
            self._lead()
        self._beat(self._lives, term)

    def _has(self, index: int, term: int) -> bool:
        return index <= self.log.cache.before or self.log.term_at(index) == term

    def _become(self, role: str) -> None:
        """Links with an open question are opened anew."""
        self._world.note(self.name, "is", role, "(Node)")
        self.role = role
        self._reset_links()
        if role != "follower":
            self._links = {peer: _Link(self._connect(peer)) for peer in self._others()}
        for route, request_id in self._requesters.values():
            self._answer(route, request_id, UpdateReply(Outcome.NOT_LEADER, leader_id=self.leader))
        self._requesters.clear()

    def _reset_links(self) -> None:
        for link in self._links.values():
            self._network.close(link.connection)
        self._links = {}

    def _connect(self, peer: str) -> Connection:
        return self._network.connect(self.name, peer, lambda frames: self._hear(peer, frames))

    def _refuses_votes(self) -> bool:
        return self._is_unheard

    # -- questions -----------------------------------------------------------------------------------------------------

    def _ask(self, peer: str, link: _Link, message: Any, timeout_s: float) -> None:
        link.last_id = (link.last_id + 1) & _MASK
        link.question = message
        link.frames = [encode_uint(link.last_id), *message.to_frames()]
        self._repeat(peer, link, link.last_id, timeout_s)

    def _repeat(self, peer: str, link: _Link, request_id: int, timeout_s: float) -> None:
        if link.question is not None and link.last_id == request_id and self._links.get(peer) is link:
            self._network.request(link.connection, link.frames)
            self._world.after(timeout_s, self._repeat, peer, link, request_id, timeout_s)

    def _hear(self, peer: str, frames: Frames) -> None:
        link = self._links.get(peer)
        if link is None or link.question is None or frames[0] != link.frames[0]:
            return
        question = link.question
        reply = _REPLIES[type(question)].from_frames(frames[1:])
        if self._world.is_traced:
            self._world.note(self.name, "<=", peer, frames[0].hex(), reply)
        self._when_idle(lambda: self._on_reply(peer, link, question, reply))

    def _on_reply(self, peer: str, link: _Link, question: Any, reply: Any) -> None:
        if link.question is not question:
            return
        link.question = None
        if reply.term > self.log.hard_state.term:
            self._become("follower")
            self._write_job(Persist(HardState(reply.term)), lambda: None)
        elif self._links.get(peer) is link and question.term == self.log.hard_state.term:
            match reply:
                case VoteReply():
                    link.answered, link.granted = True, reply.granted
                    self._look_at_votes()
                case AppendReply():
                    self._on_append_reply(link, question, reply)
                case SnapshotReply():
                    self._on_snapshot_reply(link, question, reply)
            if self.role == "leader":
                self._lead()

    # -- leading -------------------------------------------------------------------------------------------------------

    def _on_append_reply(self, link: _Link, question: AppendEntries, reply: AppendReply) -> None:
        if reply.success:
            link.match_index = question.prev_index + len(question.entries)
            link.next_index, link.one_by_one = link.match_index + 1, False
        else:
            conflict = reply.conflict_index
            link.next_index = max(1, question.prev_index if conflict is None else min(conflict, question.prev_index))
            link.one_by_one = True

    def _on_snapshot_reply(self, link: _Link, question: InstallSnapshot, reply: SnapshotReply) -> None:
        if reply.position is None and question.chunk.is_last:
            link.match_index, link.next_index, link.offset = question.chunk.index, question.chunk.index + 1, 0
        else:
            link.offset = question.chunk.end if reply.position is None else reply.position

    def _lead(self) -> None:
        """Commit, apply, answer, and ask everybody who has no question open."""
        if self.role != "leader":
            return
        self._commit_and_answer()
        for peer, link in self._links.items():
            if link.question is None and link.next_index <= self.log.last_index:
                self._append_to(peer, link)

    def _beat(self, life: int, term: int) -> None:
        """A heartbeat for those who have nothing else open."""
        if life != self._lives or self.role != "leader" or term != self.log.hard_state.term:
            return
        self._world.after(_HEARTBEAT_S, self._beat, life, term)
        for peer, link in self._links.items():
            if link.question is None:
                self._append_to(peer, link)

    def _append_to(self, peer: str, link: _Link) -> None:
        log = self.log
        prev_index = link.next_index - 1
        prev_term = log.term_at(prev_index)
        if prev_term is None or link.next_index < log.first_index:
            self._send_snapshot(peer, link)
            return
        last = prev_index + 1 if link.one_by_one else log.last_index
        entries = log.entries(prev_index, last, _CHUNK_BYTES) if link.match_index or prev_index < log.last_index else []
        message = AppendEntries(IDENT, self.name, log.hard_state.term, prev_index, prev_term, self.commit, entries)
        self._ask(peer, link, message, _APPEND_TIMEOUT_S if entries else _HEARTBEAT_S)

    def _send_snapshot(self, peer: str, link: _Link) -> None:
        meta = self.log.snapshot
        assert meta is not None
        data = self.log.read_snapshot(link.offset, _CHUNK_BYTES)
        chunk = SnapshotChunk(meta.index, meta.term, link.offset, meta.size, data)
        self._ask(peer, link, InstallSnapshot(IDENT, self.name, self.log.hard_state.term, chunk), _APPEND_TIMEOUT_S)

    def _commit_and_answer(self) -> None:
        log = self.log
        matches = sorted([log.last_index, *(link.match_index for link in self._links.values())], reverse=True)
        index = matches[len(matches) // 2]
        if index > self.commit and log.term_at(index) == log.hard_state.term:
            self.on_commit(self.name, log.hard_state.term, index, log.term_at, log.configurations[-1].change)
            self._apply(index)
        for each in [each for each in self._requesters if each <= self.applied]:
            route, request_id = self._requesters.pop(each)
            self._answer(route, request_id, UpdateReply(Outcome.COMMITTED, each))

    def _update(self, route: bytes, request_id: bytes, update: RequestUpdate) -> None:
        """The last word goes to the first who asked."""
        if self.role != "leader":
            self._answer(route, request_id, UpdateReply(Outcome.NOT_LEADER, leader_id=self.leader))
            return
        index = self.log.index_of_request(request_id)
        if index is not None and index <= self.applied:
            self._answer(route, request_id, UpdateReply(Outcome.COMMITTED, index))
            return
        new_id, wall_s = RequestId(request_id), WALL_START_S + self.wall_rate * self._world.now
        if index is None and new_id.freshness(wall_s, ttl_s=self.ttl_s) is not IdFreshness.FRESH:
            self._answer(route, request_id, UpdateReply(Outcome.EXPIRED))
            return
        self._answer(route, request_id, UpdateReply(Outcome.ACCEPTED))
        self._requesters.setdefault(index or self.log.last_index + 1, (route, request_id))
        if index is None:
            last = self.log.last_index + 1
            entry = LogEntry.of(update.data, term=self.log.hard_state.term, request_id=new_id, index=last)
            self._write_job(Persist(entries=(entry,)), self._lead)

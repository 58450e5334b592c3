"""The leader's half of AppendEntries.

Each follower has one question at a time: entries if it lacks some, otherwise a heartbeat when it is due. The
first one after an election is empty and stands at the end of the leader's log. After a refusal entries go one by one,
after a success as many as one message carries. (facts §1.4)

A Node follower exits when it is asked to go back behind its commit index. It never is:

* The first question stands at the end of the leader's log, which holds all that is committed (Raft, §3.6.3).
* A refusal says that the entry at ``prev_index`` differs or is missing, so it lies beyond the follower's commit; the
  next question stands just before it, or at the end of the follower's log.
* Late replies have other ids, so they move nothing (:mod:`.peer_requests`).
* A question that is repeated over a new connection may have been carried out already, its reply lost. Then its own
  entries must not have been committed by it: what may be a Node peer is told no commit beyond ``prev_index``.

Source: Raft, §3.5, §3.6; facts §1.4 (AppendEntries).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

from raft_client.server.node.quorum import agreed
from raft_client.wire.peer_messages import AppendEntries, AppendReply

if TYPE_CHECKING:
    from raft_client.server.node.peer_requests import PeerLink, PeerRequests, Question
    from raft_client.server.node.snapshots import SnapshotSender
    from raft_client.server.node.state import NodeState
    from raft_client.wire.client_requests import LogInfoReply
    from raft_client.wire.log_entry import LogEntry


@attrs.define(eq=False)
class FollowerProgress:
    """What the leader knows of one follower's log."""

    next_index: int
    match_index: int = 0
    was_asked: bool = False  # the first question is empty
    waits_for_disk: bool = False  # what it is to be sent is read
    one_by_one: bool = True
    heartbeat_at: float = -math.inf
    heard_at: float = -math.inf  # any reply in this term, and each sign of life
    #: First sending, and number, of the newest question that it answered: what it said was true later than that.
    asked_at: float = -math.inf
    asked_number: int = 0


class Replication:
    """The followers of a leader. Empty as long as this peer does not lead."""

    def __init__(self, state: NodeState, peers: PeerRequests, snapshots: SnapshotSender) -> None:
        self._state, self._peers, self._snapshots = state, peers, snapshots
        self.followers: dict[str, FollowerProgress] = {}

    # -- leading -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """This peer leads from now on."""
        self.followers.clear()
        self._snapshots.clear()
        self.settle_members()

    def end(self) -> None:
        """It does not any more."""
        self.followers.clear()
        self._snapshots.clear()

    def settle_members(self) -> None:
        """Follow a configuration that has just been appended."""
        others = {peer.id for peer in self._state.others}
        for peer_id in [each for each in self.followers if each not in others]:
            del self.followers[peer_id]
            self._snapshots.forget(peer_id)
        for peer in self._state.others:
            if peer.id not in self.followers:
                self.followers[peer.id] = FollowerProgress(self._state.log.last_index + 1, heard_at=self._state.now)

    def settle(self) -> None:
        """Ask everybody who has no question open and should have one."""
        if not self.followers:
            return
        for link in self._peers:
            follower = self.followers.get(link.peer.id)
            if follower is None or link.question is not None:
                continue
            behind = follower.was_asked and follower.next_index <= self._state.log.last_index
            behind = behind and not follower.waits_for_disk
            if behind or self._state.now >= follower.heartbeat_at:
                self._ask(link, follower)

    def _ask(self, link: PeerLink, follower: FollowerProgress) -> None:
        state, log, settings = self._state, self._state.log, self._state.settings
        prev_index = follower.next_index - 1
        at_hand = self._last_at_hand(link.peer.id, prev_index)
        follower.waits_for_disk = at_hand <= prev_index < log.last_index
        if follower.waits_for_disk:
            prev_index = log.last_index  # a heartbeat, as the first question
        prev_term = log.term_at(prev_index)
        if prev_index + 1 < log.first_index or prev_term is None:
            self._peers.ask(link, self._snapshots.next_chunk(link.peer.id), settings.append_timeout_s)
            return
        entries: list[LogEntry] = []
        if follower.was_asked and prev_index < log.last_index:
            last = prev_index + 1 if follower.one_by_one else at_hand
            entries = log.entries(prev_index, last, settings.max_message_bytes)
        follower.was_asked = True
        commit = state.commit_index if link.is_ours else min(state.commit_index, prev_index)
        message = AppendEntries(settings.ident, state.id, state.term, prev_index, prev_term, commit, entries)
        self._peers.ask(link, message, settings.append_timeout_s if entries else settings.rpc_timeout_s)

    def _last_at_hand(self, peer_id: str, prev_index: int) -> int:
        """How far what the follower gets next can be read without waiting for the disk."""
        log = self._state.log
        if prev_index + 1 < log.first_index:
            return log.last_index if self._snapshots.is_at_hand(peer_id) else prev_index
        return log.last_at_hand(prev_index, self._state.settings.max_message_bytes)

    def on_disk_read(self) -> None:
        """Send followers what the disk has given meanwhile; until now they got heartbeats."""
        for follower in self.followers.values():
            follower.waits_for_disk = False

    def probe_quorum_after(self, number: int) -> None:
        """Ask as soon as they can be asked those who have not answered a question with a higher number."""
        for follower in self.followers.values():
            if follower.asked_number <= number:
                follower.heartbeat_at = -math.inf

    def on_reply(self, link: PeerLink, question: Question, reply: AppendReply) -> None:
        """The answer to AppendEntries."""
        asked = question.message
        follower = self._heard(link, question, reply.term)
        if follower is None or not isinstance(asked, AppendEntries):
            return
        if reply.success:
            self._matches(follower, asked.prev_index + len(asked.entries))
            return
        if asked.prev_index != follower.next_index - 1:
            return  # a heartbeat while the disk was read
        follower.one_by_one = True
        conflict = asked.prev_index if reply.conflict_index is None else reply.conflict_index
        follower.next_index = max(1, min(asked.prev_index, conflict))
        if follower.next_index <= follower.match_index:
            follower.match_index = follower.next_index - 1  # it lost what it had: count it no longer

    def is_alive(self, link: PeerLink, info: LogInfoReply) -> None:
        """The follower answers at once what needs no disk: it is there, and follows this leader."""
        follower = self.followers.get(link.peer.id)
        if follower is not None and (info.current_term, info.leader_id) == (self._state.term, self._state.id):
            self._hear(follower)

    def _hear(self, follower: FollowerProgress) -> None:
        self._state.timing.end_silence(follower.heard_at, self._state.now, may_have_been_away=True)
        follower.heard_at = self._state.now

    def on_snapshot_installed(self, link: PeerLink, question: Question, term: int, index: int) -> None:
        """The follower has the snapshot that ends at ``index``."""
        follower = self._heard(link, question, term)
        if follower is not None:
            self._matches(follower, index)

    def on_snapshot_progress(self, link: PeerLink, question: Question, term: int) -> bool:
        """The follower took a chunk. Whether the next one is to follow."""
        follower = self._heard(link, question, term)
        if follower is not None:
            follower.heartbeat_at = self._state.now
        return follower is not None

    def _matches(self, follower: FollowerProgress, index: int) -> None:
        follower.match_index = index
        follower.next_index = index + 1
        follower.one_by_one = False

    def _heard(self, link: PeerLink, question: Question, term: int) -> FollowerProgress | None:
        """The follower that said something in this term; None if nothing follows from it."""
        state = self._state
        if term > state.term:
            state.become_follower(term)
            return None
        follower = self.followers.get(link.peer.id)
        if follower is None or not state.is_leader:
            return None
        self._hear(follower)
        follower.asked_at, follower.asked_number = question.sent_at, question.number
        follower.heartbeat_at = state.now + state.settings.heartbeat_s
        return follower

    # -- what the others have said -------------------------------------------------------------------------------------

    @property
    def committed_index(self) -> int:
        """The largest index that a majority has on its disks, this peer among them (Raft, §10.2.1)."""
        return agreed(self._state.configuration, self._match_of)

    def _match_of(self, peer_id: str) -> int:
        if peer_id == self._state.id:
            return self._state.log.durable_index
        follower = self.followers.get(peer_id)
        return follower.match_index if follower else 0

    @property
    def quorum_heard_at(self) -> float:
        """When this leader last had a sign of life of a majority."""
        return agreed(self._state.configuration, lambda peer_id: self._moment(peer_id, "heard_at"))

    @property
    def quorum_asked_at(self) -> float:
        """A majority took this peer for the leader at this time, or later."""
        return agreed(self._state.configuration, lambda peer_id: self._moment(peer_id, "asked_at"))

    @property
    def quorum_asked_number(self) -> int:
        """A majority has answered questions with this number or a higher one."""
        return agreed(self._state.configuration, self._number_of)

    def _number_of(self, peer_id: str) -> int:
        if peer_id == self._state.id:
            return self._peers.last_number + 1
        follower = self.followers.get(peer_id)
        return follower.asked_number if follower else 0

    def _moment(self, peer_id: str, name: str) -> float:
        if peer_id == self._state.id:
            return self._state.now
        follower = self.followers.get(peer_id)
        moment: float = getattr(follower, name) if follower else -math.inf
        return moment

    def next_deadline(self) -> float:
        """When a heartbeat is due."""
        if not self.followers:
            return math.inf
        idle = [
            follower.heartbeat_at
            for link in self._peers
            if link.question is None and (follower := self.followers.get(link.peer.id))
        ]
        return min(idle, default=math.inf)

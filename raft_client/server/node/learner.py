"""A peer outside the cluster: it copies the log with RequestEntries, as clients do.

So a new peer has the log before it is added, and a peer that only follows needs no place in the list of peers: every
leader, a Node peer too, serves it. What a leader gives away is applied there, so it is committed: it replaces whatever
this peer's log has behind its own commit index. (facts §3, "Membership"; Raft, §4.2.1)

A follow-up leaves when what it confirms is on the disk: a slow disk slows the stream, and memory stays small. Where a
leader sends AppendEntries, because this peer is being added, the copy stops.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from raft_client.server.node.follower import are_sound
from raft_client.server.node.ready import Ask, Role
from raft_client.wire.streams import EntriesReply, EntriesStatus, RequestEntries

if TYPE_CHECKING:
    from raft_client.server.node.peer_requests import PeerRequests
    from raft_client.server.node.ready import Reply
    from raft_client.server.node.snapshots import SnapshotReceiver
    from raft_client.server.node.state import NodeState
    from raft_client.wire.log_entry import SnapshotChunk

#: SERVER_RESPONSE_TTL and SERVER_ELECTION_GRACE_MS of the document.
_SILENCE_S: Final = 0.5
_GRACE_S: Final = 0.3
_MAX_TERM: Final = 2**52


class Learner:
    """One stream from one peer at a time; another peer after silence, or when it is not the leader."""

    def __init__(self, state: NodeState, peers: PeerRequests, receiver: SnapshotReceiver) -> None:
        self._state, self._peers, self._receiver = state, peers, receiver
        self._source = ""
        self._request_id: bytes | None = None  # of the stream under way
        self._index = 0  # up to here it has come
        self._next_at = -math.inf  # when to begin, or to give up waiting
        self._offset: int | None = None  # into the snapshot

    @property
    def _is_active(self) -> bool:
        return self._is_outside and self._state.now >= self._state.timing.quiet_until

    @property
    def _is_outside(self) -> bool:
        """Nobody sends it anything, not even a peer that may still be needed to commit its own removal."""
        role = self._state.role
        return role is Role.CLIENT or (role is Role.FOLLOWER and not self._state.is_member(self._state.id))

    @property
    def next_deadline(self) -> float:
        """When to ask, or to ask somebody else."""
        return max(self._next_at, self._state.timing.quiet_until) if self._is_outside else math.inf

    def settle(self) -> None:
        """Begin a stream when it is time."""
        if not self._is_active:
            self._request_id = None
            return
        if self._request_id is not None and self._peers.get(self._source) is None:
            self._pause(0.0)  # it is no member any more
        if self._state.now < self._next_at:
            return
        if self._request_id is not None:  # silence
            self._source = self._another()
        self._begin()

    def _begin(self) -> None:
        state = self._state
        link = self._peers.get(self._source) or self._peers.get(self._another())
        self._next_at = state.now + _SILENCE_S
        if link is None:
            return
        self._source = link.peer.id
        self._index = state.commit_index
        self._request_id = self._peers.new_id(link)
        state.send(Ask(self._source, self._request_id, self._message(self._index, self._offset)))

    def _another(self) -> str:
        peers = [link.peer.id for link in self._peers]
        if not peers:
            return ""
        return peers[(peers.index(self._source) + 1) % len(peers)] if self._source in peers else peers[0]

    def _message(self, after: int, offset: int | None = None) -> RequestEntries:
        return RequestEntries(self._state.settings.ident, after, None, offset)

    # -- replies -------------------------------------------------------------------------------------------------------

    def on_reply(self, reply: Reply, message: EntriesReply) -> None:
        """The next message of the stream."""
        if not self._is_active or reply.peer_id != self._source or reply.request_id != self._request_id:
            return
        self._next_at = self._state.now + _SILENCE_S
        if message.status is EntriesStatus.NOT_LEADER:
            self._look_for(message.leader_id)
            return
        self._state.leader_id = self._source
        if message.chunk is not None:
            self._take_chunk(message.chunk)
        elif self._take_entries(message):
            self._offset = None
            if message.status is EntriesStatus.MORE:
                self._confirm(self._index)
            else:
                self._pause(self._state.settings.heartbeat_s)

    def _look_for(self, leader_id: str | None) -> None:
        self._state.leader_id = leader_id
        if leader_id is not None and self._peers.get(leader_id) is not None and leader_id != self._source:
            self._source = leader_id
            self._pause(0.0)
        else:
            self._source = self._another()
            self._pause(_GRACE_S)

    def _pause(self, seconds: float) -> None:
        self._request_id = None
        self._next_at = self._state.now + seconds

    def _confirm(self, after: int, offset: int | None = None) -> None:
        if self._request_id is not None:
            self._state.send_durable(Ask(self._source, self._request_id, self._message(after, offset)))

    def _take_entries(self, message: EntriesReply) -> bool:
        """Whether they follow what is here; otherwise begin again."""
        state, log, entries = self._state, self._state.log, message.entries
        if not entries:
            return True
        if entries[0].index != self._index + 1 or not are_sound(entries, log.term_at(self._index) or 0, _MAX_TERM):
            self._pause(_GRACE_S)
            return False
        if entries[-1].term > state.term:
            state.set_term(entries[-1].term)
        for place, entry in enumerate(entries):
            if log.term_at(entry.index) != entry.term:
                log.truncate_after(entry.index - 1)
                log.append(entries[place:])
                break
        self._index = entries[-1].index
        state.commit_index = max(state.commit_index, self._index)
        return True

    def _take_chunk(self, chunk: SnapshotChunk) -> None:
        position = self._receiver.take(self._source, chunk).position
        if chunk.term > self._state.term:
            self._state.set_term(chunk.term)
        if position is not None:
            self._offset = position if position < chunk.size else None
            self._pause(0.0)
        elif chunk.is_last:
            self._index, self._offset = chunk.index, None
            self._confirm(self._index)
        else:
            self._offset = chunk.end
            self._confirm(self._index, chunk.end)

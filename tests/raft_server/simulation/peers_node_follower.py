"""A voter that behaves as the Node peers do, and ends as they do when it is treated wrongly.

It follows and votes, and does not stand for election. What would end the process of a real one is a violation: an
AppendEntries whose ``prev_index`` lies below its commit index, frames that cannot be read, an entry without data, a
second request before the first one is answered. What it does not know never reaches it.

Source: facts §1.1, §1.4 (AppendEntries, RequestVote, InstallSnapshot, malformed input) and §3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
from peers_audit import Audit
from peers_network import Frames, Network
from peers_world import World
from support.raft_disks import SimulatedLog

from raft_client.errors import RaftError
from raft_client.server.node.ready import HardState, Persist, SnapshotMeta
from raft_client.wire.client_requests import (
    ConfigReply,
    ConfigUpdateReply,
    LogInfoReply,
    Outcome,
    RequestUpdate,
    UpdateReply,
)
from raft_client.wire.frames import Message
from raft_client.wire.peer_messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    RequestVote,
    SnapshotReply,
    VoteReply,
)
from raft_client.wire.streams import EntriesReply, EntriesStatus

__all__ = ["NodeFollower"]

_KNOWN: Final = {b"\x3f", b"\x2b", b"\x24", b"\x3d", b"\x26", b"\x3c", b"\x5e", b"\x25", b"\x2a", b"\x57"}
_VOTE_FRAMES: Final = 6
_SYNC_S: Final = 0.001


@attrs.define
class _Slot:
    """Of one sender: its last AppendEntries or InstallSnapshot, and what was said to it."""

    route: bytes
    request_id: bytes
    term: bytes
    reply: Message | None = None


class NodeFollower:
    """Everything waits while it writes: it reads nothing from its ROUTER meanwhile."""

    def __init__(self, world: World, network: Network, audit: Audit, name: str, log: SimulatedLog) -> None:
        self._world = world
        self._network = network
        self._audit = audit
        self.name = name
        self.log = log
        self.is_up = False
        self.applied = 0
        self.commit = 0
        self.leader: str | None = None
        self._lives = 0
        self._slots: dict[str, _Slot] = {}
        self._waiting: list[Callable[[], None]] | None = None  # None while it does not write

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.log.reopen()
        self.commit = self.applied  # the state machine kept it
        self.is_up, self.leader, self._waiting = True, None, None
        self._slots.clear()
        self._network.is_bound[self.name] = self._receive

    def crash(self) -> None:
        self.is_up = False
        self._lives += 1
        self._network.is_bound.pop(self.name, None)

    def _dies(self, why: str) -> None:
        self._audit.violated(f"Node peer: {self.name} ends: {why}")

    # -- messages ------------------------------------------------------------------------------------------------------

    def _receive(self, route: bytes, frames: Frames) -> None:
        if self._waiting is not None:
            self._look_for_a_pipeline(route, frames)
            self._waiting.append(lambda: self._receive(route, frames))
            return
        request_id, kind = frames[0], frames[1] if len(frames) > 1 else b""
        if kind not in _KNOWN:
            self._audit.violated(
                f"Node peer: {self.name} gets a message of the unknown type {kind.hex()} from {route!r}"
            )
            return
        if self._world.is_traced:
            self._world.note(
                self.name, "<-", route.decode(), request_id.hex(), [frame.hex()[:8] for frame in frames[1:]]
            )
        try:
            self._dispatch(route, request_id, frames[1:])
        except RaftError as error:
            self._dies(f"{kind.hex()} from {route!r} cannot be read: {error}")

    def _look_for_a_pipeline(self, route: bytes, frames: Frames) -> None:
        """While one AppendEntries of a leader is in work, the same leader must not send the next one."""
        slot = next((slot for slot in self._slots.values() if slot.route == route and slot.reply is None), None)
        is_next = slot is not None and slot.request_id != frames[0] and frames[1] in (b"\x2b", b"\x24")
        if is_next and slot is not None and frames[4] == slot.term:
            self._dies(f"a second request from {route!r} before the first one is answered")

    def _dispatch(self, route: bytes, request_id: bytes, frames: Frames) -> None:
        match frames[0]:
            case AppendEntries.TYPE:
                append = AppendEntries.from_frames(frames)
                if self._knows(append.leader_id) and self._is_new(append.leader_id, route, request_id, frames[3]):
                    self._append(route, request_id, append)
            case InstallSnapshot.TYPE:
                install = InstallSnapshot.from_frames(frames)
                if self._knows(install.leader_id) and self._is_new(install.leader_id, route, request_id, frames[3]):
                    self._install(route, request_id, install)
            case RequestVote.TYPE:
                if len(frames) > _VOTE_FRAMES:
                    self._audit.violated(f"Node peer: {self.name} gets a RequestVote that the document does not have")
                self._vote(route, request_id, RequestVote.from_frames(frames))
            case RequestUpdate.TYPE:
                self._update(route, request_id, RequestUpdate.from_frames(frames))
            case b"\x26":
                self._answer(route, request_id, ConfigUpdateReply(Outcome.NOT_LEADER, leader_id=self.leader))
            case b"\x3c":
                self._answer(route, request_id, EntriesReply(EntriesStatus.NOT_LEADER, leader_id=self.leader))
            case b"\x25":
                self._answer(route, request_id, self._log_info())
            case b"\x5e":
                peers = self.log.configurations[-1].change.new
                self._answer(route, request_id, ConfigReply(is_leader=False, leader_id=self.leader, peers=peers))

    def _update(self, route: bytes, request_id: bytes, update: RequestUpdate) -> None:
        self._answer(route, request_id, UpdateReply(Outcome.NOT_LEADER, leader_id=self.leader))

    # What a peer that stands for election does besides.

    def _hears_leader(self, term: int) -> None:
        """The leader of ``term`` said something."""

    def _hears_of_term(self, term: int) -> None:
        """There is a higher term."""

    def _refuses_votes(self) -> bool:
        """Whether every vote is refused, whatever the term."""
        return False

    def _log_info(self) -> LogInfoReply:
        log = self.log
        size = 0 if log.snapshot is None else log.snapshot.size
        term, prune = log.hard_state.term, log.prune_index
        return LogInfoReply(
            False, self.leader, term, log.first_index, self.applied, self.commit, log.last_index, size, prune
        )

    def _is_new(self, sender: str, route: bytes, request_id: bytes, term: bytes) -> bool:
        """Whether it has to be worked on: the last one of a sender is answered as before, or is in work still."""
        slot = self._slots.get(sender)
        if slot is not None and (slot.route, slot.request_id) == (route, request_id):
            if slot.reply is not None:
                self._answer(route, request_id, slot.reply)
            return False
        self._slots[sender] = _Slot(route, request_id, term)
        return True

    def _answer(self, route: bytes, request_id: bytes, reply: Message) -> None:
        for slot in self._slots.values():
            if (slot.route, slot.request_id) == (route, request_id):
                slot.reply = reply
        self._network.answer(self.name, route, [request_id, *reply.to_frames()])

    def _knows(self, peer: str) -> bool:
        change = self.log.configurations[-1].change
        return any(each.id == peer for each in (*change.new, *(change.old or ())))

    # -- the RPCs of peers ---------------------------------------------------------------------------------------------

    def _vote(self, route: bytes, request_id: bytes, ask: RequestVote) -> None:
        if not self._knows(ask.candidate_id):
            return
        state, log = self.log.hard_state, self.log
        if ask.term < state.term or self._refuses_votes():
            self._answer(route, request_id, VoteReply(state.term, granted=False))
            return
        self._hears_of_term(ask.term)
        mine = (log.term_at(log.last_index) or 0, log.last_index)
        is_free = ask.term > state.term or state.voted_for in ("", ask.candidate_id)
        is_granted = is_free and (ask.last_term, ask.last_index) >= mine
        vote = ask.candidate_id if is_granted else "" if ask.term > state.term else state.voted_for
        self._write(Persist(HardState(ask.term, vote)), route, request_id, VoteReply(ask.term, is_granted))

    def _append(self, route: bytes, request_id: bytes, append: AppendEntries) -> None:
        state, log = self.log.hard_state, self.log
        if append.term < state.term:
            self._answer(route, request_id, AppendReply(state.term, success=False))
            return
        self.leader = append.leader_id
        self._hears_leader(append.term)
        if append.prev_index < self.commit:
            self._dies(f"{append.leader_id} appends after {append.prev_index}, and {self.commit} is committed here")
            return
        hard_state = HardState(append.term) if append.term > state.term else None
        if log.term_at(append.prev_index) != append.prev_term:
            conflict = log.last_index + 1 if log.last_index < append.prev_index else None
            reply = AppendReply(append.term, success=False, conflict_index=conflict)
            self._write(Persist(hard_state), route, request_id, reply)
            return
        # It cuts behind prev_index and appends, even if all is there; what is the same again counts as kept.
        same = [entry for entry in append.entries if log.term_at(entry.index) == entry.term]
        cut = append.prev_index + len(same)
        job = Persist(
            hard_state, truncate_after=cut if cut < log.last_index else None, entries=append.entries[len(same) :]
        )
        last = append.prev_index + len(append.entries)
        self._write(job, route, request_id, AppendReply(append.term, success=True), min(append.commit_index, last))

    def _install(self, route: bytes, request_id: bytes, install: InstallSnapshot) -> None:
        state, chunk = self.log.hard_state, install.chunk
        if install.term < state.term:
            self._answer(route, request_id, SnapshotReply(state.term))
            return
        self.leader = install.leader_id
        self._hears_leader(install.term)
        hard_state = HardState(install.term) if install.term > state.term else None
        incoming = self.log.cache.incoming
        name = (chunk.index, chunk.term, chunk.size)
        due = len(incoming[1]) if incoming is not None and incoming[0] == name else 0
        if chunk.offset != due:
            self._write(Persist(hard_state), route, request_id, SnapshotReply(install.term, due))
            return
        if not chunk.is_last:
            reply = SnapshotReply(install.term, chunk.end)
            self._write(Persist(hard_state, chunk=chunk), route, request_id, reply)
            return
        configuration = self.log.configurations[-1]
        meta = SnapshotMeta(chunk.index, chunk.term, chunk.size, configuration)
        self._write(
            Persist(hard_state, chunk=chunk, install=meta), route, request_id, SnapshotReply(install.term), chunk.index
        )

    # -- the disk ------------------------------------------------------------------------------------------------------

    def _write(self, job: Persist, route: bytes, request_id: bytes, reply: Message, commit: int = 0) -> None:
        def then() -> None:
            self._answer(route, request_id, reply)
            self._apply(commit)

        self._write_job(job, then)

    def _write_job(self, job: Persist, then: Callable[[], None]) -> None:
        before = self.log.hard_state
        if job.hard_state is not None:
            self._audit.persisted(self.name, before, job.hard_state)
        if job.truncate_after is not None:
            last, after = self.log.last_index, job.truncate_after
            self._audit.truncated(self.name, after, last, self.log.term_at, is_leader=False, applied=self.applied)
        self.log.write(job)
        for entry in job.entries:
            self._audit.appended(self.name, entry, self.log.term_at(entry.index - 1))
        self.log.sync(job)
        self._waiting = []
        self._world.after(_SYNC_S, self._synced, self._lives, then)

    def _synced(self, life: int, then: Callable[[], None]) -> None:
        if life != self._lives or not self.is_up:
            return
        waiting, self._waiting = self._waiting or [], None
        then()
        for each in waiting:
            self._when_idle(each)

    def _when_idle(self, what: Callable[[], None]) -> None:
        """After what is being written."""
        if self._waiting is None:
            what()
        else:
            self._waiting.append(what)

    def _apply(self, commit: int) -> None:
        self.commit = max(self.commit, commit)
        self._audit.follows(self.name, self.commit)
        snapshot = self.log.snapshot
        if snapshot is not None and snapshot.index > self.applied:
            self._audit.restores(self.name, snapshot.index, self.log.read_snapshot(0, snapshot.size), self.commit)
            self.applied = snapshot.index
        for entry in self.log.entries(self.applied, self.commit, 1 << 30):
            self._audit.applies(self.name, entry, self.applied + 1, self.log.term_at(entry.index))
            self.applied = entry.index

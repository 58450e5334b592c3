"""One peer: the node under test between a simulated network, clock, disk and state machine.

It does what a :class:`~raft_client.server.node.ready.Ready` says, in the order that it says, and nothing else. All
messages go as frames; the audit looks at each that leaves and at each thing that is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from peers_audit import Audit
from peers_dealers import Dealers
from peers_network import Frames, Network
from peers_profile import FAST_SYNC_S
from peers_reports import PeerReports
from peers_world import PeerClock, World
from support.raft_disks import DamagedLogError, SimulatedLog

from raft_client.errors import ProtocolError
from raft_client.server.node.node import RaftNode
from raft_client.server.node.ready import (
    Answer,
    Ask,
    Connect,
    Disconnect,
    Output,
    Persist,
    ReadGranted,
    Ready,
    Reconnect,
    Reply,
    Request,
    Role,
    SnapshotMeta,
)
from raft_client.server.node.settings import NodeSettings
from raft_client.server.node.state import NodeState
from raft_client.server.node.timing import QUIET_S
from raft_client.server.runtime.peer import RequestHorizon
from raft_client.wire.client_requests import LogInfoReply, RequestLogInfo
from raft_client.wire.hello import Capability, Hello, is_hello
from raft_client.wire.peer_messages import decode_request

__all__ = ["READ_SYNCS", "SimulatedPeer"]

_MAX_SPINS = 50
#: Of peers whose system has some of the log in memory only, and how much of what they read is.
_COLD_SHARE, _IN_MEMORY_SHARE = 0.25, 0.7
#: What a read of the disk takes at most, in syncs.
READ_SYNCS = 20


class SimulatedPeer:
    """``make_node`` builds the node; mutants give another one."""

    make_node: Callable[[NodeState], RaftNode] = RaftNode

    def __init__(
        self,
        world: World,
        network: Network,
        audit: Audit,
        settings: NodeSettings,
        clock: PeerClock,
        log: SimulatedLog,
        *,
        keeps_state: bool,
        sync_s: float = FAST_SYNC_S,
        late_s: float = 0.001,
    ) -> None:
        """``sync_s`` is what a sync takes most of the time; timers come up to ``late_s`` late."""
        self._world = world
        self._network = network
        self._audit = audit
        self.name = settings.peer_id
        self.settings = settings
        self.clock = clock
        self.log = log
        self.reports = PeerReports(world, audit, self.name, log)
        self.keeps_state = keeps_state  # the state machine is on a disk, too
        self.applied = 0
        self.node: Any = None
        self.is_damaged = False
        self.disk_fails_at: float | None = None  # the next job fails, after this share of it
        self.stalled_until = 0.0
        self._random = world.stream("peer", self.name)
        self.sync_s, self._late_s = sync_s, late_s
        self._disk = world.stream("disk", self.name)
        self._cold = world.stream("reads", self.name)
        if self._cold.random() < _COLD_SHARE:
            log.is_in_memory = lambda: self._cold.random() < _IN_MEMORY_SHARE
            log.reads_disk = True
        self._is_reading = False
        self._slower, self._changes_at = 1.0, 0.0
        self._paused_until = 0.0
        self._backlog: list[Callable[[], None]] = []
        self._lives = 0
        self._armed = math.inf
        self._spins = 0
        self._dealers: Dealers
        self._horizon: RequestHorizon
        self._job: Persist | None = None
        self._reads: dict[object, Callable[[ReadGranted], None]] = {}

    # -- life ----------------------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.node is not None

    @property
    def state(self) -> NodeState:
        """The node's inside: what it believes, at every step."""
        state: NodeState = self.node._state
        return state

    @property
    def is_leader(self) -> bool:
        return self.is_up and self.state.role is Role.LEADER

    def start(self) -> None:
        if self.is_up or self.is_damaged:
            return
        if not self._unless_damaged(self._open, "and does not start"):
            return
        self._network.is_bound[self.name] = self._receive
        self._pump()

    def _open(self) -> bool:
        self.log.reopen()
        snapshot = self.log.snapshot
        hello = Hello(self.name, self._lives, tuple(Capability), round(QUIET_S * 1000))
        self._dealers = Dealers(
            self._world, self._network, self._audit, hello, self.settings.ident, self._hear, self._learn
        )
        if not self.keeps_state:
            self.applied = 0
        self._horizon = RequestHorizon(self.settings.request_id_ttl_s)
        self._forget_requests()
        rng = self._world.stream("node", self.name, self._lives)
        state = NodeState(
            self.settings, self.log, applied_index=self.applied, rng=rng, now=self.clock.now, wall_s=self.clock.wall_s
        )
        self.node = self.make_node(state)
        self._world.note(self.name, "starts at", self.log.hard_state, "last", self.log.last_index, "snapshot", snapshot)
        return True

    def crash(self, share: float = 1.0) -> None:
        """kill -9 and a power failure in one: of the job under way the first ``share`` is on the disk."""
        if not self.is_up:
            return
        job = self._job
        if job is None or self._unless_damaged(lambda: self._sync(job, share)):
            self._world.note(self.name, "crashes" + ("" if job is None else f" with {share:.2f} of {job}"))
            self._end()

    def _end(self) -> None:
        self.node, self._job = None, None
        self._backlog, self._paused_until = [], 0.0
        self._armed = math.inf
        self._lives += 1
        self._is_reading = False
        self._network.is_bound.pop(self.name, None)
        self._dealers.close()
        self.reports.forget()
        self._reads.clear()

    # -- pauses --------------------------------------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """SIGSTOP: what comes in waits, and the clock goes on."""
        if self.is_up:
            self._paused_until = max(self._paused_until, self._world.now + seconds)
            self._world.after(seconds, self._go_on)

    def _go_on(self) -> None:
        backlog, self._backlog = self._backlog, []
        for what in backlog:
            self._do(what)

    def _do(self, what: Callable[[], None]) -> None:
        if self._world.now < self._paused_until:
            self._backlog.append(what)
        elif self.is_up:
            self._call(what)
            self._pump()

    def _call(self, what: Callable[[], Any]) -> Any:
        self._forget_requests()
        return self._unless_damaged(what)

    def _unless_damaged(self, what: Callable[[], Any], then: str = "and ends") -> Any:
        """What is read from a damaged disk ends the process. Returns None then."""
        try:
            return what()
        except DamagedLogError:
            self._world.note(self.name, "finds its log damaged", then)
            if self.is_up:
                self._end()
            self.is_damaged = True
            return None

    def _forget_requests(self) -> None:
        """Where hours pass in a second, they pass for the monotonic clock, too."""
        before_s = self._horizon.due(
            self.clock.now * self.clock.wall_rate, self.clock.wall_s, self.log.newest_request_s
        )
        if before_s is not None:
            self.log.forget_requests(before_s)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _receive(self, route: bytes, frames: Frames) -> None:
        try:
            message = decode_request(frames[0], frames[1:])
        except ProtocolError as error:
            self._audit.violated(f"wire: {self.name} gets from {route!r} what cannot be read: {error}")
            return
        if isinstance(message, RequestLogInfo) and is_hello(frames[0]):
            self._answer_hello(route, frames[0])
            return
        request = Request(route, frames[0], message)
        self.reports.asked(request)
        if self._world.is_traced:
            self._world.note(self.name, "<-", route.decode(), frames[0].hex(), message)
        self._do(lambda: self.node.step(request, self.clock.now, self.clock.wall_s))

    def _answer_hello(self, route: bytes, request_id: bytes) -> None:
        """The shell's part: what this peer knows beyond the document."""
        info = LogInfoReply(is_leader=False, leader_id=None, current_term=0, first_index=0, last_applied=0,
                            commit_index=0, last_index=0, snapshot_bytes=0, prune_index=0)  # fmt: skip
        if self.is_up:
            self._network.answer(self.name, route, [request_id, *info.to_frames(), self._dealers.hello.to_frame()])

    def _hear(self, reply: Reply) -> None:
        self._do(lambda: self.node.step(reply, self.clock.now, self.clock.wall_s))

    def _learn(self, peer: str, known: frozenset[str]) -> None:
        self._do(lambda: self.node.set_capabilities(peer, known, self.clock.now))

    def _send(self, output: Output) -> None:
        match output:
            case Answer():
                self.reports.leaves(output)
                self._network.answer(self.name, output.route, [output.request_id, *output.message.to_frames()])
            case Ask():
                self._dealers.ask(output)
            case Connect():
                self._dealers.connect(output.peer.id)
            case Reconnect():
                self._dealers.connect(output.peer_id)
            case Disconnect():
                self._dealers.disconnect(output.peer_id)

    # -- what is to be done --------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        while self.is_up and self._unless_damaged(self._perform_next):
            pass
        if self.is_up:
            self._arm()
            if self.log.wants_reading and not self._is_reading:
                self._is_reading = True
                self._world.after(self._cold.uniform(0.0, READ_SYNCS) * self.sync_s, self._has_read, self._lives)

    def _has_read(self, life: int) -> None:
        if life == self._lives:
            self._do(self._look_again)

    def _look_again(self) -> None:
        self._is_reading = False
        self.log.read_ahead()
        self.node.disk_read(self.clock.now)

    def _perform_next(self) -> bool:
        self.reports.believes(self.state)
        return self._perform(self.node.ready())

    def _perform(self, ready: Ready) -> bool:
        """Whether the node has to be asked again, as the shell does: sending and writing give it nothing to say."""
        for output in ready.send:
            self._send(output)
        if ready.persist is not None:
            self._write(ready.persist)
        if ready.restore is not None:
            self._restore(ready.restore)
        for entry in ready.apply:
            self._audit.applies(self.name, entry, self.applied + 1, self.log.durable.term_at(entry.index))
            self.applied = entry.index
        if ready.restore is not None or ready.apply:
            self.node.applied(self.applied, self.clock.now)
        for granted in ready.reads:
            self._reads.pop(granted.token, lambda _: None)(granted)
        return ready.restore is not None or bool(ready.apply)

    def _restore(self, meta: SnapshotMeta) -> None:
        self._audit.restores(self.name, meta.index, self.log.read_snapshot(0, meta.size), self.applied)
        self.applied = meta.index

    # -- the disk ------------------------------------------------------------------------------------------------------

    def _write(self, job: Persist) -> None:
        if self._job is not None:
            self._audit.violated(f"Ready: {self.name} writes before the former job is durable")
        if job.truncate_after is not None:
            is_leader, cache = self.state.role is Role.LEADER, self.log.cache
            self._audit.truncated(
                self.name,
                job.truncate_after,
                cache.last_index,
                cache.term_at,
                is_leader=is_leader,
                applied=self.applied,
            )
        self._job = job
        if self.disk_fails_at is not None:
            share, self.disk_fails_at = self.disk_fails_at, None
            self._world.after(self.sync_s, self._fail, self._lives, share)
            return
        self._world.after(self._job_s() * (0.5 + self._random.random()), self._synced, self._lives)

    def _job_s(self) -> float:
        """A slow disk is slower or faster than the others for a while, as cards and shared disks are."""
        if self.sync_s > FAST_SYNC_S and self._world.now >= self._changes_at:
            self._changes_at = self._world.now + self._disk.uniform(0.2, 5.0)
            self._slower = self._disk.choice((0.02, 0.3, 1.0, 1.0, 1.0))
        return self.sync_s * self._slower

    def _fail(self, life: int, share: float) -> None:
        """An error on write or sync; nobody knows how much of the job is on the disk."""
        if life != self._lives or self._job is None:
            return
        job, self._job = self._job, None
        if not self._unless_damaged(lambda: self._sync(job, share)):
            return
        self._world.note(self.name, f"its disk fails after {share:.2f} of a job")
        self.node.fail(self.clock.now)
        for output in self.node.ready().send:
            self._send(output)
        self._end()

    def _synced(self, life: int) -> None:
        if life != self._lives:
            return
        if self._world.now < self.stalled_until:
            self._world.at(self.stalled_until, self._synced, life)
            return
        self._do(self._advance)

    def _advance(self) -> None:
        job = self._job
        if job is None:
            return
        self._sync(job, 1.0)
        self._job = None
        self.node.advance(self.clock.now)

    def _sync(self, job: Persist, share: float) -> bool:
        """Everything that is written is looked at when it is in the log."""
        before = self.log.durable.hard_state
        self.log.write(job)
        self.log.sync(job, share)
        if self.log.durable.hard_state is not before:
            self._audit.persisted(self.name, before, self.log.durable.hard_state)
        tail = self.log.cache.entries[:1] if job.install is not None else []  # what a snapshot leaves in the log
        for entry in (*tail, *job.entries):
            self._audit.appended(self.name, entry, self.log.cache.term_at(entry.index - 1))
        return True

    # -- time ----------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        deadline = self.node.next_deadline()
        if deadline < self._armed:
            self._armed = deadline
            late = self._late_s * self._random.random()
            self._world.at(self.clock.true_time(deadline) + late, self._wake, self._lives, deadline)

    def _wake(self, life: int, deadline: float) -> None:
        if life == self._lives and self._armed == deadline:
            self._armed = math.inf
            self._do(lambda: self.node.tick(self.clock.now, self.clock.wall_s))
            self._look_for_a_spin()

    def _look_for_a_spin(self) -> None:
        """Time moves between two calls here, so a deadline that a tick leaves behind again and again is a mistake."""
        self._spins = self._spins + 1 if self._armed <= self.clock.now else 0
        if self._spins > _MAX_SPINS:
            self._audit.violated(f"time: {self.name} asks again and again to be called at {self._armed}, which is past")

    # -- for deviations ------------------------------------------------------------------------------------------------

    def compact(self) -> None:
        """The state machine makes a snapshot of what it applied."""
        if self.is_up and self._job is None and hasattr(self.node, "prepare_compaction"):
            self._unless_damaged(self._compact)

    def _compact(self) -> None:
        index = min(self.node.prepare_compaction(), self.applied)
        term = self.log.term_at(index)
        if term is None or index <= self.log.durable.before:
            return
        configuration = [each for each in self.log.configurations if each.index <= index][-1]
        data = self._audit.state_after(index)
        meta = SnapshotMeta(index, term, len(data), configuration)
        self._world.note(self.name, "compacts up to", index)
        self.log.compact(meta, data)
        self._do(lambda: self.node.compacted(meta))

    def read(self, token: object, heard: Callable[[ReadGranted], None]) -> None:
        if self.is_up and hasattr(self.node, "read"):
            self._reads[token] = heard
            self._do(lambda: self.node.read(token, self.clock.now))

    def transfer(self, to: str) -> None:
        if self.is_up and hasattr(self.node, "transfer"):
            self._do(lambda: self.node.transfer(to, self.clock.now))

    def reconnect(self, to: str) -> None:
        """TCP broke: the socket connects again by itself, under another routing id."""
        if self.is_up and self._dealers.is_connected(to):
            self._dealers.connect(to)
            self._do(lambda: self.node.peer_lost(to, self.clock.now))

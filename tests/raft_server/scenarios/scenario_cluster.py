"""Peers of a scenario: real nodes over simulated disks. Nothing moves unless a command says so.

A message waits on its link until it is delivered or dropped. All peers read one clock, which only commands move; a node
is told of the time with each message, but what its time-outs do happens only when a command lets it tick. Disks are
done at once, unless one is held.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import count

import attrs
from scenario_words import WALL_S, job_words, log_words, message_words, peers_of, place
from support.raft_disks import SimulatedLog
from support.raft_trace import Trace, TracedNode

from raft_client.server.node.node import RaftNode
from raft_client.server.node.ready import (
    Answer,
    Ask,
    Configuration,
    Connect,
    Disconnect,
    HardState,
    Output,
    Persist,
    Ready,
    Reconnect,
    Reply,
    Request,
    SnapshotMeta,
)
from raft_client.server.node.settings import NodeSettings
from raft_client.server.node.state import NodeState
from raft_client.wire.configuration import ConfigChange
from raft_client.wire.frames import Message
from raft_client.wire.hello import Capability
from raft_client.wire.log_entry import LogEntry

__all__ = ["ScenarioCluster", "ScenarioPeer"]

_IDENT = b"scenario"
_CLIENT = b"client"
_ALL = frozenset(Capability)
_MOST_STEPS = 20_000


@attrs.frozen
class _Sent:
    """A message on its way. ``route`` is the connection of who asked."""

    source: str
    target: str
    route: bytes
    output: Ask | Answer


@attrs.define(eq=False)
class ScenarioPeer:
    """One peer, running or not."""

    name: str
    settings: NodeSettings
    log: SimulatedLog
    node: RaftNode | None = None
    is_held: bool = False  # its disk
    job: Persist | None = None
    applied: int = 0
    routes: dict[str, bytes] = attrs.field(factory=dict)  # of its connections
    seen: tuple[object, ...] = ()
    commit_seen: int = 0
    led_in: int = 0


class ScenarioCluster:
    """``say`` takes the lines that the peers' doings make; ``say_message`` those of messages."""

    def __init__(self, names: Iterable[str], members: str, options: dict[str, object], say: Callable[[str], None]):
        self.say = say
        self.shows_messages = True
        self.now = 1000.0
        self.cut: set[tuple[str, str]] = set()
        self.links: dict[tuple[str, str], list[_Sent]] = {}
        self.copies: dict[str, _Sent] = {}
        self._connections = 0
        self._requests: dict[bytes, str] = {}
        #: What the peers write of themselves.
        self.trace: list[bytes] = []
        self._trace = Trace(self.trace.append, count().__next__)
        start = Configuration(0, ConfigChange(peers_of(members)))
        self.peers = {
            name: ScenarioPeer(
                name,
                NodeSettings(peer_id=name, ident=_IDENT, **options),  # type: ignore[arg-type]
                SimulatedLog(start),
            )
            for name in names
        }

    # -- life ----------------------------------------------------------------------------------------------------------

    def write(self, name: str, entries: list[LogEntry], hard_state: HardState, applied: int) -> None:
        """What the disk of a peer holds before it starts."""
        peer = self.peers[name]
        job = Persist(hard_state, entries=tuple(entries))
        peer.log.write(job)
        peer.log.sync(job)
        peer.applied = applied

    def start(self, name: str) -> None:
        """With what its disk holds."""
        peer = self.peers[name]
        peer.log.reopen()
        peer.routes.clear()
        rng = random.Random(f"scenario {name}")
        state = NodeState(peer.settings, peer.log, applied_index=peer.applied, rng=rng, now=self.now, wall_s=WALL_S)
        peer.node = TracedNode(state, trace=self._trace)
        self._settle(peer)
        self.introduce()

    def crash(self, name: str) -> None:
        """Power failure: what was not synced is gone, and all that was on its way to or from the peer."""
        peer = self.peers[name]
        peer.node, peer.job, peer.seen, peer.commit_seen = None, None, (), 0
        snapshot = peer.log.durable.snapshot
        peer.applied = 0 if snapshot is None else snapshot.index
        for link in [each for each in self.links if name in each]:
            del self.links[link]
        for other in self._running():
            if name in other.routes:
                self.node(other.name).peer_lost(name, self.now)
                self._settle(other)

    def node(self, name: str) -> RaftNode:
        """Of a peer that runs."""
        node = self.peers[name].node
        assert node is not None, f"{name} does not run"
        return node

    def _running(self) -> list[ScenarioPeer]:
        return [peer for peer in self.peers.values() if peer.node is not None]

    def introduce(self) -> None:
        """All who reach each other say hello."""
        for peer in self._running():
            for other in list(peer.routes):
                self._greet(peer, other)

    def _greet(self, peer: ScenarioPeer, other: str) -> None:
        is_up = other in self.peers and self.peers[other].node is not None
        if is_up and not {(peer.name, other), (other, peer.name)} & self.cut and peer.node is not None:
            peer.node.set_capabilities(other, _ALL, self.now)
            self._settle(peer)

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self, name: str) -> None:
        """Let a peer see what time it is."""
        self.node(name).tick(self.now, WALL_S)
        self._settle(self.peers[name])

    def time_out(self, name: str) -> None:
        """The time until the election time-out of this peer passes for all; only this one acts on it."""
        self.now = max(self.now, self.node(name)._state.timing.election_at)
        self.tick(name)

    def stand(self, name: str) -> None:
        """A peer stands for election without asking first."""
        self.node(name)._election.campaign()
        self._settle(self.peers[name])

    # -- messages ------------------------------------------------------------------------------------------------------

    def on_link(self, source: str, target: str) -> list[_Sent]:
        """What is on its way, oldest first."""
        return self.links.setdefault((source, target), [])

    def deliver(self, sent: _Sent) -> None:
        """One message arrives, if anybody is there."""
        peer, output = self.peers[sent.target], sent.output
        if peer.node is None:
            return
        if isinstance(output, Ask):
            peer.node.step(Request(sent.route, output.request_id, output.message), self.now, WALL_S)
        elif peer.routes.get(sent.source) == sent.route:
            peer.node.step(Reply(sent.source, output.request_id, output.message), self.now, WALL_S)
        self._settle(peer)

    def deliver_all(self, patterns: list[tuple[str, str]]) -> None:
        """Until nothing is on its way on the links that match, in turns. An empty name matches all."""
        for _ in range(_MOST_STEPS):
            waiting = [
                (source, target)
                for (source, target), sent in sorted(self.links.items())
                if sent and any(a in ("", source) and b in ("", target) for a, b in patterns)
            ]
            if not waiting:
                return
            for link in waiting:
                if self.links.get(link):
                    self.deliver(self.links[link].pop(0))
        raise AssertionError("they talk for ever")

    def ask(self, name: str, message: Message, request_id: bytes, label: str) -> None:
        """A client asks a peer, which hears it at once."""
        self._requests[request_id] = label
        self.node(name).step(Request(_CLIENT, request_id, message), self.now, WALL_S)
        self._settle(self.peers[name])

    def read(self, name: str, label: str) -> None:
        """A linearizable read of an application beside the peer."""
        self.node(name).read(label, self.now)
        self._settle(self.peers[name])

    def transfer(self, name: str, to: str) -> None:
        """An operator asks the leader to hand over."""
        begun = self.node(name).transfer(to, self.now)
        self.say(f"{name} {'begins' if begun else 'refuses'} to hand over to {to}")
        self._settle(self.peers[name])

    def _send(self, peer: ScenarioPeer, output: Output) -> None:
        match output:
            case Ask(peer_id):
                self._put(_Sent(peer.name, peer_id, peer.routes[peer_id], output))
            case Answer(route) if route == _CLIENT:
                label = self._requests[output.request_id]
                self.say(f"{peer.name} -> client of {label}: {message_words(output.message)}")
            case Answer(route):
                self._put(_Sent(peer.name, route.decode().partition("#")[0], route, output))
            case Connect() | Reconnect():
                name = output.peer.id if isinstance(output, Connect) else output.peer_id
                self._connections += 1
                peer.routes[name] = f"{peer.name}#{self._connections}".encode()
                if peer.seen:  # at its start it has nobody to say it to yet
                    self._greet(peer, name)
            case Disconnect(peer_id):
                peer.routes.pop(peer_id, None)

    def _put(self, sent: _Sent) -> None:
        link = (sent.source, sent.target)
        is_lost = link in self.cut or sent.target not in self.peers or self.peers[sent.target].node is None
        if self.shows_messages:
            lost = " (lost)" if is_lost else ""
            self.say(f"{sent.source} -> {sent.target}: {message_words(sent.output.message)}{lost}")
        if not is_lost:
            self.on_link(*link).append(sent)

    # -- what a shell does ---------------------------------------------------------------------------------------------

    def _settle(self, peer: ScenarioPeer) -> None:
        while peer.node is not None:
            self._say_changes(peer)
            ready = peer.node.ready()
            if ready == Ready():
                return
            self._carry_out(peer, ready)

    def _carry_out(self, peer: ScenarioPeer, ready: Ready) -> None:
        for output in ready.send:
            self._send(peer, output)
        if ready.persist is not None:
            assert peer.job is None, "a second job while the first one is under way"
            if self.shows_messages or peer.is_held:
                self.say(f"{peer.name} writes {job_words(ready.persist)}{' (held)' if peer.is_held else ''}")
            peer.log.write(ready.persist)
            peer.job = ready.persist
            if not peer.is_held:
                self.finish(peer.name)
        if ready.restore is not None:
            self.say(f"{peer.name} restores the snapshot {place(ready.restore.index, ready.restore.term)}")
            peer.applied = ready.restore.index
        if ready.apply:
            assert ready.apply[0].index == peer.applied + 1
            peer.applied = ready.apply[-1].index
            self.say(f"{peer.name} applies up to {peer.applied}: {log_words(ready.apply)}")
        if peer.node is not None and (ready.restore or ready.apply):
            peer.node.applied(peer.applied, self.now)
        for granted in ready.reads:
            what = f"may see {granted.index}" if granted.index is not None else f"refused, {granted.leader_id} leads"
            self.say(f"{peer.name} read {granted.token}: {what}")

    def finish(self, name: str) -> None:
        """The job of the disk is durable."""
        peer = self.peers[name]
        job = peer.job
        if job is None or peer.node is None:
            return
        peer.job = None
        peer.log.sync(job)
        peer.node.advance(self.now)
        self._settle(peer)

    def fail(self, name: str) -> None:
        """The disk of the peer refuses."""
        self.node(name).fail(self.now)
        self._settle(self.peers[name])

    def _say_changes(self, peer: ScenarioPeer) -> None:
        node = peer.node
        if node is None:
            return
        leader = f", {node.leader_id} leads" if node.leader_id not in (None, peer.name) else ""
        now = (node.role.value, node.term, leader)
        if now != peer.seen:
            peer.seen = now
            self.say(f"{peer.name} is {node.role.value} in term {node.term}{leader}")
        if node.commit_index != peer.commit_seen:
            peer.commit_seen = node.commit_index
            self.say(f"{peer.name} knows {node.commit_index} to be committed")

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def compact(self, name: str, index: int) -> None:
        """A snapshot of the state takes the place of the log up to ``index``."""
        peer = self.peers[name]
        data = f"the state after {index}".encode()
        configuration = [each for each in peer.log.configurations if each.index <= index][-1]
        meta = SnapshotMeta(index, peer.log.term_at(index) or 0, len(data), configuration)
        peer.log.compact(meta, data)
        if peer.node is not None:
            peer.node.compacted(meta)
            self._settle(peer)

    def status(self, name: str) -> str:
        """All that counts of a peer, in one line."""
        peer = self.peers[name]
        disk, image = peer.log.durable, peer.log.durable if peer.node is None else peer.log.cache
        start = f"[{place(image.before, image.before_term)}] " if image.before else ""
        vote = f" vote {disk.hard_state.voted_for}" if disk.hard_state.voted_for else ""
        if peer.node is None:
            role = f"is down, term {disk.hard_state.term}{vote}"
        else:
            node = peer.node
            role = f"{node.role.value}, term {node.term}{vote}, commit {node.commit_index}"
        return f"{name}: {role}, log {start}{log_words(image.entries)}".rstrip()

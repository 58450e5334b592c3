"""A cluster in one schedule: its peers, its clients, what can be done to it, and how it heals.

The public methods with texts as arguments are what deviations name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Any

from peers_audit import Audit, TermAt, has_quorum
from peers_clients import SimulatedClient, Update
from peers_disk import DiskBackedLog
from peers_history import invent_history, is_fresh
from peers_network import Network, Weather
from peers_node_peer import NodePeer
from peers_process import SimulatedPeer
from peers_profile import IDENT, Profile, peers_of
from peers_world import PeerClock, World
from support.raft_disks import SimulatedLog

from raft_client.server.node.ready import Configuration, ReadGranted
from raft_client.wire.configuration import ConfigChange
from raft_client.wire.log_entry import EntryKind
from raft_client.wire.request_id import DEFAULT_TTL_S

__all__ = ["Cluster"]


class Cluster:
    """``python`` and ``node`` are the peers by name; ``lasting`` is who stays broken after the healing."""

    #: Of a Python peer; a test has real logs.
    make_log: Callable[[World, str, Configuration], SimulatedLog] = staticmethod(
        lambda _world, _name, start: SimulatedLog(start)
    )

    def __init__(self, seed: int, profile: Profile, *, trace: bool = False) -> None:
        self.profile = profile
        self.world = World(seed, trace=trace)
        self.audit = Audit()
        in_order = None if profile.is_in_order else frozenset(profile.node_peers)
        self.network = Network(self.world, delay_s=profile.delay_s, in_order=in_order)
        self.python: dict[str, SimulatedPeer] = {}
        self.node: dict[str, NodePeer] = {}
        self.lasting: str | None = None
        self._tokens = count()
        self._make_peers()
        self.clients = [
            SimulatedClient(self.world, self.network, self.audit, f"c{n}", IDENT, profile.peers, profile.wall_rate)
            for n in (1, 2)
        ]
        for client in self.clients:
            client.checks_expiry = "jump" not in profile.kinds and profile.wall_rate == 1.0
        self._begin()

    # -- the beginning -------------------------------------------------------------------------------------------------

    def _make_peers(self) -> None:
        profile, world = self.profile, self.world
        start = Configuration(0, ConfigChange(peers_of(profile.voters)))
        for name in profile.peers:
            settings = profile.settings_of(name)
            if name in profile.node_peers:
                node = self.node[name] = NodePeer(world, self.network, self.audit, name, SimulatedLog(start))
                node.on_commit, node.wall_rate = self._leader_commits, profile.wall_rate
                node.ttl_s = settings.request_id_ttl_s or DEFAULT_TTL_S
                continue
            rate = 1.0 + world.stream("drift", name).uniform(-profile.drift, profile.drift)
            clock = PeerClock(world, name, rate=rate, wall_rate=profile.wall_rate)
            log = self.make_log(world, name, start)
            peer = SimulatedPeer(
                world,
                self.network,
                self.audit,
                settings,
                clock,
                log,
                keeps_state=profile.keeps_state,
                sync_s=profile.sync_s,
                late_s=profile.late_s,
            )
            peer.reports.on_commit = self._leader_commits
            self.python[name] = peer

    def _begin(self) -> None:
        """Disks with a past; then everybody starts at almost the same time."""
        random = self.world.stream("history")
        history = invent_history(random, self.profile.voters, self.profile.terms)
        history.write(self.audit, {name: self.log(name) for name in self.profile.voters}, random)
        for name in self.profile.voters:
            if name in self.node or self.profile.keeps_state:
                self._peer(name).applied = max(history.applied[name], self.log(name).durable.before)
        for entries in history.logs.values():
            for entry in entries:
                is_asked = entry.kind is EntryKind.STATE and is_fresh(entry) and random.random() < 0.3
                if is_asked and entry.request_id.raw not in self.clients[0].updates:
                    self.clients[0].adopt(entry)
        for name in self.profile.peers:
            self.world.after(0.01 * random.random(), self._peer(name).start)

    def _peer(self, name: str) -> Any:
        return self.python.get(name) or self.node[name]

    def log(self, name: str) -> SimulatedLog:
        log: SimulatedLog = self._peer(name).log
        return log

    # -- what the audit asks -------------------------------------------------------------------------------------------

    def _leader_commits(self, leader: str, term: int, index: int, term_at: TermAt, change: ConfigChange) -> None:
        entry_term = term_at(index)

        def has(name: str) -> bool:
            if name not in self.profile.peers:
                return False
            disk = self.log(name).durable
            return disk.before >= index or disk.term_at(index) == entry_term

        if index > self.audit.committed:
            self.audit.commits(leader, term, index, term_at, change, has)

    # -- deviations ----------------------------------------------------------------------------------------------------

    def append(self, peer: str, times: str) -> None:
        for _ in range(int(times)):
            self.clients[1].append(peer)

    def append_all(self) -> None:
        """One update to each peer: one of them leads."""
        for peer in self.profile.peers:
            self.clients[1].append(peer)

    def repeat(self, peer: str) -> None:
        for client in self.clients:
            client.repeat(peer)

    def repeat_all(self) -> None:
        """Everything once more, to everybody."""
        for client in self.clients:
            client.repeat_all()

    def change(self, peer: str, *members: str) -> None:
        self.clients[0].change(peers_of(list(members)), peer)

    def read(self, name: str) -> None:
        known, peer = self.audit.newest_known, self.python[name]

        def heard(granted: ReadGranted) -> None:
            if granted.index is None:
                return
            self.audit.reads(name, granted.index, known)
            if peer.applied < granted.index:
                self.audit.violated(f"reads: {name} serves {granted.index}, and has applied {peer.applied}")

        peer.read(next(self._tokens), heard)

    def read_leaders(self) -> None:
        """Every peer that believes that it leads is read from: the one that should not serve it is among them."""
        for name, peer in self.python.items():
            if peer.is_leader:
                self.read(name)

    def cut_leader(self, lasts: str, ways: str) -> None:
        """The present leader goes on believing, and others may lead meanwhile."""
        for name in self.profile.peers:
            if self._peer(name).is_leader:
                others = [each for each in self.profile.peers if each != name]
                links = [f"{name}>{each}" for each in others] if "out" in ways else []
                links += [f"{each}>{name}" for each in others] if "in" in ways else []
                self.cut(lasts, *links)

    def cut(self, lasts: str, *links: str) -> None:
        pairs = {(source, target) for source, _, target in (link.partition(">") for link in links)}
        self.network.cut |= pairs
        self.world.after(float(lasts), self.network.cut.difference_update, pairs)

    def weather(self, lasts: str, peer: str, lost: str, doubled: str, late: str) -> None:
        """Of all links of a peer."""
        weather = Weather(float(lost), float(doubled), float(late))
        for other in (*self.profile.peers, *(client.name for client in self.clients)):
            for link in ((peer, other), (other, peer)):
                self.network.weather[link] = weather
                self.world.after(float(lasts), self.network.weather.pop, link, None)

    def reconnect(self, peer: str, to: str) -> None:
        self.python[peer].reconnect(to)

    def crash(self, peer: str, lasts: str, share: str) -> None:
        if peer in self.python:
            self.python[peer].crash(float(share))
        else:
            self.node[peer].crash()
        self.world.after(float(lasts), self._restart, peer)

    def crash_all(self, lasts: str, share: str) -> None:
        for name in self.profile.peers:
            self.crash(name, lasts, share)

    def stall(self, peer: str, lasts: str) -> None:
        self.python[peer].stalled_until = self.world.now + float(lasts)

    def fail_disk(self, peer: str, lasts: str, share: str) -> None:
        self.python[peer].disk_fails_at = float(share)
        self.world.after(float(lasts), self._restart, peer)

    def pause(self, peer: str, lasts: str) -> None:
        self.python[peer].pause(float(lasts))

    def pause_leader(self, lasts: str) -> None:
        for peer in self.python.values():
            if peer.is_leader:
                peer.pause(float(lasts))

    def jump(self, peer: str, seconds: str) -> None:
        if peer in self.python:
            self.python[peer].clock.wall_offset_s += float(seconds)

    def show_tomorrow(self, peer: str, lasts: str) -> None:
        """Its clock is a day ahead for a while: what is asked of it then it may call expired."""
        for client in self.clients:
            client.checks_expiry = False
        clock = self.python[peer].clock
        clock.wall_offset_s = 86_400.0
        self.world.after(float(lasts), setattr, clock, "wall_offset_s", 0.0)

    def compact(self, peer: str) -> None:
        self.python[peer].compact()

    def transfer(self, to: str) -> None:
        """The present leader is asked."""
        for peer in self.python.values():
            if peer.is_leader and peer.name != to:
                peer.transfer(to)

    def damage(self, peer: str, share: str) -> None:
        """A bit flips in an entry that was synced; one peer, if the others are enough."""
        disk = self.log(peer).durable
        if len(self.profile.voters) < 3 or self.lasting not in (None, peer) or not disk.entries:
            return
        self.lasting = peer
        self.log(peer).damaged_at = disk.before + 1 + int(float(share) * len(disk.entries))
        if float(share) < 0.7:  # it is noticed when it starts, otherwise when it is read
            self.crash(peer, "0.05", "1.0")

    def flip(self, peer: str, kind: str, which: str, where: str, bit: str) -> None:
        """A bit flips in a file of a real log; those of one peer, if the others are enough."""
        log = self.log(peer)
        if len(self.profile.voters) >= 3 and self.lasting in (None, peer) and isinstance(log, DiskBackedLog):
            self.lasting = peer
            log.flip(kind, int(which), int(where), int(bit))

    def _restart(self, name: str) -> None:
        peer = self._peer(name)
        if not peer.is_up:
            peer.start()

    # -- the end -------------------------------------------------------------------------------------------------------

    def heal(self) -> Update:
        """No more faults; everybody runs. Returns a new update, which has to be answered."""
        self.world.note("world", "heals")
        self.network.cut.clear()
        self.network.weather.clear()
        for name in self.profile.peers:
            if name in self.python:
                self.python[name].stalled_until = 0.0
                self.python[name].disk_fails_at = None
                self.python[name].clock.wall_offset_s = 0.0
            self._restart(name)
        self._break_for_good()
        return self.clients[0].append(self.profile.peers[0])

    def _break_for_good(self) -> None:
        """What does not heal is one peer, the leader if there is one: the others are enough."""
        names = [name for name, peer in self.python.items() if peer.is_leader] or list(self.python)
        one, kind = names[0], self.profile.lasting
        if kind == "stall":
            self.python[one].stalled_until = math.inf
        elif kind:
            others = [name for name in (*self.profile.peers, "c1", "c2") if name != one]
            self.network.cut_for_good |= {(one, each) if kind == "mute" else (each, one) for each in others}
        else:
            return
        self.lasting = one
        self.world.note("world", one, "stays broken:", kind)

    def can_decide(self) -> bool:
        """Whether, in the eyes of everybody, enough members are up. Otherwise nothing is promised."""
        up = [name for name in self.profile.peers if self._is_up(name)]
        return all(has_quorum(self._change_of(name), self._is_up) for name in up) and any(map(self._can_win, up))

    def _can_win(self, name: str) -> bool:
        """Whether it may stand, and a majority has no better log.

        A peer that was given a snapshot by a peer that keeps no CONFIG entry after it, as Node peers do, may not stand.
        """
        if name in self.python and not self.python[name].state.log.knows_configuration:
            return False
        place = self._place(name)
        return has_quorum(self._change_of(name), lambda each: self._is_up(each) and self._place(each) <= place)

    def _place(self, name: str) -> tuple[int, int]:
        disk = self.log(name).durable
        return disk.term_at(disk.last_index) or 0, disk.last_index

    def _is_up(self, name: str) -> bool:
        return name in self.profile.peers and name != self.lasting and bool(self._peer(name).is_up)

    def _change_of(self, name: str) -> ConfigChange:
        return self.log(name).durable.configurations[-1].change

    def members(self) -> list[str]:
        """Those of the newest committed configuration that run."""
        changes = [
            each
            for name in self.profile.peers
            for each in self.log(name).durable.configurations
            if self.audit.is_committed(each.index, self.log(name).durable.term_at(each.index))
        ]
        newest = max(changes, key=lambda each: each.index)
        return [peer.id for peer in newest.change.new if self._is_up(peer.id)]

    def has_come_right(self) -> bool:
        """Everybody is answered, and has applied everything that anybody was told of."""
        if any(client.waiting for client in self.clients):
            return False
        return all(self._peer(name).applied >= self.audit.newest_known for name in self.members())

    def what_is_wrong(self) -> str:
        waiting = [str(update.request_id) for client in self.clients for update in client.waiting]
        applied = {name: self._peer(name).applied for name in self.profile.peers}
        leaders = [name for name in self.profile.peers if self._peer(name).is_leader]
        return f"waiting {waiting}, applied {applied}, leaders {leaders}, known {self.audit.newest_known}"

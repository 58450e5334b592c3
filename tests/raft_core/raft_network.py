"""A cluster and the links to it, in memory: messages wait until they are delivered, time is a number.

The peers agree by magic: there is one log, and one peer may append to it. That is what a client sees of Raft, and all
that can go wrong on the way is here: links break, peers freeze, think that they still lead, or name the wrong leader.
The frames are written and read by hand, after the published protocol (RequestConfig and RequestUpdate RPC).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from random import Random
from typing import Any

import msgpack
from model_peer import BROADCAST_URL, ENTRIES, IDENT, Log, ModelPeer

from raft_client.core.calls import Append, Call
from raft_client.core.request_machine import RequestMachine
from raft_client.core.requests import Action, Connect, Disconnect, Reject, Request, Resolve, Send, SetAside, Wake

__all__ = ["IDENT", "NONSENSE", "ClientDriver", "SimCluster", "SimPeer", "append", "url_of"]

CONFIG, UPDATE, LOG_INFO, PEERS = b"\x5e", b"\x3d", b"\x25", b"\x26"
#: A cluster may list what nobody can connect to.
NONSENSE = "tcp://no sense:1"
Frames = list[bytes]


def url_of(number: int) -> str:
    return f"tcp://10.0.0.{number}:8047"


def append(number: int) -> Append:
    """An append whose data and request id both are this number; the id is new."""
    return Append(IDENT, b"%d" % number, number.to_bytes(12, "big"), has_new_id=True)


class SimCluster:
    """The log that the peers share, and who may append to it."""

    def __init__(self, size: int = 3) -> None:
        self.log: list[bytes] = []  # the data of each entry; the index counts from 1
        self.frames = Log()  # the same as entries
        self.index_of: dict[bytes, int] = {}
        self.refused: set[bytes] = set()  # ids of which a peer said that they have expired
        self.term = 1
        self.makers = size  # of snapshots
        self.peers = {url_of(n): SimPeer(self, str(n)) for n in range(1, size + 1)}
        self.leader: SimPeer | None = self.peers[url_of(1)]
        self.listed = [[peer.id, url] for url, peer in self.peers.items()]

    def commit(self, request_id: bytes, data: bytes) -> int:
        """Once for each request id."""
        if request_id not in self.index_of:
            self.log.append(data)
            self.frames.frames.append(request_id + b"\x00" + b"\x01" + bytes(6) + data)
            self.index_of[request_id] = len(self.log)
        return self.index_of[request_id]

    def elect(self, leader: SimPeer | None) -> None:
        """The others learn of it when they are asked next. A peer that is cut off does not.

        What stands in a leader's log is committed with what follows it. What a former leader accepted while the others
        went on without it is lost: with such a log nobody is elected.
        """
        self.leader = leader
        if leader is not None:
            self.term += 1
            known = len(self.log)
            for length, request_id, data in leader.uncommitted:
                if length == known:
                    self.commit(request_id, data)
            leader.uncommitted.clear()
            leader.reader.applied = None
        for peer in self.peers.values():
            if not peer.is_deluded:
                peer.believes = leader.id if leader is not None else None
                peer.term = self.term


class SimPeer:
    """One peer: its mailbox, what it believes, and whether it works."""

    def __init__(self, cluster: SimCluster, peer_id: str) -> None:
        self.cluster = cluster
        self.id = peer_id
        self.term = 1
        self.is_up = True
        self.is_frozen = False  # takes messages and does nothing
        self.is_deluded = False  # believes for ever what it believes now: cut off from the others
        self.says_expired = False  # of every id: its clock is wrong
        self.believes: str | None = "1"
        self.uncommitted: list[tuple[int, bytes, bytes]] = []  # accepted while cut off, and how long the log was then
        self.sends_away_to: str | None = None  # says that it leads, and sends those who believe it to another
        self.inbox: deque[tuple[int, Frames]] = deque()  # with the number of the link
        self.held: list[tuple[int, Frames]] = []  # answers of the state machine that take their time
        self.reader = ModelPeer(cluster.frames, snapshot_maker=int(peer_id), snapshot_length=90)

    @property
    def leads(self) -> bool:
        """Whether it says so."""
        return self.believes == self.id

    def cut_off(self) -> None:
        """It goes on to believe what it believes now, and to hear of nothing new."""
        self.is_deluded = True
        self.reader.applied = self.reader.end

    def answer(self, link: int, frames: Frames) -> list[Frames]:
        """What it answers to one message, in order."""
        request_id, kind, ident = frames[:3]
        if ident != IDENT:
            return []  # silently dropped (facts 1.1)
        leads = b"\x01" if self.leads else b""
        if kind == CONFIG:
            return [[request_id, leads, msgpack.packb(self.believes), msgpack.packb(self.cluster.listed)]]
        if kind == LOG_INFO:
            return [[request_id, leads, msgpack.packb(self.believes), bytes([self.term]), *[b"\x07"] * 6]]
        if kind == UPDATE:
            return self._update(request_id, frames[3])
        if kind == ENTRIES:
            self.reader.leads, self.reader.leader_name = self.leads, self.believes
            return self.reader.receive(request_id, frames[1:])
        if kind in (PEERS, BROADCAST_URL, b"never"):
            return []  # a test answers; its state machine does not broadcast; it knows no such message
        reply = [request_id, b"custom", *frames[3:]]
        if kind == b"later":
            self.held.append((link, reply))
            return []
        return [reply]

    def _update(self, request_id: bytes, data: bytes) -> list[Frames]:
        if not self.leads or self.sends_away_to is not None:
            return [[request_id, b"", msgpack.packb(self.sends_away_to or self.believes)]]
        if self.says_expired and request_id not in self.cluster.index_of:
            self.cluster.refused.add(request_id)
            return [[request_id, b""]]
        if self.cluster.leader is not self:
            if all(request_id != accepted for _, accepted, _ in self.uncommitted):
                self.uncommitted.append((len(self.cluster.log), request_id, data))
            return [[request_id, b"\x01"]]  # accepts and cannot commit: it has no majority (facts 1.4)
        index = self.cluster.commit(request_id, data)
        return [[request_id, b"\x01"], [request_id, b"\x01", msgpack.packb(index)]]


class ClientDriver:
    """A request machine, the moment, the links to a cluster, and what became of every waiter."""

    def __init__(self, cluster: SimCluster, *, seeds: tuple[str, ...] | None = None, **options: Any) -> None:
        self.cluster = cluster
        self.machine = RequestMachine(seeds or tuple(cluster.peers), ident=IDENT, random=Random(1), **options)
        self.time = 1000.0
        self.outcomes: dict[Hashable, list[Any]] = defaultdict(list)
        self.links: dict[str, int] = {}
        self.urls: dict[int, str] = {}  # of every link that was ever made
        self.links_of: dict[bytes, set[int]] = defaultdict(set)  # on which a request id was sent
        self.broken: set[int] = set()
        self.unusable = {NONSENSE}  # URLs to which no socket can be connected
        self.to_client: deque[tuple[int, str, Frames]] = deque()
        self.sent: list[tuple[str, Frames]] = []
        self.wakes: list[Hashable] = []
        self._link_numbers = 0
        self._lost: deque[int] = deque()

    # -- what a test does ----------------------------------------------------------------------------------------------

    def submit(
        self, call: Call, waiter: Hashable, *, timeout: float | None = None, target: str | None = None
    ) -> Request:
        request = self.machine.submit(call, waiter, self.time, timeout=timeout, target=target)
        self.perform()
        return request

    def append(self, number: int, *, timeout: float | None = None) -> Request:
        return self.submit(append(number), number, timeout=timeout)

    def peer_works(self, url: str) -> bool:
        """Let a peer take one message from its mailbox; False when it has none, or does not work."""
        peer = self.cluster.peers[url]
        if not peer.inbox or peer.is_frozen or not peer.is_up:
            return False
        link, frames = peer.inbox.popleft()
        for answer in peer.answer(link, frames):
            self.to_client.append((link, url, answer))
        return True

    def state_machine_works(self, url: str) -> None:
        """The answers to custom messages that took their time are sent."""
        peer = self.cluster.peers[url]
        self.to_client += [(link, url, answer) for link, answer in peer.held]
        peer.held.clear()

    def receive_one(self, most: int = 1) -> bool:
        """Deliver the oldest message to the client, if its link still exists. Of those that have come on the same link
        the client takes in ``most`` before it does anything, as it does with real sockets.
        """
        if not self.to_client:
            return False
        link = self.to_client[0][0]
        together = [each for each in self.to_client if each[0] == link][:most]
        for each in together:
            self.to_client.remove(each)
        name = self._name_of(link)
        if name is not None and link not in self.broken:
            for _, _, frames in together:
                self.machine.received(name, frames, self.time)
            self.perform()
        return True

    def _name_of(self, link: int) -> str | None:
        return next((name for name, number in self.links.items() if number == link), None)

    def report_losses(self) -> None:
        """Tell the client of links that are gone. What came before the end was delivered before."""
        while self._lost:
            link = self._lost.popleft()
            while self.to_client and self._name_of(link) is not None:
                self.receive_one()
            name = self._name_of(link)
            if name is not None:
                self.machine.link_lost(name, self.time)
                self.perform()

    def settle(self) -> None:
        """Deliver everything, back and forth, until all is quiet. Time stands still."""
        for _ in range(3_000):
            worked = [self.peer_works(url) for url in self.cluster.peers]
            received = self.receive_one()
            self.report_losses()
            if not any(worked) and not received and not self._lost:
                return
        raise AssertionError("the client and the peers keep each other busy")

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with every deadline of the machine kept, and everything delivered in between."""
        end = self.time + seconds
        self.settle()
        looks = 0
        while (deadline := self.machine.next_deadline()) is not None and deadline <= end:
            looks += 1
            assert looks < 2_000, "the client has something to do again and again, and does nothing"
            self.time = max(self.time, deadline)
            self.machine.tick(self.time)
            self.perform()
            self.settle()
        self.time = end

    def break_link(self, url: str) -> None:
        """Every connection to this peer breaks: what is under way in it is lost."""
        peer = self.cluster.peers.get(url)
        if peer is not None:
            peer.inbox.clear()
            peer.held.clear()
            peer.reader.streams.clear()
        lost = [link for link in self.links.values() if self.urls[link] == url and link not in self.broken]
        self.broken.update(lost)
        self.to_client = deque(m for m in self.to_client if m[0] not in lost)
        self._lost.extend(lost)

    def kill(self, url: str) -> None:
        """The process ends."""
        self.cluster.peers[url].is_up = False
        self.break_link(url)

    # -- carrying out what the machine wants ---------------------------------------------------------------------------

    def perform(self) -> None:
        while actions := self.machine.take_actions():
            for action in actions:
                self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Connect(url=url):
                self._connect(url)
            case SetAside(url=url, name=name):
                assert name not in self.links
                self.links[name] = self.links.pop(url)
            case Disconnect(url=url):
                link = self.links.pop(url, None)
                assert link is not None or url in self.unusable
                self.to_client = deque(m for m in self.to_client if m[0] != link)
            case Send(url=url, frames=frames):
                self._send(url, frames)
            case Resolve(waiter=waiter, result=result):
                self.outcomes[waiter].append(result)
            case Reject(waiter=waiter, error=error):
                self.outcomes[waiter].append(error)
            case Wake(waiter=waiter):
                self.wakes.append(waiter)

    def _connect(self, url: str) -> None:
        assert url not in self.links, "a second link to the same peer"
        if url in self.unusable:
            self.machine.link_lost(url, self.time, "cannot be connected to (Invalid argument)")
            return
        self._link_numbers += 1
        self.links[url] = self._link_numbers
        self.urls[self._link_numbers] = url
        if url not in self.cluster.peers or not self.cluster.peers[url].is_up:
            self.broken.add(self._link_numbers)
            self._lost.append(self._link_numbers)

    def _send(self, url: str, frames: Frames) -> None:
        link = self.links.get(url)
        if link is None:
            assert url in self.unusable, "sent on no link"
            return
        self.sent.append((url, frames))
        self.links_of[frames[0]].add(link)
        peer = self.cluster.peers.get(self.urls[link])
        if peer is not None and peer.is_up and link not in self.broken:
            peer.inbox.append((link, frames))

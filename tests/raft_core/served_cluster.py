"""Peers with a log of keys and values that serve watches, with the real WatchServer, and a client of them, in memory.

Beside :mod:`raft_network` it has what watches need: entries that peers apply when they are told to, broadcasts, and the
runners of streams. ``offers=False`` is a cluster of Node peers.
"""

from __future__ import annotations

from typing import Any

from model_peer import BROADCAST_URL, ENTRIES, LOG_INFO, uint
from raft_network import IDENT, ClientDriver, Frames, SimCluster, SimPeer, url_of

from raft_client import KeyValueCodec
from raft_client.core.requests import Action, Reject, Resolve, Subscribe, Unsubscribe, Wake
from raft_client.core.selectors import Prefix, Selector
from raft_client.core.stream_runners import StreamRunner, StreamRunners
from raft_client.core.watch_events import WatchState
from raft_client.core.watches import Watches
from raft_client.server.machines.watch_server import WatchServer, WatchServerLimits
from raft_client.wire.hello import Capability, Hello
from raft_client.wire.log_entry import Position
from raft_client.wire.watch_messages import WATCH_TYPE, decode_watch_request

__all__ = ["ServedCluster", "WatchClient", "WatchPeer"]

_CODEC = KeyValueCodec()


class WatchPeer(SimPeer):
    """One peer: what it has applied of the log, and the watches that it serves."""

    cluster: ServedCluster

    def __init__(self, cluster: ServedCluster, peer_id: str) -> None:
        super().__init__(cluster, peer_id)
        self.offers = cluster.offers
        self.reader.applied, self.reader.name = 0, peer_id
        self.restart()

    def restart(self) -> None:
        """A new process on the same disk: of what was before, no changes are remembered."""
        self.cluster.starts += 1
        self.is_up = True
        at = self.applied
        self.server = WatchServer(
            Position(at, at and 1), self.cluster.limits, first_session=self.cluster.starts * 1_000_000
        )

    @property
    def applied(self) -> int:
        return self.reader.applied or 0

    def apply(self, index: int | None = None) -> None:
        """The log up to there."""
        log = self.cluster.frames
        for at in range(self.applied + 1, min(log.end if index is None else index, log.end) + 1):
            self.server.applied(at, 1, tuple(_CODEC.decode(log.frames[at - 1][20:])))
            self.reader.applied = at

    def answer(self, link: int, frames: Frames) -> list[Frames]:
        request_id, kind, *_ = frames
        if kind == WATCH_TYPE:
            assert self.offers, "a Node peer was sent what it does not know"
            self.server.request(b"%d" % link, request_id, decode_watch_request(frames[1:]), self.cluster.time)
            return []
        if kind not in (LOG_INFO, ENTRIES, BROADCAST_URL):
            return super().answer(link, frames)
        self.reader.leads, self.reader.leader_name = self.leads, self.believes
        answers = self.reader.receive(request_id, frames[1:])
        if self.offers and request_id.startswith(b"\x00zmqraft"):
            answers[0].append(Hello(self.id, 1, (Capability.WATCH,)).to_frame())
        return answers

    def told(self) -> list[tuple[int, Frames]]:
        """What the watches are to be told: links, and messages."""
        if self.is_frozen or not self.is_up:
            return []
        self.server.leads = self.leads
        while self.server.next_deadline() is not None and (self.server.next_deadline() or 0) <= self.cluster.time:
            self.server.turn(self.cluster.time)
        return [(int(each.route), [each.request_id, *each.reply.to_frames()]) for each in self.server.take()]


class ServedCluster(SimCluster):
    """Peers that agree on a log of keys and values. ``write`` is committed; the leader has applied it at once."""

    peers: dict[str, WatchPeer]  # type: ignore[assignment]  # SimPeers that serve watches

    def __init__(self, size: int = 3, *, offers: bool = True, **limits: Any) -> None:
        self.offers = offers
        self.limits = WatchServerLimits(**limits)
        self.time = 1000.0
        self.starts = 0
        super().__init__(size)
        self.peers = {url_of(n): WatchPeer(self, str(n)) for n in range(1, size + 1)}
        self.leader = self.peers[url_of(1)]

    def write(self, *keys: str, value: str = "x", lag: bool = False) -> None:
        """Each key is an entry; ``a;b`` are two keys in one, ``-a`` deletes. ``lag``: only the leader applies it."""
        for entry in keys:
            changes = []
            for key in entry.split(";"):
                encoded = KeyValueCodec.delete(key[1:]) if key.startswith("-") else KeyValueCodec.set(key, value)
                changes += _CODEC.decode(encoded)
            self.frames.append(KeyValueCodec.encode(changes))
        for peer in self.peers.values():
            if peer.is_up and not peer.is_deluded and (peer is self.leader or not lag):
                peer.apply()

    def commit(self, request_id: bytes, data: bytes) -> int:
        """As :meth:`write`, for an append of a client."""
        index = super().commit(request_id, data)
        self.write()
        return index

    def lead(self, number: int) -> None:
        """Another leader, which everybody knows, and which has applied everything."""
        peer = self.peers[url_of(number)]
        peer.apply()
        for each in self.peers.values():
            if not each.is_deluded:
                each.believes = peer.id
        self.leader = peer

    def outrun(self, index: int) -> None:
        """All logs up to there are snapshots."""
        for peer in self.peers.values():
            peer.reader.compacted = index


class WatchClient(ClientDriver):
    """A client with watches."""

    cluster: ServedCluster

    def __init__(self, cluster: ServedCluster, **options: Any) -> None:
        super().__init__(cluster)
        self.runners = StreamRunners(self.machine, IDENT, KeyValueCodec, **options)
        self.listening: dict[tuple[StreamRunner, str], int] = {}
        self.runner: StreamRunner
        self.watches: Watches
        self.received_bytes = 0

    # -- the user ------------------------------------------------------------------------------------------------------

    def watch(self, selector: Selector | None = None, *, settle: bool = True, **options: Any) -> WatchState:
        self.runner, self.watches = self.runners.watches(_CODEC, lambda codec: codec)
        self.runner.touch(self.time)
        watch = self.watches.watch(selector or Prefix(b""), **options)
        self.perform()
        if settle:
            self.settle()
        return watch

    def next_item(self, watch: WatchState) -> Any:
        self.runner.touch(self.time)
        item = self.watches.next_item(watch, self.time)
        self.perform()
        return item

    def take(self, watch: WatchState) -> list[Any]:
        """All that it has, with what arrives meanwhile."""
        items = []
        self.settle()
        while (item := self.next_item(watch)) is not None:
            items.append(item)
            self.settle()
        return items

    def cancel(self, watch: WatchState) -> None:
        self.runner.touch(self.time)
        self.watches.cancel(watch)
        self.perform()

    def state_of(self, watch: WatchState) -> Any:
        return self.watches.state_of(watch).freshness

    # -- the network ---------------------------------------------------------------------------------------------------

    def peer_works(self, url: str) -> bool:
        worked = super().peer_works(url)
        self.flush(url)
        return worked

    def flush(self, url: str) -> None:
        """What the peer has for its watches goes on its way."""
        self.cluster.time = self.time
        for link, frames in self.cluster.peers[url].told():
            self.to_client.append((link, url, frames))

    def receive_one(self, most: int = 1) -> bool:
        if self.to_client:
            self.received_bytes += sum(map(len, self.to_client[0][2]))
        return super().receive_one(most)

    def settle(self) -> None:
        for url in self.cluster.peers:
            self.flush(url)
        super().settle()

    def broadcast(self) -> None:
        """What each peer that leads has applied since it broadcast the last time, or nothing."""
        for (owner, url), sent in list(self.listening.items()):
            peer = self._broadcaster(url)
            if not peer.leads or peer.is_frozen or not peer.is_up:
                continue
            frames = self.cluster.frames.frames[sent : peer.applied]
            self.listening[owner, url] = peer.applied
            self.received_bytes += sum(map(len, frames))
            owner.broadcast(url, [IDENT, b"\x01", uint(peer.applied), *frames], self.time)
            self.perform()

    def _broadcaster(self, url: str) -> WatchPeer:
        return next(peer for peer in self.cluster.peers.values() if url == f"tcp://pub/{peer.id}")

    def quiet_time(self, seconds: float) -> None:
        """Time passes; leaders broadcast ten times a second, and everything is delivered."""
        end = self.time + seconds
        while self.time < end - 1e-9:
            self.broadcast()
            self.pass_time(min(0.1, end - self.time))

    def pass_time(self, seconds: float) -> None:
        end = self.time + seconds
        self.settle()
        looks = 0
        while (deadline := self.next_deadline()) is not None and deadline <= end:
            looks += 1
            assert looks < 2_000, "the client has something to do again and again, and does nothing"
            self.time = max(self.time, deadline)
            self.machine.tick(self.time)
            self.runners.tick(self.time)
            self.perform()
            self.settle()
        self.time = end

    def next_deadline(self) -> float | None:
        both = [at for at in (self.machine.next_deadline(), self.runners.next_deadline()) if at is not None]
        return min(both, default=None)

    def perform(self) -> None:
        runners = getattr(self, "runners", None)
        if runners is not None:
            runners.settle(self.time)
        while actions := self.machine.take_actions():
            for action in actions:
                self._carry_out(action)
            if runners is not None:
                runners.settle(self.time)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Resolve(waiter=waiter, result=result) if hasattr(waiter, "resolve"):
                waiter.resolve(result)
            case Reject(waiter=waiter, error=error) if hasattr(waiter, "reject"):
                waiter.reject(error)
            case Wake(waiter=waiter) if hasattr(waiter, "notify"):
                waiter.notify()
            case Subscribe(owner=owner, url=url):
                self.listening[owner, url] = self._broadcaster(url).applied
            case Unsubscribe(owner=owner, url=url):
                self.listening.pop((owner, url), None)
            case _:
                super()._carry_out(action)

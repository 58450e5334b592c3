"""Peers in this process that speak the protocol of ØMQ Raft over real sockets, and do what a test wants; and logs of
theirs that were compacted.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

import msgpack
import zmq

from support.waiting import eventually

# -- scripted cluster --------------------------------------------------------------------------------------------------

# Peers in this process that speak the protocol over real sockets, and do what a test wants.
#
# They share one log and agree by magic; a test elects, freezes, kills and restarts them. The frames are written and
# read by hand, after the published protocol and the facts of the Node peers; nothing of the package is used.


CONFIG, LOG_INFO, UPDATE, PEERS, ENTRIES, BROADCAST = b"\x5e", b"\x25", b"\x3d", b"\x26", b"\x3c", b"\x2a"
_PULSE_S = 0.1
_ENTRIES_PER_MESSAGE = 7
Frames = list[bytes]


def uint(number: int) -> bytes:
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "little")


def _held_port(port: int) -> socket.socket:
    """Nobody listens there, and nobody else gets it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def is_bound() -> bool:
        with suppress(OSError):
            held.bind(("127.0.0.1", port))
            return True
        return False

    eventually(is_bound, f"a thread of libzmq has closed port {port}, and tells nobody")
    return held


class ScriptedPeer:
    """One peer. ``scripts`` answer some types of messages instead of it; a script gets the frames after the type."""

    def __init__(self, cluster: ScriptedCluster, peer_id: str) -> None:
        self.cluster = cluster
        self.id = peer_id
        self.is_frozen = False
        self.scripts: dict[bytes, Callable[[Frames], list[Frames]]] = {}
        self.router: zmq.Socket[bytes] | None = None
        self.pub: zmq.Socket[bytes] | None = None
        self.url = self.pub_url = ""
        self._held: list[socket.socket] = []
        self.bind()
        self._streams: dict[tuple[bytes, bytes], deque[Frames]] = {}

    def bind(self) -> None:
        self.give_up_ports()
        self.router, self.url = self._bound(zmq.ROUTER, self.url)
        self.pub, self.pub_url = self._bound(zmq.PUB, self.pub_url)

    def _bound(self, kind: int, url: str) -> tuple[zmq.Socket[bytes], str]:
        """A socket at this URL, or at one of its own."""
        made = self.cluster.socket(kind, self.id)
        if url:
            made.bind(url)
            return made, url
        return made, f"tcp://127.0.0.1:{made.bind_to_random_port('tcp://127.0.0.1')}"

    def unbind(self) -> None:
        """Its ports are held: the system could give them to any client meanwhile, also to one that connects to them."""
        for each, url in ((self.router, self.url), (self.pub, self.pub_url)):
            if each is not None:
                each.close(linger=0)
                self._held.append(_held_port(int(url.rpartition(":")[2])))
        self.router = self.pub = None

    def give_up_ports(self) -> None:
        while self._held:
            self._held.pop().close()

    @property
    def leads(self) -> bool:
        return self.cluster.leader_id == self.id

    def handle(self, message: Frames) -> None:
        route, request_id, kind, ident, *arguments = message
        if ident != self.cluster.ident:
            return
        self.cluster.seen.append((self.id, request_id, kind, arguments))
        if kind in self.scripts:
            answers = self.scripts[kind](arguments)
        elif kind == ENTRIES:
            answers = self._entries((route, request_id), *arguments)
        else:
            answers = self._answers(request_id, kind, arguments)
        for answer in answers:
            assert self.router is not None
            self.router.send_multipart([route, request_id, *answer])

    def _answers(self, request_id: bytes, kind: bytes, arguments: Frames) -> list[Frames]:
        leads, leader = b"\x01" if self.leads else b"", msgpack.packb(self.cluster.leader_id)
        log = self.cluster.log
        if kind == CONFIG:
            both = self.cluster.listed + [p for p in self.cluster.change or () if p not in self.cluster.listed]
            return [[leads, leader, msgpack.packb(both)]]
        if kind == LOG_INFO:
            return [[leads, leader, b"\x01", b"\x01", *[uint(len(log))] * 3, b"\x00", b"\x00"]]
        if kind == BROADCAST:
            return [[self.pub_url.encode()]]
        if kind == UPDATE:
            if not self.leads:
                return [[b"", leader]]
            return [[b"\x01"], [b"\x01", msgpack.packb(self.cluster.commit(request_id, arguments[0]))]]
        if kind == PEERS:
            if not self.leads:
                return [[b"\x00", leader]]
            if self.cluster.change is not None:  # looked at before the list is (facts §1.4)
                return [[b"\x03"]]
            wanted = msgpack.unpackb(arguments[0])
            if not isinstance(wanted, list):
                return [[b"\x02", msgpack.packb({"name": "TypeError", "message": "peers must be an array"})]]
            self.cluster.listed = wanted
            return [[b"\x01"], [b"\x01", b"\x2a"]]
        return [[kind, *arguments]] if kind == b"echo" else []

    def _entries(self, key: tuple[bytes, bytes], previous: bytes, count: bytes = b"", *_: bytes) -> list[Frames]:
        """Five messages ahead, one more for each follow-up; a count of 0 ends it."""
        follow_up = self._streams.get(key)
        if count and not int.from_bytes(count, "little"):
            self._streams.pop(key, None)
            return []
        if not self.leads:
            return [[b"\x00", msgpack.packb(self.cluster.leader_id)]]
        if follow_up is not None:
            return [follow_up.popleft()] if follow_up else []
        messages = self._stream(int.from_bytes(previous, "little"), int.from_bytes(count, "little") if count else None)
        self._streams[key] = messages
        return [messages.popleft() for _ in range(min(5, len(messages)))]

    def _stream(self, after: int, count: int | None) -> deque[Frames]:
        entries = self.cluster.log[after : None if count is None else after + count]
        messages = deque()
        for start in range(0, len(entries), _ENTRIES_PER_MESSAGE):
            some = entries[start : start + _ENTRIES_PER_MESSAGE]
            messages.append([b"\x02", b"\xc0", uint(after + start + len(some)), *some])
        if messages:
            messages[-1][0] = b"\x01"
        return messages or deque([[b"\x01", b"\xc0", uint(len(self.cluster.log))]])

    def publish(self, entries: Frames) -> None:
        if self.pub is not None and not self.cluster.loses_broadcasts:
            self.pub.send_multipart([self.cluster.ident, b"\x01", uint(len(self.cluster.log)), *entries])


class ScriptedCluster:
    """``with ScriptedCluster() as cluster``: three peers, of which "1" leads.

    ``options`` are set on every socket, ``options_of`` on those of one peer.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        ident: bytes = b"",
        options: dict[int, Any] | None = None,
        options_of: dict[str, dict[int, Any]] | None = None,
    ) -> None:
        self.ident = ident
        self._options = options or {}
        self._options_of = options_of or {}
        self._context = zmq.Context()
        self.leader_id: str | None = "1"
        self.log: list[bytes] = []  # whole entries; the index counts from 1
        self.index_of: dict[bytes, int] = {}
        self.seen: list[tuple[str, bytes, bytes, Frames]] = []  # peer, request id, type, arguments
        self.peers = {str(n): ScriptedPeer(self, str(n)) for n in range(1, size + 1)}
        self.listed = [[peer.id, peer.url] for peer in self.peers.values()]
        self.change: list[list[str]] | None = None  # the new list, while the members change
        self._orders: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._bell_in, self._bell_out = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        self._bell_out.bind("inproc://bell")
        self._bell_in.connect("inproc://bell")
        self.loses_broadcasts = False
        self._stopped = False
        self._pulse_at = 0.0
        self._thread = threading.Thread(target=self._run, name="scripted peers", daemon=True)

    def socket(self, kind: int, peer_id: str) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.linger = 0
        for option, value in (self._options | self._options_of.get(peer_id, {})).items():
            made.setsockopt(option, value)
        return made

    @property
    def seeds(self) -> str:
        return ",".join(peer.url for peer in self.peers.values())

    def commit(self, request_id: bytes, data: bytes) -> int:
        if request_id not in self.index_of:
            entry = request_id + b"\x00" + b"\x01" + bytes(6) + data
            self.log.append(entry)
            self.index_of[request_id] = len(self.log)
            if self.leader_id is not None:
                self.peers[self.leader_id].publish([entry])
        return self.index_of[request_id]

    # -- what a test orders; each returns when it is done --------------------------------------------------------------

    def elect(self, peer_id: str | None) -> None:
        self._order(lambda: setattr(self, "leader_id", peer_id))

    def kill(self, peer_id: str) -> None:
        """Its connections break."""
        self._order(self.peers[peer_id].unbind)

    def restart(self, peer_id: str) -> None:
        """At the same address."""
        self._order(self.peers[peer_id].bind)

    def begin_change(self, listed: list[list[str]]) -> None:
        """Somebody changes the members: until the end of it the old and the new ones are listed."""
        self._order(lambda: setattr(self, "change", listed))

    def end_change(self) -> None:
        """The new members alone are in force."""
        self._order(lambda: vars(self).update(listed=self.change, change=None))

    def freeze(self, peer_id: str) -> None:
        """Its connections stay, and it says nothing."""
        self._order(lambda: setattr(self.peers[peer_id], "is_frozen", True))

    def thaw(self, peer_id: str) -> None:
        self._order(lambda: setattr(self.peers[peer_id], "is_frozen", False))

    def fill(self, count: int) -> None:
        """Append this many entries."""
        start = len(self.log)
        self._order(lambda: [self.commit((10**6 + start + n).to_bytes(12, "big"), b"%d" % n) for n in range(count)])

    def script(self, peer_id: str, kind: bytes, answer: Callable[[Frames], list[Frames]] | None) -> None:
        """Answer messages of one type so."""
        scripts = self.peers[peer_id].scripts
        self._order(lambda: scripts.pop(kind, None) if answer is None else scripts.update({kind: answer}))

    def _order(self, what: Callable[[], Any]) -> None:
        done: Future[Any] = Future()
        self._orders.put((what, done))
        self._bell_in.send(b"")
        done.result(10)

    # -- the thread of the peers ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped:
            poller = zmq.Poller()
            poller.register(self._bell_out, zmq.POLLIN)
            working = [p for p in self.peers.values() if p.router is not None and not p.is_frozen]
            for peer in working:
                poller.register(peer.router, zmq.POLLIN)
            ready = dict(poller.poll(_PULSE_S * 1000))
            for peer in working:
                if peer.router in ready:
                    peer.handle(peer.router.recv_multipart())
            if self._bell_out in ready:
                self._bell_out.recv()
                what, done = self._orders.get()
                try:
                    done.set_result(what())
                except (zmq.ZMQError, AssertionError) as error:  # it is the test's, and this thread goes on
                    done.set_exception(error)
            self._pulse()

    def _pulse(self) -> None:
        """Leaders broadcast even when nothing happens."""
        if self.leader_id is not None and time.monotonic() >= self._pulse_at:
            self._pulse_at = time.monotonic() + _PULSE_S
            if not self.peers[self.leader_id].is_frozen:
                self.peers[self.leader_id].publish([])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._order(lambda: setattr(self, "_stopped", True))
        self._thread.join(10)
        for peer in self.peers.values():
            peer.give_up_ports()
        self._context.destroy(linger=0)


# -- compacted ---------------------------------------------------------------------------------------------------------

# A scripted log that was compacted: a snapshot of the first entries, and the entries after it. Bytes by hand.


def compact(peers: ScriptedCluster, index: int, snapshot: bytes) -> None:
    """The entries up to ``index`` are only in ``snapshot`` from now on, which comes in chunks of five bytes."""
    offsets: dict[bytes, int] = {}  # of the snapshots under way: request id -> where the next chunk starts

    def answer(arguments: Frames) -> list[Frames]:
        request_id = peers.seen[-1][1]
        previous, count, start = (int.from_bytes(b"".join(arguments[n : n + 1]), "little") for n in range(3))
        if arguments[1:2] and not count and arguments[1]:
            offsets.pop(request_id, None)
            return []
        if previous >= index and request_id not in offsets:
            return [[b"\x01", b"\xc0", uint(len(peers.log)), *peers.log[previous:]]]
        offset = offsets.pop(request_id, start)
        chunk = snapshot[offset : offset + 5]
        if offset + len(chunk) < len(snapshot):
            offsets[request_id] = offset + len(chunk)
        return [[b"\x03", msgpack.packb([offset, len(snapshot), 1]), uint(index), chunk]]

    peers.script("1", ENTRIES, answer)

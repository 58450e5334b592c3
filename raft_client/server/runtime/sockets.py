"""The sockets of one peer: a ROUTER for all who ask, a DEALER to each other peer, a PUB for broadcasts.

:mod:`raft_client.links` has those of a client. It never blocks, has no thread of its own (libzmq has) and decides
nothing.

Rules:

* The descriptor of a ØMQ socket is edge-triggered: it tells once of what has come. Code that touches a socket, also to
  send, must therefore look whether something came before anybody sleeps on its descriptor (zmq_getsockopt(3), ZMQ_FD).
* A DEALER drops what it is given while it is not connected: the node repeats what is not answered, and nothing that
  was queued for a dead peer may reach its successor.
* Every queue has an end. A ROUTER drops what is for a connection whose queue is full; its client asks again.
* With keys, a peer is known by its key and not by its address. What only peers say is heard only from the peer whose
  key its sender has: a client cannot pretend to be a leader, and no peer to be another one.
"""

from __future__ import annotations

import errno
import logging
import math
from collections import OrderedDict, deque
from itertools import count, islice
from typing import TYPE_CHECKING, Final, NamedTuple

import zmq
from zmq import zmq_poll
from zmq.utils import z85

from raft_client.errors import TransportError
from raft_client.reports import on_one_line
from raft_client.server.runtime.curve_keys import CLIENTS
from raft_client.wire.client_requests import Trim
from raft_client.wire.configuration import with_host
from raft_client.wire.peer_messages import AppendEntries, InstallSnapshot, PreVote, RequestVote, TimeoutNow
from raft_client.zmq_messages import (
    LongMessageError,
    monitored_events,
    receive_message,
    send_message,
    send_tracked_message,
    skip_message,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from raft_client.server.runtime.curve_keys import CurveKeys

# -- handshakes --------------------------------------------------------------------------------------------------------
# libzmq asks about each handshake, and this answers.
#
# The questions come to a socket of the peer's own context (ZeroMQ RFC 27, ZAP), so they are answered between two turns
# of its event loop, without a thread. libzmq asks only about clients that have proved that they hold the secret key of
# the public one that they show, and that knew the key of this peer.


logger: Final = logging.getLogger("raft_client.server")

_FAILED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
#: What only peers say. The frame after the ident is the id of the one that says it.
_OF_PEERS: Final = frozenset(
    message.TYPE for message in (AppendEntries, InstallSnapshot, PreVote, RequestVote, TimeoutNow, Trim)
)
#: Where that frame is, after the route, the request id, the type and the ident.
_TYPE_AT: Final = 2
_SENDER_AT: Final = 4
#: Addresses of which it is remembered that they were logged. There may be as many as there are machines that try.
_MOST_ADDRESSES: Final = 1_000

_monitor_numbers = count(1)


class Handshakes:
    """Of the sockets of one context that others connect to. Made before the first of them is bound."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: CurveKeys, drop: Callable[[str], object]) -> None:
        self._keys = keys
        self._drop = drop
        self._asked = context.socket(zmq.REP)
        self._asked.linger = 0
        self._asked.bind("inproc://zeromq.zap.01")
        self._monitors: list[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = []
        self._logged: set[str] = set()

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """To be watched for readability."""
        return [self._asked, *(monitor for _, monitor in self._monitors)]

    def protect(self, socket: zmq.Socket[bytes]) -> None:
        """Let nobody connect to this socket without a key. To be called before it is bound."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret_key)
        monitor = socket.get_monitor_socket(_FAILED, f"inproc://raft-handshakes-{next(_monitor_numbers)}")
        self._monitors.append((socket, monitor))

    def settle(self, now: float) -> None:
        """Answer what libzmq has asked, and log who was refused."""
        while (question := receive_message(self._asked)) is not None:
            self._keys.refresh(now)
            send_message(self._asked, self._answer(question))
        for _, monitor in self._monitors:
            for _ in monitored_events(monitor):
                # libzmq ended it by itself, and does not say whose it was.
                self._refuse("", "it has no key, or does not know the key of this peer, or is no ØMQ program")

    def may_say(self, frames: list[bytes], user: str, now: float) -> bool:
        """Whether a message to a ROUTER may come from the one that was given this name, and whose key may be gone."""
        if not self._keys.is_there(user, now):
            self._drop("from a sender whose key was removed")
            return False
        if len(frames) <= _SENDER_AT or frames[_TYPE_AT] not in _OF_PEERS:
            return True
        kind, sender = frames[_TYPE_AT], frames[_SENDER_AT]
        if (kind == Trim.TYPE and not sender) or (sender == user.encode() and not user.startswith(CLIENTS + "/")):
            return True
        self._drop("in the name of a peer whose key its sender does not have")
        return False

    def log_unreachable(self, peer_id: str, url: str, *, has_key: bool) -> None:
        """There is no connection to that peer: its key is not known, or one of the two does not know the other."""
        if has_key:
            why = "the handshake fails; does each have the public key of the other, and is it the right one?"
        else:
            why = f"there is no {self._keys.folder / peer_id}.key that can be used"
        self._log_once(f"{peer_id} {url}", f"cannot connect to peer {peer_id} at {url}: {why}")

    def close(self) -> None:
        """Its own sockets, and the monitors of the others."""
        for socket, monitor in self._monitors:
            socket.disable_monitor()
            monitor.close(linger=0)
        self._asked.close(linger=0)

    def _answer(self, question: list[bytes]) -> list[bytes]:
        version, request_id, _domain, address, _identity, mechanism, *credentials = question
        user = None
        if mechanism == b"CURVE" and len(credentials) == 1:
            user = self._keys.user(z85.encode(credentials[0]))
        if user is None:
            self._refuse(address.decode("utf-8", "replace"), f"its key is not in {self._keys.folder}")
            return [version, request_id, b"400", b"unknown key", b"", b""]
        return [version, request_id, b"200", b"OK", user.encode(), b""]

    def _refuse(self, address: str, why: str) -> None:
        self._drop("refused at the handshake")
        place = f"from {address}" if address else "from an address that libzmq does not tell"
        self._log_once(address, f"refuses connections {place}: {why}")

    def _log_once(self, address: str, what: str) -> None:
        if address not in self._logged:
            if len(self._logged) >= _MOST_ADDRESSES:
                self._logged.clear()
            self._logged.add(address)
            logger.warning("%s", on_one_line(f"peer {self._keys.peer_id} {what}"))


# -- long answers ------------------------------------------------------------------------------------------------------
# libzmq counts the messages that wait for a connection, not their bytes: a client that asks a thousand times for a
# value of 10 MiB, and reads nothing, would have a peer keep 10 GiB. What libzmq still holds of long answers is known
# from their last frames, which it hands back when they are sent; so what waits has bounds, and more is dropped.
#
# Invariant: what waits has ``_MOST_BYTES`` in all and one answer more; twice that, if many wait for one answer each.


#: Shorter ones are bounded by their number alone.
_LONG_BYTES: Final = 16 * 1024
#: What waits for one connection, and for all. A connection for which nothing waits may have an answer all the same.
_MOST_BYTES_OF_ONE: Final = 32 * 1024 * 1024
_MOST_BYTES: Final = 256 * 1024 * 1024
#: Connections that are looked at with each long answer, whether they have read theirs.
_LOOKED_AT: Final = 4


class LongAnswers:
    """What waits of them in libzmq, by route; those that were not looked at for longest are the first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[bytes, deque[tuple[int, zmq.MessageTracker]]] = OrderedDict()
        self._bytes: dict[bytes, int] = {}
        self._total = 0

    def send(self, router: zmq.Socket[bytes], frames: Sequence[bytes]) -> bool:
        """Send an answer, long or short; the first frame is the route. False if it was dropped."""
        size = sum(map(len, frames))
        if size < _LONG_BYTES:
            return send_message(router, frames)
        route = frames[0]
        for each in [route, *islice(self._waiting, _LOOKED_AT)]:
            self._look_at(each)
        if not self._has_room(route, size):
            return False
        tracker = send_tracked_message(router, frames)
        if tracker is None:
            return False
        self._waiting.setdefault(route, deque()).append((size, tracker))
        self._bytes[route] = self._bytes.get(route, 0) + size
        self._total += size
        return True

    def _has_room(self, route: bytes, size: int) -> bool:
        waiting = self._bytes.get(route, 0)
        if not waiting:
            return self._total + size <= 2 * _MOST_BYTES
        return waiting + size <= _MOST_BYTES_OF_ONE and self._total + size <= _MOST_BYTES

    def _look_at(self, route: bytes) -> None:
        """What is sent waits no longer. Answers of one connection are sent in their order."""
        waiting = self._waiting.get(route)
        if waiting is None:
            return
        while waiting and waiting[0][1].done:
            size = waiting.popleft()[0]
            self._bytes[route] -= size
            self._total -= size
        if waiting:
            self._waiting.move_to_end(route)
        else:
            del self._waiting[route], self._bytes[route]


# -- the pace of requests ----------------------------------------------------------------------------------------------
# A ROUTER hands out what waits on its connections in turn, and none of them can be left alone. So when one has had more
# than its share, nothing is taken from any for a moment. Its messages then wait in libzmq and, when its queue is full,
# in TCP, which slows it down; those of the others wait for a few milliseconds.
#
# Invariant: in any time of ``t`` seconds no connection has more than ``_BURST + t * _MAX_PER_SECOND`` requests taken,
# and one.


#: Requests of one connection that are taken in a second: more than a peer can answer. To receive and drop as many takes
#: less than half of a processor.
_MAX_PER_SECOND: Final = 50_000
#: So many at once count as nothing: a client sends what it has in flight in one go.
_BURST: Final = 500
_PAUSE_S: Final = 0.001
#: Connections that are remembered before those are forgotten that have been quiet since.
_REMEMBERED: Final = 4_096

_EACH_S: Final = 1 / _MAX_PER_SECOND
_BURST_S: Final = _BURST / _MAX_PER_SECOND


class RequestPace:
    """Of one ROUTER; ``now`` is monotonic seconds."""

    def __init__(self) -> None:
        #: Nothing is to be taken before.
        self.pauses_until: float = 0.0
        self._paid_until: dict[bytes, float] = {}  # by route: when it would be done at the pace of a second

    def may_go_on(self, route: bytes, now: float) -> bool:
        """One request of this connection was taken; whether another one, of whichever connection, may follow."""
        paid_until = self._paid_until[route] = max(self._paid_until.get(route, 0.0), now) + _EACH_S
        if len(self._paid_until) > _REMEMBERED:
            self._paid_until = {each: until for each, until in self._paid_until.items() if until > now}
        if paid_until <= now + _BURST_S:
            return True
        self.pauses_until = now + _PAUSE_S
        return False


# -- sockets -----------------------------------------------------------------------------------------------------------


#: Messages that wait to be sent through one connection: as many as Node peers have. One with entries has 64 KiB.
_SEND_QUEUE: Final = 1_000
#: Broadcasts that wait for one subscriber. It misses more, which it sees, and reads them as entries. One has 256 KiB,
#: or one entry of 10 MiB.
_BROADCAST_QUEUE: Final = 128
#: Messages that wait to be received from one connection. Beyond them it is not read from: each may have 10 MiB.
_RECEIVE_QUEUE: Final = 128
#: The longest frame that is let in: an entry of 10 MiB, and some room for what is around it.
_MAX_FRAME_BYTES: Final = 11 * 1024 * 1024
#: The same for what subscribers say: which messages they want, by the name of the cluster.
_MAX_SUBSCRIPTION_BYTES: Final = 64 * 1024
#: The most frames of a message, which libzmq does not bound. AppendEntries has one for each entry, and 64 KiB of the
#: shortest are 3,121.
_MAX_FRAMES: Final = 65_536
#: What is taken from one socket at once, and one message more; and what a frame costs beside its bytes.
_MOST_AT_ONCE_BYTES: Final = 32 * 1024 * 1024
_FRAME_BYTES: Final = 1024
#: Frames of a message too long that are dropped at once.
_SKIPPED_AT_ONCE: Final = 32_768
_RECONNECT_MS: Final = 50
#: A connection on which the other machine acknowledges nothing for so long is given up (Linux; elsewhere idle ones):
#: machines that are lost close none of theirs, and each is a file. Idle ones are asked for an acknowledgement.
_UNACKNOWLEDGED_MS: Final = 10_000
_IDLE_S: Final = 5
_QUESTIONS_S: Final = 2
_QUESTIONS: Final = 3
_READABLE: Final = int(zmq.POLLIN)
_CONNECTED: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_LOST: Final = int(zmq.EVENT_DISCONNECTED)
_REFUSED: Final = int(
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)

#: The process, or the machine, has too many files open: connections of clients are files, too.
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
_RETRY_S: Final = 0.1


class Dealer:
    """The connection to one other peer. With ``keys``, to none but the one that has ``peer_key``."""

    __slots__ = ("_is_connected", "_monitor", "_socket", "is_refused", "peer_id", "peer_key", "url")

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        peer_id: str,
        url: str,
        keys: CurveKeys | None = None,
        peer_key: bytes = b"",
    ) -> None:
        self.peer_id: str = peer_id
        self.url: str = url
        self.peer_key: bytes = peer_key
        #: Whether a handshake failed, and none succeeded since.
        self.is_refused: bool = False
        self._is_connected = False
        self._socket = _socket(context, zmq.DEALER, url)
        if keys is not None:
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, peer_key)
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public_key)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret_key)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        name = f"inproc://raft-peer-monitor-{next(_monitor_numbers)}"
        try:
            self._monitor = self._socket.get_monitor_socket(_CONNECTED | _LOST | _REFUSED, name)
            self._socket.connect(url)
        except zmq.ZMQError:
            self._socket.close(linger=0)
            raise

    @property
    def sockets(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """Of messages, and of connections that begin and end."""
        return self._socket, self._monitor

    def send(self, frames: Sequence[bytes]) -> bool:
        """False if it is not connected, or takes no more."""
        return send_message(self._socket, frames)

    def receive(self, drop: Callable[[str], object]) -> Iterator[list[bytes]]:
        """One message that has come; ``drop`` is told why something is left out.

        There is one question at a time, so there is one reply. To be told that there is no other costs more than it.
        """
        return _receive(self._socket, drop, 1)

    def turns(self) -> Iterator[bool]:
        """True for each connection that began, False for each that ended, in their order. An attempt whose handshake
        fails is none, though libzmq says of it that it was disconnected: they come several times a second.
        """
        for event in monitored_events(self._monitor):
            if event & _REFUSED:
                self.is_refused = True
                continue
            began, was_connected = bool(event & _CONNECTED), self._is_connected
            self.is_refused = self.is_refused and not began
            self._is_connected = began
            if began or was_connected:
                yield began

    def close(self) -> None:
        """At once; what was not sent is dropped."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)


class Received(NamedTuple):
    """What had come to the sockets of a peer."""

    connections: list[tuple[Dealer, bool]]
    replies: list[tuple[str, list[bytes]]]
    requests: list[list[bytes]]


class PeerSockets:
    """All sockets of one peer. ``watch`` and ``forget`` are told of descriptors that come into use and leave it.

    ``drop`` is told why a message is not handed out. Without ``keys`` everything is in the clear.
    """

    def __init__(
        self,
        watch: Callable[[int], object],
        forget: Callable[[int], object],
        drop: Callable[[str], object] = lambda _reason: None,
        keys: CurveKeys | None = None,
    ) -> None:
        self._watch = watch
        self._forget = forget
        self._drop = drop
        self._context = zmq.Context()
        self._keys = keys
        self._handshakes = None if keys is None else Handshakes(self._context, keys, drop)
        self._answers = LongAnswers()
        self._pace = RequestPace()
        self._router: zmq.Socket[bytes] | None = None
        self._publisher: zmq.Socket[bytes] | None = None
        self._polled: list[tuple[zmq.Socket[bytes], int]] = []
        self.dealers: dict[str, Dealer] = {}
        self._urls: dict[str, str] = {}  # of all who are to have a DEALER
        self._unreachable: frozenset[str] = frozenset()
        self._retry_at = 0.0
        self._missing: set[str] = set()  # those who have none, because too many files are open
        self._next_key_at: dict[str, float] = {}  # when another of its keys may be tried

    def bind(self, url: str, publisher_url: str | None, public_host: str | None = None) -> tuple[str, str | None]:
        """Listen; the addresses where: a port ``*`` has become a number, and the host of the broadcasts
        ``public_host``, if it has one. Raises TransportError.
        """
        address: str | None = url
        try:
            router = self._router = self._listener(zmq.ROUTER, url)
            router.copy_threshold = 0  # as the answers need it
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # otherwise it drops what nobody takes without a word
            router.bind(url)
            if (address := publisher_url) is not None:
                self._publisher = self._listener(zmq.PUB, address)
                self._publisher.setsockopt(zmq.MAXMSGSIZE, _MAX_SUBSCRIPTION_BYTES)
                self._publisher.setsockopt(zmq.SNDHWM, _BROADCAST_QUEUE)
                self._publisher.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(f"cannot listen at {address}: {error.strerror}") from error
        for each in self._watched_listeners():
            self._polled.append((each, _READABLE))
            self._watch(each.fileno())
        published = None if self._publisher is None else _endpoint(self._publisher)
        if published is not None and public_host is not None:
            published = with_host(published, public_host)
        return _endpoint(router), published

    def connect(self, peer_id: str, url: str, refused: bytes | None = None) -> None:
        """Open a DEALER, in place of the one that this peer had. ``refused``: it does not have this key, of two."""
        self.disconnect(peer_id)
        self._urls[peer_id] = url
        key = b"" if self._keys is None else self._keys.of_peer(peer_id, refused)
        if peer_id in self._unreachable or key is None:
            return
        try:
            dealer = self.dealers[peer_id] = Dealer(self._context, peer_id, url, self._keys, key)
        except zmq.ZMQError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            if peer_id not in self._missing:
                logger.warning("no connection to %s: %s; tried again until there is", url, error)
            self._missing.add(peer_id)
            return
        self._missing.discard(peer_id)
        for socket in dealer.sockets:
            self._polled.append((socket, _READABLE))
            self._watch(socket.fileno())

    def reconnect(self, peer_id: str) -> None:
        """Open it anew, if there is one."""
        if peer_id in self._urls:
            self.connect(peer_id, self._urls[peer_id])

    def tell(self, peer_id: str, frames: list[bytes]) -> None:
        """Send this to a peer if there is a connection to it."""
        if (dealer := self.dealers.get(peer_id)) is not None:
            dealer.send(frames)

    def cut_off(self, peer_ids: frozenset[str]) -> None:
        """There is no DEALER to these, and again one to all others, until this is called again."""
        self._unreachable = peer_ids
        for peer_id in list(self._urls):
            if (peer_id in peer_ids) is (peer_id in self.dealers):
                self.reconnect(peer_id)

    def disconnect(self, peer_id: str) -> None:
        """Close the DEALER of this peer, if there is one."""
        self._urls.pop(peer_id, None)
        dealer = self.dealers.pop(peer_id, None)
        if dealer is not None:
            for socket in dealer.sockets:  # before they go: their numbers are given to others at once
                self._polled.remove((socket, _READABLE))
                self._forget(socket.fileno())
            dealer.close()

    def receive(self, limit: int, now: float) -> Received:
        """What has come; of requests at most ``limit``, and none while one client has sent too many: so busy clients do
        not hold up the rest."""
        # One call asks all sockets. To be told by each that it is empty, with an exception, takes six times as long.
        readable = {socket for socket, _ in zmq_poll(self._polled, 0)}
        received = Received([], [], [])
        for dealer in self.dealers.values():
            messages, monitor = dealer.sockets
            if monitor in readable:
                received.connections.extend((dealer, began) for began in dealer.turns())
            if messages in readable:
                received.replies.extend((dealer.peer_id, frames) for frames in dealer.receive(self._drop))
        if self._router in readable and now >= self._pace.pauses_until:
            received.requests.extend(self._requests(self._router, limit, now))
        return received

    def _requests(self, router: zmq.Socket[bytes], limit: int, now: float) -> Iterator[list[bytes]]:
        users: list[str] | None = None if self._handshakes is None else []
        for message in _receive(router, self._drop, limit, users):
            if self._handshakes is None or users is None or self._handshakes.may_say(message, users.pop(), now):
                yield message
            if not self._pace.may_go_on(message[0], now):
                return

    def settle(self, now: float) -> None:
        """Connect to peers for which there was no descriptor, or whose keys are known by now, or others than before;
        and say to libzmq who may connect."""
        if self._missing and now >= self._retry_at:
            self._retry_at = now + _RETRY_S
            for peer_id in list(self._missing):
                self.reconnect(peer_id)
        if self._keys is None or self._handshakes is None:
            return
        self._handshakes.settle(now)
        for peer_id, url in list(self._urls.items()):
            dealer = self.dealers.get(peer_id)
            if peer_id in self._unreachable or (dealer is not None and not dealer.is_refused):
                continue
            self._keys.refresh(now)
            refused = None if dealer is None else dealer.peer_key
            key = self._keys.of_peer(peer_id, refused)
            if key is not None and key != refused:
                if now >= self._next_key_at.get(peer_id, 0.0):
                    self._next_key_at[peer_id] = now + _RETRY_S
                    self.connect(peer_id, url, refused)
            else:
                self._handshakes.log_unreachable(peer_id, url, has_key=key is not None)

    def answer(self, frames: Sequence[bytes]) -> bool:
        """Through the ROUTER; the first frame is the route. A route that is gone takes nothing."""
        return self._router is not None and self._answers.send(self._router, frames)

    def publish(self, frames: Sequence[bytes]) -> None:
        """To whoever listens."""
        if self._publisher is not None:
            send_message(self._publisher, frames)

    def next_look(self, now: float) -> float:
        """When to take what has come and nobody has taken: look before sleeping. ``math.inf``: nothing has come."""
        readable = zmq_poll(self._polled, 0)
        if now < self._pace.pauses_until and all(socket is self._router for socket, _ in readable):
            return self._pace.pauses_until
        return now if readable else math.inf

    def close(self) -> None:
        """Everything, at once."""
        for peer_id in list(self.dealers):
            self.disconnect(peer_id)
        for each in self._watched_listeners():
            self._forget(each.fileno())
        if self._handshakes is not None:
            self._handshakes.close()
        if self._router is not None:
            self._router.close(linger=0)
        if self._publisher is not None:
            self._publisher.close(linger=0)
        self._router = self._publisher = self._handshakes = None
        self._polled.clear()
        self._context.destroy(linger=0)  # not term(): that waits for ever for a socket that could not connect

    def _listener(self, kind: int, url: str) -> zmq.Socket[bytes]:
        listener = _socket(self._context, kind, url)
        if self._handshakes is not None:
            self._handshakes.protect(listener)
        return listener

    def _watched_listeners(self) -> list[zmq.Socket[bytes]]:
        """What is read, beside the connections to other peers."""
        doors = [] if self._handshakes is None else self._handshakes.sockets
        return doors if self._router is None else [*doors, self._router]


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, url: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    # Otherwise it tells an IPv4 address as an IPv6 one that stands for it, and others are told so where it publishes.
    socket.setsockopt(zmq.IPV6, int("[" in url))
    socket.setsockopt(zmq.SNDHWM, _SEND_QUEUE)
    socket.setsockopt(zmq.RCVHWM, _RECEIVE_QUEUE)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
    socket.setsockopt(zmq.TCP_MAXRT, _UNACKNOWLEDGED_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _QUESTIONS_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, _QUESTIONS)
    return socket


def _receive(
    socket: zmq.Socket[bytes],
    drop: Callable[[str], object],
    limit: int,
    users: list[str] | None = None,
) -> Iterator[list[bytes]]:
    if not skip_message(socket, _SKIPPED_AT_ONCE):
        return
    left = _MOST_AT_ONCE_BYTES
    for _ in range(limit):
        try:
            message = receive_message(socket, _MAX_FRAMES, users)
        except LongMessageError:
            drop("too many frames")
            return
        if message is None:
            return
        yield message
        left -= sum(map(len, message)) + _FRAME_BYTES * len(message)
        if left < 0:
            return


def _endpoint(socket: zmq.Socket[bytes]) -> str:
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")

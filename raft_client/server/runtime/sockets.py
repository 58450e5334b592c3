"""The sockets of one peer: a ROUTER for all who ask, a DEALER to each other peer, a PUB for broadcasts.

:mod:`raft_client.links` has those of a client. It never blocks, has no thread of its own (libzmq has) and decides
nothing.

Rules:

* The descriptor of a ØMQ socket is edge-triggered: it tells once of what has come. Code that touches a socket, also to
  send, must therefore look whether something came before anybody sleeps on its descriptor (zmq_getsockopt(3), ZMQ_FD).
* A DEALER drops what it is given while it is not connected: the node repeats what is not answered, and nothing that
  was queued for a dead peer may reach its successor.
* Every queue has an end. A ROUTER drops what is for a connection whose queue is full; its client asks again.
* With keys, a peer is known by its key and not by its address: see :mod:`raft_client.server.runtime.handshakes`.
"""

from __future__ import annotations

import errno
import logging
import math
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

import zmq
from zmq import zmq_poll

from raft_client.errors import TransportError
from raft_client.server.runtime.handshakes import Handshakes
from raft_client.server.runtime.long_answers import LongAnswers
from raft_client.server.runtime.request_pace import RequestPace
from raft_client.wire.configuration import with_host
from raft_client.zmq_messages import LongMessageError, monitored_events, receive_message, send_message, skip_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from raft_client.server.runtime.curve_keys import CurveKeys

logger: Final = logging.getLogger("raft_client.server")

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

_monitor_numbers = count(1)


class Dealer:
    """The connection to one other peer. With ``keys``, to none but the one that has ``peer_key``."""

    __slots__ = ("_monitor", "_socket", "is_refused", "peer_id", "peer_key", "url")

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
        """True for each connection that began, False for each that ended, in their order."""
        for event in monitored_events(self._monitor):
            if event & _REFUSED:
                self.is_refused = True
                continue
            self.is_refused = self.is_refused and not event & _CONNECTED
            yield bool(event & _CONNECTED)

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

    def bind(self, url: str, publisher_url: str | None, public_host: str | None = None) -> tuple[str, str | None]:
        """Open the doors; what they are called then: a port ``*`` has become a number, and the host of the broadcasts
        ``public_host``, if it has one. Raises TransportError.
        """
        address: str | None = url
        try:
            router = self._router = self._door(zmq.ROUTER, url)
            router.copy_threshold = 0  # as the answers need it
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # otherwise it drops what nobody takes without a word
            router.bind(url)
            if (address := publisher_url) is not None:
                self._publisher = self._door(zmq.PUB, address)
                self._publisher.setsockopt(zmq.MAXMSGSIZE, _MAX_SUBSCRIPTION_BYTES)
                self._publisher.setsockopt(zmq.SNDHWM, _BROADCAST_QUEUE)
                self._publisher.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(f"cannot listen at {address}: {error.strerror}") from error
        for each in self._watched_doors():
            self._polled.append((each, _READABLE))
            self._watch(each.fileno())
        published = None if self._publisher is None else _endpoint(self._publisher)
        if published is not None and public_host is not None:
            published = with_host(published, public_host)
        return _endpoint(router), published

    def connect(self, peer_id: str, url: str) -> None:
        """Open a DEALER, in place of the one that this peer had."""
        self.disconnect(peer_id)
        self._urls[peer_id] = url
        key = b"" if self._keys is None else self._keys.of_peer(peer_id)
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
            key = self._keys.of_peer(peer_id)
            if key is not None and (dealer is None or dealer.peer_key != key):
                self.connect(peer_id, url)
            else:
                self._handshakes.no_way(peer_id, url, has_key=key is not None)

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
        for each in self._watched_doors():
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

    def _door(self, kind: int, url: str) -> zmq.Socket[bytes]:
        door = _socket(self._context, kind, url)
        if self._handshakes is not None:
            self._handshakes.protect(door)
        return door

    def _watched_doors(self) -> list[zmq.Socket[bytes]]:
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

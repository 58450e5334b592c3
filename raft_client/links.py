"""The sockets of one client: a DEALER for each peer that is talked to, a SUB for each that is listened to.

The only module of a client, with :mod:`raft_client.zmq_messages`, that imports zmq. It never blocks, has no thread of
its own (libzmq has) and decides nothing.

Rules:

* Sockets are used by one thread at a time: the engines see to that.
* The file descriptor of a ØMQ socket is edge-triggered: it tells once of what has come. Code that touches one must
  therefore empty it before anybody sleeps on its descriptor (zmq_getsockopt(3), ZMQ_FD).
* libzmq does not reconnect: the request machine decides when and to whom, on a new socket each time. Nothing that was
  queued for a dead peer is sent to its successor.
* No monitor is closed while its socket still reports to it: libzmq's own thread would wait for room in it for ever, and
  carry nothing more for any socket of this client (libzmq issue 3575).
* Invariant: what is handed over without an answer is at most ``max_in_flight`` requests and the open streams, so queues
  need no limit of their own, and sending fails only when the link is gone.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final, TypeVar

import zmq
from zmq import zmq_poll

from raft_client.settings import RaftSettings
from raft_client.zmq_messages import check_curve, monitored_events, receive_message, send_message

#: Each of these means that a link is gone: refused, broken, or no agreement about keys.
_LOST: Final = int(
    zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_HANDSHAKE_BROKE: Final = (
    "broke the connection in the handshake: is it a ØMQ Raft peer, and the port the right one? If so, has it CURVE "
    "keys, or others than this client thinks?"
)
#: What a handshake ended with. Which side sees first that only one of them has keys is a matter of time.
_REFUSALS: Final = {
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "does not know the key of this client (curve_public_key)",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): _HANDSHAKE_BROKE,
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): _HANDSHAKE_BROKE,
}
_NEVER: Final = -1
_NO_LIMIT: Final = 0
_READABLE: Final = int(zmq.POLLIN)

_monitor_numbers = count(1)
_Key = TypeVar("_Key")


class LinkError(Exception):
    """A socket cannot be made: nobody can connect to such a URL, or this process has no more descriptors."""


class Link:
    """One socket, and the monitor that tells of its end. A SUB can come back: libzmq connects it again."""

    __slots__ = (
        "_monitor",
        "_polled",
        "_socket",
        "descriptor",
        "is_closed",
        "monitored",
        "owner",
        "refusal",
        "server_key",
        "url",
    )

    def __init__(
        self,
        url: str,
        socket: zmq.Socket[bytes],
        monitor: zmq.Socket[bytes],
        owner: Any,
        server_key: tuple[str, bytes] | None,
    ) -> None:
        #: Or the name under which it was set aside.
        self.url: str = url
        #: For whom a SUB listens; None: a DEALER.
        self.owner: Any = owner
        self.is_closed: bool = False
        #: Why it is lost, if that is known.
        self.refusal: str | None = None
        #: Which key the peer has to have, and under which URL it was found.
        self.server_key: tuple[str, bytes] | None = server_key
        self._socket = socket
        self._monitor = monitor
        self._polled = [(socket, _READABLE)]
        #: The descriptor for what is received, and that for the end. To be watched for readability.
        self.descriptor: int = socket.fileno()
        self.monitored: int = monitor.fileno()

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Itself, and its monitor."""
        return [self._socket, self._monitor]

    def send(self, frames: list[bytes]) -> bool:
        """Hand a message to libzmq; False when the link is gone."""
        return send_message(self._socket, frames)

    def receive(self, *, was_readable: bool = False) -> list[list[bytes]]:
        """All messages that have arrived. ``was_readable``: its descriptor was, so there is
        most likely one, and nobody asks first.

        zmq_poll() asks for ZMQ_EVENTS in half the time of getsockopt().
        """
        messages: list[list[bytes]] = []
        socket, polled = self._socket, self._polled
        while not self.is_closed and (was_readable or zmq_poll(polled, 0)):
            was_readable = False
            message = receive_message(socket)
            if message is None:  # it was readable for something else
                break
            messages.append(message)
        return messages

    def poll_lost(self) -> bool:
        """Whether the monitor has told of the end. Messages that came before it may still wait: receive them first."""
        events = list(monitored_events(self._monitor))
        for event in events:
            self.refusal = _REFUSALS.get(event, self.refusal)
        return any(event & _LOST for event in events)

    def close(self) -> None:
        """At once; what was not sent is dropped."""
        self.is_closed = True
        if not self._socket.closed:  # as the garbage collector may have, before it comes to who owns this
            self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)


class Links:
    """The links of one client by URL, in the order of their making."""

    def __init__(
        self, settings: RaftSettings, *, on_open: Callable[[Link], None], on_close: Callable[[Link], None]
    ) -> None:
        self._settings = settings
        self._keys = _client_keys(settings)
        self._server_keys: dict[str, list[bytes]] = {}  # by URL; the first one is expected
        for url, key in dict.fromkeys(settings.curve_peer_keys):
            self._server_keys.setdefault(url, []).append(key.encode())
        self._on_open = on_open
        self._on_close = on_close
        self._pid = os.getpid()
        # A context of its own: the process-wide one may be terminated by anybody who uses it.
        self._context = zmq.Context()
        #: The links for requests by URL. To be looked at, not to be changed.
        self.dealers: dict[str, Link] = {}
        self._subscribers: dict[tuple[Any, str], Link] = {}
        # The sockets are held here, and not by the links alone: garbage is collected in any order, and to end a context
        # that has lost its sockets waits for them for ever.
        self._sockets: set[zmq.Socket[bytes]] = set()
        self._forgotten = weakref.finalize(self, _end, self._pid, self._context, self._sockets)
        self._forgotten.atexit = False

    def __iter__(self) -> Any:
        return iter([*self.dealers.values(), *self._subscribers.values()])

    def connect(self, url: str) -> Link:
        """A new DEALER. A refusal comes later, through the monitor. Raises LinkError."""
        with _making() as made:
            socket, key = self._socket(zmq.DEALER, made, url)
            socket.setsockopt(zmq.SNDHWM, _NO_LIMIT)
            socket.setsockopt(zmq.RECONNECT_IVL, _NEVER)
            link = Link(url, socket, _connected(socket, url, made), None, key)
        return self._opened(self.dealers, url, link)

    def subscribe(self, owner: Any, url: str, topic: bytes, peer: str | None) -> Link:
        """A new SUB to what ``peer`` broadcasts at ``url``. Raises LinkError.

        This one reconnects by itself, for it has nothing to repeat.
        """
        with _making() as made:
            socket, key = self._socket(zmq.SUB, made, url, peer)
            socket.setsockopt(zmq.SUBSCRIBE, topic)
            link = Link(url, socket, _connected(socket, url, made), owner, key)
        return self._opened(self._subscribers, (owner, url), link)

    def set_aside(self, url: str, name: str) -> None:
        """Know the DEALER under this name from now on, if there is one."""
        link = self.dealers.pop(url, None)
        if link is not None:
            link.url = name
            self.dealers[name] = link

    def disconnect(self, url: str) -> None:
        """Close the DEALER, if there is one."""
        self._closed(self.dealers.pop(url, None))

    def unsubscribe(self, owner: Any, url: str) -> None:
        """Close the SUB, if there is one."""
        self._closed(self._subscribers.pop((owner, url), None))

    def drop(self) -> None:
        """Close all sockets, also those of links that an exception has left half made or half closed."""
        for link in self:
            link.is_closed = True
        _close_all(self._sockets)
        self.dealers.clear()
        self._subscribers.clear()
        self._sockets.clear()

    def close(self) -> None:
        """Close everything. In a forked process, where the sockets are the parent's, nothing is touched."""
        if os.getpid() != self._pid:
            return
        for link in self:
            self._closed(link)
        self.dealers.clear()
        self._subscribers.clear()
        self._forgotten()

    def _socket(
        self, kind: int, made: contextlib.ExitStack, url: str, peer: str | None = None
    ) -> tuple[zmq.Socket[bytes], tuple[str, bytes] | None]:
        """Also which key is expected of the peer."""
        socket = self._context.socket(kind)
        made.callback(socket.close, linger=0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        if self._keys is None:
            return socket, None
        server_key, (public_key, secret_key) = self._server_key(url, peer), self._keys
        socket.setsockopt(zmq.CURVE_SERVERKEY, server_key[1])
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public_key)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret_key)
        return socket, server_key

    def _server_key(self, url: str, peer: str | None) -> tuple[str, bytes]:
        """Of the peer at this URL, or of the one that broadcasts there."""
        for name in (url, peer or ""):
            if name in self._server_keys:
                return name, self._server_keys[name][0]
        if self._settings.curve_server_key is None:  # without CURVE anybody could be at that address
            raise LinkError("has no key in curve_peer_keys, and there is no curve_server_key")
        return url, self._settings.curve_server_key.encode()

    def _expect_another_key(self, link: Link) -> None:
        """Try the other key of a peer that refused this one, because it has either while its keys are changed."""
        name, refused = link.server_key or ("", b"")
        keys = self._server_keys.get(name, [])
        if link.refusal is not None and keys and keys[0] == refused:
            keys.append(keys.pop(0))

    def _opened(self, links: dict[_Key, Link], key: _Key, link: Link) -> Link:
        links[key] = link
        self._sockets.update(link.sockets)
        self._on_open(link)
        return link

    def _closed(self, link: Link | None) -> None:
        if link is not None:
            self._expect_another_key(link)
            self._on_close(link)  # before the descriptors go: their numbers are given to others at once
            link.close()
            self._sockets.difference_update(link.sockets)


def _connected(socket: zmq.Socket[bytes], url: str, made: contextlib.ExitStack) -> zmq.Socket[bytes]:
    """The monitor of a socket, which has been connected."""
    monitor = socket.get_monitor_socket(_LOST, f"inproc://raft-monitor-{next(_monitor_numbers)}")
    made.callback(monitor.close, linger=0)
    made.callback(socket.disable_monitor)
    monitor.poll(0)  # the descriptor of a socket that was never found empty tells nothing
    socket.connect(url)
    return monitor


def _end(pid: int, context: zmq.Context[zmq.Socket[bytes]], sockets: set[zmq.Socket[bytes]]) -> None:
    """Of links that were closed, and of those that were forgotten with their client; not in a forked process."""
    if os.getpid() == pid:
        _close_all(sockets)
        context.term()


def _close_all(sockets: set[zmq.Socket[bytes]]) -> None:
    """Sockets and their monitors, in any order and at any stage of being closed; the same again if this is cut."""
    for socket in list(sockets):
        if not socket.closed:
            socket.disable_monitor()
    for socket in list(sockets):
        socket.close(linger=0)


@contextlib.contextmanager
def _making() -> Iterator[contextlib.ExitStack]:
    """What was made is closed again when not all can be: raises LinkError."""
    with contextlib.ExitStack() as made:
        try:
            yield made
        except (zmq.ZMQError, UnicodeError) as error:
            raise LinkError(f"cannot be connected to ({error})") from error
        made.pop_all()


def _client_keys(settings: RaftSettings) -> tuple[bytes, bytes] | None:
    """Our public and secret key; a new pair when the settings have none. None without CURVE."""
    if settings.curve_server_key is None and not settings.curve_peer_keys:
        return None
    check_curve()
    if settings.curve_public_key is None or settings.curve_secret_key is None:
        return zmq.curve_keypair()
    return settings.curve_public_key.encode(), settings.curve_secret_key.encode()
